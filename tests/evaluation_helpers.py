"""Small encoders and features with known scores for the tests of the evaluation room."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compoclip.archives import Members
from compoclip.benchmarks.case import (
    Aggregate,
    Benchmark,
    Case,
    Cases,
    Content,
    Form,
    ImageRef,
    Listed,
)
from compoclip.errors import CompoclipError
from compoclip.evaluation.aggregate import evaluate, plan
from compoclip.evaluation.comparison import Comparison, compare_all
from compoclip.evaluation.encoder import Encoder, Pending, Precision, TextKey
from compoclip.evaluation.forms import score
from compoclip.evaluation.items import EncodedFeatures, Items
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options
from compoclip.evaluation.run import evaluate as measure
from compoclip.evaluation.statistics import Bootstrap
from compoclip.models.config import ModelIdentity

TINY: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "patch_size": 16, "head_width": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}
"""A configuration of the smallest models."""


def ref(name: str) -> ImageRef:
    return ImageRef(Path(name))


def features_from(scores: Mapping[str | ImageRef, dict[str, float]]) -> EncodedFeatures:
    """Features with s(image, text) = scores[image][text]: images are one-hot vectors."""
    images = list(scores)
    texts = list(dict.fromkeys(text for row in scores.values() for text in row))
    matrix = np.array([[scores[i].get(t, 0.0) for i in images] for t in texts], dtype=np.float32)
    return EncodedFeatures(
        images=np.eye(len(images), dtype=np.float32),
        image_rows={ref(n) if isinstance(n, str) else n: k for k, n in enumerate(images)},
        texts=matrix,
        text_rows={text: k for k, text in enumerate(texts)},
        bad={},
        truncated=frozenset(),
    )


def features_of(
    content: Sequence[Case] | Content, images: np.ndarray, texts: np.ndarray
) -> EncodedFeatures:
    """Features for all images and texts of some content, taken in order from the given arrays."""
    held = content if isinstance(content, Content) else Cases(content)
    refs, words = list(dict.fromkeys(held.images)), list(dict.fromkeys(held.texts))
    return EncodedFeatures(
        images=images[: len(refs)],
        image_rows={r: k for k, r in enumerate(refs)},
        texts=texts[: len(words)],
        text_rows={t: k for k, t in enumerate(words)},
        bad={},
        truncated=frozenset(),
    )


def score_items(
    content: Sequence[Case] | Content, features: EncodedFeatures, **fields: Any
) -> Items:
    """The scored items of a benchmark that holds `content` and has these fields besides."""
    held = tuple(content) if isinstance(content, Sequence) else content
    return score(Benchmark("made", held, "0", **fields), features)


def unit(rng: np.random.Generator, n: int, width: int = 16) -> np.ndarray:
    """n random unit vectors, float32."""
    x = rng.normal(size=(n, width))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def rule_value(
    rule: Aggregate, table: Mapping[str, Sequence[tuple[float, Mapping[str, str]]]]
) -> float:
    """The rule on hand-made items: sub-task -> (value, labels) of each of its items."""
    rows = [(name, *item) for name, items in table.items() for item in items]
    names = {rule.metric or "main", *(p.metric or "main" for p in _nested(rule))}
    applies = {name: np.ones(len(rows), dtype=bool) for name in names}
    tree = plan(rule, Listed([r[0] for r in rows], [r[2] for r in rows]), applies, "main")
    assert tree is not None
    return evaluate(tree, {name: np.array([row[1] for row in rows]) for name in names})


def _nested(rule: Aggregate) -> list[Aggregate]:
    inner = [part for part in rule.parts if isinstance(part, Aggregate)]
    return inner + [each for part in inner for each in _nested(part)]


def flat(scores: Mapping[str, float], counts: Mapping[str, int] | None = None) -> Any:
    """A table for `rule_value`: items without labels that all have their sub-task's score."""
    counts = counts or {}
    return {name: [(value, {})] * counts.get(name, 2) for name, value in scores.items()}


def all_forms(n: int) -> list[Case]:
    """n cases of every form."""
    cases = []
    for k in range(n):
        one, two = ref(f"i{k}.jpg"), ref(f"j{k}.jpg")
        texts = (f"a{k}", f"b{k}", f"c{k}")
        cases += [
            Case(f"t{k}", Form.CHOOSE_TEXT, (one,), texts, "text"),
            Case(f"i{k}", Form.CHOOSE_IMAGE, (one, two), texts[:1], "image"),
            Case(f"g{k}", Form.GROUP, (one, two), texts[:2], "group"),
            Case(f"p{k}", Form.TRIPLE, (one,), texts, "triple"),
            Case(f"o{k}", Form.TEXT_ONLY, (), texts, "only"),
        ]
    return cases


def choices(refs: Iterable[ImageRef], texts: tuple[str, ...] = ("x", "y")) -> Cases:
    """A choice among the same texts for each image."""
    return Cases(Case(str(k), Form.CHOOSE_TEXT, (r,), texts, "s") for k, r in enumerate(refs))


class FakeEncoder:
    """Features drawn from a hash of the file name, or of the lower-cased text (its "tokens").

    Counts what it encodes; `broken` names files that cannot be read; raises KeyboardInterrupt
    after `stop_after` image batches.
    """

    def __init__(self, weights: str = "w", width: int = 12, quality: float = 0.0) -> None:
        self.identity = ModelIdentity(
            "fake", "gelu", "t", 5, (2, 2), (0.5,), (0.5,), "bicubic", "squash", "", "", weights
        )
        self.precision: Precision = "fp32"
        self.device = torch.device("cpu")
        self.width = width
        self.quality = quality
        self.broken: set[str] = set()
        self.stop_after: int | None = None
        self.images_seen: list[str] = []
        self.texts_seen: list[str] = []
        self.batches: list[int] = []

    def _feature(self, name: str) -> np.ndarray:
        seed = zlib.crc32(f"{self.identity.weights}/{name}".encode())
        feature = np.random.default_rng(seed).normal(size=self.width)
        if self.quality:  # names that end in the same word after "_" are pulled together
            topic = np.random.default_rng(zlib.crc32(name.rsplit("_", 1)[-1].encode()))
            feature = feature + self.quality * topic.normal(size=self.width)
        return (feature / np.linalg.norm(feature)).astype(np.float32)

    def tower_weights(self, tower: str) -> str:
        return self.identity.weights

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def start_texts(self, texts: Sequence[str]) -> Pending:
        features = self.encode_texts(texts)
        return lambda: features

    def start_images(self, images: Sequence[ImageRef]) -> Pending:
        features = self.encode_images(images)
        return lambda: features

    def text_keys(self, texts: Sequence[str]) -> list[TextKey]:
        return [TextKey(t.lower().encode(), len(t.split()), len(t.split()) > 5) for t in texts]

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        self.texts_seen += texts
        return np.stack([self._feature(text.lower()) for text in texts])

    def read_image(self, ref: ImageRef) -> ImageRef:
        if ref.path.name in self.broken:
            raise CompoclipError(f"{ref.path}: damaged image; replace or remove it")
        return ref

    def encode_images(self, images: Sequence[ImageRef]) -> np.ndarray:
        if self.stop_after is not None and len(self.batches) >= self.stop_after:
            raise KeyboardInterrupt
        self.batches.append(len(images))
        self.images_seen += [f"{r.path.name}{r.box or ''}" for r in images]
        return np.stack([self._feature(r.path.stem) for r in images])


class Scripted(FakeEncoder):
    """Right on the items of `choice_benchmark` whose numbers are in `right`."""

    def __init__(self, name: str, right: Collection[int]) -> None:
        super().__init__(weights=name)
        self.right = right

    def _feature(self, name: str) -> np.ndarray:
        one, two = np.eye(2, dtype=np.float32)
        if name.startswith("photo"):
            return one
        number = int(name.split()[1].split("_")[0])
        return one if name.startswith("right") == (number in self.right) else two


class OfBytes(FakeEncoder):
    """Features of a picture that depend on its bytes alone."""

    def encode_images(self, images: Sequence[ImageRef]) -> np.ndarray:
        read = Members()
        stored = [read(i.path, i.member) if i.member else i.path.read_bytes() for i in images]
        return np.stack([self._feature(data.hex()) for data in stored])


def photos(folder: Path, names: Sequence[str]) -> dict[str, ImageRef]:
    """Files that exist, with distinct bytes; name -> reference."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (folder / f"{name}.jpg").exists():  # a file that is written again has another time
            (folder / f"{name}.jpg").write_bytes(name.encode())
    return {name: ImageRef(folder / f"{name}.jpg") for name in names}


def choice_benchmark(
    folder: Path, n: int = 30, shared: int = 0, name: str = "toy", **changes: Any
) -> Benchmark:
    """Two sub-tasks of two-way cases on existing files; truth is text 0, topic = photo."""
    count = shared or n
    refs = photos(folder, [f"photo{k}_t{k}" for k in range(count)])
    images = list(refs.values())
    cases = tuple(
        Case(
            f"{k}",
            Form.CHOOSE_TEXT,
            (images[k % count],),
            (f"right {k}_t{k % count}", f"wrong {k}_x{k}"),
            ("even", "odd")[k % 2],
        )
        for k in range(n)
    )
    return replace(Benchmark(name=name, content=cases, data_hash="d1"), **changes)


def measured(
    folder: Path, name: str, right: Iterable[int], *benchmarks: Benchmark, **options: Any
) -> list[Results]:
    """Measure a model that is right on items of these numbers in every `choice_benchmark`."""
    settings = Options(**{"resamples": 50, **options})
    return measure(name, Scripted(name, {*right}), benchmarks, folder / "out", settings)


def results_of(
    benchmark: Benchmark, out: Path, encoder: Encoder | None = None, **options: Any
) -> Results:
    """Measure a model on all or a part of a benchmark, with few resamples."""
    settings = Options(**{"resamples": 20, "allow_partial": True, **options})
    (result,) = measure("m", encoder or FakeEncoder(), [benchmark], out, settings)
    return result


def right_items(even: int, odd: int) -> set[int]:
    """The numbers of so many items of each sub-task of a `choice_benchmark`."""
    return {*range(0, 2 * even, 2), *range(1, 2 * odd, 2)}


def bootstrap_means(
    values: np.ndarray, clusters: np.ndarray, resamples: int, seed: int = 0
) -> np.ndarray:
    """The mean in every resample: whole clusters drawn one resample at a time, items listed."""
    members: dict[object, list[float]] = {name: [] for name in sorted(set(clusters.tolist()))}
    for value, cluster in zip(values.tolist(), clusters.tolist()):
        members[cluster].append(value)
    names, rng = list(members), np.random.default_rng(seed)
    draws = (rng.integers(len(names), size=len(names)) for _ in range(resamples))
    return np.array([np.mean([v for k in draw for v in members[names[k]]]) for draw in draws])


def compare(
    base: Sequence[Results], other: Sequence[Results], resamples: int = 2000, seed: int = 0
) -> Comparison:
    """Compare a single model with a base."""
    (comparison,) = compare_all(base, [other], Bootstrap(resamples, seed))
    return comparison
