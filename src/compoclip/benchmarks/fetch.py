"""Getting the files of benchmarks that are open to all: what is lacking, and fetching it.

Nothing is fetched but by `fetch`, one job at a time, which the command line calls after it has
shown the jobs.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any
from urllib.parse import urlsplit

from compoclip import files
from compoclip.archives import DAMAGED_TAR, DAMAGED_ZIP, tar_members, zip_members
from compoclip.benchmarks import files as room_files
from compoclip.benchmarks import tables
from compoclip.benchmarks.case import Meta
from compoclip.benchmarks.check import check, file_states
from compoclip.benchmarks.download import DownloadPatience, Expected, Progress, download
from compoclip.benchmarks.registry import meta, read_edition
from compoclip.benchmarks.sources import RemoteFile
from compoclip.console import counted, track
from compoclip.errors import CompoclipError, UsageError

# --- Zip and tar archives to a folder, without letting a member leave it or fill the disk. ---

MOST_GROWTH = 200
"""How many times its own size an archive may unpack to; more is a bomb."""

_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Member:
    """A file in an archive: its place, its size as stated, how to read it."""

    place: PurePosixPath
    size: int
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, folder: Path) -> int:
    """Write all files of a .zip or .tar archive (also .tar.gz, .bz2, .xz) below `folder`.

    Where all of them lie in one folder of the archive, that folder is dropped. A file that is there
    already with the right size is left as it is, so an interrupted run goes on. Returns the number
    of files. Raises CompoclipError for an archive that is damaged, holds no file, unpacks to more
    than MOST_GROWTH times its size or than the disk holds, or has members that are no files, have
    no proper name, lie outside the archive or share one place.
    """
    try:
        packed = archive.stat().st_size
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                return _write(archive, _in_zip(archive, opened), folder, packed)
        with tarfile.open(archive) as tar:
            return _write(archive, _in_tar(archive, tar), folder, packed)
    except FileNotFoundError as error:
        raise files.unreadable(archive, error) from error
    except (*DAMAGED_ZIP, *DAMAGED_TAR) as error:
        raise CompoclipError(
            f"{archive}: cannot be unpacked ({files.reason(error)}); delete it and fetch it again"
        ) from error
    except OSError as error:
        raise files.unwritable(folder, error) from error


def is_archive(path: Path) -> bool:
    """True if a file is an archive that `unpack` knows, as far as its ends tell."""
    try:
        return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)
    except (OSError, *DAMAGED_ZIP, *DAMAGED_TAR):
        return False


def _in_zip(archive: Path, opened: zipfile.ZipFile) -> Iterator[_Member]:
    for info in zip_members(opened):
        folder = info.filename.endswith("/")
        place = _place(archive, info.filename, folder)
        if (info.external_attr >> 16) & 0o170000 == 0o120000:
            raise CompoclipError(
                f"{archive}: {info.filename!r:.80} is a link; not the official archive"
            )
        if not folder and "__MACOSX" not in place.parts:
            yield _Member(place, info.file_size, partial(opened.open, info))


def _in_tar(archive: Path, opened: tarfile.TarFile) -> Iterator[_Member]:
    for info in tar_members(opened):
        place = _place(archive, info.name, info.isdir())
        if info.isdir():
            continue
        if not info.isreg():
            raise CompoclipError(
                f"{archive}: {info.name!r:.80} is no plain file; not the official one"
            )
        yield _Member(place, info.size, partial(_from_tar, opened, info))


def _from_tar(opened: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    stream = opened.extractfile(info)
    if stream is None:
        raise tarfile.ReadError(f"{info.name} cannot be read")
    return stream


def _place(archive: Path, name: str, folder: bool) -> PurePosixPath:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or PureWindowsPath(name).drive:
        raise CompoclipError(f"{archive}: the member {name!r:.80} leads outside the archive")
    if not name.isprintable() or not (pure.parts or folder):
        raise CompoclipError(
            f"{archive}: the member {name!r:.80} has no proper name; not the official archive"
        )
    return pure


def _bounded(archive: Path, members: Iterable[_Member], packed: int) -> Iterator[_Member]:
    """The members, as long as they unpack to no more than MOST_GROWTH times the archive's size."""
    total = 0
    for member in members:
        total += member.size
        if total > MOST_GROWTH * packed:
            raise CompoclipError(
                f"{archive}: {packed:,} bytes unpack to {total:,}; this is not the official archive"
            )
        yield member


def _write(archive: Path, listed: Iterable[_Member], folder: Path, packed: int) -> int:
    members = list(_bounded(archive, listed, packed))
    total = sum(member.size for member in members)
    if not members:
        raise CompoclipError(f"{archive}: holds no file; delete it and fetch it again")
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if total > free + _there(folder, members):
        raise CompoclipError(
            f"{folder}: {total:,} bytes to unpack, {free:,} are free; free space or choose another "
            "place"
        )
    tops = {member.place.parts[0] for member in members}
    shared = len(tops) == 1 and all(len(member.place.parts) > 1 for member in members)
    targets: dict[Path, _Member] = {}
    for member in members:
        parts = member.place.parts[1:] if shared else member.place.parts
        target = folder.joinpath(*parts)
        if target in targets:
            name = str(member.place)[:80]
            raise CompoclipError(f"{archive}: holds two files {name}; not the official one")
        targets[target] = member
    base = folder.resolve()
    for target, member in track(targets.items(), f"unpacking {archive.name}", unit="files"):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.parent.resolve().is_relative_to(base):  # through a link that lay there before
            raise CompoclipError(f"{target.parent}: leads outside {folder}; remove that link")
        if not (target.is_file() and target.stat().st_size == member.size):
            _copy(archive, member, target)
    return len(targets)


def _there(folder: Path, members: list[_Member]) -> int:
    """Bytes that an earlier run wrote, at most."""
    if not any(folder.iterdir()):
        return 0
    return sum(member.size for member in members if _exists(folder, member))


def _exists(folder: Path, member: _Member) -> bool:
    return any(
        folder.joinpath(*parts).is_file() for parts in (member.place.parts, member.place.parts[1:])
    )


def _copy(archive: Path, member: _Member, target: Path) -> None:
    with (
        files.replacing(target, flush=False) as temporary,
        member.open() as stream,
        temporary.open("wb") as out,
    ):
        size = 0
        while block := stream.read(_BLOCK):
            size += len(block)
            if size > member.size:  # the size in the directory may be a lie
                break
            out.write(block)
        if size != member.size:
            raise CompoclipError(
                f"{archive}: {member.place} is not of the size that the archive states; delete it "
                "and fetch it again"
            )


# --- Getting the files of benchmarks that are open to all: what is lacking, and fetching it. ---

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True)
class FetchJob:
    """One source to fetch, what the file must be, and why it is needed."""

    source: RemoteFile
    expected: Expected
    reason: str

    @property
    def checked_by(self) -> str:
        """What says that the fetched file is the official one."""
        known = self.expected.checksum
        if known:
            return f"its {known} checksum"
        plain = self.source.url.startswith("http://")
        return "nothing, and plain http" if plain else "nothing known"


@dataclass(frozen=True)
class Lack:
    """What is lacking of some benchmarks. by_hand: one line each on what no source is known for."""

    jobs: tuple[FetchJob, ...]
    by_hand: tuple[str, ...]


def lacking(specs: Sequence[str], root: Path, *, annotations_only: bool = False) -> Lack:
    """What the benchmarks `specs` ("sugarcrepe", "retrieval:coco") lack below `root`.

    Photos are told by loading the annotations; where these are lacking too, an image folder is
    needed when it is empty or absent. Raises UsageError for unknown names, CompoclipError for
    benchmarks behind terms or a form, which say what to do, and for a root of an edition.
    """
    edition = read_edition(root)
    if edition is not None:
        raise CompoclipError(
            f"{root}: holds the edition {edition!r}; fetch official files into another --data"
        )
    jobs: dict[str, FetchJob] = {}
    by_hand: list[str] = []
    for spec in specs:
        name, _, part = spec.partition(":")
        about = meta(name)
        if about.status in ("gated", "gone"):
            raise CompoclipError(
                f"{name}: cannot be fetched for you ({about.access}); source: {about.source}"
            )
        if about.family and part not in about.parts:
            raise UsageError(
                f"{spec}: {name} is a family, name one set as {name}:SET; sets: "
                f"{', '.join(about.parts)}"
            )
        needed = _files(about, root, part)
        if not annotations_only:
            needed |= _folders(spec, about, root, part, bool(needed))
        sources = about.sources
        unknown = [target for target in needed if target not in sources]
        by_hand += [f"{target}: by hand, {about.access}; {about.source}" for target in unknown]
        for target in needed.keys() - set(unknown):
            source = sources[target]
            known = Expected(source.size, source.md5, about.hashes.get(target, ""))
            jobs[target] = FetchJob(source, known, needed[target])
    order = sorted(jobs.values(), key=lambda job: (job.source.archive, job.source.target))
    return Lack(tuple(order), tuple(dict.fromkeys(by_hand)))


def _files(about: Meta, root: Path, part: str) -> dict[str, str]:
    """Annotation file -> why it is needed."""
    states = file_states(about, root, part)
    reasons = {"missing": "missing", "differs": "not the official bytes"}
    if about.family and any(state.state != "missing" for state in states):
        return {}  # the files of a set stand for one another
    return {each.path: reasons[each.state] for each in states if each.state in reasons}


def _folders(spec: str, about: Meta, root: Path, part: str, incomplete: bool) -> dict[str, str]:
    """Image folder -> why it is needed."""
    folders = about.of_set(part, about.images) if about.family else about.images
    counts = {} if incomplete else check(spec, root).images
    short = {
        folder: f"{count.expected - count.here:,} of {count.expected:,} photos missing"
        for folder, count in counts.items()
        if count.here < count.expected
    }
    needed = {}
    for folder in folders:
        place = root / folder
        empty = not place.is_dir() or not any(place.iterdir())
        # photos of Visual Genome lie in either of two folders; absent ones are counted in the first
        twin = next((why for each, why in short.items() if Path(each).parent == place.parent), None)
        if str(place) in short:
            needed[folder] = short[str(place)]
        elif empty and (not counts or twin is not None):
            needed[folder] = twin or "missing"
    return needed


def fetch(
    job: FetchJob,
    root: Path,
    *,
    url_base: str | None = None,
    progress: Progress | None = None,
    patience: DownloadPatience | None = None,
) -> str:
    """Fetch one source below `root` and unpack it when it is an archive, which is then deleted.

    url_base: takes the place of scheme and host of the official address, for mirrors. A file of
    which no checksum is known is looked at: an archive has to be one, annotations have to be of
    their format and hold rows. Returns a line on what was done. Raises CompoclipError as `download`
    and `unpack` do, and when another process fetches it.
    """
    with files.only_writer(root / job.source.target):
        return _fetch(job, root, url_base, progress, patience)


def _fetch(
    job: FetchJob,
    root: Path,
    url_base: str | None,
    progress: Progress | None,
    patience: DownloadPatience | None,
) -> str:
    source = job.source
    url = source.url if url_base is None else rebased(source.url, url_base)
    target = root / source.target
    known = job.expected.checksum
    told = f"{known} checksum right" if known else "not verified: no published checksum known"
    if not source.archive:
        size = download(url, target, job.expected, progress, patience, partial(_odd_rows, source))
        return f"{target}: {size:,} bytes, {told}"
    suffix = next((each for each in _ARCHIVES if urlsplit(url).path.endswith(each)), ".zip")
    archive = target.with_name(f"{target.name}{suffix}")
    if not archive.is_file():  # else an earlier run was interrupted while unpacking
        download(url, archive, job.expected, progress, patience, _odd_archive)
    number = unpack(archive, target)
    try:
        archive.unlink()
    except OSError as error:
        raise files.unwritable(archive, error) from error
    return f"{target}: {counted(number, 'file')}, {told}"


def _odd_archive(path: Path) -> str:
    return "" if is_archive(path) else "its kind (no zip or tar archive)"


def _odd_rows(source: RemoteFile, path: Path) -> str:
    """What keeps a file from being the annotations of `source`, "" for nothing."""
    kind = source.target.rpartition(".")[2]
    try:
        if kind == "csv":
            rows: list[Any] = [row for _, row in islice(tables.read_rows(path, source.keys, ""), 1)]
        else:
            value = room_files.read_json(path)
            rows = list(value.values()) if isinstance(value, dict) else list(value)
    except (CompoclipError, TypeError):  # a page that says sorry, a single number
        return f"its kind (no {kind.upper()} with rows)"
    first = rows[0] if rows else None
    if isinstance(first, Mapping):
        fits = first.keys() >= set(source.keys) and (kind != "csv" or len(first) > 1)
    else:
        fits = isinstance(first, list) and not source.keys
    return "" if fits else "its content (no rows with the official fields)"


def rebased(url: str, base: str) -> str:
    """The address with `base` in place of its scheme and host."""
    return base.rstrip("/") + urlsplit(url).path
