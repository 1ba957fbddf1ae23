"""Hooks of mkdocs: reference pages, formulas as MathML, search from disk, llms.txt, checks.

mkdocs.yml names this file. Browsers draw MathML without a script, so formulas work offline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

_FORMULA = re.compile(r"^( *)\.\. math::[ ]*(.*)\n((?:\1 +.*\n|\s*\n)*)", re.MULTILINE)


class _Formulas(Preprocessor):
    """Replace reST's math directive, as docstrings have it, with MathML."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines of a page or docstring with MathML in place of formulas."""

        def drawn(found: re.Match[str]) -> str:
            formula = " ".join(f"{found[2]} {found[3]}".split())
            return f"\n{self.md.htmlStash.store(convert(formula, display='block'))}\n\n"

        return _FORMULA.sub(drawn, "\n".join([*lines, ""])).split("\n")


class FormulaExtension(Extension):
    """Markdown with formulas."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register the preprocessor."""
        md.preprocessors.register(_Formulas(md), "formulas", 28)  # before code blocks


def on_config(config: Any) -> None:
    """Draw formulas on pages and in docstrings; put reference pages into the contents."""
    config["markdown_extensions"].append(FormulaExtension())
    rooms: dict[str, list[dict[str, str]]] = {}
    for name in _modules():
        _, room, *rest = f"{name}.".split(".")
        rooms.setdefault(room if rest else "", []).append({name: f"reference/{name}.md"})
    (reference,) = (part["Reference"] for part in config["nav"] if "Reference" in part)
    reference.append({"Modules": [{room: pages} for room, pages in sorted(rooms.items())]})


def on_files(files: Files, config: Any) -> Files:
    """Add the reference pages to the files of the site."""
    for name in _modules():
        files.append(
            File.generated(config, f"reference/{name}.md", content=f"# {name}\n\n::: {name}\n")
        )
    return files


def _modules() -> list[str]:
    """Dotted names of the modules of both packages that have a page."""
    root = Path(__file__).parents[1]
    found = []
    for source in (root / "src", root / "world" / "src"):
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            if not any(part.startswith("_") for part in parts) and "cli" not in parts:
                found.append(".".join(parts))
    return found


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Take the script that search needs on file:// from the site, not from another server."""
    up = "../" * page.url.count("/")
    return output.replace("https://unpkg.com/iframe-worker/shim", f"{up}assets/iframe-worker.js")


def on_post_build(config: Any) -> None:
    """Write llms.txt; raise PluginError for a page with a raw formula or a dead link."""
    site, docs = Path(config["site_dir"]), Path(config["docs_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for page in sorted(docs.rglob("*.md")):
        title = page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({page.relative_to(docs).with_suffix('.html').as_posix()})")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    faults = list(_faults(site))
    if faults:
        raise PluginError("the site has faults:\n" + "\n".join(faults))


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.update(each for each in (given.get("id"), given.get("name")) if each)
        self.links += [each for each in (given.get("href"), given.get("src")) if each]


def _faults(site: Path) -> Iterator[str]:
    texts = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    pages = {page: _Page(text) for page, text in texts.items()}
    for page, parsed in pages.items():
        name = page.relative_to(site).as_posix()
        if ".. math::" in texts[page]:
            yield f"{name}: a formula is not drawn"
        if name == "404.html":  # its links start at the root of a server
            continue
        for link in parsed.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                yield f"{name}: {link}: no such file"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{name}: {link}: no such anchor"
