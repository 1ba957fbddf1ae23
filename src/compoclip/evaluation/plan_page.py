"""The page of a reproduced paper: what was planned, and the numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compoclip.console import counted, duration
from compoclip.evaluation.numerals import span
from compoclip.evaluation.published.measured import MeasuredCell, entries_of, fill_table
from compoclip.evaluation.published.read import published_table
from compoclip.evaluation.results import Results
from compoclip.printed import Table


def stated(plan: Mapping[str, Any]) -> list[list[str]]:
    """Return rows for people: what will be done, and what it takes."""
    cost = plan["estimate"]
    settings = {**plan["published"], **plan["settings"]}
    epochs = settings["epochs"]
    passes = f"{epochs:g} epoch{'' if epochs == 1 else 's'}"
    training = f"{passes} of {counted(plan['photos'], 'photo')}"
    if plan["name"] != plan["protocol"]:
        training += f" of {plan['of_photos']:,}, not the published protocol"
    micro = f", {settings['micro_batch']} at a time" if settings["micro_batch"] else ""
    batch = f"batches of {settings['batch_size']}{micro}"
    unknown = cost["unknown_sizes"]
    more = f", and {counted(unknown, 'file')} of unknown size" if unknown else ""
    download = duration(cost["download_bytes"] / 1e7)
    time = f"{duration(cost['training_seconds'])} to train, {duration(cost['evaluating_seconds'])}"
    return [
        ["protocol", f"{plan['name']}: {plan['recipe']} from {plan['model']}"],
        ["training", f"{training}, {batch}, {settings['precision']}, on {plan['device']}"],
        ["columns", f"{plan['table']}: {', '.join(plan['benchmarks']) or 'nothing'}"],
        *([f"left out: {spec}", reason] for spec, reason in plan["left_out"].items()),
        ["download", f"{cost['download_bytes'] / 1e9:.2f} GB with the weights{more}"],
        ["disk", f"{cost['disk_bytes'] / 1e9:.2f} GB"],
        ["memory", f"{cost['memory_bytes'] / 1e9:.2f} GB"],
        ["time", f"{time} to measure; {download} to download at 10 MB/s"],
    ]


def plan_page(plan: Mapping[str, Any], results: Sequence[Results], seconds: float) -> str:
    """Return the numbers beside the paper's, in Markdown.

    results: of "base" and of the recipe. seconds: of training.
    """
    table = published_table(plan["table"])
    printed = {row.labels: row.values for row in table.rows}
    blank = tuple(None for _ in table.columns)
    paper = [printed.get(tuple(plan[key]), blank) for key in ("base", "row")]
    measured = {row.name: row for row in fill_table(table, entries_of(results))}
    here = [getattr(measured.get(name), "cells", blank) for name in ("base", plan["recipe"])]

    def judged(value: float | None, score: MeasuredCell | None) -> str:
        if value is None or score is None or score.low is None or score.high is None:
            return "-"
        if 100 * score.low > value:
            return "above"
        return "below" if 100 * score.high < value else "within"

    rows = []
    for column, old, new, base, tuned in zip(table.columns, *paper, *here):
        paper_cells = ["-" if v is None else f"{v:.1f}" for v in (old, new)]
        interval = span(tuned.low, tuned.high) if tuned else "-"
        base_cell, tuned_cell = (score.text if score else "-" for score in (base, tuned))
        row = [column.label, paper_cells[0], base_cell, paper_cells[1], tuned_cell, interval]
        rows.append([*row, judged(new, tuned)])
    header = ["column", "paper: base", "here: base", "paper", "here", "95 % interval", "here is"]
    cost = plan["estimate"]
    rows_of = ", ".join(" ".join(filter(None, plan[key])) for key in ("base", "row"))
    notes = [f"{table.paper}; {table.title}; rows: {rows_of}"]
    notes += [f"{name}: {text}" for name, text in stated(plan) if name not in ("disk", "memory")]
    notes += [
        f"training took {duration(seconds)}; {duration(cost['training_seconds'])} were estimated",
        f"weights verified by {plan.get('weights', 'nothing known')}",
        *(
            f"{target}: verified by {download['checked_by']}"
            for target, download in plan["downloads"].items()
        ),
    ]
    return Table(rows, header, title=f"# {plan['name']}", notes=notes).markdown() + "\n"
