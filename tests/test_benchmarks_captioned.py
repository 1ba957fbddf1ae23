"""Benchmarks of a user's own photos: retrieval, what rewrites make of captions, own foils."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from benchmark_files import expect_one_line, refuses
from build.photos import stored_in, write_photo
from build.tables import (
    write_json,
    write_jsonl,
    write_parquet,
    write_rows,
    write_tar,
    write_text,
)
from compoclip.archives import Members
from compoclip.benchmarks.audit import audit
from compoclip.benchmarks.case import Benchmark, Form, Retrieval, TiePolicy
from compoclip.benchmarks.entries import entries
from compoclip.benchmarks.registry import load_benchmark, meta, require_present
from compoclip.benchmarks.shuffles import shuffled
from compoclip.benchmarks.solvability import solvability
from compoclip.benchmarks.targets import find_in, parse_targets
from compoclip.captions.chunks import pre_caption
from compoclip.captions.parser import parse
from compoclip.cli.main import main
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.rewrites.base import Rewritten, get_rewrite, rewrite_names
from evaluation_helpers import features_from, results_of, score_items
from train_helpers import write_config

CAPTIONS = {
    "1.jpg": ["A small dog sits near a red chair.", "A little dog lies by a chair."],
    "2.jpg": ["Two young women ride a brown horse behind a white barn."],
    "3.jpg": ["A large man holds a black umbrella near a yellow bus."],
    "4.jpg": ["hello"],
}


def write_photos(folder: Path) -> Path:
    """The photos of CAPTIONS, and captions.csv with a row per caption, the photos' rows apart."""
    (folder / "photos").mkdir(parents=True)
    rows = [(name, text) for name, texts in CAPTIONS.items() for text in texts]
    lines = ["image,caption", *(f'{name},"{text}"' for name, text in rows[1:] + rows[:1]), "4.jpg,"]
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    for k, name in enumerate(CAPTIONS):
        photo = Image.new("RGB", (8, 4), (40 * k, 9, 9))
        photo.save(folder / "photos" / name, exif=stored_in(6))
    return folder / "captions.csv"


def load(target: str, photos: Path | None) -> Benchmark:
    (found,) = parse_targets([target], Path("data"), photos)
    return found.load()


def test_retrieval_among_the_photos_of_a_file(tmp_path: Path) -> None:
    path = write_photos(tmp_path)
    found = load(f"retrieval:{path}", tmp_path / "photos")
    assert isinstance(found.content, Retrieval)
    assert found.name == "retrieval_captions.csv"
    # Rows of one photo are joined, in the order of its first row: 1.jpg's second caption is first.
    assert [ref.path.name for ref in found.content.images] == ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]
    assert all(ref.upright for ref in found.content.images)
    assert found.content.texts[:2] == tuple(reversed(CAPTIONS["1.jpg"]))
    assert found.content.pairs == ((0, 0), (0, 1), (1, 2), (2, 3), (3, 4))
    assert found.left_out == {"empty caption": 1}
    images = found.content.images
    texts = found.content.texts
    scores = {image: dict.fromkeys(texts, 0.0) for image in images}
    for image, text in ((0, 1), (1, 2), (2, 2), (3, 3)):  # 2.jpg is found, 1.jpg by one of two
        scores[images[image]][texts[text]] = 0.5
    items = score_items(found.content, features_from(scores), ties=dict(found.ties))
    by_way = dict(zip(zip(items.subtasks, items.ids), items.outcomes["r1"].used))
    assert [value for (way, _), value in by_way.items() if way == "i2t"] == [1, 1, 0, 0]


def test_splits_and_columns_of_a_target(tmp_path: Path) -> None:
    path = write_photos(tmp_path)
    photos = tmp_path / "photos"
    whole = {ref.path.name for ref in load(f"retrieval:{path}", photos).content.images}
    sides = []
    for split in ("train", "val", "test"):
        options = f"split={split},held_out=0.3,split_seed=4,images={photos}"
        try:
            found = load(f"retrieval:{path},{options}", tmp_path)
        except UsageError as error:
            expect_one_line(error, "photos, by a hash of the photo")
            continue
        assert found.name == f"retrieval_captions.csv_{split}"
        same = open_source(str(path), images=photos, split=split, held_out=0.3, split_seed=4)
        names = [ref.path.name for ref in found.content.images]
        assert names == list(same.column("image"))
        sides += names
    assert sorted(sides) == sorted(whole)
    path.write_text("photo,words,split\n1.jpg,a dog,train\n2.jpg,a cat,test\n3.jpg,a cow,val\n")
    named = "image_column=photo,caption_column=words"
    found = load(f"retrieval:{path},{named}", photos)  # test, since the data name splits
    assert found.content.texts == ("a cat",)
    assert load(f"retrieval:{path},{named},split=all", photos).content.texts[0] == "a dog"


def test_every_item_follows_from_the_table(tmp_path: Path) -> None:
    path = write_photos(tmp_path)
    found = load(f"rewrites:{path}", tmp_path / "photos")
    assert found.name == "rewrites_captions.csv"
    made, counts = entries()["rewrites"]["made"], found.content.counts()
    assert {"order", "replace_object", "swap_attribute", "negation", "paraphrase"} <= set(counts)
    # "hello" has no order, and a shuffle of "A little dog lies by a chair." is the caption.
    assert counts["order"] + found.left_out["captions without an item of order"] == 5
    assert 3 <= counts["order"] <= 4
    for case in found.content.cases:
        name, _ = case.id.partition("/")[2].split("#")
        told = set(CAPTIONS[name])
        own = parse(next(t for t in told if t == case.texts[0] or case.subtask == "order"))
        row = made[case.subtask]
        if case.subtask == "order":
            text = next(t for t in told if pre_caption(t, 30) == case.texts[0])
            expected = shuffled(text, parse(text).tokens, case.id)
            assert case.texts[1:] == tuple(pre_caption(each, 30) for each in expected)
            continue
        assert case.texts[0] in told
        assert case.form is (Form.TRIPLE if row["positives"] else Form.CHOOSE_TEXT)
        assert case.labels["negative"] in row["negatives"]
        assert case.images[0].upright
        false = case.texts[-1]
        if case.subtask != "paraphrase":
            assert false in made_by(case.labels["negative"], case.texts[0], row.get("rules"))
        else:
            assert case.texts[1] in made_by(case.labels["positive"], case.texts[0], None)
        if case.subtask != "negation":  # what it puts in, no caption of the photo names
            words = " ".join(told).lower().replace(".", "").split()
            new = Counter(false.lower().split()) - Counter(case.texts[0].lower().split())
            assert not {*new} & {*words} or case.subtask.startswith(("swap", "para"))
        assert own.tokens
    assert not audit(found).faulty
    assert found.ties[""] is TiePolicy.STRICT
    assert found.headline == "made"
    assert not {"order", "negation"} & found.aggregates["made"].subtasks()


def made_by(name: str, caption: str, rules: Any) -> set[str]:
    """Return everything that a rewrite says of a caption in many draws."""
    results = rewritten(name, caption)
    return {result.text for result in results if rules is None or result.rule in rules}


@cache
def rewritten(name: str, caption: str) -> list[Rewritten]:
    rewrite, parsed = get_rewrite(name), parse(caption)
    results = (rewrite(parsed, random.Random(seed)) for seed in range(100))
    return [result for result in results if isinstance(result, Rewritten)]


def test_the_table_has_a_known_error_of_every_rewrite() -> None:
    entry = entries()["rewrites"]
    assert {*entry["made"]} == {*meta("rewrites").parts}
    used = {
        name for row in entry["made"].values() for name in (*row["negatives"], *row["positives"])
    }
    assert used == {*entry["errors"]} <= {*rewrite_names()}
    page = (Path(__file__).parents[1] / "docs" / "rewrites.md").read_text()
    for name, (wrong, broken) in entry["errors"].items():
        row = next(
            line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line
        )
        cells = [cell.split()[0] for cell in row.split("|")[3:5]]
        assert cells == [f"{wrong:g}", f"{broken:g}"]


def test_seed_and_number_of_items(tmp_path: Path) -> None:
    path, photos = write_photos(tmp_path), tmp_path / "photos"
    first, again = (load(f"rewrites:{path}", photos) for _ in range(2))
    assert first == again
    assert load(f"rewrites:{path},seed=1", photos).data_hash != first.data_hash
    few = load(f"rewrites:order,annotations={path},most=2", photos)
    assert few.content.counts() == {"order": 2}
    beyond, without = (
        f"captions {w} order" for w in ("beyond the first 2 items of", "without an item of")
    )
    assert few.left_out[beyond] + few.left_out.get(without, 0) == 3
    names = {case.images[0].path.name for case in few.content.cases}
    assert len(names) == 2  # first captions of all photos come before second ones
    solved = {each.subtask for each in solvability(first)}
    assert solved <= {*meta("rewrites").parts}


def test_counts_have_to_be_named_and_are_in_no_mean(tmp_path: Path) -> None:
    path, photos = write_photos(tmp_path), tmp_path / "photos"
    assert "count" not in load(f"rewrites:{path}", photos).skills
    found = load(f"rewrites:count,annotations={path}", photos)
    (case,) = found.content
    assert (case.id, case.texts[0]) == ("count/2.jpg#0", CAPTIONS["2.jpg"][0])
    assert case.texts[1] in made_by("count", case.texts[0], None)
    assert found.skills == {"count": "counting"}
    assert (found.headline, "made" in found.aggregates) == ("micro", False)
    both = load(f"rewrites:count,order,annotations={path}", photos)
    assert {*both.content.counts()} == {"count", "order"}
    path.write_text(
        "image,caption\n2.jpg,Two women\n2.jpg,Three women\n2.jpg,Four women and five men\n"
    )
    left = load(f"rewrites:count,annotations={path}", photos)
    assert left.content
    for case in left.content:  # no caption of the photo names the new number
        new = {*case.texts[1].lower().split()} - {*case.texts[0].lower().split()}
        assert not new & {"two", "three", "four", "five"}


def test_absent_photos_ask_for_their_folder(tmp_path: Path) -> None:
    path = write_photos(tmp_path)
    path.write_text("image,caption\nnone.jpg,a dog\n")
    benchmark = load(f"retrieval:{path}", tmp_path / "photos")
    with pytest.raises(CompoclipError, match=r"0 of 2 .* name the folder .* with images=, or get"):
        require_present(benchmark, allow_partial=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1.jpg,x\n", "no image column found; name it with image_column="),
        ("image,words\n1.jpg,x\n", "no caption column found; name it with caption_column="),
        ("image,caption,split\n1.jpg,x,own\n", "or take everything: split=all"),
        ("image,caption\n1.jpg,\n", "no usable sample"),
        ("image,caption\nhttp://a/1.jpg,x\n", "is a URL; download the images first"),
    ],
)
def test_files_that_cannot_be_measured_on(tmp_path: Path, text: str, message: str) -> None:
    path = write_photos(tmp_path)
    path.write_text(text)
    for name in ("retrieval", "rewrites"):
        with pytest.raises(CompoclipError) as caught:
            load(f"{name}:{path}", tmp_path / "photos")
        expect_one_line(caught.value, message)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("retrieval:{root}/gone.csv", "no such folder"),
        ("retrieval:gone.csv", "no set or file 'gone.csv'"),
        ("rewrites:{path},most=0", "most"),
        ("rewrites:{path},split=dev", "takes no split="),
        ("rewrites:{path},orientation=left", "orientation must be one of upright, stored, not"),
        ("retrieval:{path},images={root}/gone", "the folder of the images with images="),
        ("retrieval:coco,split=val", "coco is published as one split"),
        ("rewrites:{path},held_out=x", "held_out must be a number"),
        ("rewrites:{path},held_out=0.9,split=val", "between 0 and 0.5"),
        ("rewrites:nothing,annotations={path}", "no sub-task 'nothing'"),
    ],
)
def test_a_wrong_name_or_option_is_refused(tmp_path: Path, target: str, message: str) -> None:
    path = write_photos(tmp_path)
    with pytest.raises(UsageError) as caught:
        load(target.format(root=tmp_path, path=path), tmp_path / "photos")
    expect_one_line(caught.value, message)


def test_captions_without_an_item_are_refused(tmp_path: Path) -> None:
    path = write_photos(tmp_path)
    path.write_text("image,caption\n1.jpg,hello\n")
    with pytest.raises(CompoclipError, match="no caption gives an item"):
        load(f"rewrites:{path}", tmp_path / "photos")


def test_a_folder_called_as_a_set_is_not_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "coco").mkdir()
    (tmp_path / "order").mkdir()
    monkeypatch.chdir(tmp_path)
    specs = [each.spec for each in parse_targets(["retrieval:coco", "rewrites:order"], tmp_path)]
    assert specs == ["retrieval:coco", "rewrites:order"]


def test_photos_are_the_same_in_files_shards_and_tables(tmp_path: Path) -> None:
    path = write_photos(tmp_path)
    photos = {name: (tmp_path / "photos" / name).read_bytes() for name in CAPTIONS}
    rows = [
        {"image": {"bytes": photos[name], "path": name}, "description": texts}
        for name, texts in CAPTIONS.items()
    ]
    for number, part in enumerate((rows[:3], rows[3:])):
        write_parquet(tmp_path / "tables" / f"{number}.parquet", part)
    members = []
    for name, texts in CAPTIONS.items():
        stem = name.removesuffix(".jpg")
        captions = json.dumps({"caption": texts}).encode()
        members += [(f"{stem}.jfif", photos[name]), (f"{stem}.json", captions)]
    write_tar(tmp_path / "photos.tar", members)
    (tmp_path / "alt.csv").write_text(path.read_text().replace("image,caption", "filename,alt"))
    expected = {name: sorted(texts) for name, texts in CAPTIONS.items()}
    for file in ("captions.csv", "alt.csv", "tables", "photos.tar"):
        photos_folder = tmp_path / "photos" if file.endswith(".csv") else None
        content = load(f"retrieval:{tmp_path / file}", photos_folder).content
        assert isinstance(content, Retrieval)
        read = Members()
        stored = [
            read(ref.path, ref.member) if ref.member else ref.path.read_bytes()
            for ref in content.images
        ]
        texts = {k: sorted(content.texts[t] for p, t in content.pairs if p == k) for k in range(4)}
        names = {data: name for name, data in photos.items()}
        assert {names[data]: texts[k] for k, data in enumerate(stored)} == expected
        assert all(ref.upright for ref in content.images)


def test_measured_while_training_with_the_photos_of_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = write_photos(tmp_path), write_config(tmp_path / "config.json")
    arguments = ["train", "clip-ft", "--from-scratch", f"--model={config}", f"--data={path}"]
    arguments += [f"--images={tmp_path / 'photos'}", f"--out={tmp_path / 'run'}"]
    arguments += ["--batch-size=2", "--epochs=1", "--on", f"retrieval:{path}"]
    assert main(arguments) == 0
    log = [json.loads(line) for line in (tmp_path / "run" / "train.jsonl").read_text().splitlines()]
    assert any("retrieval_captions.csv" in json.dumps(line) for line in log)
    assert (tmp_path / "run" / "eval").is_dir()
    capsys.readouterr()
    audited = ["data", "audit", "--data", str(path), "--images", str(tmp_path / "photos")]
    assert main([*audited, "--decode"]) == 0
    said = capsys.readouterr().out
    assert "4 photos from 5 rows" in said
    assert "stored sideways: 4 images" in said
    assert "left out by the reader: 1 x empty caption" in said


# --- Foils: formats, sub-tasks from the data, skills, statements, malformed rows. ---


SUFFIXES = (".csv", ".tsv", ".parquet", ".json", ".jsonl", ".jsonl.gz")
Rows = list[dict[str, Any]]
Texts = tuple[str, ...]


def foil_row(**changes: Any) -> dict[str, Any]:
    known = {"id": 1, "image": "photos/1.png", "caption": "a cup", "negative_caption": "a plate"}
    return {**known, **changes}


def write_foils(root: Path, name: str, *rows: dict[str, Any]) -> Path:
    return write_jsonl(root / "foils" / name, rows)


def write_table(path: Path, rows: Rows) -> Path:
    """Write rows; in Parquet sub-tasks are categories, as pandas stores them."""
    if path.suffix != ".parquet" or "subtask" not in rows[0]:
        return write_rows(path, rows)
    columns = {name: [row.get(name) for row in rows] for name in rows[0]}
    subtasks = pa.array(columns["subtask"]).dictionary_encode()
    return write_parquet(path, {**columns, "subtask": subtasks})


def test_subtasks_and_skills_come_from_the_rows(tmp_path: Path) -> None:
    write_foils(
        tmp_path,
        "b.jsonl",
        foil_row(subtask="left of", skill="spatial", relation="left of", note=3),
        foil_row(subtask="colours"),
        foil_row(id=2, subtask="left of", skill="spatial"),
    )
    write_json(tmp_path / "foils" / "a.json", [foil_row(), foil_row(id="x")])
    write_text(tmp_path / "foils" / "README.md", "not data")
    found = load_benchmark("foils", tmp_path)
    ids = ["a/1", "a/x", "left of/1", "colours/1", "left of/2"]
    assert [case.id for case in found.content] == ids
    assert found.skills == {"left of": "spatial"}
    assert found.content[2].labels == {"relation": "left of"}
    assert all(case.form is Form.CHOOSE_TEXT and case.truth == 0 for case in found.content)
    assert found.content[0].images[0].path == tmp_path / "photos" / "1.png"
    assert found.headline == "macro"
    assert found.aggregates["macro"].parts == ("a", "left of", "colours")
    part = load_benchmark("foils:left*", tmp_path, images=tmp_path / "elsewhere")
    assert [case.id for case in part.content] == ["left of/1", "left of/2"]
    assert part.content[0].images[0].path == tmp_path / "elsewhere" / "photos" / "1.png"
    assert part.data_hash == found.data_hash
    assert [target.spec for target in find_in(tmp_path)] == ["foils"]


MANY: Rows = [
    foil_row(subtask="left of", negative_caption=["a plate", "a \u00e9clair, no cup"]),
    foil_row(id=2, subtask="left of", caption="[sic]", negative_caption=["a dish"]),
]
COLUMNS = {"negative_caption3": "a pot", "note": "x", "subtask": "y"}
FOILS: dict[str, tuple[Rows, dict[str, Texts]]] = {
    "several captions": (
        [foil_row(caption=["a cup", "a mug, as it seems"], negative_caption=["a plate", "a pan"])],
        {
            "x/1": ("a cup", "a plate", "a pan"),
            "x/1#2": ("a mug, as it seems", "a plate", "a pan"),
        },
    ),
    "many negatives": (
        MANY,
        {
            "left of/1": ("a cup", "a plate", "a \u00e9clair, no cup"),
            "left of/2": ("[sic]", "a dish"),
        },
    ),
    "no ids": (
        [{key: value for key, value in row.items() if key != "id"} for row in MANY],
        {
            "left of/FILE:1": ("a cup", "a plate", "a \u00e9clair, no cup"),
            "left of/FILE:2": ("[sic]", "a dish"),
        },
    ),
    "columns of negatives": (
        [
            foil_row(id=1, negative_caption_2="a pan", **COLUMNS),
            foil_row(id=2, negative_caption_2=None, **COLUMNS),
            foil_row(id=3, negative_caption_2="a pan", **{**COLUMNS, "negative_caption": None}),
        ],
        {
            "y/1": ("a cup", "a plate", "a pan", "a pot"),
            "y/2": ("a cup", "a plate", "a pot"),
            "y/3": ("a cup", "a pan", "a pot"),
        },
    ),
    "strict pair": ([foil_row(negative_image="photos/2.png")], {"x/1": ("a cup", "a plate")}),
}
"""Kind of rows -> rows, and the texts of the items that they have to give."""


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", FOILS)
def test_every_format_gives_the_same_items(tmp_path: Path, kind: str, suffix: str) -> None:
    rows, expected = FOILS[kind]
    write_table(tmp_path / "foils" / f"x{suffix}", rows)
    found = load_benchmark("foils", tmp_path)
    named = {case.id.replace(f"x{suffix}", "FILE"): case.texts for case in found.content}
    assert named == expected
    assert all(case.labels == {"note": "x"} for case in found.content if case.subtask == "y")
    assert all(ref.upright for ref in found.content.images)
    if kind == "strict pair":  # right only if each image prefers its caption and the other way
        (case,) = found.content
        assert case.form is Form.GROUP
        assert [ref.path.name for ref in case.images] == ["1.png", "2.png"]


STATEMENTS = [
    {"image": f"{k}.png", "caption": f"cup {k}", "label": k % 2, "subtask": task, "kind": "cup"}
    for task in ("left", "left_dev", "above")
    for k in range(4)
]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_true_and_false_statements(tmp_path: Path, suffix: str) -> None:
    path = write_table(tmp_path / f"mine{suffix}", STATEMENTS)
    for k in range(4):
        write_photo(tmp_path / f"{k}.png")
    found = load_benchmark("foils", tmp_path, annotations=path)
    assert [case.truth for case in found.content] == [0, 1, 0, 1] * 3
    assert {case.form for case in found.content} == {Form.BINARY}
    assert found.content[1].labels == {"label": "true", "kind": "cup"}
    assert found.tuned_on == {"left": "left_dev"}
    assert found.aggregates["macro"].parts == ("left", "above")
    result = results_of(found, tmp_path / "out", allow_partial=False)
    assert set(result.scores) == {"left", "above"}
    assert {"macro", "micro", "balanced_accuracy"} <= set(result.aggregates)
    assert result.scores["left"]["auc"].n == 4
    part = load_benchmark("foils:left", tmp_path, annotations=path)
    assert [case.subtask for case in part.content] == ["left"] * 4 + ["left_dev"] * 4
    with pytest.raises(UsageError, match="no sub-task 'left_dev'"):
        load_benchmark("foils:left_dev", tmp_path, annotations=path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_columns_images_and_empty_cells_are_read_as_in_training(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "p").mkdir()
    for name in "01":
        write_photo(tmp_path / "p" / f"{name}.png")
    places = ["p/../p/0.png", "p\\1.png", str(tmp_path / "p" / "0.png")]
    rows = [
        {"Image": place, "CAPTION": f"a {k}", "Negative_Caption": "b", "negative_caption_2": "nan"}
        for k, place in enumerate(places)
    ]
    file = write_table(tmp_path / "foils" / f"x{suffix}", rows)
    found = load_benchmark("foils", tmp_path)
    photos = [case.images[0].path for case in found.content]
    assert photos == [tmp_path / "p" / f"{k}.png" for k in (0, 1, 0)]
    assert [case.texts for case in found.content] == [(f"a {k}", "b") for k in range(3)]
    assert {case.subtask for case in found.content} == {"x"}
    if suffix != ".json":
        training = open_source(str(file), images=tmp_path, image_column="Image")
        assert [path for path, _ in training.located()] == photos[:2]


def test_words_for_truth(tmp_path: Path) -> None:
    words = {"true": 1, "False": 0, " 1 ": 1, "0": 0, "TRUE": 1, "1.0": 1, "yes": 1, "No": 0}
    rows = [{"image": "1.png", "caption": word, "label": word} for word in words]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    found = load_benchmark("foils", tmp_path, annotations=path)
    assert [case.truth for case in found.content] == [*words.values()]
    write_jsonl(path, [*rows, {**rows[0], "label": "maybe"}])
    refuses("line 9: 'label' must be 1 or 0, true", "", "foils", tmp_path, annotations=path)


def test_pictures_inside_a_table(tmp_path: Path) -> None:
    rows = [
        {"image": {"bytes": data}, "caption": f"{k}", "negative_caption": ["x", "y"]}
        for k, data in enumerate((b"one", b"two", b"one"))
    ]
    path = write_parquet(tmp_path / "x.parquet", rows)
    found = load_benchmark("foils", tmp_path, annotations=path)
    photos = [case.images[0].photo for case in found.content]
    assert photos == [f"{path}@image:0", f"{path}@image:1", f"{path}@image:0"]


NO_NEGATIVE = {"negative_caption": None}
MALFORMED: list[tuple[Rows, str]] = [
    ([{}, {}], "line 2: 'id': 1 occurs twice; number the rows anew"),
    ([{"id": None}, {"id": None}], r"line 2: the same as .*x.jsonl: line 1; fix the file"),
    ([{"skill": "luck"}], "line 1: unknown skill 'luck'; known: object"),
    ([{}, {"id": 2, "skill": "object"}], "line 2: skill 'object', but earlier rows"),
    ([{"image": "../1.png"}], "lies outside .*; write its path below .* with images="),
    ([{"image": "http://host/1.png"}], "'http://host/1.png' is a URL; download the images first"),
    ([{"image": "nan"}], "no 'image', only 'id', 'caption', 'negative_caption'; fix the row"),
    ([{"caption": "nan"}], "no 'caption', only 'id', 'image', 'negative_caption'; fix the row"),
    (
        [{"negative_caption": ["a", "None"]}],
        "negative caption 2: 'None' is a text that is",
    ),
    ([{"caption": " "}], "'caption' is empty; fix the row"),
    ([{"caption": []}], "'caption' is an empty list; fix the row"),
    ([{"caption": ["a", ""]}], "'caption' is empty; fix the row"),
    ([{"negative_caption": []}], "'negative_caption' must be a text or a list of texts"),
    ([{"negative_caption": ["a", ""]}], "negative caption 2 is empty; fix the row"),
    ([{"negative_caption": [1]}], "negative caption 1 must be a text, found 1"),
    ([NO_NEGATIVE], "has neither of 'negative_caption' .*give one of them"),
    ([{"label": 1}], "has both of 'negative_caption'"),
    (
        [{}, {"id": 2, "label": 1, **NO_NEGATIVE}],
        "line 2: captions with a 'negative_caption', .* put each kind into a folder of its own",
    ),
    ([{}, {"id": 2, "negative_image": "2.png"}], "line 2: captions with .* of its own"),
    (
        [{"negative_image": "2.png", "negative_caption": ["a", "b"]}],
        "a 'negative_image' shows what the one negative caption says, and has 2 of them",
    ),
    ([{"negative_image": "2.png", "label": 1, **NO_NEGATIVE}], "has no 'negative_image'"),
    ([{"negative_image": 7}], "'negative_image' must be a text"),
    ([{"negative_image": "../2.png"}], "lies outside"),
    ([{"label": 1, **NO_NEGATIVE}], "'x': no true or no false statements; add"),
    ([{"subtask": 3}], "'subtask' must be a text"),
    ([{"image": None, "caption": None, **NO_NEGATIVE}], "no 'image', only 'id'; fix the row"),
    ([{"caption": None}], "no 'caption', only 'id', 'image', 'negative_caption'; fix"),
    (
        [{"neg_caption": "a plate", **NO_NEGATIVE}],
        r"line 1: has neither .* give one of them \(is 'neg_caption' the first\?\)",
    ),
    ([{"negative_caption_2": " "}], "negative caption 2 is empty; fix the row"),
    ([], "no rows"),
]


@pytest.mark.parametrize(("changes", "message"), MALFORMED)
def test_malformed_rows_end_in_one_line(tmp_path: Path, changes: Rows, message: str) -> None:
    write_foils(tmp_path, "x.jsonl", *(foil_row(**change) for change in changes))
    assert "official" not in refuses(message, "", "foils", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "image,text\n1.png,a\n", "no column 'caption', only 'image', 'text'; fix"),
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
    path = write_text(tmp_path / name, content)
    told = refuses(message, str(path), "foils", tmp_path, annotations=path)
    assert "official" not in told
    assert "fetch" not in told


def test_absent_files(tmp_path: Path) -> None:
    refuses("no such file; check the path", "", "foils", tmp_path)
    (tmp_path / "foils").mkdir()
    refuses(r"holds no \.csv, \.json, \.jsonl", "", "foils", tmp_path)
