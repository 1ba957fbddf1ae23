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
from build.tables import write_csv, write_json, write_text
from compoclip.benchmarks import zero_shot
from compoclip.benchmarks.case import Benchmark, Classification
from compoclip.benchmarks.names import SUITES, benchmark_names
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
CHECKSUMS = {
    "compoclip.data/zero_shot.json": (
        "6a5f0b3e2221b7338750e2a7e27d518f2e87cce47572b7e84d64bcba48ad1974"
    ),
    f"compoclip.benchmarks/{zero_shot.TOOLKIT}": (
        "1f8b00c835748b300d1cb991c3d8d017ce4bc0a51d1fcc9dcf86bf548b113daf"
    ),
}


def make(root: Path, name: str, *directories: str) -> Path:
    """A set with one photo in each class directory."""
    folder = root / "elevater" / name
    folder.mkdir(parents=True)
    for directory in directories:
        write_text(folder / directory / "a.png", "")
    return folder


def content_of(found: Benchmark) -> Classification:
    assert isinstance(found.content, Classification)
    return found.content


def load(root: Path, name: str, **options: Any) -> Classification:
    return content_of(load_benchmark(f"zero_shot:{name}", root, **options))


def named(content: Classification) -> dict[str, str]:
    """The directory of every photo, and the name of its class."""
    return {
        ref.path.parent.name: content.classes[label]
        for ref, label in zip(content.images, content.labels)
    }


@pytest.mark.parametrize("place", CHECKSUMS)
def test_the_shipped_files_are_as_they_were_checked(place: str) -> None:
    package, _, name = place.partition("/")
    data = resources(package).joinpath(name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == CHECKSUMS[place]
    value = json.loads(data)
    assert "MIT" in value["licence"]
    assert value["sources"]
    assert set(value["sets"]) <= set(ELEVATER)


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_whole_out_of_the_box(name: str) -> None:
    known = published(name)
    names = [aliases[0] for aliases in known.classes]
    assert len(names) == SETS[name].classes
    assert len(set(names)) == len(names) or name.startswith("imagenet")
    assert all(template.count("{}") == 1 for template in known.templates)
    assert len(known.templates) == 80 or not name.startswith("imagenet")
    assert sorted(known.toolkit) in ([], list(range(len(names))))


def test_nothing_is_known_of_other_sets() -> None:
    assert published("shapes") == PublishedPrompts()


def test_sets_that_are_not_measured_by_accuracy() -> None:
    metrics = {name: one.metric for name, one in SETS.items() if one.metric != "accuracy"}
    assert metrics == {
        "caltech-101": "mean-per-class",
        "fgvc-aircraft-2013b": "mean-per-class",
        "oxford-flower-102": "mean-per-class",
        "oxford-iiit-pets": "mean-per-class",
        "hateful-memes": "auc",
        "voc-2007": "map11",
    }


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


BY_DIRECTORY: dict[str, tuple[list[str], dict[str, str]]] = {
    "country211": (
        [],
        {"ZW": "Zimbabwe", "AE": "United Arab Emirates", "XK": "Kosovo", "CD": "DR Congo"},
    ),
    "gtsrb": ([f"{k:05d}" for k in range(43)], {"00014": "stop"}),
    "oxford-flower-102": (
        [str(k) for k in range(1, 103)],
        {"1": "pink primrose", "102": "blackberry lily"},
    ),
    "eurosat_clip": (
        [],
        {"AnnualCrop": "annual crop land", "SeaLake": "lake or sea", "Forest": "forest"},
    ),
    "fgvc-aircraft-2013b": ([], {"F-16A_B": "F-16A/B", "707-320": "707-320"}),
    "stanford-cars": (
        ["smart fortwo Convertible 2012"],
        {"Ram C-V Cargo Van Minivan 2012": "Ram C/V Cargo Van Minivan 2012"},
    ),
    "fer-2013": ([], {"anger": "angry", "Fear": "fearful", "surprise": "surprised"}),
}
"""Set -> further directories of classes, and directories with the names of their classes."""


@pytest.mark.parametrize("name", BY_DIRECTORY)
def test_classes_by_codes_numbers_and_directories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    others, names = BY_DIRECTORY[name]
    make(tmp_path, name, *others, *names)
    found = load_benchmark(f"zero_shot:{name}", tmp_path)
    content = content_of(found)
    assert len(content.classes) == SETS[name].classes
    assert {len(prompts) for prompts in content.prompts} == {len(published(name).templates)}
    assert found.headline == SETS[name].metric
    assert found.expected == {"zero_shot": meta("zero_shot").expected[name]}
    assert capsys.readouterr().err == ""
    assert named(content).items() >= names.items()


def test_caltech_by_its_directories(shared_data: Path, tmp_path: Path) -> None:
    real = shared_data / "classification" / "caltech101"
    names = sorted(path.name for path in real.iterdir() if path.is_dir())
    folder = make(tmp_path, "caltech-101", *names)
    content = load(tmp_path, "caltech-101")
    assert (len(names), len(content.classes), len(set(content.labels))) == (101, 102, 101)
    assert (
        named(content).items()
        >= {
            "Faces": "off-center face",
            "Faces_easy": "centered face",
            "crocodile_head": "head of a  crocodile",
            "yin_yang": "yin and yang symbol",
        }.items()
    )
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
    write_text(folder / "test.txt", f"test.zip@1.jpg {label}\n")
    if labels:
        text = "".join(f"x{k}\n" for k in range(SETS[name].classes))
        write_text(folder / "labels.txt", text)
    content = load(tmp_path, name)
    assert content.classes[content.labels[0]] == shown


def test_other_prompts_than_the_published_ones_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "cifar-10", "airplane", "ship")
    content = load(tmp_path, "cifar-10")
    assert (content.classes[0], content.classes[8]) == ("airplane", "ship")
    assert content.labels == (0, 8)
    assert len(content.prompts[0]) == 18
    make(tmp_path, "dtd", "banded")
    same = [template.replace("{}", "{c}") for template in published("dtd").templates]
    load(tmp_path, "dtd", templates=write_json(tmp_path / "dtd.json", same))
    assert capsys.readouterr().err == ""
    load(tmp_path, "cifar-10", templates=write_json(tmp_path / "templates.json", ["a {}"]))
    assert "other prompt templates (18 other than these 1)" in capsys.readouterr().err
    make(tmp_path, "stanford-cars", "a_car", "b_car")
    assert load(tmp_path, "stanford-cars").classes == ("a car", "b car")
    assert "other class names (not 'a car')" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "directories", "words"),
    [
        ("cifar-10", ["airplane", "plane"], "class 'plane' is not a class of the set"),
        (
            "rendered-sst2",
            ["positive", "Positive!", "neutral"],
            "3 classes, where the published set has 2",
        ),
        ("fer-2013", ["happy", "happiness"], "or occurs twice"),
        ("imagenet-1k", ["n01440764", "n99999999"], "'n99999999' is not a class of the set"),
    ],
)
def test_names_that_fit_in_part_are_refused(
    tmp_path: Path, name: str, directories: list[str], words: str
) -> None:
    make(tmp_path, name, *directories)
    refuses(words, name, f"zero_shot:{name}", tmp_path)


def test_imagenet_and_its_shifts(tmp_path: Path) -> None:
    make(tmp_path, "imagenet-a", "n01498041", "n12267677")
    content = load(tmp_path, "imagenet-a")
    assert (len(content.classes), len(content.prompts[0])) == (200, 80)
    assert named(content) == {"n01498041": "stingray", "n12267677": "acorn"}
    make(tmp_path, "imagenet-v2", *(str(k) for k in range(1000)))
    found = load_benchmark("zero_shot:imagenet-v2", tmp_path)
    content = content_of(found)
    assert [int(ref.path.parent.name) for ref in content.images] == list(content.labels)
    assert content.classes[0] == "tench"
    assert {"accuracy", "top5"} <= set(found.aggregates)
    assert set(imagenet_prompts("imagenet-r")[0]) < set(imagenet_prompts("imagenet-1k")[0])


def test_photos_of_kitti_are_squashed(tmp_path: Path) -> None:
    make(tmp_path, "kitti-distance", "0", "1", "2", "3")
    content = load(tmp_path, "kitti-distance")
    assert all(ref.squash for ref in content.images)
    assert content.prompts[1] == ("a photo i took with a car nearby.",)


def test_photos_of_voc_have_several_classes(tmp_path: Path) -> None:
    write_text(make(tmp_path, "voc-2007") / "test_images.txt", "a.jpg 0,13\nb.jpg 19\n")
    found = load_benchmark("zero_shot:voc-2007", tmp_path)
    content = content_of(found)
    assert content.tags == ((0, 13), (19,))
    assert (content.classes[13], content.classes[19]) == ("person", "tvmonitor")
    assert found.expected == dict.fromkeys(content.classes, 4952)
    assert found.headline == "map11"
    assert not content.images[0].squash


def test_two_classes_have_an_area(tmp_path: Path) -> None:
    write_text(make(tmp_path, "hateful-memes") / "val.txt", "a.jpg 0\nb.jpg 1\n")
    found = load_benchmark("zero_shot:hateful-memes", tmp_path)
    assert (found.headline, set(found.aggregates)) == ("auc", {"auc", "accuracy"})
    assert content_of(found).prompts == (("a meme.",), ("a hatespeech meme.",))
    make(tmp_path, "three", "a", "b", "c")
    refuses("3 classes; the metric auc needs 2", "", "zero_shot:three", tmp_path, metric="auc")


def test_class_lists_in_text_and_markdown(tmp_path: Path) -> None:
    lists = "classes = ['x', ['y', 'z']]\ntemplates = ['a {}.']"
    text = f"# Prompts\n\n## A B\n\n```bash\n{lists}\n```\n"
    path = write_text(
        tmp_path / "prompts.md", f"{text}## C\nnothing\n## D\n```\nclasses = 1\n```\n"
    )
    assert read_names(path, "A B") == ("x", "y")
    assert read_templates(path, "A B") == ("a {}.",)
    lines = write_text(tmp_path / "names.txt", "cat\nred fox\n\n")
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
        write_text(path, f"## E\n```\n{bad}\n```\n")
        with pytest.raises(CompoclipError, match="is not a Python list"):
            read_names(path, "E")


def test_names_and_index_for_sets_that_are_not_folders(tmp_path: Path) -> None:
    folder = make(tmp_path, "shapes")
    write_text(folder / "test.txt", "a.jpg 0\nb.jpg 2\n")
    names = write_json(tmp_path / "names.json", ["x", "y", "z"])
    content = load(tmp_path, "shapes", classes=names)
    assert (content.classes, content.labels) == (("x", "y", "z"), (0, 2))
    short = write_json(tmp_path / "short.json", ["x", "y"])
    refuses("2 class names for 3 classes", "", "zero_shot:shapes", tmp_path, classes=short)
    write_text(folder / "labels.txt", "one\ntwo\n\nthree")
    refuses(r"labels\.txt: class 2 is empty", "", "zero_shot:shapes", tmp_path)
    write_text(folder / "labels.txt", "one\ntwo\nthree\n")
    index = {"one": "first", "two": "second", "three": "third"}
    path = write_json(tmp_path / "index.json", index)
    assert load(tmp_path, "shapes", index=path).classes == ("first", "second", "third")


def test_suites_name_known_sets_and_no_benchmark() -> None:
    assert not set(SUITES) & set(benchmark_names())
    assert [len(SUITES[name]) for name in ("comp", "elevater", "elevater_20")] == [11, 21, 20]
    for specs in SUITES.values():
        for spec in specs:
            name, _, part = spec.partition(":")
            assert (part in meta(name).parts) if part else not meta(name).family


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
    path = write_text(folder / "classnames.txt", "\n".join(names))
    for options in ({}, {"classes": path}):
        content = content_of(load_benchmark("zero_shot:mine", tmp_path, folder, **options))
        assert named(content) == {str(k): name for k, name in enumerate(names)}


def test_photos_are_those_that_training_reads(tmp_path: Path) -> None:
    endings = enumerate(("jpg", "jfif", "jpe", "jp2", "png"))
    places = [f"{name}/{k}.{end}" for k, end in endings for name in ("cat", "dog")]
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


def test_patterns_of_exclude_may_hold_blanks(tmp_path: Path) -> None:
    places = "cat/1.png", "cat/my drafts/2.png", "dog/3.png", "dog/old/4.png"
    write_photos(tmp_path / "set", *places)
    expected = {
        "exclude='my drafts'": ["1", "3", "4"],
        'exclude="my drafts" old': ["1", "3"],
        "exclude=my drafts": ["1", "2", "3", "4"],  # two patterns: a line says of each
        "exclude=old *.gif": ["1", "2", "3"],
    }
    for option, names in expected.items():
        (target,) = parse_targets([f"zero_shot:{tmp_path / 'set'},{option}"], tmp_path)
        assert sorted(ref.path.stem for ref in target.load().content.images) == names, option
    with pytest.raises(UsageError) as caught:
        parse_targets([f"zero_shot:{tmp_path / 'set'},exclude=john's"], tmp_path)
    expect_one_line(caught.value, "exclude has a quote that is not closed: john's")


@pytest.mark.parametrize(
    ("other", "measured"),
    [
        ("train", "test"),
        ("train", "val2014"),
        ("train", "dev"),
        ("training", "testing"),
        ("train", "eval"),
    ],
)
def test_the_split_that_is_measured(tmp_path: Path, other: str, measured: str) -> None:
    places = (f"{split}/{name}/1.jpg" for split in (other, measured) for name in ("cat", "dog"))
    folder = write_photos(tmp_path / "p", *places)
    for options, split in (({}, measured), ({"split": "train"}, other)):
        content = content_of(load_benchmark("zero_shot:mine", tmp_path, folder, **options))
        assert content.classes == ("cat", "dog")
        assert {ref.path.parent.parent.name for ref in content.images} == {split}
