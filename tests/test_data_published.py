"""Training sets as they are published: fixtures in each layout, and malformed ones."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from build.photos import plain
from build.tables import write_csv, write_json, write_parquet, write_rows, write_text
from compoclip.benchmarks import negation
from compoclip.cli.main import main
from compoclip.data.columns import NO_ORIGINAL
from compoclip.data.decode import Mirrored, decode
from compoclip.data.sources.open import open_source
from compoclip.data.sources.published import NOT_UPDATED
from compoclip.errors import CompoclipError, UsageError

Capture = pytest.CaptureFixture[str]

COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255), "green": (0, 255, 0)}


def png(colour: str) -> bytes:
    return plain(COLOURS[colour])


def colour_of(image: Any) -> str:
    pixel = decode(image).getpixel((0, 0))
    return next(name for name, value in COLOURS.items() if value == pixel)


def parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    """Write columns; encoded images with their names, as hubs have them."""
    cells = {
        name: [{"bytes": v, "path": None} if isinstance(v, bytes) else v for v in values]
        for name, values in columns.items()
    }
    return write_parquet(path, cells)


# --- TROHN. ---

TROHN = {
    "image_id": ["000000391979.jpg", "000000391980.jpg"],
    "caption": ["a dog on a mat.", "two cats"],
    "negative_caption": ["a cat on a mat.", "two dogs"],
}


def test_trohn_text(tmp_path: Path) -> None:
    parquet(tmp_path / "data" / "train-00000-of-00001.parquet", TROHN)
    parquet(tmp_path / "data" / "validation-00000-of-00001.parquet", TROHN)
    (tmp_path / "train2017").mkdir()
    source = open_source(str(tmp_path), images=tmp_path / "train2017")
    first, second = source
    assert first.image == tmp_path / "train2017" / "000000391979.jpg"
    assert first.id == "000000391979.jpg#0"
    assert (first.captions, first.negatives) == (("a dog on a mat.",), ("a cat on a mat.",))
    assert second.negatives == ("two dogs",)
    assert source.brings() == {"negatives"}
    assert sum(source.left_out.values()) == 1  # the file of another split


def test_trohn_img(tmp_path: Path) -> None:
    columns = {**TROHN, "negative_image": [png("blue"), png("green")]}
    path = parquet(tmp_path / "train.parquet", columns)
    source = open_source(str(path))
    assert source.brings() == {"negatives", "negative_image"}
    assert [colour_of(sample.negative_image) for sample in source] == ["blue", "green"]
    assert source[1].image == tmp_path / "000000391980.jpg"
    none = parquet(tmp_path / "none.parquet", {**columns, "negative_image": [png("blue"), None]})
    assert open_source(str(none))[1].negative_image is None


def test_malformed_trohn(tmp_path: Path) -> None:
    outside = parquet(tmp_path / "outside.parquet", {**TROHN, "image_id": ["../a.jpg", "b.jpg"]})
    odd = parquet(tmp_path / "odd.parquet", {**TROHN, "negative_caption": [1, 2]})
    cut = parquet(tmp_path / "cut.parquet", TROHN)
    cut.write_bytes(cut.read_bytes()[:-20])
    for path, message in (
        (outside, r"outside\.parquet, row 1: .* outside .*--images"),
        (odd, r"odd\.parquet, row 1: neg_caption .* is not a list"),
        (cut, "not a whole Parquet file .*fetch the file again"),
    ):
        with pytest.raises(CompoclipError, match=message):
            open_source(str(path))


# --- VisMin. ---

VISMIN = {
    "image": [png("red"), png("blue"), png("green"), png("red"), png("blue")],
    "image_id": ["a", "a_1", "a_2", "b", "z_1"],
    "source_image_id": ["", "a", "a", "", "z"],
    "caption": ["red", "blue", "green", "plain", "lost"],
    "edit_instruction": ["", "x", "y", "", "z"],
    "bounding_boxes": ["", "", "", "", ""],
    "category": ["", "object", "attribute", "", "relation"],
}


def test_vismin_joins_edits_to_their_originals(tmp_path: Path) -> None:
    half = {name: values[:2] for name, values in VISMIN.items()}
    rest = {name: values[2:] for name, values in VISMIN.items()}
    parquet(tmp_path / "data" / "train-0.parquet", half)
    parquet(tmp_path / "data" / "train-1.parquet", rest)
    source = open_source(str(tmp_path))
    samples = list(source)
    assert [sample.id for sample in samples] == ["a#a_1", "a#a_2", "b"]
    assert [colour_of(sample.image) for sample in samples] == ["red"] * 3
    assert [colour_of(sample.negative_image) for sample in samples[:2]] == ["blue", "green"]
    assert [sample.negatives for sample in samples] == [("blue",), ("green",), ()]
    assert samples[2].negative_image is None
    assert source.left_out[NO_ORIGINAL] == 1
    assert source.bare(0).image == b""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": ["a", "a", "c", "d", "e"]}, r"row 2: the image_id 'a' occurs twice"),
        ({"caption": ["x", None, "y", "z", "w"]}, "row 2: 'caption' must be a text"),
        ({"image": ["a", "b", "c", "d", "e"]}, "lacks encoded images in column 'image'"),
    ],
)
def test_malformed_vismin(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = parquet(tmp_path / "vismin.parquet", {**VISMIN, **changes})
    with pytest.raises(CompoclipError, match=rf"vismin\.parquet.*{message}"):
        open_source(str(path))


def test_vismin_json(tmp_path: Path) -> None:
    edits = [{"edited_image_path": "b.png", "edited_caption": "blue"}]
    plain = {"image_path": "c.png", "caption": "plain", "negatives": []}
    rows = [{"image_path": "a.png", "caption": "red", "negatives": edits}, plain]
    first, second = open_source(str(write_json(tmp_path / "v.json", rows)))
    assert (first.image, first.negative_image) == (tmp_path / "a.png", tmp_path / "b.png")
    assert (first.negatives, second.negatives) == (("blue",), ())
    for entry, message in (
        ({**plain, "negatives": [{"edited_caption": "x"}]}, "row 2: an edit needs"),
        ({**plain, "image_path": 3}, "row 2: 'image_path' must be a text"),
        ({"caption": "x"}, "row 2 needs image_path, caption, negatives; it has: caption; fetch"),
        ({**plain, "image_path": "../x.png"}, "row 2: .*outside"),
    ):
        with pytest.raises(CompoclipError, match=message):
            open_source(str(write_json(tmp_path / "bad.json", [rows[0], entry])))


# --- DeGLA. ---

DEGLA = {"image_id": 391895, "original": "a man", "enhanced": ["a boy", "man a", "", "a cat"]}


def test_degla(tmp_path: Path) -> None:
    source = open_source(str(write_json(tmp_path / "d.json", [DEGLA, {**DEGLA, "image_id": 7}])))
    first, second = source
    assert first.image == tmp_path / "COCO_train2014_000000391895.jpg"
    assert second.id == "COCO_train2014_000000000007.jpg#1"
    assert first.negatives == ("a boy", "man a", "a cat")
    assert dict(source.left_out) == {"empty negative": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": "7"}, "row 2: 'image_id' must be a whole number, found '7' \\(str\\)"),
        ({"enhanced": "a boy"}, "row 2: 'enhanced' must be a list of texts, found 'a boy' .str."),
        ({"enhanced": [1]}, r"row 2: 'enhanced' must be a list of texts, found \[1\] \(list\)"),
    ],
)
def test_malformed_degla(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_json(tmp_path / "d.json", [DEGLA, {**DEGLA, **changes}])
    with pytest.raises(CompoclipError, match=rf"d\.json, {message}; fetch the file again"):
        open_source(str(path))


# --- NegationCLIP. ---


def negation_json(folder: Path, *annotations: dict[str, Any]) -> str:
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}]
    return str(write_json(folder / "n.json", {"images": images, "annotations": list(annotations)}))


def test_negationclip(tmp_path: Path) -> None:
    one = {"image_id": 1, "caption": "a dog", "updated_caption": "a dog, but no cat"}
    two = {"image_id": 2, "caption": "a cup"}
    path = negation_json(tmp_path, one, two)
    source = open_source(path)
    assert list(source.column("captions")) == [("a dog, but no cat",), ("a cup",)]
    assert source.left_out == {NOT_UPDATED: 1}
    both = open_source(path, caption_column="caption,updated_caption")
    assert both[0].captions == ("a dog", "a dog, but no cat")
    plain = open_source(path, caption_column="caption")
    assert (plain[0].captions, plain.left_out) == (("a dog",), {})
    with pytest.raises(UsageError, match=r"no column 'text'; .*caption"):
        open_source(path, caption_column="text")
    with pytest.raises(CompoclipError, match="annotations 2: no image has the id 3"):
        open_source(negation_json(tmp_path, one, {**one, "image_id": 3}))


# --- SemCLIP. ---

SEM = {"filename": "1.jpg", "caption": "a dog", "paraphrased": "one dog", "negation": "no dog"}


def test_semclip(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "sem.csv", SEM, {**SEM, "paraphrased": "", "filename": "2.jpg"})
    source = open_source(str(path))
    first, second = source
    assert first.image == tmp_path / "1.jpg"
    assert (first.positives, first.negatives) == (("one dog",), ("no dog",))
    assert (second.positives, second.negatives) == ((), ("no dog",))
    assert source.brings() == {"negatives", "positives"}


# --- Flickr30k-Counterfactuals. ---

SIDES = {
    "captions": "a dog to the left of a cat",
    "images": "/home/authors/flickr30k/12.jpg",
    "neg_captions": "a dog to the right of a cat",
    "neg_images": "/home/authors/flipped/12.jpg",
}
HEIGHTS = {
    "captions": "a dog above a cat",
    "images": "13.jpg",
    "neg_captions": "a dog below a cat",
    "neg_images": "/home/authors/gligen/13_x.jpg",
}


def test_counterfactual_positions(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "train_left_right_up_down_.csv", SIDES, HEIGHTS, delimiter="\t")
    (tmp_path / "f").mkdir()
    first, second = open_source(str(path), images=tmp_path / "f")
    assert first.image == tmp_path / "f" / "12.jpg"
    assert first.negative_image == Mirrored(tmp_path / "f" / "12.jpg")
    assert second.negative_image == tmp_path / "f" / "up_down" / "13_x.jpg"
    assert first.negatives == ("a dog to the right of a cat",)
    assert second.negatives == ("a dog below a cat",)


def test_counterfactual_attributes(tmp_path: Path) -> None:
    row = {"captions": "a red dog", "images": "x/1.png"}
    for kind, text in (("noun", "a red cat"), ("adj", "a blue dog"), ("rev", "nonexistent")):
        row |= {f"{kind}_captions": text, f"{kind}_images": f"/home/{kind}/1.png"}
    none = {**dict.fromkeys(row, "nonexistent"), "captions": "a red dog", "images": "x/1.png"}
    path = write_csv(tmp_path / "attributes.csv", row, none, delimiter="\t")
    samples = list(open_source(str(path)))
    assert [sample.id for sample in samples] == ["1.png#0/noun", "1.png#0/adj", "1.png#1"]
    assert samples[0].negative_image == tmp_path / "noun" / "1.png"
    assert [sample.negatives for sample in samples] == [("a red cat",), ("a blue dog",), ()]
    del row["rev_images"]
    path = write_rows(tmp_path / "lacks.tsv", [row])
    message = r"lacks\.tsv, row 1 needs rev_captions, rev_images; it has"
    with pytest.raises(CompoclipError, match=message):
        open_source(str(path))
    text = "captions\timages\tneg_captions\tneg_images\na\tb\n"
    broken = write_text(tmp_path / "broken_left_right_.csv", text)
    with pytest.raises(CompoclipError, match="line 2 has 2 cells, the header has 4"):
        open_source(str(broken))


# --- MACCO: NegCLIP's table with more columns. ---


def test_macco(tmp_path: Path) -> None:
    row = {
        "title": "a red dog runs",
        "filepath": "1.jpg",
        "neg_caption": "['a red cat runs']",
        "object_list": "['dog']",
        "relation_list": "['runs']",
        "attribute_list": "['red']",
        "relation_attribute_phrase_bbox_list": "[[0, 0, 1, 1]]",
    }
    (first,) = open_source(str(write_rows(tmp_path / "macco.tsv", [row])))
    assert (first.captions, first.negatives) == (("a red dog runs",), ("a red cat runs",))
    boxed = {key: value for key, value in row.items() if key != "neg_caption"}
    (plain,) = open_source(str(write_rows(tmp_path / "cc3m.tsv", [boxed])))
    assert (plain.captions, plain.negatives) == (("a red dog runs",), ())


# --- CC-Neg: a pickle, written as a table once. ---


def cc_neg(path: Path, rows: int) -> Path:
    annotations = [
        {"json": {"caption": f"a dog {i}"}, "sop_data": {"negative-prompt": f"no, dog {i}"}}
        for i in range(rows)
    ]
    paths = [f"/home/authors/cc3m/00000/{i}.jpg" for i in range(rows)]
    torch.save({"image_paths": paths, "annotations": annotations}, path)
    return path


def test_cc_neg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(negation, "TEST_ROWS", 2)
    path, out = cc_neg(tmp_path / "ccneg_preprocessed.pt", 5), tmp_path / "cc_neg.tsv"
    assert main(["data", "cc-neg", str(path), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3
    (tmp_path / "cc3m").mkdir()
    samples = list(open_source(str(out), images=tmp_path / "cc3m"))
    assert [sample.captions for sample in samples] == [(f"a dog {i}",) for i in range(3)]
    assert samples[2].negatives == ("no dog 2",)
    assert samples[2].image == tmp_path / "cc3m" / "00000" / "2.jpg"


def test_malformed_cc_neg(tmp_path: Path, capsys: Capture) -> None:
    path, evil = cc_neg(tmp_path / "few.pt", 5), tmp_path / "evil.pt"
    evil.write_bytes(pickle.dumps({"image_paths": [Path("x")]}))
    for source, name, code, message in (
        (path, "x.tsv", 1, "few.pt: 5 rows, of which the last 40,000 are the test"),
        (path, "x.json", 2, "must end in .tsv"),
        (evil, "x.tsv", 1, "no code in it is run"),
    ):
        assert main(["data", "cc-neg", str(source), "--out", str(tmp_path / name)]) == code
        assert message in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"few\.pt: a pickle may run anything.*data cc-neg"):
        open_source(str(path))
