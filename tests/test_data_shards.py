"""Tar shards: the index, random access, captions, and tars that are cut off or changed."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

from build.tables import sample, write_tar
from compoclip import patterns
from compoclip.archives import Members, add_member
from compoclip.bounds import MAX_CAPTION_BYTES, MAX_TEXT_CHARACTERS
from compoclip.data.columns import EMPTY_CAPTION, LONG_TEXT, NO_CAPTION, NO_IMAGE, NO_TEXT
from compoclip.data.sources import shards
from compoclip.data.sources.open import Request
from compoclip.data.sources.paths import Data
from compoclip.data.sources.shards import (
    BAD_JSON,
    BAD_NAME,
    BAD_TEXT,
    NO_NEGATIVE_IMAGE,
    NOT_A_FILE,
    SECOND,
    TOO_LONG,
    open_shards,
)
from compoclip.data.sources.table import EMPTY_NEGATIVE, NO_NEIGHBOUR
from compoclip.errors import CompoclipError, UsageError
from compoclip.patterns import expand_braces

pytestmark = pytest.mark.usefixtures("user_cache")


def numbered(path: Path, first: int, count: int) -> Path:
    members = []
    for i in range(first, first + count):
        members += sample(f"{i:04d}", jpg=b"J%d" % i * (i + 1), txt=b"caption %d\n" % i)
    return write_tar(path, members)


def as_json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_samples_of_several_shards_in_order(tmp_path: Path) -> None:
    numbered(tmp_path / "s-000.tar", 0, 5)
    numbered(tmp_path / "s-001.tar", 5, 3)
    for spec in (str(tmp_path), str(tmp_path / "s-{000..001}.tar")):
        source = open_shards(Data(Request(spec)).shards)
        assert len(source) == 8
        for i in (7, 0, 4, 5):
            assert source[i].image == b"J%d" % i * (i + 1)
            assert source[i].captions == (f"caption {i}",)
            assert source[i].id == f"s-00{i // 5}.tar/{i:04d}"
        assert list(source.captions()) == [f"caption {i}" for i in range(8)]
        assert source.left_out == {}
    again = pickle.loads(pickle.dumps(source))  # noqa: S301 our own object
    assert again[6] == source[6]
    with pytest.raises(IndexError):
        source[8]


def test_other_names_of_members(tmp_path: Path) -> None:
    members = [*sample("1", img=b"1", cap=b"one"), *sample("d/2", Caption=b"two", IMG=b"2")]
    members += sample("3", img=b"3", txt=b"three", caption=b"again")
    source = open_shards([write_tar(tmp_path / "a.tar", members)])
    assert [(s.id, s.image, *s.captions) for s in source] == [
        ("a.tar/1", b"1", "one"),
        ("a.tar/d/2", b"2", "two"),
        ("a.tar/3", b"3", "three"),
    ]
    assert source.left_out == {SECOND: 1}


def test_captions_from_json_and_what_is_left_out(tmp_path: Path) -> None:
    turns = [{"from": "gpt", "value": "said"}]  # a cell as tables have it
    members = [
        *sample("d/1", json=as_json(caption="one", alt="other"), jpg=b"1"),
        ("d/2.seg.png", b"not the image"),
        *sample("d/2", json=as_json(text=["two", "zwei"]), PNG=b"2"),
        *sample("d/3", jpg=b"3", txt=b"  \n"),
        *sample("4", txt=b"no image"),
        *sample("5", jpg=b"5"),
        *sample("6", jpg=b"6", json=b"{broken"),
        *sample("7", jpg=b"7", json=as_json(caption=None)),
        *sample("8", jpg=b"8", txt=b"from the text", json=as_json(caption="from json")),
        *sample("9", jpg=b"9", json=as_json(caption=turns)),
    ]
    path = write_tar(tmp_path / "a.tar", members)
    source = open_shards([path])
    got = {s.id: (s.image, s.captions) for s in source}
    assert got == {
        "a.tar/d/1": (b"1", ("one",)),
        "a.tar/d/2": (b"2", ("two", "zwei")),
        "a.tar/8": (b"8", ("from the text",)),
        "a.tar/9": (b"9", ("said",)),
    }
    assert source.left_out == {EMPTY_CAPTION: 1, NO_CAPTION: 4, NO_IMAGE: 1, BAD_JSON: 1}
    other = open_shards([path], caption_key="alt")
    assert list(other.column("captions")) == [("other",)]


def test_links_are_never_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("1.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        for name in ("1.txt", "../../2.jpg", "../../2.txt"):
            add_member(tar, name, b"x")
    source = open_shards([path])
    assert list(source.column("id")) == ["a.tar/../../2"]
    assert source.left_out == {NOT_A_FILE: 1, NO_IMAGE: 1}


def test_a_key_that_comes_twice_gets_an_id_of_its_own(tmp_path: Path) -> None:
    one, two = (sample(key, jpg=b"x", txt=b"x") for key in "12")
    source = open_shards([write_tar(tmp_path / "a.tar", [*one, *two, *one])])
    assert list(source.column("id")) == ["a.tar/1", "a.tar/2", "a.tar/1#2"]


def test_the_index_is_made_once_and_again_when_the_shard_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = numbered(tmp_path / "a.tar", 0, 3)
    open_shards([path])
    scans = []
    scan = shards._scan
    monkeypatch.setattr(shards, "_scan", lambda *a: scans.append(a) or scan(*a))
    assert len(open_shards([path])) == 3
    assert not scans
    numbered(path, 10, 4)
    os.utime(path, ns=(1, 1))
    assert open_shards([path])[0].captions == ("caption 10",)
    assert len(scans) == 1
    index = next(tmp_path.glob(".a.tar*"))
    damaged = bytearray(index.read_bytes())
    damaged[-9] ^= 1
    index.write_bytes(damaged)
    assert len(open_shards([path])) == 4
    assert len(scans) == 2


def test_the_index_goes_to_the_cache_folder_when_the_shard_is_read_only(
    tmp_path: Path, user_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    path = numbered(folder / "a.tar", 0, 3)
    mkdir = Path.mkdir

    def refuse(self: Path, *args: Any, **options: Any) -> None:
        if self.parent == folder:
            raise PermissionError(13, "Permission denied")
        mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert len(open_shards([path])) == 3
    assert [p.name for p in folder.iterdir()] == ["a.tar"]
    assert len(list((user_cache / "compoclip").iterdir())) == 1
    monkeypatch.setattr(shards, "_scan", lambda *a: pytest.fail("indexed twice"))
    assert len(open_shards([path])) == 3


def test_nowhere_to_keep_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = numbered(tmp_path / "a.tar", 0, 3)

    def full(*args: object, **options: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(CompoclipError, match=r"nowhere to cache its index .*No space left"):
        open_shards([path])


def test_no_tar_missing_compressed_and_shrunk(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"<html>" * 1000)
    for name, message in (
        ("a.tar", "not a whole tar file"),
        ("gone-{001..002}.tar", r"gone-001\.tar: shard not found"),
        ("a.tar.gz", "decompress"),
    ):
        with pytest.raises(CompoclipError, match=message):
            open_shards(Data(Request(str(tmp_path / name))).shards)
    source = open_shards([numbered(path, 0, 3)])
    os.truncate(path, 1200)
    with pytest.raises(CompoclipError, match="shorter than when it was indexed"):
        source[2]
    path.unlink()
    with pytest.raises(CompoclipError, match=r"a\.tar"):
        source[0]
    with pytest.raises(CompoclipError, match="no usable sample"):
        open_shards([write_tar(tmp_path / "b.tar", [("1.txt", b"x")])])


def test_brace_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expand_braces("a.tar") == ["a.tar"]
    assert expand_braces("a-{008..011}.tar") == [f"a-{i:03d}.tar" for i in range(8, 12)]
    assert expand_braces("{8..10}") == ["8", "9", "10"]
    assert expand_braces("{a,b}-{0..1}") == ["a-0", "a-1", "b-0", "b-1"]
    monkeypatch.setattr(patterns, "MAX_PATTERN_NAMES", 100)
    bombs = ("{0..99}{0..99}", "{a,b}" * 40, "{0..99}" * 400, "{" * 5000)
    for bad in ("a-{3..1}.tar", "a-{x}.tar", "a-{1..2.tar", *bombs):
        with pytest.raises(UsageError):
            expand_braces(bad)
    with pytest.raises(UsageError, match=r"the range \{0..100\} is empty or too long"):
        expand_braces("a-{0..100}.tar")  # before its names are made


def with_fields(key: str, **fields: object) -> list[tuple[str, bytes]]:
    row = {"caption": f"caption {key}", **fields}
    return sample(key, jpg=key.encode(), json=as_json(**row))


def test_extra_columns(tmp_path: Path) -> None:
    members = [
        *with_fields("0", neg_caption=["no", " "], group="g", score=1.5, image_score=20),
        ("0.neg_image.png", b"made of no"),
        *with_fields("1", neg_caption="not", neg_image="./more/x.jpg"),
        ("more/x.jpg", b"named"),
        *with_fields("2", neg_image="gone.jpg", group=7),
        ("3.txt", b"a caption above a .json member"),
        *with_fields("3", neg_caption="never"),
    ]
    first = write_tar(tmp_path / "a.tar", members)
    source = open_shards([first])
    assert source.left_out == {EMPTY_NEGATIVE: 1, NO_CAPTION: 1, NO_NEGATIVE_IMAGE: 1}
    assert source.brings() == {"negatives", "negative_image", "group"}
    for at in (source, open_shards([first]), pickle.loads(pickle.dumps(source))):  # noqa: S301
        samples = list(at)
        assert [s.negatives for s in samples] == [("no",), ("not",), (), ("never",)]
        assert [s.negative_image for s in samples] == [b"made of no", b"named", None, None]
        assert [s.image for s in samples] == [b"0", b"1", b"2", b"3"]
        assert list(at.column("group")) == ["g", "", "7", ""]
        assert list(at.column("score")) == [1.5, None, None, None]
        assert list(at.column("image_score")) == [20.0, None, None, None]
    assert list(source.column("captions"))[3] == ("a caption above a .json member",)
    plain = open_shards([numbered(tmp_path / "b.tar", 0, 2)])
    assert plain.brings() == frozenset()
    bad = write_tar(tmp_path / "c.tar", with_fields("0", neg_caption=3))
    with pytest.raises(CompoclipError, match=r"c\.tar, sample 0: neg_caption 3 .int. is not"):
        open_shards([bad])


def test_rows_of_neighbours_count_over_shards(tmp_path: Path) -> None:
    none = sample("1", jpg=b"row 1 has no caption")
    a = [*with_fields("0", neg_image=[1, 2, 3]), *none, *with_fields("2", neg_image="[0, 99]")]
    b = [*with_fields("3", neg_image=[3, 4, 2]), *with_fields("4")]
    paths = [write_tar(tmp_path / name, members) for name, members in (("a.tar", a), ("b.tar", b))]
    source = open_shards(paths)
    assert list(source.column("id")) == ["a.tar/0", "a.tar/2", "b.tar/3", "b.tar/4"]
    assert [s.neighbours for s in source] == [(1, 2), (0,), (3, 1), ()]
    assert source.left_out == {NO_CAPTION: 1, NO_NEIGHBOUR: 2}


def test_nothing_of_a_sample_is_passed_over_in_silence(tmp_path: Path) -> None:
    several = b'{"caption": ["x", 5, "' + b"y" * (MAX_TEXT_CHARACTERS + 1) + b'"]}'
    members = [
        *sample("1", jpg=b"first", png=b"second", txt=b"one", TXT=b"eins"),
        *sample("2", jpg=b"2", txt=b"caf\xe9", json=b'{"caption": "from json"}'),
        *sample("3", jpg=b"3", json=several),
        *sample("4", jpg=b"4", json=b'{"caption": "half \\ud800"}'),
        *sample("5", jpg=b"5", json=b'{"caption": "a", "caption": "b"}'),
        *sample("6", jpg=b"6", txt=b"z" * (MAX_CAPTION_BYTES + 1)),
        *sample("7", jpg=b"7", txt=b"\xef\xbb\xbfseven"),
        *sample("8\udcff", jpg=b"8", txt=b"eight"),
        *sample("9", jpg=b"9", json=as_json(caption="nine", neg_image="9.png"), png=b"not nine"),
    ]
    path = write_tar(tmp_path / "a.tar", members)
    source = open_shards([path])
    got = {s.id[6:]: (s.image, *s.captions) for s in source}
    assert got == {
        "1": (b"first", "one"),
        "2": (b"2", "from json"),
        "3": (b"3", "x"),
        "7": (b"7", "seven"),
        "9": (b"9", "nine"),
    }
    assert source[4].negative_image == b"not nine"
    assert source.left_out == {
        SECOND: 2,
        BAD_TEXT: 1,
        NO_TEXT: 1,
        LONG_TEXT: 1,
        BAD_JSON: 2,
        TOO_LONG: 1,
        BAD_NAME: 2,
        NO_CAPTION: 3,
    }


def test_a_member_that_leads_back_is_refused(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.tar", 0, 2)
    data = bytearray(path.read_bytes())
    data[1024 + 124 : 1024 + 136] = (2**96 - 512).to_bytes(12, "big")  # of 0000.txt: itself again
    info = bytearray(data[1024:1536])
    info[148:156] = b" " * 8
    data[1024 + 148 : 1024 + 156] = b"%06o\0 " % sum(info)
    path.write_bytes(data)
    for read in (lambda: open_shards([path]), lambda: Members()(path, "0000.jpg")):
        with pytest.raises(CompoclipError, match=r"'0000\.txt' has a size below 0"):
            read()
