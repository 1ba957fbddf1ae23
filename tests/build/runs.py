"""Tiny training runs on captioned squares: commands, gradients, logs; alone or in processes."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor, nn

from compoclip.data.sources.open import open_source
from compoclip.evaluation.embedder import open_encoder
from compoclip.evaluation.encoder import described
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, create_model, load_model, save_model
from compoclip.models.config import read_config
from compoclip.ranks import Ranks
from compoclip.training import loop
from compoclip.training.log import read_log
from compoclip.training.run import run_training
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import whole
from compoclip.training.state import latest_state
from compoclip.training.teacher import ExternalTeacher
from train_helpers import FEW, OPTIM, write_config, write_data

STEPS = 3  # the thresholds of one are read by the next; composed and single batches take turns
TABLE = Path("data") / "data.tsv"
CACHED: dict[str, Any] = {"cache_frozen": True, "crop": False, "freeze": ("image",)}
"""Settings of a run on cached features."""
Gradients = list[list[Tensor | None]]
COLOURS = """
import numpy as np

class Colours:
    def images(self, images):
        return np.array([[*np.asarray(each).mean((0, 1)), 9.0] for each in images])

    def texts(self, texts):
        words = ("red", "blue", "green")
        return np.array([[200.0 * (word in text) for word in words] + [9.0] for text in texts])
"""
"""A model of four numbers, as a file: the mean colour of a photo, and colours in a text."""


def write_base(folder: Path) -> Path:
    """Write a tiny checkpoint `base` and 40 captioned squares; return the folder."""
    config = read_config(write_config(folder / "config.json", merges=FEW))
    save_model(create_model(config, seed=1), folder / "base", provenance={})
    write_data(folder / "data")
    return folder


def command(folder: Path, out: str, *more: str, method: str = "clip-ft") -> list[str]:
    """Return the command line of an epoch on the squares; options after it replace its own."""
    options = {"model": folder / "base", "data": folder / TABLE, "out": folder / out}
    run = ["train", method, *(f"--{name}={value}" for name, value in options.items())]
    run += ["--batch-size=8", "--epochs=1", "--warmup=2", "--device=cpu"]
    return [*run, "--set=log_every=1", "--set=allow_no_negatives=true", *more]


class Recorder:
    """Records the gradients that a run steps along, before they are clipped."""

    def __init__(self) -> None:
        self.gradients: Gradients = []
        self._clip = loop.clip_gradients

    def __call__(self, parameters: Iterable[nn.Parameter], limit: float, ranks: Ranks) -> Tensor:
        parameters = sorted(parameters, key=lambda p: p.ndim == 0)  # however they are grouped
        gradients = (p.grad for p in parameters)
        self.gradients.append([g if g is None else whole(g).clone() for g in gradients])
        return self._clip(parameters, limit, ranks)

    def __enter__(self) -> Recorder:
        loop.clip_gradients = self
        return self

    def __exit__(self, *_: object) -> None:
        loop.clip_gradients = self._clip


@lru_cache(maxsize=1)
def _base(path: Path) -> LoadedModel:
    """A checkpoint that many runs of this process start from."""
    return load_model(path)


def run(
    ranks: Ranks, folder: Path, out: str, method: Method, data: Path = TABLE, **settings: Any
) -> dict[str, Any]:
    """Return gradients, log, summary and model of a run, which learns nothing if lr is 0.

    teacher, one of the settings: a file of a model.
    """
    base = _base(folder / "base")
    model = replace(base, encoder=deepcopy(base.encoder))
    options = {"save_every": 0, "log_every": 1, "allow_no_negatives": True, **settings}
    teacher = teacher_of(options.pop("teacher")) if "teacher" in options else None
    source, place = open_source(str(folder / data)), RunSettings(out=folder / out, **options)
    with Recorder() as recorder:
        summary = run_training(model, method, source, place, ranks, teacher=teacher)
    return {
        "gradients": recorder.gradients,
        "log": timeless_log(folder / out),
        "summary": replace(summary, seconds=0.0, model=None, adapter=None),
        "model": model,
    }


def teacher_of(file: Path) -> ExternalTeacher:
    """Return the model of a file as a teacher."""
    encoder = open_encoder(str(file))
    return ExternalTeacher(encoder, {"model": file.name, **described(encoder)})


def training(
    ranks: Ranks, folder: Path, out: str, method: str = "fsc-clip", **settings: Any
) -> dict[str, Any]:
    """Return log and summary of a run (FSC-CLIP: parsing, rewrites, local losses)."""
    result = run(ranks, folder, out, load_recipe(method)(optim=OPTIM), **settings)
    return {"log": result["log"], "summary": result["summary"]}


def trained_in_ranks(
    ranks: Ranks, folder: Path, out: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """`training` with its settings in one object, as `in_ranks` hands arguments on."""
    return training(ranks, folder, out, **settings)


def timeless_log(out: Path) -> list[dict[str, Any]]:
    """Return the log of a run without the seconds that it took."""
    timing = ("seconds", "eval_seconds")
    log = read_log(out / "train.jsonl")
    return [{name: value for name, value in row.items() if name not in timing} for row in log]


def losses(out: Path) -> list[float]:
    """Return the losses that a run has logged."""
    return [row["loss"] for row in read_log(out / "train.jsonl")]


def newest_state(out: Path) -> Path:
    """Return the folder of the newest training state of a run."""
    state = latest_state(out / "state")
    assert state is not None
    return state


def state_tensors(out: Path) -> dict[str, Tensor]:
    """Return the tensors of the newest training state of a run."""
    return load_file(newest_state(out) / "tensors.safetensors")


def difference(gradients: Gradients, expected: Gradients) -> float:
    """Return the largest difference over the largest gradient: 0 for equal ones."""
    assert len(gradients) == len(expected) > 0
    worst = 0.0
    for ours, theirs in zip(gradients, expected):
        assert [g is None for g in ours] == [g is None for g in theirs]
        pairs = [(a, b) for a, b in zip(ours, theirs) if a is not None and b is not None]
        largest = max(float(b.abs().max()) for _, b in pairs)
        assert largest > 0
        worst = max(worst, max(float((a - b).abs().max()) for a, b in pairs) / largest)
    return worst


def close(row: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Return whether two rows of logs are equal to rounding."""
    return row.keys() == expected.keys() and all(
        row[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6) for name in expected
    )
