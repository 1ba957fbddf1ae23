"""Zero-shot classification: class embeddings from prompts, accuracy and top-5 (BENCHMARKS 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compoclip.benchmarks.case import Classification, TiePolicy
from compoclip.errors import CompoclipError
from compoclip.evaluation.features import Features
from compoclip.evaluation.items import Items, image_key, image_names
from compoclip.evaluation.outcomes import Scores
from compoclip.evaluation.ranking import rank

SUBTASK = "zero_shot"
CLASS_LABEL = "class"


def class_embeddings(prompts: Sequence[Sequence[str]], features: Features) -> Scores:
    """(classes, D): the mean of each class's unit-length prompt features, scaled to length 1.

    Raises CompoclipError for a class without prompts.
    """
    rows = []
    for number, texts in enumerate(prompts):
        if not texts:
            raise CompoclipError(
                f"class {number} has no prompts; check the class and template file"
            )
        mean = features.texts[features.text_index(texts)].mean(axis=0, dtype=np.float32)
        rows.append(mean / np.linalg.norm(mean))
    return np.stack(rows).astype(np.float32)


def score_classification(
    content: Classification, features: Features, ties: Mapping[str, TiePolicy] | None = None
) -> Items:
    """Nearest class embedding for each image; the metrics are "accuracy" and, above five classes,
    "top5". Ties go to the first class (argmax) unless the benchmark says otherwise.

    Each item shows its true class and the best other class, and carries the label "class".
    """
    policies = ties or {}
    first = policies.get(SUBTASK, policies.get("", TiePolicy.FIRST)) is TiePolicy.FIRST
    images = features.images[features.image_index(content.images)]
    ranks = rank(
        images, class_embeddings(content.prompts, features), [[label] for label in content.labels]
    )
    outcomes = {"accuracy": ranks.within(1, first)}
    if len(content.classes) > 5:
        outcomes["top5"] = ranks.within(5, first)
    n = len(content.images)
    return Items(
        ids=image_names(content.images),
        forms=["classification"] * n,
        subtasks=[SUBTASK] * n,
        labels=[{CLASS_LABEL: content.classes[label]} for label in content.labels],
        truth=[0] * n,
        images=[(image_key(ref),) for ref in content.images],
        texts=[
            (content.classes[own],) if rival < 0 else (content.classes[own], content.classes[rival])
            for own, rival in zip(ranks.best, ranks.rival)
        ],
        scores=[
            [float(own)] if rival < 0 else [float(own), float(score)]
            for own, rival, score in zip(ranks.best_score, ranks.rival, ranks.rival_score)
        ],
        clusters=[str(ref.path) for ref in content.images],
        positive=ranks.best_score.astype(np.float64),
        outcomes=outcomes,
        extra={"rank": [int(r) for r in ranks.rank]},
    )
