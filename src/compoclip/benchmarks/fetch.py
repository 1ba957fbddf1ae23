"""Getting the files of benchmarks that are open to all: what is lacking, and fetching it.

Nothing is fetched but by `fetch`, one job at a time, which the command line calls after it has
shown the jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from compoclip import files
from compoclip.benchmarks import files as room_files
from compoclip.benchmarks import tables
from compoclip.benchmarks.check import check, file_states
from compoclip.benchmarks.download import Expected, Patience, Progress, download
from compoclip.benchmarks.edition import read_edition
from compoclip.benchmarks.meta import Meta
from compoclip.benchmarks.registry import meta
from compoclip.benchmarks.sources import SOURCES, Source
from compoclip.benchmarks.unpack import is_archive, unpack
from compoclip.errors import CompoclipError, UsageError

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True)
class Job:
    """One source to fetch, what the file must be, and why it is needed."""

    source: Source
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

    jobs: tuple[Job, ...]
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
    jobs: dict[str, Job] = {}
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
        unknown = [target for target in needed if target not in SOURCES]
        by_hand += [f"{target}: by hand, {about.access}; {about.source}" for target in unknown]
        for target in needed.keys() - set(unknown):
            source = SOURCES[target]
            known = Expected(source.size, source.md5, about.hashes.get(target, ""))
            jobs[target] = Job(source, known, needed[target])
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
    job: Job,
    root: Path,
    *,
    url_base: str | None = None,
    progress: Progress | None = None,
    patience: Patience | None = None,
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
    job: Job,
    root: Path,
    url_base: str | None,
    progress: Progress | None,
    patience: Patience | None,
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
    return f"{target}: {number:,} files, {told}"


def _odd_archive(path: Path) -> str:
    return "" if is_archive(path) else "its kind (no zip or tar archive)"


def _odd_rows(source: Source, path: Path) -> str:
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
