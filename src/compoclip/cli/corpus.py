"""What `compoclip rewrite` and `compoclip parse` share: a text, a file, or shards in and out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from compoclip import console
from compoclip.captions.tagger import get_tagger
from compoclip.captions.words import MOST_TOKENS, is_cut
from compoclip.cli.rewrite_input import DEFAULT_COLUMN, CaptionFile, caption_file
from compoclip.corpora.engine import Engine
from compoclip.corpora.find import find_shards, kind_of, names_shards
from compoclip.corpora.job import Counts, Job
from compoclip.corpora.run import Outcome, process
from compoclip.errors import UsageError


class CaptionOptions(Protocol):
    """The options that both verbs have: where captions come from and go to, and how."""

    @property
    def source(self) -> str: ...

    @property
    def out(self) -> Path | None: ...

    @property
    def column(self) -> str | None: ...

    @property
    def workers(self) -> int: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def max_bad(self) -> int: ...

    @property
    def tagger(self) -> str: ...

    @property
    def json(self) -> bool: ...


def dispatch(
    options: CaptionOptions,
    made: str,
    text: Callable[[], int],
    file: Callable[[CaptionFile, Path], int],
    shards: Callable[[Path], int],
) -> int:
    """Does with the source what its kind asks for; returns the exit code.

    made: what a text is turned into, for messages. file, shards: get the output. Raises UsageError
    for options that do not go together.
    """
    if options.workers < 1:
        raise UsageError("--workers must be at least 1")
    get_tagger(options.tagger)  # an unknown tagger is an error before any file is touched
    out = options.out
    if is_corpus(options.source, out):
        assert out is not None  # is_corpus asks for it
        return shards(out)
    source = caption_file(options.source, options.column or DEFAULT_COLUMN)
    if source is None:
        if out is not None:
            raise UsageError(
                f"-o is for files of captions; leave it out to see one caption's {made}"
            )
        return text()
    if out is None:
        raise UsageError(f"{options.source}: name the file to write with -o OUT.jsonl")
    if out.resolve() == source.path.resolve():
        raise UsageError(f"{out}: is the input itself; choose another -o")
    return file(source, out)


def counted_captions(file: CaptionFile) -> tuple[int, int]:
    """How many captions a file holds, and how many of them are cut before they are parsed.

    Reads all, so that a bad row shows before hours of work. Raises UsageError for an empty file.
    """
    total = cut = 0
    for _, text in file:
        total += 1
        cut += is_cut(text)
    if not total:
        raise UsageError(f"{file.path}: holds no captions")
    return total, cut


def note_cut(number: int) -> None:
    """Say how many captions were cut before they were parsed, if any."""
    if number:
        were = "1 caption was" if number == 1 else f"{number} captions were"
        console.note(
            f"{were} cut to {MOST_TOKENS} words and marks before parsing: no model reads more"
        )


def is_corpus(source: str, out: Path | None) -> bool:
    """Whether `source` is to be read as shards.

    A .jsonl file is when the output is no .jsonl file; the other kinds of shards, folders and
    patterns always are. Raises UsageError when the output does not fit.
    """
    if not names_shards(source):
        return False
    records = out is not None and out.suffix.lower() == ".jsonl" and not out.is_dir()
    if Path(source).is_file() and kind_of(source) == ".jsonl" and (records or out is None):
        return False
    if out is None:
        raise UsageError(f"{source}: name the folder to write the shards to with -o OUT")
    if records:
        raise UsageError(f"{out}: shards are written to a folder, not to a .jsonl file; name one")
    return True


def run_corpus(
    options: CaptionOptions, out: Path, job: Job, verb: str, show: Callable[[Counts], None]
) -> int:
    """Process the corpus and say what was done; returns the exit code.

    show: prints what the job counted.
    """
    if options.max_bad < 0:
        raise UsageError("--max-bad must not be negative")
    shards = find_shards(options.source)
    start = time.monotonic()
    outcome = process(
        shards,
        out,
        job,
        column=options.column,
        workers=options.workers,
        engine=options.engine,
        track=lambda results: console.track(results, verb, unit="shards"),
    )
    seconds = time.monotonic() - start
    for error in outcome.bad.values():
        console.note(f"left out: {error}")
    if options.json:
        settings = {**job.settings(), "column": options.column}
        console.emit_json({"out": str(out), "settings": settings, **_report(outcome)})
    else:
        _say(out, outcome, seconds)
        show(outcome.total)
    if len(outcome.bad) > options.max_bad:
        console.note(
            f"compoclip {verb}: {console.counted(len(outcome.bad), 'shard')} left out, "
            f"{options.max_bad} allowed (--max-bad); mend them and run again"
        )
        return 1
    return 0


def _report(outcome: Outcome) -> dict[str, Any]:
    return {
        "shards": {**outcome.made, **outcome.skipped},
        "from_before": sorted(outcome.skipped),
        "left_out": outcome.bad,
        "total": outcome.total,
    }


def _say(out: Path, outcome: Outcome, seconds: float) -> None:
    captions = sum(counts["captions"] for counts in outcome.made.values())
    rate = f", {captions / seconds:.0f} captions/s" if captions else ""
    print(
        f"{console.counted(len(outcome.made), 'shard')} written in {seconds:.1f} s{rate}; "
        f"{len(outcome.skipped)} were there already; {len(outcome.bad)} left out"
    )
    total = outcome.total
    parts = [f"{number} {reason}" for reason, number in sorted(total["left_out"].items())]
    more = f" (left out: {', '.join(parts)})" if parts else ""
    print(f"{total['rows']} rows with {total['captions']} captions{more}")
    note_cut(total["cut"])
    print(f"written to {out}")
