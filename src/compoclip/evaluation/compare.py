"""Paired comparison of two models on the items both were measured on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np

from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import RESAMPLES, Mean, Plan, evaluate, holm, rows_of
from compoclip.evaluation.items import MAIN, POSITIVE_SCORE
from compoclip.evaluation.pair import Evidence, Pair, joined
from compoclip.evaluation.results import Results, too_few

LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """One number of two models on the same n items.

    name: sub-task or rule. low, high: 95 % interval of other - base, by a paired bootstrap over
    photos; None for a single photo. photos: how many it rests on; of several benchmarks, the fewest
    of one. p: two-sided, by the signs of what each photo adds (`sign_flip`, which is McNemar's test
    where the photos weigh the same, as with an item each). p_holm: corrected within its family (all
    sub-tasks, all headlines, or all other rules of the comparison). verdict: "higher", "lower" or
    "no difference", by p_holm at 0.05. With fewer than `FEWEST` photos there are no p-values, and
    the verdict is "too few photos: 7". base_only, other_only: items only one of them gets right
    (None for what is no plain mean over items).
    """

    benchmark: str
    name: str
    base: float
    other: float
    difference: float
    low: float | None
    high: float | None
    n: int
    photos: int
    p: float | None
    p_holm: float | None = None
    verdict: str = "no difference"
    base_only: int | None = None
    other_only: int | None = None


@dataclass(frozen=True)
class Comparison:
    """base, other: model names. headlines: one a benchmark. rules: the other aggregates. overall:
    mean over the benchmarks' headlines, when there are several (benchmarks drawn independently).
    unmatched: benchmarks only one of them has. partial: benchmarks not complete for both.
    """

    base: str
    other: str
    headlines: tuple[Difference, ...]
    subtasks: tuple[Difference, ...]
    rules: tuple[Difference, ...]
    overall: Difference | None
    unmatched: tuple[str, ...]
    partial: tuple[str, ...]


def compare(
    base: Sequence[Results],
    other: Sequence[Results],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two models, each with one result a benchmark, on every benchmark both have.

    resamples: for the intervals; 0 for none, the verdicts need no draws. Raises CompoclipError when
    they have none in common, when annotations, protocol or tie policy differ, when a retrieval
    gallery differs, or when no item is common.
    """
    mine, theirs = _by_benchmark(base), _by_benchmark(other)
    common = [name for name in mine if name in theirs]
    if not common:
        raise CompoclipError(
            f"no benchmark in common: {base[0].model} has {', '.join(mine)}; "
            f"{other[0].model} has {', '.join(theirs)}"
        )
    headlines: list[Difference] = []
    subtasks: list[Difference] = []
    rules: list[Difference] = []
    evidence: list[Evidence] = []
    for name in common:
        pair = Pair.of(mine[name], theirs[name])
        own = own_seed(seed, name)
        for each, found in _rules(pair, resamples, own):
            if each.name == pair.headline:
                headlines.append(each)
                evidence.append(found)
            else:
                rules.append(each)
        subtasks += subtask_differences(pair, resamples, own)
    return Comparison(
        base=base[0].model,
        other=other[0].model,
        headlines=tuple(corrected(headlines)),
        subtasks=tuple(corrected(subtasks)),
        rules=tuple(corrected(rules)),
        overall=_overall(headlines, evidence) if len(headlines) > 1 else None,
        unmatched=tuple(sorted(mine.keys() ^ theirs.keys())),
        partial=tuple(name for name in common if mine[name].partial or theirs[name].partial),
    )


def own_seed(seed: int, benchmark: str) -> int:
    """The seed of a benchmark's draws: the same whatever else is compared or averaged."""
    return seed + crc32(benchmark.encode())


def one_model(results: Sequence[Results], path: Path) -> list[Results]:
    """`results`, which must all be of one model. Raises CompoclipError naming `path`."""
    models = sorted({each.model for each in results})
    if len(models) > 1:
        raise CompoclipError(
            f"{path}: holds results of several models ({', '.join(models)}); give the folder of "
            "one, as evaluate writes it: OUT/MODEL"
        )
    require_one_checkpoint(results)
    return list(results)


def require_one_checkpoint(results: Sequence[Results]) -> None:
    """Raise CompoclipError, naming a file of each, for one model's results of different weights."""
    files = {str(each.identity.get("weights")): each.items for each in reversed(results)}
    if len(files) > 1:
        raise CompoclipError(
            f"results of {results[0].model} come from {len(files)} different checkpoints, e.g. "
            f"{' and '.join(sorted(files.values())[:2])}; evaluate it again, or under two names "
            "(NAME=MODEL)"
        )


def _by_benchmark(results: Sequence[Results]) -> dict[str, Results]:
    found: dict[str, Results] = {}
    for each in results:
        if each.benchmark in found:
            raise CompoclipError(
                f"{each.model} has two results for {each.benchmark}: {found[each.benchmark].items} "
                f"and {each.items}; give the folder of one run"
            )
        found[each.benchmark] = each
    return found


def _rules(pair: Pair, resamples: int, seed: int) -> list[tuple[Difference, Evidence]]:
    """Every rule's difference, with the evidence for it."""
    found = pair.evidence(list(pair.trees.values()), resamples, seed)
    return [
        (_of_tree(pair, name, tree, each), each)
        for (name, tree), each in zip(pair.trees.items(), found)
    ]


def subtask_differences(pair: Pair, resamples: int, seed: int) -> list[Difference]:
    """The difference in each sub-task's main metric, yet uncorrected."""
    trees = {name: pair.leaf(name, MAIN) for name in pair.subtask_rows}
    found = pair.evidence(list(trees.values()), resamples, seed)
    return [
        with_counts(_of_tree(pair, name, tree, each), pair, tree)
        for (name, tree), each in zip(trees.items(), found)
    ]


def _of_tree(pair: Pair, name: str, tree: Plan, evidence: Evidence) -> Difference:
    values = evaluate(tree, pair.base), evaluate(tree, pair.other)
    return difference(pair.benchmark, name, values, len(rows_of(tree)), evidence)


def with_counts(found: Difference, pair: Pair, tree: Plan) -> Difference:
    """The difference with the items only one model gets right, when it is a share of items."""
    if not isinstance(tree, Mean) or tree.metric == POSITIVE_SCORE:
        return found
    one, two = pair.base[tree.metric][tree.rows] > 0.5, pair.other[tree.metric][tree.rows] > 0.5
    return replace(found, base_only=int((one & ~two).sum()), other_only=int((two & ~one).sum()))


def difference(
    benchmark: str, name: str, values: tuple[float, float], n: int, evidence: Evidence
) -> Difference:
    """The difference of `values`, of base and other, as its evidence has it; yet uncorrected."""
    base, other = values
    low, high = evidence.interval
    return Difference(
        benchmark=benchmark,
        name=name,
        base=base,
        other=other,
        difference=other - base,
        low=low,
        high=high,
        n=n,
        photos=evidence.photos,
        p=evidence.p,
    )


def not_judged(found: Iterable[tuple[str, Difference]]) -> list[str]:
    """One line with the numbers, by name, that rest on too few photos for a verdict; or none."""
    few = {name: each.photos for name, each in found if each.p is None}
    shown = ", ".join(f"{name} {photos}" for name, photos in few.items())
    return [f"not judged, too few photos: {shown}"] if few else []


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The differences as one family: Holm's p-values and the verdicts that follow from them.

    Those of too few photos are not of the family: nothing is asked of them.
    """
    return [
        replace(each, p_holm=p, verdict=_verdict(each, p))
        for each, p in zip(differences, holm([each.p for each in differences]))
    ]


def _verdict(found: Difference, p: float | None) -> str:
    if p is None:
        return too_few(found.photos)
    if p > LEVEL or found.difference == 0:
        return "no difference"
    return "higher" if found.difference > 0 else "lower"


def _overall(headlines: Sequence[Difference], evidence: Sequence[Evidence]) -> Difference:
    base = float(np.mean([each.base for each in headlines]))
    other = float(np.mean([each.other for each in headlines]))
    found = difference(
        benchmark="",
        name="mean of headlines",
        values=(base, other),
        n=sum(each.n for each in headlines),
        evidence=joined([(each, 1 / len(evidence)) for each in evidence]),
    )
    return corrected([found])[0]
