"""The sets of the literature: facts, published names and templates, classes matched to labels."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import expect_one_line, refuses
from build.photos import write_photos
from build.tables import write_csv, write_json
from compoclip.benchmarks import zero_shot
from compoclip.benchmarks.case import Benchmark, Classification
from compoclip.benchmarks.names import SUITES
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import parse_targets
from compoclip.benchmarks.zero_shot import SETS, published
from compoclip.data.prompts import (
    PublishedPrompts,
    imagenet_prompts,
    read_names,
    read_templates,
)
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError

ELEVATER = [name.partition(":")[2] for name in SUITES["elevater_20"]]
PUBLISHED = "classification/class_names_templates"
COUNTS = {  # classes and templates, as published
    "caltech-101": (102, 34),
    "cifar-10": (10, 18),
    "cifar-100": (100, 18),
    "country211": (211, 5),
    "dtd": (47, 8),
    "eurosat_clip": (10, 3),
    "fer-2013": (7, 6),
    "fgvc-aircraft-2013b": (100, 2),
    "food-101": (101, 1),
    "gtsrb": (43, 3),
    "hateful-memes": (2, 1),
    "kitti-distance": (4, 1),
    "mnist": (10, 1),
    "oxford-flower-102": (102, 1),
    "oxford-iiit-pets": (37, 1),
    "patch-camelyon": (2, 1),
    "rendered-sst2": (2, 1),
    "resisc45_clip": (45, 18),
    "stanford-cars": (196, 8),
    "voc-2007": (20, 1),
    "imagenet-1k": (1000, 80),
    "imagenet-a": (200, 80),
    "imagenet-r": (200, 80),
    "imagenet-sketch": (1000, 80),
    "imagenet-v2": (1000, 80),
}
CHECKSUMS = {
    (
        "compoclip.data",
        "zero_shot.json",
    ): "6a5f0b3e2221b7338750e2a7e27d518f2e87cce47572b7e84d64bcba48ad1974",
    (
        "compoclip.benchmarks",
        zero_shot.TOOLKIT,
    ): "1f8b00c835748b300d1cb991c3d8d017ce4bc0a51d1fcc9dcf86bf548b113daf",
}


def make(root: Path, name: str, *directories: str) -> Path:
    """A set with one photo in each class directory."""
    folder = root / "elevater" / name
    for directory in directories:
        (folder / directory).mkdir(parents=True)
        (folder / directory / "a.png").write_bytes(b"")
    return folder


def content_of(found: Benchmark) -> Classification:
    assert isinstance(found.content, Classification)
    return found.content


@pytest.mark.parametrize("place", CHECKSUMS)
def test_the_shipped_files_are_as_they_were_checked(place: tuple[str, str]) -> None:
    data = resources(place[0]).joinpath(place[1]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == CHECKSUMS[place]
    value = json.loads(data)
    assert "MIT" in value["licence"]
    assert value["sources"]
    assert set(value["sets"]) <= set(ELEVATER)


def test_every_set_is_whole_out_of_the_box() -> None:
    assert set(COUNTS) == set(SETS)
    for name, about in SETS.items():
        known = published(name)
        names = [each[0] for each in known.classes]
        assert (len(names), len(known.templates)) == COUNTS[name], name
        assert len(names) == about.classes
        assert len(set(names)) == len(names) or name.startswith("imagenet")
        assert all(each.count("{}") == 1 for each in known.templates)
        assert sorted(known.toolkit) in ([], list(range(about.classes)))
    assert published("shapes") == PublishedPrompts()


def test_shipped_names_are_the_published_ones(shared_data: Path) -> None:
    folder = shared_data / PUBLISHED
    path = folder / "openai_clip_prompts.md"
    for name in ELEVATER:
        known, about = published(name), SETS[name]
        assert tuple(each[0] for each in known.classes) == read_names(path, about.section)
        assert known.templates == read_templates(path, about.section)
    _, names, templates = imagenet_prompts("imagenet-1k")
    assert names == read_names(folder / "clip_benchmark_en_classnames.json", "imagenet1k")
    file = folder / "clip_benchmark_en_zeroshot_classification_templates.json"
    filled = tuple(each.replace("{c}", "{}") for each in read_templates(file, "imagenet1k"))
    assert templates == filled


def test_classes_by_codes_numbers_and_directories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "country211", "ZW", "AE", "XK", "CD")
    make(tmp_path, "gtsrb", *(f"{k:05d}" for k in range(43)))
    make(tmp_path, "oxford-flower-102", *(str(k) for k in range(1, 103)))
    make(tmp_path, "eurosat_clip", "AnnualCrop", "SeaLake", "Forest")
    make(tmp_path, "fgvc-aircraft-2013b", "F-16A_B", "707-320")
    make(
        tmp_path, "stanford-cars", "Ram C-V Cargo Van Minivan 2012", "smart fortwo Convertible 2012"
    )
    shown = {}
    for name in ELEVATER:
        if not (tmp_path / "elevater" / name).is_dir():
            continue
        found = load_benchmark(f"zero_shot:{name}", tmp_path)
        content = content_of(found)
        assert len(content.classes) == SETS[name].classes
        assert {len(prompts) for prompts in content.prompts} == {COUNTS[name][1]}
        assert found.headline == SETS[name].metric
        assert found.expected == {"zero_shot": meta("zero_shot").expected[name]}
        shown[name] = {
            ref.path.parent.name: content.classes[y]
            for ref, y in zip(content.images, content.labels)
        }
    assert capsys.readouterr().err == ""
    assert shown["country211"] == {
        "ZW": "Zimbabwe",
        "AE": "United Arab Emirates",
        "XK": "Kosovo",
        "CD": "DR Congo",
    }
    assert shown["gtsrb"]["00014"] == "stop"
    assert shown["oxford-flower-102"]["1"] == "pink primrose"
    assert shown["oxford-flower-102"]["102"] == "blackberry lily"
    assert shown["eurosat_clip"] == {
        "AnnualCrop": "annual crop land",
        "SeaLake": "lake or sea",
        "Forest": "forest",
    }
    assert shown["fgvc-aircraft-2013b"] == {"F-16A_B": "F-16A/B", "707-320": "707-320"}
    assert shown["stanford-cars"]["Ram C-V Cargo Van Minivan 2012"].startswith("Ram C/V")


def test_caltech_by_its_directories(shared_data: Path, tmp_path: Path) -> None:
    real = shared_data / "classification" / "caltech101"
    names = sorted(each.name for each in real.iterdir() if each.is_dir())
    folder = make(tmp_path, "caltech-101", *names)
    found = load_benchmark("zero_shot:caltech-101", tmp_path)
    content = content_of(found)
    assert (len(names), len(content.classes), len(set(content.labels))) == (101, 102, 101)
    shown = {r.path.parent.name: content.classes[y] for r, y in zip(content.images, content.labels)}
    assert shown["Faces"] == "off-center face"
    assert shown["Faces_easy"] == "centered face"
    assert shown["crocodile_head"] == "head of a  crocodile"
    assert shown["yin_yang"] == "yin and yang symbol"
    assert found.headline == "mean-per-class"
    (folder / "ant").rename(folder / "Zebra")
    refuses("'Zebra' is not a class of the set", "", "zero_shot:caltech-101", tmp_path)


@pytest.mark.parametrize(
    ("name", "label", "shown"),
    [
        ("caltech-101", 4, "background"),
        ("caltech-101", 37, "centered face"),
        ("cifar-100", 0, "chimpanzee"),
        ("cifar-100", 99, "bicycle"),
        ("eurosat_clip", 9, "lake or sea"),
        ("fer-2013", 4, "neutral"),
        ("fgvc-aircraft-2013b", 34, "An-12"),
        ("fgvc-aircraft-2013b", 72, "F-16A/B"),
        ("food-101", 16, "cheesecake"),
        ("oxford-iiit-pets", 1, "american bulldog"),
        ("stanford-cars", 0, "Acura Integra Type R 2001"),
        ("stanford-cars", 195, "Volvo XC90 SUV 2007"),
        ("gtsrb", 14, "stop"),
        ("dtd", 46, "zigzagged"),
    ],
)
@pytest.mark.parametrize("labels", [False, True], ids=["bare", "labels that fit no name"])
def test_numbers_of_the_toolkit(
    tmp_path: Path, name: str, label: int, shown: str, labels: bool
) -> None:
    folder = make(tmp_path, name)
    folder.mkdir(parents=True)
    (folder / "test.txt").write_text(f"test.zip@1.jpg {label}\n", encoding="utf-8")
    if labels:
        text = "".join(f"x{k}\n" for k in range(SETS[name].classes))
        (folder / "labels.txt").write_text(text, encoding="utf-8")
    content = content_of(load_benchmark(f"zero_shot:{name}", tmp_path))
    assert content.classes[content.labels[0]] == shown


def test_other_prompts_than_the_published_ones_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "cifar-10", "airplane", "ship")
    content = content_of(load_benchmark("zero_shot:cifar-10", tmp_path))
    assert (content.classes[0], content.classes[8]) == ("airplane", "ship")
    assert content.labels == (0, 8)
    assert len(content.prompts[0]) == 18
    assert capsys.readouterr().err == ""
    templates = write_json(tmp_path / "templates.json", ["a {}"])
    load_benchmark("zero_shot:cifar-10", tmp_path, templates=templates)
    assert "other prompt templates (18 other than these 1)" in capsys.readouterr().err
    make(tmp_path, "stanford-cars", "a_car", "b_car")
    assert content_of(load_benchmark("zero_shot:stanford-cars", tmp_path)).classes == (
        "a car",
        "b car",
    )
    assert "other class names (not 'a car')" in capsys.readouterr().err
    same = [f"{each.replace('{}', '{c}')}" for each in published("dtd").templates]
    make(tmp_path, "dtd", "banded")
    written = write_json(tmp_path / "dtd.json", same)
    load_benchmark("zero_shot:dtd", tmp_path, templates=written)
    assert capsys.readouterr().err == ""


def test_names_that_fit_in_part_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "cifar-10", "airplane", "plane")
    refuses("class 'plane' is not a class of the set", "cifar-10", "zero_shot:cifar-10", tmp_path)
    make(tmp_path, "rendered-sst2", "positive", "Positive!", "neutral")
    refuses("3 classes, where the published set has 2", "", "zero_shot:rendered-sst2", tmp_path)
    make(tmp_path, "fer-2013", "happy", "happiness")
    refuses("or occurs twice", "", "zero_shot:fer-2013", tmp_path)


def test_first_alias_counts_and_any_alias_matches(tmp_path: Path) -> None:
    make(tmp_path, "fer-2013", "anger", "Fear", "surprise")
    content = content_of(load_benchmark("zero_shot:fer-2013", tmp_path))
    assert [content.classes[label] for label in content.labels] == ["fearful", "angry", "surprised"]


def test_imagenet_and_its_shifts(tmp_path: Path) -> None:
    make(tmp_path, "imagenet-a", "n01498041", "n12267677")
    content = content_of(load_benchmark("zero_shot:imagenet-a", tmp_path))
    assert (len(content.classes), len(content.prompts[0])) == (200, 80)
    assert [content.classes[label] for label in content.labels] == ["stingray", "acorn"]
    make(tmp_path, "imagenet-v2", *(str(k) for k in range(1000)))
    found = load_benchmark("zero_shot:imagenet-v2", tmp_path)
    content = content_of(found)
    for ref, label in zip(content.images, content.labels):
        assert int(ref.path.parent.name) == label
    assert content.classes[0] == "tench"
    assert {"accuracy", "top5"} <= set(found.aggregates)
    make(tmp_path, "imagenet-1k", "n01440764", "n99999999")
    refuses("'n99999999' is not a class of the set", "", "zero_shot:imagenet-1k", tmp_path)
    assert set(imagenet_prompts("imagenet-r")[0]) < set(imagenet_prompts("imagenet-1k")[0])


def test_special_sets(tmp_path: Path) -> None:
    make(tmp_path, "kitti-distance", "0", "1", "2", "3")
    content = content_of(load_benchmark("zero_shot:kitti-distance", tmp_path))
    assert all(ref.squash for ref in content.images)
    assert content.prompts[1] == ("a photo i took with a car nearby.",)
    folder = make(tmp_path, "voc-2007")
    folder.mkdir(parents=True)
    (folder / "test_images.txt").write_text("a.jpg 0,13\nb.jpg 19\n", encoding="utf-8")
    found = load_benchmark("zero_shot:voc-2007", tmp_path)
    content = content_of(found)
    assert content.tags == ((0, 13), (19,))
    assert (content.classes[13], content.classes[19]) == ("person", "tvmonitor")
    assert found.expected == dict.fromkeys(content.classes, 4952)
    assert found.headline == "map11"
    assert not content.images[0].squash
    folder = make(tmp_path, "hateful-memes")
    folder.mkdir(parents=True)
    (folder / "val.txt").write_text("a.jpg 0\nb.jpg 1\n", encoding="utf-8")
    found = load_benchmark("zero_shot:hateful-memes", tmp_path)
    assert (found.headline, set(found.aggregates)) == ("auc", {"auc", "accuracy"})
    assert content_of(found).prompts == (("a meme.",), ("a hatespeech meme.",))
    make(tmp_path, "three", "a", "b", "c")
    refuses("3 classes; the metric auc needs 2", "", "zero_shot:three", tmp_path, metric="auc")


def test_class_lists_in_text_and_markdown(tmp_path: Path) -> None:
    path = tmp_path / "prompts.md"
    text = (
        "# Prompts\n\n## A B\n\n```bash\nclasses = ['x', ['y', 'z']]\ntemplates = ['a {}.']\n```\n"
    )
    path.write_text(text + "## C\nnothing\n## D\n```\nclasses = 1\n```\n", encoding="utf-8")
    assert read_names(path, "A B") == ("x", "y")
    assert read_templates(path, "A B") == ("a {}.",)
    lines = tmp_path / "names.txt"
    lines.write_text("cat\nred fox\n\n", encoding="utf-8")
    assert read_names(lines, "any") == ("cat", "red fox")
    for section, message in (
        ("A", "no section 'A'; known: A B"),
        ("C", "no list 'classes'"),
        ("D", "no list 'classes'"),
    ):
        with pytest.raises(CompoclipError, match=message) as caught:
            read_names(path, section)
        expect_one_line(caught.value, "prompts.md")
    for bad in ("classes = [__import__('os').getcwd()]", "classes = [", "classes = 'x' * 9"):
        path.write_text(f"## E\n```\n{bad}\n```\n", encoding="utf-8")
        with pytest.raises(CompoclipError, match="is not a Python list"):
            read_names(path, "E")


def test_names_and_index_for_sets_that_are_not_folders(tmp_path: Path) -> None:
    folder = tmp_path / "elevater" / "shapes"
    folder.mkdir(parents=True)
    (folder / "test.txt").write_text("a.jpg 0\nb.jpg 2\n", encoding="utf-8")
    names = write_json(tmp_path / "names.json", ["x", "y", "z"])
    content = content_of(load_benchmark("zero_shot:shapes", tmp_path, classes=names))
    assert (content.classes, content.labels) == (("x", "y", "z"), (0, 2))
    short = write_json(tmp_path / "short.json", ["x", "y"])
    refuses("2 class names for 3 classes", "", "zero_shot:shapes", tmp_path, classes=short)
    (folder / "labels.txt").write_text("one\ntwo\n\nthree", encoding="utf-8")
    refuses(r"labels\.txt: class 2 is empty", "", "zero_shot:shapes", tmp_path)
    (folder / "labels.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    index: dict[str, Any] = {"one": "first", "two": "second", "three": "third"}
    path = write_json(tmp_path / "index.json", index)
    content = content_of(load_benchmark("zero_shot:shapes", tmp_path, index=path))
    assert content.classes == ("first", "second", "third")


def test_suites_name_known_sets_and_no_benchmark() -> None:
    from compoclip.benchmarks.names import benchmark_names
    from compoclip.benchmarks.registry import meta

    assert not set(SUITES) & set(benchmark_names())
    assert [len(SUITES[name]) for name in ("comp", "elevater", "elevater_20")] == [11, 21, 20]
    for specs in SUITES.values():
        for spec in specs:
            name, _, part = spec.partition(":")
            assert (part in meta(name).parts) if part else not meta(name).family
    with pytest.raises(UsageError, match="no metric 'ap'"):
        load_benchmark("zero_shot:mnist", Path("x"), metric="ap")


OF_YOURS = [
    (("n01855672", "n02084071"), ("goose", "dog"), "'n02084071' is called 'dog'"),
    (
        ("001.Black_footed_Albatross", "002.Snow_goose"),
        ("black footed albatross", "snow goose"),
        "'001.Black_footed_Albatross' is called 'black footed albatross'",
    ),
    (("n02085620-Chihuahua", "n2_x"), ("n02085620-Chihuahua", "n2 x"), "is called 'n2 x'"),
    (
        ("n02085620-Chihuahua", "n02086079-Pekinese"),
        ("chihuahua", "pekinese"),
        "'n02086079-Pekinese' is called 'pekinese'",
    ),
    (("AnnualCrop", "SeaLake"), ("annual crop", "sea lake"), "'SeaLake' is called 'sea lake'"),
    (("class1", "class2"), ("class1", "class2"), "'class1' is called 'class1'"),
    (("golden_retriever", "t-shirt", "train"), ("golden retriever", "t-shirt", "train"), ""),
    (("707-320", "747"), ("707-320", "747"), ""),
    (("0", "1"), None, "classes are called by numbers (0, 1, ...), which no prompt can use"),
    (("n01855672", "n99999999"), None, "class 'n99999999' is no WordNet id of ImageNet"),
]


@pytest.mark.parametrize(("names", "words", "said"), OF_YOURS)
def test_names_of_classes_of_your_own(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    names: tuple[str, ...],
    words: tuple[str, ...] | None,
    said: str,
) -> None:
    folder = write_photos(tmp_path / "photos", *(f"{name}/1.jpg" for name in names))
    if words is None:
        refuses(said.replace("(", ".").replace(")", "."), "", "zero_shot:mine", tmp_path, folder)
        return
    found = load_benchmark("zero_shot:mine", tmp_path, folder)
    assert sorted(content_of(found).classes) == sorted(words)
    error = capsys.readouterr().err
    assert said in error
    assert bool(said) == bool(error)
    assert found.assumed == ((error.strip().partition("zero_shot:mine: ")[2],) if said else ())


def test_folders_of_numbers_with_a_file_of_names(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", *(f"{k}/1.jpg" for k in range(11)))
    names = [f"kind {chr(97 + k)}" for k in range(11)]
    (folder / "classnames.txt").write_text("\n".join(names))
    for options in ({}, {"classes": folder / "classnames.txt"}):
        content = content_of(load_benchmark("zero_shot:mine", tmp_path, folder, **options))
        shown = {
            int(ref.path.parent.name): content.classes[label]
            for ref, label in zip(content.images, content.labels)
        }
        assert shown == dict(enumerate(names))


def test_photos_are_those_that_training_reads(tmp_path: Path) -> None:
    places = [
        f"{name}/{k}.{end}"
        for name in ("cat", "dog")
        for k, end in enumerate(("jpg", "jfif", "jpe", "jp2", "png"))
    ]
    folder = write_photos(tmp_path / "photos", *places)
    for place in places:
        (folder / place).with_suffix(".txt").write_text("a photo")
    others = "@eaDir/cat/0.jpg", "__MACOSX/cat/0.jpg", "cat/.hidden.jpg", "#recycle/1.jpg"
    write_photos(folder, *others)
    (folder / "bird").mkdir()  # a class without photos competes
    rows = ({"image": place, "label": place.partition("/")[0]} for place in places)
    write_csv(folder / "photos.csv", *rows)
    training = open_source(str(folder), split="all")
    found = load_benchmark("zero_shot:mine", tmp_path, folder)
    (target,) = parse_targets([f"zero_shot:{folder / 'photos.csv'}"], tmp_path)
    (retrieval,) = parse_targets([f"retrieval:{folder},split=all"], tmp_path)
    for one in (found, target.load(), retrieval.load()):
        assert {ref.path for ref in one.content.images} == {folder / place for place in places}
    assert len(training) == len(places)
    assert content_of(found).classes == ("bird", "cat", "dog")
    assert sum(found.left_out.values()) == sum(training.left_out.values()) == 4
    few = load_benchmark("zero_shot:mine", tmp_path, folder, exclude=("*.jp2", "dog"))
    assert len(few.content.images) == 4


@pytest.mark.parametrize(
    ("splits", "measured"),
    [
        (("train", "test"), "test"),
        (("train", "val2014"), "val2014"),
        (("train", "dev"), "dev"),
        (("training", "testing"), "testing"),
        (("eval", "train"), "eval"),
    ],
)
def test_the_split_that_is_measured(tmp_path: Path, splits: tuple[str, ...], measured: str) -> None:
    places = (f"{split}/{name}/1.jpg" for split in splits for name in ("cat", "dog"))
    folder = write_photos(tmp_path / "p", *places)
    content = content_of(load_benchmark("zero_shot:mine", tmp_path, folder))
    assert content.classes == ("cat", "dog")
    assert {ref.path.parent.parent.name for ref in content.images} == {measured}
    content = content_of(load_benchmark("zero_shot:mine", tmp_path, folder, split="train"))
    assert {ref.path.parent.parent.name for ref in content.images} == {
        splits[splits[0] == measured]
    }
