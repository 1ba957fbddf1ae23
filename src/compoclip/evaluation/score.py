"""Scores and outcomes of cases (choice, group, triple, text-only), vectorised by form.

Binary cases are judged together and not one by one: see `binary`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from compoclip.benchmarks.case import METRICS, Case, Form, TiePolicy
from compoclip.benchmarks.names import image_key
from compoclip.errors import CompoclipError
from compoclip.evaluation.clusters import case_clusters
from compoclip.evaluation.features import Features, cosines
from compoclip.evaluation.items import Items
from compoclip.evaluation.outcomes import (
    BUCKETS,
    Flags,
    Indices,
    Outcomes,
    Scores,
    choice,
    group,
    text_only,
    triple,
    triple_bucket,
)


def score_cases(
    cases: Sequence[Case], features: Features, ties: Mapping[str, TiePolicy] | None = None
) -> Items:
    """Score every case and judge it under its sub-task's tie policy (default strict).

    ties: sub-task -> policy, "" for all others. Every image and text of `cases` must be in
    `features`. Raises CompoclipError for a case whose shape does not fit its form.
    """
    policies = ties or {}
    blocks: dict[tuple[Form, int], list[int]] = defaultdict(list)
    for position, case in enumerate(cases):
        blocks[case.form, candidates(case)].append(position)

    n = len(cases)
    names = [name for form in Form if any(f is form for f, _ in blocks) for name in METRICS[form]]
    parts: dict[str, list[Outcomes]] = {name: [] for name in dict.fromkeys(names)}
    scores: list[Sequence[float]] = [()] * n
    positive = np.zeros(n)
    buckets: list[str | None] = [None] * n
    for (form, _), positions in blocks.items():
        block = [cases[p] for p in positions]
        index = np.array(positions, dtype=np.int64)
        first = np.array([_policy(policies, case) is TiePolicy.FIRST for case in block])
        values = _block_scores(form, block, features)
        for name, outcomes in _judge(form, block, values, first).items():
            parts[name].append(outcomes.scatter(index, n))
        positive[index] = _positive(form, block, values)
        for position, row in zip(positions, values.reshape(len(block), -1)):
            scores[position] = row.tolist()
        if form is Form.TRIPLE:
            for position, bucket in zip(positions, triple_bucket(values)):
                buckets[position] = BUCKETS[bucket]
    return Items(
        ids=[case.id for case in cases],
        forms=[str(case.form) for case in cases],
        subtasks=[case.subtask for case in cases],
        labels=[case.labels for case in cases],
        truth=[case.truth for case in cases],
        images=[tuple(image_key(ref) for ref in case.images) for case in cases],
        texts=[case.texts for case in cases],
        scores=scores,
        clusters=case_clusters(cases),
        positive=positive,
        outcomes={name: _overlay(each) for name, each in parts.items()},
        extra={"bucket": buckets} if any(buckets) else {},
    )


def candidates(case: Case) -> int:
    """How many candidates the case has, after checking its shape; for BINARY the two answers.

    Raises CompoclipError for a case whose shape does not fit its form.
    """
    images, texts = len(case.images), len(case.texts)
    match case.form:
        case Form.CHOOSE_TEXT:
            fits, count = images == 1 and texts >= 2, texts
        case Form.CHOOSE_IMAGE:
            fits, count = texts == 1 and images >= 2, images
        case Form.GROUP:
            fits, count = images == texts == 2, 2
        case Form.TRIPLE:
            fits, count = images == 1 and texts == 3, 3
        case Form.TEXT_ONLY:
            fits, count = images == 0 and texts == 3, 3
        case Form.BINARY:
            fits, count = images == texts == 1, 2
    if not fits or not 0 <= case.truth < count:
        raise CompoclipError(
            f"item '{case.id}' of sub-task '{case.subtask}' has {images} images, {texts} texts and "
            f"truth {case.truth}, which is no {case.form} item; check the annotation file"
        )
    return count


def _policy(policies: Mapping[str, TiePolicy], case: Case) -> TiePolicy:
    return policies.get(case.subtask, policies.get("", TiePolicy.STRICT))


def _block_scores(form: Form, block: Sequence[Case], features: Features) -> Scores:
    """Cosines of n cases of one form: (n, K), (n, 2, 2) for GROUP."""
    n = len(block)
    texts = features.text_index(t for case in block for t in case.texts).reshape(n, -1)
    if form is Form.TEXT_ONLY:
        pairs = texts[:, [0, 0, 1]], texts[:, [1, 2, 2]]
        return cosines(features.texts, pairs[0], features.texts, pairs[1])
    images = features.image_index(r for case in block for r in case.images).reshape(n, -1)
    if form is Form.GROUP:
        rows = np.repeat(images, 2, axis=1).reshape(n, 2, 2)
        columns = np.tile(texts, (1, 2)).reshape(n, 2, 2)
    else:
        rows, columns = np.broadcast_arrays(images, texts)
    return features.scores(rows, columns)


def _judge(form: Form, block: Sequence[Case], values: Scores, first: Flags) -> dict[str, Outcomes]:
    match form:
        case Form.GROUP:
            return group(values, first)
        case Form.TRIPLE:
            return triple(values, first)
        case Form.TEXT_ONLY:
            return text_only(values, first)
        case _:
            return {"accuracy": choice(values, _truth(block), first)}


def _truth(block: Sequence[Case]) -> Indices:
    return np.array([case.truth for case in block], dtype=np.int64)


def _positive(form: Form, block: Sequence[Case], values: Scores) -> Scores:
    """Cosine of the matching pair; mean of the two for GROUP; the original caption for TRIPLE."""
    if form is Form.GROUP:
        return (values[:, 0, 0] + values[:, 1, 1]) / np.float32(2)
    truth = _truth(block) if form in (Form.CHOOSE_TEXT, Form.CHOOSE_IMAGE) else 0
    picked: Scores = values[np.arange(len(block)), truth]
    return picked


def _overlay(parts: Sequence[Outcomes]) -> Outcomes:
    """One Outcomes out of several that apply to different cases."""
    merged = {}
    for name in ("used", "strict", "fractional", "chance"):
        out = getattr(parts[0], name).copy()
        for part in parts[1:]:
            values = getattr(part, name)
            out = np.where(np.isnan(values), out, values)
        merged[name] = out
    return Outcomes(**merged)
