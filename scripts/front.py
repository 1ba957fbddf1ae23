"""Put the numbers of one run of the demo on every page that quotes them.

    python scripts/front.py demo-out    # records the run in docs/front.json, then writes the pages
    python scripts/front.py             # writes the pages from docs/front.json

A page holds its part between `<!-- front: NAME -->` and `<!-- end -->`; NAME is one of `PARTS`.
A test compares the pages with the record, so that all of them tell of the same run.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compoclip.console import end_with
from compoclip.errors import CompoclipError, require
from compoclip.evaluation.comparison import Difference, compare_all
from compoclip.evaluation.grounded import MEAN, ground_all
from compoclip.evaluation.results import by_benchmark, by_model, load_results
from compoclip.files import read_json, write_json, write_text
from compoclip.training.log import LOG, read_log
from compoclip_world.bounds import TEXT_ONLY
from compoclip_world.demo import BASE, DemoOptions

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "front.json"
PAGES = ("README.md", "docs/index.md", "docs/demo.md", "docs/compo.md")
TITLES = {
    "base": "base CLIP",
    "clip-ft": "plain fine-tuning",
    "negclip": "NegCLIP",
    "fsc-clip": "FSC-CLIP",
    "compo": "`compo` (ours)",
}
OURS = "compo"
DEMO = (BASE, *DemoOptions().methods)
"""Models of `make demo`. Our recipe is added by `compoclip demo --methods ... compo`."""


@dataclass(frozen=True)
class Column:
    """A column of the tables: a sub-task of a benchmark, and what it asks.

    ours: whether the page about our own recipe shows it.
    """

    title: str
    benchmark: str
    name: str
    ours: bool = False


COLOURS = Column("exchanged colours", "world-foils", "bind_colour", ours=True)
LOOK_ALIKES = Column("look-alikes, text to image", "world-confusable", "t2i", ours=True)
OLD = Column("old vocabulary, text to image", "world-retrieval", "t2i")
COLUMNS = (
    COLOURS,
    LOOK_ALIKES,
    Column("look-alikes, image to text", "world-confusable", "i2t", ours=True),
    Column("exchanged sizes", "world-foils", "bind_size"),
    Column("exchanged patterns", "world-foils", "bind_pattern"),
    Column("left and right", "world-foils", "left_right"),
    Column("roles", "world-foils", "role"),
    Column("counts", "world-foils", "count", ours=True),
    Column("inside or beside", "world-foils", "inside", ours=True),
    Column("position in the picture", "world-foils", "position"),
    Column("strict pairs of colours", "world-strict", "bind_colour", ours=True),
    Column("strict pairs of positions", "world-strict", "position"),
    Column("strict pairs of inside or beside", "world-strict", "inside"),
    Column("strict pairs of left and right", "world-strict", "left_right"),
    Column("strict pairs of roles", "world-strict", "role"),
    Column('"there is no X"', "world-foils", "negation", ours=True),
    Column('"X is missing"', "world-foils", "negation_missing", ours=True),
    Column("word order", "world-aro", "flickr30k_order", ours=True),
    Column("new vocabulary, text to image", "world-retrieval-style", "t2i"),
    Column("new vocabulary, image to text", "world-retrieval-style", "i2t"),
    OLD,
    Column("old vocabulary, image to text", "world-retrieval", "i2t"),
)


def recorded(folder: Path) -> dict[str, Any]:
    """Return what the pages say of a run of the demo: scores, what is reached blind, and gains.

    Raises CompoclipError for a folder without such results.
    """
    models = by_model(load_results(folder / "results"))
    bounds = load_results(folder / "bounds")
    lacking = [name for name in TITLES if name not in models]
    if lacking:
        raise CompoclipError(
            f"{folder}: no results of {', '.join(lacking)}; run compoclip demo --methods "
            f"{' '.join([*TITLES][1:])}"
        )
    models = {name: models[name] for name in TITLES}
    base, *tuned = (models[name] for name in DEMO)
    blind = by_benchmark(by_model(bounds)[TEXT_ONLY])
    grounded = ground_all({name: models[name] for name in DEMO}, bounds)
    scores = {name: by_benchmark(results) for name, results in models.items()}
    changes = {
        (comparison.other, d.benchmark, d.name): d
        for comparison in compare_all(base, tuned)
        for d in comparison.subtasks
    }
    columns = []
    for column in COLUMNS:
        benchmark = scores["base"][column.benchmark]
        chance = benchmark.main(column.name).chance
        columns.append(
            {
                "title": column.title,
                "items": benchmark.main(column.name).n,
                "blind": max(chance, blind[column.benchmark].main(column.name).value),
                "scores": {
                    name: _estimate(of_model[column.benchmark].main(column.name))
                    for name, of_model in scores.items()
                },
                "changes": {
                    name: _change(changes[name, column.benchmark, column.name]) for name in DEMO[1:]
                },
            }
        )
    means = {one.model: mean for one in grounded.models if (mean := one.mean())}
    best = max(means, key=lambda name: means[name].value)
    from_best = ground_all(
        {best: models[best], **{name: models[name] for name in DEMO if name != best}}, bounds
    )
    ours = ground_all({best: models[best], OURS: models[OURS]}, bounds)
    (gain_of_ours,) = (one.mean() for one in ours.models if one.model == OURS)
    require(gain_of_ours, folder, "no test needs an image; draw more with --items-per-task")
    return {
        "columns": columns,
        "counted": len(grounded.models[0].counted()),
        "gains": {
            **{name: asdict(mean) for name, mean in means.items()},
            OURS: asdict(gain_of_ours),
        },
        "gain_changes": {name: _change(d) for name, d in grounded.differences.items()},
        "best": best,
        "from_best": {
            **{name: _change(d) for name, d in from_best.differences.items()},
            OURS: _change(ours.differences[OURS]),
        },
        "texts": {name: _texts(folder / "runs" / name) for name in [*TITLES][1:]},
    }


def _texts(run: Path) -> int:
    """Return how many texts a run has encoded."""
    return int(read_log(run / LOG)[-1]["texts"])


def _estimate(score: Any) -> dict[str, float]:
    return {"value": score.value, "low": score.low, "high": score.high}


def _change(d: Difference) -> dict[str, Any]:
    return {
        "difference": d.difference,
        "low": d.low,
        "high": d.high,
        "significant": d.significant,
    }


# --- What stands on the pages. ---


def _of(record: Mapping[str, Any], column: Column) -> Mapping[str, Any]:
    """Return the record of a column."""
    of_title: dict[str, Mapping[str, Any]] = {c["title"]: c for c in record["columns"]}
    return of_title[column.title]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _cells(rows: list[list[str]]) -> str:
    """Return a Markdown table; the first row is the header."""
    header, *others = rows
    rule = ["---", *("--:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *others])


def headline_table(record: Mapping[str, Any]) -> str:
    """Return the table of the front page: four numbers of each model, gains before the cost."""
    colours, look_alikes, old = (_of(record, column) for column in (COLOURS, LOOK_ALIKES, OLD))
    header = ["", COLOURS.title, LOOK_ALIKES.title, MEAN, "cost: old vocabulary"]
    blind = [_percent(column["blind"]) for column in (colours, look_alikes, old)]
    rows = [header, ["no image", blind[0], blind[1], "0", blind[2]]]
    for name in DEMO:
        values = [column["scores"][name]["value"] for column in (colours, look_alikes)]
        gain = record["gains"][name]["value"]
        cost = old["scores"][name]["value"]
        rows.append([TITLES[name], *map(_percent, values), _percent(gain), _percent(cost)])
    return _cells(rows)


def gains_and_costs(record: Mapping[str, Any]) -> str:
    """Return what every tuned model gains, and what it costs."""
    lines = []
    for name in DEMO[1:]:
        title = TITLES[name]
        mean = record["gain_changes"][name]
        colours, look_alikes, old = (
            _of(record, column)["changes"][name] for column in (COLOURS, LOOK_ALIKES, OLD)
        )
        lines.append(
            f"- **{title[0].upper()}{title[1:]}** moves the {MEAN} by {_by(mean)}, exchanged "
            f"colours by {_by(colours)} and look-alikes by {_by(look_alikes)}. It moves retrieval "
            f"in the old vocabulary by {_by(old)}."
        )
    return "\n".join(lines)


def _by(change: Mapping[str, Any]) -> str:
    """Return a change in points with its interval, and whether it is significant."""
    low, high = (f"{100 * change[end]:+.1f}" for end in ("low", "high"))
    verdict = "" if change["significant"] else "; not significant after correction"
    return f"{100 * change['difference']:+.1f} ({low} to {high}{verdict})"


def recommendation(record: Mapping[str, Any]) -> str:
    """Return which recipe to begin with, and how far the other ones are behind."""
    best = record["best"]
    others = [name for name in DEMO[1:] if name != best]
    behind = ", ".join(f"{TITLES[name]} by {_by(record['from_best'][name])}" for name in others)
    return (
        f"**Start with {TITLES[best]}**: its {MEAN} is the highest of this run. The others differ "
        f"from it: {behind}."
    )


def all_scores(record: Mapping[str, Any]) -> str:
    """Return the table of every column with its 95 % intervals."""

    def cell(score: Mapping[str, float]) -> str:
        value, low, high = (_percent(score[name]) for name in ("value", "low", "high"))
        return f"{value} [{low}, {high}]"

    return _scores(record, COLUMNS, DEMO, cell)


def our_recipe(record: Mapping[str, Any]) -> str:
    """Return our recipe beside two published ones, in what it is made for and what it costs."""
    columns = [column for column in COLUMNS if column.ours]
    models = ["base", "negclip", "fsc-clip", OURS]
    table = _scores(record, columns, models, lambda score: _percent(score["value"]))
    best, texts = record["best"], record["texts"]
    return (
        f"{table}\n\nIn the {MEAN}, {TITLES[OURS]} differs from {TITLES[best]} by "
        f"{_by(record['from_best'][OURS])}. For the same scenes it encodes "
        f"{texts[OURS] / texts[best]:.1f} times as many texts."
    )


def _scores(
    record: Mapping[str, Any],
    columns: Iterable[Column],
    models: Sequence[str],
    cell: Callable[[Mapping[str, float]], str],
) -> str:
    """Return a row per column, with what is reached blind, and the mean grounded gain."""
    rows = [["", "no image", *(TITLES[name] for name in models)]]
    for column in columns:
        recorded_column = _of(record, column)
        scores = [cell(recorded_column["scores"][name]) for name in models]
        rows.append([column.title, _percent(recorded_column["blind"]), *scores])
    gains = [_percent(record["gains"][name]["value"]) for name in models]
    return _cells([*rows, [f"**{MEAN}**", "0", *gains]])


PARTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "headline table": headline_table,
    "gains and costs": gains_and_costs,
    "recommendation": recommendation,
    "all scores": all_scores,
    "our recipe": our_recipe,
}
_PART = re.compile(r"(<!-- front: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(page: str, record: Mapping[str, Any]) -> str:
    """Return a page with its parts written from the record.

    Raises CompoclipError for a part of another name.
    """

    def part(match: re.Match[str]) -> str:
        if match[2] not in PARTS:
            raise CompoclipError(f"front: {match[2]}: no such part; one of {', '.join(PARTS)}")
        return f"{match[1]}\n{PARTS[match[2]](record)}\n\n{match[3]}"

    return _PART.sub(part, page)


def main() -> int:
    """Record a run if one is given, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("demo", type=Path, nargs="?", help="folder of `compoclip demo`")
    options = parser.parse_args()
    if options.demo is not None:
        write_json(RECORD, recorded(options.demo))
    record = read_json(RECORD, damaged="run python scripts/front.py demo-out")
    for name in PAGES:
        path = ROOT / name
        write_text(path, rendered(path.read_text(encoding="utf-8"), record))
    return 0


if __name__ == "__main__":
    end_with(main, "front")
