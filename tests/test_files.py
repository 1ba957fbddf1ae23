"""Files are read with one clear line when that fails, and written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from compoclip.errors import CompoclipError
from compoclip.files import new_folder, read_json, replacing, write_atomically


def full(place: Path) -> None:
    place.write_text("half")
    raise OSError(28, "No space left on device")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "below" / "x.txt"
    write_atomically(target, lambda place: place.write_text("old"))
    write_atomically(target, lambda place: place.write_text("new"))
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


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


def test_very_long_names_and_odd_ones(tmp_path: Path) -> None:
    for name in ("ä" * 120, "x" * 250):
        write_atomically(tmp_path / name, lambda place: place.write_text("x"))
        assert (tmp_path / name).read_text() == "x"


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


def test_json_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"a": [1, null]}')
    assert read_json(tmp_path / "x.json") == {"a": [1, None]}
