"""One property of every reader: whatever bytes and rows its files hold, and whatever its options
say, it ends, in little memory, with a benchmark or with one clear line that names a file.

The files are those that the world writes in the official formats, and other layouts that readers
take. Each example spoils one file in a few ways: bytes cut, doubled or put in; cells and values
replaced by hostile ones; rows and keys dropped or doubled.
"""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compoclip.benchmarks.case import Form
from compoclip.benchmarks.coverage import present
from compoclip.benchmarks.registry import benchmark_names
from compoclip.errors import CompoclipError
from compoclip.evaluation.score import candidates
from compoclip.evaluation.targets import Target, read_suite
from compoclip.world.export.part import SuiteSpec
from compoclip.world.export.suite import write_suite
from compoclip.world.scene import WorldConfig
from test_benchmarks_photo_sets import encoded, write_coco, write_index, write_shards, write_table

PICTURES = (".png", ".jpg", ".npy")
MOST_MEMORY = 96 << 20
LONGEST = 2000
MADE = {
    **{name: name for name in benchmark_names()},
    "retrieval": "retrieval:coco",
    "zero_shot": "zero_shot:things",
}
"""Benchmark -> the target of the made suite that stands for it."""


def write_more(root: Path) -> dict[str, tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Layouts that the world does not write: name -> target, its options, the files to spoil."""
    words = [
        {"image": "1.png", "caption": f"a cup {k}", "negative_caption": "a" * k} for k in (1, 2)
    ]
    for name, write in (("csv", csv_text), ("jsonl", jsonl_text)):
        (root / f"own.{name}").write_text(write(words), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(words), root / "own.parquet")
    said = [{"image": "1.png", "caption": f"cup {k}", "label": k % 2} for k in range(4)]
    (root / "said.tsv").write_text(csv_text(said, "\t"), encoding="utf-8")
    picture = {"bytes": encoded(0), "path": "1.png"}
    row = {"image": picture, "caption": "a", "negative_caption": "b", "negative_image": picture}
    pq.write_table(
        pa.Table.from_pylist([{**row, "type": "swap", "subtype": "obj"}]), root / "hub.parquet"
    )
    (root / "tokens.txt").write_text("1.jpg#0\ta cup\n1.jpg#1\tcups\n2.jpg#0\tno\n")
    (root / "split.txt").write_text("1.jpg\n")
    photo = {"filename": "1.jpg", "filepath": "val", "split": "test", "sentences": [{"raw": "a"}]}
    (root / "karpathy.json").write_text(json.dumps({"images": [photo]}))
    with zipfile.ZipFile(root / "valse.zip", "w") as archive:
        for path in sorted((root / "valse").glob("*.json")):
            archive.write(path, path.name)
    write_index(root / "index")
    write_coco(root / "coco_index")
    write_shards(root / "shards")
    write_table(root / "table")
    (root / "names.json").write_text('["box", ["disc", "coin"], "star"]')
    (root / "prompts.md").write_text(
        '## own\n```bash\nclasses = ["box", "disc", "star"]\ntemplates = ["a {}."]\n```\n'
    )
    classes = {"images": root / "index", "classes": root / "names.json"}
    listed = {"images": root / "coco_index", "classes": root / "prompts.md", "key": "own"}
    flickr = {"annotations": root / "tokens.txt", "split_file": root / "split.txt"}
    return {
        "foils as CSV": ("foils", {"annotations": root / "own.csv"}, ("own.csv",)),
        "foils as JSON lines": ("foils", {"annotations": root / "own.jsonl"}, ("own.jsonl",)),
        "foils as Parquet": ("foils", {"annotations": root / "own.parquet"}, ("own.parquet",)),
        "statements as TSV": ("foils", {"annotations": root / "said.tsv"}, ("said.tsv",)),
        "pictures in Parquet": (
            "bivlc", {"annotations": root / "hub.parquet"}, ("hub.parquet",)
        ),
        "tokens": ("retrieval:flickr8k", flickr, ("tokens.txt", "split.txt")),
        "Karpathy": (
            "retrieval:coco", {"annotations": root / "karpathy.json"}, ("karpathy.json",)
        ),
        "VALSE packed": ("valse", {"annotations": root / "valse.zip"}, ("valse.zip",)),
        "index": ("zero_shot:own", classes, ("index/test.txt", "index/test.zip", "names.json")),
        "COCO index": (
            "zero_shot:own",
            listed,
            ("coco_index/test_meta.json", "coco_index/test.zip", "prompts.md"),
        ),
        "shards": (
            "zero_shot:own",
            {"images": root / "shards"},
            ("shards/test/2.tar", "shards/classnames.txt"),
        ),
        "table": ("zero_shot:own", {"images": root / "table"}, ("table/test-00000-of-00001.parquet",)),
    }  # fmt: skip


MORE = (
    "foils as CSV", "foils as JSON lines", "foils as Parquet", "statements as TSV",
    "pictures in Parquet", "tokens", "Karpathy", "VALSE packed", "index", "COCO index", "shards",
    "table",
)  # fmt: skip


def csv_text(rows: list[dict[str, Any]], delimiter: str = ",") -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def jsonl_text(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("property") / "suite"
    write_suite(folder, SuiteSpec(WorldConfig(size=32), 2))
    return folder


@pytest.fixture(scope="module")
def readers(root: Path) -> dict[str, tuple[Target, list[Path]]]:
    """Name -> a target, and the files that it reads."""
    known = {target.spec: target for target in read_suite(root / "suite.json")}
    found = {}
    for name, spec in MADE.items():
        folders = {
            "retrieval": ("coco",), "zero_shot": ("elevater/things",), "aro": ("aro", "flickr30k"),
            "crepe_prod": ("crepe/prod_hard_negatives",),
            "crepe_syst": ("crepe/syst_hard_negatives",), "sugarcrepe_pp_tot": ("sugarcrepe_pp",),
        }.get(name, (name,))  # fmt: skip
        paths = [path for each in folders for path in sorted((root / each).rglob("*"))]
        files = [path for path in paths if path.is_file() and path.suffix not in PICTURES]
        found[name] = (known[spec], files)
    for name, (spec, options, spoilt) in write_more(root).items():
        images = options.pop("images", None)
        target = Target(spec, root, images, options=options)
        found[name] = (target, [root / each for each in spoilt])
    return found


HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2, 1.5, 10**25, float("nan"), float("inf"), "", " ", "x", "1" * 5000, "\u00b2",
    "\ud800", "a\nb\r\u2028\x1b[31m", "../../etc/passwd", "/etc/passwd", ".", "\0", "x" * 3000, "{}",
    "['a', 'b']", [], {}, [[]], [None], ["a", "a"], {"bytes": "x"}, "[" * 400, "~nobody/x",
)  # fmt: skip
WHOLE = (
    b"", b"\n", b"{}", b"[]", b"null", b"3", b'"x"', b"[[]]", b"[{}]", b'{"a": {}}', b"\xff\xfe\x00",
    b"<!DOCTYPE html>\n<html>404</html>\n", b"[" * 100_000, b'{"a":' * 50_000, b'{"a":1,"a":2}',
    b"[" + b"1" * 5000 + b"]", b'{"x": "\\ud800"}\n', b"PAR1", b"PK\x05\x06" + bytes(18), bytes(1024),
    b"a,b\n1,2\n", b"a,a\n1\n", b'"\n', b"image,caption\n" + b"x" * 200_000,
)  # fmt: skip
PIECES = (
    b"\n", b",", b"\t", b'"', b"{", b"]", b"\\", b"\0", b"\xff", b"0", b"-", b"1e999", b"\\u0000",
    b"\\ud800", b"\xe2\x80\xa8", b"\r", b"#", b"@", b"9" * 5000, b"../",
)  # fmt: skip


def spoil(data: st.DataObject, raw: bytes, suffix: str) -> bytes:
    """The content of a file, spoilt in one to three ways."""
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
            flipped = bytes(
                byte ^ data.draw(st.integers(1, 255)) for byte in raw[start : start + 1]
            )
            return raw[:start] + flipped + raw[start + 1 :]


def in_json(data: st.DataObject, raw: bytes) -> bytes:
    """A value replaced, dropped or doubled at any depth of the JSON, or of one of its lines."""
    lines = raw.split(b"\n")
    try:
        value, place = json.loads(raw), None
    except (ValueError, RecursionError):
        place = data.draw(st.integers(0, len(lines) - 1))
        try:
            value = json.loads(lines[place])
        except (ValueError, RecursionError):
            return in_bytes(data, raw)
    holder: Any = [value]
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and data.draw(st.integers(0, 4)):
        holder = holder[key]
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = data.draw(st.sampled_from(keys))
    way = data.draw(st.sampled_from(("replace", "replace", "drop", "double", "rename")))
    if way == "drop" and holder is not value:
        del holder[key]
    elif way == "double" and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif way == "rename" and isinstance(holder, dict):
        name = data.draw(st.sampled_from([each for each in HOSTILE if isinstance(each, str)]))
        holder[name] = holder.pop(key)
    else:
        holder[key] = data.draw(st.sampled_from(HOSTILE))
    text = json.dumps(value).encode()
    if place is None:
        return text
    return b"\n".join([*lines[:place], text, *lines[place + 1 :]])


def in_cells(data: st.DataObject, raw: bytes) -> bytes:
    """A cell replaced, a row or a column doubled or dropped."""
    delimiter = "\t" if b"\t" in raw else ","
    try:
        rows = list(csv.reader(io.StringIO(raw.decode(), newline=""), delimiter=delimiter))
    except (ValueError, csv.Error):
        return in_bytes(data, raw)
    if not rows or not rows[0]:
        return in_bytes(data, raw)
    row = data.draw(st.sampled_from(range(len(rows))))
    column = data.draw(st.integers(0, max(0, len(rows[row]) - 1)))
    match data.draw(st.sampled_from(("cell", "cell", "row", "column", "drop"))):
        case "cell":
            cell = str(data.draw(st.sampled_from(HOSTILE))).encode("utf-8", "replace").decode()
            rows[row] = [*rows[row][:column], cell, *rows[row][column + 1 :]]
        case "row":
            rows.insert(row, rows[row])
        case "column":
            rows = [[*each, *each[column : column + 1]] for each in rows]
        case _:
            rows = [each[:column] + each[column + 1 :] for each in rows]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def expect_one_line(message: str, root: Path) -> None:
    """Short, printable and on one line, and about something below `root`."""
    assert message.isprintable(), repr(message[:300])
    assert len(message) < LONGEST, message[:300]
    assert str(root) in message, message


def judge(target: Target, root: Path) -> None:
    """Load the target and look at every item; one clear line is as good."""
    tracemalloc.start()
    try:
        found = target.load()
        content, _ = present(found)
        for case in content if isinstance(content, tuple) else ():
            candidates(case)
            assert case.form is not Form.BINARY or case.truth in (0, 1)
            "".join((case.id, case.subtask, *case.texts)).encode()
    except CompoclipError as error:
        expect_one_line(str(error), root)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_MEMORY


@pytest.mark.parametrize("name", [*benchmark_names(), *MORE])
def test_every_reader_ends_with_items_or_one_line(
    name: str, root: Path, readers: dict[str, tuple[Target, list[Path]]]
) -> None:
    target, files = readers[name]
    target.load()
    kept = {path: path.read_bytes() for path in files}

    @settings(
        max_examples=int(__import__("os").environ.get("EX", "40")),
        derandomize="EX" not in __import__("os").environ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def spoilt(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(files))
        path.write_bytes(spoil(data, kept[path], path.suffix))
        try:
            judge(target, root)
        finally:
            path.write_bytes(kept[path])

    spoilt()
