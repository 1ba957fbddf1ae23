"""Archives that are unpacked safely: names, links, bombs, damage of any kind."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_files import examples, expect_one_line
from build.tables import write_tar
from compoclip.benchmarks.fetch import unpack
from compoclip.errors import CompoclipError


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo("x")
            info.filename = name  # any, also one that the constructor refuses
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return path


def tarred(path: Path, members: dict[str, bytes]) -> Path:
    return write_tar(path, members.items(), "w:gz")


def refuse(words: str, archive: Path, folder: Path, named: str = "") -> None:
    with pytest.raises(CompoclipError, match=words) as raised:
        unpack(archive, folder)
    expect_one_line(raised.value, named or archive.name)


@pytest.mark.parametrize(("make", "name"), [(zipped, "a.zip"), (tarred, "a.tar.gz")])
def test_the_one_folder_of_an_archive_is_dropped(make, name: str, tmp_path: Path) -> None:
    one = make(tmp_path / name, {"val/1.jpg": b"1", "val/sub/2.jpg": b"22"})
    assert unpack(one, tmp_path / "one") == 2
    assert (tmp_path / "one" / "sub" / "2.jpg").read_bytes() == b"22"
    two = make(tmp_path / name, {"val/1.jpg": b"1", "2.jpg": b"22"})
    assert unpack(two, tmp_path / "two") == 2
    assert (tmp_path / "two" / "val" / "1.jpg").is_file()
    assert (tmp_path / "two" / "2.jpg").is_file()


def test_unpacking_goes_on_after_an_interruption(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"v/1": b"one", "v/2": b"two"})
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "1").write_bytes(b"uno")  # of the right size: kept
    (tmp_path / "v" / "2").write_bytes(b"t")  # short: written again
    assert unpack(archive, tmp_path / "v") == 2
    assert (tmp_path / "v" / "1").read_bytes() == b"uno"
    assert (tmp_path / "v" / "2").read_bytes() == b"two"


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "C:\\x", "a\\x"])
@pytest.mark.parametrize("make", [zipped, tarred])
def test_no_member_leaves_the_folder(make, name: str, tmp_path: Path) -> None:
    archive = make(tmp_path / "a.zip", {"ok/1": b"1", name: b"2"})
    refuse("leads outside", archive, tmp_path / "in" / "side")
    assert not (tmp_path / "in").exists()


def test_links_bombs_and_damage(tmp_path: Path) -> None:
    bomb = zipped(tmp_path / "bomb.zip", {"a/zeros": bytes(3_000_000)})
    refuse("not the official archive", bomb, tmp_path / "out")
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        info = tarfile.TarInfo("x")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(info)
    refuse("no plain file", tmp_path / "link.tar", tmp_path / "out")
    good = zipped(tmp_path / "cut.zip", {"a/1": b"x" * 999}).read_bytes()
    (tmp_path / "cut.zip").write_bytes(good[: len(good) // 2])
    refuse("cannot be unpacked", tmp_path / "cut.zip", tmp_path / "out")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "sub").symlink_to(tmp_path)
    archive_path = zipped(tmp_path / "a.zip", {"sub/x": b"1", "y": b"2"})
    refuse("leads outside", archive_path, tmp_path / "folder", named="folder")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["", ".", "./", "a\nb", "a\x1bb"])
@pytest.mark.parametrize("make", [zipped, tarred])
def test_members_without_a_proper_name(make, name: str, tmp_path: Path) -> None:
    archive = make(tmp_path / "a.zip", {"ok": b"1", name: b"2"})
    if name == "./" and make is zipped:  # the archive's own folder
        assert unpack(archive, tmp_path / "out") == 1
        return
    refuse("has no proper name", archive, tmp_path / "out")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo(b"\xff\xfe".decode("utf-8", "surrogateescape")))
    refuse(r"member '\\udcff\\udcfe' has no proper name", tmp_path / "a.tar", tmp_path / "out")
    raw = zipped(tmp_path / "a.zip", {"\u00e9": b"1"}).read_bytes()
    (tmp_path / "a.zip").write_bytes(raw.replace("\u00e9".encode(), b"\xff\xff"))
    refuse("cannot be unpacked", tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("make", [zipped, tarred])
def test_archives_without_a_file(make, tmp_path: Path) -> None:
    refuse("holds no file", make(tmp_path / "a.zip", {}), tmp_path / "out")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("archives")
    members = {"a/1.txt": b"one" * 40, "a/b/2.txt": b"two", "a/3": b""}
    plain = folder / "plain.tar"
    with tarfile.open(plain, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in (*members, "a/" + "\u00e9" * 80):
            archive.addfile(tarfile.TarInfo(name))
    made = [zipped(folder / "a.zip", members), tarred(folder / "a.tar.gz", members), plain]
    return {path.name: path.read_bytes() for path in made}


@examples(100)
@given(data=st.data())
def test_whatever_an_archive_holds_ends_in_files_or_one_line(
    archives: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(archives)))
    raw = bytearray(archives[name])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.sampled_from((0, 1, 0x2F, 0x39, 0x7F, 0xFF)))
    raw = raw[: data.draw(st.sampled_from((len(raw), len(raw) * 2 // 3)))]
    folder = tmp_path_factory.mktemp("unpacked")
    (folder / name).write_bytes(raw)
    try:
        number = unpack(folder / name, folder / "out")
    except CompoclipError as error:
        expect_one_line(error, str(folder))
    else:
        assert number == sum(path.is_file() for path in (folder / "out").rglob("*"))
