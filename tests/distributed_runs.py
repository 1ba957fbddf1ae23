"""Runs on tiny models and data whose gradients are kept, alone or in several processes."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compoclip.data.sources.open import open_source
from compoclip.methods.base import Method, Optim
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, create_model, load_model, save_model
from compoclip.models.config import read_config
from compoclip.ranks import Ranks
from compoclip.training import loop
from compoclip.training.log import read_log
from compoclip.training.run import run_training
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import whole
from train_helpers import FEW, write_config, write_data

STEPS = 3  # the thresholds of one are read by the next; composed and single batches take turns
Gradients = list[list[torch.Tensor | None]]


class Kept:
    """Keeps the gradients that a run steps along, before they are clipped."""

    def __init__(self) -> None:
        self.gradients: Gradients = []
        self._clip = loop.clip_gradients

    def __call__(
        self, parameters: Iterable[nn.Parameter], limit: float, ranks: Ranks
    ) -> torch.Tensor:
        parameters = sorted(parameters, key=lambda p: p.ndim == 0)  # however they are grouped
        gradients = (p.grad for p in parameters)
        self.gradients.append([g if g is None else whole(g).clone() for g in gradients])
        return self._clip(parameters, limit, ranks)

    def __enter__(self) -> Kept:
        loop.clip_gradients = self
        return self

    def __exit__(self, *_: object) -> None:
        loop.clip_gradients = self._clip


@lru_cache(maxsize=1)
def _base(path: Path) -> LoadedModel:
    """A checkpoint that many runs of this process start from."""
    return load_model(path)


def run(
    ranks: Ranks, folder: Path, out: Path, data: Path, method: Method, **settings: Any
) -> dict[str, Any]:
    """The gradients and the log of a run, whose steps leave the weights as they are if lr is 0."""
    base = _base(folder / "base")
    model = replace(base, encoder=deepcopy(base.encoder))
    teacher = settings.pop("teacher", None)
    with Kept() as kept:
        summary = run_training(
            model,
            method,
            open_source(str(data)),
            RunSettings(out=out, save_every=0, log_every=1, **settings),
            ranks,
            teacher=teacher,
        )
    log = [
        {k: v for k, v in each.items() if k != "seconds"} for each in read_log(out / "train.jsonl")
    ]
    return {
        "gradients": kept.gradients,
        "log": log,
        "summary": replace(summary, seconds=0.0, model=None, adapter=None),
    }


def difference(found: Gradients, expected: Gradients) -> float:
    """The largest difference over the largest gradient; 0 for equal, 1 for a missing one."""
    assert len(found) == len(expected) > 0
    worst = 0.0
    for ours, theirs in zip(found, expected):
        assert [g is None for g in ours] == [g is None for g in theirs]
        pairs = [(a, b) for a, b in zip(ours, theirs) if a is not None and b is not None]
        largest = max(float(b.abs().max()) for _, b in pairs)
        assert largest > 0
        worst = max(worst, max(float((a - b).abs().max()) for a, b in pairs) / largest)
    return worst


def close(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether two log lines tell the same, to rounding."""
    return found.keys() == expected.keys() and all(
        found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6) for name in expected
    )


OPTIM = Optim(epochs=3, batch_size=8, lr=1e-3, warmup=3)


def training(
    ranks: Ranks, folder: Path, name: str, method: str = "fsc-clip", **settings: Any
) -> dict[str, Any]:
    """Log and summary of a run (FSC-CLIP: parsing, rewrites, local losses) on the squares."""
    recipe = load_recipe(method)(optim=OPTIM)
    found = run(ranks, folder, folder / name, folder / "data" / "data.tsv", recipe, **settings)
    return {"log": found["log"], "summary": found["summary"]}


def small(ranks: Ranks, folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """`training`, for `in_ranks`."""
    return training(ranks, folder, name, **settings)


def write_base(tmp_path: Path) -> Path:
    """A tiny checkpoint `base` and 40 captioned squares."""
    config = read_config(write_config(tmp_path / "config.json", merges=FEW))
    save_model(create_model(config, seed=1), tmp_path / "base", provenance={})
    write_data(tmp_path / "data")
    return tmp_path
