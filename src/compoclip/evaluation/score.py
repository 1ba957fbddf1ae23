"""Scores and outcomes of cases (choice, group, triple, text-only), vectorised by form.

Binary cases are judged together and not one by one: see below.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compoclip.benchmarks.case import METRICS, Case, Form, TiePolicy, image_key
from compoclip.errors import CompoclipError
from compoclip.evaluation.classification import balanced_threshold, placements
from compoclip.evaluation.clusters import case_clusters
from compoclip.evaluation.items import (
    BUCKETS,
    EncodedFeatures,
    Flags,
    Indices,
    Items,
    Outcomes,
    Scores,
    Values,
    choice,
    cosines,
    group,
    text_only,
    triple,
    triple_bucket,
)


def score_cases(
    cases: Sequence[Case], features: EncodedFeatures, ties: Mapping[str, TiePolicy] | None = None
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


def _block_scores(form: Form, block: Sequence[Case], features: EncodedFeatures) -> Scores:
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


# --- Metrics of groups of items: a group is right when all of its items are. ---

Sizes = Mapping[tuple[str, str, str], int]
"""(metric, sub-task, label value) -> items of the whole group."""


def group_sizes(cases: Iterable[Case], joint: Mapping[str, str]) -> Sizes:
    """How many cases every group has; joint: metric -> case label, see `Benchmark`."""
    return Counter(
        (metric, case.subtask, case.labels[label])
        for case in cases
        for metric, label in joint.items()
        if label in case.labels
    )


def groups_by_part(sizes: Sizes) -> dict[str, int]:
    """ "sub-task/metric" -> number of groups."""
    return dict(Counter(f"{subtask}/{metric}" for metric, subtask, _ in sizes))


def with_joint(items: Items, joint: Mapping[str, str], sizes: Sizes) -> Items:
    """The items with one more metric for each entry of `joint`.

    A group's outcome is the product of its items' main outcomes (with random ties and for chance
    their probabilities, the items being independent). The group's first item bears it, the metric
    does not apply to the others. Groups of which an item is absent, by `sizes`, are left out.
    """
    main = next(iter(items.outcomes.values()))
    outcomes = dict(items.outcomes)
    for metric, label in joint.items():
        groups: dict[tuple[str, str, str], list[int]] = {}
        for row, (subtask, labels) in enumerate(zip(items.subtasks, items.labels)):
            if label in labels:
                groups.setdefault((metric, subtask, labels[label]), []).append(row)
        whole = [np.array(rows) for key, rows in groups.items() if len(rows) == sizes[key]]
        outcomes[metric] = _products(main, whole, len(items))
    return replace(items, outcomes=outcomes)


def _products(main: Outcomes, groups: list[Indices], n: int) -> Outcomes:
    def spread(values: Values) -> Values:
        out = np.full(n, np.nan)
        for rows in groups:
            out[rows[0]] = values[rows].prod()
        return out

    return Outcomes(
        used=spread(main.used),
        strict=spread(main.strict),
        fractional=spread(main.fractional),
        chance=spread(main.chance),
    )


# --- True-or-false cases: ROC-AUC of the cosine, and accuracy at a threshold tuned on other
# cases. ---
#
# A cosine has no natural threshold, so a dual encoder cannot say yes or no by itself. The area
# under the ROC curve needs none.


def score_binary(
    cases: Sequence[Case], features: EncodedFeatures, tuned_on: Mapping[str, str] | None = None
) -> Items:
    """Score BINARY cases. tuned_on: see `Benchmark`; its values' cases only set thresholds.

    The outcome "auc" of an item is the share of its sub-task's items of the other kind on its right
    side; "accuracy", only for sub-tasks with a threshold, says whether it is on the right side of
    that. Items carry the column "threshold" (nan without one). Raises CompoclipError for cases of
    other forms, and for sub-tasks without a true or without a false case.
    """
    other = next((case for case in cases if case.form is not Form.BINARY), None)
    if other is not None:
        raise CompoclipError(
            f"item '{other.id}' of sub-task '{other.subtask}' is a {other.form} item among binary "
            "ones; a benchmark with binary items can have no others"
        )
    for case in cases:
        candidates(case)
    scores = _cosines(cases, features)
    truth = np.array([case.truth == 1 for case in cases], dtype=bool)
    rows_of = _rows(cases, truth, tuned_on or {})
    thresholds = {
        part: balanced_threshold(scores[rows_of[dev]], truth[rows_of[dev]])
        for part, dev in (tuned_on or {}).items()
        if part in rows_of
    }
    scored = [part for part in rows_of if part not in (tuned_on or {}).values()]
    kept = np.sort(np.concatenate([rows_of[part] for part in scored]))
    n = len(cases)
    limits = np.full(n, np.nan)
    auc = Outcomes(*(np.full(n, np.nan) for _ in range(4)))
    for part in scored:
        rows = rows_of[part]
        limits[rows] = thresholds.get(part, np.nan)
        auc.used[rows] = auc.fractional[rows] = placements(scores[rows], truth[rows])
        auc.strict[rows] = placements(scores[rows], truth[rows], tie=0.0)
        auc.chance[rows] = 0.5
    right = np.where(np.isnan(limits), np.nan, (scores > limits) == truth)
    accuracy = Outcomes(right, right, right, _constant(rows_of, scored, truth, limits))
    outcomes = {"auc": auc} | ({"accuracy": accuracy} if thresholds else {})
    block = [cases[row] for row in kept]
    return Items(
        ids=[case.id for case in block],
        forms=[str(case.form) for case in block],
        subtasks=[case.subtask for case in block],
        labels=[case.labels for case in block],
        truth=[case.truth for case in block],
        images=[tuple(image_key(ref) for ref in case.images) for case in block],
        texts=[case.texts for case in block],
        scores=[[float(score)] for score in scores[kept]],
        clusters=[case.images[0].photo for case in block],
        positive=np.where(truth, scores, np.nan)[kept].astype(np.float64),
        outcomes={name: each.take(kept) for name, each in outcomes.items()},
        extra={"threshold": limits[kept].tolist()} if thresholds else {},
    )


def _constant(
    rows_of: Mapping[str, Indices], scored: Sequence[str], truth: Flags, limits: Values
) -> Values:
    """Where the same answer to all items of a sub-task is right, the one that is right more often.

    A score without any knowledge can be a constant, whose accuracy is the share of the kind it is
    on the side of, or random, with 1/2; so the accuracy to beat is the share of the more frequent
    kind, and the mean of the accuracies of true and of false items (balanced accuracy) has 1/2.
    """
    right = np.full(len(truth), np.nan)
    for part in scored:
        rows = rows_of[part]
        mostly = truth[rows].mean() >= 0.5
        right[rows] = truth[rows] == mostly
    return np.where(np.isnan(limits), np.nan, right)


def _cosines(cases: Sequence[Case], features: EncodedFeatures) -> Scores:
    images = features.image_index(case.images[0] for case in cases)
    texts = features.text_index(case.texts[0] for case in cases)
    return features.scores(images, texts)


def _rows(cases: Sequence[Case], truth: Flags, tuned_on: Mapping[str, str]) -> dict[str, Indices]:
    """Rows of each sub-task, all of which must have true and false cases."""
    names = np.asarray([case.subtask for case in cases], dtype=object)
    found = {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
    needed = {dev: part for part, dev in tuned_on.items() if part in found}
    for name in (*found, *needed):
        kinds = truth[found[name]] if name in found else np.empty(0, dtype=bool)
        if kinds.all() or not kinds.any():
            purpose = f", which set the threshold of '{needed[name]}'," if name in needed else ""
            raise CompoclipError(
                f"sub-task '{name}': among the {len(kinds)} items{purpose} there must be true and "
                "false ones; get their images and the whole annotation file"
            )
    return found
