"""Lines and rows: what small files may unpack to, and how errors name their place."""

from __future__ import annotations

import gzip
import json
import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compoclip import tables
from compoclip.errors import CompoclipError
from compoclip.tables import read_delimited, read_jsonl, read_lines, read_records

MiB = 1 << 20


def squeezed(path: Path, line: bytes, times: int) -> Path:
    """A .gz file of `times` times the same bytes."""
    with gzip.open(path, "wb") as file:
        block = line * (1 + MiB // len(line))
        for _ in range(-(-len(line) * times // len(block))):
            file.write(block)
    return path


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_small_file_that_holds_one_endless_line(tmp_path: Path) -> None:
    path = squeezed(tmp_path / "a.jsonl.gz", b"x", 200 * MiB)
    assert path.stat().st_size < MiB
    before = peak()
    with pytest.raises(CompoclipError, match=r"a\.jsonl\.gz: line 1 is longer than 16 MiB"):
        list(read_jsonl(path))
    assert peak() - before < 120 * MiB


def test_a_small_file_of_endless_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_UNPACKED_FREE", 2 * MiB)
    line = json.dumps({"image": "1.jpg", "caption": "x"}).encode() + b"\n"
    path = squeezed(tmp_path / "a.jsonl.gz", line, 6 * MiB // len(line))
    with pytest.raises(CompoclipError, match=r"a\.jsonl\.gz: unpacks to more than 100 times"):
        for _ in read_lines(path):
            pass
    small = squeezed(tmp_path / "b.jsonl.gz", line, 1000)
    assert sum(1 for _ in read_jsonl(small)) > 1000


def test_long_lines_and_cells_of_plain_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MAX_LINE_BYTES", 100)
    lines = tmp_path / "a.txt"
    lines.write_bytes(b"x" * 99 + b"\n" + b"y" * 100 + b"\n")
    with pytest.raises(CompoclipError, match=r"a\.txt: line 2 is longer than"):
        list(read_lines(lines))
    table = tmp_path / "a.csv"
    table.write_text("image,caption\n1.jpg,x\n2.jpg," + "y" * 100)
    with pytest.raises(CompoclipError, match=r"a\.csv: line 3 is longer than"):
        list(read_delimited(table))
    table.write_text('image,caption\n1.jpg,"' + "a line\n" * 20 + '"\n')
    with pytest.raises(CompoclipError, match=r"a\.csv: line \d+: field larger than field limit"):
        list(read_delimited(table))


def test_a_small_parquet_file_of_endless_rows_or_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.array([0], pa.int8()).take(pa.array([0] * 1_000_000, pa.int32()))
    pq.write_table(pa.table({"image": rows}), path)
    assert path.stat().st_size < MiB // 4
    with pytest.raises(CompoclipError, match=r"a\.parquet: unpacks to more than 100 times"):
        list(read_records(path))
    text = pa.array(["x" * (80 * MiB)])
    pq.write_table(pa.table({"caption": text}), path, compression="zstd", write_statistics=False)
    assert path.stat().st_size < MiB // 4
    with pytest.raises(CompoclipError, match=r"a\.parquet: unpacks to more than 100 times"):
        list(read_records(path))


def test_byte_order_marks_and_line_ends(tmp_path: Path) -> None:
    for name, opened in (("a.jsonl", open), ("a.jsonl.gz", gzip.open)):
        path = tmp_path / name
        with opened(path, "wb") as file:
            file.write(b"\xef\xbb\xbfone\r\n\xe2\x80\xa8two\n\nthree")
        assert list(read_lines(path)) == [(1, "one"), (2, "\u2028two"), (3, ""), (4, "three")]


def test_the_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"image,caption\n" + b"1.jpg,x\n" * 20_000 + b"1.jpg,\xc3\n" + b"1.jpg,x\n")
    with pytest.raises(CompoclipError, match=r"a\.csv: line 20002 is not UTF-8 text .*convert"):
        list(read_delimited(path))
