"use strict";
(() => {
  // Tables are complete without this script; it adds sorting, folding and printing of folded parts.
  const number = (text) => {
    const found = Number(text.trim().replace(/−/g, "-").replace(/,/g, "").split(/\s/)[0]);
    return text.trim() === "" || Number.isNaN(found) ? null : found;
  };
  const key = (body, column) => {
    const cell = body.rows[0].cells[column];
    return cell.dataset.sort ?? cell.textContent;
  };
  const compare = (a, b) => {
    const [x, y] = [number(a), number(b)];
    return x !== null && y !== null ? x - y : a.trim().localeCompare(b.trim());
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const sorted = [...table.tBodies].sort(
          (a, b) => (up ? 1 : -1) * compare(key(a, column), key(b, column)),
        );
        table.append(...sorted);
      });
    });
    for (const body of table.tBodies) {
      const parts = [...body.querySelectorAll("tr.part")];
      if (!parts.length) continue;
      const button = document.createElement("button");
      const label = `${parts.length} sub-tasks`;
      button.type = "button";
      button.className = "toggle";
      const show = (open) => {
        parts.forEach((row) => { row.hidden = !open; });
        button.setAttribute("aria-expanded", String(open));
        button.textContent = `${open ? "hide" : "show"} ${label}`;
      };
      show(false);
      button.addEventListener("click", () => show(button.getAttribute("aria-expanded") === "false"));
      body.rows[0].cells[0].append(button);
    }
  }
  const words = (cell) => {
    const copy = cell.cloneNode(true);
    copy.querySelectorAll(".vh, .toggle, .about").forEach((part) => part.remove());
    copy.querySelectorAll(".change").forEach((part) => part.replaceWith(` (${part.textContent})`));
    copy.querySelectorAll(".small").forEach((part) => part.replaceWith(` [${part.textContent}]`));
    return copy.textContent.replace(/\s+/g, " ").replace(/\|/g, "\\|").trim();
  };
  const markdown = (table) => {
    const rows = [...table.rows].map((row) => `| ${[...row.cells].map(words).join(" | ")} |`);
    const rule = [...table.rows[0].cells].map((cell) => (cell.matches(".num") ? "---:" : "---"));
    return [rows[0], `|${rule.join("|")}|`, ...rows.slice(1), ""].join("\n");
  };
  const copied = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };
  for (const table of document.querySelectorAll(".scroll > table")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy as Markdown";
    button.addEventListener("click", async () => {
      await copied(markdown(table));
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy as Markdown"; }, 1500);
    });
    table.caption.querySelector("span").append(button);
  }
  const hint = () => document.querySelectorAll(".scroll").forEach((each) => {
    each.toggleAttribute("data-more", each.scrollWidth > each.clientWidth + 1);
  });
  addEventListener("resize", hint);
  addEventListener("toggle", hint, true);
  hint();
  const open = (place) => {
    for (let each = place; each; each = each.parentElement) {
      if (each instanceof HTMLDetailsElement) each.open = true;
    }
  };
  const follow = () => open(document.getElementById(decodeURIComponent(location.hash.slice(1))));
  addEventListener("hashchange", follow);
  follow();
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((each) => { each.open = true; });
    document.querySelectorAll(".toggle[aria-expanded=false]").forEach((each) => each.click());
  });
})();
