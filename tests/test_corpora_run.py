"""Whole corpora: workers, killed runs, finished shards, bad shards, outputs that fail."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from compoclip import files
from compoclip.cli.main import main
from compoclip.cluster import run as run_tasks
from compoclip.config import Engine
from compoclip.corpora.job import RewriteJob
from compoclip.corpora.shard import ShardResult, ShardTask, find_shards, make_shard
from compoclip.errors import CompoclipError
from compoclip.files import content_hash
from compoclip.patterns import SHARD_FILES
from compoclip.rewrites.records import Settings
from corpus_shards import captions, contents, corpus, write_jsonl, write_parquet, write_tar

pytestmark = pytest.mark.usefixtures("warm_workers")
Capture = pytest.CaptureFixture[str]


def run(verb: str, *arguments: str | Path) -> int:
    return main([verb, *map(str, arguments)])


def rewrite(*arguments: str | Path) -> int:
    return run("rewrite", "--rewrites", "negclip,synonym", *arguments)


def shards_only(folder: Path) -> dict[str, str]:
    return {n: d for n, d in contents(folder).items() if not n.startswith("manifest")}


def test_the_verb_says_what_it_did(tmp_path: Path, capsys: Capture) -> None:
    source = corpus(tmp_path / "in", ".parquet")
    assert rewrite(source, "-o", tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("3 shards written in ")
    assert "0 were there already; 0 left out" in shown
    left_out = "3 x empty caption, 3 x sample without a caption"
    assert f"18 rows with 15 captions (left out: {left_out})" in shown
    assert "no-synonym" in shown
    assert rewrite(source, "-o", tmp_path / "out", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["from_before"] == ["000.parquet", "001.parquet", "002.parquet"]
    assert report["total"]["captions"] == 15
    assert report["shards"]["001.parquet"]["rows"] == 6
    assert report["total"]["rewrites"]["negclip"]["made"] == sum(
        counts["rewrites"]["negclip"]["made"] for counts in report["shards"].values()
    )
    assert report["settings"]["rewrites"][0].startswith("negclip ")
    assert run("parse", source, "-o", tmp_path / "parsed") == 0
    assert "objects" in capsys.readouterr().out


def test_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in", ".tar", shards=4)
    for workers in (1, 2):
        assert rewrite(source, "-o", tmp_path / str(workers), "--workers", str(workers)) == 0
    one = contents(tmp_path / "1")
    assert len(one) == 4 + 5
    assert one == contents(tmp_path / "2")


def test_finished_shards_are_not_made_again(tmp_path: Path, capsys: Capture) -> None:
    source, out = corpus(tmp_path / "in", ".jsonl"), tmp_path / "out"
    assert rewrite(source, "-o", out) == 0
    settings = json.loads((out / "manifest" / "settings.json").read_text())
    assert settings["job"] == "rewrite"
    assert {"seed", "epoch", "tagger", "parser", "lexicon", "column"} <= set(settings)
    known = json.loads((out / "manifest" / "000.jsonl.json").read_text())
    assert known["content"] == content_hash(out / "000.jsonl")
    assert known["source"] == str(source / "000.jsonl")
    assert known["counts"]["captions"] == 5
    whole = contents(out)
    times = {name: (out / name).stat().st_mtime_ns for name in whole}
    shard = out / "000.jsonl"
    shard.write_bytes(shard.read_bytes().swapcase())  # as long as it was
    (out / "manifest" / "001.jsonl.json").write_text("{torn")
    second = out / "manifest" / "002.jsonl.json"
    second.write_text(second.read_text().replace("{", '{"more": 1, ', 1))
    (out / ".001.jsonl.part").write_text("what a killed run left")
    assert rewrite(source, "-o", out) == 0
    assert contents(out) == whole
    after = {name: (out / name).stat().st_mtime_ns for name in whole}
    assert {name for name in whole if after[name] == times[name]} == {"manifest/settings.json"}
    stay = {*whole} - {"000.jsonl", "manifest/000.jsonl.json"}
    shard.write_bytes(shard.read_bytes()[:-9])
    assert rewrite(source, "-o", out) == 0
    same = {name for name in whole if after[name] == (out / name).stat().st_mtime_ns}
    assert same == stay
    write_jsonl(source / "002.jsonl", ["a red cup on a blue table"])  # another file now
    assert rewrite(source, "-o", out) == 0
    assert contents(out)["002.jsonl"] != whole["002.jsonl"]
    # What an earlier run wrote of a shard that is gone is named, and not counted.
    (source / "001.jsonl").unlink()
    capsys.readouterr()
    assert rewrite(source, "-o", out, "--json") == 0
    shown = capsys.readouterr()
    assert "also holds 1 shard of other data, such as 001.jsonl, not counted" in shown.err
    record = json.loads(shown.out)
    assert record["of_other_data"] == ["001.jsonl"]
    assert sorted(record["shards"]) == ["000.jsonl", "002.jsonl"]


def test_other_settings_and_other_sources_are_refused(tmp_path: Path, capsys: Capture) -> None:
    source, out = corpus(tmp_path / "in", ".jsonl", shards=1), tmp_path / "out"
    assert rewrite(source, "-o", out) == 0
    whole = contents(out)
    capsys.readouterr()
    for more in (("--seed", "1"), ("--epoch", "1"), ("--column", "caption")):
        assert rewrite(source, "-o", out, *more) == 2
        error = capsys.readouterr().err
        assert "was made with other settings" in error
        assert error.count("\n") == 1
    assert run("parse", source, "-o", out) == 2
    assert "job was" in capsys.readouterr().err
    time.sleep(0.01)
    other = corpus(tmp_path / "other", ".jsonl", shards=1)
    assert rewrite(other, "-o", out) == 1
    assert "was made from" in capsys.readouterr().err
    assert contents(out) == whole
    (out / "manifest" / "settings.json").write_text("{")
    assert rewrite(source, "-o", out) == 1
    assert "settings.json: not valid JSON" in capsys.readouterr().err


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) * 2 // 3],
    "noise": lambda data: data[: len(data) // 2] + b"\xff\0\xfe" * 20 + data[len(data) // 2 + 60 :],
    "other": lambda data: b"<html>not found</html>\n" * 50,
}


@pytest.mark.parametrize(
    ("kind", "how"),
    # Nothing in a tar tells that an image is damaged.
    [(kind, how) for kind in SHARD_FILES for how in SPOILT if (kind, how) != (".tar", "noise")],
)
def test_bad_shards_are_named_and_the_others_go_on(
    kind: str, how: str, tmp_path: Path, capsys: Capture
) -> None:
    source, out = corpus(tmp_path / "in", kind), tmp_path / "out"
    bad = source / f"000{kind}"
    good = bad.read_bytes()
    bad.write_bytes(SPOILT[how](good))
    assert rewrite(source, "-o", out) == 1
    shown = capsys.readouterr()
    (line,) = (line for line in shown.err.splitlines() if str(bad) in line)
    assert line.startswith("left out: ")
    assert "Traceback" not in shown.err
    assert "1 shard left out, 0 allowed (--max-bad)" in shown.err
    assert "2 shards written" in shown.out
    assert sorted(shards_only(out)) == [f"001{kind}", f"002{kind}"]
    assert rewrite(source, "-o", out, "--max-bad", "1") == 0
    assert "2 were there already; 1 left out" in capsys.readouterr().out
    bad.write_bytes(good)
    assert rewrite(source, "-o", out) == 0
    assert rewrite(source, "-o", tmp_path / "fresh") == 0
    assert shards_only(out) == shards_only(tmp_path / "fresh")


def test_an_empty_file_and_shards_without_rows(tmp_path: Path, capsys: Capture) -> None:
    source = tmp_path / "in"
    write_parquet(source / "a.parquet", [])
    (source / "b.parquet").write_bytes(b"")
    assert rewrite(source, "-o", tmp_path / "out") == 2  # a column of nothing holds no text
    assert "holds null, not captions" in capsys.readouterr().err
    write_parquet(source / "a.parquet", captions(0))
    assert rewrite(source, "-o", tmp_path / "out") == 1
    assert "b.parquet: not a whole Parquet file" in capsys.readouterr().err
    lines = write_jsonl(tmp_path / "lines" / "b.jsonl", captions(0)).parent
    (lines / "a.jsonl").write_text("")
    assert rewrite(lines, "-o", tmp_path / "lines-out") == 0
    assert (tmp_path / "lines-out" / "a.jsonl").read_bytes() == b""


def test_wrong_columns_are_told_before_any_work(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    for kind in (".parquet", ".jsonl.gz"):
        source = corpus(tmp_path / kind[1:], kind)
        assert rewrite(source, "-o", out, "--column", "txt") == 2
        assert "no column 'txt'; the columns are:" in capsys.readouterr().err
        assert not out.exists()
    write_parquet(tmp_path / "n.parquet", captions(0), text=list(range(6)))
    assert rewrite(tmp_path / "n.parquet", "-o", out, "--column", "text") == 2
    assert "holds int64, not captions" in capsys.readouterr().err
    write_parquet(tmp_path / "n.parquet", captions(0), neg_caption=["x"] * 6)
    assert rewrite(tmp_path / "n.parquet", "-o", out) == 1
    assert "has a field 'neg_caption' already" in capsys.readouterr().err
    write_tar(tmp_path / "n.tar", ["a dog"], [("9.txt", b"a cat"), ("9.json", b'{"neg_rule": 1}')])
    assert rewrite(tmp_path / "n.tar", "-o", tmp_path / "tars") == 1
    assert "n.tar, sample 9: has a field 'neg_rule' already" in capsys.readouterr().err


def test_wrong_requests(tmp_path: Path, capsys: Capture) -> None:
    source = corpus(tmp_path / "in", ".jsonl", shards=1)
    for arguments, code, message in (
        ((source,), 2, "name a folder for the shards"),
        ((source, "-o", tmp_path / "o.jsonl"), 2, "name a folder for the shards"),
        ((source, "-o", source), 2, "holds the shards themselves"),
        ((source, "-o", tmp_path / "o", "--max-bad", "-1"), 2, "--max-bad"),
        ((source, "-o", tmp_path / "o", "--workers", "0"), 2, "--workers"),
        ((tmp_path / "{0..x}.tar", "-o", tmp_path / "o"), 2, "neither a range"),
        ((tmp_path / "none-*.tar", "-o", tmp_path / "o"), 1, "no shard there"),
        ((tmp_path / "none.tar", "-o", tmp_path / "o"), 1, "none.tar: no such file"),
    ):
        assert rewrite(*arguments) == code
        assert message in capsys.readouterr().err
    lone = source / "000.jsonl"  # one file may become records or a shard
    for name, made in (("records.jsonl", "records.jsonl"), ("folder", "folder/000.jsonl")):
        assert rewrite(lone, "-o", tmp_path / name) == 0
        assert (tmp_path / made).is_file()


def test_what_cannot_be_written_stops_the_run(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = corpus(tmp_path / "in", ".parquet")
    (tmp_path / "file").write_text("")
    assert rewrite(source, "-o", tmp_path / "file" / "out") == 1
    assert "cannot be written" in capsys.readouterr().err

    synced = files.sync

    def full(path: Path) -> None:
        if ".parquet" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", full)
        assert rewrite(source, "-o", tmp_path / "out") == 1
    error = capsys.readouterr().err
    assert "000.parquet: cannot be written (No space left on device)" in error
    assert error.count("\n") == 1
    assert shards_only(tmp_path / "out") == {}
    assert rewrite(source, "-o", tmp_path / "out") == 0
    assert len(shards_only(tmp_path / "out")) == 3


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    for shard in range(6):
        texts = [f"{text} {i}" for i in range(12) for text in captions(0)]
        write_jsonl(source / f"{shard}.jsonl.gz", texts)
    command = [sys.executable, "-m", "compoclip", "rewrite", str(source), "--rewrites", "negclip"]
    with subprocess.Popen([*command, "--workers", "2", "-o", str(out)]) as process:
        while not any(out.glob("*.gz")):
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()
    time.sleep(0.5)  # workers end with the process that started them
    written = shards_only(out)
    assert 0 < sum(not name.startswith(".") for name in written) < 6
    time.sleep(0.5)
    assert shards_only(out) == written
    for folder in (out, tmp_path / "whole"):
        assert run("rewrite", source, "--rewrites", "negclip", "-o", folder) == 0
    assert contents(out) == contents(tmp_path / "whole")


# --- Workers that die are replaced; Ray gives what processes give. ---


JOB = RewriteJob(Settings(("negclip",)))


def die_once(task: ShardTask) -> ShardResult:
    """Make the shard, but the first time 001 is asked for leave a torn file and be killed."""
    mark = task.out.parent / "died"
    if task.source.name.startswith("001") and not mark.exists():
        mark.write_text("")
        task.target.with_name(f".{task.source.name}.part").write_bytes(b"torn")
        os.kill(os.getpid(), signal.SIGKILL)
    return make_shard(task)


def die(task: object) -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def tasks(source: Path, out: Path) -> list[ShardTask]:
    out.mkdir()
    return [ShardTask(path, out, JOB) for path in find_shards(str(source))]


def test_one_worker_needs_no_process() -> None:
    assert list(run_tasks(str, [1, 2, 3])) == ["1", "2", "3"]
    assert list(run_tasks(str, [], workers=3)) == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_killed_worker_is_replaced_and_one_that_always_dies_is_given_up(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="needs Ray")
        paths = [str(Path(__file__).parent), *sys.path]  # for `die_once`
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    source = corpus(tmp_path / "in", ".jsonl", shards=3)
    results = list(run_tasks(die_once, tasks(source, tmp_path / "out"), workers=2, engine=engine))
    assert (tmp_path / "died").exists()
    assert sorted(r.name for r in results) == ["000.jsonl", "001.jsonl", "002.jsonl"]
    assert all(r.counts for r in results)
    list(run_tasks(make_shard, tasks(source, tmp_path / "whole")))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    with pytest.raises(CompoclipError, match="workers died 4 times"):
        list(run_tasks(die, [1], workers=2, engine=engine))


@pytest.mark.slow
def test_ray_gives_what_processes_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs Ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    source = corpus(tmp_path / "in", ".parquet")
    assert rewrite(source, "-o", tmp_path / "a", "--engine", "ray", "--workers", "2") == 0
    assert rewrite(source, "-o", tmp_path / "b") == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
