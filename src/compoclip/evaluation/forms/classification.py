"""Zero-shot classification: every image against the classes, each the mean of its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from compoclip.benchmarks.case import (
    CLASS_LABEL,
    ZERO_SHOT,
    Aggregate,
    Benchmark,
    Classification,
    Form,
    Listed,
    image_key,
    image_names,
)
from compoclip.errors import CompoclipError, require
from compoclip.evaluation.curves import expected_ap_11, placements
from compoclip.evaluation.forms.form import ItemForm, first_wins
from compoclip.evaluation.forms.retrieval import RetrievalRanks, rank
from compoclip.evaluation.items import EncodedFeatures, Flags, Items, Outcomes, Scores, Values

_SCALE = 100.0


def class_embeddings(prompts: Sequence[Sequence[str]], features: EncodedFeatures) -> Scores:
    """(classes, D): the mean of each class's unit-length prompt features, scaled to length 1.

    Raises CompoclipError for a class without prompts.
    """
    rows = []
    for number, texts in enumerate(prompts):
        require(texts, f"class {number}", "no prompts; check the class and template file")
        mean = features.texts[features.text_index(texts)].mean(axis=0, dtype=np.float32)
        rows.append(mean / np.linalg.norm(mean))
    return np.stack(rows).astype(np.float32)


def log_odds(cosines: Scores) -> Values:
    """log(p / (1 - p)) of the softmax p over the classes of 100 * cosine; (images, classes).

    It ranks as p does, but keeps apart what would round to a p of 1. 100 is CLIP's trained
    temperature; the toolkit that defines the sets uses it for every model.
    """
    logits = _SCALE * cosines.astype(np.float64)
    odds = np.empty_like(logits)
    for k in range(logits.shape[1]):
        odds[:, k] = logits[:, k] - logsumexp(np.delete(logits, k, axis=1), axis=1)
    return odds


class ClassificationForm(ItemForm[Classification]):
    """The nearest class embedding for each image.

    accuracy, and above five classes top5: the true class is among the nearest 1 or 5, chance 1/K
    and 5/K. auc: of two classes, chance 1/2. ap11, ap11_devkit: of sets whose images show several
    classes; chance is the mean over random orders. See `Classification`.
    """

    name = Form.CLASSIFICATION
    metrics = ("accuracy", "top5", "auc", "ap11", "ap11_devkit")

    def items(
        self, content: Classification, features: EncodedFeatures, benchmark: Benchmark
    ) -> Items:
        """Score every image. Ties go to the first class (argmax) unless the benchmark disagrees.

        Each item shows its true class and the best other class, and carries the label "class". Of a
        set with the metric "auc" the items also have that, and show the log odds of class 1; of a
        set with the metric "map11" every class has an item for each image. Raises CompoclipError
        for a class without prompts, and when "auc" has nothing to tell apart.
        """
        (first,) = first_wins([ZERO_SHOT], benchmark.ties, self.ties)
        images = features.images[features.image_index(content.images)]
        classes = class_embeddings(content.prompts, features)
        if content.metric == "map11":
            return _several(content, images @ classes.T)
        ranks = rank(images, classes, [[label] for label in content.labels])
        outcomes = {"accuracy": ranks.within(1, first)}
        if len(content.classes) > 5:
            outcomes["top5"] = ranks.within(5, first)
        items = classified(self.name, content, content.listed, ranks, outcomes)
        if content.metric != "auc":
            return items
        truth = np.array(content.labels) == 1
        if len(content.classes) != 2 or not truth.any() or truth.all():
            raise CompoclipError(
                f"the area under the ROC curve: needs images of two classes, not {truth.sum()} of "
                f"{len(truth)} images in class 1 of {len(content.classes)}; get the whole set"
            )
        odds = log_odds(images @ classes.T)[:, 1].astype(np.float32)
        return replace(
            items,
            truth=truth.astype(int).tolist(),
            texts=[(content.classes[1],) for _ in odds],
            scores=[[float(score)] for score in odds],
            outcomes={"auc": _placed(odds, truth, 0.5), **items.outcomes},
        )

    def rules(
        self, content: Classification, subtasks: Sequence[str]
    ) -> tuple[dict[str, Aggregate], str]:
        """The rules of the set; the one named after the metric is quoted."""
        return content.rules(), content.metric


def classified(
    form: Form,
    content: Classification,
    listed: Listed,
    ranks: RetrievalRanks,
    outcomes: dict[str, Outcomes],
) -> Items:
    """Return an item for each image, with its true class and the best other class.

    listed: sub-task, labels and truth of each image. ranks: of the classes for each image.
    """
    names, scores = ranks.best_candidates(content.classes)
    return Items(
        ids=image_names(content.images),
        forms=[form.value for _ in content.images],
        subtasks=list(listed.subtasks),
        labels=list(listed.labels),
        truth=list(listed.truth),
        images=[(image_key(ref),) for ref in content.images],
        texts=names,
        scores=scores,
        clusters=[ref.photo for ref in content.images],
        positive=ranks.best_score.astype(np.float64),
        outcomes=outcomes,
        extra={"rank": ranks.rank.tolist()},
    )


def _several(content: Classification, cosines: Scores) -> Items:
    """An item for each class and image, class after class, to be ranked within the class."""
    n, k = len(content.images), len(content.classes)
    names = image_names(content.images)
    odds = log_odds(cosines).astype(np.float32)
    truth = np.zeros((n, k), dtype=bool)
    for row, tags in enumerate(content.tags):
        truth[row, list(tags)] = True
    chance = {
        "ap11": [expected_ap_11(count, n) for count in truth.sum(axis=0).tolist()],
        "ap11_devkit": [expected_ap_11(count, n, True) for count in truth.sum(axis=0).tolist()],
    }
    return Items(
        ids=[name for _ in range(k) for name in names],
        forms=[str(Form.CLASSIFICATION) for _ in range(n * k)],
        subtasks=[name for name in content.classes for _ in range(n)],
        labels=[{CLASS_LABEL: name} for name in content.classes for _ in range(n)],
        truth=truth.T.astype(int).ravel().tolist(),
        images=[(image_key(ref),) for _ in range(k) for ref in content.images],
        texts=[(name,) for name in content.classes for _ in range(n)],
        scores=[[float(score)] for score in odds.T.ravel()],
        clusters=[ref.photo for _ in range(k) for ref in content.images],
        positive=np.where(truth, cosines.astype(np.float64), np.nan).T.ravel(),
        outcomes={
            metric: Outcomes.stacked([_placed(odds[:, c], truth[:, c], by[c]) for c in range(k)])
            for metric, by in chance.items()
        },
    )


def _placed(scores: Scores, truth: Flags, chance: float) -> Outcomes:
    """Placements in a curve (`curves.placements`); nan without both kinds. chance: of the curve."""
    if truth.all() or not truth.any():
        return Outcomes.nowhere(len(truth))
    half = placements(scores, truth)
    return Outcomes(half, placements(scores, truth, tie=0.0), half, np.full(len(truth), chance))
