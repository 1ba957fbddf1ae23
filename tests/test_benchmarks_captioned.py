"""Benchmarks made of a user's captioned photos: retrieval, and what rewrites make of captions."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from benchmark_files import expect_one_line
from build.tables import write_tar
from compoclip.archives import Members
from compoclip.benchmarks.audit import audit
from compoclip.benchmarks.case import Benchmark, Form, Retrieval, TiePolicy
from compoclip.benchmarks.entries import entries
from compoclip.benchmarks.registry import meta
from compoclip.benchmarks.shuffles import shuffled
from compoclip.benchmarks.solvability import solvability
from compoclip.benchmarks.targets import parse_targets
from compoclip.captions.chunks import pre_caption
from compoclip.captions.parser import parse
from compoclip.cli.main import main
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError, UsageError
from compoclip.rewrites.base import Rewritten, get_rewrite, rewrite_names
from evaluation_helpers import features_from, score_items
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
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (8, 4), (40 * k, 9, 9)).save(folder / "photos" / name, exif=exif)
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


def test_names_and_options_that_are_wrong(tmp_path: Path) -> None:
    path, photos = write_photos(tmp_path), tmp_path / "photos"
    for target, message in (
        (f"retrieval:{tmp_path}/gone.csv", "no such folder"),
        ("retrieval:gone.csv", "no set or file 'gone.csv'"),
        (f"rewrites:{path},most=0", "most"),
        (f"rewrites:{path},split=dev", "takes no split="),
        (f"rewrites:{path},orientation=left", "orientation must be upright or stored, not 'left'"),
        (f"retrieval:{path},images={photos}/gone", "the folder of the images with images="),
        ("retrieval:coco,split=val", "coco is published as one split"),
        (f"rewrites:{path},held_out=x", "held_out must be a number"),
        (f"rewrites:{path},held_out=0.9,split=val", "between 0 and 0.5"),
        (f"rewrites:nothing,annotations={path}", "no sub-task 'nothing'"),
    ):
        with pytest.raises(UsageError) as caught:
            load(target, photos)
        expect_one_line(caught.value, message)
    path.write_text("image,caption\n1.jpg,hello\n")
    with pytest.raises(CompoclipError, match="no caption gives an item"):
        load(f"rewrites:{path}", photos)


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
        (tmp_path / "tables").mkdir(exist_ok=True)
        table = pa.Table.from_pylist(part)
        pq.write_table(table, tmp_path / "tables" / f"{number}.parquet")
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
    assert "left out by the reader, empty caption: 1" in said
