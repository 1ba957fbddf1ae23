"""The property of `test_benchmarks_property` for readers whose official files the world does not
write: whatever their files hold, they end with a benchmark or with one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import test_benchmarks_counts as counts
import test_benchmarks_half_truths as half_truths
import test_benchmarks_negation as negation
import test_benchmarks_photo_pairs as photo_pairs
import test_benchmarks_positions as positions
import test_lab_own_boxes as own_boxes
import test_lab_own_captions as own_captions
from benchmark_files import write_csv, write_json
from compoclip.benchmarks.targets import Target
from test_benchmarks_property import judge_spoilt

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
    path = root / "vismin_bench" / "a.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([photo_pairs.row(k) for k in range(3)]), path)
    return path


def write_positions(root: Path) -> Path:
    row = ("0", positions.OWN, "7.jpg", positions.OTHER, "7.jpg")
    return positions.write_official(root, "test_left_right_.csv", [row, row])


def write_table_of_counts(root: Path) -> Path:
    counts.write_countbench(root, counts.pictured(1), counts.pictured(2, image=None))
    return next(root.rglob("*.parquet"))


def write_questions(root: Path) -> Path:
    return counts.write_tallyqa(root) / "tallyqa" / "test.json"


WRITERS: dict[str, tuple[str, Writer]] = {
    "mcq": ("negbench:coco_*", write_mcq),
    "gallery": ("negbench_retrieval", write_gallery),
    "regions": ("negrefcocog", write_regions),
    "pickle": ("cc_neg", lambda root: negation.write_cc_neg(root, negation.cc_neg())),
    "older pickle": ("cc_neg", lambda root: negation.write_cc_neg(root, negation.cc_neg(), False)),
    "half-truths": (
        "half_truths:coco_qwen",
        lambda root: half_truths.write_table(root, "coco_qwen", [half_truths.row(0)]),
    ),
    "shard": (
        "vismin_bench",
        lambda root: photo_pairs.write_arrow(
            root / "vismin_bench" / "a.arrow", [photo_pairs.row(k) for k in range(3)]
        ),
    ),
    "table": ("vismin_bench", write_tables),
    "archive": (
        "naturalbench_retrieval",
        lambda root: photo_pairs.write_archive(root, [photo_pairs.pair(k) for k in range(2)]),
    ),
    "counts": ("countbench", write_table_of_counts),
    "questions": ("tallyqa", write_questions),
    "tabs": ("flickr30k_positions:left_right*", write_positions),
}
OWN: dict[str, tuple[str, Writer]] = {
    "captions": (own_captions.HALF, own_captions.write_own),
    "boxes": (
        own_boxes.SPEC,
        lambda root: write_json(root / "positions_own" / "boxes.json", own_boxes.coco()),
    ),
    "lines": (
        own_boxes.SPEC,
        lambda root: own_boxes.write_lines(root, [own_boxes.boxed(), own_boxes.boxed("2.jpg")]),
    ),
}
"""Benchmarks that are made from a user's own captions and boxes, beside the package."""


@pytest.mark.parametrize("name", [*WRITERS, *OWN])
def test_spoilt_files_end_with_items_or_one_line(name: str, tmp_path: Path) -> None:
    spec, write = {**WRITERS, **OWN}[name]
    path = write(tmp_path)
    options: dict[str, Any] = {"annotations": path} if name == "lines" else {}
    judge_spoilt(Target(spec, tmp_path, options=options), [path], tmp_path, 25)
