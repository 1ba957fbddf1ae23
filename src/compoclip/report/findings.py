"""The summary: what became better, worse, did not move or is at chance, model by model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from compoclip.evaluation.results import Score
from compoclip.evaluation.statistics import FEWEST
from compoclip.report.study import Study
from compoclip.report.wording import listed, percent, points, signed_interval, words_for

BETTER, WORSE, SAME = "better", "worse", "same"


@dataclass(frozen=True)
class SkillChange:
    """A skill, its change in points, and from what to what with the interval of the change."""

    name: str
    points: str
    detail: str


@dataclass(frozen=True)
class Findings:
    """Sentences about one model against the base. lead: the gist. better, worse, same: one entry
    a skill. chance: about skills and sub-tasks that cannot be told from guessing; chance_gist: how
    many. general: about recognition, retrieval and hard positives."""

    model: str
    lead: str
    better: tuple[SkillChange, ...]
    worse: tuple[SkillChange, ...]
    same: tuple[SkillChange, ...]
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
    return tuple(_model(study, model) for model in study.others)


def _model(study: Study, model: str) -> Findings:
    differences = list(study.skills.differences[model].values())
    by = {
        way: sorted(
            (d for d in differences if direction(d) == way), key=lambda d: -abs(d.difference)
        )
        for way in (BETTER, WORSE, SAME)
    }
    chance = _chance(study, model)
    return Findings(
        model=model,
        lead=_lead(study, model, by[BETTER], by[WORSE], by[SAME]),
        better=tuple(_change(d) for d in by[BETTER]),
        worse=tuple(_change(d) for d in by[WORSE]),
        same=tuple(_change(d) for d in by[SAME]),
        chance=tuple(f"{verdict}: {', '.join(lines)}" for verdict, lines in chance.items()),
        chance_gist=listed([f"{len(v)} {k[0].lower()}{k[1:]}" for k, v in chance.items()]),
        general=tuple(_general(study, model)),
    )


def _lead(
    study: Study,
    model: str,
    up: Sequence[Difference],
    down: Sequence[Difference],
    same: Sequence[Difference],
) -> str:
    few = sum(d.p is None for d in same)
    still = len(same) - few
    parts = []
    if up:
        parts.append(f"better on {_named(up)}")
    if down:
        parts.append(f"worse on {_named(down)}")
    unjudged = f" {words_for(few, 'skill')} not judged: fewer than {FEWEST} photos." if few else ""
    if not parts and still:
        return (
            f"On none of the {words_for(still, 'skill')} does {model} differ significantly from "
            f"{study.base}.{unjudged}"
        )
    if not parts:
        return f"{model} cannot be compared with {study.base}:{unjudged}"
    rest = ""
    if still:
        rest = f"; on {words_for(still, 'other skill')} no significant change"
    return f"Compared with {study.base}, {model} is {listed(parts)}{rest}.{unjudged}"


def _named(differences: Sequence[Difference]) -> str:
    return listed([f"{d.name} ({points(d.difference)})" for d in differences])


def _change(d: Difference) -> SkillChange:
    return SkillChange(
        d.name,
        points(d.difference),
        f"{percent(d.base)} → {percent(d.other)}, interval {signed_interval(d.low, d.high)}"
        + (f"; {d.verdict}" if d.p is None else ""),
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
