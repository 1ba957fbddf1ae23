"""RCLIP-Bench, FG-OVD, BLA and retrieval by long captions: official formats in, items out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from benchmark_files import refuses, write_json, write_photo
from compoclip.benchmarks.case import Form, TiePolicy, present
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.errors import UsageError
from compoclip.evaluation.embedder import ExternalEncoder
from compoclip.evaluation.results import load_items
from compoclip.evaluation.run import Options, evaluate
from data_samples import encode, write_jsonl
from evaluation_helpers import FakeEncoder

# --- RCLIP-Bench: several sets in a row of a table with photos. ---


def rclip_row(number: int, **changes: Any) -> dict[str, Any]:
    photo = encode(Image.new("RGB", (8, 8), (number, 9, 9)), "JPEG")
    sets = [
        {"tag": tag, "gt": f"{tag} {number}", "neg": [f"no {tag} {k}" for k in range(4)]}
        for tag in ("causal", "spatial")
    ]
    row = {"id": str(number), "image_name": f"{number}.jpg", "text": "long", "version": "v1"}
    return {**row, "sets": sets, "image": {"bytes": photo, "path": "x.jpg"}, **changes}


def write_rclip(root: Path, *rows: dict[str, Any], part: str = "v1") -> Path:
    path = root / "rclip_bench" / "data" / f"{part}-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return root


def test_rclip_bench_asks_every_set_of_a_photo(tmp_path: Path) -> None:
    write_rclip(tmp_path, rclip_row(1), rclip_row(2))
    found = load_benchmark("rclip_bench:v1", tmp_path)
    assert [case.id for case in found.content] == ["v1/0/0", "v1/0/1", "v1/1/0", "v1/1/1"]
    first = found.content[0]
    assert first.form is Form.CHOOSE_TEXT
    assert first.texts == ("causal 1", *(f"no causal {k}" for k in range(4)))
    assert (first.truth, first.labels) == (0, {"tag": "causal"})
    assert first.images[0].member == "image:0"
    assert found.ties[""] is TiePolicy.FIRST
    assert {"mean", "paper", "causal", "spatial"} <= found.aggregates.keys()
    (result,) = evaluate("m", FakeEncoder(), [found], tmp_path / "out", Options(resamples=20))
    score = result.headline_score
    assert (score.n, score.chance) == (4, pytest.approx(1 / 5))
    causal = result.aggregates["causal"]
    assert causal.n == 2


# --- FG-OVD: which of eleven texts a region shows. ---


def fg_row(**changes: Any) -> dict[str, Any]:
    row = {"img_path": "/val2017/1.jpg", "bbox": [1.0, 2.0, 4.0, 5.0]}
    negatives = [f"a {k} cup" for k in range(10)]
    return {**row, "pos_expression": ["a red cup"], "neg_expression": negatives, **changes}


def write_fg_ovd(root: Path, *rows: dict[str, Any], file: str = "1_attributes_llava") -> Path:
    write_jsonl(root / "fg_ovd" / f"{file}.jsonl", rows or (fg_row(),))
    write_photo(root / "coco" / "val2017" / "1.jpg")
    return root


def test_fg_ovd_crops_the_region(tmp_path: Path) -> None:
    for file in ("2_attributes_llava", "3_attributes_llava", "shuffle_negatives_llava"):
        write_fg_ovd(tmp_path, file=file)
    found = load_benchmark("fg_ovd", write_fg_ovd(tmp_path, fg_row(), fg_row(bbox=[0, 0, 3, 3])))
    assert [case.subtask for case in found.content].count("hard") == 2
    first = found.content[0]
    assert first.images[0].path == tmp_path / "coco" / "val2017" / "1.jpg"
    assert first.images[0].box == (1.0, 2.0, 5.0, 7.0)
    assert first.texts == ("a red cup", *(f"a {k} cup" for k in range(10)))
    assert present(found)[1] == ()
    assert meta("fg_ovd").items == 3545 + 2968 + 1299 + 3545
    (result,) = evaluate(
        "m", FakeEncoder(), [found], tmp_path / "out", Options(resamples=20, allow_partial=True)
    )
    assert result.headline_score.chance == pytest.approx(1 / 11)


# --- BLA: two true sentences against two false ones. ---


def bla_row(**changes: Any) -> dict[str, Any]:
    group = {
        "group_index": 3,
        "True1": "the man who sits wears a tie",
        "True2": "the man who stands wears a hat",
        "False1": "the man who sits wears a hat",
        "False2": "the man who stands wears a tie",
        "score": [0.9, 0.8, 0.8, 0.7],
    }
    return {"image_id": 73, "index": 0, "caption_group": [{**group, **changes}]}


def test_bla_asks_for_both_true_sentences(tmp_path: Path) -> None:
    for part in meta("bla").parts:
        write_json(tmp_path / "bla" / "annotations" / f"{part}_captions.json", [bla_row()])
    write_photo(tmp_path / "bla" / "images" / "73.jpg")
    found = load_benchmark("bla", tmp_path)
    assert len(found.content) == 3
    item = found.content[0]
    assert item.texts == tuple(bla_row()["caption_group"][0][f"{t}{k}"]
                               for t in ("True", "False") for k in (1, 2))  # fmt: skip
    assert (item.id, item.images[0].path.name) == ("active_passive/0/3", "73.jpg")
    (result,) = evaluate("m", FakeEncoder(), [found], tmp_path / "out", Options(resamples=20))
    assert result.headline_score.chance == pytest.approx(1 / 6)  # 2 x 2 of 24 orders
    assert result.scores["coordination"]["first"].chance == pytest.approx(1 / 3)


# --- Long captions. ---


def write_urban1k(root: Path, captions: dict[str, str]) -> Path:
    for name, caption in captions.items():
        path = root / "urban1k" / "caption" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(caption)
        write_photo(root / "urban1k" / "image" / f"{name}.jpg")
    return root


def docci_row(number: int, split: str = "test") -> dict[str, Any]:
    name = f"{split}_{number:05d}"
    return {"split": split, "example_id": name, "image_file": f"{name}.jpg", "description": name}


def sharegpt4v_row(number: int) -> dict[str, Any]:
    talk = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": f"a long text {number}"}]
    return {"id": number, "image": f"sam/images/sa_{number}.jpg", "conversations": talk}


def test_sets_of_long_captions(tmp_path: Path) -> None:
    write_urban1k(tmp_path, {"1": "a long street\nrest", "2": "a square"})
    rows = [docci_row(0), docci_row(7, "train"), docci_row(1)]
    write_jsonl(tmp_path / "docci" / "docci_descriptions.jsonlines", rows)
    name = "share-captioner_coco_lcs_sam_1246k_1107.json"
    write_json(tmp_path / "sharegpt4v" / name, [sharegpt4v_row(k) for k in range(1001)])
    expected = {
        "urban1k": (2, ("a long street", "a square"), "urban1k/image/1.jpg", 1000),
        "docci": (2, ("test_00000", "test_00001"), "docci/images/test_00000.jpg", 5000),
        "sharegpt4v": (
            1000,
            ("a long text 0", "a long text 1"),
            "sharegpt4v/images/sa_0.jpg",
            1000,
        ),
    }
    for part, (count, texts, photo, items) in expected.items():
        found = load_benchmark(f"retrieval:{part}", tmp_path)
        assert found.name == f"retrieval_{part}"
        assert found.content.texts[:2] == texts
        assert found.content.images[0].path == tmp_path / photo
        assert found.content.counts() == {"i2t": count, "t2i": count}
        assert found.expected == {"i2t": items, "t2i": items}
    one = load_benchmark("retrieval:urban1k", tmp_path).data_hash
    write_urban1k(tmp_path, {"2": "another square"})
    assert load_benchmark("retrieval:urban1k", tmp_path).data_hash != one


@pytest.mark.parametrize(
    ("part", "file", "value", "words"),
    [
        ("docci", "docci_descriptions.jsonlines", docci_row(7, "train"), "no captions"),
        ("docci", "docci_descriptions.jsonlines", {"split": "test", "image_file": "1.jpg"},
         "needs split, image_file, description"),
        ("sharegpt4v", "share-captioner_coco_lcs_sam_1246k_1107.json",
         [{**sharegpt4v_row(1), "conversations": []}], "has no caption"),
        ("sharegpt4v", "share-captioner_coco_lcs_sam_1246k_1107.json",
         [sharegpt4v_row(1), sharegpt4v_row(1)], "listed twice"),
    ],
)  # fmt: skip
def test_long_captions_refuse_malformed_files(
    tmp_path: Path, part: str, file: str, value: Any, words: str
) -> None:
    write_json(tmp_path / part / file, value)
    refuses(words, file, f"retrieval:{part}", tmp_path)


# --- SimpleNeg: a judge looks at what is found. ---

QUERIES = [
    ["a desk with no lamp", "is there a lamp?", "is there a desk?"],
    ["a road without cars", "are there cars?", "is there a road?"],
    ["a cup but no tea", "is there tea?", "is there a cup?"],
]


class Judge:
    """Says yes by what the colours of a photo stand for, each a bit of red."""

    def score(self, image: Image.Image, texts: Sequence[str]) -> list[float]:
        shown = SHOWS[image.getpixel((0, 0))[0] // 40]
        return [1.0 if any(word in text for word in shown) else -1.0 for text in texts]


SHOWS = [(), ("desk",), ("desk", "lamp"), ("road", "car"), ("cup", "tea"), ("road",)]


class Finds(FakeEncoder):
    """Finds for each query the photo of a number, the others further away."""

    found = (1, 3, 2)

    def start_texts(self, texts: Sequence[str]) -> Any:
        rows = [self.found[[q[0] for q in QUERIES].index(text)] for text in texts]
        return lambda: np.eye(6, dtype=np.float32)[rows]

    def start_images(self, images: Sequence[Any]) -> Any:
        rows = [int(each.path.stem[-1]) for each in images]
        return lambda: np.eye(6, dtype=np.float32)[rows]


def write_simpleneg(root: Path, rows: Any = QUERIES) -> Path:
    write_json(root / "simpleneg" / "simpleneg.json", rows)
    (root / "coco" / "val2014").mkdir(parents=True)
    for k in range(6):
        photo = root / "coco" / "val2014" / f"COCO_val2014_{k:012d}.png"
        Image.new("RGB", (8, 8), (40 * k, 9, 9)).save(photo)
    return root


def test_simpleneg_asks_a_judge_about_the_best_photo(tmp_path: Path) -> None:
    root = write_simpleneg(tmp_path)
    found = load_benchmark("simpleneg", root, gallery=6)
    assert len(found.content.images) == 6
    judge = ExternalEncoder("judge.py", Judge())
    options = Options(resamples=20, judge=judge, cache=tmp_path / "cache", allow_partial=True)
    (result,) = evaluate("m", Finds(), [found], tmp_path / "out", options)
    # The desk has no lamp; the road has cars; the third photo shows no cup.
    items = load_items(result).to_pylist()
    assert [row["used.named"] for row in items] == [1, 1, 0]
    assert [row["used.both"] for row in items] == [1, 0, 0]
    assert result.headline_score.value == pytest.approx(1 / 3)
    drawn = np.random.default_rng(0).integers(6, size=3)
    named = [q[2].split()[-1].rstrip("?") in SHOWS[k] for q, k in zip(QUERIES, drawn)]
    assert result.aggregates["named"].chance == pytest.approx(np.mean(named))
    assert result.identity["judge"]["architecture"] == "judge.py"
    assert items[0]["images"][0].endswith("000000000001.png")
    with pytest.raises(UsageError, match="simpleneg: a judge answers questions"):
        evaluate("m", Finds(), [found], tmp_path / "none", Options(allow_partial=True))
    options = Options(allow_partial=True, judge=FakeEncoder())
    with pytest.raises(UsageError, match="simpleneg: a judge answers questions"):
        evaluate("m", Finds(), [found], tmp_path / "none", options)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([["a desk", "is there a lamp?"]], "found 2"),
        ({}, "must be a list"),
    ],
)
def test_simpleneg_refuses_malformed_files(tmp_path: Path, rows: Any, words: str) -> None:
    refuses(words, "simpleneg.json", "simpleneg", write_simpleneg(tmp_path, rows), gallery=6)


def test_simpleneg_says_how_many_photos_are_searched(tmp_path: Path) -> None:
    root = write_simpleneg(tmp_path)
    refuses("6 of the 25000 photos that are searched", "val2014", "simpleneg", root)
