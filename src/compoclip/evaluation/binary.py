"""True-or-false cases: ROC-AUC of the cosine, and accuracy at a threshold tuned on other cases.

A cosine has no natural threshold, so a dual encoder cannot say yes or no by itself. The area under
the ROC curve needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compoclip.benchmarks.case import Case, Form
from compoclip.benchmarks.names import image_key
from compoclip.errors import CompoclipError
from compoclip.evaluation.curves import balanced_threshold, placements
from compoclip.evaluation.features import Features
from compoclip.evaluation.items import Items
from compoclip.evaluation.outcomes import Flags, Indices, Outcomes, Scores, Values
from compoclip.evaluation.score import candidates


def score_binary(
    cases: Sequence[Case], features: Features, tuned_on: Mapping[str, str] | None = None
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


def _cosines(cases: Sequence[Case], features: Features) -> Scores:
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
