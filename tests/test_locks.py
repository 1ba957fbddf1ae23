"""One writer at a time: outputs and run folders are locked, and no lock outlives its process."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from build.tables import read_jsonl, write_lines
from compoclip.analysis.interpolation import BaseAndTuned, measure_mixes
from compoclip.benchmarks.fetch import fetch
from compoclip.benchmarks.sources import RemoteFile
from compoclip.cli.main import main
from compoclip.cli.train import train_main as train
from compoclip.corpora.job import ParseJob
from compoclip.corpora.run import process
from compoclip.data.options import PackSpec
from compoclip.data.pack import pack
from compoclip.data.sources.open import Request
from compoclip.errors import CompoclipError
from compoclip.evaluation.run import Options, evaluate
from compoclip.files import LOCK, only_writer
from compoclip.models.checkpoint import load_model
from compoclip.recordfile import appending
from compoclip_world.demo import DemoOptions
from compoclip_world.demo import main as demo_main
from corpus_shards import corpus
from evaluation_helpers import FakeEncoder, choice_benchmark
from lab.run import run_lab
from lab.settings import Arm, LabSettings
from train_helpers import FEW, write_config, write_data

HOLD = """
import sys, time
from pathlib import Path
from compoclip.files import only_writer
with only_writer(Path(sys.argv[1]), folder=sys.argv[2] == "folder"):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def held(out: Path, *, folder: bool) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes `out`."""
    command = [sys.executable, "-c", HOLD, str(out), "folder" if folder else "file"]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.wait()


def refusal(out: Path, holder: subprocess.Popen[str]) -> str:
    name = re.escape(os.uname().nodename)
    return rf"{re.escape(str(out))}: process {holder.pid} on {name} \(.+\) is writing it; wait"


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    with held(tmp_path / "out", folder=True) as holder:
        holder.kill()
        holder.wait()
        assert (tmp_path / "out" / LOCK).exists()  # the file, which nobody holds
        with only_writer(tmp_path / "out", folder=True):
            pass
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert list((tmp_path / "out").iterdir()) == []


def test_a_lock_leaves_no_trace_and_nothing_of_others_goes(tmp_path: Path) -> None:
    with (
        only_writer(tmp_path / "o"),
        only_writer(tmp_path / "other"),
        pytest.raises(CompoclipError, match=f"process {os.getpid()} on"),
        only_writer(tmp_path / "o"),
    ):
        pytest.fail("entered")
    with only_writer(tmp_path / "a" / "b", folder=True):
        assert (tmp_path / "a" / "b" / LOCK).read_text().startswith(f"process {os.getpid()} on ")
    assert list(tmp_path.iterdir()) == []
    with only_writer(tmp_path / "a" / "b.jsonl"):
        (tmp_path / "a" / "b.jsonl").write_text("x")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.jsonl"]
    (tmp_path / "empty").mkdir()
    with only_writer(tmp_path / "empty", folder=True):
        pass
    assert (tmp_path / "empty").is_dir()


def test_a_child_that_was_forked_holds_no_lock(tmp_path: Path) -> None:
    """Workers that read data are forked and end some seconds after a run that is killed."""
    code = f"""
import os, sys, time
from pathlib import Path
from compoclip.files import only_writer
with only_writer(Path({str(tmp_path / "o")!r})):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    os.kill(os.getpid(), 9)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.wait()
    try:
        with only_writer(tmp_path / "o"):
            os.kill(child, 0)  # it is there
    finally:
        os.kill(child, signal.SIGKILL)


def test_who_waits_gets_it_next(tmp_path: Path) -> None:
    with held(tmp_path / "o", folder=False) as holder:
        code = HOLD.replace('folder=sys.argv[2] == "folder"', "wait=True")
        command = [sys.executable, "-c", code, str(tmp_path / "o")]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        assert other.poll() is None
        holder.kill()
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        other.kill()
        other.wait()


def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_locks(handle: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with only_writer(tmp_path / "o"):
        pass
    error = capsys.readouterr().err
    assert error.endswith(
        "o: cannot be locked here (No locks available); let no other run write it\n"
    )


# ---- the jobs that lock


def shards(folder: Path, out: Path) -> None:
    process([*corpus(folder / "in", ".jsonl").iterdir()], out, ParseJob())


def packed(folder: Path, out: Path) -> None:
    pack(Request(str(write_data(folder / "data"))), out, PackSpec())


def training(folder: Path, out: Path) -> None:
    write_config(folder / "config.json", merges=FEW)
    options = ["--from-scratch", f"--model={folder / 'config.json'}", "--batch-size=8"]
    data = write_data(folder / "data")
    train(["clip-ft", *options, f"--data={data}", f"--out={out}"])


def lab(folder: Path, out: Path) -> None:
    run_lab(LabSettings((Arm("one", "clip-ft"),), ("aro",), "one"), out)


def demo(folder: Path, out: Path) -> None:
    demo_main(DemoOptions(out=out, scenes=1, batch_size=1))


def mixes(folder: Path, out: Path) -> None:
    model = load_model("bundled")
    measure_mixes(BaseAndTuned(model, model), {}, [], out, Options(), torch.device("cpu"))


FOLDERS: dict[str, Callable[[Path, Path], None]] = {
    "shards": shards,
    "data pack": packed,
    "train": training,
    "lab": lab,
    "demo": demo,
    "wise-ft --sweep, towers": mixes,
}


@pytest.mark.parametrize("job", FOLDERS)
def test_folders_have_one_writer(job: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        held(out, folder=True) as holder,
        pytest.raises(CompoclipError, match=refusal(out, holder)),
    ):
        FOLDERS[job](tmp_path, out)
    assert [path.name for path in out.iterdir()] == [LOCK]


def written(out: Path) -> None:
    with only_writer(out):
        pytest.fail("entered")


def recorded(out: Path) -> None:
    with appending(out, {"made": "of"}, lambda record: None):
        pytest.fail("entered")


def fetched(out: Path) -> None:
    fetch(RemoteFile(out.name, "http://127.0.0.1:9/b.csv"), out.parent)


@pytest.mark.parametrize("write", [written, recorded, fetched])
def test_files_have_one_writer(write: Callable[[Path], None], tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    with (
        held(out, folder=False) as holder,
        pytest.raises(CompoclipError, match=refusal(out, holder)) as caught,
    ):
        write(out)
    assert "\n" not in str(caught.value)


def test_results_wait_for_another_run_that_writes_them(tmp_path: Path) -> None:
    benchmark = choice_benchmark(tmp_path / "p", n=6, name="one")
    path = tmp_path / "out" / "m" / "one.json"
    with ThreadPoolExecutor(1) as pool:
        with held(path, folder=False):
            made = pool.submit(evaluate, "m", FakeEncoder(), [benchmark], tmp_path / "out")
            time.sleep(1)
            assert [each.name for each in path.parent.iterdir()] == [".one.json.lock"]
        (result,) = made.result()
    assert path.is_file()
    assert Path(result.items).is_file()


def test_two_at_once_into_one_file_leave_every_record_once(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "c.txt", [f"a red dog number {i} on a mat" for i in range(900)])
    out = tmp_path / "o.jsonl"
    asked = ["rewrite", str(source), "-o", str(out), "--rewrites", "negclip"]
    command = [sys.executable, "-m", "compoclip", *asked]
    start = partial(subprocess.Popen, command, stderr=subprocess.PIPE, text=True)
    first = start(stdout=subprocess.DEVNULL)
    while not (tmp_path / ".o.jsonl.lock").exists():
        assert first.poll() is None
        time.sleep(0.01)
    second = start(stdout=subprocess.DEVNULL)
    _, error = second.communicate(timeout=120)
    first.communicate(timeout=120)
    assert first.returncode == 0
    if second.returncode:  # else it began when the first had ended
        (line,) = error.splitlines()
        assert line.startswith(f"compoclip rewrite: {out}: process {first.pid} on ")
    assert [record["id"] for record in read_jsonl(out)] == [str(i) for i in range(1, 901)]
    assert main(asked) == 0
