"""Evaluation during training: when to measure, which weights to keep, when to stop.

The caller measures (`run.train` measures benchmarks); this module sees names and numbers. Weights
that may be the best are in OUT/best until the run is done. All decisions depend on the measured
numbers, which are part of a run's state, so that a resumed run decides alike.
"""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from compoclip.errors import CompoclipError
from compoclip.files import reason, write_atomically
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.settings import WatchSettings


@dataclass(frozen=True)
class WatchedScore:
    """A score during training: the value, its 95 % interval (or None), and chance.

    All are in [0, 1]; higher is better.
    """

    value: float
    low: float | None
    high: float | None
    chance: float


Measure = Callable[[int], Mapping[str, WatchedScore]]
"""Measures the model after a step and returns scores by name, including `keep_best`. All ranks
call it together; only rank 0 needs to return scores."""


class Watch:
    """Measures a model during training, keeps the weights that may be best, may end the run.

    Args:
        settings: When to measure, which weights to keep, and the patience.
        about: JSON-ready description of the benchmarks, recorded with the checkpoint. If
            measurements choose weights, a resumed run must not change it.
        unrecorded: Further facts that such a run must not change.
    """

    def __init__(
        self,
        settings: WatchSettings,
        measure: Measure,
        out: Path,
        about: Mapping[str, Any],
        ranks: Ranks = SINGLE,
        unrecorded: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.settings, self.about = settings, dict(about)
        self._unrecorded = unrecorded
        self._measure, self._folder, self._ranks = measure, out / "best", ranks
        self._measured: dict[int, dict[str, float]] = {}
        self._in_state: int | None = None  # the best step of the state on disk

    def decisive(self) -> dict[str, Any]:
        """Return the settings a resumed run must share: none unless measurements choose weights."""
        if not self.settings.keep_best:
            return {}
        rule = {n: getattr(self.settings, n) for n in ("eval_every", "keep_best", "patience")}
        return {"watch": {**rule, **self.about, **self._unrecorded}}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Restore the state of a run; the state of a new run is empty.

        Raise CompoclipError when kept weights are missing.
        """
        self._measured = {int(step): dict(values) for step, values in state.items()}
        self._in_state = self.best()
        if self._in_state is not None and not (path := self.weights(self._in_state)).is_file():
            raise CompoclipError(
                f"{path}: is missing, and it may be the best model; start without --resume"
            )

    def state(self) -> dict[str, dict[str, float]]:
        """Return the argument of `restore`. Called when a state is written; keeps its weights."""
        self._in_state = self.best()
        return {str(step): values for step, values in self._measured.items()}

    def due(self, step: int, total: int) -> bool:
        """Return whether to measure after `step` of `total` steps (0: the untrained model)."""
        return step == 0 or due(step, self.settings.eval_every, total)

    def look(self, step: int, network: nn.Module) -> dict[str, Any]:
        """Measure the model after a step, and keep its weights if they may be the best.

        All ranks must call it. It does not change training: random states and the mode of every
        module are restored. Returns the record for the log: scores by name under "eval", and the
        seconds it took.
        """
        start = time.monotonic()
        with undisturbed(next(network.parameters()).device):
            local_scores = {name: asdict(score) for name, score in self._measure(step).items()}
        scores: dict[str, dict[str, float]] = self._ranks.exchange(local_scores)[0]
        self._measured[step] = {name: score["value"] for name, score in scores.items()}
        with self._ranks.agreed():
            if self._ranks.first and self.settings.keep_best:
                if step == self.best():
                    tensors = {
                        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
                        for name, tensor in network.state_dict().items()
                    }
                    write_atomically(self.weights(step), lambda place: save_file(tensors, place))
                needed = {self.weights(n) for n in (self.best(), self._in_state) if n is not None}
                for path in {*self._folder.glob("step-*.safetensors")} - needed:
                    path.unlink(missing_ok=True)
        return {"step": step, "eval": scores, "eval_seconds": round(time.monotonic() - start, 3)}

    def weights(self, step: int) -> Path:
        """Return the file of the kept weights of a step."""
        return self._folder / f"step-{step:08d}.safetensors"

    def best(self) -> int | None:
        """Return the best step, the newest of equal ones; None without --keep-best."""
        values = self._values()
        return max(values, key=lambda step: (values[step], step), default=None)

    def over(self) -> bool:
        """Return whether the run ends: no improvement during --patience."""
        return 0 < self.settings.patience <= waited(self._values())

    def report(self) -> dict[str, Any] | None:
        """Return the summary's line about the best step; None if no step is kept."""
        if (best := self.best()) is None:
            return None
        name, values = self.settings.keep_best, self._values()
        base = self._measured.get(0, {}).get(name)
        return {
            "step": best,
            "by": name,
            "score": values[best],
            "base": base,
            "measured": len(values),
        }

    def restored(self, network: nn.Module, step: int) -> None:
        """Load the kept weights of a step into a network. Raises CompoclipError."""
        try:
            network.load_state_dict(load_file(self.weights(step)))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise CompoclipError(
                f"{self.weights(step)}: cannot be read ({reason(error)}); start without --resume"
            ) from error

    def clear(self) -> None:
        """Delete the kept weights, once the result is written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _values(self) -> dict[int, float]:
        """Return step -> the score that decides; the model before the first step is no result."""
        name = self.settings.keep_best
        return {step: scores[name] for step, scores in self._measured.items() if step and name}


def due(step: int, every: int, total: int) -> bool:
    """Return whether a step is one of every N, or the last."""
    return step == total or (every > 0 and step % every == 0)


def waited(values: Mapping[int, float]) -> int:
    """Count the measurements (step -> score) since the last one that was better than all before
    it.
    """
    since, best = 0, -math.inf
    for step in sorted(values):
        since = 0 if values[step] > best else since + 1
        best = max(best, values[step])
    return since


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Inside the block random numbers may be drawn; after it generators are as they were."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
