"""Bounds to read a suite's numbers against: the oracle, the text alone, and the untrained model.

- ORACLE looks at the scene behind a picture: a caption that is true of it scores 1, a false one 0,
  any other 1/2. It is what a model without a fault reaches; below 100 the suite is at fault. It
  measures items of few pictures and texts. In the sets for retrieval and zero-shot classification
  every picture has captions and a class that are true of it alone, so that 100 is what the oracle
  reaches there by construction, and nothing is measured.
- TEXT_ONLY never looks at a picture (`evaluation.blind`). What it reaches above chance, a suite's
  texts give away.
- UNTRAINED is the architecture of a model with random weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from compoclip.benchmarks.case import Benchmark, ImageRef
from compoclip.errors import CompoclipError
from compoclip.evaluation.blind import ConstantEncoder, TextOnlyEncoder
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.items import Scores
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip_world.export.suite import SCENES, read_scenes
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.scene import Scene

ORACLE, TEXT_ONLY, UNTRAINED = "oracle", "text only", "untrained"
BOUNDS = (ORACLE, TEXT_ONLY, UNTRAINED)
_WORTH = {Truth.TRUE: 1.0, Truth.FALSE: 0.0}


class OracleEncoder(ConstantEncoder):
    """Answers for pairs of pictures and texts from the scenes behind a suite's pictures. Raises
    CompoclipError when the suite has no file of scenes."""

    def __init__(self, suite: Path) -> None:
        self._root = suite.resolve()
        self._scenes: Mapping[str, Scene] = read_scenes(suite)
        self._oracle = Oracle()
        content = (suite / SCENES).read_bytes().hex().encode()
        super().__init__(ORACLE, hashlib.blake2b(content, digest_size=16).hexdigest())

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
