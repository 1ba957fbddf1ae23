"""Results in sentences: what was measured, what changed, and what needs no picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compoclip.console import counted
from compoclip.errors import require
from compoclip.evaluation.comparison import Difference, together
from compoclip.evaluation.groups import (
    COMPOSITION,
    RECOGNITION,
    RETRIEVAL,
    Groups,
    against_chance,
    group_differences,
    group_scores,
    kind,
    profile_groups,
    skill_groups,
)
from compoclip.evaluation.results import Results, Score, by_model
from compoclip.evaluation.statistics import BOOTSTRAP, Bootstrap
from compoclip.evaluation.tables import percent, span

_MOST = 3  # skills that a sentence names


def closing_sentences(
    results: Sequence[Results],
    base: str,
    bounds: Sequence[Results] = (),
    bootstrap: Bootstrap = BOOTSTRAP,
) -> list[str]:
    """Return what results say, one fact per sentence.

    Of one model: its scores against chance, by the test of `compare`. Of several: for every model
    but `base` the largest significant gain and loss among skills, and the changes in
    compositionality, zero-shot accuracy and retrieval, on the benchmarks that it shares with the
    base. p-values are corrected over the skills, or the three means, of all models. bounds: see
    `bound_scores`. Raises CompoclipError as `compare_all` does, and for a bound that was measured
    on other annotations.
    """
    models = by_model(results)
    mine = models.pop(base)
    named = {each.benchmark: max(s.n for s in each.aggregates.values()) for each in results}
    partial = {each.benchmark for each in results if each.partial}
    said = [
        f"Measured {counted(1 + len(models), 'model')} on {counted(len(named), 'benchmark')}, "
        f"{counted(sum(named.values()), 'item')}{f', {len(partial)} in part' * bool(partial)}."
    ]
    skills = skill_groups([each for each in mine if kind(each) not in _MEANS.values()])
    if models:
        said += _changes(mine, models, bootstrap)
    else:
        scores = group_scores(mine, _means(mine), bootstrap)
        for name, d in against_chance(mine, _means(mine)).items():
            s = scores[name]
            value = f"{percent(s.value)} (95 % interval {span(s.low, s.high)})"
            said.append(f"{base}: {_lower(name)} {value}, {_standing(d)}.")
        skill_changes = against_chance(mine, skills)
        low = [f"{n} {percent(d.other)}" for n, d in skill_changes.items() if d.verdict != "higher"]
        if low:
            said.append(
                f"{base}: not significantly above chance on {len(low)} of "
                f"{counted(len(skill_changes), 'skill')}: {_some(low)}."
            )
    reached = bound_scores(bounds, mine, skills, bootstrap)
    for bound, scores in giveaways(reached, bounds, skills).items():
        high = sorted(scores.items(), key=lambda pair: pair[1].chance - pair[1].value)
        texts = [f"{n} {percent(s.value)} (chance {percent(s.chance)})" for n, s in high]
        if texts:
            number = counted(len(texts), "skill")
            said.append(f"{bound}: significantly above chance on {number}: {_some(texts)}.")
    return said


def _standing(d: Difference) -> str:
    """Return where a score stands to chance, by the test, and on how many photos."""
    chance = f"chance ({percent(d.base)})"
    if d.p is None:
        return f"not judged against {chance}, {d.verdict}"
    photos = f"on {counted(d.photos, 'photo')}"
    if not d.significant:
        return f"not significantly different from {chance} {photos}"
    return f"significantly {'above' if d.verdict == 'higher' else 'below'} {chance} {photos}"


def bound_scores(
    bounds: Sequence[Results],
    measured: Sequence[Results],
    groups: Groups,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> dict[str, dict[str, Score]]:
    """Return the scores of reference models in each group that they were measured on in full.

    Reference models tell what a score is worth: random weights, a model that sees only the texts,
    an oracle. measured: results of the model that is read against them, one per benchmark. Returns
    model -> group -> score. Raises CompoclipError when a bound was measured on other annotations.
    """
    hashes = {each.benchmark: each.data_hash for each in measured}
    for each in bounds:
        problem = f"measured on other annotations of {each.benchmark} than {measured[0].model}; "
        problem += "measure both on the same data"
        require(each.data_hash == hashes.get(each.benchmark, each.data_hash), each.items, problem)
    scores = {}
    for name, own in by_model(bounds).items():
        here = {(each.benchmark, part) for each in own for part in (*each.scores, *each.aggregates)}
        known = {
            group: parts
            for group, parts in groups.items()
            if all((part.benchmark, part.name) in here for part in parts)
        }
        scores[name] = group_scores(own, known, bootstrap)
    return scores


def giveaways(
    scores: Mapping[str, Mapping[str, Score]], bounds: Sequence[Results], groups: Groups
) -> dict[str, dict[str, Score]]:
    """Return those of `bound_scores` that are significantly above chance and below 100 %."""
    reached = {}
    for name, own in by_model(bounds).items():
        changes = against_chance(own, {group: groups[group] for group in scores[name]})
        high = (g for g, d in changes.items() if d.verdict == "higher" and d.other < 1)
        reached[name] = {group: scores[name][group] for group in high}
    return reached


_MEANS = {COMPOSITION: "", RECOGNITION: "recognition", RETRIEVAL: "retrieval"}


def _means(results: Sequence[Results]) -> Groups:
    return {name: parts for name, parts in profile_groups(results).items() if name in _MEANS}


def _changes(
    base: Sequence[Results], others: Mapping[str, Sequence[Results]], bootstrap: Bootstrap
) -> list[str]:
    skills, means = [], []
    for results in others.values():
        names = {each.benchmark for each in results}
        common = [each for each in base if each.benchmark in names]
        probing = skill_groups([each for each in common if kind(each) not in _MEANS.values()])
        skills.append(group_differences(common, results, probing, bootstrap))
        means.append(group_differences(common, results, _means(common), bootstrap))
    said = []
    for model, changed, overall in zip(others, together(skills), together(means)):
        judged = sorted((d for d in changed if d.significant), key=lambda d: d.difference)
        named = {d.name: d for d in (*judged[-1:], *judged[:1])}
        if changed and not judged:
            tested = any(d.p is not None for d in changed)
            what = "no significant change on" if tested else "too few photos to judge"
            said.append(f"{model}: {what} any of {counted(len(changed), 'skill')}.")
        said += [f"{model}: {change_text(d)}." for d in (*named.values(), *overall)]
    return said


def change_text(d: Difference) -> str:
    """Return a difference in words: name, both values, change, interval, verdict."""
    return (
        f"{_lower(d.name)} {percent(d.base)} -> {percent(d.other)} ({percent(d.difference, '+')}, "
        f"95 % interval {span(d.low, d.high, '+')}, {d.word})"
    )


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST
    return ", ".join(texts[:_MOST]) + (f" and {more} more" if more > 0 else "")
