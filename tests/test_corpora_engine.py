"""Where shards are worked on: workers that die are replaced, Ray gives what processes give."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from compoclip.cli.main import main
from compoclip.cluster import run
from compoclip.corpora.job import RewriteJob
from compoclip.corpora.shard import ShardResult, ShardTask, find_shards, make_shard
from compoclip.errors import CompoclipError
from compoclip.rewrites.records import Settings
from corpus_shards import contents, corpus

pytestmark = pytest.mark.usefixtures("warm_workers")

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
    assert list(run(str, [1, 2, 3])) == ["1", "2", "3"]
    assert list(run(str, [], workers=3)) == []


@pytest.mark.slow
def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in", ".jsonl", shards=3)
    found = list(run(die_once, tasks(source, tmp_path / "out"), workers=2))
    assert (tmp_path / "died").exists()
    assert sorted(r.name for r in found) == ["000.jsonl", "001.jsonl", "002.jsonl"]
    assert all(r.counts for r in found)
    list(run(make_shard, tasks(source, tmp_path / "whole")))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_workers_that_die_again_and_again_are_given_up() -> None:
    with pytest.raises(CompoclipError, match="workers died 4 times"):
        list(run(die, [1], workers=2))


@pytest.mark.slow
def test_a_killed_ray_worker_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs Ray")
    paths = [str(Path(__file__).parent), *sys.path]  # for `die_once`
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    source = corpus(tmp_path / "in", ".parquet", shards=4)
    found = list(run(die_once, tasks(source, tmp_path / "out"), workers=2, engine="ray"))
    assert (tmp_path / "died").exists()
    assert sorted(r.name for r in found) == [f"{i:03d}.parquet" for i in range(4)]
    list(run(make_shard, tasks(source, tmp_path / "whole")))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    arguments = ["rewrite", str(source), "--rewrites", "negclip"]
    assert main([*arguments, "-o", str(tmp_path / "a"), "--engine", "ray", "--workers", "2"]) == 0
    assert main([*arguments, "-o", str(tmp_path / "b")]) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    with pytest.raises(CompoclipError, match="workers died 4 times"):
        list(run(die, [1], workers=1, engine="ray"))
