"""Files that a run goes on from, spoilt at random: it goes on, or ends with one line."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn

from build.models import edit_json
from build.tables import write_lines
from compoclip.cli.main import main
from compoclip.data.images import Companions
from compoclip.data.options import PackSpec
from compoclip.data.pack import pack
from compoclip.data.sources.open import Request
from compoclip.errors import CompoclipError
from compoclip.language.ask import Asking, collect
from compoclip.language.engine import Answer, Sampling, load_task
from compoclip.language.rows import AnswerTally, Outputs, write_outputs
from compoclip.training.log import read_log
from compoclip.training.state import Progress, load_state, save_state
from corpus_shards import corpus
from lab.job import DONE, Job, outcome
from lab.settings import LabSettings
from train_helpers import FEW, write_config, write_data

NAN, INFINITY = float("nan"), float("inf")
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0.5, 10**6, 10**30, NAN, INFINITY, "x", "\ud800", [], [1], {}, {"a": 1}),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every part of a JSON value."""
    yield at
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


def with_odd_value(text: str, rng: random.Random) -> str:
    """The JSON text with one part exchanged, dropped, or added."""
    value = json.loads(text)
    way = rng.choice(list(places(value)))
    odd = rng.choice(ODD)
    if not way:
        return json.dumps(odd)
    around = value
    for key in way[:-1]:
        around = around[key]
    kind = rng.choice(["exchange", "exchange", "drop", "add"])
    if kind == "drop":
        del around[way[-1]]
    elif kind == "add" and isinstance(around, dict):
        around["odd"] = odd
    else:
        around[way[-1]] = odd
    return json.dumps(value)


def spoilt(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one change: a byte, a part lost, a part twice, an end, or noise."""
    at, end = sorted(rng.sample(range(len(data) + 1), 2))
    return rng.choice(
        [
            lambda: data[:at] + rng.randbytes(1) + data[at + 1 :],
            lambda: data[:at] + data[end:],
            lambda: data[:end] + data[at:],
            lambda: data[:at],
            lambda: data[:at] + rng.randbytes(9) + data[at:],
            lambda: b"[" * 100_000,
        ]
    )()


def ways_to_spoil(path: Path, count: int, json_lines: bool = False) -> Iterator[int]:
    """Spoil the file in `count` ways, one after the other, each from what it was."""
    data = path.read_bytes()
    for seed in range(count):
        rng = random.Random(seed)
        if seed % 2 and path.suffix not in (".safetensors", ".npy"):
            lines = data.decode().splitlines() if json_lines else [data.decode()]
            number = rng.randrange(max(1, len(lines) - 1))  # the last one may be torn
            lines[number] = with_odd_value(lines[number], rng)
            path.write_text("\n".join(lines) + "\n")
        else:
            path.write_bytes(spoilt(data, rng))
        yield seed
    path.write_bytes(data)


def goes_on_or_one_line(work: Callable[[], Any]) -> Any:
    """What the work gives; None when one line says why it cannot be done."""
    try:
        return work()
    except CompoclipError as error:
        line = str(error)
    assert "\n" not in line
    assert len(line) < 1000
    return None


def learner() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


PROGRESS = Progress(
    step=7,
    epoch=2,
    epoch_step=1,
    images=56,
    texts=112,
    skipped=1,
    seconds=1.5,
    rewrites={
        "samples": 56,
        "rewrites": {"a": {"made": 3, "samples": 3, "coverage": 0.1, "refused": {"why": 53}}},
    },
    losses={"term": {"0": 0.25}},
    skipped_steps=2,
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    model, optimizer = learner()
    save_state(tmp_path, model, optimizer, PROGRESS)
    return tmp_path / "step-00000007"


def load(state: Path) -> Progress:
    model, optimizer = learner()
    found = load_state(state, model, optimizer, steps_per_epoch=3)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return found


def test_a_training_state_that_is_whole_is_read(state: Path) -> None:
    assert load(state) == PROGRESS


@pytest.mark.parametrize(
    ("name", "count", "least"), [("progress.json", 200, 100), ("tensors.safetensors", 80, 20)]
)
def test_a_spoilt_state_is_read_or_refused(state: Path, name: str, count: int, least: int) -> None:
    results = [goes_on_or_one_line(lambda: load(state)) for _ in ways_to_spoil(state / name, count)]
    assert least < results.count(None) < count


DAMAGED = r"is damaged .*; delete it and start without --resume"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model/0.weight", None),
        ("model/0.weight", torch.zeros(3, 4)),
        ("model/0.weight", torch.zeros(4, 3, dtype=torch.float64)),
        ("model/0.weight", torch.full((4, 3), torch.nan)),
        ("model/2.weight", torch.zeros(1)),
        ("optimizer/0/exp_avg", None),
        ("optimizer/0/exp_avg", torch.zeros(1)),
        ("optimizer/0/odd", torch.zeros(4, 3)),
        ("optimizer/9/step", torch.tensor(1.0)),
        ("optimizer/x", torch.zeros(1)),
        ("rng", None),
        ("rng", torch.zeros(9, dtype=torch.uint8)),
        ("rng", torch.zeros(3)),
        ("odd", torch.zeros(1)),
    ],
)
def test_tensors_of_another_kind_are_refused(
    state: Path, name: str, value: torch.Tensor | None
) -> None:
    path = state / "tensors.safetensors"
    tensors = load_file(path)
    tensors.pop(name, None)
    if value is not None:
        tensors[name] = value
    save_file(tensors, path)
    with pytest.raises(CompoclipError, match=DAMAGED):
        load(state)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch_step", 1_000_000),
        ("epoch_step", "1"),
        ("step", 8),
        ("step", -1),
        ("epoch", 3),
        ("images", None),
        ("seconds", "1"),
        ("losses", {"term": {"0": "x"}}),
        ("losses", {"term": [1]}),
        ("rewrites", {"samples": 3}),
        ("rewrites", {"samples": 3, "rewrites": {"a": {"made": "x"}}}),
        ("skipped_steps", 8),
    ],
)
def test_impossible_progress_is_refused(state: Path, field: str, value: object) -> None:
    edit_json(state / "progress.json", lambda progress: progress.update({field: value}))
    with pytest.raises(CompoclipError, match=DAMAGED):
        load(state)


def test_a_state_from_before_skipped_steps_were_counted(state: Path) -> None:
    edit_json(state / "progress.json", lambda progress: progress.pop("skipped_steps"))
    assert load(state).skipped_steps == 0


# ---- through the command line


def runs_on(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the command is done; if not, one line says why."""
    code = main(arguments)
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "not foreseen" not in error
    assert "RuntimeWarning" not in error
    own = [line for line in error.splitlines() if line.startswith(f"compoclip {arguments[0]}:")]
    assert len(own) == (code != 0), error
    return code == 0


def test_a_spoilt_log_is_refused_and_a_torn_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path / "config.json", merges=FEW)
    data, out = write_data(tmp_path / "data"), tmp_path / "run"
    arguments = ["train", "clip-ft", "--from-scratch", f"--model={tmp_path / 'config.json'}"]
    arguments += [f"--data={data}", f"--out={out}", "--batch-size=8", "--epochs=1", "--resume"]
    assert main([*arguments, "--set=stop_after=2"]) == 0
    log = out / "train.jsonl"
    for content in (
        b"\xff\xfe\n",
        b'{"step": 1}\n[1]\n{"step": 2}\n',
        b'{"step": "1"}\n{"step": 2}\n',
    ):
        log.write_bytes(content)
        assert not runs_on(arguments, capsys)
    log.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    assert runs_on(arguments, capsys)
    assert [record["step"] for record in read_log(log)] == [1, 5]


@pytest.mark.parametrize("verb", ["rewrite", "parse"])
@pytest.mark.parametrize("name", ["o.jsonl.part", "o.jsonl.settings.json"])
def test_spoilt_records(
    verb: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines(tmp_path / "c.txt", ["a red dog on a mat", "a cat", "two men in hats"])
    out = tmp_path / "o.jsonl"
    more = ["--rewrites", "negclip,replace"] if verb == "rewrite" else []
    arguments = [verb, str(source), "-o", str(out), *more]
    assert main(arguments) == 0
    whole = out.read_bytes()
    settings = (tmp_path / "o.jsonl.settings.json").read_bytes()
    part = tmp_path / "o.jsonl.part"
    part.write_bytes(whole[:-9])
    for _ in ways_to_spoil(tmp_path / name, 10, json_lines=name.endswith(".part")):
        out.unlink(missing_ok=True)
        if name != part.name:
            part.write_bytes(whole[:-9])
        if runs_on(arguments, capsys):
            assert len(out.read_bytes().splitlines()) == len(whole.splitlines())
        if name == part.name:
            (tmp_path / "o.jsonl.settings.json").write_bytes(settings)


@pytest.mark.parametrize("name", ["settings.json", "000.jsonl.json"])
def test_spoilt_manifests(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = corpus(tmp_path / "in", ".jsonl", shards=1), tmp_path / "out"
    arguments = ["rewrite", str(source), "-o", str(out), "--rewrites", "negclip"]
    assert main(arguments) == 0
    for _ in ways_to_spoil(out / "manifest" / name, 10):
        runs_on(arguments, capsys)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("name", ["pack.json", "pack-000000.json"])
def test_a_spoilt_pack_is_finished_or_refused(name: str, finished: bool, tmp_path: Path) -> None:
    request = Request(str(write_data(tmp_path / "data", count=4)))
    spec, out = PackSpec(size=8, shard_size=3), tmp_path / "out"
    pack(request, out, spec)
    record = json.loads((out / "pack.json").read_text())
    counts = {**record["packed"], "samples": 3, "shards": 1}
    if not finished:
        del record["packed"]
    keep = tmp_path / "keep"
    shutil.copytree(out, keep)
    for file, value in (("pack.json", record), ("pack-000000.json", counts)):
        (keep / file).write_text(json.dumps(value))
    for _ in ways_to_spoil(keep / name, 24):
        shutil.rmtree(out)
        shutil.copytree(keep, out)
        found = goes_on_or_one_line(lambda: pack(request, out, spec))
        assert found is None or found.samples >= 0


def test_spoilt_companions_are_made_again(tmp_path: Path) -> None:
    path, array = tmp_path / "neighbours.safetensors", np.array([[1], [2], [0]])

    def read() -> NDArray[np.int64]:
        return Companions.load_or_make(path, array.shape, True, lambda: array).values

    read()
    for _ in ways_to_spoil(path, 60):
        assert np.array_equal(read(), array)  # made again


class Parrot:
    """An engine that answers with the question."""

    name, model, concurrency = "parrot", "parrot", 1

    def ask(self, messages: object, sampling: Sampling) -> Answer:
        return Answer("a blue dog on a mat\na red dog near a mat", tokens_in=3, tokens_out=4)


def test_spoilt_answers_are_used_or_refused(tmp_path: Path) -> None:
    task, asking = load_task("negatives"), Asking(0.0, 50)
    captions = ["a red dog on a mat", "a cat", "two men in hats"]
    numbers = {caption: number for number, caption in enumerate(captions)}
    items = [(str(number), [caption]) for caption, number in numbers.items()]
    out = Outputs(tmp_path / "o.jsonl")

    def ask() -> AnswerTally:
        collected = collect(task, captions, Parrot(), asking, out.answers, {"made": "of"})
        return write_outputs(task, items, numbers, collected, {}, out)

    assert ask().answers == 4  # one of them was of no use
    settings = out.answers.with_name(f"{out.answers.name}.settings.json").read_bytes()
    for _ in ways_to_spoil(out.answers, 60, json_lines=True):
        found = goes_on_or_one_line(ask)
        assert found is None or found.rows == 3
        out.answers.with_name(f"{out.answers.name}.settings.json").write_bytes(settings)


def test_a_spoilt_job_of_the_lab_is_read_or_refused(tmp_path: Path) -> None:
    job = Job(tmp_path, LabSettings((), ("aro",), ""), None, 0, "w")
    job.folder.mkdir(parents=True)
    done = {"name": "base", "seconds": 1.5, "speed": 0.0, "made_from": job.made_from()}
    path = job.folder / DONE
    path.write_text(json.dumps(done))
    assert goes_on_or_one_line(lambda: outcome(job))
    for _ in ways_to_spoil(path, 60):
        found = goes_on_or_one_line(lambda: outcome(job))
        assert found is None or found.seconds + found.speed >= 0
