"""The reader of foils: formats, sub-tasks from the data, skills, statements, malformed rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmark_files import refuses
from build.photos import write_photo
from build.tables import write_json, write_jsonl, write_parquet, write_rows
from compoclip.benchmarks.case import Form
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.targets import find_in
from compoclip.errors import UsageError
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import FakeEncoder


def row(**changes: Any) -> dict[str, Any]:
    known = {"id": 1, "image": "photos/1.png", "caption": "a cup", "negative_caption": "a plate"}
    return {**known, **changes}


def test_a_negative_image_makes_a_strict_pair(tmp_path: Path) -> None:
    """Right only if each image prefers its caption and each caption its image."""
    for name in ("1", "2"):
        write_photo(tmp_path / "photos" / f"{name}.png")
    write_lines(tmp_path, "x.jsonl", row(negative_image="photos/2.png"))
    benchmark = load_benchmark("foils", tmp_path)
    (case,) = benchmark.content
    assert case.form is Form.GROUP
    assert case.texts == ("a cup", "a plate")
    assert [ref.path.name for ref in case.images] == ["1.png", "2.png"]
    assert all(ref.upright for ref in case.images)
    (results,) = evaluate("fake", FakeEncoder(), [benchmark], tmp_path / "out", Options())
    assert list(results.scores["x"])[:3] == ["group", "text", "image"]
    assert results.scores["x"]["group"].chance == pytest.approx(1 / 6)


def write_lines(root: Path, name: str, *rows: dict[str, Any]) -> Path:
    path = root / "foils" / name
    return write_jsonl(path, rows)


def test_subtasks_and_skills_come_from_the_rows(tmp_path: Path) -> None:
    write_lines(
        tmp_path,
        "b.jsonl",
        row(subtask="left of", skill="spatial", relation="left of", note=3),
        row(subtask="colours"),
        row(id=2, subtask="left of", skill="spatial"),
    )
    write_json(tmp_path / "foils" / "a.json", [row(), row(id="x")])
    (tmp_path / "foils" / "README.md").write_text("not data", encoding="utf-8")
    found = load_benchmark("foils", tmp_path)
    assert [case.id for case in found.content] == [
        "a/1",
        "a/x",
        "left of/1",
        "colours/1",
        "left of/2",
    ]
    assert found.skills == {"left of": "spatial"}
    assert found.content[2].labels == {"relation": "left of"}
    assert all(case.form is Form.CHOOSE_TEXT and case.truth == 0 for case in found.content)
    assert found.content[0].texts == ("a cup", "a plate")
    assert found.content[0].images[0].path == tmp_path / "photos" / "1.png"
    assert found.headline == "macro"
    assert found.aggregates["macro"].parts == ("a", "left of", "colours")
    part = load_benchmark("foils:left*", tmp_path, images=tmp_path / "elsewhere")
    assert [case.id for case in part.content] == ["left of/1", "left of/2"]
    assert part.content[0].images[0].path == tmp_path / "elsewhere" / "photos" / "1.png"
    assert part.data_hash == found.data_hash


SUFFIXES = (".csv", ".tsv", ".parquet", ".json", ".jsonl")


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows; in Parquet sub-tasks are categories, as pandas stores them."""
    if path.suffix != ".parquet" or "subtask" not in rows[0]:
        return write_rows(path, rows)
    columns = {name: [row.get(name) for row in rows] for name in rows[0]}
    subtasks = pa.array(columns["subtask"]).dictionary_encode()
    return write_parquet(path, {**columns, "subtask": subtasks})


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_several_true_captions_are_an_item_each(tmp_path: Path, suffix: str) -> None:
    captions, wrong = ["a cup", "a mug, as it seems"], ["a plate", "a pan"]
    path = tmp_path / "foils" / f"x{suffix}"
    write_table(path, [row(caption=captions, negative_caption=wrong)])
    found = load_benchmark("foils", tmp_path).content
    assert [case.id for case in found] == ["x/1", "x/1#2"]
    assert [case.texts for case in found] == [(each, *wrong) for each in captions]


ROWS = [
    row(id=1, subtask="left of", negative_caption=["a plate", "a \u00e9clair, no cup"]),
    row(id=2, subtask="left of", caption="[sic]", negative_caption=["a dish"]),
]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("ids", [True, False])
def test_every_format_with_one_or_many_negatives(tmp_path: Path, suffix: str, ids: bool) -> None:
    path = tmp_path / "foils" / f"mine{suffix}"
    write_table(path, [{k: v for k, v in r.items() if ids or k != "id"} for r in ROWS])
    found = load_benchmark("foils", tmp_path)
    assert [case.texts for case in found.content] == [
        ("a cup", "a plate", "a \u00e9clair, no cup"),
        ("[sic]", "a dish"),
    ]
    numbers = ["1", "2"] if ids else [f"mine{suffix}:1", f"mine{suffix}:2"]
    assert [case.id for case in found.content] == [f"left of/{number}" for number in numbers]
    assert "foils" in [target.spec for target in find_in(tmp_path)]


STATEMENTS = [
    {"image": f"{k}.png", "caption": f"cup {k}", "label": k % 2, "subtask": task, "kind": "cup"}
    for task in ("left", "left_dev", "above")
    for k in range(4)
]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_true_and_false_statements(tmp_path: Path, suffix: str) -> None:
    rows = [each for each in STATEMENTS if each["subtask"] != "above"]
    path = tmp_path / f"mine{suffix}"
    write_table(path, STATEMENTS)
    for k in range(4):
        write_photo(tmp_path / f"{k}.png")
    found = load_benchmark("foils", tmp_path, annotations=path)
    assert [case.truth for case in found.content] == [0, 1, 0, 1] * 3
    assert {case.form for case in found.content} == {Form.BINARY}
    assert found.content[1].labels == {"label": "true", "kind": "cup"}
    assert found.tuned_on == {"left": "left_dev"}
    assert found.aggregates["macro"].parts == ("left", "above")
    options = Options(resamples=20)
    (result,) = evaluate("m", FakeEncoder(), [found], tmp_path / "out", options)
    assert set(result.scores) == {"left", "above"}
    assert {"macro", "micro", "balanced_accuracy"} <= set(result.aggregates)
    assert result.scores["left"]["auc"].n == 4
    part = load_benchmark("foils:left", tmp_path, annotations=path)
    assert len(part.content) == len(rows)
    with pytest.raises(UsageError, match="no sub-task 'left_dev'"):
        load_benchmark("foils:left_dev", tmp_path, annotations=path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_further_negatives_in_columns_of_their_own(tmp_path: Path, suffix: str) -> None:
    wrong = {"negative_caption_2": "a pan", "negative_caption3": "a pot", "note": "x"}
    rows = [
        row(subtask="x", **wrong),
        row(id=2, subtask="x", **{**wrong, "negative_caption_2": None}),
        row(id=3, subtask="x", **{**wrong, "negative_caption": None}),
    ]
    path = tmp_path / f"mine{suffix}"
    write_table(path, rows)
    found = load_benchmark("foils", tmp_path, annotations=path)
    assert [case.texts[1:] for case in found.content] == [
        ("a plate", "a pan", "a pot"),
        ("a plate", "a pot"),
        ("a pan", "a pot"),
    ]
    assert found.content[0].labels == {"note": "x"}
    (tmp_path / "photos").mkdir()
    write_photo(tmp_path / "photos" / "1.png")
    (result,) = evaluate("m", FakeEncoder(), [found], tmp_path / "out", Options(resamples=20))
    # Chance is that of every item: of four texts, and twice of three.
    assert result.headline_score.chance == pytest.approx((1 / 4 + 1 / 3 + 1 / 3) / 3)


def test_words_for_truth(tmp_path: Path) -> None:
    truths = {"true": 1, "False": 0, " 1 ": 1, "0": 0, "TRUE": 1, "no": None}
    lines = [
        f'{{"image": "1.png", "caption": "{k}", "label": "{word}"}}\n'
        for k, word in enumerate(truths)
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    found = load_benchmark("foils", tmp_path, annotations=path)
    assert [case.truth for case in found.content] == [1, 0, 1, 0, 1]
    path.write_text("".join(lines), encoding="utf-8")
    refuses("line 6: 'label' must be 1 or 0, true", "", "foils", tmp_path, annotations=path)


def test_pictures_inside_a_table(tmp_path: Path) -> None:
    rows = [
        {"image": {"bytes": data}, "caption": f"{k}", "negative_caption": ["x", "y"]}
        for k, data in enumerate((b"one", b"two", b"one"))
    ]
    path = tmp_path / "x.parquet"
    write_parquet(path, rows)
    found = load_benchmark("foils", tmp_path, annotations=path)
    photos = [case.images[0].photo for case in found.content]
    assert photos == [f"{path}@image:0", f"{path}@image:1", f"{path}@image:0"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((row(), row()), "line 2: 'id': 1 occurs twice; number the rows anew"),
        ((row(id=None), row(id=None)), r"line 2: the same as .*x.jsonl: line 1; fix the file"),
        ((row(skill="luck"),), "line 1: unknown skill 'luck'; known: object"),
        ((row(), row(id=2, skill="object")), "line 2: skill 'object', but earlier rows"),
        ((row(image="../1.png"),), "leads outside the image folder"),
        ((row(caption=" "),), "'caption' is empty; fix the row"),
        ((row(caption=[]),), "'caption' is an empty list; fix the row"),
        ((row(caption=["a", ""]),), "'caption' is empty; fix the row"),
        ((row(negative_caption=[]),), "'negative_caption' must be a text or a list of texts"),
        ((row(negative_caption=["a", ""]),), "negative caption 2 is empty; fix the row"),
        ((row(negative_caption=[1]),), "negative caption 1 must be a text, found 1"),
        ((row(negative_caption=None),), "has neither of 'negative_caption' .*give one of them"),
        ((row(label=1),), "has both of 'negative_caption'"),
        (
            (row(), row(id=2, negative_caption=None, label=1)),
            "line 2: captions with a 'negative_caption', .* put each kind into a folder of its own",
        ),
        ((row(), row(id=2, negative_image="2.png")), "line 2: captions with .* of its own"),
        (
            (row(negative_image="2.png", negative_caption=["a", "b"]),),
            "a 'negative_image' shows what the one negative caption says, and has 2 of them",
        ),
        ((row(negative_image="2.png", negative_caption=None, label=1),), "has no 'negative_image'"),
        ((row(negative_image=7),), "'negative_image' must be a text"),
        ((row(negative_image="../2.png"),), "leads outside the image folder"),
        ((row(negative_caption=None, label=1),), "'x' has no true or no false statements; add"),
        ((row(subtask=3),), "'subtask' must be a text"),
        (({"id": 1},), "no 'image', only 'id'; fix the row"),
        ((row(caption=None),), "no 'caption', only 'id', 'image', 'negative_caption'; fix"),
        (
            ({"image": "1.png", "caption": "a cup", "neg_caption": "a plate"},),
            r"line 1: has neither .* give one of them \(is 'neg_caption' the first\?\)",
        ),
        ((row(negative_caption_2=" "),), "negative caption 2 is empty; fix the row"),
        ((), "no rows"),
    ],
)
def test_malformed_rows_end_in_one_line(
    tmp_path: Path, rows: tuple[dict[str, Any], ...], message: str
) -> None:
    write_lines(tmp_path, "x.jsonl", *rows)
    assert "official" not in refuses(message, "", "foils", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.csv",
            "image,text\n1.png,a\n",
            "no column 'caption', only 'image', 'text'; fix",
        ),
        ("x.csv", "image,caption\n1.png,a\n", "row 1: has neither of 'negative_caption'"),
        ("x.tsv", 'image\tcaption\n1.png\t"a', "check quoting and delimiter"),
        ("x.json", "[", "not valid JSON .*; fix the file"),
        ("x.jsonl", "{", "line 1: not valid JSON .*; fix the file"),
        ("x.parquet", "PAR1", "not a whole Parquet file .*; fix the file"),
    ],
)
def test_malformed_files_are_the_users_own(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    told = refuses(message, str(path), "foils", tmp_path, annotations=path)
    assert "official" not in told
    assert "fetch" not in told


def test_absent_files(tmp_path: Path) -> None:
    refuses("no such file; check the path", "", "foils", tmp_path)
    (tmp_path / "foils").mkdir()
    refuses(r"holds no \.csv, \.json, \.jsonl", "", "foils", tmp_path)
