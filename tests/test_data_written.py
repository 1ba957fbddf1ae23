"""Written texts: positives and negatives, and the units and foils of CS-CLIP's data."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from build.tables import read_jsonl, write_json, write_jsonl, write_text
from compoclip.captions.parser import parse
from compoclip.cli.main import main
from compoclip.data.caption_plan import CaptionPlan, FirstOf
from compoclip.data.drawing import NONE_APPLIES, NOT_CHOSEN
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.data.sources.open import open_source
from compoclip.data.text_names import GIVEN, WRITTEN_NEGATIVE, WRITTEN_POSITIVE
from compoclip.data.texts import UnitPlan
from compoclip.data.written import NONE_WRITTEN, read_units, read_written_texts
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Role
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe
from compoclip.rewrites.base import Rewritten
from compoclip.rewrites.edit import EMPTY, SAME_TOKENS, TOO_LONG
from compoclip.rewrites.written import (
    CONTRADICTS,
    OTHER_WORDS,
    TOO_MANY_WORDS,
    form_objection,
    negative_objection,
    positive_objection,
)
from compoclip.training.log import read_log
from data_samples import Parses

BOTH = (WRITTEN_POSITIVE, WRITTEN_NEGATIVE)


def written(folder: Path, *rows: object) -> Path:
    return write_jsonl(folder / "written.jsonl", rows)


@pytest.mark.parametrize(
    ("caption", "text", "reason"),
    [
        ("a red cup", " \n", EMPTY),
        ("a red cup", "A red cup .", None),  # the stop is a token of its own
        ("a red cup", "A  Red Cup", SAME_TOKENS),
        ("a red cup", "a small red cup", None),
        ("a red cup", "a cup that is red", TOO_MANY_WORDS),
        ("a " * 60, "abcdefgh " * 77, TOO_LONG),
    ],
)
def test_form(caption: str, text: str, reason: str | None) -> None:
    assert form_objection(caption, text) == reason


@pytest.mark.parametrize(
    ("caption", "text", "fine"),
    [
        # Words exchanged.
        ("a black cat and a small dog", "a small dog and a black cat", True),
        ("an apple and a red cup", "a red cup and an apple", True),
        ("a cat under the table", "a cat beneath the table", True),
        # One replaced.
        ("a man wearing a hat", "a man clothed in a hat", True),
        ("a red cup", "a crimson cup", True),
        ("two dogs on the sofa", "two dogs on the couch", True),
        # More, fewer, other words.
        ("a red cup", "a crimson mug", False),
        ("a cup", "a red cup", False),
        ("a red cup", "a cup", False),
        ("two dogs and a cat", "three cats and a dog", False),
    ],
)
def test_a_positive_has_the_content_words_but_one(caption: str, text: str, fine: bool) -> None:
    assert positive_objection(parse(caption), parse(text)) == (None if fine else OTHER_WORDS)


@pytest.mark.parametrize("verb", ["is not", "isn't", "isn’t"])
def test_a_text_that_denies_is_a_negative_and_no_positive(verb: str) -> None:
    caption, text = parse("A dog is on a mat"), parse(f"A dog {verb} on a mat")
    assert negative_objection(caption, text) is None
    assert positive_objection(caption, text) == CONTRADICTS
    assert positive_objection(text, caption) == CONTRADICTS


def test_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"caption": " a cat ", "positive": "a feline", "negative": ["a dog", "None", "a cow"]},
        {"caption": "a cup", "positive": "None.", "negative": ["nan", " ", "NULL"]},
        {"Caption": "a cat", "POSITIVE": ["a kitty"], "negative": None},
    )
    texts = read_written_texts(path)
    assert len(texts) == 2
    assert texts.find("a cat") == (["a feline", "a kitty"], ["a dog", "a cow"])
    assert texts.find("a cup") == ([], [])
    assert texts.find("a jug") is None
    with pytest.raises(UsageError, match=r"texts\.written=FILE"):
        read_written_texts(Path())


def test_several_files(tmp_path: Path) -> None:
    for name, text in (("b", "a kitty"), ("a", "a feline")):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"caption": "a cat", "positive": text}])
    for spec, texts in (("", ["a feline", "a kitty"]), ("{b,a}.jsonl", ["a kitty", "a feline"])):
        assert read_written_texts(tmp_path / spec).find("a cat") == (texts, [])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CompoclipError, match=r"no \.parquet, \.jsonl, \.jsonl\.gz file"):
        read_written_texts(tmp_path / "empty")
    with pytest.raises(CompoclipError, match=r"c\.jsonl"):
        read_written_texts(tmp_path / "{a,c}.jsonl")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"caption": "a cat"}, ' needs "positive" or "negative"'),
        ({"positive": "x"}, " needs caption; it has: positive"),
        ({"caption": 1, "positive": "x"}, ": 'caption' must be a text, found 1"),
        ({"caption": "a cat", "positive": 1}, ": 'positive' must be a text or a list of texts"),
        ({"caption": "a", "negative": ["x", None]}, ": 'negative' must be a text or a list of"),
    ],
)
def test_malformed_files(row: object, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, {"caption": "x", "positive": "y"}, row)
    with pytest.raises(CompoclipError, match=rf"written\.jsonl: line 2{message}"):
        read_written_texts(path)


def test_valid_ones_are_drawn_and_the_others_counted(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"caption": "a red cup", "positive": ["a crimson cup", "a mug", "a scarlet cup"]},
        {"caption": "a red cup", "negative": ["a blue cup", "a red cup"]},
        {"caption": "a dog", "positive": "a DOG", "negative": "None"},
    )
    plan = TextPlan(CaptionPlan(BOTH, written=str(path)), parsed=Parses())
    drawn = [plan.draw(Sample("0", b"", ("a red cup",)), epoch)[0] for epoch in range(20)]
    assert {texts[1].text for texts in drawn} == {"a crimson cup", "a scarlet cup"}
    assert {texts[2].text for texts in drawn} == {"a blue cup"}
    roles = [Role.CAPTION, Role.POSITIVE, Role.NEGATIVE]
    assert all([text.role for text in texts] == roles for texts in drawn)
    texts, counts = plan.draw(Sample("1", b"", ("a dog",)), 0)
    assert len(texts) == 1
    refused = {(WRITTEN_POSITIVE, SAME_TOKENS): 1, (WRITTEN_NEGATIVE, NONE_WRITTEN): 1}
    assert counts.refused == refused
    none = TextPlan(CaptionPlan(BOTH, hn_fraction=0.0, written=str(path)), parsed=Parses())
    texts, counts = none.draw(Sample("0", b"", ("a red cup",)), 0)
    assert [text.rewrite for text in texts] == ["", WRITTEN_POSITIVE]
    assert counts.refused == {(WRITTEN_NEGATIVE, NOT_CHOSEN): 1}


def test_recipes_take_the_file(tmp_path: Path) -> None:
    path = str(written(tmp_path, {"caption": "a cat", "positive": "x", "negative": "a dog"}))
    hard = load_recipe("hard-positives")(positives=path)
    assert (hard.plan.written, hard.settings["positives"]) == (path, path)
    assert hard.kinds[0] == WRITTEN_POSITIVE
    assert "synonym" not in hard.kinds
    both = load_recipe("tsvlc-llm")(negatives=path)
    assert both.kinds == ("tsvlc-rb-spatial", WRITTEN_NEGATIVE)
    assert load_recipe("tsvlc-llm")().kinds == ("tsvlc-rb-spatial", "replace")
    dac = load_recipe("dac")(negatives=path, bags="captions")
    assert dac.kinds == ("tsvlc-rb-spatial", WRITTEN_NEGATIVE, "bag", "bag-negative")
    assert dac.plan.texts[0].rewrites == ("tsvlc-rb-spatial", WRITTEN_NEGATIVE)
    with pytest.raises(UsageError, match="--neg-type rand_both"):
        load_recipe("dac")(negatives=path, neg_type="rule_based")
    _, counts = TextPlan(both.plan, parsed=Parses()).draw(Sample("0", b"", ("a cup",)), 0)
    assert counts.refused["hard-negative", NONE_APPLIES] == 1
    settings = [f"texts.written={path}"]
    composed = compose(load_recipe("negclip")(), ["+written-negative"], settings=settings)
    assert composed.plan == CaptionPlan(("negclip", WRITTEN_NEGATIVE), written=path)
    assert compose(load_recipe("clip-ft")(), ["+written-positive"]).plan.kinds == BOTH[:1]


# --- CS-CLIP's training data: both layouts, by caption and as a source. ---


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
    return write_json(folder / "units.json", records)


def parts(kinds: Any) -> list[list[tuple[str, str, tuple[str, ...]]]]:
    return [[(unit.text, unit.name, tuple(unit.foils)) for unit in kind] for kind in kinds]


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
    more = {**RECORD, "entities": ["dog", "tail"], "relations": []}
    none = {**RECORD, "relations": {}}
    path = write_jsonl(tmp_path / "units.jsonl", (RECORD, more, none))
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
        units = {text.rewrite: text.text for text in texts[1:]}
        assert units["unit-1"] == "dog on red chair"
        for slot in "12":
            assert units[f"unit-foil-{slot}"] in foils[units[f"unit-{slot}"]]
        seen |= set(units.values())
    assert seen == {*foils}.union(*foils.values())
    texts, counts = plan.draw(Sample("1", b"", ("another",)), 0)
    assert len(texts) == 1
    assert counts.refused == {("unit", NONE_WRITTEN): 1}


def test_a_part_without_a_foil_is_no_unit(tmp_path: Path) -> None:
    record = {**RECORD, "negative_entities": {}, "relations": []}
    entities, _ = read_units(write(tmp_path, record)).find(record["original_caption"])
    assert not isinstance(entities[0].foil(random.Random(0)), Rewritten)


def test_the_file_is_data_as_well(tmp_path: Path) -> None:
    (tmp_path / "coco").mkdir()
    source = open_source(str(write(tmp_path, RECORD, OLDER)), images=tmp_path / "coco")
    first, second = source
    assert first.image == tmp_path / "coco" / "train2014/7.jpg"
    assert first.captions == ("A dog on a red chair.",)
    assert (first.negatives, second.negatives) == (("A chair on a red dog.",), ())
    assert source.brings() == {"negatives"}
    with pytest.raises(UsageError, match="0 of 2 photos, by a hash of the photo"):
        open_source(str(tmp_path / "units.json"), split="val")


def test_foil_captions_are_the_first_that_apply(tmp_path: Path) -> None:
    assert FirstOf("x", ("c", "a", "b")).order(random.Random(0)) == ["c", "a", "b"]
    (sample,) = open_source(str(write(tmp_path, RECORD)))
    plan = CaptionPlan(rewrites=(FirstOf("foil-caption", (GIVEN,)),))
    texts, counts = TextPlan(plan).draw(sample, 0)
    assert [text.text for text in texts] == [RECORD["original_caption"], "A chair on a red dog."]
    assert counts.accepted == {"given": 1, "foil-caption": 1}


def test_cs_clip_trains_on_it(world: Path, tmp_path: Path) -> None:
    rows = read_jsonl(world / "plain.jsonl")
    records = []
    for row, other in zip(rows, [rows[-1], *rows]):
        texts = {"original_caption": row["caption"][0], "swap_negatives": [other["caption"][0]]}
        records.append({**RECORD, "image_path": row["image"], **texts})
    path = write(tmp_path, *records)
    command = ["train", "cs-clip", f"--model={world / 'base'}", f"--data={path}", "--device=cpu"]
    command += [f"--units={path}", "--negatives=given", "--batch-size=8", f"--images={world}"]
    assert main([*command, f"--out={tmp_path / 'run'}", "--max-steps=2", "--set=log_every=1"]) == 0
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
        ({"relations": "on"}, "'relations' must be a list of values or null"),
        ({"relations": ["on"]}, r"'relations' needs subject, .* it has: 'on' \(str\)"),
        ({"relations": [{"subject": "dog", "object": "mat"}]}, "subject, relation_type, object"),
        ({"relations": [{**RECORD["relations"][0], "negatives": "x"}]}, "'negatives' must be a l"),
    ],
)
def test_malformed_units(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, RECORD, {**RECORD, **change})
    with pytest.raises(CompoclipError, match=message) as caught:
        read_units(path)
    assert str(caught.value).startswith(f"{path}, row 2")
    assert "is this CS-CLIP's training data?" in str(caught.value)


def test_files_that_hold_no_units(tmp_path: Path) -> None:
    for content, message in (
        ("{}", "no list of records"),
        ("[1]", "row 1 needs original_caption"),
        ("[", r"units\.json.*fetch the file again"),
    ):
        path = write_text(tmp_path / "units.json", content)
        with pytest.raises(CompoclipError, match=message):
            read_units(path)
    for image in (3, "../outside.jpg"):
        path = write(tmp_path, {**RECORD, "image_path": image})
        with pytest.raises(CompoclipError, match="row 1"):
            open_source(str(path))
