"""Files are read with one clear line when that fails, and written whole; lines and rows."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from build.tables import write_parquet
from compoclip import tables
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import (
    file_stems,
    new_folder,
    read_json,
    replacing,
    write_atomically,
    write_text,
)
from compoclip.records import read_records
from compoclip.tables import read_delimited, read_jsonl, read_lines


def full(place: Path) -> None:
    place.write_text("half")
    raise OSError(28, "No space left on device")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "below" / "x.txt"
    for name in ("ä" * 120, "x" * 250):
        write_text(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"
    target.parent.mkdir()
    target.write_bytes(b'\xef\xbb\xbf{"a": [1, null]}')
    assert read_json(target) == {"a": [1, None]}  # with a byte order mark
    write_atomically(target, lambda place: place.write_text("new"))
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_a_file_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace = os.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: done.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    monkeypatch.setattr(os, "replace", lambda *a: [done.append("renamed"), replace(*a)])
    write_text(tmp_path / "a.txt", "new")
    assert [Path(each).name for each in done] == ["a.txt", "renamed", tmp_path.name]
    done.clear()
    with replacing(tmp_path / "b.txt", flush=False):
        pass
    assert done == ["renamed"]


def test_a_failure_leaves_the_old_file_alone_and_is_one_line(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    target.write_text("old")
    with pytest.raises(CompoclipError, match=r"x\.json: cannot be written \(No space left on dev"):
        write_atomically(target, full)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(CompoclipError, match="cannot be written"):
        write_atomically(target / "below" / "y", lambda place: place.write_text(""))


def test_an_interrupt_leaves_nothing_and_passes_through(tmp_path: Path) -> None:
    for block in (replacing, new_folder):
        with pytest.raises(KeyboardInterrupt), block(tmp_path / "x"):
            raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_files_have_the_usual_rights_whoever_writes_them(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.write_text("")
    tensors = {"x": np.zeros(3, np.float32)}
    write_atomically(tmp_path / "a", lambda place: save_file(tensors, place))
    with new_folder(tmp_path / "b") as folder:
        save_file(tensors, folder / "c")
    assert mode(tmp_path / "a") == mode(tmp_path / "b" / "c") == mode(usual)


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()  # an empty one may be there
    with new_folder(target) as folder:
        (folder / "below").mkdir()
        (folder / "below" / "x").write_text("1")
        (folder / "y").write_text("2")
        assert list(target.iterdir()) == []
    assert (target / "below" / "x").read_text() == "1"
    with (
        pytest.raises(CompoclipError, match="out: already exists; choose another"),
        new_folder(target),
    ):
        pytest.fail("entered")
    with (
        pytest.raises(CompoclipError, match=r"other: cannot be written \(No space left on device"),
        new_folder(tmp_path / "other") as folder,
    ):
        full(folder / "x")
    assert os.listdir(tmp_path) == ["out"]


WRITER = """
import sys, time
from pathlib import Path
from compoclip.files import new_folder, replacing
with new_folder(Path(sys.argv[1]) / "model") as folder, replacing(Path(sys.argv[1]) / "x") as file:
    (folder / "weights").write_text("half")
    file.unlink()
    file.write_text("half")  # as safetensors does: another file of that name
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_with_the_next_write_and_a_living_one_is_left_alone(
    tmp_path: Path,
) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    dead, living = writers
    for each in writers:
        assert each.stdout.readline() == "writing\n"
    assert len(os.listdir(tmp_path)) == 4
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    other = tmp_path / ".notes.0123abcd.tmp"  # of the same form and not ours
    other.mkdir()
    (other / "x").write_text("")
    (
        tmp_path / f".y.89abcdef.{os.uname().nodename}-{dead.pid}.tmp"
    ).mkdir()  # before its first file
    assert len(os.listdir(tmp_path)) == 6
    write_atomically(tmp_path / "y", lambda place: place.write_text("y"))
    assert len(os.listdir(tmp_path)) == 4  # y, the foreign one, two of the living writer
    living.communicate("")
    assert living.returncode == 0
    assert sorted(os.listdir(tmp_path)) == [other.name, "model", "x", "y"]
    assert (tmp_path / "model" / "weights").read_text() == (tmp_path / "x").read_text() == "half"


def test_of_two_that_write_one_folder_the_second_is_told(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def write(name: str) -> None:
        with new_folder(target) as folder:
            (folder / name).write_text("")
            if name == "slow":
                write("quick")

    with pytest.raises(CompoclipError, match=r"out: cannot be written \(Directory not empty\)"):
        write("slow")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "quick"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "x.json: no such file; look elsewhere"),
        (b"{", "x.json: not valid JSON .*; fetch it"),
        (b"\xff\xfe", "x.json: not UTF-8 text .*; fetch it"),
        (b"[" * 100_000, "x.json: not valid JSON .*; fetch it"),
        (b"1" * 10_000, "x.json: not valid JSON .*; fetch it"),
    ],
)
def test_json_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CompoclipError, match=message) as caught:
        read_json(path, absent="look elsewhere", damaged="fetch it")
    assert "\n" not in str(caught.value)
    with pytest.raises(CompoclipError, match="cannot be read"):
        read_json(tmp_path)


# --- Lines and rows: what small files may unpack to, and how errors name their place. ---


MiB = 1 << 20


def squeezed(path: Path, line: bytes, times: int) -> Path:
    """A .gz file of `times` times the same bytes."""
    with gzip.open(path, "wb") as file:
        block = line * (1 + MiB // len(line))
        for _ in range(-(-len(line) * times // len(block))):
            file.write(block)
    return path


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_small_file_that_holds_one_endless_line(tmp_path: Path) -> None:
    path = squeezed(tmp_path / "a.jsonl.gz", b"x", 80 * MiB)
    assert path.stat().st_size < MiB
    before = peak()
    with pytest.raises(CompoclipError, match=r"a\.jsonl\.gz: line 1 is longer than 16 MiB"):
        list(read_jsonl(path))
    assert peak() - before < 60 * MiB


def test_a_small_file_of_endless_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_UNPACKED_FREE", 2 * MiB)
    line = json.dumps({"image": "1.jpg", "caption": "x"}).encode() + b"\n"
    path = squeezed(tmp_path / "a.jsonl.gz", line, 6 * MiB // len(line))
    with pytest.raises(CompoclipError, match=r"a\.jsonl\.gz: unpacks to more than 100 times"):
        for _ in read_lines(path):
            pass
    small = squeezed(tmp_path / "b.jsonl.gz", line, 1000)
    assert sum(1 for _ in read_jsonl(small)) > 1000


def test_long_lines_and_cells_of_plain_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MAX_LINE_BYTES", 100)
    lines = tmp_path / "a.txt"
    lines.write_bytes(b"x" * 99 + b"\n" + b"y" * 100 + b"\n")
    with pytest.raises(CompoclipError, match=r"a\.txt: line 2 is longer than"):
        list(read_lines(lines))
    table = tmp_path / "a.csv"
    table.write_text("image,caption\n1.jpg,x\n2.jpg," + "y" * 100)
    with pytest.raises(CompoclipError, match=r"a\.csv: line 3 is longer than"):
        list(read_delimited(table))
    table.write_text('image,caption\n1.jpg,"' + "a line\n" * 20 + '"\n')
    with pytest.raises(CompoclipError, match=r"a\.csv: line \d+: field larger than field limit"):
        list(read_delimited(table))


@pytest.mark.parametrize(
    "cells", [[0] * 50_000, ["x" * (3 * MiB)]], ids=["endless rows", "an endless text"]
)
def test_a_small_parquet_file_that_unpacks_to_much(
    cells: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MAX_UNPACKED_FREE", 2 * MiB)
    options = {"compression": "zstd", "write_statistics": False}
    path = write_parquet(tmp_path / "a.parquet", {"caption": cells}, **options)
    assert path.stat().st_size < MiB // 256
    with pytest.raises(CompoclipError, match=r"a\.parquet: unpacks to more than 100 times"):
        list(read_records(path))


def test_byte_order_marks_and_line_ends(tmp_path: Path) -> None:
    for name, opened in (("a.jsonl", open), ("a.jsonl.gz", gzip.open)):
        path = tmp_path / name
        with opened(path, "wb") as file:
            file.write(b"\xef\xbb\xbfone\r\n\xe2\x80\xa8two\n\nthree")
        assert list(read_lines(path)) == [(1, "one"), (2, "\u2028two"), (3, ""), (4, "three")]


def test_the_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"image,caption\n" + b"1.jpg,x\n" * 20_000 + b"1.jpg,\xc3\n" + b"1.jpg,x\n")
    with pytest.raises(CompoclipError, match=r"a\.csv: line 20002 is not UTF-8 text .*convert"):
        list(read_delimited(path))


# --- Names of models and benchmarks as names of files. ---


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("org/clip", "org:clip"),
        ("org/clip", "org_clip"),
        ("a b", "a|b"),
        ("a\\b", "a/b"),
        ("a*", "a?"),
        ('a"', "a<"),
        ("a\n", "a>"),
        (".a", "a"),
        ("..", "_"),
        ("", "."),
    ],
)
def test_names_of_one_file_are_refused(one: str, other: str) -> None:
    assert [*file_stems([one, "b", one])] == [one, "b"]
    with pytest.raises(UsageError, match=r"^'.*' and '.*' have one file name, .*; rename one$"):
        file_stems([one, "b", other])


def test_names_as_files() -> None:
    names = ["a/b", "hf-hub:org/clip", "..x"]
    assert [*file_stems(names).values()] == ["a_b", "hf-hub_org_clip", "x"]
