"""Retrieval and zero-shot sets: official formats, real data, malformed input."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses
from build.photos import write_photo
from build.tables import write_json, write_jsonl, write_rows, write_text
from compoclip.benchmarks.case import Aggregate, Classification, Retrieval, present
from compoclip.benchmarks.files import file_hash
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import find_in
from compoclip.errors import UsageError

KARPATHY = "coco/coco_karpathy_test.json"
PAIRS = "coco_counterfactuals/examples.jsonl"
NAMES = "classification/class_names_templates/clip_benchmark_en_classnames.json"
TEMPLATES = NAMES.replace("classnames", "zeroshot_classification_templates")


def retrieval(content: object) -> Retrieval:
    assert isinstance(content, Retrieval)
    return content


def classification(content: object) -> Classification:
    assert isinstance(content, Classification)
    return content


def test_karpathy_test_split(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "annotations" / "coco_karpathy" / "coco_karpathy_test.json"
    found = load_benchmark("retrieval:coco", tmp_path, annotations=path)
    content = retrieval(found.content)
    assert found.content.counts() == found.expected == {"i2t": 5000, "t2i": 25010}
    assert (len(content.pairs), len(set(content.texts))) == (25010, 24855)
    per_image = Counter(image for image, _ in content.pairs)
    assert Counter(per_image.values()) == {5: 4990, 6: 10}
    first = tmp_path / "coco" / "val2014" / "COCO_val2014_000000391895.jpg"
    assert content.images[0].path == first
    assert content.texts[0].endswith("dirt road. ")
    clean = load_benchmark("retrieval:coco", tmp_path, annotations=path, pre_caption_words=30)
    cleaned = retrieval(clean.content).texts[0]
    assert cleaned == "a man with a red helmet on a small moped on a dirt road"
    assert clean.data_hash != found.data_hash
    assert (found.name, clean.name) == ("retrieval_coco", "retrieval_coco_pre30")
    assert file_hash(path) == meta("retrieval").hashes[KARPATHY]


def test_flickr8k_test_photos(shared_data: Path) -> None:
    found = load_benchmark("retrieval:flickr8k", shared_data / "photos")
    content = retrieval(found.content)
    assert (len(content.images), len(content.texts), len(content.pairs)) == (300, 1500, 1500)
    assert found.left_out == {"captions of photos outside the split": 5000}
    assert present(found) == (content, ())
    assert content.images[0].path.name == "3385593926_d3e9c21170.jpg"
    assert found.aggregates["r1"] == Aggregate(("i2t", "t2i"), metric="r1")


def write_flickr8k(root: Path, tokens: str, split: str = "b.jpg\na.jpg\n") -> None:
    write_text(root / "flickr8k" / "Flickr8k.token.txt", tokens)
    write_text(root / "flickr8k" / "Flickr_8k.testImages.txt", split)


def test_flickr8k_quirks(tmp_path: Path) -> None:
    tokens = "a.jpg#1\tsecond\na.jpg#0 first , with a blank\n\nc.jpg.1#0\tno photo\n"
    write_flickr8k(tmp_path, f"{tokens}b.jpg#0\tonly #1\r\n")
    found = load_benchmark("retrieval:flickr8k", tmp_path)
    content = retrieval(found.content)
    assert [ref.path.name for ref in content.images] == ["b.jpg", "a.jpg"]
    assert content.texts == ("only #1", "first , with a blank", "second")
    assert content.pairs == ((0, 0), (1, 1), (1, 2))
    assert found.left_out == {"captions of photos outside the split": 1}


@pytest.mark.parametrize(
    ("tokens", "split", "message"),
    [
        ("a.jpg first\n", "a.jpg\n", "line 1 is not 'name.jpg#k"),
        ("a.jpg#0\tx\na.jpg#0\ty\n", "a.jpg\n", "line 2: caption 0 of 'a.jpg' occurs twice"),
        ("a.jpg#0\t \n", "a.jpg\n", "the caption is empty"),
        ("a.jpg#0\tx\n", "a.jpg\nb.jpg\n", "no caption for photo 'b.jpg'"),
        ("a.jpg#0\tx\n", "a.jpg\na.jpg\n", "line 2: photo 'a.jpg' is listed twice"),
        ("a.jpg#0\tx\n", "\n", "no photo names"),
        (f"a.jpg#{'9' * 5000}\tx\n", "a.jpg\n", "line 1 is not 'name.jpg#k"),
        ("../a.jpg#0\tx\n", "../a.jpg\n", "line 1 is not 'name.jpg#k"),
    ],
)
def test_malformed_flickr8k(tmp_path: Path, tokens: str, split: str, message: str) -> None:
    write_flickr8k(tmp_path, tokens, split)
    refuses(message, "", "retrieval:flickr8k", tmp_path)


def test_both_json_formats_of_the_same_photos_agree(tmp_path: Path) -> None:
    blip = [{"image": "flickr30k-images/1.jpg", "caption": ["one", "two"]}]
    photos = [
        {"filename": "1.jpg", "split": "test", "sentences": [{"raw": "one"}, {"raw": "two"}]},
        {"filename": "2.jpg", "split": "train", "sentences": [{"raw": "three"}]},
    ]
    write_json(tmp_path / "flickr30k" / "flickr30k_test.json", blip)
    one = load_benchmark("retrieval:flickr30k", tmp_path)
    other = write_json(tmp_path / "dataset_flickr30k.json", {"images": photos})
    two = load_benchmark("retrieval:flickr30k", tmp_path, annotations=other)
    assert one.content == two.content
    assert retrieval(one.content).images[0].path == tmp_path / "flickr30k" / "images" / "1.jpg"


def cf_row(k: int, **changes: Any) -> dict[str, Any]:
    photos = {"image_0": f"{k}_0", "image_1": f"{k}_1"}
    return {"id": k, **photos, "caption_0": f"caption {k}", "caption_1": f"other {k}", **changes}


MALFORMED: list[tuple[str, Any, str]] = [
    (KARPATHY, {}, "no key 'images'"),
    (KARPATHY, [], "no photos"),
    (KARPATHY, {"images": []}, "no photos of split 'test'"),
    (KARPATHY, [{"image": "a.jpg", "caption": []}], "photo 'a.jpg' has no caption"),
    (KARPATHY, [{"image": "a.jpg", "caption": ["", "x"]}], "row 0: caption 0 is empty"),
    (KARPATHY, [{"image": "a.jpg", "caption": ["x"]}] * 2, "row 1: photo 'a.jpg' is listed twice"),
    (KARPATHY, [{"image": "../a.jpg", "caption": ["x"]}], "leads outside"),
    (
        KARPATHY,
        {"images": [{"filename": "a", "split": "test", "sentences": [3]}]},
        "row 0 needs raw",
    ),
    (PAIRS, [], "holds no pairs"),
    (PAIRS, [cf_row(1), cf_row(1, image_0="x", image_1="y")], "line 2: 'id': 1 occurs twice"),
    (PAIRS, [cf_row(1, image_1="1_0")], "line 1: image '1_0' is listed twice"),
]


@pytest.mark.parametrize(("file", "rows", "message"), MALFORMED)
def test_malformed_rows_are_refused(tmp_path: Path, file: str, rows: Any, message: str) -> None:
    path = write_rows(tmp_path / file, rows)
    refuses(message, path.name, f"retrieval:{'coco' if file == KARPATHY else 'coco_cf'}", tmp_path)


def test_absent_photos_leave_a_retrieval_set_with_their_captions(tmp_path: Path) -> None:
    rows = [{"image": f"val2014/{n}.jpg", "caption": [f"{n} a", f"{n} b"]} for n in range(3)]
    write_json(tmp_path / KARPATHY, rows)
    for n in (0, 2):
        write_photo(tmp_path / "coco" / "val2014" / f"{n}.jpg")
    used, missing = present(load_benchmark("retrieval:coco", tmp_path))
    content = retrieval(used)
    assert missing == (str(tmp_path / "coco" / "val2014" / "1.jpg"),)
    assert [ref.path.stem for ref in content.images] == ["0", "2"]
    assert content.texts == ("0 a", "0 b", "2 a", "2 b")
    assert content.pairs == ((0, 0), (0, 1), (1, 2), (1, 3))


def test_eurosat_with_the_published_names_and_templates(shared_data: Path) -> None:
    folder = shared_data / "classification" / "eurosat"
    options = {"classes": shared_data / NAMES, "templates": shared_data / TEMPLATES}
    found = load_benchmark("zero_shot:eurosat", shared_data, folder, **options)
    content = classification(found.content)
    assert (len(content.images), len(content.classes)) == (200, 10)
    assert content.classes[:2] == ("annual crop land", "forest")
    assert content.prompts[0][0] == "a centered satellite photo of annual crop land."
    assert [content.labels.count(k) for k in range(10)] == [20] * 10
    directories = [ref.path.parent.name for ref in content.images]
    assert [sorted({*directories})[label] for label in content.labels] == directories
    assert found.headline == content.metric == "accuracy"
    assert present(found) == (content, ())


def test_caltech_with_the_published_templates(shared_data: Path) -> None:
    place = "zero_shot:caltech101", shared_data, shared_data / "classification" / "caltech101"
    found = load_benchmark(*place, templates=shared_data / TEMPLATES)
    content = classification(found.content)
    assert (len(content.images), len(content.classes)) == (202, 101)
    assert content.classes[:5] == ("Faces", "Faces easy", "Leopards", "Motorbikes", "accordion")
    assert len(content.prompts[0]) == 34
    refuses("102 class names for 101 directories", "", *place, classes=shared_data / NAMES)


def write_classes(root: Path) -> Path:
    folder = root / "elevater" / "shapes"
    for photo in ("red_disc/2.png", "red_disc/deep/1.png", "Box/1.JPG", "Box/notes.txt"):
        write_text(folder / photo, "")
    (folder / "empty").mkdir()
    (folder / ".git").mkdir()
    write_text(folder / "README.md", "about")
    return folder


def test_folder_of_classes(tmp_path: Path) -> None:
    folder = write_classes(tmp_path)
    found = load_benchmark("zero_shot:shapes", tmp_path)
    content = classification(found.content)
    assert content.classes == ("Box", "empty", "red disc")
    assert content.prompts[2] == ("a photo of a red disc.",)
    names = [image.path.relative_to(folder).as_posix() for image in content.images]
    assert names == ["Box/1.JPG", "red_disc/2.png", "red_disc/deep/1.png"]
    assert content.labels == (0, 2, 2)
    assert found.left_out == {"sample without an image": 1}
    assert found.expected == {}
    write_json(folder / "index.json", {"red_disc": ["disc", "circle"], "Box": "box", "empty": "no"})
    write_json(folder / "templates.json", ["a {}", "one {c}"])
    named = load_benchmark("zero_shot:shapes", tmp_path, metric="mean-per-class")
    content = classification(named.content)
    assert content.classes == ("box", "no", "disc")
    assert content.prompts[0] == ("a box", "one box")
    assert named.headline == "mean-per-class"
    assert named.aggregates["mean-per-class"].macro_by == "class"
    assert named.data_hash != found.data_hash


def test_absent_photos_leave_a_classification_set_but_classes_stay(tmp_path: Path) -> None:
    folder = write_classes(tmp_path)
    found = load_benchmark("zero_shot:shapes", tmp_path)
    (folder / "Box" / "1.JPG").unlink()
    used, missing = present(found)
    assert missing == (str(folder / "Box" / "1.JPG"),)
    assert classification(used).labels == (2, 2)
    assert len(classification(used).classes) == 3


Names = dict[str, str]


@pytest.mark.parametrize(
    ("index", "options", "message"),
    [
        (
            {"Box": "box", "empty": "no", "red_disc": "disc", "ball": "ball"},
            {},
            "class directory 'ball' is not in",
        ),
        (
            {"Box": "box", "empty": "box", "red_disc": "disc"},
            {"metric": "mean-per-class"},
            "two classes are called 'box'",
        ),
    ],
)
def test_malformed_names_of_class_folders(
    tmp_path: Path, index: Names, options: Names, message: str
) -> None:
    write_json(write_classes(tmp_path) / "index.json", index)
    refuses(message, "", "zero_shot:shapes", tmp_path, **options)


def test_classes_of_one_name_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = {"Box": "box", "empty": "box", "red_disc": "disc"}
    write_json(write_classes(tmp_path) / "index.json", index)
    assert "mean-per-class" not in load_benchmark("zero_shot:shapes", tmp_path).aggregates
    noted = "several classes share 1 name ('box'): they get the same score"
    assert noted in capsys.readouterr().err


def test_folders_without_photos(tmp_path: Path) -> None:
    readme = write_classes(tmp_path) / "README.md"
    bare = tmp_path / "elevater" / "bare"
    bare.mkdir()
    refuses("an empty folder; name one with photos", "", "zero_shot:bare", tmp_path)
    (bare / "x").mkdir()
    refuses("no photos, tables or shards in this folder", "", "zero_shot:bare", tmp_path)
    refuses(r"put the photos of 'mnit' there .did you mean mnist", "", "zero_shot:mnit", tmp_path)
    refuses("no such folder", "", "zero_shot:x", tmp_path, readme)
    refuses("leads outside", "", "zero_shot:..", tmp_path)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("zero_shot", {}, "is a family"),
        ("retrieval:coco,flickr8k", {}, "is a family"),
        ("retrieval:coko", {}, "did you mean coco"),
        ("retrieval:coco", {"pre_caption_words": 0}, "at least 1"),
        (
            "zero_shot:shapes",
            {"metric": "top5"},
            "zero_shot: metric must be one of accuracy, .* found 'top5'",
        ),
        ("zero_shot:shapes", {"index": Path("a"), "classes": Path("b")}, "not both"),
    ],
)
def test_bad_requests_for_sets(
    tmp_path: Path, spec: str, options: dict[str, Any], message: str
) -> None:
    write_classes(tmp_path)
    with pytest.raises(UsageError, match=message):
        load_benchmark(spec, tmp_path, **options)


# --- COCO-Counterfactuals: which pairs are taken, both members in the gallery. ---


def test_pairs_with_the_smallest_hashes_in_file_order(tmp_path: Path) -> None:
    write_jsonl(tmp_path / PAIRS, [cf_row(k) for k in range(30)])
    found = load_benchmark("retrieval:coco_cf", tmp_path, pairs=4)
    content = retrieval(found.content)

    def digest(k: int) -> str:
        return hashlib.blake2b(str(k).encode(), digest_size=16).hexdigest()

    chosen = sorted(sorted(range(30), key=digest)[:4])
    assert content.texts == tuple(t for k in chosen for t in (f"caption {k}", f"other {k}"))
    assert [ref.path.name for ref in content.images[:2]] == [f"{chosen[0]}_{j}.jpg" for j in (0, 1)]
    assert content.pairs == tuple((k, k) for k in range(8))
    assert found.expected == {"i2t": 8, "t2i": 8}
    assert found.left_out == {"pairs beyond the 4 with the smallest hashes of their ids": 26}
    every = load_benchmark("retrieval:coco_cf", tmp_path, pairs=None)
    assert len(retrieval(every.content).images) == 60
    assert (every.expected["i2t"], every.left_out) == (2 * 17410, {})
    assert every.data_hash != found.data_hash
    assert load_benchmark("retrieval:coco_cf", tmp_path).expected["t2i"] == 2 * 5223
    write_jsonl(tmp_path / PAIRS, [cf_row(k) for k in reversed(range(30))])
    other = retrieval(load_benchmark("retrieval:coco_cf", tmp_path, pairs=4).content)
    assert set(other.texts) == set(content.texts)


def test_names_without_a_suffix_find_their_photo(tmp_path: Path) -> None:
    write_jsonl(tmp_path / PAIRS, [cf_row(1), cf_row(2, image_1="b.JPEG")])
    write_photo(tmp_path / "coco_counterfactuals" / "images" / "1_0.png")
    found = load_benchmark("retrieval:coco_cf", tmp_path)
    names = [ref.path.name for ref in retrieval(found.content).images]
    assert names == ["1_0.png", "1_1.jpg", "2_0.jpg", "b.JPEG"]
    used, missing = present(found)
    assert retrieval(used).texts == ("caption 1",)
    assert len(missing) == 3


def test_found_in_a_data_root_under_its_own_folder(tmp_path: Path) -> None:
    write_jsonl(tmp_path / PAIRS, [cf_row(1)])
    assert [target.spec for target in find_in(tmp_path)] == ["retrieval:coco_cf"]
    about = meta("retrieval")
    assert about.of_set("coco_cf", about.files) == (PAIRS,)
    assert about.of_set("coco", about.files) == (KARPATHY,)
    several = meta("zero_shot")
    assert several.of_set("dtd", several.images) == ("elevater/dtd",)
