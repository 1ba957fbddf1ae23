"""The models between a base and a tuned one, and all of them measured on the same benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from compoclip.benchmarks.case import Benchmark
from compoclip.console import note
from compoclip.evaluation.model_encoder import ModelEncoder
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from compoclip.files import only_writer
from compoclip.models.interpolate import Scope, WiseLora, interpolate
from compoclip.models.loaded import LoadedModel

BASE, TUNED = "base", "tuned"


@dataclass(frozen=True)
class Mix:
    """Share `alpha` of the tuned weights in `scope`; what is outside the scope is tuned."""

    scope: Scope
    alpha: float

    @property
    def name(self) -> str:
        """As results are called: "base", "tuned", or scope and share, e.g. "image-0.3"."""
        if self.alpha == 1:
            return TUNED
        return BASE if self.scope == "all" and self.alpha == 0 else f"{self.scope}-{self.alpha:g}"


@dataclass(frozen=True)
class Pair:
    """A base and what was trained from it, on the CPU, with the ways to mix them (see
    `models.interpolate.interpolate`)."""

    base: LoadedModel
    tuned: LoadedModel
    mix_scale: bool = False
    wise_lora: WiseLora = "merged"

    def mixed(self, mix: Mix) -> LoadedModel:
        """The model of a mix; at the ends the very models. Raises what `interpolate` raises."""
        ends = {BASE: self.base, TUNED: self.tuned}
        if mix.name in ends:
            return ends[mix.name]
        return interpolate(
            self.base, self.tuned, mix.alpha, mix.scope, self.mix_scale, self.wise_lora
        )


def measure_mixes(
    pair: Pair,
    mixes: Mapping[str, Mix],
    benchmarks: Sequence[Benchmark],
    out: Path,
    options: Options,
    device: torch.device,
) -> dict[str, list[Results]]:
    """Name -> results on all benchmarks, written below `<out>/<name>/` as `evaluate` does.

    A tower that several models have alike is encoded once (with `options.cache`), and results that
    are already there are not computed again. Raises what `interpolate` and `evaluate` raise.
    """
    found: dict[str, list[Results]] = {}
    with only_writer(out, folder=True):  # the mixes of another pair have the same names
        for name, mix in mixes.items():
            note(f"measuring {name}")
            loaded = pair.mixed(mix)
            loaded.encoder.to(device)
            try:
                found[name] = evaluate(name, ModelEncoder(loaded), benchmarks, out, options)
            finally:
                loaded.encoder.to("cpu")
    return found
