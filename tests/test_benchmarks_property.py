"""One property of every reader: whatever bytes and rows its files hold, and whatever its options
say, it ends, in little memory, with a benchmark or with one clear line that names a file.

The files are those that the world writes in the official formats, and other layouts that readers
take. Each example spoils one file in a few ways.
"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import test_benchmarks_negation as negation
import test_benchmarks_newer as newer
import test_benchmarks_pairs as pairs
import test_benchmarks_spatial as spatial
import test_lab_own_boxes as own_boxes
import test_lab_own_captions as own_captions
from benchmark_files import examples, expect_one_line, made_suite
from build.spoil import WORDS, spoil
from build.tables import (
    write_arrow,
    write_csv,
    write_json,
    write_jsonl,
    write_parquet,
    write_rows,
    write_text,
    write_zip,
)
from compoclip.benchmarks.case import Form, present
from compoclip.benchmarks.names import benchmark_names
from compoclip.benchmarks.registry import reader
from compoclip.benchmarks.targets import Target, parse_targets, read_suite
from compoclip.errors import CompoclipError
from compoclip.evaluation.forms import FORMS
from lab_helpers import coco
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


def write_more(suite: Path, root: Path) -> dict[str, Reader]:
    """Write layouts that the world does not write: name -> a target, the files to spoil."""
    words = [{"image": "1.png", "caption": f"cup {k}", "negative_caption": "a" * k} for k in (1, 2)]
    said = [{"image": "1.png", "caption": f"cup {k}", "label": k % 2} for k in range(4)]
    picture = {"bytes": encoded(0), "path": "1.png"}
    pair = {"image": picture, "caption": "a", "negative_caption": "b", "negative_image": picture}
    photo = {"filename": "1.jpg", "filepath": "val", "split": "test", "sentences": [{"raw": "a"}]}
    lists = 'classes = ["box", "disc", "star"]\ntemplates = ["a {}."]'
    for ending in ("csv", "jsonl", "parquet"):
        write_rows(root / f"own.{ending}", words)
    write_rows(root / "said.tsv", said)
    write_json(root / "karpathy.json", {"images": [photo]})
    write_text(root / "tokens.txt", "1.jpg#0\ta cup\n1.jpg#1\tcups\n2.jpg#0\tno\n")
    write_text(root / "split.txt", "1.jpg\n")
    write_json(root / "names.json", ["box", ["disc", "coin"], "star"])
    write_text(root / "prompts.md", f"## own\n```bash\n{lists}\n```\n")
    write_parquet(root / "hub.parquet", [{**pair, "type": "swap", "subtype": "obj"}])
    valse = {path.name: path.read_bytes() for path in sorted((suite / "valse").glob("*.json"))}
    write_zip(root / "valse.zip", valse)
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
    return made_suite(tmp_path_factory)


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
    return found | write_more(root, root.parent / "more")


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
    judge_spoilt(target, files, root.parent, 15)


@pytest.mark.parametrize("name", benchmark_names())
def test_whatever_options_say(name: str, root: Path) -> None:
    loaded = set()  # names of results change nothing of what is read
    for option in ("root", "images", "id", *reader(name).options):
        for word in (*WORDS[::2], "-1", "0", "none", "1e3", str(root)):
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


# --- Readers whose official files the world does not write, and those of a user's own data. ---


Writer = Callable[[Path], Path]


def write_mcq(root: Path) -> Path:
    rows = [negation.mcq_row(), negation.mcq_row(correct_answer_template="positive")]
    return write_csv(root / "negbench" / negation.MCQ["coco"], *rows)


def write_gallery(root: Path) -> Path:
    rows = [{"filepath": f"{k}.jpg", "captions": repr([f"a {k}", "b"])} for k in range(3)]
    return write_csv(root / "negbench" / negation.PLAIN, *rows)


def write_regions(root: Path) -> Path:
    rows = [negation.region_row(), negation.region_row()]
    return write_json(root / "negrefcocog" / "NegRefCOCOg.json", rows)


def write_tables(root: Path) -> Path:
    return write_parquet(root / "vismin_bench/a.parquet", [pairs.row(k) for k in range(3)])


def write_positions(root: Path) -> Path:
    row = ("0", spatial.OWN, "7.jpg", spatial.OTHER, "7.jpg")
    return spatial.write_official(root, "test_left_right_.csv", row, row)


def write_table_of_counts(root: Path) -> Path:
    newer.write_countbench(root, newer.pictured(1), newer.pictured(2, image=None))
    return next(root.rglob("*.parquet"))


def write_questions(root: Path) -> Path:
    return newer.write_tallyqa(root) / "tallyqa" / "test.json"


WRITERS: dict[str, tuple[str, Writer]] = {
    "mcq": ("negbench:coco_*", write_mcq),
    "gallery": ("negbench_retrieval", write_gallery),
    "regions": ("negrefcocog", write_regions),
    "pickle": ("cc_neg", lambda root: negation.write_cc_neg(root, negation.cc_neg())),
    "older pickle": ("cc_neg", lambda root: negation.write_cc_neg(root, negation.cc_neg(), False)),
    "half-truths": (
        "half_truths:coco_qwen",
        lambda root: newer.write_half_truths(root, "coco_qwen", newer.half_truth(0)),
    ),
    "shard": (
        "vismin_bench",
        lambda root: write_arrow(
            root / "vismin_bench" / "a.arrow", [pairs.row(k) for k in range(3)]
        ),
    ),
    "table": ("vismin_bench", write_tables),
    "archive": (
        "naturalbench_retrieval",
        lambda root: pairs.write_archive(root, [pairs.pair(k) for k in range(2)]),
    ),
    "counts": ("countbench", write_table_of_counts),
    "questions": ("tallyqa", write_questions),
    "tabs": ("flickr30k_positions:left_right*", write_positions),
}
OWN: dict[str, tuple[str, Writer]] = {
    "captions": (own_captions.HALF, own_captions.write_own),
    "boxes": (
        own_boxes.SPEC,
        lambda root: write_json(root / "positions_own" / "boxes.json", coco()),
    ),
    "lines": (
        own_boxes.SPEC,
        lambda root: write_jsonl(
            root / "own.jsonl", [own_boxes.boxed(), own_boxes.boxed(image="2.jpg")]
        ),
    ),
}
"""Benchmarks that are made from a user's own captions and boxes, beside the package."""


@pytest.mark.parametrize("name", [*WRITERS, *OWN])
def test_spoilt_files_end_with_items_or_one_line(name: str, tmp_path: Path) -> None:
    spec, write = {**WRITERS, **OWN}[name]
    path = write(tmp_path)
    options: dict[str, Any] = {"annotations": path} if name == "lines" else {}
    judge_spoilt(Target(spec, tmp_path, options=options), [path], tmp_path, 12)
