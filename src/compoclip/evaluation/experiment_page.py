"""The page of a table that was run again: printed numbers, ours, and whether directions agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compoclip.console import counted
from compoclip.evaluation.comparison import Difference, Pair, Parts, ScorePart, corrected
from compoclip.evaluation.comparison import differences as paired_differences
from compoclip.evaluation.grounded import MEAN, ground
from compoclip.evaluation.numerals import bracketed, percent
from compoclip.evaluation.published.measured import MEANINGS, MeasuredCell, fill_table
from compoclip.evaluation.published.read import Column, PublishedRow, PublishedTable
from compoclip.evaluation.results import Results, by_benchmark
from compoclip.evaluation.statistics import BOOTSTRAP, Estimate
from compoclip.printed import Table

SEED_NOISE = 0.5
"""Points: printed differences below it say nothing. FSC-CLIP's Table 8 has deviations up to 0.52
over three seeds."""

_GAIN = (
    "Mean grounded gain: points above a model that knows the training captions and sees no image, "
    "over the tests that need an image."
)

Labels = tuple[str, ...]
Runs = Mapping[Labels, Mapping[str, Sequence[Sequence[Results]]]]
"""Row labels -> block of the table -> results of the run of each seed."""


@dataclass(frozen=True)
class Direction:
    """A printed difference of a row from the reference row, and ours on the same column.

    printed: points. here: our paired difference.
    """

    row: str
    column: str
    printed: float
    here: Difference

    @property
    def agrees(self) -> bool | None:
        """Return whether the signs are equal; None where ours is not significant."""
        if not self.here.significant:
            return None
        return (self.printed > 0) == (self.here.difference > 0)


def experiment_page(
    table: PublishedTable,
    runs: Runs,
    blind: Sequence[Results],
    about: str,
    partial: bool,
) -> str:
    """Return a table with the numbers of the paper and ours, in Markdown.

    Args:
        table: with the columns to show.
        runs: the results of the rows that were run.
        blind: results of a model that sees no image, for the mean grounded gain; may be empty.
        about: how this run differs from the paper's, a sentence without its stop.
        partial: fill columns that are means of several benchmarks from those that were measured.
    """
    cells = {labels: _cells(table, blocks, partial) for labels, blocks in runs.items()}
    filled = [
        number
        for number, _ in enumerate(table.columns)
        if any(row[number] for of_row in cells.values() for row in of_row)
    ]
    gains = _gains(table, runs, blind)
    lines = []
    for row in table.rows:
        if row.labels not in runs:
            continue
        printed = [_printed(row, number) for number in filled]
        here = [_over_seeds([seed[number] for seed in cells[row.labels]]) for number in filled]
        if gains:
            printed.append("-")
            here.append(gains[row.labels])
        lines.append([*row.labels, "paper", *printed])
        lines.append([*("" for _ in row.labels), "here", *here])
    heads = [table.columns[number].label for number in filled]
    header = [*table.row_labels, "", *heads, *([MEAN] if gains else [])]
    compared = directions(table, runs)
    notes = [
        f"Paper: {table.paper}; {table.models}.",
        f"Here: {about}.",
        *_run_notes(table, runs),
        *_column_notes(table, filled, cells),
        *_sign_notes(cells),
        *([_GAIN] if gains else []),
        *_direction_notes(table, compared, table.reference in runs),
    ]
    texts = [cell for line in lines for cell in line]
    if any("[" in cell for cell in texts):
        notes.append("Brackets hold 95 % intervals over images.")
    if "-" in texts:
        notes.append("A dash stands where a number is not printed or was not measured.")
    left = len(table.row_labels) + 1
    page = Table(lines, header, left=left, title=f"# {table.title}", notes=notes)
    return page.markdown() + "\n"


def _cells(
    table: PublishedTable, blocks: Mapping[str, Sequence[Sequence[Results]]], partial: bool
) -> list[tuple[MeasuredCell | None, ...]]:
    """Return the cells of a row, one tuple per seed."""
    rows = []
    for seed in range(max(len(seeds) for seeds in blocks.values())):
        entry = {name: seeds[min(seed, len(seeds) - 1)] for name, seeds in blocks.items()}
        measured = fill_table(table, [("", entry)], allow_partial=partial)
        rows.append(measured[0].cells if measured else tuple(None for _ in table.columns))
    return rows


def _printed(row: PublishedRow, number: int) -> str:
    value = row.values[number]
    if value is None:
        return "-"
    deviation = row.deviations[number] if row.deviations else None
    return f"{value:.1f}" if deviation is None else f"{value:.1f} ±{deviation:.2f}"


def _over_seeds(numbers: Sequence[MeasuredCell | Estimate | None]) -> str:
    """Return one number with its interval, or the mean and standard deviation over seeds."""
    present = [number for number in numbers if number]
    if not present:
        return "-"
    first, values = present[0], [number.value for number in present]
    signs = first.signs if isinstance(first, MeasuredCell) else ""
    if len(values) > 1:
        return f"{percent(float(np.mean(values)))} ±{100 * np.std(values, ddof=1):.2f}{signs}"
    interval = "" if first.low is None else f" {bracketed(first.low, first.high)}"
    return f"{percent(first.value)}{signs}{interval}"


def _gains(table: PublishedTable, runs: Runs, blind: Sequence[Results]) -> dict[Labels, str]:
    """Return the mean grounded gain of every row, over its seeds; empty without a blind model."""
    if not blind:
        return {}
    block = next(iter(table.blocks), "")
    return {
        labels: _over_seeds([ground(seed, blind).mean() for seed in blocks[block]])
        for labels, blocks in runs.items()
    }


# --- Directions. ---


def directions(table: PublishedTable, runs: Runs) -> list[Direction]:
    """Compare printed differences from the reference row with ours, corrected together (Holm).

    Columns that the paper prints for both rows count, if they are a plain mean of numbers that were
    measured here and the printed difference is at least `SEED_NOISE`. Outcomes are averaged over
    seeds before the test.
    """
    printed = {row.labels: row.values for row in table.rows}
    if table.reference not in runs:
        return []
    compared = []
    for row in table.rows:
        if row.labels == table.reference or row.labels not in runs:
            continue
        for number, column in enumerate(table.columns):
            value, base = row.values[number], printed[table.reference][number]
            if value is None or base is None or abs(value - base) < SEED_NOISE:
                continue
            seeds = (runs[labels].get(column.block, ()) for labels in (table.reference, row.labels))
            difference = _difference(column, *seeds)
            if difference:
                name = _in_words(table, row.labels)
                compared.append(Direction(name, column.label, value - base, difference))
    tested = corrected([direction.here for direction in compared])
    return [replace(direction, here=here) for direction, here in zip(compared, tested)]


def _difference(
    column: Column,
    base: Sequence[Sequence[Results]],
    other: Sequence[Sequence[Results]],
) -> Difference | None:
    if column.difference or not base or not other:
        return None
    parts: list[ScorePart] = []
    pairs: dict[str, Pair] = {}
    for source, _ in column.terms:
        for result in base[0]:
            if result.reader_name.partition("@")[0] != source.benchmark:
                continue
            if result.stored(source.score, source.metric):
                name = result.benchmark
                seeds = ([by_benchmark(seed)[name] for seed in row] for row in (base, other))
                parts.append(ScorePart(name, source.score or result.headline, source.metric))
                pairs[name] = Pair.of_seeds(*seeds)
    if not parts:
        return None
    groups: dict[str, Parts] = {column.label: tuple(parts)}
    return paired_differences(pairs, groups, BOOTSTRAP)[column.label]


# --- Words. ---


def _in_words(table: PublishedTable, labels: Labels) -> str:
    """Return the labels of a row, with the heading of their column for a "yes" or a number."""
    words = []
    for heading, label in zip(table.row_labels, labels):
        if label == "yes":
            words.append(heading)
        elif label and label[0].isdigit():
            words.append(f"{heading} {label}")
        elif label:
            words.append(label)
    return ", ".join(words)


def _run_notes(table: PublishedTable, runs: Runs) -> list[str]:
    """Say how many seeds were run, on which benchmarks, and which rows were not."""
    seeds = max(len(seeds) for blocks in runs.values() for seeds in blocks.values())
    notes = ["Every trained row has one seed."]
    if seeds > 1:
        notes = [f"± is the standard deviation over {seeds} seeds."]
    names = {
        result.benchmark: None
        for blocks in runs.values()
        for of_seeds in blocks.values()
        for results in of_seeds
        for result in results
    }
    notes.append(f"Measured on {', '.join(names)}.")
    left = [_in_words(table, row.labels) for row in table.rows if row.labels not in runs]
    if left:
        notes.append(f"Not run: {'; '.join(left)}.")
    return notes


def _column_notes(
    table: PublishedTable,
    filled: Sequence[int],
    cells: Mapping[Labels, Sequence[Sequence[MeasuredCell | None]]],
) -> list[str]:
    notes = []
    absent = len(table.columns) - len(filled)
    if not filled:
        notes.append("No column of the paper's table was measured; see the results of each run.")
    elif absent:
        notes.append(f"{counted(absent, 'column')} of the paper's table were not measured here.")
    parts = {}
    for number in filled:
        for rows in cells.values():
            for cell in (row[number] for row in rows):
                if cell and cell.have < cell.of:
                    parts[table.columns[number].label] = f"{cell.have} of {cell.of}"
    if parts:
        listed = ", ".join(f"{label} from {part} benchmarks" for label, part in parts.items())
        notes.append(f"+ marks means that were made of a part: {listed}.")
    return notes


def _sign_notes(cells: Mapping[Labels, Sequence[Sequence[MeasuredCell | None]]]) -> list[str]:
    """Say what the signs behind numbers mean, but for those of parts, which have their own note."""
    filled = [cell for rows in cells.values() for row in rows for cell in row if cell]
    signs = {sign for cell in filled for sign in cell.signs}
    return [
        f"{sign} marks numbers for which {meaning}."
        for sign, meaning in MEANINGS.items()
        if sign in signs and sign != "+"
    ]


def _direction_notes(
    table: PublishedTable, compared: Sequence[Direction], has_reference: bool
) -> list[str]:
    """Say in one sentence how many printed differences have their direction here."""
    reference = _in_words(table, table.reference)
    if not has_reference:
        return []
    if not compared:
        return [
            f"The paper prints no difference from {reference} of at least {SEED_NOISE} points "
            "between rows and in columns that were measured here."
        ]
    by_verdict: dict[bool | None, list[Direction]] = {True: [], False: [], None: []}
    for direction in compared:
        by_verdict[direction.agrees].append(direction)
    agree, contrary, unclear = (len(by_verdict[key]) for key in (True, False, None))
    lines = [
        f"The paper prints {counted(len(compared), 'difference')} from {reference} of at least "
        f"{SEED_NOISE} points in these columns. Of these {agree} agree in direction here, "
        f"{contrary} are contrary, and {unclear} are not significant (paired tests, Holm)."
    ]
    for direction in by_verdict[False]:
        printed, here = direction.printed, 100 * direction.here.difference
        lines.append(
            f"Contrary: {direction.row}, {direction.column}: {printed:+.1f} in the paper, "
            f"{here:+.1f} here."
        )
    return lines
