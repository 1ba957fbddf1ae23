"""The lab's tables as Markdown, and the place in a page where they stand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compoclip.errors import CompoclipError
from compoclip.evaluation.results import too_few
from compoclip.evaluation.tables import span
from compoclip.files import read_text, write_text
from lab.columns import COLUMNS, Difference, mean_and_sd
from lab.settings import BASE, Arm, Effect, LabSettings

BEGIN, END = "<!-- lab: begin -->", "<!-- lab: end -->"


@dataclass(frozen=True)
class Line:
    """A line of the table: an arm, or the base.

    values: column -> one value a seed, in [0, 1]. speeds: images a second, one a seed. to_base,
    to_control: column -> difference, empty where there is nothing to compare with.
    """

    name: str
    values: Mapping[str, Sequence[float]]
    speeds: Sequence[float]
    to_base: Mapping[str, Difference]
    to_control: Mapping[str, Difference]


@dataclass(frozen=True)
class Finding:
    """A published effect in one column. difference: None when an arm has not been run."""

    effect: Effect
    column: str
    difference: Difference | None

    @property
    def verdict(self) -> str:
        """The verdict on the published effect, in words."""
        found = self.difference
        if found is None:
            return "not run"
        if found.runs < 2:
            return "not judged: one seed"
        if found.p is None:
            return f"not judged: {too_few(found.photos)}"
        if self.effect.expect == "kept":
            if found.sign < 0:
                return "**does not appear**: lower"
            return "**appears**" if found.least > -self.effect.margin else "undecided"
        if found.sign == 0:
            return "does not appear: within chance"
        wanted = 1 if self.effect.expect == "higher" else -1
        return "**appears**" if found.sign == wanted else "**the opposite appears**"


def section(
    settings: LabSettings, lines: Sequence[Line], findings: Sequence[Finding], made: str
) -> str:
    """The generated part of the page. made: what it was measured with, in a line."""
    control = settings.control
    parts = [made, "", table_text(lines), ""]
    parts += [
        "Percent, mean ± standard deviation over the seeds. After a number: `b+` `b-` it is higher "
        f"or lower than the base, `c+` `c-` than the control {control}, by more than two standard "
        "deviations, and the paired test over images of `compare` says so too (0.05, Holm over the "
        "columns). Brittleness is better when lower. i2t, t2i: retrieval, R@1.",
    ]
    if findings:
        parts += ["", "### Published effects", "", effects_text(findings)]
    return "\n".join([*parts, "", "### Arms", "", arms_text(settings.arms)])


def table_text(lines: Sequence[Line]) -> str:
    """One row an arm, one column a skill."""
    header = ["arm", "seeds", *(column.name for column in COLUMNS), "images/s"]
    rows = []
    for line in lines:
        seeds = len(next(iter(line.values.values())))
        cells = [_cell(line, column.name) for column in COLUMNS]
        count = "" if line.name == BASE else str(seeds)
        speed = _number(line.speeds, 1.0, 0) if line.speeds else ""
        rows.append([line.name, count, *cells, speed])
    return aligned(header, rows)


def _cell(line: Line, column: str) -> str:
    marks = []
    for letter, differences in (("b", line.to_base), ("c", line.to_control)):
        sign = differences[column].sign if column in differences else 0
        if sign:
            marks.append(f"{letter}{'+' if sign > 0 else '-'}")
    return " ".join([_number(line.values[column], 100.0, 1), *marks])


def _number(values: Sequence[float], scale: float, digits: int) -> str:
    mean, sd = mean_and_sd([scale * value for value in values])
    return f"{mean:.{digits}f}" if math.isnan(sd) else f"{mean:.{digits}f} ± {sd:.{digits}f}"


def effects_text(findings: Sequence[Finding]) -> str:
    """One row a claim and column."""
    header = ["claim", "compared", "column", "difference", "95 % interval", "sd", "here"]
    rows = []
    for each in findings:
        found = each.difference
        numbers = ["", "", ""]
        if found is not None:
            sd = "" if math.isnan(found.sd) else f"{100 * found.sd:.1f}"
            interval = span(found.low, found.high, "+")
            numbers = [f"{100 * found.value:+.1f}", interval, sd]
        compared = f"{each.effect.arm} with {each.effect.against}"
        rows.append([each.effect.claim, compared, each.column, *numbers, each.verdict])
    return aligned(header, rows)


def arms_text(arms: Sequence[Arm]) -> str:
    """The legend: what each arm is."""
    rows = []
    for arm in arms:
        made = [f"{name}={value}" for name, value in arm.settings.items()]
        made += [f"table={arm.table}"] if arm.table != "scenes" else []
        made += [f"wise-ft {arm.wise_ft:g}"] if arm.wise_ft != 1 else []
        made += [f"lr={arm.lr:g}"] if arm.lr is not None else []
        rows.append([arm.name, " ".join([f"`{arm.method}`", *made]), arm.about])
    return aligned(["arm", "method", "what it shows"], rows)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned in the source, too."""
    widths = [max(3, *(len(row[i]) for row in (header, *rows))) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths))
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def write_section(page: Path, text: str) -> None:
    """Put the text between the marks of a page, in the place of what is there.

    Raises CompoclipError when the page cannot be read or written, or has not both marks.
    """
    whole = read_text(page)
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise CompoclipError(f"{page}: needs the lines '{BEGIN}' and '{END}'; add them")
    new = f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
    write_text(page, new)
