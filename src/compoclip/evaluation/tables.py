"""Results and comparisons as plain text: percentages, with all that is needed to judge them."""

from __future__ import annotations

from compoclip.console import table
from compoclip.evaluation.compare import Comparison, Difference
from compoclip.evaluation.items import POSITIVE_SCORE
from compoclip.evaluation.judgement import chance_flag, data_notes
from compoclip.evaluation.layout import Layout, laid_out, span
from compoclip.evaluation.results import Results, Score


def results_text(results: Results) -> str:
    """One benchmark: sub-tasks and aggregates with interval, chance, ties, items used of expected.

    The headline is marked. Scores at or below chance are flagged. Where ties decide outcomes, their
    number is followed by the strict and the fractional value. Where scores without faulty items
    were measured, they stand in a column of their own with their interval and number of items.
    """
    title = f"{results.model} on {results.benchmark}"
    clean = results.clean
    rows = []
    for part, metrics in results.scores.items():
        own = clean.scores.get(part, {}) if clean else {}
        for metric, score in metrics.items():
            if metric != POSITIVE_SCORE:
                rows.append([part, *_cells(score), clean_cell(own.get(metric)), chance_flag(score)])
    for name, score in results.aggregates.items():
        mark = " (headline)" if name == results.headline else ""
        twin = clean.aggregates.get(name) if clean else None
        rows.append([f"= {name}{mark}", *_cells(score), clean_cell(twin), chance_flag(score)])
    header = ["part", "metric", "score", "95 % interval", "chance", "items", "ties", "clean", ""]
    if clean is None:
        column = header.index("clean")
        header, rows = _without(header, column), [_without(row, column) for row in rows]
    notes = ["PARTIAL: not the score of the whole benchmark"] if results.partial else []
    notes += data_notes(results)
    return "\n".join([title, table(rows, header), *(f"  {line}" for line in notes)])


def clean_cell(score: Score | None) -> str:
    """ "72.9 (60.1 to 80.2) of 42": a score without faulty items; "-" where nothing is left."""
    if score is None:
        return "-"
    return f"{percent(score.value)} ({span(score.low, score.high)}) of {score.n}"


def _without(cells: list[str], column: int) -> list[str]:
    return cells[:column] + cells[column + 1 :]


def _cells(score: Score) -> list[str]:
    positive = score.metric == POSITIVE_SCORE
    tied = tie_values(score)
    ties = f"{score.ties} ({tied})" if tied else str(score.ties)
    n = str(score.n) if score.n == score.expected else f"{score.n} of {score.expected}"
    return [
        score.metric,
        percent(score.value),
        span(score.low, score.high),
        "" if positive else percent(score.chance),
        n,
        "" if positive else ties,
    ]


def tie_values(score: Score) -> str:
    """ "strict 71.2, fractional 71.9" where equal scores decide outcomes, else ""."""
    if not score.ties or score.strict is None or score.fractional is None:
        return ""
    return f"strict {percent(score.strict)}, fractional {percent(score.fractional)}"


def comparison_text(comparison: Comparison, layout: Layout = "text") -> str:
    """Headlines, their mean, and sub-tasks of two models: both values, difference, interval, p."""
    title = f"{comparison.other} against {comparison.base} (base), on the same items"
    header = ["", comparison.base, comparison.other, "difference", "95 % interval", "items"]
    header += ["p", "p (Holm)", ""]
    rows = [_row(f"{d.benchmark} {d.name}", d) for d in comparison.headlines]
    if comparison.overall is not None:
        rows.append(_row(comparison.overall.name, comparison.overall))
    rows += [_row(f"  {d.benchmark} {d.name}", d) for d in comparison.subtasks]
    notes = []
    if comparison.partial:
        notes.append(f"PARTIAL data: {', '.join(comparison.partial)}")
    if comparison.unmatched:
        notes.append(f"measured for one of them only: {', '.join(comparison.unmatched)}")
    return laid_out(rows, header, layout, title=title, notes=notes)


def _row(name: str, difference: Difference) -> list[str]:
    return [
        name,
        percent(difference.base),
        percent(difference.other),
        f"{100 * difference.difference:+.1f}",
        span(difference.low, difference.high, "+"),
        str(difference.n),
        _p(difference.p),
        _p(difference.p_holm),
        difference.verdict,
    ]


def _p(p: float | None) -> str:
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def percent(value: float) -> str:
    """A fraction as percent with one decimal."""
    return f"{100 * value:.1f}"
