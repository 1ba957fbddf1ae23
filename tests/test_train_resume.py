"""A run that is killed and resumed ends with the very weights of the run that was not."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import time
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from build.runs import command, losses, newest_state, state_tensors, timeless_log
from compoclip.cli.main import main
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.texts import BagPlan, GraphPlan, UnitPlan
from compoclip.errors import CompoclipError
from compoclip.methods.macco.masks import MaskPlan
from compoclip.methods.slipform import ConcretePlan
from compoclip.models.checkpoint import load_model
from compoclip.models.config import RECORD
from compoclip.training import settings
from compoclip.training.log import read_log
from compoclip.training.settings import RunSettings
from compoclip.training.state import Progress, latest_state, load_state, save_state
from compoclip_world import decoder
from method_data import arguments
from ranks_helpers import Forked
from train_helpers import weight_hashes

METHOD = "fsc-clip"  # parsing, rewrites, local losses: everything that could differ


def from_scratch(folder: Path, out: str, *more: str) -> list[str]:
    """The command line of two epochs of five steps."""
    model = ("--from-scratch", f"--model={folder / 'config.json'}", "--seed=5", "--lr=1e-3")
    return command(folder, out, *model, "--epochs=2", "--set=save_every=3", *more, method=METHOD)


def train(folder: Path, out: str, *more: str, code: int = 0) -> Path:
    """Train, and return where the run has written."""
    assert main(from_scratch(folder, out, *more)) == code
    return folder / out


@pytest.fixture(scope="module")
def folder(written_squares: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and `whole`, a run that nothing stopped."""
    path = tmp_path_factory.mktemp("runs")
    shutil.copytree(written_squares, path, dirs_exist_ok=True)
    train(path, "whole")
    return path


def account(run: Path) -> dict[str, object]:
    """What the checkpoint says of the run: images, texts, rewrites and refusals, but no times."""
    record = json.loads((run / "model" / RECORD).read_text())
    totals = {k: v for k, v in record["provenance"]["run"].items() if k != "seconds"}
    assert sum(rewrite["made"] for rewrite in totals["rewrites"].values()) > 0
    return totals


def test_a_run_leaves_no_model_in_memory(folder: Path) -> None:
    def tensors() -> int:
        return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())

    gc.collect()
    before = tensors()
    gc.disable()
    try:
        train(folder, "once", "--set=max_steps=2")
        assert tensors() < before + 5  # those of the model and of its optimiser are some hundred
    finally:
        gc.enable()


def test_kill_and_resume_is_bit_identical(folder: Path) -> None:
    process = Forked(["compoclip", *from_scratch(folder, "killed")])
    log = folder / "killed" / "train.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not log.is_file() or len(read_log(log)) < 5):
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    killed, whole = folder / "killed", folder / "whole"
    assert not (killed / "model").exists()
    assert latest_state(killed / "state") is not None
    train(folder, "killed", "--resume")
    assert weight_hashes(killed) == weight_hashes(whole)
    assert account(killed) == account(whole)
    assert timeless_log(killed) == timeless_log(whole)


def test_stop_at_the_end_of_an_epoch_and_resume_is_bit_identical(folder: Path) -> None:
    cut = train(folder, "stopped", "--set=stop_after=5")
    assert not (cut / "model").exists()
    train(folder, cut.name, "--resume")
    assert weight_hashes(cut) == weight_hashes(folder / "whole")
    assert account(cut) == account(folder / "whole")


# Method, options, and how a tensor begins that the state then has.
PARTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "frozen, rates": (
        "negclip",
        (
            *("--set=lr_image=1e-4", "--set=layer_decay=0.7", "--set=matryoshka=[4,8]"),
            *("--freeze", "image-trunk", "text:1"),
        ),
        "",
    ),
    "cached features, average": (
        "fsc-clip",
        (
            *("--set=ema=0.8", "--freeze", "image", "--no-crop", "--cache-frozen", "--lora"),
            *("--terms", "+all-images"),
        ),
        "average/",
    ),
    "another model as the teacher": ("negclip", ("--terms=+similarity", "--set=teacher=BASE"), ""),
    "teacher": ("degla", ("--decay=0.9",), "model/teacher."),
    "composed": (
        "fsc-clip",
        ("--terms", "+degla.distill", "+macco", "--lora", "--micro-batch=3"),
        "model/te",
    ),
    "head": (
        "read-clip",
        (f"--decoder={decoder.__file__}", "--reconstruction=0.1"),
        "model/heads.reconstruction.a",
    ),
    "masks": ("macco", ("--micro-batch=3",), "model/heads.masks."),
    "matrix": ("lab-clip", ("--no-crop",), "model/parametrizations"),
    "margins, pieces": ("ce-clip", ("--micro-batch=3", "--set=grad_checkpointing=true"), ""),
    "composites": ("clic", ("--lr=1e-3",), ""),
    "mined": ("con-clip", ("--distractors=mined",), ""),
}


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_resumed_bit_for_bit(
    part: str, world: Path, tmp_path: Path, states_stay: None
) -> None:
    method, options, start = PARTS[part]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    options = [option.replace("BASE", str(world / "base")) for option in options]
    run = [*arguments(world, method, cut, "--epochs=1.2"), *options]
    assert main(arguments(world, method, whole, "--epochs=1.2", *options)) == 0
    assert main([*run, "--set=stop_after=3"]) == 0
    assert any(name.startswith(start) for name in state_tensors(cut))
    if options[0].startswith("--set"):
        assert main([word for word in run if word != options[0]] + ["--resume"]) == 1
    assert main([*run, "--resume"]) == 0
    assert weight_hashes(cut) == weight_hashes(whole)
    assert weight_hashes(cut).keys() == set(load_model(world / "base").encoder.model.state_dict())
    assert losses(cut) == losses(whole)


@pytest.mark.parametrize("lora", [(), ("--lora",), ("--lora", "--set=merge=false")])
def test_the_state_goes_when_nothing_can_resume_it(
    world: Path, tmp_path: Path, lora: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    out, alone = tmp_path / "run", "--set=merge=false" in lora
    run = arguments(world, "clip-ft", out, "--epochs=0.5", *lora)
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
    assert (out / "state").exists() == alone  # which --resume may still merge
    capsys.readouterr()
    assert main(run) == 2
    assert "holds a finished run" in capsys.readouterr().err
    assert main([*run, "--resume"]) == 0  # a job that is queued again
    written = out / ("adapter" if alone else "model")
    printed = capsys.readouterr()
    assert f"already finished: {written}" in printed.err
    assert f"-> {written}" in printed.out
    if alone:
        assert not (out / "model").exists()
        assert main([*run[:-1], "--resume"]) == 0
        assert not (out / "state").exists()
        merged, adapted = (load_model(out / name) for name in ("model", "adapter"))
        assert merged.identity == adapted.identity


@pytest.mark.slow
def test_workers_do_not_change_the_result_and_end_with_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(
        _MultiProcessingDataLoaderIter, "__del__", lambda self: ended.append(self._shutdown)
    )
    assert weight_hashes(train(folder, "two", "--workers=2")) == weight_hashes(folder / "whole")
    assert ended == [True]  # before the garbage collector, which would wait for them


@pytest.fixture
def begun(folder: Path, tmp_path: Path) -> Path:
    """A run that was stopped after three steps."""
    return train(folder, str(tmp_path / "run"), "--set=stop_after=3")


def test_resume_refuses_other_settings(
    folder: Path, begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(folder, str(begun), code=2)
    assert "unfinished run; add --resume" in capsys.readouterr().err
    train(folder, str(begun), "--resume", "--gamma=1.0", code=1)
    assert "other settings" in capsys.readouterr().err.strip().splitlines()[-1]


def test_resume_refuses_written_texts_that_were_changed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "negatives.jsonl"
    file.write_text('{"caption": "a cat", "negative": "a dog"}\n')
    texts = ("--texts=+written-negative", f"--set=texts.written={file}")
    run = train(folder, str(tmp_path / "run"), *texts, "--set=stop_after=1")
    file.write_text('{"caption": "a cat", "negative": "a cow"}\n')
    train(folder, str(run), *texts, "--resume", code=1)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"made with other settings: content of {file} changed; use the same" in said


@pytest.mark.parametrize(
    ("plan", "files"),
    [
        (CaptionPlan(written="a.jsonl"), ["a.jsonl"]),
        (CaptionPlan(written="{a,b}.jsonl"), ["a.jsonl", "b.jsonl"]),
        (CaptionPlan(texts=(GraphPlan(vocabulary="words.json"),)), ["words.json"]),
        (CaptionPlan(texts=(UnitPlan(file="units.json"),)), ["units.json"]),
        (CaptionPlan(texts=(ConcretePlan(ratings="words.csv"),)), ["words.csv"]),
        (CaptionPlan(texts=(MaskPlan(file="boxes.tsv"),)), ["boxes.tsv"]),
        (CaptionPlan(written="a.jsonl", texts=(BagPlan("b.jsonl"),)), ["a.jsonl", "b.jsonl"]),
        (CaptionPlan(texts=(BagPlan("captions"), UnitPlan(), GraphPlan())), []),
    ],
)
def test_a_plan_states_the_files_of_its_texts(plan: CaptionPlan, files: list[str]) -> None:
    assert plan.files == tuple(map(Path, files))


def test_a_damaged_state_is_named(
    folder: Path, begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = newest_state(begun) / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:1000])
    train(folder, str(begun), "--resume", code=1)
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert str(tensors.parent) in error
    assert "damaged" in error


def test_a_full_disk_keeps_the_last_state(
    folder: Path, begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = newest_state(begun)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compoclip.training.state.save_file", full)
    train(folder, str(begun), "--resume", code=1)
    assert "No space left on device" in capsys.readouterr().err
    assert latest_state(begun / "state") == before
    monkeypatch.undo()
    train(folder, str(begun), "--resume")


# --- What a state and the settings of a run hold. ---

PROGRESS = Progress(step=1, epoch=0, epoch_step=1)


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_random_numbers_go_on_after_loading(device: str, tmp_path: Path) -> None:
    model = nn.Linear(2, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(3)
    torch.rand(5, device=device)
    save_state(tmp_path, model, optimizer, PROGRESS)
    after_saving = torch.rand(9, device=device)
    torch.manual_seed(4)
    assert load_state(tmp_path / "step-00000001", model, optimizer) == PROGRESS
    assert torch.equal(torch.rand(9, device=device), after_saving)


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
