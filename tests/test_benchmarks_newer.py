"""RCLIP-Bench, FG-OVD, BLA, Half-Truths, SimpleNeg and retrieval by long captions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmark_files import refuses
from build.photos import encode, picture, write_photo
from build.tables import write_json, write_jsonl, write_parquet
from compoclip.archives import Members
from compoclip.benchmarks.case import Case, Form, ImageRef, TiePolicy, present
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.errors import UsageError
from compoclip.evaluation.embedder import ExternalEncoder
from compoclip.evaluation.results import load_items
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import FakeEncoder, OfBytes, features_from, ref, score_items

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
    write_parquet(path, rows)
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


# --- Half-Truths: the form by hand, and the official tables. ---


TEXTS = ("a dog", "a dog and a blue chair", "a dog and a red chair")


def judged(a: float, f: float, h: float, ties: TiePolicy) -> dict[str, tuple[float, ...]]:
    case = Case("x", Form.HALF_TRUTH, (ref("i"),), TEXTS, "s")
    features = features_from({"i": dict(zip(TEXTS, (a, f, h)))})
    items = score_items([case], features, ties={"": ties})
    return {
        name: (each.used[0], each.strict[0], each.fractional[0], each.chance[0])
        for name, each in items.outcomes.items()
    }


@pytest.mark.parametrize(
    ("a", "f", "h", "ht", "cor", "full"),
    [
        (0.5, 0.6, 0.4, 1, 1, 1),
        (0.5, 0.4, 0.3, 1, 0, 0),  # dislikes length
        (0.5, 0.7, 0.6, 0, 0, 1),  # likes length, and knows the right chair
        (0.5, 0.6, 0.7, 0, 0, 1),
        (0.5, 0.3, 0.4, 1, 0, 0),
        (0.5, 0.4, 0.6, 0, 0, 0),
    ],
)
def test_the_form_by_hand(a: float, f: float, h: float, ht: int, cor: int, full: int) -> None:
    found = judged(a, f, h, TiePolicy.STRICT)
    assert list(found) == ["ht", "cor", "full"]
    chance = {"ht": 1 / 2, "cor": 1 / 6, "full": 1 / 2}
    for name, value in (("ht", ht), ("cor", cor), ("full", full)):
        assert found[name] == (value, value, value, pytest.approx(chance[name]))


@pytest.mark.parametrize(
    ("a", "f", "h", "fractional"),
    [
        (0.5, 0.5, 0.5, {"ht": 1 / 2, "cor": 1 / 6, "full": 1 / 2}),
        (0.5, 0.5, 0.4, {"ht": 1.0, "cor": 1 / 2, "full": 1 / 2}),
        (0.5, 0.6, 0.5, {"ht": 1 / 2, "cor": 1 / 2, "full": 1.0}),
        (0.5, 0.4, 0.4, {"ht": 1.0, "cor": 0.0, "full": 0.0}),
    ],
)
def test_ties_are_wrong_right_or_shared(
    a: float, f: float, h: float, fractional: dict[str, float]
) -> None:
    strict, first = judged(a, f, h, TiePolicy.STRICT), judged(a, f, h, TiePolicy.FIRST)
    for name, value in fractional.items():
        assert strict[name][0] == (1.0 if value == 1 else 0.0)
        assert first[name][0] == (1.0 if value > 0 else 0.0)
        assert strict[name][2] == pytest.approx(value)


# --- The official tables. ---


def half_truth(k: int = 0, **changes: Any) -> dict[str, Any]:
    made = {
        "id": k,
        "image": {"bytes": picture(k), "path": f"{k}.jpg"},
        "anchor": TEXTS[0],
        "half_truth": TEXTS[2],
        "full_truth": TEXTS[1],
        "triplet_type": "entity",
    }
    return {**made, **changes}


def write_half_truths(
    root: Path, part: str, rows: list[dict[str, Any]], folder: str = "data"
) -> Path:
    path = root / "half_truths" / folder / f"{part}.parquet"
    return write_parquet(path, rows)


def test_official_tables(tmp_path: Path) -> None:
    for part in meta("half_truths").parts:
        path = write_half_truths(
            tmp_path, part, [half_truth(0), half_truth(1, triplet_type="relation")]
        )
    found = load_benchmark("half_truths", tmp_path)
    shared = ImageRef(tmp_path / "half_truths/data/coco_qwen.parquet", member="image:0")
    assert found.content[0] == Case(
        "coco_qwen/0",
        Form.HALF_TRUTH,
        (shared,),
        TEXTS,
        "coco_qwen",
        labels={"triplet_type": "entity"},
    )
    assert found.content[2].images == (shared,)  # the same photo in another table
    assert Members()(shared.path, shared.member) == picture(0)
    assert (found.headline, found.ties) == ("ht", {"": TiePolicy.STRICT})
    assert found.expected == {"coco_qwen": 509, "coco_mistral": 454, "cc3m_qwen": 474}
    assert sum(found.expected.values()) == 1437
    assert {"ht", "cor", "full", "entity", "relation"} <= set(found.aggregates)
    options = Options(allow_partial=True, resamples=20)
    (result,) = evaluate("m", OfBytes(), [found], tmp_path / "out", options)
    assert result.aggregates["cor"].chance == pytest.approx(1 / 6)
    assert result.aggregates["entity"].n == 3
    some = load_benchmark("half_truths:coco_*", tmp_path)
    assert Counter(case.subtask for case in some.content) == {"coco_qwen": 2, "coco_mistral": 2}
    assert some.headline == "ht"
    path.rename(tmp_path / "half_truths" / path.name)  # out of the folder data
    assert load_benchmark("half_truths", tmp_path).content.counts()["cc3m_qwen"] == 2


def test_paths_instead_of_pictures_are_refused(tmp_path: Path) -> None:
    write_half_truths(tmp_path, "coco_qwen", [half_truth(0, image="1.jpg")])
    refuses("'image' holds no encoded pictures", "", "half_truths:coco_qwen", tmp_path)
