"""Regions, several sets of texts, half truths, numbers, a judge, and retrieval by long captions."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmark_files import refuses
from build.photos import picture, write_photo
from build.tables import write_json, write_jsonl, write_parquet, write_text
from compoclip.archives import Members
from compoclip.benchmarks.case import Case, Form, ImageRef, TiePolicy, present
from compoclip.benchmarks.counts import statements
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.errors import UsageError
from compoclip.evaluation.embedder import ExternalEncoder
from compoclip.evaluation.results import load_items
from evaluation_helpers import FakeEncoder, OfBytes, features_from, ref, results_of, score_items
from rewrite_facts import rows

# --- RCLIP-Bench: several sets in a row of a table with photos. ---


def rclip_row(number: int) -> dict[str, Any]:
    sets = [
        {"tag": tag, "gt": f"{tag} {number}", "neg": [f"no {tag} {k}" for k in range(4)]}
        for tag in ("causal", "spatial")
    ]
    names = {"id": str(number), "image_name": f"{number}.jpg", "version": "v1"}
    return {**names, "sets": sets, "image": {"bytes": picture(number), "path": "x.jpg"}}


def test_rclip_bench_asks_every_set_of_a_photo(tmp_path: Path) -> None:
    path = tmp_path / "rclip_bench" / "data" / "v1-00000-of-00001.parquet"
    write_parquet(path, [rclip_row(1), rclip_row(2)])
    found = load_benchmark("rclip_bench:v1", tmp_path)
    assert [case.id for case in found.content] == ["v1/0/0", "v1/0/1", "v1/1/0", "v1/1/1"]
    assert found.content[0] == Case(
        "v1/0/0",
        Form.CHOOSE_TEXT,
        (ImageRef(path, member="image:0"),),
        ("causal 1", *(f"no causal {k}" for k in range(4))),
        "v1",
        labels={"tag": "causal"},
    )
    assert found.ties[""] is TiePolicy.FIRST
    assert {"mean", "paper", "causal", "spatial"} <= found.aggregates.keys()
    result = results_of(found, tmp_path / "out")
    score = result.headline_score
    assert (score.n, score.chance) == (4, pytest.approx(1 / 5))
    assert result.aggregates["causal"].n == 2


# --- FG-OVD: which of eleven texts a region shows. ---


def test_fg_ovd_crops_the_region(tmp_path: Path) -> None:
    row = {
        "img_path": "/val2017/1.jpg",
        "bbox": [1.0, 2.0, 4.0, 5.0],
        "pos_expression": ["a red cup"],
        "neg_expression": [f"a {k} cup" for k in range(10)],
    }
    for level in ("1_attributes", "2_attributes", "3_attributes", "shuffle_negatives"):
        rows = [row, {**row, "bbox": [0, 0, 3, 3]}] if level == "1_attributes" else [row]
        write_jsonl(tmp_path / "fg_ovd" / f"{level}_llava.jsonl", rows)
    photo = write_photo(tmp_path / "coco" / "val2017" / "1.jpg")
    found = load_benchmark("fg_ovd", tmp_path)
    assert [case.subtask for case in found.content].count("hard") == 2
    first = found.content[0]
    assert first.images == (ImageRef(photo, (1.0, 2.0, 5.0, 7.0)),)
    assert first.texts == ("a red cup", *(f"a {k} cup" for k in range(10)))
    assert present(found)[1] == ()
    result = results_of(found, tmp_path / "out")
    assert result.headline_score.chance == pytest.approx(1 / 11)


# --- BLA: two true sentences against two false ones. ---


def test_bla_asks_for_both_true_sentences(tmp_path: Path) -> None:
    texts = {
        "True1": "the man who sits wears a tie",
        "True2": "the man who stands wears a hat",
        "False1": "the man who sits wears a hat",
        "False2": "the man who stands wears a tie",
    }
    rows = [{"image_id": 73, "index": 0, "caption_group": [{"group_index": 3, **texts}]}]
    for part in meta("bla").parts:
        write_json(tmp_path / "bla" / "annotations" / f"{part}_captions.json", rows)
    write_photo(tmp_path / "bla" / "images" / "73.jpg")
    found = load_benchmark("bla", tmp_path)
    assert len(found.content) == 3
    item = found.content[0]
    assert item.texts == tuple(texts.values())
    assert (item.id, item.images[0].path.name) == ("active_passive/0/3", "73.jpg")
    result = results_of(found, tmp_path / "out")
    assert result.headline_score.chance == pytest.approx(1 / 6)  # 2 x 2 of 24 orders
    assert result.scores["coordination"]["first"].chance == pytest.approx(1 / 3)


# --- Long captions. ---


SIMPLENEG = "simpleneg/simpleneg.json"
DOCCI = "docci/docci_descriptions.jsonlines"
SHAREGPT4V = "sharegpt4v/share-captioner_coco_lcs_sam_1246k_1107.json"


def write_urban1k(root: Path, captions: dict[str, str]) -> None:
    for name, caption in captions.items():
        write_text(root / "urban1k" / "caption" / f"{name}.txt", caption)


def docci_row(number: int, split: str = "test") -> dict[str, Any]:
    name = f"{split}_{number:05d}"
    return {"split": split, "image_file": f"{name}.jpg", "description": name}


def sharegpt4v_row(number: int, **changes: Any) -> dict[str, Any]:
    talk = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": f"a long text {number}"}]
    return {"image": f"sam/images/sa_{number}.jpg", "conversations": talk, **changes}


LONG: dict[str, tuple[int, tuple[str, str], str]] = {
    "urban1k": (2, ("a long street", "a square"), "urban1k/image/1.jpg"),
    "docci": (2, ("test_00000", "test_00001"), "docci/images/test_00000.jpg"),
    "sharegpt4v": (1000, ("a long text 0", "a long text 1"), "sharegpt4v/images/sa_0.jpg"),
}
"""Set -> photos, first two captions, first photo."""


def test_sets_of_long_captions(tmp_path: Path) -> None:
    write_urban1k(tmp_path, {"1": "a long street\nrest", "2": "a square"})
    write_jsonl(tmp_path / DOCCI, [docci_row(0), docci_row(7, "train"), docci_row(1)])
    write_json(tmp_path / SHAREGPT4V, [sharegpt4v_row(k) for k in range(1001)])
    for part, (count, texts, photo) in LONG.items():
        found = load_benchmark(f"retrieval:{part}", tmp_path)
        assert found.name == f"retrieval_{part}"
        assert found.content.texts[:2] == texts
        assert found.content.images[0].path == tmp_path / photo
        assert found.content.counts() == {"i2t": count, "t2i": count}
        official = 5000 if part == "docci" else 1000
        assert found.expected == {"i2t": official, "t2i": official}
    one = load_benchmark("retrieval:urban1k", tmp_path).data_hash
    write_urban1k(tmp_path, {"2": "another square"})
    assert load_benchmark("retrieval:urban1k", tmp_path).data_hash != one


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


def write_simpleneg(root: Path) -> None:
    write_json(root / SIMPLENEG, QUERIES)
    for k in range(6):
        photo = root / "coco" / "val2014" / f"COCO_val2014_{k:012d}.png"
        write_photo(photo, colour=(40 * k, 9, 9))


def test_simpleneg_asks_a_judge_about_the_best_photo(tmp_path: Path) -> None:
    write_simpleneg(tmp_path)
    found = load_benchmark("simpleneg", tmp_path, gallery=6)
    assert len(found.content.images) == 6
    judge = ExternalEncoder("judge.py", Judge())
    result = results_of(found, tmp_path / "out", Finds(), judge=judge, cache=tmp_path / "cache")
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
    for no_judge in (None, FakeEncoder()):
        with pytest.raises(UsageError, match="simpleneg: a judge answers questions"):
            results_of(found, tmp_path / "none", Finds(), judge=no_judge)


def test_simpleneg_says_how_many_photos_are_searched(tmp_path: Path) -> None:
    write_simpleneg(tmp_path)
    refuses("6 of the 25000 photos that are searched", "val2014", "simpleneg", tmp_path)


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
        # Ties are wrong, right or shared.
        (0.5, 0.5, 0.5, 1 / 2, 1 / 6, 1 / 2),
        (0.5, 0.5, 0.4, 1, 1 / 2, 1 / 2),
        (0.5, 0.6, 0.5, 1 / 2, 1 / 2, 1),
        (0.5, 0.4, 0.4, 1, 0, 0),
    ],
)
def test_the_form_by_hand(a: float, f: float, h: float, ht: float, cor: float, full: float) -> None:
    found, first = judged(a, f, h, TiePolicy.STRICT), judged(a, f, h, TiePolicy.FIRST)
    chance = {"ht": 1 / 2, "cor": 1 / 6, "full": 1 / 2}
    assert list(found) == list(chance)
    for name, value in (("ht", ht), ("cor", cor), ("full", full)):
        strict = float(value == 1)
        assert found[name] == (strict, strict, *map(pytest.approx, (value, chance[name])))
        assert first[name][0] == float(value > 0)


# --- The official tables. ---


def half_truth(k: int = 0, **changes: Any) -> dict[str, Any]:
    texts = dict(zip(("anchor", "full_truth", "half_truth"), TEXTS))
    row = {"id": k, "image": {"bytes": picture(k), "path": f"{k}.jpg"}, "triplet_type": "entity"}
    return {**row, **texts, **changes}


def write_half_truths(root: Path, part: str, *rows: dict[str, Any]) -> Path:
    return write_parquet(root / "half_truths" / "data" / f"{part}.parquet", rows)


def test_official_tables(tmp_path: Path) -> None:
    rows = [half_truth(0), half_truth(1, triplet_type="relation")]
    for part in meta("half_truths").parts:
        path = write_half_truths(tmp_path, part, *rows)
    found = load_benchmark("half_truths", tmp_path)
    shared = ImageRef(tmp_path / "half_truths/data/coco_qwen.parquet", member="image:0")
    labels = {"triplet_type": "entity"}
    first = Case("coco_qwen/0", Form.HALF_TRUTH, (shared,), TEXTS, "coco_qwen", labels=labels)
    assert found.content[0] == first
    assert found.content[2].images == (shared,)  # the same photo in another table
    assert Members()(shared.path, shared.member) == picture(0)
    result = results_of(found, tmp_path / "out", OfBytes())
    assert result.aggregates["cor"].chance == pytest.approx(1 / 6)
    assert (result.aggregates["entity"].n, "relation" in result.aggregates) == (3, True)
    some = load_benchmark("half_truths:coco_*", tmp_path)
    assert (some.content.counts(), some.headline) == ({"coco_qwen": 2, "coco_mistral": 2}, "ht")
    path.rename(tmp_path / "half_truths" / path.name)  # out of the folder data
    assert load_benchmark("half_truths", tmp_path).content.counts()["cc3m_qwen"] == 2


def test_paths_instead_of_pictures_are_refused(tmp_path: Path) -> None:
    write_half_truths(tmp_path, "coco_qwen", half_truth(0, image="1.jpg"))
    refuses("'image' holds no encoded pictures", "", "half_truths:coco_qwen", tmp_path)


# --- CountBench. ---

WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count_row(number: Any = 3, **changes: Any) -> dict[str, Any]:
    row = {"image_url": f"http://x/{number}.jpg", "text": "Three kittens in a basket"}
    return {**row, "number": number, **changes}


def write_countbench(root: Path, *rows: dict[str, Any]) -> Path:
    """The hub's table: `image` holds the encoded picture, or nothing."""
    write_parquet(root / "countbench" / "data" / "train-00000-of-00001.parquet", rows)
    return root


def pictured(k: int, **changes: Any) -> dict[str, Any]:
    return count_row(**{"image": {"bytes": picture(k), "path": None}, **changes})


def test_countbench_exchanges_the_number_of_a_caption(tmp_path: Path) -> None:
    ten = {"number": 10, "text": "TEN cups and a card with ten stars"}
    root = write_countbench(tmp_path, pictured(1), pictured(2, **ten))
    found = load_benchmark("countbench", root)
    first, second = found.content
    others = [word.capitalize() for word in WORDS if word != "three"]
    assert first.texts == tuple(f"{n} kittens in a basket" for n in ("Three", *others))
    assert second.texts[:2] == (ten["text"], "TWO cups and a card with two stars")
    result = results_of(found, tmp_path / "out")
    assert result.headline_score.chance == pytest.approx(1 / 9)
    assert (result.aggregates["number_3"].n, result.headline_score.n) == (1, 2)


CAPTIONS = rows("""
a pack of 3 pens | 3 | a pack of 8 pens
An eight piece set | 8 | A five piece set
a five piece set of 5 cups | 5 | an eight piece set of 5 cups
two-story house with Two doors | 2 | eight-story house with Eight doors
""")


def test_countbench_numbers_in_digits_and_behind_articles(tmp_path: Path) -> None:
    listed = [pictured(1, text=text, number=int(number)) for text, number, _ in CAPTIONS]
    found = load_benchmark("countbench", write_countbench(tmp_path, *listed))
    for case, (caption, _, negative) in zip(found.content, CAPTIONS, strict=True):
        assert case.texts[0] == caption
        assert negative in case.texts[1:]
        assert len(set(case.texts)) == 9


def test_countbench_photos_of_dead_addresses_are_missing(tmp_path: Path) -> None:
    root = write_countbench(tmp_path, pictured(1), pictured(2, image=None, image_url="http://y"))
    found = load_benchmark("countbench", root)
    content, missing = present(found)
    assert len(content) == 1
    name = hashlib.md5(b"http://y").hexdigest()
    assert missing == (str(root / "countbench" / "images" / f"{name}.jpg"),)
    write_photo(root / "countbench" / "images" / f"{name}.png")
    assert present(load_benchmark("countbench", root))[1] == ()


def test_countbench_as_json_names_photos_by_address_or_by_name(tmp_path: Path) -> None:
    listed = [count_row(), count_row(image="7.png"), count_row(text="some kittens")]
    write_json(tmp_path / "countbench" / "CountBench.json", listed)
    found = load_benchmark("countbench", tmp_path)
    names = [case.images[0].path.name for case in found.content]
    assert names == [f"{hashlib.md5(b'http://x/3.jpg').hexdigest()}.jpg", "7.png"]
    assert found.left_out == {"captions that do not name their number": 1}


# --- TallyQA. ---

STATEMENTS = rows("""
How many dogs are there? | there are no dogs | there is one dog | there are four dogs
how many people are there in the boat ? | there are no people in the boat
  | there is one person in the boat | there are four people in the boat
How many headlights does the black bus have? | the black bus has no headlights
  | the black bus has one headlight | the black bus has four headlights
How many children do they have in the car? | they have no children in the car
  | they have one child in the car | they have four children in the car
How many red cups are on the table? | no red cups are on the table | one red cup is on the table
  | four red cups are on the table
How many giraffes can be seen? | no giraffes can be seen | one giraffe can be seen
  | four giraffes can be seen
How many sheep were there? | there were no sheep | there was one sheep | there were four sheep
How many slices of pizza are left? | no slices of pizza are left | one slice of pizza is left
  | four slices of pizza are left
How many of the dogs run? | no of the dogs run | one of the dogs run | four of the dogs run
How many sheep | no sheep | one sheep | four sheep
""")


@pytest.mark.parametrize(("question", "none", "one", "four"), STATEMENTS)
def test_statements_of_a_question(question: str, none: str, one: str, four: str) -> None:
    texts = statements(question)
    assert (texts[0], texts[1], texts[4]) == (none, one, four)
    assert len({*texts}) == 16
    assert texts[15] == four.replace("four", "fifteen")


@pytest.mark.parametrize("question", ["Is there a dog?", "How many?", "how many ?", "", "howmany"])
def test_other_questions_have_no_statements(question: str) -> None:
    assert statements(question) == []


def tally_row(**changes: Any) -> dict[str, Any]:
    row = {"image": "VG_100K_2/24.jpg", "question": "How many dogs are there?", "answer": 2}
    return {**row, "issimple": True, "data_source": "amt", "image_id": 24, **changes}


TALLY = [
    tally_row(),
    tally_row(image="val2014/COCO_val2014_000000000007.jpg", issimple=False, answer=0),
    tally_row(question="What is this?"),
]


def write_tallyqa(root: Path, listed: Any = TALLY) -> Path:
    write_photo(root / "vg" / "VG_100K_2" / "24.jpg")
    write_photo(root / "coco" / "val2014" / "COCO_val2014_000000000007.jpg")
    write_json(root / "tallyqa" / "test.json", listed)
    return root


def test_tallyqa_asks_for_one_of_sixteen_statements(tmp_path: Path) -> None:
    found = load_benchmark("tallyqa", write_tallyqa(tmp_path))
    simple, hard = found.content
    assert (simple.subtask, simple.truth, simple.labels) == ("simple", 2, {"answer": "2"})
    assert (hard.subtask, hard.truth, hard.id) == ("complex", 0, "complex/1")
    assert simple.texts[simple.truth] == "there are two dogs"
    assert hard.texts[0] == "there are no dogs"
    assert simple.images[0].path == tmp_path / "vg" / "VG_100K_2" / "24.jpg"
    assert present(found)[1] == ()
    assert found.left_out == {"questions that do not ask how many": 1}
    assert results_of(found, tmp_path / "out").headline_score.chance == pytest.approx(1 / 16)
    (most,) = load_benchmark("tallyqa", write_tallyqa(tmp_path, [tally_row(answer=15)])).content
    assert most.truth == 15


def test_tallyqa_is_read_from_its_archive_and_photos_from_one_folder(tmp_path: Path) -> None:
    root = write_tallyqa(tmp_path)
    unpacked = load_benchmark("tallyqa", root)
    file = root / "tallyqa" / "test.json"
    with zipfile.ZipFile(root / "tallyqa" / "tallyqa.zip", "w") as archive:
        archive.writestr("test.json", file.read_text())
        archive.writestr("train.json", "[]")
    file.unlink()
    packed = load_benchmark("tallyqa", root)
    assert packed.content == unpacked.content
    assert packed.data_hash == unpacked.data_hash
    write_photo(tmp_path / "all" / "24.jpg")
    moved = load_benchmark("tallyqa:simple", root, tmp_path / "all")
    assert moved.content[0].images[0].path == tmp_path / "all" / "24.jpg"


def test_countbench_refuses_malformed_tables(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "countbench" / "a.parquet", {"text": ["two cups"]})
    refuses("no column 'number'", "a.parquet", "countbench", tmp_path)
    path.write_bytes(b"PAR1")
    refuses("a.parquet", "a.parquet", "countbench", tmp_path)
    path.unlink()
    refuses(r"CountBench\.json", "", "countbench", tmp_path)


# --- Malformed files of all of them. ---


COUNTBENCH, TALLYQA = "countbench/CountBench.json", "tallyqa/test.json"
MALFORMED: list[tuple[str, str, Any, str]] = [
    ("retrieval:docci", DOCCI, docci_row(7, "train"), "no captions"),
    (
        "retrieval:docci",
        DOCCI,
        {"split": "test", "image_file": "1.jpg"},
        "needs split, image_file, description",
    ),
    ("retrieval:sharegpt4v", SHAREGPT4V, [sharegpt4v_row(1, conversations=[])], "has no caption"),
    ("retrieval:sharegpt4v", SHAREGPT4V, [sharegpt4v_row(1)] * 2, "listed twice"),
    ("simpleneg", SIMPLENEG, [["a desk", "is there a lamp?"]], "found 2"),
    ("simpleneg", SIMPLENEG, {}, "must be a list"),
    ("countbench", COUNTBENCH, [count_row(1)], "'number' 1 is no whole number from 2 to 10"),
    ("countbench", COUNTBENCH, [count_row(11)], "'number' 11 is no whole number"),
    ("countbench", COUNTBENCH, [count_row(2.5)], "'number' 2.5 is no whole number"),
    ("countbench", COUNTBENCH, [count_row("three")], "'number' must be a number"),
    ("countbench", COUNTBENCH, [{"text": "two cups"}], "no key 'number'"),
    ("countbench", COUNTBENCH, [count_row(text=" ")], "'text' is empty"),
    ("countbench", COUNTBENCH, [count_row(image_url=None)], "'image_url' must be a text"),
    ("countbench", COUNTBENCH, [count_row(image="../3.jpg")], "leads outside the image folder"),
    ("countbench", COUNTBENCH, [count_row(text="some cups")], "no caption names its number"),
    ("tallyqa", TALLYQA, [], "no rows"),
    ("tallyqa", TALLYQA, {"a": 1}, "must be an object"),
    ("tallyqa", TALLYQA, [[1]], "must be an object"),
    ("tallyqa", TALLYQA, [tally_row(answer=16)], "'answer' 16 is no whole number from 0 to 15"),
    ("tallyqa", TALLYQA, [tally_row(answer=1.5)], "'answer' 1.5 is no whole number"),
    ("tallyqa", TALLYQA, [tally_row(answer="two")], "'answer' must be a number"),
    ("tallyqa", TALLYQA, [tally_row(issimple=1)], "'issimple' must be true or false"),
    ("tallyqa", TALLYQA, [tally_row(question="")], "'question' is empty"),
    ("tallyqa", TALLYQA, [tally_row(image=None)], "'image' must be a text"),
    ("tallyqa", TALLYQA, [{"question": "How many?"}], "no key 'issimple'"),
    ("tallyqa", TALLYQA, [tally_row(image="..")], "leads outside the image folder"),
    ("tallyqa", TALLYQA, [tally_row(question="Why?")], "no questions of"),
]


@pytest.mark.parametrize(("spec", "file", "value", "words"), MALFORMED)
def test_malformed_files_are_refused(
    tmp_path: Path, spec: str, file: str, value: Any, words: str
) -> None:
    path = write_json(tmp_path / file, value)
    refuses(words, path.name, spec, tmp_path)
