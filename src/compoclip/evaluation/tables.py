"""Results and comparisons as tables, in percent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from compoclip.console import counted
from compoclip.evaluation.comparison import Comparison, Difference, compare_all, not_judged
from compoclip.evaluation.grounded import GroundedModels
from compoclip.evaluation.groups import chance_flags
from compoclip.evaluation.items import POSITIVE_SCORE
from compoclip.evaluation.numerals import (
    SATURATED,
    SIGNS,
    percent,
    span,
    with_interval,
)
from compoclip.evaluation.results import Results, Score, by_benchmark, by_model
from compoclip.evaluation.scores import COSINE
from compoclip.evaluation.statistics import Bootstrap
from compoclip.printed import Narrower, Table, without

# --- Remarks that go with a score wherever it is shown: coverage, cut texts, ties. ---


def data_notes(results: Results, details: bool = True) -> list[str]:
    """Return remarks on the data of one model on one benchmark, one line each.

    details: a line for every reason why rows are left out, also for more than two.
    """
    lines = []
    if results.missing_count:
        first = f", e.g. {results.missing[0]}" if results.missing else ""
        lines.append(f"{counted(results.missing_count, 'image')} missing or damaged{first}")
    reasons = {reason: n for reason, n in results.left_out.items() if n}
    if details or len(reasons) <= 2:
        lines += [f"left out, {reason}: {n}" for reason, n in reasons.items()]
    else:
        number = sum(reasons.values())
        lines.append(f"left out: {number:,}, for {len(reasons)} reasons that --details lists")
    if results.truncated_texts:
        cut = counted(results.truncated_texts, "text")
        lines.append(f"{cut} cut: longer than the model's context")
    if results.score != COSINE:
        rate = results.pairs_per_second
        cost = f", {rate:,.3g} pairs a second" if rate else ""
        lines.append(f"pairs scored by {results.score}{cost}")
    if lower := results.identity.get("precision"):
        lines.append(f"features computed in {lower}")
    if judge := results.identity.get("judge"):
        lines.append(f"found photos judged by {judge['architecture']}")
    if width := results.identity.get("dimensions"):
        lines.append(f"features cut to {width} dimensions")
    return lines


def remarks(measured: Mapping[str, Results], details: bool = True) -> list[str]:
    """Return the `data_notes` on a benchmark by model, each once where it holds for all models."""
    texts: dict[str, list[str]] = {}
    for model, result in measured.items():
        for line in data_notes(result, details):
            texts.setdefault(line, []).append(model)
    return [
        line if len(models) == len(measured) else f"{line} ({', '.join(models)})"
        for line, models in texts.items()
    ]


def tie_values(score: Score) -> str:
    """Return "strict 71.2, fractional 71.9" where equal scores decide outcomes, else ""."""
    if not score.ties or score.strict is None or score.fractional is None:
        return ""
    return f"strict {percent(score.strict)}, fractional {percent(score.fractional)}"


# --- One model, two, and several side by side. ---


def results_table(results: Results) -> Table:
    """Return one benchmark as a table: sub-tasks, aggregates, and notes on the data.

    The headline is marked. Scores that are not significantly above chance are flagged. Where ties
    decide outcomes, their number is followed by the strict and the fractional value.
    """
    flags = chance_flags(results)
    scores = [
        (part, score, flags.get((part, metric), ""))
        for part, metrics in results.scores.items()
        for metric, score in metrics.items()
        if metric != POSITIVE_SCORE
    ]
    for name, score in results.aggregates.items():
        mark = " (headline)" if name == results.headline else ""
        scores.append((f"= {name}{mark}", score, flags.get(("", name), "")))
    rows = []
    for name, score, flag in scores:
        tied, chance = tie_values(score), percent(score.chance)
        ties = f"{score.ties} ({tied})" if tied else str(score.ties)
        if score.metric == POSITIVE_SCORE:
            chance = ties = ""
        value, interval = percent(score.value), span(score.low, score.high)
        rows.append([name, score.metric, value, interval, chance, score.items(), ties, flag])
    header = ["part", "metric", "score", "95 % interval", "chance", "items", "ties", ""]
    notes = ["PARTIAL: not the score of the whole benchmark"] if results.partial else []
    title = f"{results.model} on {results.benchmark}"
    return Table(rows, header, title=title, notes=notes + data_notes(results))


def folded_rows(rows: list[list[str]], saturated: Sequence[tuple[str, list[str]]]) -> list[str]:
    """Take the rows of saturated benchmarks out of a table, if others stay; return a line on them.

    saturated: The name of the benchmark, and its row.
    """
    if not 1 < len(saturated) < len(rows):
        return []
    for _, row in saturated:
        rows.remove(row)
    names = ", ".join(name for name, _ in saturated)
    return [f"at least {percent(SATURATED)} for every model: {names}"]


def without_prefix(rows: Sequence[list[str]], benchmarks: Sequence[str]) -> str:
    """Take what the names of all benchmarks begin with, such as "world-", out of the first cells.

    Return what stands in the header for it; "" where names have nothing in common.
    """
    parts = zip(*(name.split("-")[:-1] for name in benchmarks))
    common = takewhile(lambda part: len(benchmarks) > 1 and len({*part}) == 1, parts)
    prefix = "".join(f"{part[0]}-" for part in common)
    for row in rows if prefix else ():
        name = row[0].lstrip()
        if name.startswith(prefix):
            row[0] = row[0].replace(prefix, "", 1)
    return f"{prefix}..." if prefix else ""


def comparison_table(
    comparison: Comparison,
    models: int = 1,
    details: bool = True,
    gain: Difference | None = None,
    brief: bool = True,
) -> Table:
    """Return two models as a table: headlines, their mean, and sub-tasks, with interval and p.

    On a narrow terminal, columns are left out: items and p, then intervals.

    Args:
        comparison: as `compare` makes it.
        models: how many models the p-values are corrected over.
        details: add the sub-tasks.
        gain: the difference of the mean grounded gains.
        brief: leave out the rows of saturated benchmarks, and what all names begin with.
    """
    title = f"{comparison.other} against {comparison.base} (base), on the same items"
    header = ["", comparison.base, comparison.other, "difference", "95 % interval", "items"]
    header += ["p", "p (Holm)", ""]
    named = [(f"{d.benchmark} {d.name}", d) for d in comparison.headlines]
    named += [(d.name, d) for d in [comparison.overall, gain] if d]
    named += [(f"  {d.benchmark} {d.name}", d) for d in comparison.subtasks if details]

    def p_text(p: float | None) -> str:
        return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"

    rows = []
    for name, d in named:
        numbers = [percent(d.base), percent(d.other), percent(d.difference, "+")]
        p_values = [p_text(d.p), p_text(d.p_holm)]
        rows.append([name, *numbers, span(d.low, d.high, "+"), str(d.n), *p_values, d.verdict])
    notes = [
        "p (Holm): corrected over all benchmarks, or all sub-tasks, "
        f"of {counted(models, 'model')}; intervals are not corrected"
    ]
    if comparison.partial:
        notes.append(f"PARTIAL data: {', '.join(comparison.partial)}")
    if comparison.unmatched:
        notes.append(f"measured for one of them only: {', '.join(comparison.unmatched)}")
    if brief:
        saturated = [
            (d.benchmark, row)
            for d, row in zip(comparison.headlines, rows)
            if min(d.base, d.other) >= SATURATED and not d.significant
        ]
        notes += folded_rows(rows, saturated)
        header[0] = without_prefix(rows, [d.benchmark for d in comparison.headlines])
    narrower = [without(5, 6), without(4)]
    return Table(rows, header, title=title, notes=notes, narrower=narrower)


def overview_table(
    results: Sequence[Results], base: str, grounded: GroundedModels | None = None
) -> Table:
    """Return models side by side: the headline of every benchmark, and what limits it.

    A cell is the score in percent with its 95 % interval, which is left out where the terminal is
    too narrow. A benchmark of which only a part was measured says so. Marks tell what is
    significantly higher or lower than `base`, corrected over all models; a single model has the
    number of items and its standing against chance instead. Lines below give the strict and the
    fractional value where ties decide a headline, and the remarks on the data. Raises
    CompoclipError as `compare_all` does.

    Args:
        results: of all models.
        base: name of the model compared with.
        grounded: gains beyond what needs no image; their means are the last row.
    """
    grouped = by_model(results)
    models = sorted(grouped, key=lambda name: name != base)
    named = {model: by_benchmark(grouped[model]) for model in models}
    others = [m for m in models[1:] if named[base].keys() & named[m].keys()]
    comparisons = compare_all(grouped[base], [grouped[m] for m in others], Bootstrap(resamples=0))
    compared = {
        (model, d.benchmark): d
        for model, comparison in zip(others, comparisons)
        for d in comparison.headlines
    }
    rows: list[list[str]] = []
    saturated: list[tuple[str, list[str]]] = []
    notes = []
    for benchmark in dict.fromkeys(result.benchmark for result in results):
        measured = {m: named[m][benchmark] for m in models if benchmark in named[m]}
        first = next(iter(measured.values()))
        head = first.headline_score
        part_of = f", {head.n} of {head.expected} items" if first.partial else ""
        cells = [f"{benchmark} ({first.headline}{part_of})"]
        for model in models:
            if model not in measured:
                cells.append("-")
                continue
            score, difference = measured[model].headline_score, compared.get((model, benchmark))
            mark = SIGNS.get(difference.verdict, " ") if difference else " "
            cells.append(f"{with_interval(score.value, score.low, score.high)}{mark}")
        cells.append(percent(head.chance))
        if len(models) == 1:
            cells += [head.items(), chance_flags(first).get(("", first.headline), "")]
        rows.append(cells)
        decided = any(d.significant for (_, name), d in compared.items() if name == benchmark)
        lowest = min(result.headline_score.value for result in measured.values())
        if lowest >= SATURATED and not decided:
            saturated.append((benchmark, cells))
        for model, result in measured.items():
            score = result.headline_score
            if tied := tie_values(score):
                notes.append(f"{benchmark}, {model}: {counted(score.ties, 'tie')} ({tied})")
        notes += [f"{benchmark}: {line}" for line in remarks(measured, details=False)]
    notes = [*folded_rows(rows, saturated), *notes]
    if others:
        few = not_judged((benchmark, d) for (_, benchmark), d in compared.items())
        sign = f"+ / -: higher / lower than {base} (paired, p < 0.05, Holm's correction over all"
        notes = [f"{sign} models)", *few, *notes]
    if partial := dict.fromkeys(result.benchmark for result in results if result.partial):
        notes.append(f"PARTIAL data: {', '.join(partial)}")
    if grounded:
        means = grounded.means()
        filling = ["", ""] if len(models) == 1 else []
        rows.append(["mean grounded gain", *(means[model] for model in models), "", *filling])
        notes += grounded.notes(details=False)
    prefix = without_prefix(rows, [*dict.fromkeys(result.benchmark for result in results)])
    header = [prefix, *models, "chance", *(["items", ""] if len(models) == 1 else [])]
    bare: list[Narrower] = [
        lambda cells: [re.sub(r" \[[^]]*\]", "", cell) for cell in cells],
        lambda cells: [cells[0].partition(" (")[0], *cells[1:]],
    ]
    return Table(rows, header, notes=notes, narrower=bare)


def overall_table(model: str, scores: Mapping[str, Score]) -> Table:
    """Return the means of `overall_groups` with their coverage."""
    rows = [
        [name, percent(s.value), span(s.low, s.high), percent(s.chance), s.items()]
        for name, s in scores.items()
    ]
    header = ["mean", "score", "95 % interval", "chance", "items"]
    return Table(rows, header, title=f"{model} over whole suites")
