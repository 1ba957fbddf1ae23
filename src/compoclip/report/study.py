"""Results of several models side by side: the base, common benchmarks, differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compoclip.benchmarks.case import Aggregate
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.closing import bound_scores, giveaways
from compoclip.evaluation.comparison import (
    Comparison,
    Difference,
    compare_all,
    require_one_checkpoint,
    together,
)
from compoclip.evaluation.grounded import GroundedModels, ground_all
from compoclip.evaluation.groups import (
    Flags,
    Groups,
    against_chance,
    chance_flag,
    chance_flags,
    group_differences,
    group_scores,
    like_groups,
    profile_groups,
    triple_groups,
)
from compoclip.evaluation.results import Results, Score, by_benchmark, by_model, load_results
from compoclip.evaluation.statistics import Bootstrap


@dataclass(frozen=True)
class GroupedScores:
    """Scores of all models in named groups, and paired differences to the base.

    scores: model -> group -> score. differences: other model -> group -> difference. bounds:
    reference model -> group -> score, of the groups that it was measured on. reached: those of them
    that are significantly above chance and below 100 %. flags: model -> group -> where its score
    stands to chance (`groups.chance_flag`).
    """

    groups: Groups
    scores: Mapping[str, Mapping[str, Score]]
    differences: Mapping[str, Mapping[str, Difference]]
    bounds: Mapping[str, Mapping[str, Score]]
    reached: Mapping[str, Mapping[str, Score]]
    flags: Mapping[str, Mapping[str, str]]

    def giveaways(self, group: str) -> dict[str, Score]:
        """Return what reference models reach without learning what the group tests, by model."""
        return {name: scores[group] for name, scores in self.reached.items() if group in scores}


@dataclass(frozen=True)
class Study:
    """The results and comparisons of a report.

    models: the base first. results: model -> benchmark -> results. common: benchmarks of every
    model; only these are compared. skills: means over the sub-tasks of a skill, and sub-tasks that
    have no mean (`like_groups`). profile: means over benchmarks by kind. triples: benchmark with
    hard positives -> its numbers. flags: model -> benchmark -> `groups.chance_flags`. grounded:
    gains beyond what needs no image, on the common benchmarks.
    """

    models: tuple[str, ...]
    results: Mapping[str, Mapping[str, Results]]
    common: tuple[str, ...]
    benchmarks: tuple[str, ...]
    comparisons: Mapping[str, Comparison]
    skills: GroupedScores
    profile: GroupedScores
    triples: Mapping[str, GroupedScores]
    flags: Mapping[str, Mapping[str, Flags]]
    grounded: GroundedModels

    @property
    def base(self) -> str:
        """Return the model that the others are compared with."""
        return self.models[0]

    @property
    def others(self) -> tuple[str, ...]:
        """Return all models but the base."""
        return self.models[1:]

    def skill(self, group: str) -> str:
        """Return the skill that a group of `skills` belongs to; the group itself if it has none."""
        part = self.skills.groups[group][0]
        return self.results[self.base][part.benchmark].skills.get(part.name, group)

    def measured(self, benchmark: str) -> dict[str, Results]:
        """Return model -> its results on a benchmark, for the models that have any."""
        return {m: self.results[m][benchmark] for m in self.models if benchmark in self.results[m]}


Levels = Mapping[int, Mapping[str, Score]]
"""Level of a numbered label -> model -> its mean over the items of that level."""
_FEWEST_LEVELS = 3


def curves_of(study: Study, benchmark: str) -> dict[str, Levels]:
    """Return the scores of a benchmark by a number that its items have, by name of the curve.

    The aggregate of one value of a label is called after both: "atom_complexity_4" belongs to the
    curve "atom_complexity" (CREPE's productivity by the length of captions). A curve has at least
    three levels.
    """
    curves: dict[str, dict[int, dict[str, Score]]] = {}
    for model, results in study.measured(benchmark).items():
        for name, rule in results.rules.items():
            curve, _, level = name.rpartition("_")
            labels = {part.macro_by for part in (rule, *rule.parts) if isinstance(part, Aggregate)}
            if level.isdigit() and any(label and curve.endswith(label) for label in labels):
                scores = curves.setdefault(curve, {}).setdefault(int(level), {})
                scores[model] = results.aggregates[name]
    return {
        curve: dict(sorted(levels.items()))
        for curve, levels in curves.items()
        if len(levels) >= _FEWEST_LEVELS
    }


def read_study(
    paths: Sequence[Path],
    base: str | None,
    bootstrap: Bootstrap,
    bounds: Sequence[Path] = (),
) -> Study:
    """Load results, and compare every model with the base on their common benchmarks.

    Args:
        paths: folders of results.
        base: name of the base model; None takes the one that others were trained from, else the
        first.
        bootstrap: the draws for the intervals.
        bounds: folders of results of reference models (random weights, texts alone, an oracle).

    Raises:
        UsageError: the base is unknown, or there are no paths.
        CompoclipError: results are missing, malformed or contradictory.
    """
    if not paths:
        raise UsageError("give at least one results folder; see report --help")
    # A folder may be given twice, or with the folder around it.
    loaded = {
        Path(result.items).resolve(): result for path in paths for result in load_results(path)
    }
    of_models = by_model(loaded.values())
    for of_one in of_models.values():
        require_one_checkpoint(of_one)
    results = {model: by_benchmark(of_one) for model, of_one in of_models.items()}
    if base is not None and base not in results:
        raise UsageError(f"--base {base}: no results of that model; there are {', '.join(results)}")
    if base is None:
        identities = {m: next(iter(measured.values())).identity for m, measured in results.items()}
        parents = Counter(i.get("base") for i in identities.values() if i.get("base"))
        children = {m: parents[identity.get("weights")] for m, identity in identities.items()}
        base = max(results, key=lambda m: children[m])  # the first one where none has children
    models = (base, *(m for m in results if m != base))
    benchmarks = tuple(dict.fromkeys(name for model in models for name in results[model]))
    common = tuple(name for name in benchmarks if all(name in results[m] for m in models))
    if not common:
        raise CompoclipError(
            f"no benchmark was measured for all of {', '.join(models)}; evaluate them on the same "
            "benchmarks, or report on fewer models"
        )
    shared = {m: [results[m][name] for name in common] for m in models}
    first = shared[models[0]]
    references = [result for path in bounds for result in load_results(path)]

    def table(groups: Groups) -> GroupedScores:
        scores = bound_scores(references, first, groups, bootstrap)
        of_models = {m: group_scores(shared[m], groups, bootstrap) for m in models}
        changes = [group_differences(first, shared[m], groups, bootstrap) for m in models[1:]]
        return GroupedScores(
            groups=groups,
            scores=of_models,
            differences={
                m: {d.name: d for d in of} for m, of in zip(models[1:], together(changes))
            },
            bounds=scores,
            reached=giveaways(scores, references, groups),
            flags={
                m: {name: chance_flag(d, scores_of[name]) for name, d in differences.items()}
                for m, scores_of in of_models.items()
                for differences in [against_chance(shared[m], groups)]
            },
        )

    triples = {result.benchmark: triple_groups([result]) for result in first}
    return Study(
        models=models,
        results=results,
        common=common,
        benchmarks=benchmarks,
        comparisons=dict(
            zip(models[1:], compare_all(first, [shared[m] for m in models[1:]], bootstrap))
        ),
        skills=table(like_groups([shared[m] for m in models])),
        profile=table(profile_groups(first)),
        triples={name: table(groups) for name, groups in triples.items() if groups},
        flags={m: {name: chance_flags(of) for name, of in results[m].items()} for m in models},
        grounded=ground_all(shared, references, bootstrap),
    )
