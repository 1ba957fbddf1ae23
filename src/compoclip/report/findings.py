"""Sentences and rows of numbers about what changed in each model against the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compoclip.benchmarks.case import SKILLS
from compoclip.console import counted
from compoclip.evaluation.comparison import Difference
from compoclip.evaluation.grounded import MEAN
from compoclip.evaluation.groups import (
    INVARIANCE,
    LOWER_IS_BETTER,
    MATCH,
    NEITHER_IS_BETTER,
    RETRIEVAL,
    SENSITIVITY,
    kind,
)
from compoclip.evaluation.numerals import SATURATED
from compoclip.evaluation.results import Score
from compoclip.evaluation.statistics import FEWEST, Estimate
from compoclip.report.study import Study
from compoclip.report.wording import interval, listed, percent

BETTER, WORSE, SAME = "better", "worse", "same"
_NAMED = 3  # gains, and losses, that a sentence names


def direction(difference: Difference) -> str:
    """ "better", "worse" or "same", by the corrected paired test; less brittleness is better."""
    if not difference.significant or difference.name in NEITHER_IS_BETTER:
        return SAME
    up = difference.verdict == "higher"
    return BETTER if up != (difference.name in LOWER_IS_BETTER) else WORSE


# --- Sentences. ---


def findings(study: Study) -> dict[str, str]:
    """Return one sentence about every model but the base: what it gains, and what it costs.

    A gain is named if it needs the image: neither does a blind model reach 85 % of its items, nor
    as much as the model.
    """
    return {model: f"{model} {_finding(study, model)}." for model in study.others}


def _finding(study: Study, model: str) -> str:
    changes = study.skills.differences[model]
    few = [d for d in changes.values() if d.p is None]
    if len(few) == len(changes):
        return f"was measured on too few photos to judge it: fewer than {FEWEST}"
    by_size = sorted(changes.values(), key=lambda d: d.difference)
    gains = [
        d
        for d in reversed(by_size)
        if direction(d) == BETTER
        and study.grounded.needs_image(study.skills.groups[d.name], d.other)
    ]
    losses = [d for d in by_size if direction(d) == WORSE]
    clauses = [_mean_clause(study.grounded.differences.get(model))]
    clauses.append(f"gains{_named(gains)}" if gains else "gains significantly nowhere")
    clauses.append(f"loses{_named(losses)}" if losses else "loses significantly nowhere")
    if few:
        skills = counted(len(few), "skill")
        clauses.append(f"is not judged on {skills} of fewer than {FEWEST} photos")
    return listed([clause for clause in clauses if clause])


def _mean_clause(gain: Difference | None) -> str:
    """Return what became of the mean grounded gain."""
    if gain is None:
        return ""
    values = f"{percent(gain.base)} to {percent(gain.other)} points"
    if not gain.significant:
        return f"leaves the {MEAN} as it is ({values}, {gain.word})"
    verb = "raises" if gain.verdict == "higher" else "lowers"
    return f"{verb} the {MEAN} from {values}"


def _named(differences: Sequence[Difference]) -> str:
    """Return where the first of several differences are, with their values, and how many follow."""
    texts = [f"{d.name} ({percent(d.base)} to {percent(d.other)})" for d in differences[:_NAMED]]
    more = len(differences) - len(texts)
    return f"{' most' if more else ''} in {listed([*texts, f'{more} more'] if more else texts)}"


def hard_positive_verdicts(study: Study) -> dict[str, str]:
    """Return what became of negative captions and paraphrases together, by model."""
    verdicts = {}
    for model in study.others:
        profile = study.profile.differences[model]
        if {SENSITIVITY, INVARIANCE} <= profile.keys():
            more, both = (direction(profile[name]) for name in (SENSITIVITY, INVARIANCE))
            verdicts[model] = _HARD_POSITIVES.get((more, both), "fewer negative captions rejected")
    return verdicts


_HARD_POSITIVES = {  # changes of sensitivity, and of sensitivity and invariance together
    (BETTER, BETTER): "more negative captions rejected, and paraphrases still accepted",
    (BETTER, SAME): "more negative captions rejected, but not when paraphrases count too",
    (BETTER, WORSE): "more negative captions rejected, at the cost of rejecting paraphrases",
    (SAME, BETTER): "more paraphrases accepted",
    (SAME, WORSE): "more paraphrases rejected, without a gain in sensitivity",
    (SAME, SAME): "no significant change",
}


# --- The numbers of the page's tables; the templates format them. ---


class NumberRow(NamedTuple):
    """A number of all models in a table.

    changes: against the base, None for the base itself. flags: where each number stands to chance.
    chance, items: as they are printed. parts: the numbers that it is the mean of. giveaways: what
    reference models reach without learning (`GroupedScores.giveaways`). bounds: what they score.
    """

    name: str
    about: str
    scores: Sequence[Score | Estimate]
    changes: Sequence[Difference | None]
    flags: Sequence[str]
    chance: str
    items: str
    parts: Sequence[NumberRow] = ()
    giveaways: Mapping[str, Score] = {}
    bounds: Mapping[str, Score] = {}

    @property
    def saturated(self) -> bool:
        """Return whether no model can gain anything."""
        return all(score.value >= SATURATED for score in self.scores)


def overall_rows(study: Study) -> list[NumberRow]:
    """Return the mean grounded gains, the means by kind of benchmark, zero-shot accuracy and both
    directions of every retrieval benchmark."""
    rows = []
    for others, about in ((False, "points above blind"), (True, "with texts that others wrote")):
        means = [model.mean(others) for model in study.grounded.models]
        measured = [mean for mean in means if mean is not None]
        if len(measured) == len(means):
            changes = [None if others else study.grounded.differences.get(m) for m in study.models]
            columns = counted(len(study.grounded.models[0].counted(others)), "column")
            name = f"{MEAN[0].upper()}{MEAN[1:]}{', by others' if others else ''}"
            flags = ["" for _ in measured]
            rows.append(NumberRow(name, about, measured, changes, flags, "0.0", columns))
    profile = {n: study.profile for n in study.profile.groups if n not in (MATCH, RETRIEVAL)}
    for name, table in {**profile, **dict.fromkeys(recognised(study), study.skills)}.items():
        scores = [table.scores[model][name] for model in study.models]
        rows.append(
            NumberRow(
                name,
                "",
                scores,
                [table.differences.get(model, {}).get(name) for model in study.models],
                ["" for _ in scores],
                percent(scores[0].chance),
                sizes(scores),
                bounds={m: values[name] for m, values in table.bounds.items() if name in values},
            )
        )
    return rows


def recognised(study: Study) -> list[str]:
    """Return the groups of `Study.skills` that tell what a model recognises and retrieves, which
    training for compositionality may cost."""
    return [
        name
        for name, parts in study.skills.groups.items()
        if all(kind(study.results[study.base][p.benchmark]) in _RECOGNISED for p in parts)
    ]


_RECOGNISED = ("recognition", "probe", "retrieval")


def skill_rows(study: Study) -> list[NumberRow]:
    """Return a row per skill, that of the largest change first, with its sub-tasks if it has
    several; sub-tasks without a mean (`like_groups`) have a row each, one below the other."""
    table = study.skills

    def size(skill: str) -> float:
        groups = [group for group in table.groups if study.skill(group) == skill]
        changes = [abs(table.differences[m][g].difference) for m in study.others for g in groups]
        return max(changes, default=0.0)

    rows = []
    order = {group: (-size(study.skill(group)), study.skill(group)) for group in table.groups}
    for name in sorted(table.groups, key=order.__getitem__):
        parts = table.groups[name]
        about, children = SKILLS.get(study.skill(name), ""), []
        for part in parts if len(parts) > 1 else ():
            scores = [study.results[m][part.benchmark].main(part.name) for m in study.models]
            changes: list[Difference | None] = [None]
            changes += [
                d
                for model in study.others
                for d in study.comparisons[model].subtasks
                if (d.benchmark, d.name) == (part.benchmark, part.name)
            ]
            metric = scores[0].metric
            of_models = [study.flags[model][part.benchmark] for model in study.models]
            flags = [flags_of.get((part.name, metric), "") for flags_of in of_models]
            about_part, chance = f"{part.benchmark}, {metric}", percent(scores[0].chance)
            children.append(
                NumberRow(part.name, about_part, scores, changes, flags, chance, sizes(scores))
            )
        if len(parts) == 1 and about:
            about += f" ({parts[0].benchmark}, {parts[0].name})"
        scores = [table.scores[model][name] for model in study.models]
        rows.append(
            NumberRow(
                name,
                about,
                scores,
                [None, *(table.differences[model][name] for model in study.others)],
                [table.flags[model][name] for model in study.models],
                percent(scores[0].chance),
                sizes(scores),
                children,
                table.giveaways(name),
            )
        )
    return rows


def sizes(scores: Sequence[Score]) -> str:
    """Numbers of items: "24", or "20–24" where models differ."""
    return "–".join(f"{n:,}" for n in sorted({min(s.n for s in scores), max(s.n for s in scores)}))


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
    return f"95 % interval of the change {interval(change.low, change.high, '+')}, {tested}"


Line = tuple[str, str, Score, str]
"""A number of a benchmark's own tables: sub-task or rule, model, score, flag."""


def score_lines(study: Study, benchmark: str, aggregates: bool) -> list[Line]:
    """Return every aggregate, or every metric of every sub-task, by model."""
    tables = {
        model: {("", name): score for name, score in result.aggregates.items()}
        if aggregates
        else {(part, m): s for part, metrics in result.scores.items() for m, s in metrics.items()}
        for model, result in study.measured(benchmark).items()
    }
    order = dict.fromkeys(key for scores in tables.values() for key in scores)
    return [
        (key[0] or key[1], model, scores[key], study.flags[model][benchmark].get(key, ""))
        for key in order
        for model, scores in tables.items()
        if key in scores
    ]
