"""Downloads that break off, resume, lie or are refused, and archives that are unpacked safely."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.request import Request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_files import examples, expect_one_line
from build.tables import write_tar, write_zip
from compoclip.benchmarks import download as downloading
from compoclip.benchmarks.download import Redirections, download
from compoclip.benchmarks.fetch import unpack
from compoclip.benchmarks.sources import RemoteFile
from compoclip.errors import CompoclipError, UsageError
from web_server import Site, served

DATA = bytes(range(256)) * 4000
expected = partial(RemoteFile, "", "")
CHECKED = expected(md5=hashlib.md5(DATA).hexdigest())


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TRIES": 3, "PAUSE": 0.0, "TIMEOUT": 5.0}.items():
        monkeypatch.setattr(downloading, name, value)


@pytest.fixture
def site() -> Iterator[Site]:
    with served(Site(files={"/a.bin": DATA})) as found:
        yield found


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_whole_file_is_put_in_place(site: Site, tmp_path: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    path = tmp_path / "new" / "a.bin"
    size = download(f"{site.url}/a.bin", path, progress=lambda *step: steps.append(step))
    assert size == len(DATA)
    assert path.read_bytes() == DATA
    assert left(path.parent) == {"a.bin"}
    assert steps[-1] == (len(DATA), len(DATA))
    assert [got for got, _ in steps] == sorted(got for got, _ in steps)


def test_a_broken_transfer_goes_on_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.break_at["/a.bin"] = [1000, 70000]
    download(f"{site.url}/a.bin", tmp_path / "a.bin", CHECKED)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert [asked for _, asked in site.asked] == [None, "bytes=1000-", "bytes=70000-"]
    assert left(tmp_path) == {"a.bin"}


VERSIONS = ({"ETag": '"1"'}, {"ETag": 'W/"1"', "Last-Modified": "Sat, 28 Nov 2026 12:00:00 GMT"})


@pytest.mark.parametrize("version", VERSIONS)
def test_what_an_earlier_run_left_is_used(
    site: Site, tmp_path: Path, version: dict[str, str]
) -> None:
    site.versions["/a.bin"] = version
    site.break_at["/a.bin"] = [5000] + [0] * 9
    with pytest.raises(CompoclipError, match="3 times in a row; try again later") as raised:
        download(f"{site.url}/a.bin", tmp_path / "a.bin")
    expect_one_line(raised.value, "/a.bin")
    assert (tmp_path / "a.bin.part").read_bytes() == DATA[:5000]
    site.break_at.clear()
    site.asked.clear()
    download(f"{site.url}/a.bin", tmp_path / "a.bin")
    assert site.asked == [("/a.bin", "bytes=5000-")]
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert left(tmp_path) == {"a.bin"}


def test_a_server_that_ignores_ranges_sends_all_again(site: Site, tmp_path: Path) -> None:
    site.no_range.add("/a.bin")
    site.break_at["/a.bin"] = [900]
    download(f"{site.url}/a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == DATA


def test_a_file_that_changed_meanwhile_is_fetched_anew(site: Site, tmp_path: Path) -> None:
    site.break_at["/a.bin"] = [4000] + [0] * 9
    known = expected(md5=hashlib.md5(DATA[::-1]).hexdigest())
    with pytest.raises(CompoclipError):
        download(f"{site.url}/a.bin", tmp_path / "a.bin", known)
    site.break_at.clear()
    site.files["/a.bin"] = DATA[::-1]
    with pytest.raises(CompoclipError, match="its md5 checksum is not that of the official file"):
        download(f"{site.url}/a.bin", tmp_path / "a.bin", known)
    download(f"{site.url}/a.bin", tmp_path / "a.bin", known)
    assert (tmp_path / "a.bin").read_bytes() == DATA[::-1]


@pytest.mark.parametrize("careless", [False, True])
@pytest.mark.parametrize("versions", [({}, {}), ({"ETag": '"1"'}, {"ETag": '"2"'})])
def test_two_versions_of_a_file_without_a_checksum_are_never_mixed(
    site: Site, tmp_path: Path, versions: tuple[dict[str, str], ...], careless: bool
) -> None:
    if careless:
        site.careless.add("/a.bin")
    site.versions["/a.bin"], later = versions
    site.break_at["/a.bin"] = [4000] + [0] * 9
    with pytest.raises(CompoclipError):
        download(f"{site.url}/a.bin", tmp_path / "a.bin")
    site.break_at.clear()
    site.files["/a.bin"], site.versions["/a.bin"] = DATA[::-1], later
    download(f"{site.url}/a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == DATA[::-1]
    assert left(tmp_path) == {"a.bin"}


@pytest.mark.parametrize(("more", "requests"), [(b"", 1), (b"more", 2)])
def test_all_bytes_or_more_than_the_file_has_are_there(
    site: Site, tmp_path: Path, more: bytes, requests: int
) -> None:
    (tmp_path / "a.bin.part").write_bytes(DATA + more)
    download(f"{site.url}/a.bin", tmp_path / "a.bin", CHECKED)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert len(site.asked) == requests


@pytest.mark.parametrize(
    "known",
    [
        expected(md5="0" * 32),
        expected(blake2b="0" * 32, size=len(DATA)),
        expected(size=len(DATA) - 1),
    ],
)
def test_a_wrong_file_is_deleted(site: Site, tmp_path: Path, known: RemoteFile) -> None:
    with pytest.raises(CompoclipError, match="not that of the official file") as raised:
        download(f"{site.url}/a.bin", tmp_path / "a.bin", known)
    expect_one_line(raised.value, "/a.bin")
    assert left(tmp_path) == set()


def test_a_checksum_counts_more_than_a_size(site: Site, tmp_path: Path) -> None:
    known = expected(size=1, blake2b=hashlib.blake2b(DATA, digest_size=16).hexdigest())
    assert download(f"{site.url}/a.bin", tmp_path / "a.bin", known) == len(DATA)


def test_refusals(site: Site, tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=r"answers 404 .*--url-base") as raised:
        download(f"{site.url}/b.bin", tmp_path / "b.bin")
    expect_one_line(raised.value, "/b.bin")
    assert len(site.asked) == 1  # asking again would not help
    site.status["/a.bin"] = [503, 429]
    download(f"{site.url}/a.bin", tmp_path / "a.bin")
    assert len(site.asked) == 4
    for url in ("file:///etc/passwd", "ftp://host/x", "a.bin"):
        with pytest.raises(UsageError, match="only http and https"):
            download(url, tmp_path / "x")
    with pytest.raises(CompoclipError, match=r"no connection, .*3 times"):
        download("http://127.0.0.1:9/a", tmp_path / "x")


def test_no_redirection_leads_to_local_files(site: Site, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    site.redirects["/r"] = (tmp_path / "secret").as_uri()
    with pytest.raises(CompoclipError):
        download(f"{site.url}/r", tmp_path / "out")
    site.redirects["/r"] = f"{site.url}/a.bin"
    assert download(f"{site.url}/r", tmp_path / "out") == len(DATA)


def refused(site: Site, path: str, folder: Path) -> str:
    """The line that a download ends with, told of the first answer."""
    site.asked.clear()
    with pytest.raises(CompoclipError) as raised:
        download(f"{site.url}{path}", folder / "out")
    expect_one_line(raised.value, site.url)
    assert not (folder / "out").exists()
    return str(raised.value)


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("http://[::1", "check the address"),
        ("ftp://127.0.0.1/x", "which is neither http nor https"),
        ("data:,x", "is not allowed"),
        ("http://127.0.0.1:99999999/", "check the address"),
        ("http://127.0.0.1:x/", "check the address"),
        ("http://a..b/", "check the address"),
        ("/r", "infinite loop"),
    ],
)
def test_redirections_that_lead_nowhere_end_at_once(
    site: Site, tmp_path: Path, to: str, message: str
) -> None:
    site.redirects["/r"] = to
    assert message in refused(site, "/r", tmp_path)
    assert len(site.asked) == 1 or to == "/r"  # asking again would not help


def test_no_redirection_leads_from_https_to_http() -> None:
    follow = partial(Redirections().redirect_request, Request("https://a/x"), None, 302, "", {})
    with pytest.raises(CompoclipError, match=r"http://b/y, which is not encrypted; .*--url-base"):
        follow("http://b/y")
    assert follow("https://b/y").full_url == "https://b/y"


@pytest.mark.parametrize("length", ["9" * 5000, "-5", "x", "\u00b2", "5, 5", ""])
def test_lengths_that_are_none(site: Site, tmp_path: Path, length: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
    site.raw["/r"] = [head.encode("latin-1") + b"12345"]
    assert "the server states a length of" in refused(site, "/r", tmp_path)
    assert len(site.asked) == 1


STATUS = (
    *(b"HTTP/1.1 200 OK", b"HTTP/1.1 206 Part", b"HTTP/1.1 302 \x1b[31m", b"HTTP/1.1 416 No"),
    *(b"HTTP/1.1 503 Busy", b"HTTP/9 999999 ?", b"", b"\xff\x00", b"ICY 200", b"<html>"),
)
HEADERS = (
    *(b"Content-Length: 5", b"Content-Length: 99999999999999999999", b"Content-Length: -1"),
    *(b"Content-Range: bytes 5-9/10", b"Content-Range: bytes */5", b"Content-Range: x"),
    *(b"Location: /r", b"Location: http://[", b"Location: \xff", b"Location: ftp://x/"),
    *(b"Location: /ok", b'ETag: "x"', b"ETag: \x1b", b"Last-Modified: a\r\n b", b": ", b""),
    *(b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", b"x" * 70_000),
)
BODIES = (b"12345", b"", b"123456", b"5\r\n12345\r\n0\r\n\r\n", b"f" * 20 + b"\r\nx", b"-1\r\n")


@st.composite
def an_answer(draw: st.DrawFn) -> bytes:
    """The bytes that a server sends: sometimes HTTP, sometimes nearly."""
    headers = draw(st.lists(st.sampled_from(HEADERS), max_size=4))
    lines = [draw(st.sampled_from(STATUS)), *headers, b"", draw(st.sampled_from(BODIES))]
    return b"\r\n".join(lines)


@examples(60)
@given(
    answers=st.lists(an_answer(), min_size=1, max_size=3),
    left=st.sampled_from((None, b"12345", b"1")),
    known=st.sampled_from((expected(), expected(size=5), expected(md5="0" * 32))),
)
def test_whatever_a_server_answers_ends_in_a_file_or_one_line(
    site: Site, tmp_path: Path, answers: list[bytes], left: bytes | None, known: RemoteFile
) -> None:
    site.files["/ok"] = b"12345"
    site.raw["/r"] = list(answers)
    for name in ("out", "out.part"):
        (tmp_path / name).unlink(missing_ok=True)
    if left is not None:
        (tmp_path / "out.part").write_bytes(left)
    try:
        size = download(f"{site.url}/r", tmp_path / "out", known)
    except CompoclipError as error:
        expect_one_line(error, site.url)
        assert not (tmp_path / "out").exists()
    else:
        assert (tmp_path / "out").stat().st_size == size
        assert not (tmp_path / "out.part").exists()


def test_a_full_disk(site: Site, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    (tmp_path / "a.bin.part").symlink_to("/dev/full")
    with pytest.raises(CompoclipError, match="No space left on device") as raised:
        download(f"{site.url}/a.bin", tmp_path / "a.bin")
    expect_one_line(raised.value, "a.bin")
    assert len(site.asked) == 1  # asking again would not help
    assert not (tmp_path / "a.bin").exists()


def test_an_unwritable_place(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompoclipError, match="cannot be written"):
        download(f"{site.url}/a.bin", tmp_path / "file" / "a.bin")


# --- Archives: names, links, bombs, damage of any kind. ---


def tarred(path: Path, members: dict[str, bytes]) -> Path:
    return write_tar(path, members.items(), "w:gz")


def refuse(words: str, archive: Path, folder: Path, named: str = "") -> None:
    with pytest.raises(CompoclipError, match=words) as raised:
        unpack(archive, folder)
    expect_one_line(raised.value, named or archive.name)


@pytest.mark.parametrize(("make", "name"), [(write_zip, "a.zip"), (tarred, "a.tar.gz")])
def test_the_one_folder_of_an_archive_is_dropped(make, name: str, tmp_path: Path) -> None:
    one = make(tmp_path / name, {"val/1.jpg": b"1", "val/sub/2.jpg": b"22"})
    assert unpack(one, tmp_path / "one") == 2
    assert (tmp_path / "one" / "sub" / "2.jpg").read_bytes() == b"22"
    two = make(tmp_path / name, {"val/1.jpg": b"1", "2.jpg": b"22"})
    assert unpack(two, tmp_path / "two") == 2
    assert (tmp_path / "two" / "val" / "1.jpg").is_file()
    assert (tmp_path / "two" / "2.jpg").is_file()


def test_unpacking_goes_on_after_an_interruption(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", {"v/1": b"one", "v/2": b"two"})
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "1").write_bytes(b"uno")  # of the right size: kept
    (tmp_path / "v" / "2").write_bytes(b"t")  # short: written again
    assert unpack(archive, tmp_path / "v") == 2
    assert (tmp_path / "v" / "1").read_bytes() == b"uno"
    assert (tmp_path / "v" / "2").read_bytes() == b"two"


OUTSIDE, NAMELESS = "leads outside", "has no proper name"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, OUTSIDE) for name in ("../x", "/x", "a/../../x", "C:\\x", "a\\..\\..\\x", "\\x")),
        *((name, NAMELESS) for name in ("", ".", "./", "a\nb", "a\x1bb")),
    ],
)
@pytest.mark.parametrize("make", [write_zip, tarred])
def test_no_member_leaves_the_folder_or_lacks_a_name(
    make: Callable[[Path, dict[str, bytes]], Path], name: str, words: str, tmp_path: Path
) -> None:
    archive = make(tmp_path / "a.zip", {"ok/1": b"1", name: b"2"})
    if name == "./" and make is write_zip:  # the archive's own folder
        assert unpack(archive, tmp_path / "out") == 1
        return
    refuse(words, archive, tmp_path / "in" / "side")
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize("make", [write_zip, tarred])
def test_folders_of_windows_are_folders(
    make: Callable[[Path, dict[str, bytes]], Path], tmp_path: Path
) -> None:
    archive = make(tmp_path / "a.zip", {"v\\a\\1": b"1", "v\\2": b"2", "__MACOSX\\._1": b"3"})
    assert unpack(archive, tmp_path / "out") == 2
    assert (tmp_path / "out" / "a" / "1").read_bytes() == b"1"


def test_links_bombs_and_damage(tmp_path: Path) -> None:
    bomb = write_zip(tmp_path / "bomb.zip", {"a/zeros": bytes(3_000_000)})
    refuse("not the official archive", bomb, tmp_path / "out")
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        info = tarfile.TarInfo("x")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(info)
    refuse("no plain file", tmp_path / "link.tar", tmp_path / "out")
    good = write_zip(tmp_path / "cut.zip", {"a/1": b"x" * 999}).read_bytes()
    (tmp_path / "cut.zip").write_bytes(good[: len(good) // 2])
    refuse("cannot be unpacked", tmp_path / "cut.zip", tmp_path / "out")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "sub").symlink_to(tmp_path)
    archive_path = write_zip(tmp_path / "a.zip", {"sub/x": b"1", "y": b"2"})
    refuse("leads outside", archive_path, tmp_path / "folder", named="folder")
    assert not (tmp_path / "x").exists()


def test_names_that_are_no_text(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo(b"\xff\xfe".decode("utf-8", "surrogateescape")))
    refuse(r"member '\\udcff\\udcfe' has no proper name", tmp_path / "a.tar", tmp_path / "out")
    raw = write_zip(tmp_path / "a.zip", {"\u00e9": b"1"}).read_bytes()
    (tmp_path / "a.zip").write_bytes(raw.replace("\u00e9".encode(), b"\xff\xff"))
    refuse("cannot be unpacked", tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("make", [write_zip, tarred])
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
    made = [write_zip(folder / "a.zip", members), tarred(folder / "a.tar.gz", members), plain]
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
