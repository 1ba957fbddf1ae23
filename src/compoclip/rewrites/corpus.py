"""Rewrites of a whole file of captions: parallel, resumable, the same bytes for any worker count.

The records grow in OUT.part; OUT.settings.json says what they are made from. When all are there,
OUT.part becomes OUT. A rerun cuts a torn last line and goes on behind the last complete record.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from compoclip.errors import CompoclipError, UsageError
from compoclip.files import replacing
from compoclip.rewrites.records import Settings, count, records
from compoclip.rewrites.statistics import Tally

BATCH = 200
#: Batches under way per worker: keeps all busy and memory bounded.
AHEAD = 4
Item = tuple[str, str]


@dataclass(frozen=True)
class Outcome:
    """What a run wrote: tallies over all records, and how many were there before it."""

    tallies: dict[str, Tally]
    resumed: int


def write_corpus(
    items: Iterable[Item],
    out: Path,
    settings: Settings,
    source: dict[str, Any],
    workers: int = 1,
    track: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Outcome:
    """Write the records of all (id, caption) items to `out`, one JSON object a line.

    source: what identifies the captions (digest, column), kept in OUT.settings.json. track wraps
    the stream of finished captions, one element each, to show progress. Raises UsageError when
    `out` was made with other settings, CompoclipError when it cannot be written.
    """
    made_from = {**settings.provenance(), "source": source}
    part = out.with_name(out.name + ".part")
    tallies = {name: Tally() for name in settings.rewrites}
    try:
        _prepare(out, part, made_from)
        done = _recover(part, tallies)
        captions, extra = divmod(done, len(settings.rewrites))
        todo = islice(iter(items), captions, None)
        with part.open("ab") as file:
            for made in _made(todo, settings, workers, extra, track):
                count(tallies, made)
                file.write(_line(made))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, out)
    except OSError as error:
        raise CompoclipError(
            f"{out}: cannot be written ({error.strerror or error}); check folder, rights and space"
        ) from error
    return Outcome(tallies, done)


def settings_path(out: Path) -> Path:
    """Where the settings of an output file are kept."""
    return out.with_name(out.name + ".settings.json")


def _prepare(out: Path, part: Path, made_from: dict[str, Any]) -> None:
    """Check or write the settings beside the output; a finished output counts as one to resume."""
    out.parent.mkdir(parents=True, exist_ok=True)
    path = settings_path(out)
    if out.exists() or part.exists():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UsageError(
                f"{out}: exists, but {path.name} beside it does not say how it was made; "
                "choose another -o or remove the file"
            ) from None
        _compare(out, before, made_from)
        if out.exists() and not part.exists():
            os.replace(out, part)
        return
    text = json.dumps(made_from, indent=1, sort_keys=True) + "\n"
    with replacing(path) as place:
        place.write_text(text, encoding="utf-8")


def _compare(out: Path, before: Any, now: dict[str, Any]) -> None:
    if not isinstance(before, dict):
        before = {}
    for key, value in now.items():
        old = before.get(key)
        if old != value:
            raise UsageError(
                f"{out}: was made with other settings ({key} was {_short(old)}, is now "
                f"{_short(value)}); choose another -o or remove the file"
            )


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:80]


def _recover(part: Path, tallies: dict[str, Tally]) -> int:
    """Count the complete records of an interrupted run into the tallies; cut what is torn."""
    if not part.exists():
        return 0
    done = end = 0
    with part.open("r+b") as file:
        for line in file:
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("torn line")
                count(tallies, json.loads(line))
            except (ValueError, KeyError, TypeError):
                break
            done += 1
            end += len(line)
        file.truncate(end)
    return done


def _line(made: dict[str, Any]) -> bytes:
    """One record as a UTF-8 line; lone surrogates, which UTF-8 cannot hold, are escaped."""
    try:
        return (json.dumps(made, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(made) + "\n").encode()


def _made(
    todo: Iterator[Item],
    settings: Settings,
    workers: int,
    extra: int,
    track: Callable[[Iterable[int]], Iterable[int]],
) -> Iterator[dict[str, Any]]:
    """The records in order, without the first `extra`; `track` sees one element a caption."""
    stream = islice(_stream(_batches(todo), settings, workers), extra, None)
    held: list[dict[str, Any]] = []

    def captions() -> Iterator[int]:
        names = len(settings.rewrites)
        for number, made in enumerate(stream, extra + 1):
            held.append(made)
            if number % names == 0:
                yield number // names

    for _ in track(captions()):
        yield from held
        held.clear()


def _batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    while batch := list(islice(items, BATCH)):
        yield batch


def _stream(
    batches: Iterator[list[Item]], settings: Settings, workers: int
) -> Iterator[dict[str, Any]]:
    """Records of all batches in order, made here or, when there are several, by processes."""
    first = list(islice(batches, 2))
    batches = chain(first, batches)
    if workers <= 1 or len(first) < 2:
        for batch in batches:
            yield from records(batch, settings)
        return
    # Fresh interpreters: forking a process that holds threads can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting: deque[Future[list[dict[str, Any]]]] = deque()
        try:
            for batch in batches:
                waiting.append(pool.submit(records, batch, settings))
                if len(waiting) >= AHEAD * workers:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
