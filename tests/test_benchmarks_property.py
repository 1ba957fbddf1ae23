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
import re
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_files import examples, expect_one_line
from compoclip.benchmarks.case import Form, present
from compoclip.benchmarks.names import benchmark_names
from compoclip.benchmarks.registry import option_types
from compoclip.benchmarks.targets import Target, parse_targets, read_suite
from compoclip.errors import CompoclipError
from compoclip.evaluation.forms import FORMS
from compoclip_world.export.part import SuiteSpec
from compoclip_world.export.suite import write_suite
from compoclip_world.scene import WorldConfig
from official import BUILDERS
from test_benchmarks_photo_sets import encoded, write_coco, write_index, write_shards, write_table

PICTURES = (".png", ".jpg", ".npy")
MOST_MEMORY = 96 << 20
MADE = {
    **{name: name for name in benchmark_names()},
    "probe": "probe:things",
    "retrieval": "retrieval:coco",
    "zero_shot": "zero_shot:things",
}
"""Benchmark -> the target of the made suite that stands for it."""
FOLDERS = {
    "aro": ("aro", "flickr30k"),
    "crepe_prod": ("crepe/prod_hard_negatives",),
    "crepe_syst": ("crepe/syst_hard_negatives",),
    "retrieval": ("coco",),
    "sugarcrepe_pp_tot": ("sugarcrepe_pp",),
    "zero_shot": ("elevater/things",),
}
"""Benchmark -> the folders it reads, where these are not called like it."""
ALONE = {
    "own.csv": "foils",
    "own.jsonl": "foils",
    "own.parquet": "foils",
    "said.tsv": "foils",
    "hub.parquet": "bivlc",
    "karpathy.json": "retrieval:coco",
    "valse.zip": "valse",
}
"""File of a layout that the world does not write -> what reads it."""
PHOTOS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "index": (("test.txt", "test.zip", "../names.json"), {"classes": "names.json"}),
    "coco_index": (
        ("test_meta.json", "test.zip", "../prompts.md"),
        {"classes": "prompts.md", "key": "own"},
    ),
    "shards": (("test/2.tar", "classnames.txt"), {}),
    "table": (("test-00000-of-00001.parquet",), {}),
}
"""Folder of a zero-shot set -> its files to spoil, the options to read it with."""
Reader = tuple[Target, list[Path]]


def csv_text(rows: list[dict[str, Any]], delimiter: str = ",") -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_more(root: Path) -> dict[str, Reader]:
    """Layouts that the world does not write: name -> a target, the files to spoil."""
    words = [{"image": "1.png", "caption": f"cup {k}", "negative_caption": "a" * k} for k in (1, 2)]
    said = [{"image": "1.png", "caption": f"cup {k}", "label": k % 2} for k in range(4)]
    picture = {"bytes": encoded(0), "path": "1.png"}
    pair = {"image": picture, "caption": "a", "negative_caption": "b", "negative_image": picture}
    photo = {"filename": "1.jpg", "filepath": "val", "split": "test", "sentences": [{"raw": "a"}]}
    lists = 'classes = ["box", "disc", "star"]\ntemplates = ["a {}."]'
    texts = {
        "own.csv": csv_text(words),
        "said.tsv": csv_text(said, "\t"),
        "own.jsonl": "".join(f"{json.dumps(row)}\n" for row in words),
        "karpathy.json": json.dumps({"images": [photo]}),
        "tokens.txt": "1.jpg#0\ta cup\n1.jpg#1\tcups\n2.jpg#0\tno\n",
        "split.txt": "1.jpg\n",
        "names.json": '["box", ["disc", "coin"], "star"]',
        "prompts.md": f"## own\n```bash\n{lists}\n```\n",
    }
    for file, text in texts.items():
        (root / file).write_text(text, encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(words), root / "own.parquet")
    hub = [{**pair, "type": "swap", "subtype": "obj"}]
    pq.write_table(pa.Table.from_pylist(hub), root / "hub.parquet")
    with zipfile.ZipFile(root / "valse.zip", "w") as archive:
        for path in sorted((root / "valse").glob("*.json")):
            archive.write(path, path.name)
    write_index(root / "index")
    write_coco(root / "coco_index")
    write_shards(root / "shards")
    write_table(root / "table")
    found: dict[str, Reader] = {
        file: (Target(spec, root, options={"annotations": root / file}), [root / file])
        for file, spec in ALONE.items()
    }
    flickr = {"annotations": root / "tokens.txt", "split_file": root / "split.txt"}
    found["tokens"] = Target("retrieval:flickr8k", root, options=flickr), list(flickr.values())
    for folder, (files, said_so) in PHOTOS.items():
        options = {key: root / value if "." in value else value for key, value in said_so.items()}
        target = Target("zero_shot:own", root, root / folder, options=options)
        found[folder] = target, [(root / folder / file).resolve() for file in files]
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("property") / "suite"
    write_suite(folder, SuiteSpec(WorldConfig(size=32), 2), builders=BUILDERS)
    return folder


@pytest.fixture(scope="module")
def readers(root: Path) -> dict[str, Reader]:
    """Name -> a target, and the files that it reads."""
    known = {target.spec: target for target in read_suite(root / "suite.json")}
    found = {}
    for name, spec in MADE.items():
        folders = FOLDERS.get(name, (name,))
        paths = [path for each in folders for path in sorted((root / each).rglob("*"))]
        files = [path for path in paths if path.is_file() and path.suffix not in PICTURES]
        if spec in known:
            found[name] = (known[spec], files)
    return found | write_more(root)


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
            turned = bytes(byte ^ data.draw(st.integers(1, 255)) for byte in raw[start:][:1])
            return raw[:start] + turned + raw[start + 1 :]


def in_json(data: st.DataObject, raw: bytes) -> bytes:
    """A value replaced, dropped or doubled at any depth of the JSON, or of one of its lines."""
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
    holder: Any = [value]
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and data.draw(st.integers(0, 4)):
        holder = holder[key]
        key = data.draw(
            st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder)))
        )
    way = data.draw(st.sampled_from(("replace", "replace", "drop", "double", "rename")))
    if way == "drop":
        del holder[key]
    elif way == "double" and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif way == "rename" and isinstance(holder, dict):
        holder[data.draw(st.sampled_from(WORDS))] = holder.pop(key)
    else:
        holder[key] = data.draw(st.sampled_from(VALUES))
    text = json.dumps(value).encode()
    return text if place is None else b"\n".join([*lines[:place], text, *lines[place + 1 :]])


def in_cells(data: st.DataObject, raw: bytes) -> bytes:
    """A cell replaced, a row or a column doubled or dropped."""
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
            rows = [[*each, *each[column : column + 1]] for each in rows]
        case _:
            rows = [each[:column] + each[column + 1 :] for each in rows]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


@contextmanager
def little_memory() -> Iterator[None]:
    """Fail when the block needs more than MOST_MEMORY, in Python or beside it.

    The system counts: tracing every allocation takes five times as long as the reading itself.
    """
    status = Path("/proc/self/status")

    def kilobytes(key: str) -> int:
        return int(re.findall(rf"^{key}:\s+(\d+) kB", status.read_text(), re.MULTILINE)[0])

    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak from now on
    except OSError:
        tracemalloc.start()
        yield
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    else:
        before = kilobytes("VmRSS")
        yield
        peak = (kilobytes("VmHWM") - before) << 10
    assert peak < MOST_MEMORY


def judge(target: Target, root: Path) -> None:
    """Load the target and look at every item; one clear line is as good."""
    with little_memory():
        try:
            found = target.load()
            content, _ = present(found)
            for case in content if isinstance(content, tuple) else ():
                FORMS[case.form].candidates(case)
                assert case.form is not Form.BINARY or case.truth in (0, 1)
                "".join((case.id, case.subtask, *case.texts)).encode()
        except CompoclipError as error:
            expect_one_line(error, str(root))


def judge_spoilt(target: Target, files: list[Path], root: Path, times: int) -> None:
    """Judge a target that can be read, with one of its files spoilt each time."""
    target.load()
    kept = {path: path.read_bytes() for path in files}

    @examples(times)
    @given(st.data())
    def spoilt(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(files))
        path.write_bytes(spoil(data, kept[path], path.suffix))
        try:
            judge(target, root)
        finally:
            path.write_bytes(kept[path])

    spoilt()


@pytest.mark.parametrize("name", [*benchmark_names(), *ALONE, "tokens", *PHOTOS])
def test_every_reader_ends_with_items_or_one_line(
    name: str, root: Path, readers: dict[str, Reader]
) -> None:
    if name not in readers:
        pytest.skip("no writer of its official format in tests/official")
    target, files = readers[name]
    judge_spoilt(target, files, root, 40)


@pytest.mark.parametrize("name", benchmark_names())
def test_whatever_options_say(name: str, root: Path) -> None:
    loaded = set()  # names of results change nothing of what is read
    for option in ("root", "images", "id", *option_types(name)):
        for word in (*WORDS, "--5", "-1", "0", "none", "true", "1e3", str(root)):
            told = ""
            try:
                (target,) = parse_targets([f"{MADE[name]},{option}={word}"], root)
                read = (target.root, target.images, str(target.options))
                if read not in loaded:
                    target.load()
                loaded.add(read)
            except CompoclipError as error:
                told = str(error)
            assert told.isprintable()
