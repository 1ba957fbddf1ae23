"""Bounds to read a suite's numbers against: the oracle, the text alone, and the untrained model.

- ORACLE looks at the scene behind a picture: a caption that is true of it scores 1, a false one 0,
  any other 1/2. It is what a model without a fault reaches; below 100 the suite is at fault. It
  measures items of few pictures and texts. In the sets for retrieval and zero-shot classification
  every picture has captions and a class that are true of it alone, so that 100 is what the oracle
  reaches there by construction, and nothing is measured.
- TEXT_ONLY never looks at a picture. It knows the captions of a training set and prefers the text
  that is the likelier caption, by a model of three-word stretches and of where captions end. What
  it reaches above chance, a suite's texts give away.
- UNTRAINED is the architecture of a model with random weights.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compoclip.benchmarks.case import Benchmark, ImageRef
from compoclip.errors import CompoclipError
from compoclip.evaluation.encoder import ModelEncoder, Pending, Precision, TextKey
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.items import Scores
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelIdentity, Tower
from compoclip_world.export.suite import SCENES, read_scenes
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.scene import Scene

ORACLE, TEXT_ONLY, UNTRAINED = "oracle", "text only", "untrained"
BOUNDS = (ORACLE, TEXT_ONLY, UNTRAINED)
_ORDER = 3
_DOUBT = 2.0  # weight of what is known of shorter stretches, in words seen
_SPAN = 1024.0  # log-probabilities that are told apart: from here to 0
_WORTH = {Truth.TRUE: 1.0, Truth.FALSE: 0.0}


class CaptionModel:
    """How likely a text is as a caption: stretches of up to three words, counted in captions.

    A word's probability after the two before it is that of the shorter stretch, corrected by the
    counts of the longer one (interpolation with Dirichlet weights; MacKay and Peto, 1995). Every
    text ends with a mark, so that its length counts, too.
    """

    def __init__(self, captions: Iterable[str]) -> None:
        self._seen = Counter[tuple[str, ...]]()
        self._before = Counter[tuple[str, ...]]()
        for caption in captions:
            for before, word in _steps(caption):
                for start in range(_ORDER):
                    self._seen[*before[start:], word] += 1
                    self._before[before[start:]] += 1
        self._words = 1 + sum(len(stretch) == 1 for stretch in self._seen)

    def log_probability(self, text: str) -> float:
        """The natural logarithm of the probability of the words of a text and of its end; case and
        punctuation do not count."""
        return sum(math.log(self._chance(before, word)) for before, word in _steps(text))

    def _chance(self, before: tuple[str, ...], word: str) -> float:
        shorter = self._chance(before[1:], word) if before else 1.0 / self._words
        told = self._seen[*before, word] + _DOUBT * shorter
        return told / (self._before[before] + _DOUBT)

    def fingerprint(self) -> str:
        """A hash of what it has seen."""
        return _hash(repr(sorted(self._seen.items())))


def _steps(text: str) -> Iterable[tuple[tuple[str, ...], str]]:
    """Each word of a text, and its end, with the two words before it."""
    words = [*("<",) * (_ORDER - 1), *text.lower().replace(",", " ").strip(" .").split(), ">"]
    for k in range(_ORDER - 1, len(words)):
        yield tuple(words[k - _ORDER + 1 : k]), words[k]


class _Bound:
    """An encoder without a network: all pictures are one vector, and so are all texts."""

    precision: Precision = "fp32"
    device = torch.device("cpu")

    def __init__(self, name: str, weights: str) -> None:
        self.identity = ModelIdentity(
            *(name, "", "letters", 0, (0, 0), (), (), "bicubic", "shortest", "", ""), weights
        )

    def tower_weights(self, tower: Tower) -> str:
        return self.identity.weights

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def text_keys(self, texts: Sequence[str]) -> list[TextKey]:
        return [TextKey(text.encode(), len(text), False) for text in texts]

    def start_images(self, images: Sequence[Any]) -> Pending:
        return lambda: np.tile(np.array([1, 0], dtype=np.float32), (len(images), 1))

    def start_texts(self, texts: Sequence[str]) -> Pending:
        return self.start_images(texts)

    def read_image(self, ref: ImageRef) -> Any:
        return None

    def match(self, images: Sequence[Any], texts: Sequence[str], score: str = "itm") -> Scores:
        raise NotImplementedError


class TextOnlyEncoder(_Bound):
    """Gives a text the same cosine with every picture: the higher, the likelier it is among the
    captions that it knows."""

    def __init__(self, captions: Iterable[str]) -> None:
        self._model = CaptionModel(captions)
        super().__init__(TEXT_ONLY, self._model.fingerprint())

    def start_texts(self, texts: Sequence[str]) -> Pending:
        """Begin to encode texts, as points on a half circle."""
        scores = [self._model.log_probability(text) for text in texts]
        cosines = np.maximum(1 + np.array(scores) / _SPAN, -1.0)
        points = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)
        return lambda: points


class OracleEncoder(_Bound):
    """Answers for pairs of pictures and texts from the scenes behind a suite's pictures. Raises
    CompoclipError when the suite has no file of scenes."""

    def __init__(self, suite: Path) -> None:
        self._root = suite.resolve()
        self._scenes: Mapping[str, Scene] = read_scenes(suite)
        self._oracle = Oracle()
        super().__init__(ORACLE, _hash((suite / SCENES).read_bytes().hex()))

    def read_image(self, ref: ImageRef) -> Scene:
        """Return the scene of a picture. Raises CompoclipError when the suite has none."""
        path = ref.path.resolve()
        name = path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else ""
        if name not in self._scenes:
            raise CompoclipError(f"{ref.path}: no picture of {self._root}; write the suite anew")
        return self._scenes[name]

    def match(self, images: Sequence[Scene], texts: Sequence[str], score: str = "itm") -> Scores:
        """Judge N pairs of a scene and a text: (N,) of 1 true, 0 false, 1/2 neither."""
        truths = [self._oracle.verdict(t, scene).truth for scene, t in zip(images, texts)]
        return np.array([_WORTH.get(truth, 0.5) for truth in truths], dtype=np.float32)


def measure_bound(
    name: str,
    suite: Path,
    benchmarks: Sequence[Benchmark],
    captions: Iterable[str],
    model: LoadedModel,
    out: Path,
    options: Options,
) -> list[Results]:
    """Measure one of BOUNDS as `evaluate` measures a model; results go below `out`.

    ORACLE leaves out what is not items of few pictures and texts, where it reaches 100 by
    construction. captions: those that TEXT_ONLY knows. model: UNTRAINED has its architecture.
    Raises CompoclipError when the suite has no scenes, or for what `evaluate` reports.
    """
    if name == ORACLE:
        benchmarks = [b for b in benchmarks if all(FORMS[f].in_pairs for f in b.content.forms)]
        return evaluate(name, OracleEncoder(suite), benchmarks, out, replace(options, score="itm"))
    if name == TEXT_ONLY:
        return evaluate(name, TextOnlyEncoder(captions), benchmarks, out, options)
    return evaluate(name, ModelEncoder(create_model(model.config)), benchmarks, out, options)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
