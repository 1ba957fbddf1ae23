"""What a benchmark is about, and the few numbers that say what a model is good at."""

from __future__ import annotations

from collections.abc import Sequence

from compoclip.evaluation.classification import SUBTASK as ZERO_SHOT
from compoclip.evaluation.groups import Groups, Part
from compoclip.evaluation.items import POSITIVE_SCORE
from compoclip.evaluation.results import Results

COMPOSITION = "Compositionality"
RECOGNITION = "Zero-shot accuracy"
RETRIEVAL = "Retrieval R@1"
TO_TEXT = "Image-to-text R@1"
TO_IMAGE = "Text-to-image R@1"
SENSITIVITY = "Hard negatives"
INVARIANCE = "Hard negatives and hard positives"
BRITTLENESS = "Brittleness"
MATCH = "Cosine of true pairs, times 100"
LOWER_IS_BETTER = frozenset({BRITTLENESS})
NEITHER_IS_BETTER = frozenset({MATCH})


def kind(results: Results) -> str:
    """What a benchmark is about: "retrieval", "recognition", "invariance" or "composition"."""
    if all("r1" in metrics for metrics in results.scores.values()):
        return "retrieval"
    if set(results.scores) == {ZERO_SHOT}:
        return "recognition"
    skills = {results.skills.get(subtask) for subtask in results.scores}
    return "invariance" if skills == {"invariance"} else "composition"


def profile_groups(results: Sequence[Results]) -> Groups:
    """The numbers of the first table: headline means by kind of benchmark, and hard positives."""
    groups: dict[str, tuple[Part, ...]] = {
        COMPOSITION: _headlines(results, "composition"),
        RECOGNITION: _headlines(results, "recognition"),
    }
    ranked = [each.benchmark for each in results if kind(each) == "retrieval"]
    groups[RETRIEVAL] = tuple(Part(b, way, "r1") for b in ranked for way in ("i2t", "t2i"))
    groups[TO_TEXT] = tuple(Part(name, "i2t", "r1") for name in ranked)
    groups[TO_IMAGE] = tuple(Part(name, "t2i", "r1") for name in ranked)
    groups |= triple_groups(results)
    return {name: parts for name, parts in groups.items() if parts}


def _headlines(results: Sequence[Results], wanted: str) -> tuple[Part, ...]:
    return tuple(Part(r.benchmark, r.headline, "") for r in results if kind(r) == wanted)


def triple_groups(results: Sequence[Results]) -> dict[str, tuple[Part, ...]]:
    """The numbers about hard positives, where there are any; else empty."""
    places = [
        (each.benchmark, subtask)
        for each in results
        for subtask, metrics in each.scores.items()
        if "brittleness" in metrics
    ]
    if not places:
        return {}
    metrics = {SENSITIVITY: "original", INVARIANCE: "augmented", BRITTLENESS: "brittleness"}
    metrics[MATCH] = POSITIVE_SCORE
    return {
        name: tuple(Part(benchmark, subtask, metric) for benchmark, subtask in places)
        for name, metric in metrics.items()
    }
