"""Files spoilt in a few ways: bytes cut, doubled or put in, values and cells replaced."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

WORDS = (
    *("", " ", "x", "1" * 5000, "\u00b2", "\ud800", "a\nb\r\u2028\x1b[31m", "../../etc/passwd"),
    *("/etc/passwd", ".", "\0", "x" * 3000, "{}", "['a', 'b']", "[" * 400, "~nobody/x"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2, 1.5, 10**25, float("nan"), float("inf")),
    *([], {}, [[]], [None], ["a", "a"], {"bytes": "x"}, *WORDS),
)
WHOLE = (
    *(b"", b"\n", b"{}", b"[]", b"null", b"3", b'"x"', b"[[]]", b"[{}]", b'{"a": {}}', bytes(1024)),
    *(b"\xff\xfe\x00", b"<!DOCTYPE html>\n<html>404</html>\n", b"[" * 100_000, b'{"a":' * 50_000),
    *(b'{"a":1,"a":2}', b"[" + b"1" * 5000 + b"]", b'{"x": "\\ud800"}\n', b"PAR1", b"a,a\n1\n"),
    *(b"PK\x05\x06" + bytes(18), b"a,b\n1,2\n", b'"\n', b"image\n" + b"x" * 200_000),
)
PIECES = (
    *(b"\n", b",", b"\t", b'"', b"{", b"]", b"\\", b"\0", b"\xff", b"0", b"-", b"1e999", b"@"),
    *(b"\\u0000", b"\\ud800", b"\xe2\x80\xa8", b"\r", b"#", b"9" * 5000, b"../"),
)


def spoil(data: st.DataObject, raw: bytes, suffix: str) -> bytes:
    """Return the content of a file, spoilt in one to three ways."""
    ways: list[Callable[[st.DataObject, bytes], bytes]] = [in_bytes, in_bytes]
    if suffix in (".json", ".jsonl"):
        ways += [in_json] * 4
    elif suffix in (".csv", ".tsv"):
        ways += [in_cells] * 4
    if data.draw(st.integers(0, 7)) == 0:
        return data.draw(st.sampled_from(WHOLE))
    for _ in range(data.draw(st.integers(1, 3))):
        raw = data.draw(st.sampled_from(ways))(data, raw)
    return raw


def in_bytes(data: st.DataObject, raw: bytes) -> bytes:
    """Cut, put in, double or change bytes."""
    start = data.draw(st.integers(0, len(raw)))
    end = min(len(raw), start + data.draw(st.sampled_from((0, 1, 2, 7, 40, 10**6))))
    match data.draw(st.sampled_from(("cut", "put", "double", "turn"))):
        case "cut":
            return raw[:start] + raw[end:]
        case "put":
            return raw[:start] + data.draw(st.sampled_from(PIECES)) + raw[start:]
        case "double":
            return raw[:end] + raw[start:]
        case _:
            turned = bytes(byte ^ data.draw(st.integers(1, 255)) for byte in raw[start:][:1])
            return raw[:start] + turned + raw[start + 1 :]


def in_json(data: st.DataObject, raw: bytes) -> bytes:
    """Change a value of the JSON, or of one of its lines."""
    lines = raw.split(b"\n")
    place = None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        place = data.draw(st.integers(0, len(lines) - 1))
        try:
            value = json.loads(lines[place])
        except (ValueError, RecursionError):
            return in_bytes(data, raw)
    text = json.dumps(in_value(data, value)).encode()
    return text if place is None else b"\n".join([*lines[:place], text, *lines[place + 1 :]])


def in_value(data: st.DataObject, value: Any) -> Any:
    """Replace, drop, double or rename a value at any depth."""
    holder: Any = [value]
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and data.draw(st.integers(0, 4)):
        holder = holder[key]
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = data.draw(st.sampled_from(keys))
    way = data.draw(st.sampled_from(("replace", "replace", "drop", "double", "rename")))
    if way == "drop" and holder[key] is not value:
        del holder[key]
    elif way == "double" and isinstance(holder, list) and holder[key] is not value:
        holder.insert(key, holder[key])
    elif way == "rename" and isinstance(holder, dict):
        holder[data.draw(st.sampled_from(WORDS))] = holder.pop(key)
    elif holder[key] is value:
        return data.draw(st.sampled_from(VALUES))
    else:
        holder[key] = data.draw(st.sampled_from(VALUES))
    return value


def in_cells(data: st.DataObject, raw: bytes) -> bytes:
    """Replace a cell, double a row or a column, or drop a column."""
    delimiter = "\t" if b"\t" in raw else ","
    try:
        rows = list(csv.reader(io.StringIO(raw.decode(), newline=""), delimiter=delimiter))
    except (ValueError, csv.Error):
        return in_bytes(data, raw)
    if not rows or not rows[0]:
        return in_bytes(data, raw)
    row = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, max(0, len(rows[row]) - 1)))
    match data.draw(st.sampled_from(("cell", "cell", "row", "column", "drop"))):
        case "cell":
            cell = str(data.draw(st.sampled_from(VALUES))).encode("utf-8", "replace").decode()
            rows[row] = [*rows[row][:column], cell, *rows[row][column + 1 :]]
        case "row":
            rows.insert(row, rows[row])
        case "column":
            rows = [[*cells, *cells[column : column + 1]] for cells in rows]
        case _:
            rows = [cells[:column] + cells[column + 1 :] for cells in rows]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
