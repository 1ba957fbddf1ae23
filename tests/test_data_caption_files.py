"""Karpathy, COCO, Flickr8k, NegCLIP and folders: real files and malformed ones."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from build.photos import write_captioned, write_photos
from build.tables import write_json, write_rows, write_text
from compoclip.cli.caption_input import caption_items
from compoclip.data import folders, image_names
from compoclip.data.columns import EMPTY_CAPTION, NO_CAPTION, NO_IMAGE, NO_TEXT
from compoclip.data.folders import HIDDEN, image_files
from compoclip.data.image_names import EXTENSIONS
from compoclip.data.sources import Source
from compoclip.data.sources.open import Request, open_source
from compoclip.errors import CompoclipError, UsageError


def opened(path: Path, images: Path | None = None, split: str | None = None) -> Source:
    return open_source(str(path), images=images, split=split)


# Karpathy


def test_karpathy_test_split(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "annotations/coco_karpathy/coco_karpathy_test.json"
    source = opened(path, tmp_path)
    assert len(source) == 5000
    assert sum(1 for _ in source.captions()) == 25_010
    assert Counter(map(len, source.column("captions"))) == {5: 4990, 6: 10}
    assert len({*source.column("id")}) == 5000
    assert source[0].image == tmp_path / "val2014/COCO_val2014_000000391895.jpg"
    assert source[0].captions[0].endswith("dirt road.")  # the blank at the end is gone
    assert source.left_out == {}


def test_original_karpathy_file_and_its_splits(tmp_path: Path) -> None:
    places = (("train2014", "train"), ("val2014", "restval"), ("val2014", "test"))
    images = [
        {"filepath": folder, "filename": f"{i}.jpg", "split": split, "sentences": [{"raw": "x"}]}
        for i, (folder, split) in enumerate(places)
    ]
    path = write_json(tmp_path / "dataset_coco.json", {"images": images, "dataset": "coco"})
    names = ["train2014/0.jpg", "val2014/1.jpg", "val2014/2.jpg"]
    unasked = {"sample of split 'test' (--split all takes it)": 1}
    for split, ids, left_out in (
        (None, names[:2], unasked),
        ("train", names[:2], {}),
        ("restval", names[1:2], {}),
        ("test", names[2:], {}),
        ("all", names, {}),
    ):
        source = opened(path, split=split)
        assert (list(source.column("id")), source.left_out) == (ids, left_out)
    assert opened(path).describe().endswith("dataset_coco.json, split train")
    assert opened(path, split="all").describe().endswith("dataset_coco.json")
    with pytest.raises(UsageError, match="no split 'dev'; it has: restval, test, train"):
        opened(path, split="dev")


def test_captions_by_the_name_of_their_photo(tmp_path: Path) -> None:
    data = {"a.jpg": ["one", "two", " "], "b/c.PNG": "three", "./a.jpg": ["four"], "e.jpg": []}
    source = opened(write_json(tmp_path / "captions.json", data))
    assert [(sample.id, sample.captions) for sample in source] == [
        ("a.jpg#0", ("one", "two", "four")),
        ("b/c.PNG#1", ("three",)),
    ]
    assert source.left_out == {EMPTY_CAPTION: 1, NO_CAPTION: 1}


def coco(**change: Any) -> dict[str, Any]:
    images = [{"id": 1, "file_name": "1.jpg"}]
    return {"images": images, "annotations": [{"image_id": 1, "caption": "x"}], **change}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"1.jpg": 3}, "no usable sample .left out: 1 x caption that is no text"),
        ({"1.jpg": "x", "../2.jpg": "x"}, "row 2: image '../2.jpg' lies outside"),
        ({"a": 1}, "unknown format"),
        ([{"photo": "1.jpg", "caption": ["x"]}], "no image column found; .* photo, caption"),
        (["1.jpg"], "row 1: is no object with an image and captions"),
        ([], "has no rows"),
        ("text", "unknown format"),
        ([{"image": "../1.jpg", "caption": "x"}], "row 1: image '../1.jpg' lies outside"),
        ({"images": [{"filename": "1", "split": "train"}]}, "1 needs filename, split, sentences"),
        ({"images": [3]}, "image 1 needs"),
        (coco(images=[{"id": 1, "file_name": "1.jpg"}] * 2), "images 2: .* id 1 occurs twice"),
        (coco(images=[{"id": 1, "file_name": 7}]), "1: 'file_name' must be a text, found 7"),
        (
            coco(images=[{"id": [1], "file_name": "1.jpg"}]),
            r"images 1: 'id' must be a whole number or a text, found \[1\]",
        ),
        (coco(images=[{"id": 1}]), "images 1 needs id, file_name"),
        (coco(images=[{"id": 1, "file_name": "../1.jpg"}]), "images 1: image '../1.jpg' lies outs"),
        (coco(images=None), "lacks 'images'; are these COCO's"),
        (coco(annotations=[7]), "annotations 1 needs image_id, caption"),
        (coco(annotations=[{"image_id": 5, "caption": "x"}]), "1: no image has the id 5"),
        (
            coco(annotations=[{"image_id": 1, "caption": "\ud800"}]),
            r"JSON \(Half a character: line 1",
        ),
    ],
)
def test_malformed_json(tmp_path: Path, data: Any, reason: str) -> None:
    with pytest.raises(CompoclipError, match=rf"k\.json.* ?{reason}"):
        opened(write_json(tmp_path / "k.json", data))


# COCO


def test_coco_annotations(tmp_path: Path) -> None:
    data = {
        "images": [{"id": 9, "file_name": "9.jpg"}, {"id": 4, "file_name": "4.jpg"}],
        "annotations": [
            {"image_id": 9, "caption": "nine\n"},
            {"image_id": 9, "caption": "neun"},
            {"image_id": 9, "caption": 5},
            {"image_id": 4, "caption": None},
        ],
    }
    source = opened(write_json(tmp_path / "captions_val2017.json", data))
    assert [(source[0].id, source[0].captions)] == [("9.jpg", ("nine", "neun"))]
    assert source.left_out == {NO_TEXT: 2, NO_CAPTION: 1}


# Flickr8k


def test_flickr8k_and_its_splits(shared_data: Path) -> None:
    path = shared_data / "photos/flickr8k/Flickr8k.token.txt"
    unasked = {"sample of split 'test' (--split all takes it)": 300}
    for split, count in ((None, 1000), ("all", 1300), ("train", 1000), ("test", 300)):
        source = opened(path, split=split)
        assert len(source) == count
        assert sum(1 for _ in source.captions()) == 5 * count
        assert source.left_out == ({} if split else unasked)
        assert Path(source[count - 1].image).is_file()
    with pytest.raises(UsageError, match="no split 'dev'; it has: test, train"):
        opened(path, split="dev")


def test_quirks_of_the_official_flickr8k_file(tmp_path: Path) -> None:
    write_photos(tmp_path / "images", "a.jpg", "b.jpg")
    path = tmp_path / "Flickr8k.token.txt"
    path.write_text(
        "a.jpg#0\tA child .\na.jpg#1 A blank for a TAB .\n"
        "2258277193_586949ec62.jpg.1#0\tNo photo .\n"
        "\nb.jpg#0\t\nb.jpg#1\tHash # sign and\ttab\r\n",
        encoding="utf-8",
    )
    (tmp_path / "Flickr_8k.devImages.txt").write_text("b.jpg\nnowhere.jpg\n")
    with pytest.raises(UsageError, match=r"no split 'train'; it has: dev, .*--split all"):
        opened(path)
    source = opened(path, split="all")
    assert list(source.column("captions")) == [
        ("A child .", "A blank for a TAB ."),
        ("Hash # sign and\ttab",),
    ]
    assert source.left_out == {NO_IMAGE: 1, EMPTY_CAPTION: 1, NO_CAPTION: 1}
    dev = opened(path, split="dev")
    assert list(dev.column("id")) == ["b.jpg"]
    assert dev.left_out == {NO_CAPTION: 1, EMPTY_CAPTION: 1}
    assert len(opened(path, split=str(tmp_path / "Flickr_8k.devImages.txt"))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg#0\tfine\na.jpg\tno number\n", r"t\.txt: line 2 is not"),
        ("a.jpg#0\tfine\n../../etc/passwd#0\tx\n", r"t\.txt: line 2 is not"),
        ("a.jpg#0\tfine\njust words\n", r"t\.txt: line 2 is not"),
        ("a.jpg#0\tfine\n", "holds none of the photos"),
        ("image,caption\n../a.jpg,x\n", r"t\.txt.* row 1: '../a.jpg' is not the name of a photo"),
        ("image,caption\na\n", r"t\.txt.* line 2 has"),
    ],
)
def test_malformed_files_of_flickr8k(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CompoclipError, match=message):
        opened(write_text(tmp_path / "t.txt", text))
    with pytest.raises(CompoclipError, match="nowhere"):
        opened(tmp_path / "t.txt", tmp_path / "nowhere")


def test_captions_as_kaggle_has_them(tmp_path: Path) -> None:
    write_photos(tmp_path / "Images", "a.jpg", "b.jpg")
    path = tmp_path / "captions.txt"
    rows = 'a.jpg,A child .\nb.jpg,"A dog, ""sitting"" ."\na.jpg,Again .\ngone.jpg,Gone .\n'
    path.write_text(f"image,caption\n{rows}", encoding="utf-8-sig")
    source = opened(path)
    assert [(sample.id, sample.captions) for sample in source] == [
        ("a.jpg", ("A child .", "Again .")),
        ("b.jpg", ('A dog, "sitting" .',)),
    ]
    assert source[0].image == tmp_path / "Images" / "a.jpg"
    assert source.left_out == {NO_IMAGE: 1}
    assert list(opened(tmp_path).column("id")) == list(source.column("id"))
    assert [id for id, _ in caption_items(str(path), None, None)] == ["a.jpg", "b.jpg"]


def test_a_list_of_captions_is_read_with_and_without_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells: list[Any] = ["a cat", None, 4, " ", ["a dog", "a fish"]]
    shown = []
    for name, more in (("a.jsonl", {}), ("b.jsonl", {"image": "x.jpg", "group": "g"})):
        rows = [{**more, "caption": cell} for cell in cells]
        items = caption_items(str(write_rows(tmp_path / name, rows)), None, None)
        assert [list(texts) for _, texts in items] == [["a cat"], ["a dog", "a fish"]]
        shown.append(sorted(capsys.readouterr().err.splitlines()))
    assert shown[0] == shown[1]
    assert "left out of the data: 3 x sample without a caption" in shown[0]


# NegCLIP


def test_negclip_validation_file(shared_data: Path, tmp_path: Path) -> None:
    source = opened(shared_data / "annotations/negclip/valid_neg_clip.tsv", tmp_path)
    samples = list(source)
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
    source = opened(path)
    assert [sample.negatives for sample in source] == [(), ("z",)]
    assert source.left_out == {"empty negative": 1}
    for cell in ("not a list", "[1, 2]", "__import__('os').getcwd()", "['open"):
        path.write_text(head + f"0\tx\ta.jpg\t{cell}\n")
        with pytest.raises(CompoclipError, match=r"row 1: neg_caption .* is not a list"):
            opened(path)


# Folders


def test_folder_with_text_files(tmp_path: Path) -> None:
    texts = {"b.JPG": "one\n\n two \n", "sub/a.JPG": "three", "c.JPG": "\n"}
    write_captioned(tmp_path, texts)
    (tmp_path / ".hidden.jpg").touch()
    (tmp_path / "d.png").touch()
    source = opened(tmp_path)
    assert [(sample.id, sample.captions) for sample in source] == [
        ("b.JPG", ("one", "two")),
        ("sub/a.JPG", ("three",)),
    ]
    assert source[1].image == tmp_path / "sub" / "a.JPG"
    assert source.left_out == {NO_CAPTION: 2, EMPTY_CAPTION: 1, HIDDEN: 1}


def test_images_of_other_kinds_are_read_or_counted(tmp_path: Path) -> None:
    names = ("a.jpg", "b.jfif", "c.JPE", "d.pnm", "e.j2k", "k.avif")
    names += ("f.JXL", "g.jxl", "h.eps", "i.xyz")
    write_captioned(tmp_path, {name: name for name in names})
    (tmp_path / "alone.svg").touch()
    (tmp_path / "j.txt").write_text("no image")
    (tmp_path / "a.json").touch()  # belongs to a.jpg
    for name in ("notes", "j", "jpg"):  # files without an ending
        (tmp_path / name).touch()
    source = opened(tmp_path)
    read = ["a.jpg", "b.jfif", "c.JPE", "d.pnm", "e.j2k"]
    lost = {".jxl": 2, ".eps": 1, ".xyz": 1, ".svg": 1}
    if "avif" in EXTENSIONS:
        read.append("k.avif")
    else:
        lost[".avif"] = 1
    assert list(source.column("id")) == read
    reasons = {f"image of a kind that is not read ({kind})": n for kind, n in lost.items()}
    assert source.left_out == {**reasons, NO_IMAGE: 1}
    for file in tmp_path.iterdir():
        if file.suffix.lower() not in (".jxl", ".txt"):
            file.unlink()
    with pytest.raises(CompoclipError, match=r"no usable sample .*2 x .*not read \(\.jxl\)"):
        opened(tmp_path)


def test_folder_with_metadata(tmp_path: Path) -> None:
    write_text(tmp_path / "metadata.csv", "file_name,text\nx/1.jpg,A cat\n")
    assert opened(tmp_path)[0].image == tmp_path / "x" / "1.jpg"
    write_json(tmp_path / "metadata.jsonl", {"file_name": "1.jpg", "text": "A dog", "tags": 3})
    assert opened(tmp_path)[0].captions == ("A dog",)
    write_json(tmp_path / "bad" / "metadata.jsonl", {"file_name": "../1.jpg", "text": "A dog"})
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("bad", "lies outside"),
        ("gone", "not found"),
        ("empty", "an empty folder"),
    ):
        with pytest.raises(CompoclipError, match=message):
            opened(tmp_path / name)
    with pytest.raises(CompoclipError, match=r"gone: .*check the folder"):
        list(image_files(tmp_path / "gone", Counter()))


# --- The walk of a folder: what is read, what is passed over, and that the numbers add up. ---


READ = ["1.jpg", "2.JFIF", "3.jp2", "deep/4.pbm", "deep/er/5.jpe"]
PASSED_OVER = {
    "@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg": folders.SYSTEM,
    "__MACOSX/._1.jpg": folders.SYSTEM,
    "deep/__MACOSX/cat/._1.jpg": folders.SYSTEM,
    "#recycle/old.png": folders.SYSTEM,
    "$Recycle.Bin/S-1-5/old.png": folders.SYSTEM,
    "System Volume Information/x.jpg": folders.SYSTEM,
    "lost+found/x.jpg": folders.SYSTEM,
    "Thumbs.db": folders.SYSTEM,
    "deep/desktop.ini": folders.SYSTEM,
    "._1.jpg": folders.HIDDEN,
    ".Trash-1000/files/x.jpg": folders.HIDDEN,
    ".thumbnails/x.jpg": folders.HIDDEN,
    ".jpg": folders.HIDDEN,
    "notes.txt": folders.NO_IMAGE_FILE,
    "jpg": folders.NO_IMAGE_FILE,
    "6.jxl": "image of a kind that is not read (.jxl)",
    "deep/7.PSD": "image of a kind that is not read (.psd)",
    "drafts/8.jpg": folders.EXCLUDED,
    "deep/er/9_copy.jpg": folders.EXCLUDED,
    "deep/old/10.jpg": folders.EXCLUDED,
    "\udcff.jpg": folders.NOT_UTF8,
}
EXCLUDE = ("drafts/", "*_copy.*", "deep/ol?")


def touch(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).touch()


def number_of_files(root: Path) -> int:
    """Files and links to folders, counted by the standard library."""
    return sum(
        len(files) + sum(Path(parent, name).is_symlink() for name in below)
        for parent, below, files in os.walk(root)
    )


def test_every_file_is_read_or_counted_by_its_reason(tmp_path: Path) -> None:
    for name in (*READ, *PASSED_OVER):
        touch(tmp_path, name)
    for name, target in {"linked.jpg": "1.jpg", "around": "deep", "lost.jpg": "gone.jpg"}.items():
        (tmp_path / name).symlink_to(target)
    os.mkfifo(tmp_path / "pipe.jpg")
    left_out = Counter[str]()
    read = list(image_files(tmp_path, left_out, EXCLUDE))
    assert read == [*READ[:3], "linked.jpg", *READ[3:]]
    others = [folders.LINKED_FOLDER, folders.BROKEN_LINK, folders.NO_FILE]
    assert left_out == Counter([*PASSED_OVER.values(), *others])
    assert 6 + left_out.total() == number_of_files(tmp_path)


def test_a_pattern_names_files_at_any_depth_or_from_the_folder_on(tmp_path: Path) -> None:
    for name in ("a/x.jpg", "b/a/x.jpg", "b/y.jpg"):
        touch(tmp_path, name)
    cases = {
        ("a",): ["b/y.jpg"],
        ("/a",): ["b/y.jpg"],
        ("b/a",): ["a/x.jpg", "b/y.jpg"],
        ("x.*",): ["b/y.jpg"],
        ("b/*.jpg",): ["a/x.jpg"],
        ("B", "X.JPG"): ["a/x.jpg", "b/y.jpg", "b/a/x.jpg"],
    }
    for exclude, expected in cases.items():
        assert list(image_files(tmp_path, Counter(), exclude)) == expected, exclude


def test_a_pattern_that_names_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    touch(tmp_path, "cat/x.jpg")
    touch(tmp_path, "my drafts/y.jpg")
    for exclude in (("my drafts",), ("my drafts", "y*", "cat/"), ("CAT", "my", "./cat", "")):
        list(image_files(tmp_path, Counter(), exclude))
    said = re.findall(
        "nothing there matches the pattern '(.*)' of exclude; correct it, or put q.*",
        capsys.readouterr().err,
    )
    assert said == ["y*", "", "./cat", "CAT", "my"]


NAMES = st.sampled_from(
    ["a.jpg", "b.jxl", "c.txt", ".d.jpg", "@eaDir", "__MACOSX", "e", "f.jpg", ".g", "Thumbs.db"]
)


@settings(max_examples=40)
@given(st.sets(st.lists(NAMES, min_size=1, max_size=4).map(tuple), max_size=12), st.sets(NAMES))
def test_read_and_left_out_are_all_files(paths: set[tuple[str, ...]], exclude: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path in paths:
            place = root.joinpath(*path)
            if not any(parent.is_file() for parent in place.parents) and not place.exists():
                touch(root, "/".join(path))
        left_out = Counter[str]()
        names = list(image_files(root, left_out, tuple(exclude)))
        assert len(names) + left_out.total() == number_of_files(root)
        assert all(map(image_names.is_read, names))


def test_endings_are_those_that_pillow_knows_for_the_formats() -> None:
    Image.init()
    formats = Image.registered_extensions().items()
    endings = {ending[1:] for ending, kind in formats if kind in image_names.FORMATS}
    assert endings - {"pfm"} <= image_names.EXTENSIONS  # whose grey has no black and white
    assert image_names.EXTENSIONS.isdisjoint(image_names.UNREAD)
    cases = {"a.JPG": True, "a.b.tiff": True, "jpg": False, ".jpg": False, "x.jpg/a": False}
    assert {name: image_names.is_read(name) for name in cases} == cases


def test_links_to_class_folders_are_classes_once_and_without_circles(tmp_path: Path) -> None:
    for name in ("full/n1/a.jpg", "full/n2/b.jpg", "full/n2/inner/c.jpg", "other/d.jpg"):
        touch(tmp_path, name)
    for top in ("flat", "split/train"):  # a subset of ImageNet is often a folder of links
        touch(tmp_path, f"{top}/n3/e.jpg")
        links = {"n1": "full/n1", "n2": "full/n2", "again": "full/n1", "up": ".", "here": top}
        for name, target in links.items():
            (tmp_path / top / name).symlink_to(tmp_path / target)
        (tmp_path / top / "n3" / "deep").symlink_to(tmp_path / "other")
        (tmp_path / top / "loop").symlink_to(tmp_path / top / "loop")
    touch(tmp_path, "split/val/n3/f.jpg")
    for folder, options in {"flat": {}, "split": {"split": "train"}}.items():
        source = Request(str(tmp_path / folder), needs="labels", **options).open()
        assert source.classes == ("again", "n2", "n3")
        names = sorted(Path(id).name for id in source.column("id"))
        assert names == ["a.jpg", "b.jpg", "c.jpg", "e.jpg"]
        assert source.left_out[folders.LINKED_FOLDER] == 4
        assert source.left_out[folders.BROKEN_LINK] == 1
