"""Results in sentences: what was measured, what changed, and what needs no picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compoclip.console import counted
from compoclip.errors import CompoclipError, abridged
from compoclip.evaluation.comparison import Difference, together
from compoclip.evaluation.grounded import MEAN, GroundedModels
from compoclip.evaluation.groups import (
    COMPOSITION,
    PROBES,
    RECOGNITION,
    Groups,
    against_chance,
    group_differences,
    group_scores,
    kind,
    like_groups,
    profile_groups,
    retrieval_directions,
)
from compoclip.evaluation.numerals import percent, span
from compoclip.evaluation.results import Results, Score, by_model
from compoclip.evaluation.statistics import BOOTSTRAP, Bootstrap

_MOST = 3  # skills that a sentence names
_MEANS = (COMPOSITION, RECOGNITION, PROBES)


def closing_sentences(
    results: Sequence[Results],
    base: str,
    bootstrap: Bootstrap = BOOTSTRAP,
    grounded: GroundedModels | None = None,
) -> list[str]:
    """Return what results say, one fact per sentence.

    Of one model: its mean grounded gain, and its scores against chance by the test of `compare`. Of
    several: for every model but `base` the change of the mean grounded gain, the largest
    significant gain that needs the image and the largest significant loss among skills
    (`like_groups`), the gains that are in reach without it, and the changes in compositionality,
    zero-shot accuracy and both directions of every retrieval benchmark, on the benchmarks that it
    shares with the base. p-values are corrected over the skills, or over means and directions, of
    all models.

    Args:
        results: of all models.
        base: the model that the others are compared with.
        bootstrap: the draws for the intervals.
        grounded: gains beyond what needs no image, of the same models.

    Raises:
        CompoclipError: as `compare_all` does.
    """
    models = by_model(results)
    base_results = models.pop(base)
    named = {result.benchmark: max(s.n for s in result.aggregates.values()) for result in results}
    partial = {result.benchmark for result in results if result.partial}
    in_part = f", {len(partial)} in part" if partial else ""
    sentences = [
        f"Measured {counted(1 + len(models), 'model')} on {counted(len(named), 'benchmark')}, "
        f"{counted(sum(named.values()), 'item')}{in_part}."
    ]
    if models:
        sentences += _changes(base_results, models, bootstrap, grounded)
    else:
        if grounded and (mean := grounded.models[0].mean()):
            value = f"{percent(mean.value)} (95 % interval {span(mean.low, mean.high)})"
            sentences.append(f"{base}: {MEAN} {value} above {grounded.reference}.")
        scores = group_scores(base_results, _means(base_results), bootstrap)
        for name, d in against_chance(base_results, _means(base_results)).items():
            s = scores[name]
            value = f"{percent(s.value)} (95 % interval {span(s.low, s.high)})"
            sentences.append(f"{base}: {_lower(name)} {value}, {_standing(d)}.")
        skill_changes = against_chance(base_results, like_groups([_probing(base_results)]))
        low = [f"{n} {percent(d.other)}" for n, d in skill_changes.items() if d.verdict != "higher"]
        if low:
            sentences.append(
                f"{base}: not significantly above chance on {len(low)} of "
                f"{counted(len(skill_changes), 'skill')}: {abridged(low, _MOST)}."
            )
    return sentences


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
    hashes = {result.benchmark: result.data_hash for result in measured}
    for bound in bounds:
        if bound.data_hash != hashes.get(bound.benchmark, bound.data_hash):
            raise CompoclipError(
                f"{bound.items}: measured on other annotations of {bound.benchmark} than "
                f"{measured[0].model}; measure both on the same data"
            )
    scores = {}
    for name, results in by_model(bounds).items():
        here = {
            (result.benchmark, part)
            for result in results
            for part in (*result.scores, *result.aggregates)
        }
        complete = {
            group: parts
            for group, parts in groups.items()
            if all((part.benchmark, part.name) in here for part in parts)
        }
        scores[name] = group_scores(results, complete, bootstrap)
    return scores


def giveaways(
    scores: Mapping[str, Mapping[str, Score]], bounds: Sequence[Results], groups: Groups
) -> dict[str, dict[str, Score]]:
    """Return those of `bound_scores` that are significantly above chance and below 100 %."""
    reached = {}
    for name, results in by_model(bounds).items():
        changes = against_chance(results, {group: groups[group] for group in scores[name]})
        high = (g for g, d in changes.items() if d.verdict == "higher" and d.other < 1)
        reached[name] = {group: scores[name][group] for group in high}
    return reached


def _probing(results: Sequence[Results]) -> list[Results]:
    """Return the results that tell about skills: neither retrieval nor accuracy of classes."""
    return [r for r in results if kind(r) not in ("retrieval", "recognition", "probe")]


def _means(results: Sequence[Results]) -> Groups:
    """Return compositionality, accuracies of classes and the directions of retrieval."""
    means = {name: parts for name, parts in profile_groups(results).items() if name in _MEANS}
    return {**means, **retrieval_directions(results)}


def _changes(
    base: Sequence[Results],
    others: Mapping[str, Sequence[Results]],
    bootstrap: Bootstrap,
    grounded: GroundedModels | None,
) -> list[str]:
    """Return the sentences on every model but the base."""
    of_skills, skills, means = [], [], []
    for results in others.values():
        names = {result.benchmark for result in results}
        common = [result for result in base if result.benchmark in names]
        probing = [_probing(common), _probing(results)]
        groups = like_groups(probing)
        of_skills.append(groups)
        skills.append(group_differences(common, results, groups, bootstrap))
        means.append(group_differences(common, results, _means(common), bootstrap))
    sentences = []
    for model, groups, changed, overall in zip(
        others, of_skills, together(skills), together(means)
    ):
        judged = sorted((d for d in changed if d.significant), key=lambda d: d.difference)
        needless = [
            d.name
            for d in judged
            if d.difference > 0 and grounded and not grounded.needs_image(groups[d.name], d.other)
        ]
        telling = [d for d in judged if d.name not in needless]
        named = {d.name: d for d in (*telling[-1:], *telling[:1])}
        gain = grounded and grounded.differences.get(model)
        texts = [change_text(gain)] if gain else []
        if changed and not judged:
            tested = any(d.p is not None for d in changed)
            nothing = "no significant change on" if tested else "too few photos to judge"
            texts.append(f"{nothing} any of {counted(len(changed), 'skill')}")
        texts += [change_text(d) for d in named.values()]
        if needless:
            texts.append(
                f"significant gains within reach without an image: {abridged(needless, _MOST)}"
            )
        by_lead: dict[str, list[str]] = {}
        for d in overall:  # the two directions of a retrieval benchmark share a sentence
            by_lead.setdefault(d.name.partition(", ")[0], []).append(change_text(d))
        texts += [
            ", ".join([first, *(text.removeprefix(f"{lead}, ") for text in rest)])
            for lead, (first, *rest) in by_lead.items()
        ]
        sentences += [f"{model}: {text}." for text in texts]
    return sentences


def change_text(d: Difference) -> str:
    """Return a difference in words: name, both values, change, interval, verdict."""
    return (
        f"{_lower(d.name)} {percent(d.base)} -> {percent(d.other)} ({percent(d.difference, '+')}, "
        f"95 % interval {span(d.low, d.high, '+')}, {d.word})"
    )


def _lower(name: str) -> str:
    """Return the name of a mean as it stands within a sentence; other names stay as they are."""
    return name[0].lower() + name[1:] if name in _MEANS else name
