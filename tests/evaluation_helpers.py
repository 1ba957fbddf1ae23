"""Small encoders and features with known scores for the tests of the evaluation room."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compoclip.benchmarks.case import Case, Form, ImageRef
from compoclip.evaluation.features import Features


def ref(name: str) -> ImageRef:
    return ImageRef(Path(name))


def features_from(scores: dict[str, dict[str, float]]) -> Features:
    """Features with s(image, text) = scores[image][text]: images are one-hot vectors."""
    images = list(scores)
    texts = list(dict.fromkeys(text for row in scores.values() for text in row))
    matrix = np.array([[scores[i].get(t, 0.0) for i in images] for t in texts], dtype=np.float32)
    return Features(
        images=np.eye(len(images), dtype=np.float32),
        image_rows={ref(name): k for k, name in enumerate(images)},
        texts=matrix,
        text_rows={text: k for k, text in enumerate(texts)},
        bad={},
        truncated=frozenset(),
    )


def features_of(cases: Sequence[Case], images: np.ndarray, texts: np.ndarray) -> Features:
    """Features for all images and texts of `cases`, taken in order from the given arrays."""
    refs = list(dict.fromkeys(r for case in cases for r in case.images))
    words = list(dict.fromkeys(t for case in cases for t in case.texts))
    return Features(
        images=images[: len(refs)],
        image_rows={r: k for k, r in enumerate(refs)},
        texts=texts[: len(words)],
        text_rows={t: k for k, t in enumerate(words)},
        bad={},
        truncated=frozenset(),
    )


def unit(rng: np.random.Generator, n: int, width: int = 16) -> np.ndarray:
    """n random unit vectors, float32."""
    x = rng.normal(size=(n, width))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def all_forms(n: int, shared: int = 0) -> list[Case]:
    """n cases of every form; `shared` > 0 lets them share that many photos."""
    cases = []
    for k in range(n):
        photo = k % shared if shared else k
        one = ref(f"i{photo}.jpg")
        two = ref(f"j{photo}.jpg")
        texts = (f"a{k}", f"b{k}", f"c{k}")
        cases += [
            Case(f"t{k}", Form.CHOOSE_TEXT, (one,), texts, "text"),
            Case(f"i{k}", Form.CHOOSE_IMAGE, (one, two), texts[:1], "image"),
            Case(f"g{k}", Form.GROUP, (one, two), texts[:2], "group"),
            Case(f"p{k}", Form.TRIPLE, (one,), texts, "triple"),
            Case(f"o{k}", Form.TEXT_ONLY, (), texts, "only"),
        ]
    return cases
