"""Archives whose end is not their end: no reader takes the members before the damage for all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from build.photos import plain
from build.tables import write_tar, write_text, write_zip
from compoclip.archives import Members, read_members
from compoclip.benchmarks.fetch import unpack
from compoclip.benchmarks.photo_set import read_labelled, read_photo_index
from compoclip.cli.main import main
from compoclip.data.options import DataOptions
from compoclip.data.sources.shards import open_shards
from compoclip.errors import CompoclipError

SAMPLE = 3 * 1024  # bytes of a sample: three members, each a block of header and one of content
END = 4 * SAMPLE


def tar(path: Path) -> bytes:
    """Four samples, each of an image, a caption and a label."""
    kinds = (("png", plain("red", (4, 4))), ("txt", b"a red square"), ("cls", b"0"))
    members = [(f"{number}.{kind}", data) for number in range(4) for kind, data in kinds]
    return write_tar(path, members).read_bytes()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "a bit of a name": lambda data: flipped(data, SAMPLE),
    "a bit of a size": lambda data: flipped(data, SAMPLE + 130),
    "a bit of a checksum": lambda data: flipped(data, SAMPLE + 150),
    "a header of zeros": lambda data: data[:SAMPLE] + bytes(512) + data[SAMPLE + 512 :],
    "two blocks of zeros": lambda data: data[:SAMPLE] + bytes(1024) + data[SAMPLE + 1024 :],
    "a byte too many": lambda data: data[: SAMPLE - 700] + b"x" + data[SAMPLE - 700 :],
    "a byte too few": lambda data: data[: SAMPLE - 700] + data[SAMPLE - 699 :],
    "two archives": lambda data: data + data,
    "no end mark": lambda data: data[:END],
    "half an end mark": lambda data: data[: END + 512],
    "cut in a header": lambda data: data[: 2 * SAMPLE + 100],
    "cut in a content": lambda data: data[: 2 * SAMPLE + 600],
    "one byte short": lambda data: data[: END - 1],
    "empty": lambda data: b"",
    "a header alone": lambda data: data[:512],
    "a tail of zeros": lambda data: data[:SAMPLE] + bytes(len(data) - SAMPLE),
    "900 KiB of zeros behind the end": lambda data: data + bytes(900 << 10),
    "space that was never written": lambda data: data[:SAMPLE] + bytes(2 << 20),
}


READERS: dict[str, Callable[[Path], object]] = {
    "training": lambda shard: open_shards([shard]),
    "images": lambda shard: Members()(shard, "0.png"),
    "labels": lambda shard: read_labelled(shard.parent, DataOptions()),
    "downloads": lambda shard: unpack(shard, shard.parent / "unpacked"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_tar_is_refused_by_every_reader(damage: str, reader: str, tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    shard.write_bytes(DAMAGED[damage](tar(shard)))
    with pytest.raises(CompoclipError, match=r"a\.tar.* again$") as raised:
        READERS[reader](shard)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "unpacked").exists()


@pytest.mark.parametrize(
    ("damage", "place"), [("a bit of a size", "3,072"), ("no end mark", "12,288")]
)
def test_the_damaged_byte_is_named(damage: str, place: str, tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    shard.write_bytes(DAMAGED[damage](tar(shard)))
    with pytest.raises(CompoclipError, match=f"no end mark at byte {place}"):
        open_shards([shard])


@pytest.mark.parametrize("reader", READERS)
def test_a_whole_tar_is_read(reader: str, tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar(shard)[:END] + bytes(1024))  # without padding
    assert READERS[reader](shard)


def test_a_damaged_shard_is_not_rewritten_in_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard, out = tmp_path / "a.tar", tmp_path / "out"
    for change in DAMAGED.values():
        shard.write_bytes(change(tar(shard)))
        assert main(["rewrite", str(shard), "--rewrites=negclip", "-o", str(out)]) == 1
        assert str(shard) in capsys.readouterr().err
        assert [file.name for file in out.iterdir() if file.is_file()] == []


def test_a_zip_with_members_before_its_list_is_refused(tmp_path: Path) -> None:
    """Of two archives in one file the library lists the second one alone."""
    archive = tmp_path / "a.zip"
    parts = [write_zip(archive, {name: "1"}).read_bytes() for name in ("a.png", "b.json")]
    archive.write_bytes(b"".join(parts))
    index = write_text(tmp_path / "test.txt", "a.zip@b.json 0\n")
    for read in (
        lambda: Members()(archive, "b.json"),
        lambda: read_members(archive, {"b": "b.json"}),
        lambda: unpack(archive, tmp_path / "unpacked"),
        lambda: read_photo_index(index),
    ):
        with pytest.raises(CompoclipError, match=r"a\.zip: .* again$"):
            read()
    assert not (tmp_path / "unpacked").exists()
