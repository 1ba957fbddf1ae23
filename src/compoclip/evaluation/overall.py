"""Means over all benchmarks of a suite: Comp, ZS, I2T and T2I, as published tables quote them."""

from __future__ import annotations

from collections.abc import Sequence

from compoclip.benchmarks.suites import SUITES
from compoclip.console import table
from compoclip.evaluation.groups import Part, group_scores
from compoclip.evaluation.layout import span
from compoclip.evaluation.results import Results, Score
from compoclip.evaluation.statistics import RESAMPLES
from compoclip.evaluation.tables import percent

_HEADLINES = {"Comp": "comp", "ZS (21)": "elevater", "ZS (20)": "elevater_20"}
_DIRECTIONS = {"I2T Ret": "i2t", "T2I Ret": "t2i"}


def overall_groups(results: Sequence[Results]) -> dict[str, tuple[Part, ...]]:
    """The means that one model's results define, each over all its benchmarks or not at all.

    Comp, ZS (21) and ZS (20): headlines of `suites.SUITES`. I2T Ret, T2I Ret: R@1 on COCO,
    Flickr30k and COCO-Counterfactuals.
    """
    named = {each.benchmark: each for each in results}
    groups: dict[str, tuple[Part, ...]] = {}
    for title, suite in _HEADLINES.items():
        members = [spec.replace(":", "_") for spec in SUITES[suite]]
        if named.keys() >= set(members):
            groups[title] = tuple(Part(each, named[each].headline, "") for each in members)
    for title, direction in _DIRECTIONS.items():
        members = [spec.replace(":", "_") for spec in SUITES["retrieval_3"]]
        if all(each in named and direction in named[each].scores for each in members):
            groups[title] = tuple(Part(each, direction, "r1") for each in members)
    return groups


def overall_scores(
    results: Sequence[Results], resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Score]:
    """One model's score in each of `overall_groups`; intervals as of `group_scores`.

    Raises CompoclipError when results lack their items.
    """
    return group_scores(results, overall_groups(results), resamples, seed)


def overall_text(model: str, scores: dict[str, Score]) -> str:
    """An aligned table of the means, with coverage where items are missing; "" without any."""
    if not scores:
        return ""
    rows = [
        [
            name,
            percent(score.value),
            span(score.low, score.high),
            percent(score.chance),
            str(score.n) if score.n == score.expected else f"{score.n} of {score.expected}",
        ]
        for name, score in scores.items()
    ]
    header = ["mean", "score", "95 % interval", "chance", "items"]
    return f"{model} over whole suites\n{table(rows, header)}"
