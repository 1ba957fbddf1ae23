"""Written positives and negatives: the file, what is checked, and how a method draws them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compoclip.captions.parser import parse
from compoclip.cli.main import main
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.drawing import NONE_APPLIES, NONE_WRITTEN, NOT_CHOSEN
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.data.text_names import WRITTEN_NEGATIVE, WRITTEN_POSITIVE
from compoclip.data.written import read_written_texts
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Role
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.rewrites.edit import EMPTY, SAME_TOKENS, TOO_LONG
from compoclip.rewrites.written import (
    OTHER_WORDS,
    TOO_MANY_WORDS,
    form_objection,
    positive_objection,
)
from data_samples import Parses, write_jsonl
from method_data import arguments, write_world
from train_helpers import FEW

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


def test_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"caption": " a cat ", "positive": "a feline", "negative": ["a dog", "None", "a cow"]},
        {"caption": "a cup", "positive": "None."},
        {"caption": "a cat", "positive": ["a kitty"], "negative": None},
    )
    texts = read_written_texts(path)
    assert len(texts) == 2
    assert texts.find("a cat") == (["a feline", "a kitty"], ["a dog", "a cow"])
    assert texts.find("a cup") == ([], [])
    assert texts.find("a jug") is None
    with pytest.raises(UsageError, match=r"texts\.written=FILE"):
        read_written_texts(Path())


def test_several_files(tmp_path: Path) -> None:
    for name, row in (
        ("b", {"caption": "a cat", "positive": "a kitty"}),
        ("a", {"caption": "a cat", "positive": "a feline"}),
    ):
        written(tmp_path, row).rename(tmp_path / f"{name}.jsonl")
    assert read_written_texts(tmp_path).find("a cat") == (["a feline", "a kitty"], [])
    assert read_written_texts(tmp_path / "{b,a}.jsonl").find("a cat") == (
        ["a kitty", "a feline"],
        [],
    )
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
    assert counts.refused == {
        (WRITTEN_POSITIVE, SAME_TOKENS): 1,
        (WRITTEN_NEGATIVE, NONE_WRITTEN): 1,
    }
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
    composed = compose(
        load_recipe("negclip")(), ["+written-negative"], settings=[f"texts.written={path}"]
    )
    assert composed.plan == CaptionPlan(("negclip", WRITTEN_NEGATIVE), written=path)
    assert compose(load_recipe("clip-ft")(), ["+written-positive"]).plan.kinds == BOTH[:1]


def test_training_with_written_positives(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world", merges=FEW)
    rows = [json.loads(line) for line in (world / "plain.jsonl").read_text().splitlines()]
    captions = {text for row in rows for text in row["caption"]}
    given = [{"caption": text, "positive": text.replace("red", "crimson")} for text in captions]
    run = tmp_path / "run"
    option = f"--positives={written(tmp_path, *given)}"
    assert main(arguments(world, "hard-positives", run, option, "--epochs=1")) == 0
    made = load_model(run / "model").provenance["run"]["rewrites"][WRITTEN_POSITIVE]
    assert made["made"] > 0
    assert made["refused"].keys() <= {SAME_TOKENS, OTHER_WORDS}
    assert made["refused"][SAME_TOKENS] > 0
