"""`compoclip methods [METHOD ...]`: every recipe with paper, texts, loss terms and defaults.

Of methods that are named also where their papers and released code differ, and what is done here.
`--table` writes the page "The literature at a glance": Markdown, with published numbers and those
of the lab.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.errors import UsageError
from compoclip.files import read_json
from compoclip.methods.registry import (
    load_recipe,
    method_names,
    method_origin,
    method_summaries,
)

if TYPE_CHECKING:
    from compoclip.methods.base import Method, PaperDifference


@dataclass(frozen=True)
class MethodsOptions:
    """List the training methods: paper, texts beside captions, loss terms, optimiser defaults.

    Args:
        methods: These alone, with the options over which paper and released code differ; all by
            default.
        table: Print the literature at a glance, in Markdown: idea, texts, images, losses and what
            trains, then published numbers with their sources.
        lab: With --table, the page that `make lab` writes (docs/lab.md), for its numbers.
        json: Print JSON, with all settings.
    """

    methods: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="METHOD")] = ()
    table: bool = False
    lab: Path | None = None
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Print one row, or one JSON object, a method; of those that are named all differences."""
    options = parse(MethodsOptions, "methods", arguments)
    names = options.methods or tuple(method_names())
    if options.lab and not options.table:
        raise UsageError("--lab goes with --table")
    methods = [load_recipe(name)() for name in names]
    if options.table:
        print(at_a_glance(methods, options.lab))
        return 0
    if options.json:
        records = [_record(method) for method in methods]
        emit_json([{**each, "from": method_origin(n)} for n, each in zip(names, records)])
        return 0
    header = [
        "method",
        "paper",
        "texts",
        "images",
        "loss",
        "epochs",
        "batch",
        "lr",
        "decay",
        "from",
    ]
    rows = [[*_row(method), method_origin(name)] for name, method in zip(names, methods)]
    print(table(rows, header, left=5))
    for method in methods if options.methods else ():
        _print_differences(method)
    print("\ncompoclip train METHOD --help explains a method and its options; parts can be")
    print("recombined: --texts +METHOD, --terms +METHOD, --set terms.NAME.weight=0.5")
    return 0


def _record(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "summary": method_summaries().get(method.name, ""),
        "paper": method.paper,
        "kinds": list(method.kinds),
        **method.record(),
        "trains": asdict(method.trains),
        "lora": asdict(method.lora) if method.lora else None,
        "crop": method.crop,
        "optim": asdict(method.optim),
        "settings": dict(method.settings),
        "stand_ins": dict(method.stand_ins),
        "differences": [
            {**asdict(each), "default": method.value_of(each.option)} for each in method.differences
        ],
    }


def _print_differences(method: Method) -> None:
    """The options over which the paper and the released code differ, each with the default."""
    if not method.differences:
        print(f"\n{method.name}: no option over which paper and released code differ")
        return
    print(f"\n{method.name}: where the paper and the released code differ, or one is silent")
    for each in method.differences:
        print(
            f"  {_option(each.option)} {_shown(method.value_of(each.option))}{_sides(method, each)}"
        )
        print(f"      {each.why}")


def _sides(method: Method, difference: PaperDifference) -> str:
    """ " (as released; paper: batch)"."""
    default = method.value_of(difference.option)
    sides = {"paper": difference.paper, "released": difference.released}
    known = {side: value for side, value in sides.items() if value is not None}
    same = [{"paper": "in the paper"}.get(side, side) for side in known if known[side] == default]
    other = [f"{side}: {_shown(value)}" for side, value in known.items() if value != default]
    parts = ([f"as {' and '.join(same)}"] if same else []) + other
    return f" ({'; '.join(parts)})" if parts else ""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(value: float | str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return (value or "none") if isinstance(value, str) else f"{value:g}"


def _row(method: Method) -> list[str]:

    optim = method.optim
    return [
        method.name,
        method.paper,
        _texts(method),
        method.images.name,
        _terms(method),
        f"{optim.epochs:g}",
        str(optim.batch_size),
        f"{optim.lr:g}",
        f"{optim.weight_decay:g}",
    ]


def _texts(method: Method) -> str:
    plan = method.plan
    names = [each if isinstance(each, str) else "|".join(each.of) for each in plan.rewrites]
    names += [each.label for each in plan.texts if each.label]
    own = [kind for kind in method.kinds if kind not in plan.kinds]
    return ", ".join([*own, *names]) or "-"


def _terms(method: Method) -> str:
    def shown(name: str, weight: float, on: str) -> str:
        weighted = name if weight == 1 else f"{weight:g} {name}"
        return f"{weighted} ({on})" if on == "single" else weighted

    losses = " + ".join(shown(term.name, term.weight, term.on) for term in method.losses)
    return f"{losses} (LoRA)" if method.lora else losses


# --- The literature at a glance. ---

_PUBLISHED = Path(__file__).parents[1] / "methods" / "data" / "published.json"
LAB_BEGINS = "<!-- lab: begin -->"


def at_a_glance(methods: Sequence[Method], lab: Path | None = None) -> str:
    """The page in Markdown.

    Args:
        methods: Its rows.
        lab: A page with the table of the lab, if its numbers are wanted.

    Returns:
        The text.

    Raises:
        UsageError: When the page of the lab holds no table.
    """
    published = read_json(_PUBLISHED, absent="install compoclip again")
    names = [method.name for method in methods]
    parts = [
        "# The literature at a glance",
        "",
        "Made by `compoclip methods --table`; what each recipe's options are is said by "
        "`compoclip train METHOD --help`, where paper and released code differ by "
        "`compoclip methods METHOD`.",
        "",
        "## Recipes",
        "",
        *_markdown(
            ("recipe", "idea", "texts", "images", "losses", "trains", "defaults", "paper"),
            [_glance(method) for method in methods],
        ),
        "",
        "## Published numbers",
        "",
        published["about"],
        "",
        *_numbers(published["columns"], published["methods"], ["CLIP", *names]),
        "",
        *(f"- **{letter}**: {source}." for letter, source in published["sources"].items()),
    ]
    if lab is not None:
        columns, rows = lab_table(lab)
        parts += [
            "",
            "## Our lab",
            "",
            f"The same recipes under equal conditions, on the world: the table of {lab.name}, "
            "which says how to read it and what the marks mean.",
            "",
            *_numbers(columns, rows, ["base", *names]),
        ]
    return "\n".join(parts)


def lab_table(page: Path) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The columns of the lab's table on a page, and its rows by arm.

    Args:
        page: Markdown, such as docs/lab.md.

    Returns:
        Names of columns; for each arm its cells that are not empty.

    Raises:
        UsageError: When there is no such table.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{page}: cannot be read ({error}); name docs/lab.md") from error
    lines = iter(text.partition(LAB_BEGINS)[2].splitlines())
    table = takewhile(lambda line: "|" in line, dropwhile(lambda line: "|" not in line, lines))
    cells = [[cell.strip() for cell in line.strip(" |").split("|")] for line in table]
    if not cells or cells[0][:1] != ["arm"]:
        raise UsageError(f"{page}: holds no table of the lab; `make lab` writes one")
    columns = cells[0][1:]
    rows = {
        arm: {name: value for name, value in zip(columns, values) if value}
        for arm, *values in cells[2:]
    }
    return columns, rows


def _glance(method: Method) -> list[str]:
    optim, trains = method.optim, method.trains
    towers = [
        name for name, on in (("image", trains.image_tower), ("text", trains.text_tower)) if on
    ]
    what = "both towers" if len(towers) == 2 else f"{towers[0]} tower" if towers else "no tower"
    if method.lora:
        what = f"adapters in {what}"
    elif trains.logit_scale:
        what = f"{what}, temperature"
    return [
        f"`{method.name}`",
        method_summaries().get(method.name, "").rstrip("."),
        _texts(method),
        method.images.name,
        _terms(method),
        what,
        f"{optim.epochs:g} epochs of {optim.batch_size}, lr {optim.lr:g}",
        method.paper,
    ]


def _numbers(
    columns: Sequence[str], rows: Mapping[str, Mapping[str, str]], names: Sequence[str]
) -> list[str]:
    """The rows of these names that have any number, in the columns that have any."""
    found = {name: rows[name] for name in names if rows.get(name)}
    kept = [column for column in columns if any(column in row for row in found.values())]
    body = [[name, *(row.get(column, "") for column in kept)] for name, row in found.items()]
    return _markdown(["", *kept], body)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines]
