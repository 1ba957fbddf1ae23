"""Records of captions as JSON lines: parallel, resumable, the same bytes for any worker count.

Records are written to OUT.part and their inputs to OUT.settings.json; the finished OUT.part becomes
OUT. A rerun cuts a torn last line and continues behind the last complete record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from compoclip.console import counted, note
from compoclip.differences import differences_of, require_same
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import (
    content_hash,
    only_writer,
    read_json_object,
    replacing,
    sync_folder,
    writing,
)
from compoclip.workers import in_batches

BATCH = 200
Item = tuple[str, str]
Record = dict[str, Any]
Make = Callable[[list[Item]], list[Record]]
Track = Callable[[Iterable[int]], Iterable[int]]
_CONTENT = "content of the file"  # in the settings: a hash of the finished file


def write_records(
    items: Iterable[Item],
    out: Path,
    make: Make,
    made_from: Mapping[str, Any],
    count: Callable[[Record], None],
    per_caption: int = 1,
    workers: int = 1,
    track: Track = iter,
) -> int:
    """Write the records of all (id, caption) items to `out`, one JSON object per line.

    make: returns the records of a batch in order, `per_caption` for each, with its "id" and
    "caption"; it is sent to worker processes. made_from: the inputs of the records, for
    OUT.settings.json. count: called with every record, those of an interrupted run first; raises
    ValueError, KeyError, TypeError or AttributeError for a damaged one. track: wraps the stream of
    finished captions, to show progress. Returns the number of records of an interrupted run.

    Raises UsageError when `out` has other inputs, CompoclipError when it cannot be written or
    another process is writing it.
    """
    todo = iter(items)
    begun: list[Item] = []  # the caption some of whose records are there
    recounted = 0

    def recount(record: Record) -> None:
        nonlocal recounted
        if not begun:
            begun.extend(islice(todo, 1))
        if not begun or (record["id"], record["caption"]) != begun[0]:
            raise ValueError("a record of another caption")
        count(record)
        recounted += 1
        if recounted % per_caption == 0:
            begun.clear()

    with appending(out, made_from, recount) as (append, done):
        extra = done % per_caption
        with closing(in_batches(make, chain(begun, todo), BATCH, workers)) as batches:
            records: list[Record] = []
            stream = chain.from_iterable(batches)

            def captions() -> Iterator[int]:
                """Yield the number of every caption whose records are all held."""
                for number, record in enumerate(islice(stream, extra, None), extra + 1):
                    records.append(record)
                    if number % per_caption == 0:
                        yield number // per_caption

            for _ in track(captions()):
                for written in records:
                    count(written)
                    append(written)
                records.clear()
    return done


@contextmanager
def appending(
    out: Path, made_from: Mapping[str, Any], count: Callable[[Record], None]
) -> Iterator[tuple[Callable[[Record], None], int]]:
    """Append records to OUT.part, which becomes `out` when the block ends without an error.

    Yields what adds a record, and the number of records of an interrupted run. made_from, count: as
    for `write_records`; count is called with these records before the block, and those from the
    first that it objects to are dropped. Raises like `write_records`.
    """
    part = out.with_name(out.name + ".part")
    with writing(out), only_writer(out):
        changed = _prepare(out, part, made_from)
        done, damaged = _recover(part, count)
        if changed and not damaged:  # a damaged record is made again, an edited one is not seen
            os.replace(part, out)
            raise UsageError(f"{out}: was changed after it was made; choose another -o")
        with part.open("ab") as file:

            def append(record: Record) -> None:
                file.write(json_bytes(record) + b"\n")
                file.flush()  # it outlives the end of this process, however sudden

            yield append, done
            os.fsync(file.fileno())
        os.replace(part, out)
        sync_folder(out.parent)
        _write_settings(out, {**made_from, _CONTENT: content_hash(out)})


def settings_path(out: Path) -> Path:
    """Return the path of the settings of an output file."""
    return out.with_name(out.name + ".settings.json")


def _prepare(out: Path, part: Path, made_from: Mapping[str, Any]) -> bool:
    """Check the settings of an output to resume, also a finished one, or write them.

    Returns whether a finished one has another content than it had.
    """
    path = settings_path(out)
    begun = part.exists() and part.stat().st_size > 0
    if out.exists() or begun:
        try:
            before = read_json_object(path)
        except CompoclipError:
            raise UsageError(
                f"{out}: exists, but {path.name} beside it does not say how it was made; "
                "choose another -o or remove the file"
            ) from None
        content = before.pop(_CONTENT, "")  # none of a file that is not finished
        require_same_settings(out, before, made_from)
        if begun or not out.exists():
            return False
        changed = bool(content) and content != content_hash(out)
        os.replace(out, part)
        return changed
    _write_settings(out, made_from)
    return False


def _write_settings(out: Path, settings: Mapping[str, Any]) -> None:
    with replacing(settings_path(out)) as place:
        place.write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def require_same_settings(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageError, naming what differs, if `out` was not made with these settings."""
    problem, remedy = "was made with other settings", "choose another -o or remove it"
    require_same(out, differences_of(before, now), problem, remedy)


def _recover(part: Path, count: Callable[[Record], None]) -> tuple[int, bool]:
    """Count the complete records of an interrupted run; cut the torn rest.

    Returns their number, and whether there was such a rest.
    """
    if not part.exists():
        return 0, False
    done = end = 0
    damaged = False
    with part.open("r+b") as file:
        for line in file:
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("torn line")
                count(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                damaged = True
                lost = line.endswith(b"\n") + sum(1 for _ in file)
                if lost:  # more than the line that a killed run was writing
                    again = counted(lost, "record")
                    note(f"{part}: record {done + 1} is damaged; making {again} again from there")
                break
            done += 1
            end += len(line)
        file.truncate(end)
    return done, damaged


def json_bytes(record: Record) -> bytes:
    """Return a record as UTF-8 JSON, with lone surrogates escaped."""
    try:
        return json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(record).encode()
