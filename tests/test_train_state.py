"""Random states go with a training state, and the settings that a resumed run must share."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn

from compoclip.errors import CompoclipError
from compoclip.training import settings
from compoclip.training.settings import RunSettings
from compoclip.training.state import Progress, load_state, save_state

PROGRESS = Progress(step=1, epoch=0, epoch_step=1)


def draws_again(device: str, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """What dropout drew after saving, and after loading."""
    model = nn.Linear(2, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(3)
    torch.rand(5, device=device)
    save_state(folder, model, optimizer, PROGRESS)
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


def test_a_state_that_cannot_be_written_ends_training(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    (tmp_path / "file").write_text("")
    with pytest.raises(CompoclipError, match=r"step-.*: cannot be written") as caught:
        save_state(tmp_path / "file", model, optimizer, PROGRESS)
    assert "\n" not in str(caught.value)
    with torch.no_grad():
        model.weight[0] = torch.nan
    with pytest.raises(CompoclipError, match="weight is not finite after step 1"):
        save_state(tmp_path, model, optimizer, PROGRESS)


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
