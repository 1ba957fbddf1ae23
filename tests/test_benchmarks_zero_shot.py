"""The sets of the literature: facts, published names and templates, classes matched to labels."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import expect_one_line, write_json
from compoclip.benchmarks import class_names
from compoclip.benchmarks.case import Benchmark, Classification
from compoclip.benchmarks.class_names import Published, published
from compoclip.benchmarks.imagenet_names import imagenet_prompts
from compoclip.benchmarks.prompts import read_aliases, read_names, read_templates
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.suites import SUITES
from compoclip.benchmarks.zero_shot_sets import ELEVATER, IMAGENET, SETS, SHIFTS
from compoclip.errors import CompoclipError, UsageError

PUBLISHED = "classification/class_names_templates"
WHOLE = (  # names and templates of the published scores without any further file
    "food-101",
    "hateful-memes",
    "kitti-distance",
    "mnist",
    "oxford-iiit-pets",
    "patch-camelyon",
    "rendered-sst2",
    "voc-2007",
    *IMAGENET,
    *SHIFTS,
)
NAMED = ("cifar-10", "cifar-100", "dtd", "eurosat_clip", "fer-2013", "resisc45_clip")


def make(root: Path, name: str, *directories: str, prompts: str = "") -> Path:
    """A set with one photo in each class directory."""
    folder = root / "elevater" / name
    for directory in directories:
        (folder / directory).mkdir(parents=True)
        (folder / directory / "a.png").write_bytes(b"")
    if prompts:
        (root / "elevater" / "prompts.md").write_text(prompts, encoding="utf-8")
    return folder


def content_of(found: Benchmark) -> Classification:
    assert isinstance(found.content, Classification)
    return found.content


def test_the_shipped_file_is_as_it_was_checked() -> None:
    data = resources("compoclip.benchmarks").joinpath(class_names.SHIPPED).read_bytes()
    known = "4c942c38499458ff1cc1d23dc0605419d1e171b7c85eae9bbb2122b6ef2818ea"
    assert hashlib.sha256(data).hexdigest() == known
    value = json.loads(data)
    assert "MIT" in value["licence"]
    assert set(value["sets"]) <= set(ELEVATER)


def test_what_is_whole_out_of_the_box(tmp_path: Path) -> None:
    for name, about in SETS.items():
        known = published(name, tmp_path)
        names = [each[0] for each in known.classes]
        assert len(names) in (0, about.classes)
        assert len(set(names)) == len(names) or name.startswith("imagenet")
        assert len(known.templates) in (0, about.templates)
        assert bool(known.classes) is (name in (*WHOLE, *NAMED)), name
        assert bool(known.templates) is (name in WHOLE), name
    assert published("shapes", tmp_path) == Published()


def test_shipped_names_are_the_published_ones(shared_data: Path) -> None:
    folder = shared_data / PUBLISHED
    path = folder / "openai_clip_prompts.md"
    for name, about in ELEVATER.items():
        names, templates = read_names(path, about.section), read_templates(path, about.section)
        assert (len(names), len(templates)) == (about.classes, about.templates)
        known = published(name, Path("nowhere"))
        if known.classes:
            assert tuple(each[0] for each in known.classes) == names
        if known.templates:
            assert known.templates == templates
    _, names, templates = imagenet_prompts("imagenet-1k")
    assert names == read_names(folder / "clip_benchmark_en_classnames.json", "imagenet1k")
    file = folder / "clip_benchmark_en_zeroshot_classification_templates.json"
    filled = tuple(each.replace("{c}", "{}") for each in read_templates(file, "imagenet1k"))
    assert templates == filled


def test_prompts_of_the_clip_repository_complete_every_set(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (shared_data / PUBLISHED / "openai_clip_prompts.md").read_text(encoding="utf-8")
    codes = [f"{a}{b}" for a in "ABCDEFGHI" for b in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"][:211]
    make(tmp_path, "country211", *codes, prompts=text)
    make(tmp_path, "gtsrb", *(f"{k:05d}" for k in range(43)))
    make(tmp_path, "oxford-flower-102", *(str(k) for k in range(1, 103)))
    make(tmp_path, "eurosat_clip", "AnnualCrop", "SeaLake", "Forest")
    found = {
        name: load_benchmark(f"zero_shot:{name}", tmp_path)
        for name in ("country211", "gtsrb", "oxford-flower-102", "eurosat_clip")
    }
    assert capsys.readouterr().err == ""
    for name, each in found.items():
        content, about = content_of(each), SETS[name]
        assert len(content.classes) == about.classes
        assert {len(prompts) for prompts in content.prompts} == {about.templates}
        assert each.headline == about.metric
        assert each.expected == {"zero_shot": about.photos}
    assert content_of(found["country211"]).classes[:2] == ("Andorra", "United Arab Emirates")
    flowers = content_of(found["oxford-flower-102"])
    of_first = next(
        y for ref, y in zip(flowers.images, flowers.labels) if ref.path.parent.name == "1"
    )
    assert flowers.classes[of_first] == "pink primrose"
    assert flowers.prompts[0] == ("a photo of a pink primrose, a type of flower.",)
    eurosat = content_of(found["eurosat_clip"])
    shown = {
        ref.path.parent.name: eurosat.classes[y] for ref, y in zip(eurosat.images, eurosat.labels)
    }
    assert shown == {
        "AnnualCrop": "annual crop land",
        "SeaLake": "lake or sea",
        "Forest": "forest",
    }


def test_caltech_by_the_order_of_its_directories(shared_data: Path, tmp_path: Path) -> None:
    real = shared_data / "classification" / "caltech101"
    names = sorted(each.name for each in real.iterdir() if each.is_dir())
    text = (shared_data / PUBLISHED / "openai_clip_prompts.md").read_text(encoding="utf-8")
    folder = make(tmp_path, "caltech-101", *names, prompts=text)
    with pytest.raises(CompoclipError, match="make directories that lack"):
        load_benchmark("zero_shot:caltech-101", tmp_path)
    make(tmp_path, "caltech-101", "BACKGROUND_Google")
    found = load_benchmark("zero_shot:caltech-101", tmp_path)
    content = content_of(found)
    shown = {r.path.parent.name: content.classes[y] for r, y in zip(content.images, content.labels)}
    assert shown["BACKGROUND_Google"] == "background"
    assert shown["Faces"] == "off-center face"
    assert shown["crocodile_head"] == "head of a  crocodile"
    assert shown["yin_yang"] == "yin and yang symbol"
    assert found.headline == "mean-per-class"
    (folder / "ant").rename(folder / "Zebra")  # one more before, one less behind
    with pytest.raises(CompoclipError, match="is not one of the set's"):
        load_benchmark("zero_shot:caltech-101", tmp_path)


def test_other_prompts_than_the_published_ones_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "cifar-10", "airplane", "ship")
    content = content_of(load_benchmark("zero_shot:cifar-10", tmp_path))
    assert (content.classes[0], content.classes[8]) == ("airplane", "ship")
    assert content.labels == (0, 8)
    said = capsys.readouterr().err
    assert "18 prompt templates, not 1" in said
    assert "prompts.md" in said
    make(tmp_path, "stanford-cars", "a_car", "b_car")
    assert content_of(load_benchmark("zero_shot:stanford-cars", tmp_path)).classes == (
        "a car",
        "b car",
    )
    assert "class names" in capsys.readouterr().err


def test_names_that_fit_in_part_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "cifar-10", "airplane", "plane")
    with pytest.raises(CompoclipError, match="class 'plane' is not one of the set's") as caught:
        load_benchmark("zero_shot:cifar-10", tmp_path)
    expect_one_line(caught.value, "cifar-10")
    make(tmp_path, "rendered-sst2", "positive", "Positive!", "neutral")
    with pytest.raises(CompoclipError, match="3 classes, where the published set has 2"):
        load_benchmark("zero_shot:rendered-sst2", tmp_path)
    make(tmp_path, "fer-2013", "happy", "happiness")
    with pytest.raises(CompoclipError, match="or is there twice"):
        load_benchmark("zero_shot:fer-2013", tmp_path)


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
    with pytest.raises(CompoclipError, match="'n99999999' is not one of the set's"):
        load_benchmark("zero_shot:imagenet-1k", tmp_path)
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
    with pytest.raises(CompoclipError, match="3 classes; the metric auc needs 2"):
        load_benchmark("zero_shot:three", tmp_path, metric="auc")


def test_class_lists_in_text_and_markdown(tmp_path: Path) -> None:
    path = tmp_path / "prompts.md"
    text = (
        "# Prompts\n\n## A B\n\n```bash\nclasses = ['x', ['y', 'z']]\ntemplates = ['a {}.']\n```\n"
    )
    path.write_text(text + "## C\nnothing\n## D\n```\nclasses = 1\n```\n", encoding="utf-8")
    assert read_aliases(path, "A B") == (("x",), ("y", "z"))
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
        with pytest.raises(CompoclipError, match="are no Python list"):
            read_names(path, "E")


def test_names_and_index_for_sets_that_are_not_folders(tmp_path: Path) -> None:
    folder = tmp_path / "elevater" / "shapes"
    folder.mkdir(parents=True)
    (folder / "test.txt").write_text("a.jpg 0\nb.jpg 2\n", encoding="utf-8")
    names = write_json(tmp_path / "names.json", ["x", "y", "z"])
    content = content_of(load_benchmark("zero_shot:shapes", tmp_path, classes=names))
    assert (content.classes, content.labels) == (("x", "y", "z"), (0, 2))
    short = write_json(tmp_path / "short.json", ["x", "y"])
    with pytest.raises(CompoclipError, match="2 class names for 3 classes"):
        load_benchmark("zero_shot:shapes", tmp_path, classes=short)
    (folder / "labels.txt").write_text("one\ntwo\n\nthree", encoding="utf-8")
    with pytest.raises(CompoclipError, match=r"labels\.txt: class 2 is empty"):
        load_benchmark("zero_shot:shapes", tmp_path)
    (folder / "labels.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    index: dict[str, Any] = {"one": "first", "two": "second", "three": "third"}
    path = write_json(tmp_path / "index.json", index)
    content = content_of(load_benchmark("zero_shot:shapes", tmp_path, index=path))
    assert content.classes == ("first", "second", "third")


def test_suites_name_known_sets_and_no_benchmark() -> None:
    from compoclip.benchmarks.registry import benchmark_names, meta

    assert not set(SUITES) & set(benchmark_names())
    assert [len(SUITES[name]) for name in ("comp", "elevater", "elevater_20")] == [11, 21, 20]
    for specs in SUITES.values():
        for spec in specs:
            name, _, part = spec.partition(":")
            assert (part in meta(name).parts) if part else not meta(name).family
    with pytest.raises(UsageError, match="no metric 'ap'"):
        load_benchmark("zero_shot:mnist", Path("x"), metric="ap")
