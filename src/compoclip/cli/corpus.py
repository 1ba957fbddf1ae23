"""Shards in, shards out: what `compoclip rewrite` and `compoclip parse` share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compoclip import console
from compoclip.corpora.engine import Engine
from compoclip.corpora.find import find_shards, kind_of, names_shards
from compoclip.corpora.job import Counts, Job
from compoclip.corpora.run import Outcome, process
from compoclip.errors import UsageError


@dataclass(frozen=True)
class CorpusRun:
    """Where shards come from and go to, and how."""

    source: str
    out: Path
    column: str | None
    workers: int
    engine: Engine
    max_bad: int
    json: bool


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


def run_corpus(run: CorpusRun, job: Job, verb: str, show: Callable[[Counts], None]) -> int:
    """Process the corpus and say what was done; returns the exit code.

    show: prints what the job counted.
    """
    if run.max_bad < 0:
        raise UsageError("--max-bad must not be negative")
    shards = find_shards(run.source)
    start = time.monotonic()
    outcome = process(
        shards,
        run.out,
        job,
        column=run.column,
        workers=run.workers,
        engine=run.engine,
        track=lambda results: console.track(results, verb, unit="shards"),
    )
    seconds = time.monotonic() - start
    for error in outcome.bad.values():
        console.note(f"left out: {error}")
    if run.json:
        console.emit_json(_report(run, job, outcome))
    else:
        _say(run, outcome, seconds)
        show(outcome.total)
    if len(outcome.bad) > run.max_bad:
        console.note(
            f"compoclip {verb}: {console.counted(len(outcome.bad), 'shard')} left out, "
            f"{run.max_bad} allowed (--max-bad); mend them and run again"
        )
        return 1
    return 0


def _report(run: CorpusRun, job: Job, outcome: Outcome) -> dict[str, Any]:
    return {
        "out": str(run.out),
        "settings": {**job.settings(), "column": run.column},
        "shards": {**outcome.made, **outcome.skipped},
        "from_before": sorted(outcome.skipped),
        "left_out": outcome.bad,
        "total": outcome.total,
    }


def _say(run: CorpusRun, outcome: Outcome, seconds: float) -> None:
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
    print(f"written to {run.out}")
