"""Write the page "The literature at a glance" (docs/literature.md): recipes and their numbers.

python scripts/literature.py [METHOD ...]

With methods it prints their rows, and leaves the page as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from compoclip.cli.lists import terms_of, texts_of
from compoclip.files import read_json
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe, method_names, method_summaries
from compoclip.printed import Table

_PAGE = Path(__file__).parents[1] / "docs" / "literature.md"
_PUBLISHED = Path(__file__).with_name("published.json")


def at_a_glance(methods: Sequence[Method]) -> str:
    """Return the page in Markdown; methods: its rows."""
    published = read_json(_PUBLISHED, absent="install compoclip again")
    names = [method.name for method in methods]
    header = ["recipe", "idea", "texts", "images", "losses", "trains", "epochs, batch, lr", "paper"]
    parts = [
        "# The literature at a glance",
        "",
        "This page has all recipes in one table, and the published numbers of their checkpoints. "
        "Use it to look up a setting or a number to compare with. `python scripts/literature.py` "
        "writes the page.",
        "",
        "## Recipes",
        "",
        "The column *texts* names the rewrites of a caption. A slash means that one of several is "
        "used. The column *trains* names the towers that train. `compoclip train METHOD --help` "
        "explains the options of a recipe. `compoclip list methods METHOD` shows where paper and "
        "released code differ.",
        "",
        Table([_glance(method) for method in methods], header, left=len(header)).markdown(),
        "",
        "## Published numbers",
        "",
        published["about"],
        "",
        *_numbers(published["columns"], published["methods"], ["CLIP", *names]),
        *(f"- **{letter}**: {source}." for letter, source in published["sources"].items()),
    ]
    return "\n".join(parts)


def _glance(method: Method) -> list[str]:
    optim, trains = method.optim, method.trains
    towers = "both" if trains.image_tower and trains.text_tower else "neither"
    if trains.image_tower != trains.text_tower:
        towers = "image" if trains.image_tower else "text"
    what = f"{towers} (LoRA)" if method.lora else towers
    return [
        f"`{method.name}`",
        method_summaries().get(method.name, "").rstrip("."),
        texts_of(method).replace("|", "/"),
        method.images.name,
        terms_of(method),
        what,
        f"{optim.epochs:g}, {optim.batch_size}, {optim.lr:g}",
        method.paper,
    ]


def _numbers(
    columns: Sequence[str], rows: Mapping[str, Mapping[str, str]], names: Sequence[str]
) -> Iterator[str]:
    """Tables of five columns, with the rows of these names that have a number in them."""
    for start in range(0, len(columns), 5):
        shown = columns[start : start + 5]
        cells = {name: [rows.get(name, {}).get(column, "") for column in shown] for name in names}
        body = [[name, *row] for name, row in cells.items() if any(row)]
        if body:
            yield Table(body, ["", *shown], left=1 + len(shown)).markdown()
            yield ""


if __name__ == "__main__":
    page = at_a_glance([load_recipe(name)() for name in sys.argv[1:] or method_names()])
    if sys.argv[1:]:
        print(page)
    else:
        _PAGE.write_text(f"{page}\n", encoding="utf-8")
