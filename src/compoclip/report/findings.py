"""The summary: per model, which skills are better, worse, unchanged or at chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compoclip.benchmarks.case import SKILLS
from compoclip.evaluation.comparison import Difference
from compoclip.evaluation.groups import (
    BRITTLENESS,
    COMPOSITION,
    INVARIANCE,
    LOWER_IS_BETTER,
    NEITHER_IS_BETTER,
    RECOGNITION,
    RETRIEVAL,
    SENSITIVITY,
)
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.statistics import FEWEST
from compoclip.report.study import Study, Table
from compoclip.report.wording import (
    count,
    listed,
    percent,
    points,
    signed_interval,
    words_for,
)

BETTER, WORSE, SAME = "better", "worse", "same"


@dataclass(frozen=True)
class Findings:
    """Sentences and differences of one model against the base.

    lead: the gist. better, worse, same: differences of skills, the largest first. chance: lines
    about scores at chance; chance_gist: their number. general: lines about recognition, retrieval
    and hard positives.
    """

    model: str
    lead: str
    better: tuple[Difference, ...]
    worse: tuple[Difference, ...]
    same: tuple[Difference, ...]
    chance: tuple[str, ...]
    chance_gist: str
    general: tuple[str, ...]


def direction(difference: Difference) -> str:
    """ "better", "worse" or "same", by the corrected paired test; less brittleness is better."""
    if not judged(difference) or difference.name in NEITHER_IS_BETTER:
        return SAME
    up = difference.verdict == "higher"
    return BETTER if up != (difference.name in LOWER_IS_BETTER) else WORSE


def judged(difference: Difference) -> bool:
    """True if the test found it higher or lower."""
    return difference.verdict in ("higher", "lower")


def findings(study: Study) -> tuple[Findings, ...]:
    """The findings of the paired tests, for every model but the base."""
    found = []
    for model in study.others:
        differences = sorted(
            study.skills.differences[model].values(), key=lambda d: -abs(d.difference)
        )
        up, down, same = (
            tuple(d for d in differences if direction(d) == way) for way in (BETTER, WORSE, SAME)
        )
        few = sum(d.p is None for d in same)
        still = len(same) - few
        parts = [
            f"{word} on {listed([f'{d.name} ({points(d.difference)})' for d in changed])}"
            for word, changed in ((BETTER, up), (WORSE, down))
            if changed
        ]
        rest = f"; on {words_for(still, 'other skill')} no significant change" if still else ""
        lead = f"Compared with {study.base}, {model} is {listed(parts)}{rest}."
        if not parts and still:
            lead = (
                f"On none of the {words_for(still, 'skill')} does {model} differ significantly "
                f"from {study.base}."
            )
        elif not parts:
            lead = f"{model} cannot be compared with {study.base}:"
        if few:
            lead += f" {words_for(few, 'skill')} not judged: fewer than {FEWEST} photos."
        chance = _chance(study, model)
        found.append(
            Findings(
                model=model,
                lead=lead,
                better=up,
                worse=down,
                same=same,
                chance=tuple(f"{verdict}: {', '.join(lines)}" for verdict, lines in chance.items()),
                chance_gist=listed([f"{len(v)} {k[0].lower()}{k[1:]}" for k, v in chance.items()]),
                general=tuple(_general(study, model)),
            )
        )
    return tuple(found)


def detail(d: Difference) -> str:
    """From what to what, with the interval of the change; why it is not judged, if so."""
    return f"{percent(d.base)} → {percent(d.other)}, interval {signed_interval(d.low, d.high)}" + (
        f"; {d.verdict}" if d.p is None else ""
    )


_AGAINST_CHANCE = {  # standing before and after
    ("at", "at"): "Stayed at chance",
    ("above", "at"): "Fell to chance",
    ("below", "at"): "Rose to chance",
    ("below", "below"): "Stayed below chance",
    ("at", "below"): "Fell below chance",
    ("above", "below"): "Fell below chance",
    ("at", "above"): "Rose above chance",
    ("below", "above"): "Rose above chance",
}


def _chance(study: Study, model: str) -> dict[str, list[str]]:
    """Verdict -> skills that guessing would do as well, or did, and sub-tasks of other skills."""
    found: dict[str, list[str]] = {}

    def judge(name: str, before: Score, after: Score, risen: bool) -> None:
        verdict = _AGAINST_CHANCE.get((before.standing, after.standing))
        if verdict and (risen or after.standing != "above"):
            found.setdefault(verdict, []).append(
                f"{name} ({percent(before.value)} → {percent(after.value)}; "
                f"chance {percent(after.chance)})"
            )

    for skill, parts in study.skills.groups.items():
        before, after = (study.skills.scores[m][skill] for m in (study.base, model))
        judge(skill, before, after, risen=True)
        if len(parts) > 1 and after.standing == "above":
            for part in parts:
                ours, theirs = (
                    study.results[m][part.benchmark].main(part.name) for m in (study.base, model)
                )
                judge(f"{part.name} of {part.benchmark}", ours, theirs, risen=False)
    order = dict.fromkeys(_AGAINST_CHANCE.values())
    return {verdict: found[verdict] for verdict in order if verdict in found}


def _general(study: Study, model: str) -> list[str]:
    """Composition, recognition, retrieval; then whether sensitivity was bought with brittleness."""
    found = []
    changes = study.profile.differences[model]
    for name in (COMPOSITION, RECOGNITION, RETRIEVAL):
        if name in changes:
            found.append(f"{name}: {_sentence(changes[name])}")
    if {SENSITIVITY, INVARIANCE, BRITTLENESS} <= changes.keys():
        more, both, brittle = (changes[n] for n in (SENSITIVITY, INVARIANCE, BRITTLENESS))
        verdict = {
            (BETTER, BETTER): "sensitivity grew and true rewordings are kept above false captions",
            (BETTER, SAME): "sensitivity grew, but not when true rewordings count too",
            (BETTER, WORSE): "sensitivity grew at the cost of rejecting true rewordings",
            (SAME, BETTER): "true rewordings are better kept above false captions",
            (SAME, WORSE): "more true rewordings are rejected without a gain in sensitivity",
            (SAME, SAME): "neither sensitivity nor invariance changed significantly",
        }.get((direction(more), direction(both)), "sensitivity fell")
        found.append(
            f"Hard positives: {verdict}. Hard negatives rejected {_sentence(more)}; with the "
            f"rewording kept too {_sentence(both)}; brittleness {_sentence(brittle)}"
        )
    return found


def _sentence(d: Difference) -> str:
    end = "" if judged(d) else f", {d.verdict}"
    return f"{percent(d.base)} → {percent(d.other)} ({points(d.difference)}{end})"


# --- The numbers of the page's tables; the templates format them. ---


class NumberRow(NamedTuple):
    """A number of all models, its changes against the base (None for the base itself), and the
    numbers it is the mean of."""

    name: str
    about: str
    scores: Sequence[Score]
    changes: Sequence[Difference | None]
    parts: Sequence[NumberRow] = ()


def profile_rows(study: Study) -> list[NumberRow]:
    """Rows of the first table: composition, recognition, retrieval, hard positives."""
    rows = []
    for name, parts in study.profile.groups.items():
        places = ", ".join(dict.fromkeys(part.benchmark for part in parts))
        about = f"mean of {len(parts)} parts of {places}" if len(parts) > 1 else places
        rows.append(_row(study, study.profile, name, about))
    return rows


def invariance_rows(study: Study) -> dict[str, list[NumberRow]]:
    """Benchmark -> the numbers about its hard positives."""
    return {
        name: [_row(study, table, group, "") for group in table.groups]
        for name, table in study.triples.items()
    }


def skill_rows(study: Study) -> list[NumberRow]:
    """One row a skill, with a row for each of its sub-tasks when there are several."""
    rows = []
    for skill, parts in study.skills.groups.items():
        about, children = SKILLS.get(skill, ""), []
        for part in parts if len(parts) > 1 else ():
            scores = [study.results[m][part.benchmark].main(part.name) for m in study.models]
            changes: list[Difference | None] = [None]
            for model in study.others:
                found = study.comparisons[model].subtasks
                changes += [
                    d for d in found if (d.benchmark, d.name) == (part.benchmark, part.name)
                ]
            about_part = f"{part.benchmark}, {scores[0].metric}"
            children.append(NumberRow(part.name, about_part, scores, changes))
        if len(parts) == 1 and skill in SKILLS:
            about += f" ({parts[0].benchmark}, {parts[0].name})"
        rows.append(_row(study, study.skills, skill, about, children))
    return rows


def _row(
    study: Study, table: Table, name: str, about: str, parts: Sequence[NumberRow] = ()
) -> NumberRow:
    scores = [table.scores[m][name] for m in study.models]
    changes = [None, *(table.differences[m][name] for m in study.others)]
    return NumberRow(name, about, scores, changes, parts)


def sizes(scores: Sequence[Score]) -> str:
    """Numbers of items: "24", or "20–24" where models differ."""
    return "–".join(count(n) for n in sorted({min(s.n for s in scores), max(s.n for s in scores)}))


def strength(change: Difference | None) -> int:
    """0 to 3: how large a significant change is."""
    if change is None or direction(change) == SAME:
        return 0
    return 1 + (abs(change.difference) >= 0.05) + (abs(change.difference) >= 0.15)


def tip(change: Difference) -> str:
    """Return the tooltip of a change."""
    tested = change.verdict
    if change.p_holm is not None:
        p = "< 0.001" if change.p_holm < 0.001 else f"= {change.p_holm:.3f}"
        tested = f"p {p} after Holm"
    return f"95 % interval of the change {signed_interval(change.low, change.high)}, {tested}"


def tied(score: Score) -> bool:
    """True where ties decide items, so that two more values are known."""
    return score.ties > 0 and score.strict is not None and score.fractional is not None


Line = tuple[str, str, Score]
"""A number of a benchmark's own tables: sub-task or rule, model, score."""


def score_lines(measured: Mapping[str, Results], aggregates: bool) -> list[Line]:
    """Return every aggregate, or every metric of every sub-task, by model."""
    tables = {
        model: {(name, ""): score for name, score in each.aggregates.items()}
        if aggregates
        else {(part, m): s for part, metrics in each.scores.items() for m, s in metrics.items()}
        for model, each in measured.items()
    }
    order = dict.fromkeys(key for found in tables.values() for key in found)
    return [(k[0], m, found[k]) for k in order for m, found in tables.items() if k in found]
