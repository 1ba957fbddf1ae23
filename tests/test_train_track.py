"""TensorBoard and Weights & Biases: read back with their own readers, resumed runs included."""

from __future__ import annotations

import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from build.runs import losses
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.training.log import Trackers, read_log
from method_data import arguments

Curves = dict[str, list[tuple[int, float]]]


def tensorboard_curves(folder: Path) -> Curves:
    """What TensorBoard shows of a folder."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def wandb_curves(out: Path) -> Curves:
    """What `wandb sync` would send of the one run in a folder."""
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    (path,) = (out / "wandb").glob("offline-run-*/*.wandb")
    curves: Curves = defaultdict(list)
    for raw in leveldb_records(path.read_bytes()):
        record = pb.Record()
        record.ParseFromString(raw)
        if record.WhichOneof("record_type") != "history":
            continue
        items = record.history.item
        row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
        for name, value in row.items():
            if not name.startswith("_"):
                curves[name].append((row["_step"], value))
    return dict(curves)


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a file of LevelDB's log format, after the 7 bytes that wandb begins with.

    Blocks of 32 KiB; each piece has a checksum (4 bytes), length (2) and kind (1: whole record,
    first, middle, last part).
    """
    assert data[:4] == b":W&B"
    at, held = 7, b""
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield held
            held = b""


READERS: dict[str, Any] = {
    "tensorboard": lambda out: tensorboard_curves(out / "tensorboard"),
    "wandb": wandb_curves,
}


@pytest.mark.slow
def test_a_resumed_run_has_every_step_once_and_what_its_log_has(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    out = tmp_path / "run"
    options = ["--track", "tensorboard", "--track=wandb", "--epochs=1.6", "--set=save_every=3"]
    assert main(arguments(world, "clip-ft", out, *options, "--set=stop_after=5")) == 0
    # As if the process had been killed two steps after the last state, its files half written.
    (state,) = (out / "state").iterdir()
    progress = json.loads((state / "progress.json").read_text())
    assert progress["step"] == 5
    for step in (6, 7):
        record = {**read_log(out / "train.jsonl")[-1], "step": step, "loss": 99.0}
        with (out / "train.jsonl").open("a") as log:
            log.write(json.dumps(record) + "\n")
    assert main(arguments(world, "clip-ft", out, *options, "--resume")) == 0
    logged = read_log(out / "train.jsonl")
    assert [record["step"] for record in logged] == list(range(1, 9))
    for reader in READERS.values():
        curves = reader(out)
        assert curves.keys() >= {"loss", "loss/clip", "lr", "grad_norm", "logit_scale", "images"}
        for name in ("loss", "loss/clip", "lr"):
            steps, values = zip(*curves[name])
            assert list(steps) == list(range(1, 9))
            assert list(values) == pytest.approx([r[name] for r in logged], rel=1e-6)
    whole = tmp_path / "whole"
    assert main(arguments(world, "clip-ft", whole, "--epochs=1.6")) == 0
    assert not (whole / "tensorboard").exists()
    assert not (whole / "wandb").exists()
    assert losses(whole) == losses(out)


@pytest.mark.parametrize("name", sorted(READERS))
def test_what_is_measured_while_training_stands_beside_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A measurement before the first step, one at a logged step, one at a step that is not."""
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")

    def score(value: float) -> dict[str, Any]:
        return {"x": {"value": value, "low": None, "high": None, "chance": 0.5}}

    lines: list[dict[str, Any]] = [
        {"step": 0, "eval": score(0.25), "eval_seconds": 0.5},
        {"step": 2, "loss": 1.5},
        {"step": 2, "eval": score(0.5), "eval_seconds": 0.5},
        {"step": 3, "eval": score(0.75), "eval_seconds": 0.5},
        {"step": 4, "loss": 1.0, "drawn": {"a.csv": 3}},
    ]
    with Trackers((name,), tmp_path, {}, lambda record, total: None) as report:
        for line in lines:
            with (tmp_path / "train.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            report(line, 4)
    # A process of wandb's writes the file, on a busy machine after its run is finished.
    deadline = time.monotonic() + 120
    while "drawn/a.csv" not in (curves := READERS[name](tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert curves["eval/x"] == [(0, 0.25), (2, 0.5), (3, 0.75)]
    assert curves["loss"] == [(2, 1.5), (4, 1.0)]
    assert curves["drawn/a.csv"] == [(4, 3.0)]


def test_trackers_pass_records_on_and_open_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, Any]] = []
    opened: list[Path] = []
    closed: list[bool] = []

    def opening(out: Path, config: Any) -> Any:
        opened.append(out)
        return lambda record, step: seen.append((step, dict(record))), lambda: closed.append(True)

    monkeypatch.setattr("compoclip.training.log._OPEN", {"json": opening})
    lines = [{"step": 1, "loss": 2.0, "drawn": {"a": 3}}, {"step": 2, "skipped": "not finite"}]
    lines += [{"step": 3, "lr": 0.5}, {"step": 3, "loss": 1.5}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reported: list[float] = []
    with Trackers(("json",), tmp_path, {}, lambda record, total: reported.append(total)) as report:
        assert opened == []
        report({"step": 3, "loss": 1.5}, 9)
    assert seen[0] == (1, {"loss": 2.0, "drawn/a": 3.0})
    assert seen[1:] == [(2, {}), (3, {"lr": 0.5}), (3, {"loss": 1.5})]
    assert closed == [True]
    assert reported == [9]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CompoclipError, match="--track wandb needs wandb: pip install tensorboard"):
        Trackers(("wandb",), tmp_path, {}, print)
