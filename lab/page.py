"""The lab's tables as Markdown, and the place in a page where they stand."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.comparison import equivalent, too_few
from compoclip.evaluation.numerals import span
from compoclip.files import read_text, write_text
from compoclip.printed import Table
from compoclip_world.bounds import BOUNDS
from lab.columns import Difference, Means, mean_and_sd
from lab.settings import BASE, Effect, LabSettings

_NO_SKILLS = ("seeds", "images/s")
"""Columns of the record before and behind those of skills."""

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
        found, margin = self.difference, self.effect.margin
        if found is None:
            return "not run"
        if found.runs < 2:
            return "not judged: one seed"
        if found.p is None:
            return f"not judged: {too_few(found.photos)}"
        match self.effect.expect:
            case "kept" if found.least > -margin:
                return "**appears**"
            case "kept":
                return "**the opposite appears**" if found.sign < 0 else "undecided"
            case "higher":
                wanted, excluded = 1, found.most < margin
            case _:
                wanted, excluded = -1, found.least > -margin
        if found.sign:
            return "**appears**" if found.sign == wanted else "**the opposite appears**"
        if -margin < found.least and found.most < margin:
            return equivalent(margin)
        return f"not {self.effect.expect} by {100 * margin:g}" if excluded else "undecided"


Choices = Mapping[str, tuple[Mapping[float, float], float]]
"""Arm -> the merit of each learning rate tried, and the rate chosen (0: not yet)."""


def section(
    settings: LabSettings,
    lines: Sequence[Line],
    findings: Sequence[Finding],
    choices: Choices,
    made: str,
    partial: str = "",
    agreeing: Sequence[tuple[str, int, float, float]] = (),
) -> str:
    """The generated part of the page.

    made: what it was measured with, in a line. partial: the benchmarks of which items are missing.
    agreeing: column, recipes, rank correlation with another lab, its p.
    """
    parts = [made, "", table_text(lines, settings.ground.shown), ""]
    table = settings.ground.tables[0]
    parts += [
        "Percent, mean over the seeds; the .tsv of this name has all columns, deviations and "
        "seeds. After a number: `b+` `b-` it is higher "
        f"or lower than the base, `c+` `c-` than the control on the same table "
        f"({settings.control} on `{table}`): significantly (the paired test over images of "
        "`compare`, 0.05, Holm over the columns), and by more than two standard deviations over "
        "the seeds. "
        "Brittleness is better when lower. i2t, t2i: retrieval, R@1. "
        f"{settings.ground.legend}"
        "text only: what the captions alone give away. untrained: random weights."
        f"{f' Partial, for want of photos: {partial}.' if partial else ''}",
    ]
    if findings:
        still = ("undecided", "not judged", "not run")
        decided = sum(not each.verdict.startswith(still) for each in findings)
        parts += ["", "### Published effects", "", effects_text(findings), ""]
        parts += [
            f"Decided: {decided} of {len(findings)}. Two arms are equivalent within a margin (the "
            "difference that would matter, in points) when neither the interval over items nor "
            "twice the standard error over seeds reaches it in either direction; an arm is not "
            "higher, or not lower, by the margin when they do not in the direction of the claim. "
            "All else is undecided."
        ]
    if agreeing:
        parts += ["", "### Do the two labs agree?", "", agreement_text(agreeing), ""]
        parts += [
            f"Spearman's rank correlation of the recipes' means here and in {settings.compare_with}"
            "; p: of a random order, not corrected. Of few recipes only a high one means something."
        ]
    if any(merits for merits, _ in choices.values()):
        parts += ["", "### Learning rates", "", rates_text(choices, settings.ground.kept)]
    return "\n".join(parts)


def table_text(lines: Sequence[Line], columns: Sequence[str]) -> str:
    """One row an arm, one column a skill: the mean and its marks."""
    measured = [column for column in columns if lines and column in lines[0].values]
    rows = []
    for line in lines:
        means = [fmean(100 * value for value in line.values[column]) for column in measured]
        cells = [_marked(line, column, f"{mean:.1f}") for column, mean in zip(measured, means)]
        rows.append([line.name, *cells])
    return Table(rows, ["arm", *measured]).markdown()


def record_text(lines: Sequence[Line]) -> str:
    """Return the table of all columns, with deviations over seeds, separated by tabs."""
    columns = list(lines[0].values) if lines else []
    before, after = _NO_SKILLS
    rows = [["arm", before, *columns, after]]
    for line in lines:
        seeds = len(next(iter(line.values.values())))
        count = "" if line.name in (BASE, *BOUNDS) else str(seeds)
        cells = [_marked(line, name, _number(line.values[name], 100.0, 1)) for name in columns]
        speed = _number(line.speeds, 1.0, 0) if line.speeds else ""
        rows.append([line.name, count, *cells, speed])
    return "".join("\t".join(row) + "\n" for row in rows)


def _marked(line: Line, column: str, number: str) -> str:
    marks = []
    for letter, differences in (("b", line.to_base), ("c", line.to_control)):
        sign = differences[column].sign if column in differences else 0
        if sign:
            marks.append(f"{letter}{'+' if sign > 0 else '-'}")
    return " ".join([number, *marks])


def _number(values: Sequence[float], scale: float, digits: int) -> str:
    mean, sd = mean_and_sd([scale * value for value in values])
    return f"{mean:.{digits}f}" if math.isnan(sd) else f"{mean:.{digits}f} ± {sd:.{digits}f}"


def effects_text(findings: Sequence[Finding]) -> str:
    """One row a claim and column; a claim and what is compared are named in their first row."""
    header = ["claim", "compared", "column", "difference [95 % interval]", "here"]
    rows: list[list[str]] = []
    claim, pair = "", ""
    for each in findings:
        found = each.difference
        numbers = ""
        if found is not None:
            numbers = f"{100 * found.value:+.1f} [{span(found.low, found.high, '+')}]"
        compared = f"{each.effect.arm} with {each.effect.against}"
        first = each.effect.claim if each.effect.claim != claim else ""
        second = compared if first or compared != pair else ""
        rows.append([first, second, each.column, numbers, each.verdict])
        claim, pair = each.effect.claim, compared
    return Table(rows, header, left=len(header)).markdown()


def agreement_text(agreeing: Sequence[tuple[str, int, float, float]]) -> str:
    """One row a column."""
    rows = [[name, str(recipes), f"{rho:+.2f}", f"{p:.3f}"] for name, recipes, rho, p in agreeing]
    return Table(rows, ["column", "recipes", "rank correlation", "p"]).markdown()


def rates_text(choices: Choices, kept: str) -> str:
    """One row per arm that tried several rates: the merit of each on the validation suite, and the
    choice. The other rates are those of the settings."""
    rows = []
    for name, (merits, chosen) in choices.items():
        if not merits:
            continue
        tried = ", ".join(f"{rate:g}: {100 * merits[rate]:.1f}" for rate in sorted(merits))
        rows.append([name, tried, f"{chosen:g}" if chosen else "not yet"])
    header = ["arm", f"rate: half composition, half {kept}", "chosen"]
    return Table(rows, header, left=2).markdown()


def means_on(record: Path) -> Means:
    """The means in the record of a lab, to a tenth of a percent.

    Raises CompoclipError, naming the record, when it holds no such table.
    """
    _, rows = lab_table(record)
    try:
        return {
            arm: {
                column: float(cell.split()[0]) / 100
                for column, cell in cells.items()
                if column not in _NO_SKILLS
            }
            for arm, cells in rows.items()
        }
    except ValueError as error:
        raise CompoclipError(f"{record}: no numbers in the table of the lab ({error})") from error


def lab_parser(about: str | None, out: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all comparisons have. out: the default folder."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help=f"folder for everything [{out}]")
    parser.add_argument("--photos", metavar="DATA", help="compare on the photos of this folder")
    parser.add_argument("--base", metavar="MODEL", help="what every run starts from")
    parser.add_argument(
        "--budget-minutes", type=float, default=180, help="start nothing after that"
    )
    parser.add_argument("--settings", type=Path, help="what to compare")
    parser.add_argument("--page", type=Path, help="Markdown page to put the tables into")
    return parser


def publish(text: str, page: Path | None) -> None:
    """Print tables, and put them between the marks of a page if one is named."""
    print(text)
    if page is not None:
        write_section(page, text)


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


def lab_table(record: Path) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The columns of a lab's record, and by arm its cells that are not empty.

    Raises UsageError when there is no such table.
    """
    try:
        text = record.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{record}: cannot be read ({error}); name reports/lab.tsv") from error
    header, *lines = (line.split("\t") for line in text.splitlines() or [""])
    if header[0] != "arm":
        raise UsageError(f"{record}: holds no table of the lab; `make lab` writes one")
    rows = {
        arm: {name: value for name, value in zip(header[1:], values) if value}
        for arm, *values in lines
    }
    return header[1:], rows
