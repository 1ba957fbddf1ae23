"""The cells of the report's tables; numbers are formatted here, laid out in the templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compoclip.benchmarks.case import SKILLS
from compoclip.evaluation.comparison import Difference
from compoclip.evaluation.groups import BRITTLENESS, MATCH
from compoclip.evaluation.items import POSITIVE_SCORE
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.tables import chance_flag, data_notes
from compoclip.report.findings import SAME, direction
from compoclip.report.study import Study, Table
from compoclip.report.wording import count, interval, p_value, percent, points, signed_interval


@dataclass(frozen=True)
class TableCell:
    """One model's number. change, tip: difference to the base, "" for the base itself. way:
    "better", "worse" or "same". strength: 0 to 3, size of a significant change. flag: "at chance",
    "below chance" or ""."""

    value: str
    sort: float
    interval: str
    change: str = ""
    tip: str = ""
    way: str = SAME
    strength: int = 0
    flag: str = ""


@dataclass(frozen=True)
class NumberRow:
    """A number of all models (None: not measured). parts: the numbers it is the mean of."""

    name: str
    about: str
    chance: str
    n: str
    cells: tuple[TableCell | None, ...]
    parts: tuple[NumberRow, ...] = ()


@dataclass(frozen=True)
class Detail:
    """One number of one model in a benchmark's own table."""

    part: str
    metric: str
    model: str
    value: str
    interval: str
    chance: str
    n: str
    ties: str
    strict: str
    fractional: str
    flags: tuple[str, ...]
    headline: bool = False


@dataclass(frozen=True)
class BenchmarkSheet:
    """A benchmark: its headline by model, its numbers, what was left out."""

    benchmark: str
    headline: str
    headlines: tuple[tuple[str, str], ...]
    details: tuple[Detail, ...]
    aggregates: tuple[Detail, ...]
    notes: tuple[str, ...]
    partial: bool


def profile_rows(study: Study) -> tuple[NumberRow, ...]:
    """Rows of the first table: composition, recognition, retrieval, hard positives."""
    return tuple(
        _row(study, study.profile, name, _sources(study, study.profile, name))
        for name in study.profile.groups
    )


def invariance_rows(study: Study) -> tuple[tuple[str, tuple[NumberRow, ...]], ...]:
    """(benchmark, rows): the numbers about hard positives."""
    return tuple(
        (name, tuple(_row(study, table, group, "") for group in table.groups))
        for name, table in study.triples.items()
    )


def skill_rows(study: Study) -> tuple[NumberRow, ...]:
    """One row a skill, with a row for each of its sub-tasks when there are several."""
    rows = []
    for skill, parts in study.skills.groups.items():
        children: tuple[NumberRow, ...] = ()
        if len(parts) > 1:
            children = tuple(_subtask_row(study, p.benchmark, p.name) for p in parts)
        about = SKILLS.get(skill, "")
        if len(parts) == 1 and skill in SKILLS:
            about += f" ({parts[0].benchmark}, {parts[0].name})"
        rows.append(_row(study, study.skills, skill, about, children))
    return tuple(rows)


def _sources(study: Study, table: Table, name: str) -> str:
    parts = table.groups[name]
    places = ", ".join(dict.fromkeys(part.benchmark for part in parts))
    return f"mean of {len(parts)} parts of {places}" if len(parts) > 1 else places


def _row(
    study: Study, table: Table, name: str, about: str, parts: tuple[NumberRow, ...] = ()
) -> NumberRow:
    scores = [table.scores[m][name] for m in study.models]
    changes = [None, *(table.differences[m][name] for m in study.others)]
    return NumberRow(
        name=name,
        about=about,
        chance=percent(scores[0].chance) if name != MATCH else "–",
        n=_sizes(scores),
        cells=tuple(_cell(s, d, name not in (BRITTLENESS, MATCH)) for s, d in zip(scores, changes)),
        parts=parts,
    )


def _subtask_row(study: Study, benchmark: str, subtask: str) -> NumberRow:
    scores = [study.results[m][benchmark].main(subtask) for m in study.models]
    changes: list[Difference | None] = [None]
    for model in study.others:
        found = study.comparisons[model].subtasks
        changes += [d for d in found if (d.benchmark, d.name) == (benchmark, subtask)]
    return NumberRow(
        name=subtask,
        about=f"{benchmark}, {scores[0].metric}",
        chance=percent(scores[0].chance),
        n=_sizes(scores),
        cells=tuple(_cell(s, d, True) for s, d in zip(scores, changes)),
    )


def _sizes(scores: Sequence[Score]) -> str:
    sizes = sorted({score.n for score in scores})
    return count(sizes[0]) if len(sizes) == 1 else f"{count(sizes[0])}–{count(sizes[-1])}"


def _cell(score: Score, change: Difference | None, flagged: bool) -> TableCell:
    way = direction(change) if change is not None else SAME
    flag = chance_flag(score) if flagged else ""
    cell = TableCell(percent(score.value), score.value, interval(score.low, score.high), flag=flag)
    if change is None:
        return cell
    size = abs(change.difference)
    return TableCell(
        value=cell.value,
        sort=cell.sort,
        interval=cell.interval,
        change=points(change.difference),
        tip=f"95 % interval of the change {signed_interval(change.low, change.high)}, "
        + (change.verdict if change.p_holm is None else f"p {p_value(change.p_holm)} after Holm"),
        way=way,
        strength=0 if way == SAME else 1 + (size >= 0.05) + (size >= 0.15),
        flag=flag,
    )


def sheets(study: Study) -> tuple[BenchmarkSheet, ...]:
    """Every benchmark in full."""
    return tuple(_sheet(study, name) for name in study.benchmarks)


def _sheet(study: Study, benchmark: str) -> BenchmarkSheet:
    measured = {
        m: study.results[m][benchmark] for m in study.models if benchmark in study.results[m]
    }
    parts = dict.fromkeys(
        (part, metric)
        for each in measured.values()
        for part, metrics in each.scores.items()
        for metric in metrics
    )
    rules = dict.fromkeys(rule for each in measured.values() for rule in each.aggregates)
    first = next(iter(measured.values()))
    return BenchmarkSheet(
        benchmark=benchmark,
        headline=first.headline,
        headlines=tuple((m, percent(r.headline_score.value)) for m, r in measured.items()),
        details=tuple(
            _detail(part, metric, model, each.scores[part][metric])
            for part, metric in parts
            for model, each in measured.items()
            if metric in each.scores.get(part, {})
        ),
        aggregates=tuple(
            _detail(rule, score.metric, m, score, rule == first.headline)
            for rule in rules
            for m, each in measured.items()
            for score in [each.aggregates.get(rule)]
            if score is not None
        ),
        notes=_notes(measured),
        partial=any(each.partial for each in measured.values()),
    )


def _detail(part: str, metric: str, model: str, score: Score, headline: bool = False) -> Detail:
    cosine = score.metric == POSITIVE_SCORE
    flags = (chance_flag(score), "partial" if score.n < score.expected else "")
    tied = score.ties > 0 and score.strict is not None and score.fractional is not None
    return Detail(
        part=part,
        metric=metric,
        model=model,
        value=percent(score.value),
        interval=interval(score.low, score.high),
        chance="–" if cosine else percent(score.chance),
        n=score.items(","),
        ties="–" if cosine else count(score.ties),
        strict=percent(score.strict) if tied and score.strict is not None else "–",
        fractional=percent(score.fractional) if tied and score.fractional is not None else "–",
        flags=tuple(flag for flag in flags if flag),
        headline=headline,
    )


def _notes(measured: Mapping[str, Results]) -> tuple[str, ...]:
    """Remarks on the data, each once where it is the same for all models."""
    texts: dict[str, list[str]] = {}
    for model, each in measured.items():
        for line in data_notes(each):
            texts.setdefault(line, []).append(model)
    return tuple(
        line if len(models) == len(measured) else f"{line} ({', '.join(models)})"
        for line, models in texts.items()
    )
