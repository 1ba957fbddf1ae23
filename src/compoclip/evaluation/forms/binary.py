"""True-or-false cases: ROC-AUC of the score, and accuracy at a threshold tuned on other cases.

A cosine has no natural threshold, so a dual encoder cannot say yes or no by itself. The area under
the ROC curve needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compoclip.benchmarks.case import Benchmark, Case, Cases, Form
from compoclip.errors import CompoclipError
from compoclip.evaluation.curves import balanced_threshold, placements
from compoclip.evaluation.forms.form import CaseForm, Record, ShownItem
from compoclip.evaluation.items import EncodedFeatures, Flags, Indices, Items, Outcomes, Values


class BinaryForm(CaseForm):
    """One image and one text that is true of it or not.

    auc: the area under the ROC curve of the score, chance 1/2. accuracy: true above the threshold
    that is best for the cases of `Benchmark.tuned_on`, where the benchmark names some; chance: the
    share of the more frequent kind, which one answer to all cases reaches. The mean of the
    accuracies of true and of false cases (balanced accuracy, chance 1/2) is an aggregate by the
    label that tells them apart.
    """

    name = Form.BINARY
    metrics = ("auc", "accuracy")

    def shape(self, images: Any, texts: Any) -> tuple[Any, Any, Any]:
        """One of each, two answers, one score."""
        return (images == 1) & (texts == 1), 2, 1

    def items(self, content: Cases, features: EncodedFeatures, benchmark: Benchmark) -> Items:
        """Score the cases. Those of the values of `Benchmark.tuned_on` only set thresholds.

        The outcome "auc" of an item is the share of its sub-task's items of the other kind on its
        right side; "accuracy", only for sub-tasks with a threshold, says whether it is on the right
        side of that. Items carry the column "threshold" (nan without one).

        Raises:
            CompoclipError: there are cases of other forms, or a sub-task has no true or no false
                case.
        """
        other = next((case for case in content if case.form is not self.name), None)
        if other is not None:
            raise CompoclipError(
                f"item '{other.id}' of sub-task '{other.subtask}' is a {other.form} item among "
                "binary ones; a benchmark with binary items can have no others"
            )
        for case in content:
            self.candidates(case)
        scores = features.scores(
            features.image_index(content.images), features.text_index(content.texts)
        )
        truth = np.array([case.truth == 1 for case in content], dtype=bool)
        rows_of = _rows(content, truth, benchmark.tuned_on)
        thresholds = {
            part: balanced_threshold(scores[rows_of[dev]], truth[rows_of[dev]])
            for part, dev in benchmark.tuned_on.items()
            if part in rows_of
        }
        scored = [part for part in rows_of if part not in benchmark.tuned_on.values()]
        kept = np.sort(np.concatenate([rows_of[part] for part in scored]))
        limits = np.full(len(content), np.nan)
        auc = Outcomes.nowhere(len(content))
        for part in scored:
            rows = rows_of[part]
            limits[rows] = thresholds.get(part, np.nan)
            auc.used[rows] = auc.fractional[rows] = placements(scores[rows], truth[rows])
            auc.strict[rows] = placements(scores[rows], truth[rows], tie=0.0)
            auc.chance[rows] = 0.5
        right = np.where(np.isnan(limits), np.nan, (scores > limits) == truth)
        accuracy = Outcomes(right, right, right, _constant(rows_of, scored, truth, limits))
        outcomes = {"auc": auc} | ({"accuracy": accuracy} if thresholds else {})
        return Items.of_cases(
            [content[row] for row in kept],
            scores=[[float(score)] for score in scores[kept]],
            positive=np.where(truth, scores, np.nan)[kept].astype(np.float64),
            outcomes={metric: each.take(kept) for metric, each in outcomes.items()},
            extra={"threshold": limits[kept].tolist()} if thresholds else {},
        )

    def margin(self, scores: Sequence[float], truth: int) -> float:
        """None: an item has one score."""
        return float("nan")

    def shown(self, row: Record, wrong: Record) -> ShownItem:
        """The photo, and the text with what is true of it."""
        said, true = ("True", True) if row["truth"] else ("False", False)
        texts = [(said, row["texts"][0], true)]
        return ShownItem([("Photo", row["images"][0])], texts, [("cosine", 0)])


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
