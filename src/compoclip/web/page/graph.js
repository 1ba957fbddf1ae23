"use strict";
// A scene graph as SVG: objects side by side in caption order with their attributes below, relations
// as arrows above them, on as many levels as they need not to meet.
const drawGraph = (() => {
  const GAP = 26, BOX = 30, PILL = 22, LEVEL = 34, PAD = 12, EDGE = 6, STEP = 12;
  const pen = document.createElement("canvas").getContext("2d");
  const wide = (text, size, bold) => {
    pen.font = `${bold ? "600 " : ""}${size}px system-ui, sans-serif`;
    return pen.measureText(text).width;
  };
  const node = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const boxed = (kind, text, middle, top, width, height) => [
    node("rect", { class: kind, x: middle - width / 2, y: top, width, height, rx: kind === "object" ? 8 : 11 }),
    node("text", { class: `${kind}-name`, x: middle, y: top + height / 2, "text-anchor": "middle",
      "dominant-baseline": "central" }, text),
  ];

  // Places from left to right, far enough apart for the labels of the relations between them.
  function places(objects, arcs) {
    const middles = [];
    objects.forEach((each, k) => {
      const before = k ? middles[k - 1] + objects[k - 1].width / 2 + GAP : EDGE;
      let middle = before + each.width / 2;
      for (const arc of arcs) {
        if (arc.to === k) middle = Math.max(middle, middles[arc.from] + arc.width + 5 * STEP);
      }
      middles.push(middle);
    });
    return middles;
  }

  // The lowest level on which an arc meets no shorter one.
  function levels(arcs) {
    const rows = [];
    for (const arc of [...arcs].sort((a, b) => a.to - a.from - (b.to - b.from))) {
      const free = (row) => row.every((other) => other.to <= arc.from || other.from >= arc.to);
      let level = rows.findIndex(free);
      if (level < 0) level = rows.push([]) - 1;
      rows[level].push(arc);
      arc.level = level;
    }
    return rows.length;
  }

  return function draw(graph) {
    const objects = graph.objects.map((each) => ({
      ...each,
      width: Math.max(wide(each.name, 14, true), ...each.attributes.map((a) => wide(a, 12)), 20) + 2 * PAD,
    }));
    const arcs = graph.relations.filter((each) => each.subject !== each.object).map((each) => ({
      words: each.words, forward: each.subject < each.object, width: wide(each.words, 13),
      from: Math.min(each.subject, each.object), to: Math.max(each.subject, each.object),
    }));
    const middles = places(objects, arcs);
    const top = levels(arcs) * LEVEL + EDGE + 8;
    const tall = Math.max(0, ...objects.map((each) => each.attributes.length));
    const last = objects.length - 1;
    const width = Math.ceil(last < 0 ? 0 : middles[last] + objects[last].width / 2 + EDGE);
    const height = top + BOX + tall * (PILL + 4) + EDGE;
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
    svg.append(node("title", {}, graph.lines.join("; ")));
    const head = node("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7,
      markerHeight: 7, orient: "auto" });
    head.append(node("path", { d: "M0 0 8 4 0 8z", class: "arrow" }));
    const defs = node("defs", {});
    defs.append(head);
    svg.append(defs);
    arcs.forEach((arc) => {
      // arcs that end at one object leave it at different places, the lowest level outermost
      const shift = Math.max(0, 2 - arc.level) * 7;
      const [a, b] = [middles[arc.from] + shift, middles[arc.to] - shift];
      const y = top - (arc.level + 1) * LEVEL + LEVEL / 2 - 4;
      const [start, end] = arc.forward ? [a, b] : [b, a];
      const turn = Math.sign(end - start) * 9;
      const line = `M${start} ${top} V${y + 9} Q${start} ${y} ${start + turn} ${y} H${end - turn} `
        + `Q${end} ${y} ${end} ${y + 9} V${top - 2}`;
      svg.append(node("path", { class: "relation", d: line, "marker-end": "url(#head)" }));
      const middle = (a + b) / 2;
      svg.append(
        node("rect", { class: "behind", x: middle - arc.width / 2 - 4, y: y - 9, width: arc.width + 8, height: 18 }),
        node("text", { class: "relation-name", x: middle, y, "text-anchor": "middle",
          "dominant-baseline": "central" }, arc.words),
      );
    });
    objects.forEach((each, k) => {
      svg.append(...boxed("object", each.name, middles[k], top, each.width, BOX));
      each.attributes.forEach((name, row) => {
        const place = top + BOX + 4 + row * (PILL + 4);
        svg.append(...boxed("attribute", name, middles[k], place, wide(name, 12) + 2 * PAD - 4, PILL));
      });
    });
    return svg;
  };
})();
