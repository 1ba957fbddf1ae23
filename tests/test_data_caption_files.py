"""Karpathy, COCO, Flickr8k, NegCLIP and folders: real files and malformed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compoclip.data.coco import open_coco
from compoclip.data.flickr8k import NO_CAPTIONS, NO_PHOTO, open_flickr8k
from compoclip.data.folder import open_folder
from compoclip.data.karpathy import open_karpathy
from compoclip.data.negclip_tsv import open_negclip
from compoclip.data.rows import EMPTY_CAPTION, NO_CAPTION
from compoclip.errors import CompoclipError, UsageError


def dump(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


# Karpathy


def test_karpathy_test_split(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "annotations/coco_karpathy/coco_karpathy_test.json"
    source = open_karpathy(path, tmp_path)
    assert len(source) == 5000
    assert sum(1 for _ in source.captions()) == 25_010
    counts = [len(source[i].captions) for i in range(len(source))]
    assert (counts.count(5), counts.count(6)) == (4990, 10)
    assert len({source[i].id for i in range(len(source))}) == 5000
    assert source[0].image == tmp_path / "val2014/COCO_val2014_000000391895.jpg"
    assert source[0].captions[0].endswith("dirt road.")  # the blank at the end is gone
    assert source.left_out == {}


def test_one_row_a_caption_is_grouped_by_image(tmp_path: Path) -> None:
    rows = [
        {"image": "b.jpg", "caption": "b one", "image_id": "coco_1"},
        {"image": "a.jpg", "caption": "a one", "image_id": "coco_2"},
        {"image": "b.jpg", "caption": "b two", "image_id": "coco_1"},
    ]
    source = open_karpathy(dump(tmp_path / "train.json", rows))
    samples = [source[i] for i in range(len(source))]
    assert [s.captions for s in samples] == [("b one", "b two"), ("a one",)]


def original(tmp_path: Path) -> Path:
    images = [
        {
            "filepath": folder,
            "filename": f"{i}.jpg",
            "split": split,
            "sentences": [{"raw": f"text {i}"}, {"raw": f"more {i}"}],
        }
        for i, (folder, split) in enumerate(
            [("train2014", "train"), ("val2014", "restval"), ("val2014", "test")]
        )
    ]
    return dump(tmp_path / "dataset_coco.json", {"images": images, "dataset": "coco"})


def test_original_karpathy_file_and_its_splits(tmp_path: Path) -> None:
    path = original(tmp_path)
    ids = {}
    for split in (None, "train", "restval", "test"):
        source = open_karpathy(path, split=split)
        ids[split] = [source[i].id for i in range(len(source))]
    assert ids == {
        None: ["train2014/0.jpg", "val2014/1.jpg", "val2014/2.jpg"],
        "train": ["train2014/0.jpg", "val2014/1.jpg"],
        "restval": ["val2014/1.jpg"],
        "test": ["val2014/2.jpg"],
    }
    with pytest.raises(UsageError, match="no split 'dev'; it has: restval, test, train"):
        open_karpathy(path, split="dev")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"a": 1}, "neither a list of rows nor an object"),
        ([{"file": "1.jpg", "caption": ["x"]}], "row 0 has no 'image' path .*file, caption"),
        ([{"image": "1.jpg", "text": ["x"]}], "row 0 has no 'caption'; it has: image, text"),
        (["1.jpg"], "row 0 has no 'image'"),
        ([], "no usable sample"),
        ([{"image": "../1.jpg", "caption": "x"}], "row 0: image '../1.jpg' lies outside"),
        ({"images": [{"filename": "1.jpg", "split": "train"}]}, "image 0 lacks 'sentences'"),
        ({"images": [3]}, "image 0 lacks"),
    ],
)
def test_malformed_karpathy(tmp_path: Path, data: Any, reason: str) -> None:
    with pytest.raises(CompoclipError, match=reason):
        open_karpathy(dump(tmp_path / "k.json", data))


def test_karpathy_missing_or_not_json(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=r"gone\.json"):
        open_karpathy(tmp_path / "gone.json")
    path = tmp_path / "k.json"
    path.write_text('[{"image":')
    with pytest.raises(CompoclipError, match=r"k\.json: not valid JSON"):
        open_karpathy(path)
    with pytest.raises(UsageError, match="holds one split already"):
        open_karpathy(dump(path, [{"image": "a.jpg", "caption": "x"}]), split="train")


# COCO


def test_coco_annotations(tmp_path: Path) -> None:
    data = {
        "images": [{"id": 9, "file_name": "9.jpg"}, {"id": 4, "file_name": "4.jpg"}],
        "annotations": [
            {"image_id": 9, "caption": "nine\n"},
            {"image_id": 9, "caption": "neun"},
        ],
    }
    path = dump(tmp_path / "captions_val2017.json", data)
    source = open_coco(path)
    assert [(source[0].id, source[0].captions)] == [("9.jpg", ("nine", "neun"))]
    assert source.left_out == {NO_CAPTION: 1}
    data["annotations"].append({"image_id": 5, "caption": "x"})
    with pytest.raises(CompoclipError, match="lacks 5"):
        open_coco(dump(path, data))


# Flickr8k


def test_flickr8k_and_its_splits(shared_data: Path) -> None:
    path = shared_data / "photos/flickr8k/Flickr8k.token.txt"
    for split, count in ((None, 1300), ("train", 1000), ("test", 300)):
        source = open_flickr8k(path, split=split)
        assert len(source) == count
        assert sum(1 for _ in source.captions()) == 5 * count
        assert source.left_out == {}
        image = source[count - 1].image
        assert isinstance(image, Path)
        assert image.is_file()
    with pytest.raises(UsageError, match=r"no list for split 'dev'.*testImages"):
        open_flickr8k(path, split="dev")


def test_quirks_of_the_official_flickr8k_file(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "images" / name).touch()
    path = tmp_path / "Flickr8k.token.txt"
    path.write_text(
        "a.jpg#0\tA child .\na.jpg#1 A blank for a TAB .\n"
        "2258277193_586949ec62.jpg.1#0\tNo photo .\n"
        "\nb.jpg#0\t\nb.jpg#1\tHash # sign and\ttab\r\n",
        encoding="utf-8",
    )
    (tmp_path / "Flickr_8k.devImages.txt").write_text("b.jpg\nnowhere.jpg\n")
    source = open_flickr8k(path)
    assert [source[i].captions for i in range(2)] == [
        ("A child .", "A blank for a TAB ."),
        ("Hash # sign and\ttab",),
    ]
    assert source.left_out == {NO_PHOTO: 1, EMPTY_CAPTION: 1}
    dev = open_flickr8k(path, split="dev")
    assert [dev[i].id for i in range(len(dev))] == ["b.jpg"]
    assert dev.left_out == {NO_CAPTIONS: 1, EMPTY_CAPTION: 1}
    assert len(open_flickr8k(path, split=str(tmp_path / "Flickr_8k.devImages.txt"))) == 1


@pytest.mark.parametrize("line", ["a.jpg\tno number", "../../etc/passwd#0\tx", "just words"])
def test_malformed_token_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.txt"
    path.write_text(f"a.jpg#0\tfine\n{line}\n")
    with pytest.raises(CompoclipError, match=r"t\.txt: line 2 is not"):
        open_flickr8k(path)


def test_flickr8k_without_its_photos(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("a.jpg#0\tfine\n")
    with pytest.raises(CompoclipError, match="holds none of the photos"):
        open_flickr8k(path)
    with pytest.raises(CompoclipError, match="nowhere"):
        open_flickr8k(path, tmp_path / "nowhere")


# NegCLIP


def test_negclip_validation_file(shared_data: Path, tmp_path: Path) -> None:
    source = open_negclip(shared_data / "annotations/negclip/valid_neg_clip.tsv", tmp_path)
    samples = [source[i] for i in range(len(source))]
    assert len(samples) == 4839
    assert sum(len(s.negatives) for s in samples) == 7370
    assert {len(s.negatives) for s in samples} == {1, 2, 3, 4, 5}
    assert len({s.id for s in samples}) == 4839
    assert samples[0].id == "coco/val2014/COCO_val2014_000000184613.jpg#0"
    assert sum("\n" in s.captions[0] for s in samples) <= 8  # some have it at the end only
    assert source.left_out == {}


def test_malformed_negclip(tmp_path: Path) -> None:
    path = tmp_path / "n.tsv"
    head = "\ttitle\tfilepath\tneg_caption\n"
    path.write_text(head + "0\tx\ta.jpg\t\n1\ty\tb.jpg\t['z', ' ']\n")
    source = open_negclip(path)
    assert [source[i].negatives for i in range(2)] == [(), ("z",)]
    assert source.left_out == {"empty negative": 1}
    for cell in ("not a list", "[1, 2]", "__import__('os').getcwd()", "['open"):
        path.write_text(head + f"0\tx\ta.jpg\t{cell}\n")
        with pytest.raises(CompoclipError, match="row 0: neg_caption is not a list"):
            open_negclip(path)
    path.write_text("title\tfilepath\n")
    with pytest.raises(UsageError, match="no column 'neg_caption'; the columns are: title, file"):
        open_negclip(path)


# Folders


def test_folder_with_text_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden.jpg").touch()
    for name, text in {"b": "one\n\n two \n", "sub/a": "three", "c": "\n"}.items():
        (tmp_path / f"{name}.JPG").touch()
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "d.png").touch()
    source = open_folder(tmp_path)
    assert [(source[i].id, source[i].captions) for i in range(len(source))] == [
        ("b.JPG", ("one", "two")),
        ("sub/a.JPG", ("three",)),
    ]
    assert source[1].image == tmp_path / "sub" / "a.JPG"
    assert source.left_out == {NO_CAPTION: 2}


def test_folder_with_metadata(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("file_name,text\nx/1.jpg,A cat\n")
    assert open_folder(tmp_path)[0].image == tmp_path / "x" / "1.jpg"
    dump(tmp_path / "metadata.jsonl", {"file_name": "1.jpg", "text": "A dog", "tags": 3})
    assert open_folder(tmp_path)[0].captions == ("A dog",)
    dump(tmp_path / "metadata.jsonl", {"file_name": "../1.jpg", "text": "A dog"})
    with pytest.raises(CompoclipError, match="lies outside"):
        open_folder(tmp_path)


def test_folder_missing_or_empty(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match="folder not found"):
        open_folder(tmp_path / "gone")
    with pytest.raises(CompoclipError, match="no usable sample"):
        open_folder(tmp_path)
