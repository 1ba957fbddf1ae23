"""Getting the files of benchmarks that are open to all: what is lacking, and fetching it.

Nothing is fetched but by `fetch`, one job at a time, which the command line calls after it has
shown the jobs.
"""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple
from urllib.parse import urlsplit

from compoclip import files
from compoclip.archives import (
    DAMAGED_TAR,
    DAMAGED_ZIP,
    OTHER_ARCHIVE,
    is_archive,
    place_of_member,
    tar_members,
    zip_members,
)
from compoclip.benchmarks import tables
from compoclip.benchmarks.case import Meta
from compoclip.benchmarks.check import check, file_states
from compoclip.benchmarks.download import Progress, download
from compoclip.benchmarks.registry import meta, read_edition, require_loadable
from compoclip.benchmarks.sources import RemoteFile
from compoclip.bounds import MAX_ARCHIVE_GROWTH
from compoclip.console import counted, track
from compoclip.errors import CompoclipError, UsageError, closest, require

# --- Zip and tar archives to a folder, without letting a member leave it or fill the disk. ---

_AGAIN = "delete it and fetch it again"


class _Member(NamedTuple):
    """A member of an archive: its name, size as stated, whether it is a folder or a plain file."""

    name: str
    size: int
    folder: bool
    plain: bool
    open: Callable[[], IO[bytes] | None]


def unpack(archive: Path, folder: Path) -> int:
    """Write all files of a .zip or .tar archive (also .tar.gz, .bz2, .xz) below `folder`.

    Where all of them lie in one folder of the archive, that folder is dropped. A file that is there
    already with the right size is left as it is, so an interrupted run is resumed. Returns the
    number of files. Raises CompoclipError for an archive that is damaged, holds no file, unpacks to
    more than MAX_ARCHIVE_GROWTH times its size or than the disk holds, or has members that are no
    files, have no proper name, lie outside the archive or share one place.
    """
    try:
        with ExitStack() as stack:
            if zipfile.is_zipfile(archive):
                zipped = stack.enter_context(zipfile.ZipFile(archive))
                listed = (
                    _Member(name, info.file_size, name.endswith("/"), plain, opener)
                    for info in zip_members(zipped)
                    for name, opener in [(info.filename, partial(zipped.open, info))]
                    for plain in [not stat.S_ISLNK(info.external_attr >> 16)]
                )
            else:
                tarred = stack.enter_context(tarfile.open(archive))
                listed = (
                    _Member(info.name, info.size, info.isdir(), info.isreg(), opener)
                    for info in tar_members(tarred)
                    for opener in [partial(tarred.extractfile, info)]
                )
            return _write(archive, dict(_checked(archive, listed)), folder)
    except FileNotFoundError as error:
        raise files.unreadable(archive, error) from error
    except (*DAMAGED_ZIP, *DAMAGED_TAR) as error:
        raise CompoclipError(
            f"{archive}: cannot be unpacked ({files.reason(error)}); {_AGAIN}"
        ) from error
    except OSError as error:
        raise files.unwritable(folder, error) from error


def _checked(archive: Path, listed: Iterable[_Member]) -> Iterator[tuple[PurePosixPath, _Member]]:
    """Yield the files of an archive by their places; what no official one has is refused."""
    packed, total = archive.stat().st_size, 0
    places: set[PurePosixPath] = set()
    for member in listed:
        place = place_of_member(archive, member.name, member.folder)
        fault = ""
        if not member.folder and not member.plain:
            fault = "is no plain file"
        elif place in places:
            fault = "is there twice"
        require(not fault, archive, f"the member {member.name!r:.80} {fault}; {OTHER_ARCHIVE}")
        if place is None:
            continue
        total += member.size
        if total > MAX_ARCHIVE_GROWTH * packed:
            raise CompoclipError(
                f"{archive}: {packed:,} bytes unpack to {total:,}; {OTHER_ARCHIVE}"
            )
        places.add(place)
        yield place, member


def _write(archive: Path, members: Mapping[PurePosixPath, _Member], folder: Path) -> int:
    require(members, archive, f"holds no file; {_AGAIN}")
    shared = len({place.parts[0] for place in members}) == 1
    shared = shared and all(len(place.parts) > 1 for place in members)
    targets = {folder.joinpath(*place.parts[shared:]): member for place, member in members.items()}
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(member.size for member in members.values())
    there = sum(member.size for target, member in targets.items() if target.is_file())
    free = shutil.disk_usage(folder).free
    if total > free + there:
        raise CompoclipError(
            f"{folder}: {total:,} bytes to unpack, {free:,} are free; free space or choose another "
            "place"
        )
    base = folder.resolve()
    for target, member in track(targets.items(), f"unpacking {archive.name}", unit="files"):
        target.parent.mkdir(parents=True, exist_ok=True)
        inside = target.parent.resolve().is_relative_to(base)  # not through a link that lay there
        require(inside, target.parent, f"leads outside {folder}; remove that link")
        if target.is_file() and target.stat().st_size == member.size:
            continue
        stream = member.open()
        assert stream is not None  # of a plain file
        with stream, files.replacing(target, flush=False) as temporary, temporary.open("wb") as out:
            shutil.copyfileobj(stream, out)
    return len(targets)


# --- Getting the files of benchmarks that are open to all: what is lacking, and fetching it. ---

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class MissingFiles(NamedTuple):
    """Missing files of benchmarks: what to fetch -> why, and one line for each file without a known
    source."""

    jobs: Mapping[RemoteFile, str]
    by_hand: tuple[str, ...]


def find_missing(
    specs: Sequence[str], root: Path, *, annotations_only: bool = False
) -> MissingFiles:
    """Return what the benchmarks `specs` ("sugarcrepe", "retrieval:coco") lack below `root`.

    Photos are told by loading the annotations; where these are missing too, an image folder is
    needed when it is empty or absent. Benchmarks behind terms or a form are refused.
    """
    edition = read_edition(root)
    if edition is not None:
        raise CompoclipError(
            f"{root}: holds the edition {edition!r}; fetch official files into another --data"
        )
    jobs: dict[RemoteFile, str] = {}
    by_hand: dict[str, None] = {}
    for spec in specs:
        name, _, part = spec.partition(":")
        about = meta(name)
        if about.status in ("gated", "gone"):
            raise CompoclipError(
                f"{name}: cannot be fetched for you ({about.access}); source: {about.source}"
            )
        require_loadable(spec, {})  # which knows the sub-tasks
        if about.family and part not in about.parts:
            raise UsageError(f"{name}: no set {part!r}; {closest(part, about.parts)}")
        states = file_states(about, root, part)
        reasons = {"missing": "missing", "differs": "not the official bytes"}
        needed = {state.path: reasons[state.state] for state in states if state.state in reasons}
        if about.family and any(state.state != "missing" for state in states):
            needed = {}  # the files of a set stand for one another
        if not annotations_only:
            needed |= _folders(spec, about, root, part, bool(needed))
        for target, reason in needed.items():
            if source := about.sources.get(target):
                jobs[replace(source, blake2b=about.hashes.get(target, ""))] = reason
            else:
                by_hand[f"{target}: by hand, {about.access}; {about.source}"] = None
    order = sorted(jobs, key=lambda source: (source.archive, source.target))
    return MissingFiles({source: jobs[source] for source in order}, tuple(by_hand))


def _folders(spec: str, about: Meta, root: Path, part: str, incomplete: bool) -> dict[str, str]:
    folders = about.of_set(part, about.images) if about.family else about.images
    counts = {} if incomplete else check(spec, root).images
    short = {
        folder: f"{count.expected - count.here:,} of {counted(count.expected, 'photo')} missing"
        for folder, count in counts.items()
        if count.here < count.expected
    }
    needed = {}
    for folder in folders:
        place = root / folder
        empty = not place.is_dir() or not any(place.iterdir())
        # photos of Visual Genome lie in either of two folders; absent ones are counted in the first
        twin = next((gap for path, gap in short.items() if Path(path).parent == place.parent), None)
        if str(place) in short:
            needed[folder] = short[str(place)]
        elif empty and (not counts or twin is not None):
            needed[folder] = twin or "missing"
    return needed


def fetch(
    source: RemoteFile,
    root: Path,
    *,
    url_base: str | None = None,
    progress: Progress | None = None,
) -> str:
    """Fetch one source below `root` and unpack it when it is an archive, which is then deleted.

    url_base: takes the place of scheme and host of the official address, for mirrors. A file of
    which no checksum is known is looked at: an archive has to be one, annotations have to be of
    their format and hold rows. Returns a line on what was done.
    """
    target = root / source.target
    with files.only_writer(target):
        url = source.url if url_base is None else rebased(source.url, url_base)
        kind = source.checksum
        state = f"{kind} checksum right" if kind else "not verified: no published checksum known"
        odd = partial(_problem, source)
        if not source.archive:
            size = download(url, target, source, progress, odd)
            return f"{target}: {size:,} bytes, {state}"
        suffix = next((end for end in _ARCHIVES if urlsplit(url).path.endswith(end)), ".zip")
        archive = target.with_name(f"{target.name}{suffix}")
        if not archive.is_file():  # else an earlier run was interrupted while unpacking
            download(url, archive, source, progress, odd)
        number = unpack(archive, target)
        with files.writing(archive):
            archive.unlink()
        return f"{target}: {counted(number, 'file')}, {state}"


def _problem(source: RemoteFile, path: Path) -> str:
    """Return what keeps a file from being the archive or annotations of `source`, else ""."""
    if source.archive:
        return "" if is_archive(path) else "its kind (no zip or tar archive)"
    kind = PurePosixPath(source.target).suffix
    try:
        _, _, first = next(tables.read_annotations(path, source.keys, kind=kind), (0, "", None))
    except CompoclipError:  # a page that says sorry, a single number
        return f"its kind (no {kind[1:].upper()} with rows)"
    if isinstance(first, Mapping):
        fits = first.keys() >= set(source.keys) and (kind != ".csv" or len(first) > 1)
    else:
        fits = isinstance(first, list) and not source.keys
    return "" if fits else "its content (no rows with the official fields)"


def rebased(url: str, base: str) -> str:
    """Return the address with `base` in place of its scheme and host."""
    return base.rstrip("/") + urlsplit(url).path
