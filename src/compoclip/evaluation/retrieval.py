"""Image-text retrieval both ways: R@1, R@5, R@10 from exact ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compoclip.benchmarks.case import Retrieval, TiePolicy
from compoclip.benchmarks.names import image_key, image_names, text_names
from compoclip.evaluation.clusters import linked
from compoclip.evaluation.features import Features
from compoclip.evaluation.items import Items
from compoclip.evaluation.outcomes import Outcomes
from compoclip.evaluation.ranking import Ranks, rank

CUTS = (1, 5, 10)


def score_retrieval(
    content: Retrieval, features: Features, ties: Mapping[str, TiePolicy] | None = None
) -> Items:
    """Rank all texts for each image ("i2t": hit if any matching text is among the k best) and all
    images for each text ("t2i").

    The items are the queries that have a match; candidates without one stay in the gallery as
    distractors. The default tie policy is index order ("first").
    """
    policies = ties or {}
    texts_of: dict[int, list[int]] = {}
    images_of: dict[int, list[int]] = {}
    for image, text in content.pairs:
        texts_of.setdefault(image, []).append(text)
        images_of.setdefault(text, []).append(image)
    images = features.images[features.image_index(content.images)]
    texts = features.texts[features.text_index(content.texts)]
    asked_images, asked_texts = sorted(texts_of), sorted(images_of)
    i2t = rank(images[asked_images], texts, [sorted(set(texts_of[i])) for i in asked_images])
    t2i = rank(texts[asked_texts], images, [sorted(set(images_of[t])) for t in asked_texts])

    keys = [image_key(ref) for ref in content.images]
    paths = [ref.photo for ref in content.images]
    names, caption = image_names(content.images), text_names(content)
    n = len(asked_images) + len(asked_texts)
    return Items(
        ids=[names[i] for i in asked_images] + [caption[t] for t in asked_texts],
        forms=["retrieval"] * n,
        subtasks=["i2t"] * len(asked_images) + ["t2i"] * len(asked_texts),
        labels=[{}] * n,
        truth=[0] * n,
        images=[(keys[i],) for i in asked_images] + _shown(t2i, keys),
        texts=_shown(i2t, content.texts) + [(content.texts[t],) for t in asked_texts],
        scores=_scores(i2t) + _scores(t2i),
        clusters=linked(
            [[paths[i]] for i in asked_images]
            + [[paths[i] for i in images_of[t]] for t in asked_texts]
        ),
        positive=np.concatenate([i2t.best_score, t2i.best_score]).astype(np.float64),
        outcomes={
            f"r{k}": _join(
                i2t.within(k, _first(policies, "i2t")), t2i.within(k, _first(policies, "t2i"))
            )
            for k in CUTS
        },
        extra={"rank": [int(r) for r in (*i2t.rank, *t2i.rank)]},
    )


def _first(policies: Mapping[str, TiePolicy], subtask: str) -> bool:
    policy = policies.get(subtask, policies.get("", TiePolicy.FIRST))
    return policy is TiePolicy.FIRST


def _shown(ranks: Ranks, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Names of the best right candidate and of its best rival."""
    return [
        (names[best],) if rival < 0 else (names[best], names[rival])
        for best, rival in zip(ranks.best, ranks.rival)
    ]


def _scores(ranks: Ranks) -> list[Sequence[float]]:
    return [
        [float(best)] if rival < 0 else [float(best), float(score)]
        for best, rival, score in zip(ranks.best_score, ranks.rival, ranks.rival_score)
    ]


def _join(one: Outcomes, two: Outcomes) -> Outcomes:
    return Outcomes(
        used=np.concatenate([one.used, two.used]),
        strict=np.concatenate([one.strict, two.strict]),
        fractional=np.concatenate([one.fractional, two.fractional]),
        chance=np.concatenate([one.chance, two.chance]),
    )
