"""Evaluation while a model trains: when, which weights are kept for it, when it ends the run.

What is measured is the caller's matter (`run.train` measures benchmarks): here are names and
numbers. Weights that may be asked for at the end lie in OUT/best until the run is done. All
decisions follow from the numbers measured so far, which are part of a run's state, so that a
resumed run takes the same ones.
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
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from compoclip.errors import CompoclipError
from compoclip.files import write_atomically
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.settings import WatchSettings


@dataclass(frozen=True)
class WatchedScore:
    """A score while training: the value, its 95 % interval where it has one, and chance.

    All lie in [0, 1]; more is better.
    """

    value: float
    low: float | None
    high: float | None
    chance: float


Measure = Callable[[int], Mapping[str, WatchedScore]]
"""Measures the model as it is after a step: scores by name, that of `keep_best` among them. All
ranks call it together, and rank 0 alone need return something."""


class Watch:
    """Measures a model while it trains, keeps the weights that may turn out best, ends the run.

    Args:
        settings: When to measure, what to keep, and how long to wait for something better.
        measure: Measures the model that trains.
        out: The run folder.
        about: What is measured, in a form that JSON keeps: recorded with the checkpoint and, where
            the result depends on what is measured, part of what a resumed run must share.
        ranks: The processes that train together.
    """

    def __init__(
        self,
        settings: WatchSettings,
        measure: Measure,
        out: Path,
        about: Mapping[str, Any],
        ranks: Ranks = SINGLE,
    ) -> None:
        self.settings, self.about = settings, dict(about)
        self._measure, self._folder, self._ranks = measure, out / "best", ranks
        self._measured: dict[int, dict[str, float]] = {}
        self._needed: list[set[int]] = []  # by the states on disk: the last one and the one before

    def decisive(self) -> dict[str, Any]:
        """Return the settings a resumed run must share: none unless measurements choose weights."""
        if not self.settings.keep_best:
            return {}
        rule = {each: getattr(self.settings, each) for each in ("eval_every", "keep_best")}
        return {"watch": {**rule, "patience": self.settings.patience, **self.about}}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from the state of a run; that of a run that begins is empty.

        Raises:
            CompoclipError: When weights that it kept are gone.
        """
        self._measured = {int(step): dict(values) for step, values in state.items()}
        self._needed = [self._kept()]
        for step in self._kept():
            if not self.weights(step).is_file():
                raise CompoclipError(
                    f"{self.weights(step)}: gone, and it may be the best; start without --resume"
                )

    def state(self) -> dict[str, dict[str, float]]:
        """Return the argument of `restore`. Called when a state is written; keeps its weights."""
        self._needed = [*self._needed[-1:], self._kept()]
        return {str(step): values for step, values in self._measured.items()}

    def due(self, step: int, total: int) -> bool:
        """Return whether to measure after `step` of `total` steps (0: the untrained model)."""
        every = self.settings.eval_every
        return step in (0, total) or (every > 0 and step % every == 0)

    def look(self, step: int, network: nn.Module) -> dict[str, Any]:
        """Measure the model after a step, and keep its weights if they may turn out best.

        All ranks must call it. Training goes on as if it had not been called: random states and the
        mode of every module are what they were. Returns the record for the log: scores by name
        under "eval", and the seconds it took.
        """
        start = time.monotonic()
        with undisturbed(next(network.parameters()).device):
            own = {name: asdict(each) for name, each in self._measure(step).items()}
        found: dict[str, dict[str, float]] = self._ranks.exchange(own)[0]
        self._measured[step] = {name: each["value"] for name, each in found.items()}
        with self._ranks.agreed():
            if self._ranks.first and self.settings.keep_best:
                kept = self._kept()
                if step in kept:
                    tensors = {
                        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
                        for name, tensor in network.state_dict().items()
                    }
                    write_atomically(self.weights(step), lambda place: save_file(tensors, place))
                needed = set(map(self.weights, kept.union(*self._needed)))
                for path in {*self._folder.glob("step-*.safetensors")} - needed:
                    path.unlink(missing_ok=True)
        return {"step": step, "eval": found, "eval_seconds": round(time.monotonic() - start, 3)}

    def weights(self, step: int) -> Path:
        """The file of the weights that are kept of a step."""
        return self._folder / f"step-{step:08d}.safetensors"

    def _kept(self) -> set[int]:
        return set() if (best := self.best()) is None else {best}

    def best(self) -> int | None:
        """Return the best step, of equal ones the newest; None without --keep-best."""
        values = self._values()
        return max(values, key=lambda step: (values[step], step), default=None)

    def over(self) -> bool:
        """Return whether the run ends here: nothing better for as long as its patience lasts."""
        return 0 < self.settings.patience <= waited(self._values())

    def told(self) -> dict[str, Any] | None:
        """Return the summary's line about the best step; None if no step is kept."""
        if (best := self.best()) is None:
            return None
        name, first = self.settings.keep_best, self._measured.get(0, {})
        return {
            "step": best,
            "by": name,
            "score": self._measured[best][name],
            "base": first.get(name),
            "measured": len(self._values()),
        }

    def restored(self, network: nn.Module, step: int) -> None:
        """Give a network the weights that were kept of a step. Raises CompoclipError."""
        try:
            network.load_state_dict(load_file(self.weights(step)))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise CompoclipError(
                f"{self.weights(step)}: cannot be read ({' '.join(str(error).split()):.200}); "
                "start without --resume"
            ) from error

    def clear(self) -> None:
        """Remove what is kept, once the result is written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _values(self) -> dict[int, float]:
        """Return step -> the score that decides; the model before the first step is no result."""
        name = self.settings.keep_best
        return {step: scores[name] for step, scores in self._measured.items() if step and name}


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
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
