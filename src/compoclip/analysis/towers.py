"""Which tower carries what training gained: each tuned tower put beside the other of the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compoclip.analysis.mixes import BASE, TUNED, Mix, Pair, measure_mixes
from compoclip.analysis.sweep import axes_of
from compoclip.benchmarks.case import Benchmark
from compoclip.evaluation.compare import Difference
from compoclip.evaluation.groups import (
    Groups,
    Part,
    group_differences,
    group_scores,
    part_draws,
)
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.run import Options
from compoclip.evaluation.statistics import percentile_interval

IMAGE, TEXT = "tuned-image", "tuned-text"
SWAPPED: Mapping[str, Mix] = {
    BASE: Mix("all", 0.0),
    IMAGE: Mix("text", 0.0),  # the text tower goes back to the base's
    TEXT: Mix("image", 0.0),
    TUNED: Mix("all", 1.0),
}


@dataclass(frozen=True)
class Interplay:
    """What both tuned towers do together beyond the sum of what each does alone: tuned - image
    alone - text alone + base, with its 95 % interval by a bootstrap over photos (None for one)."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class TowerStudy:
    """groups: axes (means over benchmarks) and then every benchmark's headline -> its parts.
    scores: model -> group -> score. differences: model -> group -> difference to the base.
    interplay: group -> what is more than the sum."""

    groups: Groups
    scores: Mapping[str, Mapping[str, Score]]
    differences: Mapping[str, Mapping[str, Difference]]
    interplay: Mapping[str, Interplay]


def study_towers(
    pair: Pair,
    benchmarks: Sequence[Benchmark],
    out: Path,
    options: Options,
    device: torch.device,
) -> TowerStudy:
    """Measure base, tuned, and both swaps; results go below `out`, one folder a model.

    Each of the four towers is encoded once. Raises what `measure_mixes` raises.
    """
    results = measure_mixes(pair, SWAPPED, benchmarks, out, options, device)
    own = {
        f"{each.benchmark} {each.headline}": (Part(each.benchmark, each.headline, ""),)
        for each in results[BASE]
    }
    groups = {**axes_of(results[BASE]), **own}
    draw = options.resamples, options.seed
    scores = {name: group_scores(found, groups, *draw) for name, found in results.items()}
    return TowerStudy(
        groups=groups,
        scores=scores,
        differences={
            name: {d.name: d for d in group_differences(results[BASE], found, groups, *draw)}
            for name, found in results.items()
            if name != BASE
        },
        interplay=_interplay(results, scores, groups, options),
    )


def _interplay(
    results: Mapping[str, Sequence[Results]],
    scores: Mapping[str, Mapping[str, Score]],
    groups: Groups,
    options: Options,
) -> dict[str, Interplay]:
    every = [part for parts in groups.values() for part in parts]
    drawn = {
        name: part_draws(found, every, options.resamples, options.seed)
        for name, found in results.items()
    }
    signs = {TUNED: 1, BASE: 1, IMAGE: -1, TEXT: -1}
    found = {}
    for group, parts in groups.items():
        value = sum(sign * scores[name][group].value for name, sign in signs.items())
        terms = [[sign * drawn[name][part] for part in parts] for name, sign in signs.items()]
        draws = np.asarray(terms).sum(axis=0).mean(axis=0)
        photos = min(each[group].photos for each in scores.values())
        found[group] = Interplay(value, *percentile_interval(draws, photos))
    return found


def towers_record(study: TowerStudy) -> dict[str, Any]:
    """All of a study, JSON-ready."""
    return {
        group: {
            "benchmarks": list(dict.fromkeys(part.benchmark for part in parts)),
            "scores": {name: asdict(found[group]) for name, found in study.scores.items()},
            "against_base": {n: asdict(found[group]) for n, found in study.differences.items()},
            "interplay": asdict(study.interplay[group]),
        }
        for group, parts in study.groups.items()
    }
