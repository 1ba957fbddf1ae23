"""Random states go with a training state, and the settings that a resumed run must share."""

from __future__ import annotations

import threading
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compoclip.errors import CompoclipError
from compoclip.ranks import SINGLE
from compoclip.training import settings, state
from compoclip.training.settings import RunSettings
from compoclip.training.state import Progress, StateWriter, load_state

PROGRESS = Progress(step=1, epoch=0, epoch_step=1)


def draws_again(device: str, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """What dropout drew after saving, and after loading."""
    model = nn.Linear(2, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(3)
    torch.rand(5, device=device)
    StateWriter(folder).save(model, optimizer, PROGRESS)
    first = torch.rand(9, device=device)
    torch.manual_seed(4)
    assert load_state(folder / "step-00000001", model, optimizer) == PROGRESS
    return first, torch.rand(9, device=device)


def test_random_numbers_go_on(tmp_path: Path) -> None:
    first, again = draws_again("cpu", tmp_path)
    assert torch.equal(first, again)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_random_numbers_of_a_gpu_go_on(tmp_path: Path) -> None:
    first, again = draws_again("cuda", tmp_path)
    assert torch.equal(first, again)


def test_a_state_written_beside_training_is_of_the_moment_it_was_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step()
    StateWriter(tmp_path / "now").save(model, optimizer, PROGRESS)
    hold = threading.Event()
    write = state._write

    def held(*arguments: Any) -> None:
        assert hold.wait(60)
        write(*arguments)

    with pytest.MonkeyPatch.context() as patch, StateWriter(tmp_path / "beside", SINGLE, True) as w:
        patch.setattr(state, "_write", held)
        w.save(model, optimizer, PROGRESS)
        assert not (tmp_path / "beside").exists()
        w.check()  # which does not wait
        step()
        hold.set()
        w.finish()
    files = [tmp_path / name / "step-00000001" for name in ("now", "beside")]
    for name in ("tensors.safetensors", "progress.json"):
        assert (files[0] / name).read_bytes() == (files[1] / name).read_bytes()


def test_a_state_that_cannot_be_written_beside_training_ends_it(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    (tmp_path / "file").write_text("")
    for ask in (
        lambda w: w.finish(),
        lambda w: w.save(model, optimizer, PROGRESS),  # one in flight at most
        lambda w: [w.check() for _ in iter(lambda: time.sleep(0.01), 1)],
    ):
        with StateWriter(tmp_path / "file", SINGLE, beside=True) as writer:
            writer.save(model, optimizer, PROGRESS)
            with pytest.raises(CompoclipError, match=r"step-.*: cannot be written") as caught:
                ask(writer)
            assert "\n" not in str(caught.value)
            writer.finish()  # told once
    with torch.no_grad():
        model.weight[0] = torch.nan
    with StateWriter(tmp_path, SINGLE, beside=True) as writer:
        writer.save(model, optimizer, PROGRESS)
        with pytest.raises(CompoclipError, match="weight is not finite after step 1"):
            writer.finish()


def test_every_setting_is_recorded_or_known_not_to_matter() -> None:
    known = {each.name for each in fields(RunSettings)}
    assert known > settings._EXECUTION
    assert known > settings._EQUIVALENT
    run = RunSettings(out=Path("run"), seed=3, micro_batch=4)
    assert run.decisive() == {
        "seed": 3,
        "mask_duplicates": True,
        "precision": "auto",
        "contrast": "auto",
        "crop": None,
        "draft": True,
    }
    assert run.recorded() == run.decisive() | {
        "micro_batch": 4,
        "grad_checkpointing": False,
        "compile": False,
        "cache_frozen": False,
    }
