"""JSON-lines shards, plain or compressed."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from compoclip.corpora.job import PARSE, Counts, Job, row_of
from compoclip.corpora.splice import spliced
from compoclip.data.columns import cell_captions, pick_captions
from compoclip.data.textfiles import json_row, read_lines

_BATCH = 1000
_LEVEL = 6
_Line = tuple[int, str, dict[str, Any]]


def check(source: Path, column: str | None) -> None:
    """Raise UsageError when the first row lacks the column, CompoclipError when it is unreadable.

    column: caption columns joined by commas, guessed when not given.
    """
    for _, _, row in islice(_lines(source), 1):
        pick_captions(row, column, source)


def transform(source: Path, target: Path, column: str | None, job: Job, counts: Counts) -> None:
    """Write `source` with the fields of the job added to every line.

    Blank lines are dropped, everything else stays as it is. Rows are named by their field "id", or
    by file name and row number. Raises CompoclipError for a damaged shard, OSError when the target
    cannot be written.
    """
    lines = _lines(source)
    columns: tuple[str, ...] = ()
    number = 0
    with _writing(target, source.name) as out:
        while batch := list(islice(lines, _BATCH)):
            columns = columns or pick_captions(batch[0][2], column, source)
            rows = []
            for _, _, row in batch:
                texts = [text for name in columns for text in cell_captions(row.get(name))]
                id = str(row.get("id", f"{source.name}#{number}"))
                rows.append(row_of(id, texts, row.get(PARSE), counts))
                number += 1
            for (place, line, row), added in zip(batch, job.make(rows, counts), strict=True):
                out.write(spliced(line, row, added, f"{source}: line {place}") + b"\n")


def _lines(path: Path) -> Iterator[_Line]:
    for number, line in read_lines(path):
        if line.strip():
            yield number, line, json_row(line, path, number)


@contextmanager
def _writing(target: Path, name: str) -> Iterator[IO[bytes]]:
    with target.open("wb") as file:
        if not name.lower().endswith(".gz"):
            yield file
            return
        # Neither name nor time in the header: the same lines, the same bytes.
        with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as compressed:
            yield compressed  # type: ignore[misc]
