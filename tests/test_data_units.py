"""CS-CLIP's training data: both layouts, by caption and as a source; malformed files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from compoclip.cli.main import main
from compoclip.data.caption_plan import CaptionPlan, FirstOf
from compoclip.data.drawing import NONE_WRITTEN
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.data.sources.open import open_source
from compoclip.data.text_names import GIVEN
from compoclip.data.texts import UnitPlan
from compoclip.data.written import read_units
from compoclip.errors import CompoclipError, UsageError
from compoclip.rewrites.base import Rewritten
from compoclip.training.log import read_log
from method_data import write_world
from train_helpers import FEW

RECORD: dict[str, Any] = {
    "sample_id": 7,
    "original_caption": "A dog on a red chair.",
    "image_path": "train2014/7.jpg",
    "entities": ["dog", "red chair"],
    "negative_entities": {
        "dog": [{"negative": "cat", "change_type": "object_change"}],
        "red chair": [
            {"negative": "blue chair", "change_type": "attribute_change"},
            {"negative": "red chair", "change_type": "attribute_change"},
        ],
    },
    "relations": [
        {
            "subject": "dog",
            "relation_type": "on",
            "object": "red chair",
            "negatives": [
                {"subject": "red chair", "object": "dog", "change_type": "swap"},
                {"relation_type": "under", "change_type": "antonym"},
            ],
        }
    ],
    "swap_negatives": ["A chair on a red dog."],
}
OLDER = {
    "original_caption": "two birds",
    "image_path": "train2014/8.jpg",
    "positive_components": ["two birds"],
    "negative_components": {"two birds": [{"negative": "three birds"}]},
}


def write(folder: Path, *records: object) -> Path:
    path = folder / "units.json"
    path.write_text(json.dumps(records))
    return path


def parts(found: Any) -> list[list[tuple[str, str, tuple[str, ...]]]]:
    return [[(each.text, each.name, tuple(each.foils)) for each in kind] for kind in found]


def test_units_of_both_layouts(tmp_path: Path) -> None:
    units = read_units(write(tmp_path, RECORD, OLDER))
    assert len(units) == 2
    assert parts(units.find("A dog on a red chair.")) == [
        [("dog", "dog", ("cat",)), ("red chair", "chair", ("blue chair",))],
        [("dog on red chair", "dog", ("red chair on dog", "dog under red chair"))],
    ]
    assert parts(units.find("two birds")) == [[("two birds", "birds", ("three birds",))], []]
    assert units.find("a dog on a red chair") is None


def test_records_of_one_caption_add_up_and_lines_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "units.jsonl"
    more = {**RECORD, "entities": ["dog", "tail"], "relations": []}
    path.write_text("".join(json.dumps(each) + "\n" for each in (RECORD, more)))
    entities, relations = parts(read_units(path).find(RECORD["original_caption"]))
    assert [text for text, _, _ in entities] == ["dog", "red chair", "tail"]
    assert entities[2][2] == ()
    assert len(relations) == 1


def test_units_are_drawn_with_their_own_foils(tmp_path: Path) -> None:
    path = write(tmp_path, RECORD)
    plan = TextPlan(CaptionPlan(texts=(UnitPlan(file=str(path), pair_share=0.0),)))
    assert not plan.plan.needs_parsing
    foils = {"dog": {"cat"}, "red chair": {"blue chair"}}
    foils["dog on red chair"] = {"red chair on dog", "dog under red chair"}
    seen = set()
    for epoch in range(20):
        texts, _ = plan.draw(Sample("0", b"", (RECORD["original_caption"],)), epoch)
        said = {text.rewrite: text.text for text in texts[1:]}
        assert said["unit-1"] == "dog on red chair"
        for slot in "12":
            assert said[f"unit-foil-{slot}"] in foils[said[f"unit-{slot}"]]
        seen |= set(said.values())
    assert seen == {*foils, *(text for own in foils.values() for text in own)}
    texts, counts = plan.draw(Sample("1", b"", ("another",)), 0)
    assert len(texts) == 1
    assert counts.refused == {("unit", NONE_WRITTEN): 1}


def test_a_part_without_a_foil_is_no_unit(tmp_path: Path) -> None:
    record = {**RECORD, "negative_entities": {}, "relations": []}
    units = read_units(write(tmp_path, record))
    found = units.find(record["original_caption"])
    assert found is not None
    assert not isinstance(found[0][0].foil(random.Random(0)), Rewritten)


def test_the_file_is_data_as_well(tmp_path: Path) -> None:
    source = open_source(str(write(tmp_path, RECORD, OLDER)), images=tmp_path / "coco")
    assert len(source) == 2
    first, second = source[0], source[1]
    assert first.image == tmp_path / "coco" / "train2014/7.jpg"
    assert (first.captions, first.negatives) == (
        ("A dog on a red chair.",),
        ("A chair on a red dog.",),
    )
    assert second.negatives == ()
    assert source.brings() == {"negatives"}
    with pytest.raises(UsageError, match="0 of 2 photos, by a hash of the photo"):
        open_source(str(tmp_path / "units.json"), split="val")


def test_foil_captions_are_the_first_that_apply(tmp_path: Path) -> None:
    assert FirstOf("x", ("c", "a", "b")).order(random.Random(0)) == ["c", "a", "b"]
    write(tmp_path, RECORD)
    plan = CaptionPlan(rewrites=(FirstOf("foil-caption", (GIVEN,)),))
    texts, counts = TextPlan(plan).draw(open_source(str(tmp_path / "units.json"))[0], 0)
    assert [text.text for text in texts] == [RECORD["original_caption"], "A chair on a red dog."]
    assert counts.accepted == {"given": 1, "foil-caption": 1}


def test_cs_clip_trains_on_it(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world", merges=FEW)
    rows = [json.loads(line) for line in (world / "plain.jsonl").read_text().splitlines()]
    records = [
        {
            **RECORD,
            "image_path": row["image"],
            "original_caption": row["caption"][0],
            "swap_negatives": [rows[i - 1]["caption"][0]],
        }
        for i, row in enumerate(rows)
    ]
    path = write(world, *records)
    command = ["train", "cs-clip", f"--model={world / 'base'}", f"--data={path}", "--device=cpu"]
    command += [f"--units={path}", "--negatives=given", "--batch-size=8", "--epochs=1"]
    assert main([*command, f"--out={tmp_path / 'run'}", "--set=log_every=1"]) == 0
    log = read_log(tmp_path / "run" / "train.jsonl")
    assert all(record["loss/unit"] > 0 for record in log)
    assert all(record["texts"] == 6 * record["images"] for record in log)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"original_caption": None}, "'original_caption' must be a text, found None"),
        ({"negative_entities": ["cat"]}, "'negative_entities' must be an object or null"),
        ({"negative_entities": {"dog": "cat"}}, "'negative_entities' must be an object or null"),
        ({"negative_entities": {"dog": ["cat"]}}, r"'dog' needs an object; it has: 'cat' \(str\)"),
        ({"negative_entities": {"dog": [{"negative": 1}]}}, "'negative' must be a text or null"),
        ({"entities": "dog"}, "'entities' must be a list of texts or null"),
        ({"relations": {}}, ""),
        ({"relations": "on"}, "'relations' must be a list of values or null"),
        ({"relations": ["on"]}, r"'relations' needs subject, .* it has: 'on' \(str\)"),
        ({"relations": [{"subject": "dog", "object": "mat"}]}, "subject, relation_type, object"),
        ({"relations": [{**RECORD["relations"][0], "negatives": "x"}]}, "'negatives' must be a l"),
    ],
)
def test_malformed_units(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, RECORD, {**RECORD, **change})
    if not message:
        assert len(read_units(path)) == 1
        return
    with pytest.raises(CompoclipError, match=message) as caught:
        read_units(path)
    assert str(caught.value).startswith(f"{path}, row 2")
    assert "is this CS-CLIP's training data?" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "no list of records"),
        ("[1]", "row 1 needs original_caption"),
        ("[", "units.json"),
    ],
)
def test_files_that_hold_no_units(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "units.json").write_text(content)
    with pytest.raises(CompoclipError, match=message):
        read_units(tmp_path / "units.json")


@pytest.mark.parametrize("image", [3, "../outside.jpg"])
def test_images_are_named_and_stay_below_their_folder(image: object, tmp_path: Path) -> None:
    path = write(tmp_path, {**RECORD, "image_path": image})
    with pytest.raises(CompoclipError, match=r"row 1"):
        open_source(str(path))
