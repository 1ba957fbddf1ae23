"""Several models side by side: one row a skill or benchmark, one column a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compoclip.console import counted, table
from compoclip.evaluation.compare import Difference, compare, not_judged
from compoclip.evaluation.layout import bracketed
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.tables import percent, tie_values

_SIGNS = {"higher": "+", "lower": "-"}


def overview_text(results: Sequence[Results], base: str) -> str:
    """An aligned table: headlines of every benchmark, and sub-tasks of those that map skills.

    A cell is the score in percent with its 95 % interval. A benchmark of which only a part was
    there shows how many of its items were used. "+" or "-" marks scores that `compare` finds higher
    or lower than those of `base`. The last column is chance. Below the table stand the headlines in
    which equal scores decide outcomes, with the strict and the fractional value. Raises
    CompoclipError as `compare` does.
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
        name = f"{benchmark} ({first.headline}{_part_of(first)})"
        own = [marks.get((model, benchmark, ""), " ") for model in models]
        rows.append(_row(name, [_headline(each) for each in columns], own))
        for part in _parts(columns):
            own = [marks.get((model, benchmark, part), " ") for model in models]
            rows.append(_row(f"  {part}", [_main(each, part) for each in columns], own))
    header = ["", *models, "chance"]
    note = f"+ / -: higher / lower than {base} (paired, p < 0.05 after Holm's correction)"
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


def _part_of(results: Results) -> str:
    score = results.aggregates[results.headline]
    return f", {score.n} of {score.expected} items" if results.partial else ""


def _headline(results: Results | None) -> Score | None:
    return None if results is None else results.aggregates.get(results.headline)


def _main(results: Results | None, part: str) -> Score | None:
    """The first metric of a sub-task is its main one."""
    if results is None or part not in results.scores:
        return None
    return next(iter(results.scores[part].values()))


def _compared(
    results: Sequence[Results], base: str, models: Sequence[str]
) -> dict[tuple[str, str, str], Difference]:
    """(model, benchmark, sub-task or "" for the headline) -> difference to the base."""
    own = {model: [each for each in results if each.model == model] for model in models}
    measured = {each.benchmark for each in own[base]}
    found: dict[tuple[str, str, str], Difference] = {}
    for model in models:
        if model == base or not measured.intersection(each.benchmark for each in own[model]):
            continue
        compared = compare(own[base], own[model], resamples=0)
        found |= {(model, each.benchmark, ""): each for each in compared.headlines}
        found |= {(model, each.benchmark, each.name): each for each in compared.subtasks}
    return found


def _row(name: str, scores: Sequence[Score | None], marks: Sequence[str]) -> list[str]:
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
