"""A run that is killed and resumed ends with the very weights of the run that was not."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import method_data
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import load_model
from compoclip.models.config import RECORD
from compoclip.training.log import read_log
from compoclip.training.state import latest_state
from compoclip_world import decoder
from method_data import write_world
from ranks_helpers import Forked
from train_helpers import FEW, weight_hashes, write_config, write_data

METHOD = "fsc-clip"  # parsing, rewrites, local losses: everything that could differ


def arguments(folder: Path, out: str, *more: str) -> list[str]:
    return [
        "train",
        METHOD,
        "--from-scratch",
        f"--model={folder / 'config.json'}",
        f"--data={folder / 'data' / 'data.tsv'}",
        f"--out={folder / out}",
        "--batch-size=8",
        "--epochs=3",
        "--lr=1e-3",
        "--warmup=3",
        "--set=save_every=3",
        "--set=log_every=1",
        "--seed=5",
        *more,
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and `whole`, a run that nothing stopped."""
    path = tmp_path_factory.mktemp("runs")
    write_config(path / "config.json", merges=FEW)
    write_data(path / "data")
    assert main(arguments(path, "whole")) == 0
    return path


def weights(run: Path) -> dict[str, str]:
    return weight_hashes(run / "model")


def account(run: Path) -> dict[str, object]:
    """What the checkpoint says of the run: images, texts, rewrites and refusals, but no times."""
    record = json.loads((run / "model" / RECORD).read_text())
    said = {k: v for k, v in record["provenance"]["run"].items() if k != "seconds"}
    assert sum(each["made"] for each in said["rewrites"].values()) > 0
    return said


def test_a_run_leaves_no_model_in_memory(folder: Path) -> None:
    def tensors() -> int:
        return sum(isinstance(kept, torch.Tensor) for kept in gc.get_objects())

    gc.collect()
    before = tensors()
    gc.disable()
    try:
        assert main(arguments(folder, "once", "--set=max_steps=2")) == 0
        assert tensors() < before + 5  # those of the model and of its optimiser are some hundred
    finally:
        gc.enable()


def test_kill_and_resume_is_bit_identical(folder: Path) -> None:
    process = Forked(["compoclip", *arguments(folder, "killed")])
    log = folder / "killed" / "train.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not log.is_file() or len(read_log(log)) < 5):
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (folder / "killed" / "model").exists()
    assert latest_state(folder / "killed" / "state") is not None

    assert main(arguments(folder, "killed", "--resume")) == 0
    assert weights(folder / "killed") == weights(folder / "whole")
    assert account(folder / "killed") == account(folder / "whole")
    whole, resumed = (read_log(folder / run / "train.jsonl") for run in ("whole", "killed"))
    timing = ("seconds",)
    assert [{k: v for k, v in r.items() if k not in timing} for r in resumed] == [
        {k: v for k, v in r.items() if k not in timing} for r in whole
    ]


@pytest.mark.parametrize("stop", [1, 5])
def test_stop_at_any_step_and_resume_is_bit_identical(folder: Path, stop: int) -> None:
    out = f"stopped-{stop}"
    assert main(arguments(folder, out, f"--set=stop_after={stop}")) == 0
    assert not (folder / out / "model").exists()
    assert main(arguments(folder, out, "--resume")) == 0
    assert weights(folder / out) == weights(folder / "whole")
    assert account(folder / out) == account(folder / "whole")


# Method, options, and how a tensor begins that the state then has.
PARTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "frozen": ("negclip", ("--freeze", "image-trunk", "text:1"), ""),
    "rates": ("fsc-clip", ("--set=lr_image=1e-4", "--set=layer_decay=0.7"), ""),
    "pieces": ("fsc-clip", ("--micro-batch=3", "--set=grad_checkpointing=true"), ""),
    "cached features": ("fsc-clip", ("--freeze", "image", "--no-crop", "--cache-frozen"), ""),
    "average": ("fsc-clip", ("--set=ema=0.8", "--lora", "--freeze", "image"), "average/"),
    "teacher": ("degla", ("--decay=0.9",), "model/teacher."),
    "composed": (
        "fsc-clip",
        ("--terms", "+degla.distill", "--lora", "--micro-batch=3"),
        "model/te",
    ),
    "head": (
        "read-clip",
        (f"--decoder={decoder.__file__}", "--reconstruction=0.1"),
        "model/heads.reconstruction.a",
    ),
    "masks": ("macco", ("--micro-batch=3",), "model/heads.masks."),
    "matrix": ("lab-clip", ("--no-crop",), "model/parametrizations"),
    "margins": ("ce-clip", ("--lr=1e-3",), ""),
    "composites": ("clic", ("--lr=1e-3",), ""),
    "mined": ("con-clip", ("--distractors=mined",), ""),
}


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_resumed_bit_for_bit(
    part: str, world: Path, tmp_path: Path, states_stay: None
) -> None:
    method, options, held = PARTS[part]
    whole, cut = (
        method_data.arguments(world, method, tmp_path / run, "--epochs=2", *options)
        for run in ("whole", "cut")
    )
    assert main(whole) == 0
    assert main([*cut, "--set=stop_after=4"]) == 0
    state = latest_state(tmp_path / "cut" / "state")
    assert state is not None
    assert any(name.startswith(held) for name in load_file(state / "tensors.safetensors"))
    if options[0].startswith("--set"):
        assert main([word for word in cut if word != options[0]] + ["--resume"]) == 1
    assert main([*cut, "--resume"]) == 0
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert weights(tmp_path / "cut").keys() == set(
        load_model(world / "base").encoder.model.state_dict()
    )
    logs = [read_log(tmp_path / run / "train.jsonl") for run in ("whole", "cut")]
    assert [record["loss"] for record in logs[0]] == [record["loss"] for record in logs[1]]


@pytest.mark.parametrize("lora", [(), ("--lora",), ("--lora", "--set=merge=false")])
def test_the_state_goes_when_nothing_can_resume_it(
    tmp_path: Path, lora: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    world, out = write_world(tmp_path / "world", merges=FEW), tmp_path / "run"
    run = method_data.arguments(world, "clip-ft", out, "--epochs=0.5", *lora)
    assert main([*run, "--set=stop_after=1"]) == 0
    assert latest_state(out / "state") is not None

    def full(*_: object, **__: object) -> None:
        raise CompoclipError("cannot be written")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("save_model", "save_adapter"):
            patch.setattr(f"compoclip.training.run.{name}", full)
        assert main([*run, "--resume"]) == 1
    assert latest_state(out / "state") is not None  # all steps done, nothing written
    assert main([*run, "--resume"]) == 0
    assert (out / "state").exists() == (
        "--set=merge=false" in lora
    )  # which --resume may still merge
    capsys.readouterr()
    assert main(run) == 2
    assert "holds a finished run" in capsys.readouterr().err
    assert main([*run, "--resume"]) == 0  # a job that is queued again
    written = out / ("adapter" if "--set=merge=false" in lora else "model")
    said = capsys.readouterr()
    assert f"already finished: {written}" in said.err
    assert f"-> {written}" in said.out
    if "--set=merge=false" in lora:
        assert main([*run[:-1], "--resume"]) == 0
        assert not (out / "state").exists()


@pytest.mark.slow
def test_workers_do_not_change_the_result(folder: Path) -> None:
    assert main(arguments(folder, "two", "--workers=2")) == 0
    assert weights(folder / "two") == weights(folder / "whole")


@pytest.fixture
def begun(folder: Path, tmp_path: Path) -> Path:
    """A run that was stopped after three steps."""
    out = tmp_path / "run"
    assert main(arguments(folder, str(out), "--set=stop_after=3")) == 0
    return out


def test_resume_refuses_other_settings(
    folder: Path, begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(folder, str(begun))) == 2
    assert "unfinished run; add --resume" in capsys.readouterr().err
    assert main(arguments(folder, str(begun), "--resume", "--gamma=1.0")) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "other settings" in error


def test_a_damaged_state_is_named(
    folder: Path, begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = latest_state(begun / "state")
    assert state is not None
    tensors = state / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:1000])
    assert main(arguments(folder, str(begun), "--resume")) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert str(state) in error
    assert "damaged" in error


def test_a_full_disk_keeps_the_last_state(
    folder: Path, begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = latest_state(begun / "state")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compoclip.training.state.save_file", full)
    assert main(arguments(folder, str(begun), "--resume")) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert latest_state(begun / "state") == kept
    monkeypatch.undo()
    assert main(arguments(folder, str(begun), "--resume")) == 0
