"""The blind model: it knows captions and never looks at an image.

It prefers the text that is the likelier caption, by a model of three-word stretches and of where
captions end. What it reaches needs no image; `grounded` compares models with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from typing import Any

import numpy as np
import torch

from compoclip.benchmarks.case import ImageRef
from compoclip.errors import UsageError
from compoclip.evaluation.encoder import Pending, Precision, TextKey
from compoclip.evaluation.items import Scores
from compoclip.files import bytes_hash
from compoclip.models.config import ModelIdentity, Tower
from compoclip.models.names import BLIND

_ORDER = 3
_DOUBT = 2.0  # weight of what is known of shorter stretches, in words seen
_SPAN = 1024.0  # log-probabilities that are told apart: from here to 0


class CaptionModel:
    """How likely a text is as a caption: stretches of up to three words, counted in captions.

    A word's probability after the two before it is that of the shorter stretch, corrected by the
    counts of the longer one (interpolation with Dirichlet weights; MacKay and Peto, 1995). Every
    text ends with a mark, so that its length counts, too.
    """

    def __init__(self, captions: Iterable[str]) -> None:
        self._counts = Counter[tuple[str, ...]]()
        self._before = Counter[tuple[str, ...]]()
        for caption in captions:
            for before, word in _steps(caption):
                for start in range(_ORDER):
                    self._counts[*before[start:], word] += 1
                    self._before[before[start:]] += 1
        self._words = 1 + sum(len(stretch) == 1 for stretch in self._counts)

    def log_probability(self, text: str) -> float:
        """Return the natural logarithm of the probability of the words of a text and of its end.

        Case and punctuation do not count.
        """
        return sum(math.log(self._probability(before, word)) for before, word in _steps(text))

    def _probability(self, before: tuple[str, ...], word: str) -> float:
        shorter = self._probability(before[1:], word) if before else 1.0 / self._words
        count = self._counts[*before, word] + _DOUBT * shorter
        return count / (self._before[before] + _DOUBT)

    def fingerprint(self) -> str:
        """Return a hash of what it has seen."""
        return bytes_hash(repr(sorted(self._counts.items())).encode())


def _steps(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each word of a text, and its end, with the two words before it."""
    words = [*repeat("<", _ORDER - 1), *text.lower().replace(",", " ").strip(" .").split(), ">"]
    for k in range(_ORDER - 1, len(words)):
        yield tuple(words[k - _ORDER + 1 : k]), words[k]


class ConstantEncoder:
    """An encoder without a network: all images are one vector, and so are all texts.

    name, weights: of the identity.
    """

    precision: Precision = "fp32"
    device = torch.device("cpu")

    def __init__(self, name: str, weights: str) -> None:
        self.identity = ModelIdentity(
            *(name, "", "letters", 0, (0, 0), (), (), "bicubic", "shortest", "", ""), weights
        )

    def tower_weights(self, tower: Tower) -> str:
        """Return what tells its weights from others."""
        return self.identity.weights

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: there is no network."""
        return nullcontext()

    def text_keys(self, texts: Sequence[str]) -> list[TextKey]:
        """Return the key of each text by which equal ones are encoded once."""
        return [TextKey(text.encode(), len(text), False) for text in texts]

    def start_images(self, images: Sequence[Any]) -> Pending:
        """Begin to encode pictures, all as one vector."""
        return lambda: np.tile(np.array([1, 0], dtype=np.float32), (len(images), 1))

    def start_texts(self, texts: Sequence[str]) -> Pending:
        """Begin to encode texts, all as one vector."""
        return self.start_images(texts)

    def read_image(self, ref: ImageRef) -> Any:
        """Return nothing: no picture is read."""
        return None

    def match(self, images: Sequence[Any], texts: Sequence[str], score: str = "itm") -> Scores:
        """Raise UsageError: it has no score of pairs."""
        raise UsageError(f"{self.identity.architecture}: has no score '{score}'")


class TextOnlyEncoder(ConstantEncoder):
    """Gives a text the same cosine with every image: the higher, the likelier it is among the
    captions that it knows."""

    def __init__(self, captions: Iterable[str]) -> None:
        self._model = CaptionModel(captions)
        super().__init__(BLIND, self._model.fingerprint())

    def start_texts(self, texts: Sequence[str]) -> Pending:
        """Begin to encode texts, as points on a half circle."""
        scores = [self._model.log_probability(text) for text in texts]
        cosines = np.maximum(1 + np.array(scores) / _SPAN, -1.0)
        points = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)
        return lambda: points
