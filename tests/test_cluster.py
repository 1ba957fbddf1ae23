"""A Ray cluster of two workers writes the files that one process writes, also when workers fail."""

from __future__ import annotations

import json
import os
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from build.photos import write_noise
from compoclip import cluster
from compoclip.cli.main import main
from compoclip.cluster import Needs, RayWorkers
from compoclip.data.options import PackSpec
from compoclip.data.pack import PackSummary, pack_shard
from compoclip.data.sources.open import Request
from compoclip.errors import CompoclipError
from compoclip.evaluation import ModelEncoder
from compoclip.search import PhotoIndex, index_photos, read_index
from compoclip.search.photos import EncodedPhotos, _encode
from test_data_pack import bytes_of, write_rows

PHOTOS, BATCH = 40, 2  # three tasks: each is eight batches
MARK = "COMPOCLIP_TEST_MARK"


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a cluster of two workers in a folder of its own; give the mark of `once`."""
    ray = pytest.importorskip("ray", reason="needs Ray")
    folder, before = tmp_path_factory.mktemp("cluster"), os.getcwd()
    mark = folder / "mark"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        patch.setenv(MARK, str(mark))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        settings = {"include_dashboard": False, "object_store_memory": 80 << 20}
        ray.init("local", num_cpus=2, log_to_driver=False, logging_level="ERROR", **settings)
    assert os.getcwd() == before
    yield mark
    ray.shutdown()


@pytest.fixture
def mark(two_workers: Path) -> Path:
    two_workers.unlink(missing_ok=True)
    return two_workers


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(PHOTOS):
        write_noise(folder / f"{number:02d}.png", number)
    (folder / "03.png").write_bytes(b"torn")
    return folder


Index = Callable[..., PhotoIndex]


@pytest.fixture(scope="module")
def index(photos: Path, encoder: ModelEncoder, world: Path) -> Index:
    """Index the photos in a file, which is all that has to be named."""

    def indexed(out: Path, **more: Any) -> PhotoIndex:
        return index_photos(Request(str(photos)), encoder, out, str(world / "base"), BATCH, **more)

    return indexed


def once(first_row: int, task_row: int) -> bool:
    """Return whether a task is the one that is to fail, the first time that it is tried."""
    mark = Path(os.environ[MARK])
    if first_row != task_row or mark.exists():
        return False
    mark.write_text("")
    return True


def killed(photos: dict[int, Any], **settings: Any) -> list[EncodedPhotos]:
    if once(16, min(photos)):
        os.kill(os.getpid(), signal.SIGKILL)
    return _encode(photos, **settings)


def failing(photos: dict[int, Any], **settings: Any) -> list[EncodedPhotos]:
    if once(16, min(photos)):
        raise CompoclipError("photos: the disk is gone; try again")
    return _encode(photos, **settings)


def killed_pack(
    request: Request, out: Path, spec: PackSpec, max_bad: int, number: int
) -> PackSummary:
    if once(1, number):
        os.kill(os.getpid(), signal.SIGKILL)
    return pack_shard(request, out, spec, max_bad, number)


# --- The index. ---


@pytest.mark.slow
def test_an_index_is_that_of_one_process(two_workers: Path, index: Index, tmp_path: Path) -> None:
    for vectors in ("float32", "int8"):
        one, many = tmp_path / f"one-{vectors}", tmp_path / f"many-{vectors}"
        index(one, vectors=vectors)
        written = index(many, vectors=vectors, engine="ray")
        assert one.read_bytes() == many.read_bytes()
    assert written.about["changes"]["encoded"] == len(written.names) == PHOTOS - 1
    assert [*written.about["unreadable"]] == ["03.png"]


@pytest.mark.slow
def test_photos_of_shards_are_read_by_the_workers(
    two_workers: Path, photos: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All paths are relative: workers are in another folder."""
    monkeypatch.chdir(tmp_path)
    with tarfile.open("0.tar", "w") as tar:
        for number in range(4, 9):
            tar.add(photos / f"{number:02d}.png", f"{number}.png")
            Path("caption").write_text(f"photo {number}")
            tar.add("caption", f"{number}.txt")
    command = ["index", "0.tar", "--model", str(world / "base"), "--device", "cpu", "--out"]
    assert main([*command, "one"]) == main([*command, "many", "--engine", "ray"]) == 0
    assert Path("one").read_bytes() == Path("many").read_bytes()
    assert len(read_index(Path("many")).names) == 5


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(
    mark: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compoclip.search.photos._encode", killed)
    index(tmp_path / "many", engine="ray")
    assert mark.exists()
    index(tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()


@pytest.mark.slow
def test_a_stopped_index_resumes(
    mark: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compoclip.search.photos._encode", failing)
    out = tmp_path / "many"
    with pytest.raises(CompoclipError, match=r"^photos: the disk is gone; try again$"):
        index(out, engine="ray")
    part = read_index(out)
    assert (len(part.names), len(part.about["unreadable"])) == (15, 1)
    assert part.about["left_out"] == {"not yet encoded": PHOTOS - 16}
    resumed, whole = index(out, engine="ray"), index(tmp_path / "one")
    assert resumed.about["changes"] == {"encoded": PHOTOS - 16, "unchanged": 15, "removed": 0}
    assert np.array_equal(resumed.features[:], whole.features[:])
    assert (resumed.names, resumed.stamps) == (whole.names, whole.stamps)


@pytest.mark.slow
def test_workers_refuse_another_model(
    two_workers: Path, photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    with pytest.raises(CompoclipError, match=r"bundled: another model on .*; every machine"):
        index_photos(Request(str(photos)), encoder, tmp_path / "i", "bundled", engine="ray")
    assert not (tmp_path / "i").exists()


# --- The pack. ---


@pytest.mark.slow
def test_a_pack_is_that_of_one_process(
    mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("in"), bad=(3,))
    command = ["data", "pack", "in/rows.jsonl", "--size=24", "--shard-size=3"]
    assert main([*command, "--out", "one", "--max-bad", "2"]) == 0
    monkeypatch.setattr("compoclip.data.pack.pack_shard", killed_pack)
    many = [*command, "--out", "many", "--engine", "ray"]
    assert main([*many, "--max-bad", "1"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("compoclip data: 2 unreadable images, 1 allowed: ")
    assert mark.exists()
    assert "packed" not in json.loads(Path("many/pack.json").read_text())
    assert main([*many, "--max-bad", "2"]) == 0
    assert bytes_of(Path("one")) == bytes_of(Path("many"))
    packed = json.loads(Path("many/pack.json").read_text())["packed"]
    assert (packed["samples"], packed["left_out"]["unreadable image"]) == (8, 1)


# --- The cluster. ---


@pytest.mark.parametrize(
    ("nodes", "needs", "slots"),
    [
        ([{"CPU": 8.0}], Needs(), 8),
        ([{"CPU": 8.0}, {"CPU": 3.0}], Needs(4), 2),
        ([{"CPU": 8.0, "GPU": 2.0}, {"CPU": 64.0}], Needs(1, gpus=1), 2),
        ([{"CPU": 8.0}], Needs(16), 1),
        ([{"CPU": 8.0}], Needs(1, gpus=1), 1),
    ],
)
def test_tasks_at_once_are_those_that_fit_on_machines(
    nodes: Sequence[dict[str, float]],
    needs: Needs,
    slots: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = {"Alive": False, "Resources": {"CPU": 99.0, "GPU": 9.0}}
    there = [gone, *({"Alive": True, "Resources": resources} for resources in nodes)]
    monkeypatch.setattr(cluster, "optional", lambda *_: SimpleNamespace(nodes=lambda: there))
    assert RayWorkers(1, needs)._slots() == slots
    waits = "waiting for a machine of the Ray cluster with " in capsys.readouterr().err
    assert waits == (needs == Needs(16) or (len(nodes) == 1 and needs.gpus > 0))


@pytest.mark.parametrize("verb", ["rewrite", "index", "data pack"])
def test_without_ray_the_extra_is_named(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    write_rows(tmp_path / "in")
    source = tmp_path / "in" / ("" if verb == "rewrite" else "rows.jsonl")
    arguments = [*verb.split(), str(source), "--engine", "ray", "--out", str(tmp_path / "out")]
    arguments += ["--model", "bundled"] if verb == "index" else []
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error == f"compoclip {verb.split()[0]}: --engine ray needs ray: pip install ray\n"
    assert not (tmp_path / "out").exists()


def test_ray_is_refused_where_no_shards_are_shared_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # nobody need install it to learn so
    (tmp_path / "c.txt").write_text("a red star\n")
    out = str(tmp_path / "o.jsonl")
    for words in (["a red star"], [str(tmp_path / "c.txt"), "-o", out]):
        assert main(["rewrite", *words, "--engine", "ray"]) == 2
        assert "--engine ray shares shards out; name a folder of them" in capsys.readouterr().err
