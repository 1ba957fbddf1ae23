"""What a benchmark yields. No torch and no encoding here: image keys, texts, and which match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Form(StrEnum):
    """How a case is scored.

    CHOOSE_TEXT: one image, K texts. CHOOSE_IMAGE: one text, K images. GROUP: two images and two
    texts, image i matches text i. TRIPLE: one image, positive texts 0 and 1, negative text 2.
    TEXT_ONLY: no image, the same three texts.
    """

    CHOOSE_TEXT = "choose-text"
    CHOOSE_IMAGE = "choose-image"
    GROUP = "group"
    TRIPLE = "triple"
    TEXT_ONLY = "text-only"


class TiePolicy(StrEnum):
    """STRICT: a tie is wrong. FIRST: argmax of the stored order wins. See BENCHMARKS 0.2."""

    STRICT = "strict"
    FIRST = "first"


@dataclass(frozen=True, slots=True)
class ImageRef:
    """An image file and, when the benchmark crops, a pixel box (left, upper, right, lower)."""

    path: Path
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One item. `truth` is the index of the right text or image for the choice forms, else 0.

    `subtask` is the benchmark's own part (file, phenomenon); `labels` hold finer groupings, e.g.
    {"relation": "left of"}; aggregation may use them.
    """

    id: str
    form: Form
    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    subtask: str
    truth: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Image-text retrieval: `pairs` are (image index, text index) that match."""

    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Classification:
    """Zero-shot classification: one label per image, several prompts per class to be averaged.

    metric: "accuracy" or "mean-per-class".
    """

    images: tuple[ImageRef, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    prompts: tuple[tuple[str, ...], ...]
    metric: str = "accuracy"


@dataclass(frozen=True)
class Benchmark:
    """A loaded benchmark, ready to be encoded and scored.

    name: id such as "sugarcrepe". content: cases, or one retrieval or classification set.
    ties: the official tie policy, by sub-task ("" = all).
    aggregates: rule name -> how to combine sub-task scores (see evaluation.aggregate).
    skills: sub-task -> skill for the models x skills table. data_hash: over the annotation files.
    expected: items the official files hold, by sub-task, where known (coverage is used / expected).
    protocol: version of the reader, raised when its numbers change.
    """

    name: str
    content: tuple[Case, ...] | Retrieval | Classification
    data_hash: str
    ties: Mapping[str, TiePolicy] = field(default_factory=dict)
    skills: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, int] = field(default_factory=dict)
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    headline: str = "micro"
    protocol: int = 1


@dataclass(frozen=True)
class Aggregate:
    """A named rule that turns sub-task scores into one number: a tree of means.

    parts: sub-task names or nested aggregates. weighting: "macro" = plain mean of the parts,
    "micro" = mean over all items of the parts. macro_by: first average inside each value of that
    case label (e.g. "relation"), dropping groups with fewer than `min_group` cases.
    """

    parts: tuple[str | Aggregate, ...]
    weighting: str = "macro"
    macro_by: str | None = None
    min_group: int = 1
