"""`compoclip data fetch NAME ... --data ROOT`: download what is open to all, after asking."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from compoclip.benchmarks.fetch import Job, fetch, lacking, rebased
from compoclip.cli.byte_progress import byte_progress
from compoclip.cli.data_ls import in_bytes
from compoclip.cli.options import parse
from compoclip.console import counted, emit_json, note, table
from compoclip.errors import CompoclipError, UsageError
from compoclip.places import require_writable


@dataclass(frozen=True)
class FetchOptions:
    """Download the files of benchmarks that are open to all, and unpack archives.

    First shows what and how much, and asks. An interrupted download goes on where it stopped. A
    file is checked against its official checksum where one is known. Of the others (the table says
    which, and which come over plain http) only the kind is checked, and they are said to be not
    verified. What is behind terms or a form is not fetched: the command says what to do.

    Examples:
        compoclip data fetch sugarcrepe --data /data
        compoclip data fetch valse vsr --data /data --annotations-only --yes

    Args:
        names: Benchmarks, or sets such as retrieval:coco.
        data: Data root to fill, in the default layout.
        annotations_only: Leave out photos.
        url_base: A mirror: takes the place of scheme and host of every official address.
        yes: Do not ask.
        json: Print what was fetched, and what of it is not verified, as JSON.
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME ...")] = ()
    data: Path = Path("data")
    annotations_only: bool = False
    url_base: str | None = None
    yes: bool = False
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Show, ask, fetch; then once more for photos that only the annotations could name."""
    options = parse(FetchOptions, "data fetch", argv)
    if not options.names:
        raise UsageError("name at least one benchmark; see compoclip data ls")
    require_writable(options.data)
    done: dict[str, Job] = {}
    while True:
        lack = lacking(options.names, options.data, annotations_only=options.annotations_only)
        jobs = [job for job in lack.jobs if job.source.target not in done]
        if not jobs:
            break
        note(shown(jobs, options.data, options.url_base))
        if not options.yes and not _agreed():
            note("nothing was fetched" if not done else "nothing more was fetched")
            return 1
        for job in jobs:
            with byte_progress(job.source.target) as progress:
                line = fetch(job, options.data, url_base=options.url_base, progress=progress)
            done[job.source.target] = job
            note(line)
    unsure = [target for target, job in done.items() if not job.expected.checksum]
    if options.json:
        fetched = {"fetched": list(done), "not_verified": unsure}
        emit_json({**fetched, "by_hand": list(lack.by_hand)})
    else:
        of_these = f", {len(unsure)} of them not verified: no published checksum known"
        print(
            f"{counted(len(done), 'file')} fetched{of_these if unsure else ''}; "
            "compoclip data check says what is there"
        )
        print("\n".join(lack.by_hand), end="\n" if lack.by_hand else "")
    if lack.by_hand and not done:
        raise CompoclipError("nothing that is lacking can be fetched for you; see the lines above")
    return 0


def shown(jobs: Sequence[Job], root: Path, url_base: str | None) -> str:
    """What would be fetched: a row a file, and the sum."""
    rows = [
        [
            str(root / job.source.target),
            rebased(job.source.url, url_base) if url_base else job.source.url,
            job.reason,
            in_bytes(job.source.size) or "not known",
            job.checked_by,
        ]
        for job in jobs
    ]
    unknown = sum(not job.source.size for job in jobs)
    total = in_bytes(sum(job.source.size for job in jobs)) or "0 B"
    more = f", and {counted(unknown, 'file')} of unknown size" if unknown else ""
    return "\n".join(
        [
            table(rows, ["to", "from", "because", "size", "checked by"], left=3),
            f"together {total}{more}",
        ]
    )


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("asked before fetching, but there is nobody to ask; say --yes")
    print("Fetch this? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
