"""Expected score of guessing: random scores without ties, for every form and metric."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from compoclip.benchmarks.case import Case, Classification, Form, Retrieval

_FIXED = {
    (Form.GROUP, "text"): 1 / 4,
    (Form.GROUP, "image"): 1 / 4,
    (Form.GROUP, "group"): 1 / 6,
    (Form.TRIPLE, "augmented"): 1 / 3,
    (Form.TRIPLE, "original"): 1 / 2,
    (Form.TRIPLE, "second"): 1 / 2,
    (Form.TRIPLE, "brittleness"): 1 / 3,
    (Form.TRIPLE, "both_below"): 1 / 3,
    (Form.TEXT_ONLY, "augmented"): 1 / 3,
    (Form.TEXT_ONLY, "original"): 1 / 2,
    (Form.TEXT_ONLY, "second"): 1 / 2,
}


def of_cases(cases: Sequence[Case], metric: str) -> float:
    """Mean chance of `cases` for `metric` (see `case.METRICS`): 1/K for the choice forms.

    GROUP: text and image 1/4 (two independent comparisons); group 1/6 (of the 24 orders of four
    scores, those with both matching pairs on top: 4). TRIPLE and TEXT_ONLY: orders of three scores.
    Raises ValueError for no cases, KeyError for a metric that the form does not have.
    """
    if not cases:
        raise ValueError("chance of no cases is not defined")
    return sum(_of_case(case, metric) for case in cases) / len(cases)


def _of_case(case: Case, metric: str) -> float:
    if case.form in (Form.CHOOSE_TEXT, Form.CHOOSE_IMAGE) and metric == "accuracy":
        return 1 / len(case.texts if case.form is Form.CHOOSE_TEXT else case.images)
    return _FIXED[case.form, metric]


def of_classification(content: Classification) -> float:
    """1 / number of classes, for accuracy and for mean-per-class alike."""
    return 1 / len(content.classes)


def of_retrieval(content: Retrieval, direction: str, k: int) -> float:
    """Chance that a random ranking puts a match among the `k` best, averaged over the queries.

    direction: "i2t" or "t2i". A query with m matches among N candidates: 1 - C(N-m, k) / C(N, k).
    """
    image_queries = direction == "i2t"
    queries = len(content.images if image_queries else content.texts)
    total = len(content.texts if image_queries else content.images)
    matches = [0] * queries
    for image, text in content.pairs:
        matches[image if image_queries else text] += 1
    k = min(k, total)
    missed: dict[int, float] = {}
    for m in matches:
        if m not in missed:
            missed[m] = comb(total - m, k) / comb(total, k)
    return 1 - sum(missed[m] for m in matches) / queries
