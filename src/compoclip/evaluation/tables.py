"""Results and comparisons as tables: aligned text, Markdown, LaTeX or CSV, in percent."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from compoclip.console import counted, table
from compoclip.evaluation.comparison import Comparison, Difference, compare_all, not_judged
from compoclip.evaluation.items import POSITIVE_SCORE
from compoclip.evaluation.results import Results, Score, too_few

Layout = Literal["text", "markdown", "latex", "csv"]
_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def span(low: float | None, high: float | None, sign: str = "") -> str:
    """An interval of fractions in percent, "70.1 to 75.9"; "-" where there is none. sign: "+" for
    differences."""
    return (
        "-" if low is None or high is None else f"{100 * low:{sign}.1f} to {100 * high:{sign}.1f}"
    )


def bracketed(low: float | None, high: float | None, sign: str = "") -> str:
    """The same beside a number: "[70.1, 75.9]"; "[-]" where there is none."""
    return f"[{span(low, high, sign).replace(' to ', ', ')}]"


def laid_out(
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    layout: Layout = "text",
    *,
    title: str = "",
    left: int = 1,
    muted: Collection[int] = (),
    strong: Collection[tuple[int, int]] = (),
    notes: Sequence[str] = (),
) -> str:
    """The table in a layout; the first `left` columns are words, the others numbers.

    title: line above the table. muted: numbers of rows that are not ours, grey in LaTeX (package
    xcolor) and in italics in Markdown. strong: (row, column) of cells in bold, in LaTeX and
    Markdown. notes: lines below the table. In LaTeX title and notes are comments; CSV has neither.
    """
    above = [title] if title else []
    if layout == "csv":
        return _csv(rows, header)
    if layout == "markdown":
        return "\n\n".join([*above, _markdown(rows, header, left, muted, strong, notes)])
    if layout == "latex":
        return _latex(rows, header, left, muted, strong, [*above, *notes])
    return "\n".join([*above, table(rows, header, left), *(f"  {line}" for line in notes)])


def _csv(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().rstrip("\n")


def _markdown(
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    left: int,
    muted: Collection[int],
    strong: Collection[tuple[int, int]],
    notes: Sequence[str],
) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rule = ["---"] * left + ["---:"] * (len(header) - left)

    def styled(cell: str, row: int, column: int) -> str:
        if (row, column) in strong:
            return f"**{cell}**"
        return f"*{cell}*" if cell and row in muted else cell

    body = [
        line([styled(cell, number, column) for column, cell in enumerate(row)])
        for number, row in enumerate(rows)
    ]
    remarks = ["", *(f"- {each}" for each in notes)] if notes else []
    return "\n".join([line(header), f"|{'|'.join(rule)}|", *body, *remarks])


def _latex(
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    left: int,
    muted: Collection[int],
    strong: Collection[tuple[int, int]],
    notes: Sequence[str],
) -> str:
    def line(cells: Sequence[str], grey: bool = False, row: int = -1) -> str:
        words = ["".join(_LATEX.get(c, c) for c in cell) for cell in cells]
        words = [f"\\textbf{{{w}}}" if (row, k) in strong else w for k, w in enumerate(words)]
        words = [f"\\textcolor{{gray}}{{{word}}}" if grey and word else word for word in words]
        return f"{' & '.join(words)} \\\\"

    kinds = "l" * left + "r" * (len(header) - left)
    return "\n".join(
        [
            *(f"% {each}" for each in notes),
            f"\\begin{{tabular}}{{{kinds}}}",
            "\\hline",
            line(header),
            "\\hline",
            *(line(row, number in muted, number) for number, row in enumerate(rows)),
            "\\hline",
            "\\end{tabular}",
        ]
    )


# --- What must be said about a score wherever it is shown: chance, coverage, texts that were
# cut. ---

_NO_ACCURACIES = ("brittleness", "both_below", POSITIVE_SCORE)


def chance_flag(score: Score) -> str:
    """ "at chance", "below chance", "too few photos: 7" for a score that is not judged, or "" for
    one above chance and for rates that are no score."""
    where = score.standing
    if where == "above" or score.metric in _NO_ACCURACIES:
        return ""
    return f"{where} chance" if where else too_few(score.photos)


def data_notes(results: Results) -> list[str]:
    """Remarks on the data, one line each: missing images, rows left out, cut texts, and features of
    less than float32."""
    lines = []
    if results.missing_count:
        first = f", e.g. {results.missing[0]}" if results.missing else ""
        lines.append(f"{counted(results.missing_count, 'image')} missing or damaged{first}")
    lines += [f"left out, {reason}: {n}" for reason, n in results.left_out.items() if n]
    if results.truncated_texts:
        cut = counted(results.truncated_texts, "text")
        lines.append(f"{cut} cut: longer than the model's context")
    if lower := results.identity.get("precision"):
        lines.append(f"features computed in {lower}")
    return lines


# --- One model, and two. ---


def results_text(results: Results) -> str:
    """One benchmark as a table: sub-tasks and aggregates with interval, chance, ties and items.

    The headline is marked. Scores at or below chance are flagged. Where ties decide outcomes, their
    number is followed by the strict and the fractional value.

    Args:
        results: of one model on one benchmark.

    Returns:
        Aligned text, with notes on the data below the table.
    """
    title = f"{results.model} on {results.benchmark}"
    rows = [
        [part, *_cells(score), chance_flag(score)]
        for part, metrics in results.scores.items()
        for metric, score in metrics.items()
        if metric != POSITIVE_SCORE
    ]
    for name, score in results.aggregates.items():
        mark = " (headline)" if name == results.headline else ""
        rows.append([f"= {name}{mark}", *_cells(score), chance_flag(score)])
    header = ["part", "metric", "score", "95 % interval", "chance", "items", "ties", ""]
    notes = ["PARTIAL: not the score of the whole benchmark"] if results.partial else []
    notes += data_notes(results)
    return "\n".join([title, table(rows, header), *(f"  {line}" for line in notes)])


def _cells(score: Score) -> list[str]:
    positive = score.metric == POSITIVE_SCORE
    tied = tie_values(score)
    ties = f"{score.ties} ({tied})" if tied else str(score.ties)
    return [
        score.metric,
        percent(score.value),
        span(score.low, score.high),
        "" if positive else percent(score.chance),
        score.items(),
        "" if positive else ties,
    ]


def tie_values(score: Score) -> str:
    """ "strict 71.2, fractional 71.9" where equal scores decide outcomes, else ""."""
    if not score.ties or score.strict is None or score.fractional is None:
        return ""
    return f"strict {percent(score.strict)}, fractional {percent(score.fractional)}"


def comparison_text(comparison: Comparison, layout: Layout = "text", models: int = 1) -> str:
    """Two models as a table: headlines, their mean, and sub-tasks, with difference, interval and p.

    Args:
        comparison: as `compare` makes it.
        layout: of the table.
        models: how many models the p-values are corrected over.

    Returns:
        The table.
    """
    title = f"{comparison.other} against {comparison.base} (base), on the same items"
    header = ["", comparison.base, comparison.other, "difference", "95 % interval", "items"]
    header += ["p", "p (Holm)", ""]
    rows = [_row(f"{d.benchmark} {d.name}", d) for d in comparison.headlines]
    if comparison.overall is not None:
        rows.append(_row(comparison.overall.name, comparison.overall))
    rows += [_row(f"  {d.benchmark} {d.name}", d) for d in comparison.subtasks]
    notes = [
        "p (Holm): corrected over all benchmarks, or all sub-tasks, "
        f"of {counted(models, 'model')}; intervals are not corrected"
    ]
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


# --- Several models side by side: one row a skill or benchmark, one column a model. ---

_SIGNS = {"higher": "+", "lower": "-"}


def overview_text(results: Sequence[Results], base: str) -> str:
    """Several models side by side: the headline of every benchmark, and its sub-tasks.

    A cell is the score in percent with its 95 % interval. A benchmark of which only a part was
    measured says so. Marks tell what is significantly higher or lower than the base, corrected over
    all models. Where ties decide a headline, a line below gives the strict and the fractional
    value.

    Args:
        results: of all models.
        base: name of the model compared with.

    Returns:
        Aligned text.

    Raises:
        CompoclipError: as `compare` does.
    """
    models = list(dict.fromkeys(each.model for each in results))
    models.sort(key=lambda name: name != base)
    by_key = {(each.model, each.benchmark): each for each in results}
    benchmarks = list(dict.fromkeys(each.benchmark for each in results))
    compared = _compared(results, base, models)
    marks = {key: _SIGNS[each.verdict] for key, each in compared.items() if each.verdict in _SIGNS}
    rows: list[list[str]] = []
    for benchmark in benchmarks:
        columns = [by_key.get((model, benchmark)) for model in models]
        first = next(each for each in columns if each is not None)
        head = first.headline_score
        part_of = f", {head.n} of {head.expected} items" if first.partial else ""
        name = f"{benchmark} ({first.headline}{part_of})"
        own = [marks.get((model, benchmark, ""), " ") for model in models]
        rows.append(_overview_row(name, [_headline(each) for each in columns], own))
        for part in _parts(columns):
            own = [marks.get((model, benchmark, part), " ") for model in models]
            rows.append(_overview_row(f"  {part}", [_main(each, part) for each in columns], own))
    header = ["", *models, "chance"]
    note = (
        f"+ / -: higher / lower than {base} (paired, p < 0.05, Holm's correction over all models)"
    )
    few = ((" ".join(filter(None, key[1:])), each) for key, each in compared.items())
    lines = [table(rows, header), note, *not_judged(few)]
    for each in (by_key.get((model, benchmark)) for benchmark in benchmarks for model in models):
        score = _headline(each)
        if each is not None and score is not None and (tied := tie_values(score)):
            lines.append(f"{each.benchmark}, {each.model}: {counted(score.ties, 'tie')} ({tied})")
    return "\n".join(lines)


def _parts(columns: Iterable[Results | None]) -> list[str]:
    """Sub-tasks in order, where a benchmark has more than one."""
    names = list(dict.fromkeys(part for each in columns if each for part in each.scores))
    return names if len(names) > 1 else []


def _headline(results: Results | None) -> Score | None:
    return None if results is None else results.aggregates.get(results.headline)


def _main(results: Results | None, part: str) -> Score | None:
    return results.main(part) if results is not None and part in results.scores else None


def _compared(
    results: Sequence[Results], base: str, models: Sequence[str]
) -> dict[tuple[str, str, str], Difference]:
    """(model, benchmark, sub-task or "" for the headline) -> difference to the base."""
    own = {model: [each for each in results if each.model == model] for model in models}
    measured = {each.benchmark for each in own[base]}
    others = [
        model
        for model in models
        if model != base and measured.intersection(each.benchmark for each in own[model])
    ]
    found: dict[tuple[str, str, str], Difference] = {}
    compared = compare_all(own[base], [own[model] for model in others], resamples=0)
    for model, each in zip(others, compared):
        found |= {(model, d.benchmark, ""): d for d in each.headlines}
        found |= {(model, d.benchmark, d.name): d for d in each.subtasks}
    return found


def _overview_row(name: str, scores: Sequence[Score | None], marks: Sequence[str]) -> list[str]:
    known = next((score for score in scores if score is not None), None)
    return [
        name,
        *(_cell(score, mark) for score, mark in zip(scores, marks)),
        percent(known.chance) if known is not None else "",
    ]


def _cell(score: Score | None, mark: str) -> str:
    if score is None:
        return "-"
    return f"{percent(score.value)} {bracketed(score.low, score.high)}{mark}"
