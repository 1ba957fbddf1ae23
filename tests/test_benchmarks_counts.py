"""CountBench and TallyQA: official layouts in, choices between numbers out."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses
from build.photos import picture, write_photo
from build.tables import write_json, write_parquet
from compoclip.benchmarks.case import Benchmark, present
from compoclip.benchmarks.counts import statements
from compoclip.benchmarks.registry import load_benchmark
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import FakeEncoder
from rewrite_facts import rows

# --- CountBench. ---

WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count_row(number: Any = 3, **changes: Any) -> dict[str, Any]:
    row = {"image_url": f"http://x/{number}.jpg", "text": "Three kittens in a basket"}
    return {**row, "number": number, **changes}


def write_countbench(root: Path, *rows: dict[str, Any]) -> Path:
    """The hub's table: `image` holds the encoded picture, or nothing."""
    write_parquet(root / "countbench" / "data" / "train-00000-of-00001.parquet", rows)
    return root


def measured(found: Benchmark, out: Path) -> Results:
    options = Options(resamples=20, allow_partial=True)
    (result,) = evaluate("m", FakeEncoder(), [found], out, options)
    return result


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
    result = measured(found, tmp_path / "out")
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
    assert measured(found, tmp_path / "out").headline_score.chance == pytest.approx(1 / 16)


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


# --- Malformed files of both. ---


COUNTBENCH, TALLYQA = "countbench/CountBench.json", "tallyqa/test.json"
MALFORMED = [
    (COUNTBENCH, [count_row(1)], "'number' 1 is no whole number from 2 to 10"),
    (COUNTBENCH, [count_row(11)], "'number' 11 is no whole number"),
    (COUNTBENCH, [count_row(2.5)], "'number' 2.5 is no whole number"),
    (COUNTBENCH, [count_row("three")], "'number' must be a number"),
    (COUNTBENCH, [{"text": "two cups"}], "no key 'number'"),
    (COUNTBENCH, [count_row(text=" ")], "'text' is empty"),
    (COUNTBENCH, [count_row(image_url=None)], "'image_url' must be a text"),
    (COUNTBENCH, [count_row(image="../3.jpg")], "leads outside the image folder"),
    (COUNTBENCH, [count_row(text="some cups")], "no caption names its number"),
    (TALLYQA, [], "no rows"),
    (TALLYQA, {"a": 1}, "must be an object"),
    (TALLYQA, [[1]], "must be an object"),
    (TALLYQA, [tally_row(answer=16)], "'answer' 16 is no whole number from 0 to 15"),
    (TALLYQA, [tally_row(answer=1.5)], "'answer' 1.5 is no whole number"),
    (TALLYQA, [tally_row(answer="two")], "'answer' must be a number"),
    (TALLYQA, [tally_row(issimple=1)], "'issimple' must be true or false"),
    (TALLYQA, [tally_row(question="")], "'question' is empty"),
    (TALLYQA, [tally_row(image=None)], "'image' must be a text"),
    (TALLYQA, [{"question": "How many?"}], "no key 'issimple'"),
    (TALLYQA, [tally_row(image="..")], "leads outside the image folder"),
    (TALLYQA, [tally_row(question="Why?")], "no questions of"),
]


@pytest.mark.parametrize(("file", "rows", "words"), MALFORMED)
def test_malformed_rows_are_refused(tmp_path: Path, file: str, rows: Any, words: str) -> None:
    write_json(tmp_path / file, rows)
    name, _, place = file.partition("/")
    refuses(words, place, name, tmp_path)


def test_countbench_refuses_malformed_tables(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "countbench" / "a.parquet", {"text": ["two cups"]})
    refuses("no column 'number'", "a.parquet", "countbench", tmp_path)
    path.write_bytes(b"PAR1")
    refuses("a.parquet", "a.parquet", "countbench", tmp_path)
    path.unlink()
    refuses(r"CountBench\.json", "", "countbench", tmp_path)
