"""Captions made of class labels: the four forms of labels, names of classes, and wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build.photos import write_noise
from build.tables import write_csv, write_json, write_jsonl, write_parquet, write_tar
from compoclip.benchmarks.case import Classification, Retrieval
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.targets import parse_targets
from compoclip.data.images import shown_key
from compoclip.data.prompts import fill, published, templates_of
from compoclip.data.sources import LABEL
from compoclip.data.sources.open import OpenedPart, Request, open_source, write_selection
from compoclip.errors import CompoclipError, UsageError
from compoclip.training.checks import true_pair_share

TEMPLATE = "a photo of a {}."
FORMS = ("table", "shards", "ClassLabel", "class folders")
LABELS = ("golden_retriever", "tabby", "", "golden_retriever", "tabby", "golden_retriever")


def write_class_labels(path: Path, images: list[Any], labels: list[Any], names: list[str]) -> str:
    """Write Parquet whose metadata name the numbers of labels, as the library `datasets` does."""
    label: dict[str, Any] = {"names": names, "_type": "ClassLabel"}
    if isinstance(labels[0], list):
        label = {"feature": label, "_type": "Sequence"}
    metadata = {b"huggingface": json.dumps({"info": {"features": {"label": label}}}).encode()}
    table = pa.table({"image": images, "label": labels}).replace_schema_metadata(metadata)
    pq.write_table(table, path)
    return str(path)


def written(form: str, folder: Path, labels: tuple[str, ...] = LABELS) -> str:
    """Photos with these labels, of which "" is none, in a form of labels."""
    photos = [write_noise(folder / "photos" / f"{k}.png", k) for k in range(len(labels))]
    names = sorted({*labels} - {""})
    numbers = [names.index(label) if label else -1 for label in labels]
    if form == "table":
        rows = [{"image": file.name, "label": label} for file, label in zip(photos, labels)]
        return str(write_csv(folder / "photos" / "labels.csv", *rows))
    if form == "shards":
        (folder / "classnames.txt").write_text("\n".join(names))
        members = [(f"{k}.png", file.read_bytes()) for k, file in enumerate(photos)]
        classes = [(f"{k}.cls", str(n).encode()) for k, n in enumerate(numbers) if n >= 0]
        return str(write_tar(folder / "data.tar", sorted([*members, *classes])))
    if form == "ClassLabel":
        images = [file.read_bytes() for file in photos]
        return write_class_labels(folder / "data.parquet", images, numbers, names)
    for k, label in enumerate(labels):
        write_noise(folder / "classes" / label / f"{k}.png", k)
    return str(folder / "classes")


def captions(spec: str, templates: str | None, **options: Any) -> list[tuple[str, ...]]:
    return [*open_source(spec, templates=templates, **options).column("captions")]


def classes_of(spec: str, **options: Any) -> tuple[str, ...]:
    content = load_benchmark("zero_shot:mine", Path(), Path(spec), **options).content
    assert isinstance(content, Classification)
    return content.classes


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_labels_gives_the_same_captions(form: str, tmp_path: Path) -> None:
    spec = written(form, tmp_path)
    message = "labels, not captions; make captions of them with --templ"
    with pytest.raises(UsageError, match=message):
        open_source(spec)
    source = open_source(spec, templates=TEMPLATE)
    dogs, cats = ("a photo of a golden retriever.",), ("a photo of a tabby.",)
    assert sorted(source.column("captions")) == sorted([dogs, cats, dogs, cats, dogs])
    assert source.left_out == {"sample without a caption": 1}
    assert {*source.column("label")} == {"golden retriever", "tabby"}
    assert len(open_source(spec, needs="photos")) == len(LABELS)
    classes = open_source(spec, needs="labels").classes
    assert classes == (() if form == "table" else ("golden_retriever", "tabby"))
    parts = [
        open_source(spec, templates=TEMPLATE, split=split, held_out=0.3)
        for split in ("train", "val", "test")
    ]
    assert sum(map(len, parts)) == 5
    assert all(sample.label in sample.captions[0] for part in parts for sample in part)


def test_templates_are_one_text_a_file_or_the_published_ones(tmp_path: Path) -> None:
    spec = written("table", tmp_path, ("cat", "dog"))
    file = tmp_path / "templates.txt"
    file.write_text("a {}\n\nthe {c} at night\n")
    assert captions(spec, str(file)) == [
        ("a cat", "the cat at night"),
        ("a dog", "the dog at night"),
    ]
    cat = fill(published("cifar-10").templates, "cat")
    assert captions(spec, "cifar-10")[0] == cat
    assert templates_of("imagenet-1k") == published("imagenet-1k").templates
    numbers = written("table", tmp_path / "numbers", ("3", "5"))
    assert captions(numbers, "cifar-10")[0] == cat


def test_numbers_have_the_names_that_lie_beside_them(tmp_path: Path) -> None:
    spec = written("table", tmp_path, ("1", "0", "1"))
    with pytest.raises(CompoclipError, match=r"by numbers \(0, 1, ...\).*put their names .*classn"):
        open_source(spec, templates=TEMPLATE)
    (tmp_path / "photos/classnames.txt").write_text("cat\ndog\n")
    assert captions(spec, "{}") == [("dog",), ("cat",), ("dog",)]
    (tmp_path / "photos/classnames.txt").write_text("cat\n")
    with pytest.raises(CompoclipError, match="label 1 has no name among 1; put their names in"):
        open_source(spec, templates=TEMPLATE)


def listed(form: str, folder: Path, name: str, text: str) -> str:
    """Photos of the classes 0, 1 and 2 in a form, beside a file that names the numbers."""
    spec = written(form, folder, ("0", "1", "2"))
    (folder / "classnames.txt").unlink(missing_ok=True)  # of shards
    place = Path(spec) if form == "class folders" else Path(spec).parent
    (place / name).write_text(text)
    return spec


@pytest.mark.parametrize("form", ["table", "shards", "class folders"])
@pytest.mark.parametrize("name", ["classnames.txt", "labels.txt", "labelmap.txt"])
def test_training_and_zero_shot_read_one_list_of_names(
    form: str, name: str, tmp_path: Path
) -> None:
    spec = listed(form, tmp_path / "whole", name, "cat\ncow\ndog\n\n")
    assert sorted(captions(spec, "{}")) == [("cat",), ("cow",), ("dog",)]
    (target,) = parse_targets([f"zero_shot:{spec}"], tmp_path)
    content = target.load().content
    assert (content.classes, sorted(content.labels)) == (("cat", "cow", "dog"), [0, 1, 2])
    for text, number in (("cat\n\ndog", 1), ("cat\ncow", 2)):
        short = listed(form, tmp_path / str(number), name, text)
        with pytest.raises(CompoclipError, match=rf"label {number} has no name .*{name}"):
            captions(short, "{}")
        (target,) = parse_targets([f"zero_shot:{short}"], tmp_path)
        with pytest.raises(CompoclipError, match=r"has no name|is empty|class names for 3"):
            target.load()


def test_a_number_beyond_the_names_that_the_data_state_is_no_other_class(tmp_path: Path) -> None:
    files = [write_noise(tmp_path / f"{k}.png", k).read_bytes() for k in range(3)]
    spec = write_class_labels(tmp_path / "data.parquet", files, [0, 1, 2], ["cat", "dog"])
    with pytest.raises(CompoclipError, match="label 2 has no name among 2"):
        captions(spec, "{}")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_whole_floats_are_numbers_and_truths_are_names(ending: str, tmp_path: Path) -> None:
    write_noise(tmp_path / "a.png", 0)
    (tmp_path / "classnames.txt").write_text("cat\ndog")
    tables = {"csv": lambda path, rows: write_csv(path, *rows), "jsonl": write_jsonl}
    write = tables.get(ending, write_parquet)
    spec = str(write(tmp_path / f"n.{ending}", [{"image": "a.png", "label": 1.0}]))
    assert captions(spec, "{}") == [("dog",)]
    spec = str(write(tmp_path / f"t.{ending}", [{"image": "a.png", "label": True}]))
    assert captions(spec, "{}") == [("True",)]


def test_a_column_of_labels_that_is_named_is_that_of_every_command(tmp_path: Path) -> None:
    rows = [{"image": f"{k}.png", "species": name} for k, name in enumerate(("cat", "dog"))]
    for k in range(2):
        write_noise(tmp_path / f"{k}.png", k)
    spec = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert captions(str(spec), "{}", caption_column="species") == [("cat",), ("dog",)]
    (target,) = parse_targets([f"zero_shot:{spec},caption_column=species"], tmp_path)
    content = target.load().content
    assert (content.classes, content.labels) == (("cat", "dog"), (0, 1))


def test_a_shard_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    for labels in (("cat", "dog"), ("dog", "cat", "emu")):
        spec = written("shards", tmp_path, labels)
        (target,) = parse_targets([f"zero_shot:{spec}"], tmp_path)
        assert len(target.load().content.images) == len(labels)


@pytest.mark.parametrize(
    ("folders", "index", "names"),
    [
        (("cat", "dog"), {"cat": "kitty"}, ["kitty", "dog"]),
        (("n02084071", "n02123045"), {}, ["dog", "tabby cat"]),
        (("001.Cat", "002.Snow_goose"), {"001.Cat": "kitty"}, ["kitty", "snow goose"]),
        (("n02084071", "n02123045"), {"n02123045": "cat"}, ["dog", "cat"]),
        (("n02084071", "n99999999"), {"n99999999": "unknown animal"}, ["dog", "unknown animal"]),
        (("cat", "dog"), {"cat": "kitty", "dog": ["hound", "dog"]}, ["kitty", "hound"]),
        (("cat", "dog"), {"cat": "kitty", "emu": "bird"}, "'emu' is not in"),
    ],
)
def test_training_and_zero_shot_name_classes_by_one_index(
    tmp_path: Path, folders: tuple[str, ...], index: dict[str, Any], names: list[str] | str
) -> None:
    spec = written("class folders", tmp_path, folders)
    if index:
        write_json(Path(spec) / "index.json", index)
    if isinstance(names, str):
        for read in (lambda: captions(spec, "{}"), lambda: classes_of(spec)):
            with pytest.raises(CompoclipError, match=names):
                read()
        return
    assert captions(spec, "{}") == [(name,) for name in names]
    assert classes_of(spec) == tuple(names)


def test_an_index_may_name_classes_without_photos_or_left_out(tmp_path: Path) -> None:
    spec = written("class folders", tmp_path, ("cat", "dog"))
    (Path(spec) / "emu").mkdir()
    write_json(Path(spec) / "index.json", {"dog": "hound", "emu": "bird"})
    assert captions(spec, "{}") == [("cat",), ("hound",)]
    assert classes_of(spec) == ("cat", "hound", "bird")
    assert captions(spec, "{}", exclude=("dog",)) == [("cat",)]
    assert classes_of(spec, exclude=("dog",)) == ("cat", "bird")


def test_a_photo_of_several_rows_or_numbers_has_captions_of_all_its_classes(tmp_path: Path) -> None:
    write_noise(tmp_path / "a.png", 0)
    rows = [{"image": "a.png", "label": label} for label in ("dog", "cat", "dog", "")]
    source = open_source(str(write_csv(tmp_path / "rows.csv", *rows)), templates="{}")
    assert [*source.column("captions")] == [("cat", "dog")]
    assert "1 photo from 3 rows" in source.describe()
    several = write_jsonl(tmp_path / "rows.jsonl", [{"image": "a.png", "label": [0, 2]}])
    (tmp_path / "classnames.txt").write_text("sun\nsea\nsand\n")
    assert captions(str(several), "{}") == [("sand", "sun")]


def test_numbers_of_several_classes_have_the_names_of_a_class_label(tmp_path: Path) -> None:
    images, names = ["a.png", "b.png", "c.png"], ["red_fox", "badger", "owl"]
    spec = write_class_labels(tmp_path / "data.parquet", images, [[0], [2, 0], [1]], names)
    assert captions(spec, "{}") == [("red fox",), ("owl", "red fox"), ("badger",)]


def test_a_sample_with_a_caption_keeps_it_and_has_no_class(tmp_path: Path) -> None:
    rows = [
        {"image": "a.png", "title": "my dog", "label": "dog"},
        {"image": "b.png", "title": "", "label": "dog"},
        {"image": "c.png", "title": "", "label": ""},
    ]
    spec = str(write_csv(tmp_path / "rows.csv", *rows))
    source = open_source(spec, templates=TEMPLATE)
    assert [*source.column("captions")] == [("my dog",), ("a photo of a dog.",)]
    assert [*source.column("label")] == ["", "dog"]
    assert source.left_out == {"empty caption": 2, "sample without a caption": 1}
    assert [*open_source(spec).column("label")] == [""]
    spec = str(write_csv(tmp_path / "named.csv", {"image": "a.png", "species": "dog"}))
    assert captions(spec, TEMPLATE, caption_column="species") == [("a photo of a dog.",)]


def test_mixtures_and_selections_take_templates_where_they_have_a_use(tmp_path: Path) -> None:
    labelled = written("table", tmp_path, ("cat", "dog"))
    captioned = str(write_csv(tmp_path / "own.csv", {"image": "x.png", "caption": "a bird"}))
    both = open_source(f"{labelled}=1 {captioned}=1", templates="{}")
    assert [*both.column("captions")] == [("cat",), ("dog",), ("a bird",)]
    assert [*both.column("label")] == ["cat", "dog", ""]
    with pytest.raises(UsageError, match="captions of its own, so that they take no --templates"):
        open_source(captioned, templates="{}")
    request = Request(labelled, templates="{}")
    without = [next(request.open().column("id"))]
    write_selection(tmp_path / "kept.json", request, without, "a reason")
    for templates, caption in ((None, "dog"), ("my {}", "my dog")):
        assert captions(str(tmp_path / "kept.json"), templates) == [(caption,)]


FILES = {"bad.txt": "no place", "empty.txt": "\n", "list.json": "[3]", "broken.json": "["}


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ("", "templates '': needs the placeholder {} or {c} exactly once, or name a file"),
        ("a photo of a cat", "exactly once, or name a file of templates, or a set; "),
        ("cifar-100x", "did you mean cifar-100"),
        ("{} and {}", "'{} and {}': needs the placeholder {} or {c} exactly once"),
        ("{} and {c}", "exactly once"),
        ("bad.txt", "bad.txt: template 'no place' needs the placeholder"),
        ("empty.txt", "empty.txt: no templates"),
        ("list.json", "list.json: template 0 must be a text, found 3"),
        ("broken.json", "broken.json: not valid JSON"),
    ],
)
def test_wrong_templates_are_refused(
    templates: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = written("table", tmp_path, ("cat", "dog"))
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    with pytest.raises(CompoclipError) as raised:
        open_source(spec, templates=templates)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_images_of_a_class_are_no_negatives_of_each_other(tmp_path: Path) -> None:
    spec = written("table", tmp_path, ("cat", "cat", "dog", "cat"))
    source = open_source(spec, templates="cifar-10")
    keys = [shown_key(sample) for sample in source]  # captions of a class differ by templates
    assert keys == ["class cat", "class cat", "class dog", "class cat"]
    assert true_pair_share(source) == pytest.approx(6 / 12)
    assert LABEL in source.brings()


def test_retrieval_of_labelled_photos_has_each_caption_once(tmp_path: Path) -> None:
    spec = written("table", tmp_path, ("cat", "dog", "cat"))
    target = f"retrieval:{spec},templates={TEMPLATE}"
    content = parse_targets([target], tmp_path)[0].load().content
    assert isinstance(content, Retrieval)
    assert content.texts == ("a photo of a cat.", "a photo of a dog.")
    assert content.pairs == ((0, 0), (1, 1), (2, 0))
    part = OpenedPart(Path(spec), "all", open_source(spec, templates=TEMPLATE))  # as tune has it
    opened = load_benchmark("retrieval:own", tmp_path, opened=part, templates=TEMPLATE).content
    assert isinstance(opened, Retrieval)
    assert (opened.texts, opened.pairs) == (content.texts, content.pairs)
