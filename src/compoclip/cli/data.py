"""`compoclip data TASK`: list, check, fetch, audit and pack benchmark and training data."""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.filesize import decimal

from compoclip import config
from compoclip.cli.main import Verbs
from compoclip.cli.options import OnEngine, Outcome, Printing, WorkerCount, processes
from compoclip.config import DataName, InputFile, OfficialName, OutputFile, OutputFolder, Shown
from compoclip.console import (
    columns,
    counted,
    note,
    progress_bar,
    reasons_listed,
    require_terminal,
)
from compoclip.data.options import DataOptions, PackSpec
from compoclip.errors import UsageError
from compoclip.files import require_writable, write_text
from compoclip.patterns import has_ending
from compoclip.printed import Table, without
from compoclip.typed import Natural

if TYPE_CHECKING:
    from compoclip.benchmarks.case import Meta
    from compoclip.benchmarks.check import Check
    from compoclip.benchmarks.sources import RemoteFile

TASKS = Verbs(
    "compoclip data",
    "TASK",
    {
        "ls": ("list the benchmarks: items, licence, source; with names, all details", "data"),
        "check": ("find missing or incomplete files of benchmarks", "data"),
        "fetch": ("download the files that need no permission", "data"),
        "pack": ("write training data as shards with small images, for fast training", "data"),
        "audit": (
            "find faulty items: equal captions, duplicates, guessable answers, ...",
            "data_audit",
        ),
        "cc-neg": ("convert the training rows of CC-Neg's pickle into a table", "data"),
    },
)
main = TASKS.main


@dataclass(frozen=True)
class LsOptions(Printing):
    """List the benchmarks: items, licence, size, and whether their files are available.

    Examples:
        compoclip data ls
        compoclip data ls sugarcrepe valse

    Args:
        names: Benchmarks to show with all details.
    """

    names: Annotated[tuple[OfficialName, ...], Shown("NAME", positional=True)] = ()


def ls_main(options: LsOptions) -> Outcome:
    """Print one row per benchmark, or one paragraph per benchmark that is named."""
    from compoclip.benchmarks.names import benchmark_names
    from compoclip.benchmarks.registry import meta

    entries = [meta(name) for name in options.names or benchmark_names()]
    record = [about.to_json() for about in entries]
    if options.names:
        return record, ["\n".join(_details(about)) for about in entries]
    header = ["name", "title", "licence", "obtainable", "items", "files", "photos", "to fetch"]
    rows = []
    for about in entries:
        shares = [
            f"{sum(place in about.sources for place in places)} of {len(places)}"
            for places in (about.files, about.images)
        ]
        more = " +" if any(not source.size for source in about.sources.values()) else ""
        items = "by set" if about.family else f"{about.items:,}" if about.items else "?"
        licence = about.licence.partition(";")[0]
        size = f"{decimal(about.size) if about.size else ''}{more}".strip()
        rows.append([about.id, about.title, licence, about.status, items, *shares, size])
    legend = (
        "files, photos: how many `compoclip data fetch` can get, of all that are needed\n"
        "to fetch: their size, archives packed; + if some sizes are unknown\n"
        "compoclip data ls NAME: source, terms, what to do by hand, files, checksums"
    )
    table = Table(rows, header, left=4, narrower=[without(1)])
    return record, (table, legend)


def _details(about: Meta) -> Iterator[str]:
    """Yield lines on one benchmark."""
    access = about.access
    if not access.startswith(about.status):
        access = f"{about.status}; {access}"
    counts = ", ".join(f"{name} {n:,}" for name, n in about.expected.items())
    total = f"{about.items:,} in all" if about.items else ""
    parts = ", ".join(about.parts)
    facts = {
        "paper": about.citation,
        "source": about.source,
        "licence": about.licence,
        "obtainable": access,
        "sets": f"{parts} (name one: {about.id}:{about.parts[0]})" if about.family else "",
        "parts": "" if about.family else parts,
        "needs": f"{about.id},{about.requires}=..." if about.requires else "",
        "items": "; ".join(filter(None, (total, counts))) or "not known",
    }
    yield f"{about.id}: {about.title}"
    rows = [[f"  {name:<10}", fact] for name, fact in facts.items() if fact]
    yield columns(rows)
    for title, places in (("file", about.files), ("photos", about.images)):
        for place in places:
            yield f"  {title:<10}  {place}"
            if place in about.hashes:
                yield f"              blake2b {about.hashes[place]}"
            source = about.sources.get(place)
            if source is None:
                yield "              by hand, see source"
                continue
            size = f" ({decimal(source.size)})" if source.size else ""
            yield f"              {source.url}{size}"
            if source.md5:
                yield f"              md5 {source.md5}"
            elif place not in about.hashes:
                plain = ", plain http" if source.url.startswith("http://") else ""
                yield f"              no published checksum known{plain}: not verified when fetched"
    yield from (f"  or archive  {archive}" for archive in about.archives)
    yield from (f"  may lack    {file}" for file in about.optional)


@dataclass(frozen=True)
class CheckOptions(Printing):
    """Find missing or incomplete files of benchmarks below a data root.

    Files with a known checksum are compared with it; items and photos are counted. The exit code
    is 1 if a benchmark is incomplete.

    Examples:
        compoclip data check sugarcrepe valse --data /data
        compoclip data check retrieval:coco --data /data --decode

    Args:
        names: Benchmarks, named as for evaluate --on; by default all with a file below the root.
        data: Data root in the default layout.
        images: Folder with the photos, if it is not in the data root.
        decode: Also decode every photo.
    """

    names: Annotated[tuple[OfficialName, ...], Shown("NAME", positional=True)] = ()
    data: Path = Path("data")
    images: Path | None = None
    decode: bool = False


def check_main(options: CheckOptions) -> Outcome:
    """Check every benchmark; 1 when one is not complete."""
    from compoclip.benchmarks.check import check
    from compoclip.benchmarks.targets import named_or_present

    checks = [
        check(
            target.spec,
            target.root,
            target.images,
            options=target.options,
            decoding=options.decode,
        )
        for target in named_or_present(options.names, options.data, options.images)
    ]
    record = [{**asdict(checked), "complete": checked.complete} for checked in checks]
    texts = ["\n".join(_lines(checked)) for checked in checks]
    return record, texts, int(not all(checked.complete for checked in checks))


def _lines(checked: Check) -> Iterator[str]:
    """Yield lines on one benchmark: files, items, photos, problems."""
    yield f"{checked.benchmark}: {'complete' if checked.complete else 'NOT COMPLETE'}"
    for file in checked.files:
        size = f", {decimal(file.bytes)}" if file.bytes else ""
        yield f"  {file.path}: {_STATES[file.state]}{size}"
    for part, count in checked.items.items():
        yield f"  items of {part}: {count.here:,} of {count.expected:,}"
    yield from (f"  left out: {listed}" for listed in reasons_listed(checked.left_out))
    for folder, count in checked.images.items():
        yield f"  photos in {folder}: {count.here:,} of {count.expected:,}"
    if checked.decoded:
        yield f"  photos that cannot be decoded: {checked.damaged_count:,}"
    yield from named("missing", checked.missing, checked.missing_count)
    yield from named("damaged", checked.damaged, checked.damaged_count)
    yield from (f"  ! {problem}" for problem in checked.problems)


def named(title: str, names: Sequence[str], number: int) -> Iterator[str]:
    """Yield a line for each of the first names, and one for how many more there are."""
    yield from (f"  {title}: {name}" for name in names)
    if number > len(names):
        yield f"  {title}: {number - len(names):,} more"


_STATES = {
    "official": "there, the official bytes",
    "present": "there",
    "differs": "there, but not the official bytes",
    "archive": "not unpacked, an archive is there",
    "missing": "MISSING",
}


# --- Downloads, with a bar on a terminal, else a plain line every ten seconds. ---

_EVERY = 10.0


def get(job: RemoteFile, root: Path, url_base: str | None) -> None:
    """Download a file to its place below a data root, and say what became of it."""
    from compoclip.benchmarks.fetch import fetch

    with _byte_progress(job.target) as progress:
        line = fetch(job, root, url_base=url_base, progress=progress)
    note(line)


@contextmanager
def _byte_progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function to be told the bytes there so far and in all (None where not known)."""
    if sys.stderr.isatty():
        from rich.progress import DownloadColumn, TransferSpeedColumn

        with progress_bar(DownloadColumn(), TransferSpeedColumn()) as bar:
            task = bar.add_task(name, total=None)
            yield lambda got, total: bar.update(task, completed=got, total=total)
        return
    last = time.monotonic()

    def report(got: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            of = f" of {total / 1e6:,.1f}" if total else ""
            note(f"{name}: {got / 1e6:,.1f}{of} MB")

    yield report


@dataclass(frozen=True)
class FetchOptions(Printing):
    """Download the files of benchmarks that need no permission, and unpack archives.

    The command first shows files and sizes, and asks. An interrupted download resumes. A file is
    checked against its official checksum if that is known; otherwise only its kind is checked, and
    the table says "not verified" (and which files come over plain http). Files behind terms or a
    form are not fetched: the command prints the steps to get them.

    Examples:
        compoclip data fetch sugarcrepe --data /data
        compoclip data fetch valse vsr --data /data --annotations-only --yes

    Args:
        names: Benchmarks, or sets such as retrieval:coco.
        data: Data root to fill, in the default layout.
        annotations_only: Leave out photos.
        url_base: A mirror, which replaces scheme and host of every official address.
        yes: Do not ask.
    """

    names: Annotated[tuple[OfficialName, ...], Shown("BENCHMARK ...", positional=True)]
    data: Path = Path("data")
    annotations_only: bool = False
    url_base: str | None = None
    yes: bool = False


def fetch_main(options: FetchOptions) -> Outcome | int:
    """Show, ask, fetch; then once more for photos that only the annotations could name."""
    from compoclip.benchmarks.fetch import find_missing

    require_writable(options.data)
    done: dict[str, RemoteFile] = {}
    while True:
        lack = find_missing(options.names, options.data, annotations_only=options.annotations_only)
        jobs = {job: reason for job, reason in lack.jobs.items() if job.target not in done}
        if not jobs:
            break
        note(_fetch_text(jobs, options.data, options.url_base))
        if not options.yes and not agreed("Fetch this?"):
            note(f"nothing {'more ' if done else ''}was fetched")
            return 1
        for job in jobs:
            get(job, options.data, options.url_base)
            done[job.target] = job
    unsure = [target for target, job in done.items() if not job.checksum]
    of_these = f", {len(unsure)} of them not verified: no published checksum known"
    text = (
        f"{counted(len(done), 'file')} fetched{of_these if unsure else ''}; "
        "compoclip data check says what is there"
    )
    record = {"fetched": list(done), "not_verified": unsure, "by_hand": list(lack.by_hand)}
    nothing = bool(lack.by_hand) and not done
    if nothing:
        note("compoclip data: none of the missing files can be downloaded; see the lines below")
    return record, "\n".join([text, *lack.by_hand]), int(nothing)


def agreed(question: str) -> bool:
    """Ask on the terminal; raise UsageError where nobody can answer."""
    require_terminal()
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _fetch_text(jobs: Mapping[RemoteFile, str], root: Path, url_base: str | None) -> str:
    """Return what would be fetched: a row per file, and the sum."""
    from compoclip.benchmarks.fetch import rebased

    rows = [
        [
            str(root / job.target),
            rebased(job.url, url_base) if url_base else job.url,
            reason,
            decimal(job.size) if job.size else "not known",
            job.checked_by,
        ]
        for job, reason in jobs.items()
    ]
    unknown = sum(not job.size for job in jobs)
    total = decimal(sum(job.size for job in jobs))
    more = f", and {counted(unknown, 'file')} of unknown size" if unknown else ""
    header = ["to", "from", "because", "size", "checked by"]
    return f"{Table(rows, header, left=3)}\ntogether {total}{more}"


@dataclass(frozen=True)
class PackOptions(DataOptions, OnEngine):
    """Write training data as webdataset shards with images no larger than training needs.

    Captions, negatives, similar images, negative images, groups and scores are included. Training
    from the pack (train --data PACK) decodes a fraction of the pixels. After an interruption, the
    same command resumes. The bytes depend neither on --workers nor on --engine.

    Examples:
        compoclip data pack dataset_coco.json --images coco --split train --out coco-pack
        compoclip train fsc-clip --data coco-pack --out run

    Args:
        data: Image-text data, as for train --data.
        out: Folder of the pack.
        max_bad: Largest number of unreadable images to leave out; each is named.
        workers: Processes that write shards; auto is one per core for thousands of images.
    """

    data: Annotated[DataName, Shown("DATA", positional=True)]
    out: OutputFolder
    spec: PackSpec = field(default_factory=PackSpec)
    max_bad: Natural = 0
    workers: WorkerCount = "auto"


_MANY = 4096  # images that are worth starting processes for


def pack_main(options: PackOptions) -> Outcome:
    """Pack and say what became of the images."""
    from compoclip.cluster import require_engine, run
    from compoclip.data.pack import PackSummary, pack
    from compoclip.data.sources.open import request_of

    def spread(work: Callable[[int], PackSummary], tasks: Sequence[int]) -> Iterator[PackSummary]:
        images = len(tasks) * options.spec.shard_size
        workers = processes(options.workers, images, _MANY)
        return run(work, tasks, workers, options.engine)

    require_engine(options.engine)
    if options.spec.keep:
        config.refuse(options.spec, ("size", "quality"), unused_with="--keep")
    request = request_of(options.data, options)
    packed = pack(request, options.out, options.spec, spread, options.max_bad)
    text = (
        f"{options.out}: {counted(packed.samples, 'sample')} in {counted(packed.shards, 'shard')}, "
        f"{decimal(packed.size_bytes)}; {counted(packed.scaled, 'image')} scaled down, "
        f"{packed.as_they_were} as they were"
    )
    if not options.json:
        left_out = [f"  {listed}" for listed in reasons_listed(packed.left_out)]
        for line in (*(f"left out: {reason}" for reason in packed.bad.values()), *left_out):
            note(line)
    return {**asdict(packed), "out": str(options.out)}, text


@dataclass(frozen=True)
class CcNegOptions(Printing):
    """Convert the training rows of CC-Neg into a table for train.

    These are all rows but the last 40,000, which are the test (benchmark cc_neg). No code in the
    pickle is executed: a pickle that names any class or function is refused. Image paths are the
    last two parts of the authors' paths: train with --images, the folder of CC3M.

    Examples:
        compoclip data cc-neg ccneg_preprocessed.pt --out cc_neg.tsv

    Args:
        pickle: The authors' file, ccneg_preprocessed.pt.
        out: Table to write, .tsv: title, filepath, neg_caption.
    """

    pickle: Annotated[InputFile, Shown("PICKLE", positional=True)]
    out: OutputFile


def cc_neg_main(options: CcNegOptions) -> Outcome:
    """Write the table, print what it holds."""
    from compoclip.benchmarks.negation import cc_neg_training

    if not has_ending(options.out, ".tsv"):
        raise UsageError(f"--out {options.out}: the name must end in .tsv")
    rows = list(cc_neg_training(options.pickle))
    text = io.StringIO()
    writer = csv.DictWriter(text, ("title", "filepath", "neg_caption"), delimiter="\t")
    writer.writeheader()
    writer.writerows(rows)
    write_text(options.out, text.getvalue())
    record = {"out": str(options.out), "rows": len(rows), "left_out": {}}
    return record, f"{options.out}: {counted(len(rows), 'row')}"
