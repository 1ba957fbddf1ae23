"""Rows as files: CSV, TSV, JSON, JSON lines, Parquet, Arrow, tar and zip."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = Mapping[str, Any]


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text, with the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write_json(path: Path, value: object) -> Path:
    """Write a value as JSON."""
    return write_text(path, json.dumps(value))


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    """Write one JSON value per line, compressed if the name ends in .gz."""
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    if path.suffix != ".gz":
        return write_text(path, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))
    return path


def read_jsonl(path: Path) -> list[Any]:
    """Return the JSON value of each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, texts: Iterable[str]) -> Path:
    """Write one text per line."""
    return write_text(path, "".join(f"{text}\n" for text in texts))


def write_csv(path: Path, *rows: Row, delimiter: str = ",") -> Path:
    """Write rows below a header of the first one's columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_text(path, text.getvalue())


def write_parquet(path: Path, rows: Sequence[Row] | Mapping[str, Any], **options: Any) -> Path:
    """Write rows, or columns by name, as Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, Mapping):
        table = pa.table(rows)
    else:
        table = pa.Table.from_pylist([dict(row) for row in rows])
    pq.write_table(table, path, **options)
    return path


def write_arrow(path: Path, rows: Sequence[Row], footer: bool = False) -> Path:
    """Write rows as the library `datasets` saves them: a stream, or a file with a footer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([dict(row) for row in rows])
    new = pa.ipc.new_file if footer else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows in the format that the name of the file says; lists in cells of text as JSON."""
    if path.suffix in (".csv", ".tsv", ".txt"):
        delimiter = "\t" if path.suffix == ".tsv" else ","
        cells = [{name: _cell(value) for name, value in row.items()} for row in rows]
        return write_csv(path, *cells, delimiter=delimiter)
    if path.suffix == ".parquet":
        return write_parquet(path, rows)
    return write_json(path, rows) if path.suffix == ".json" else write_jsonl(path, rows)


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, list) else value


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], mode: str = "w") -> Path:
    """Write plain members of one fixed time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as out:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1_700_000_000
            out.addfile(member, io.BytesIO(data))
    return path


def sample(key: str, **members: bytes) -> list[tuple[str, bytes]]:
    """Return the members of a sample of a tar shard, named by their endings."""
    return [(f"{key}.{ending}", content) for ending, content in members.items()]


def write_zip(path: Path, members: Mapping[str, bytes | str], mode: str = "w") -> Path:
    """Write members of any name, also one that zipfile itself refuses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, mode, zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            member = zipfile.ZipInfo("x")
            member.filename = name
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    return path
