"""Changes of each model against the base, and the numbers of the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compoclip.benchmarks.case import SKILLS
from compoclip.console import counted
from compoclip.evaluation.comparison import Difference
from compoclip.evaluation.groups import (
    INVARIANCE,
    LOWER_IS_BETTER,
    NEITHER_IS_BETTER,
    SENSITIVITY,
)
from compoclip.evaluation.results import Score
from compoclip.evaluation.statistics import FEWEST
from compoclip.report.study import Study
from compoclip.report.wording import interval, percent

BETTER, WORSE, SAME = "better", "worse", "same"


def direction(difference: Difference) -> str:
    """ "better", "worse" or "same", by the corrected paired test; less brittleness is better."""
    if not difference.significant or difference.name in NEITHER_IS_BETTER:
        return SAME
    up = difference.verdict == "higher"
    return BETTER if up != (difference.name in LOWER_IS_BETTER) else WORSE


def findings(study: Study) -> dict[str, list[str]]:
    """Return sentences about every model but the base, by model.

    They count the skills that changed, name gains that a reference model without learning reaches
    too, and judge hard negatives together with hard positives.
    """
    found = {}
    for model in study.others:
        changes = study.skills.differences[model]
        ways = Counter(direction(d) for d in changes.values())
        few = sum(d.p is None for d in changes.values())
        still = ways[SAME] - few
        counts = {"better": ways[BETTER], "worse": ways[WORSE], "no significant change": still}
        parts = [f"{way} on {counted(n, 'skill')}" for way, n in counts.items() if n]
        parts += [f"{counted(few, 'skill')} not judged: fewer than {FEWEST} photos"] * bool(few)
        said = [f"{'; '.join(parts)}."]
        for name, d in changes.items():
            known = study.skills.giveaways(name) if direction(d) == BETTER else {}
            said += [
                f"{name} {percent(d.other)}, where {bound} reaches {percent(s.value)}."
                for bound, s in known.items()
                if s.value >= d.other
            ]
        profile = study.profile.differences[model]
        if {SENSITIVITY, INVARIANCE} <= profile.keys():
            more, both = (direction(profile[name]) for name in (SENSITIVITY, INVARIANCE))
            verdict = _HARD_POSITIVES.get((more, both), "fewer negative captions rejected")
            said.append(f"Hard positives: {verdict}.")
        found[model] = [line[0].upper() + line[1:] for line in said]
    return found


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
    """A number of all models, its changes against the base (None for the base itself), where it
    stands to chance, the numbers it is the mean of, and what reference models reach
    (`Table.giveaways`)."""

    name: str
    about: str
    scores: Sequence[Score]
    changes: Sequence[Difference | None]
    flags: Sequence[str]
    parts: Sequence[NumberRow] = ()
    giveaways: Mapping[str, Score] = {}


def skill_rows(study: Study) -> list[NumberRow]:
    """Return a row per skill, the largest change first, with its sub-tasks if it has several."""
    rows = []
    table = study.skills

    def size(skill: str) -> float:
        return max((abs(table.differences[m][skill].difference) for m in study.others), default=0.0)

    for skill in sorted(table.groups, key=size, reverse=True):
        parts = table.groups[skill]
        about, children = SKILLS.get(skill, ""), []
        for part in parts if len(parts) > 1 else ():
            scores = [study.results[m][part.benchmark].main(part.name) for m in study.models]
            changes: list[Difference | None] = [None]
            for model in study.others:
                found = study.comparisons[model].subtasks
                changes += [
                    d for d in found if (d.benchmark, d.name) == (part.benchmark, part.name)
                ]
            metric = scores[0].metric
            of_models = [study.flags[model][part.benchmark] for model in study.models]
            flags = [each.get((part.name, metric), "") for each in of_models]
            about_part = f"{part.benchmark}, {metric}"
            children.append(NumberRow(part.name, about_part, scores, changes, flags))
        if len(parts) == 1 and skill in SKILLS:
            about += f" ({parts[0].benchmark}, {parts[0].name})"
        whole: list[Difference | None] = [None]
        whole += [table.differences[m][skill] for m in study.others]
        scores = [table.scores[m][skill] for m in study.models]
        flags = [table.flags[m][skill] for m in study.models]
        rows.append(NumberRow(skill, about, scores, whole, flags, children, table.giveaways(skill)))
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
        model: {("", name): score for name, score in each.aggregates.items()}
        if aggregates
        else {(part, m): s for part, metrics in each.scores.items() for m, s in metrics.items()}
        for model, each in study.measured(benchmark).items()
    }
    order = dict.fromkeys(key for scores in tables.values() for key in scores)
    return [
        (key[0] or key[1], model, scores[key], study.flags[model][benchmark].get(key, ""))
        for key in order
        for model, scores in tables.items()
        if key in scores
    ]
