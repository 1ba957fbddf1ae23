"""`python -m bench host`: the parts of a step of the loop that trains, timed and counted."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from bench.__main__ import main
from bench.host import PARTS, PREAMBLE, Operations, StepTimes, train_steps, write_samples
from compoclip.methods.base import Optim
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import create_model
from compoclip.models.config import ModelConfig
from compoclip.training import loop
from compoclip.training.settings import RunSettings
from models_thin import config

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_every_part_of_a_step_is_timed_once(tmp_path: Path) -> None:
    ticks = iter(range(10_000))
    drained: list[int] = []
    seen: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        seen.append("in")
        yield
        seen.append("out")

    data = write_samples(tmp_path, ["a red cat on a mat", "a dog beside a blue car"] * 4, 2, 48)
    loaded = create_model(ModelConfig(config(text={"vocab_size": 49408, "context_length": 32})))
    method = load_recipe("fsc-clip")(optim=Optim(batch_size=4, epochs=1))
    times = StepTimes(lambda: float(next(ticks)), lambda: drained.append(1), {1: around})
    before = loop.step_if_finite
    train_steps(loaded, method, data, RunSettings(out=Path(), stop_after=4), times)
    assert loop.step_if_finite is before
    assert seen == ["in", "out"]
    assert len(times.steps) == 4
    parts = times.median(2)
    # A clock that goes one further each time it is asked: once around each part, which is asked for
    # once a step (the last step takes no batch).
    assert {part: parts[part] for part in PARTS if part not in ("rest", "take")} == {
        part: 1 for part in PARTS if part not in ("rest", "take")
    }
    assert times.steps[0]["take"] == times.steps[2]["take"] == 1
    assert "take" not in times.steps[3] or times.steps[3]["take"] == 0
    assert parts["step"] == pytest.approx(sum(parts[part] for part in PARTS), abs=1)
    assert len(drained) > 4 * 2 * len(PREAMBLE)


def test_operations_are_those_of_both_passes_without_views() -> None:
    x = torch.ones(4, requires_grad=True)
    with Operations() as seen:
        y = x.view(2, 2).to(torch.bfloat16)
        y.float().sum().backward()
    assert seen.casts == 4  # there and back, each way
    assert seen.found["aten::view"] == 0
    assert seen.found["aten::sum"] == 1


def test_the_verb_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "--batch-size=8", "--few=4", "--steps=6", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert set(result["parts"]) == set(PARTS)
    assert 0 < result["preamble"] < result["whole"]
    whole, few, lower = result["operations"]
    assert abs(whole - few) < 0.3 * whole  # the same, but for the number of buckets
    assert lower > few
    assert main(["host", "--few=1"]) == 2
