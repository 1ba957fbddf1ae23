"""Cards for every form of item, and which items are shown."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from build.photos import write_photo
from compoclip.analysis import maps
from compoclip.analysis.maps import image_patches
from compoclip.evaluation.comparison import ScorePart
from compoclip.evaluation.statistics import Bootstrap
from compoclip.models.checkpoint import load_model
from compoclip.report.cards import SCENES, before_after, card, examples, read_items, scenes
from compoclip.report.looks import Album, changed_runs, word_diff
from compoclip.report.study import read_study
from compoclip.report.wording import MINUS
from report_study import make_study


def record(form, texts, images, scores, truth=0):
    fields = {"form": form, "texts": texts, "images": images, "scores": scores, "truth": truth}
    return {"item": "i1", **fields}


def show(base, other, base_right=False):
    records = {"base": base, "tuned": other}
    right = {"base": base_right, "tuned": not base_right}
    return card(ScorePart("b", "s"), records, right, "base", Album())


def texts(shown):
    return [(label, "".join(p.text for p in pieces), true) for label, pieces, true in shown.texts]


def test_choose_text_shows_the_foil_that_fooled_the_wrong_model():
    one = record("choose-text", ["bad", "right one", "worse"], ["x.png"], [0.1, 0.2, 0.4], 1)
    two = record("choose-text", ["bad", "right one", "worse"], ["x.png"], [0.1, 0.5, 0.4], 1)
    shown = show(one, two)
    assert texts(shown) == [("Caption", "right one", True), ("Negative caption", "worse", False)]
    assert shown.columns == ("caption", "negative")
    assert [scores for _, scores, _ in shown.lines] == [("0.200", "0.400"), ("0.500", "0.400")]
    assert (shown.won, shown.lost) == (("tuned",), ())
    assert show(one, two, base_right=True).lost == ("tuned",)


@pytest.mark.parametrize(
    ("row", "photos", "columns"),
    [
        (record("choose-image", ["t"], ["a", "b"], [0.1, 0.2]), 2, ("right photo", "wrong photo")),
        (record("triple", ["c", "r", "f"], ["a"], [0.1, 0.2, 0.3]), 1,
         ("caption", "paraphrase", "negative")),
        (record("text-only", ["c", "r", "f"], [], [0.1, 0.2, 0.3]), 0,
         ("caption–paraphrase", "caption–negative", "paraphrase–negative")),
        (record("group", ["c", "d"], ["a", "b"], [0.1, 0.2, 0.3, 0.4]), 2,
         ("photo 1, text 1", "photo 1, text 2", "photo 2, text 1", "photo 2, text 2")),
        (record("retrieval", ["c", "d"], ["a"], [0.1, 0.2]), 1, ("right one", "best rival")),
        (record("retrieval", ["c"], ["a", "b"], [0.1, 0.2]), 2, ("right one", "best rival")),
        (record("classification", ["dog", "cat"], ["a"], [0.1, 0.2]), 1,
         ("right one", "best rival")),
        (record("classification", ["dog"], ["a"], [0.1]), 1, ("cosine",)),
    ],
)  # fmt: skip
def test_every_form_has_a_card(row, photos, columns):
    shown = show(row, row)
    assert len(shown.photos) == photos
    assert shown.columns == columns
    assert all(picture.reason for _, _, picture in shown.photos)
    assert all(len(scores) == len(columns) for _, scores, _ in shown.lines)


@pytest.mark.parametrize("truth", [0, 1])
def test_a_statement_says_whether_it_is_true(truth):
    one = record("binary", ["the cup is left of the box"], ["x.png"], [0.25], truth)
    shown = show(one, one)
    label = ("False", "True")[truth]
    assert texts(shown) == [(label, "the cup is left of the box", bool(truth))]
    assert shown.columns == ("cosine",)
    assert shown.lines[0][1] == ("0.250",)


def test_the_rewording_is_marked_against_the_foil():
    row = record("triple", ["a red cup", "a crimson cup", "a blue cup"], [], [0.1, 0.2, 0.3])
    marked = [[p.text for p in t[1] if p.changed] for t in show(row, row).texts]
    assert marked == [["red"], ["crimson"], ["blue"]]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    results = make_study(folder, photos=100, models=("base", "fsc-clip"), resamples=20)
    return read_study([results], None, Bootstrap(20))


def test_examples_are_won_and_lost_items_and_tallies_count_them(study):
    items = read_items(study)
    found = {skill: rest for skill, *rest in examples(study, items, Album())}
    assert "negation" in found
    subtasks = {(d.benchmark, d.name): d for d in study.comparisons["fsc-clip"].subtasks}
    (tally,) = found["negation"][0]
    truth = subtasks["foils@world", "negation"]
    assert tally == ("fsc-clip", truth.other_only, truth.base_only, 100)
    for _, cards in found.values():
        for shown in cards:
            right = {model: good for model, _, good in shown.lines}
            assert right["base"] != right["fsc-clip"]
            assert (shown.won == ("fsc-clip",)) == right["fsc-clip"]
    alone = replace(study, models=("base",))
    assert examples(alone, items, Album()) == []


def margin(shown):
    """How far the winner's cosine of the caption lies above that of the negative caption."""
    ((right, wrong),) = (scores for model, scores, _ in shown.lines if model == "fsc-clip")
    return float(right.replace(MINUS, "-")) - float(wrong.replace(MINUS, "-")) + 0.001


def won_margins(common):
    """The margins of all items of a sub-task that fsc-clip alone gets right."""
    rows = common.tables["fsc-clip"].to_pylist()
    wins = np.flatnonzero(common.right["fsc-clip"] & ~common.right["base"])
    scores = [rows[common.rows["fsc-clip"][k]]["scores"] for k in wins]
    return [true - max(rest) for true, *rest in scores]


def test_the_first_screen_has_items_that_one_model_wins(study):
    items, album = read_items(study), Album()
    comparison = study.comparisons["fsc-clip"]
    cards = before_after(study, items, album)
    assert len(cards) == len(album.pictures) == 3
    significant = {(d.benchmark, d.name) for d in comparison.subtasks if d.significant}
    assert {(card.change.benchmark, card.change.name) for card in cards} <= significant
    for shown in cards:
        assert shown.change.verdict == "higher"
        assert [(name, right) for name, _, right in shown.lines] == [
            ("base", False),
            ("fsc-clip", True),
        ]
        assert [fits for _, _, fits in shown.texts] == [True, False]
        # as clear as half of the items that the model wins
        assert margin(shown) >= np.median(won_margins(items[shown.part.benchmark][shown.part.name]))
        assert shown.looks == ()
    (first,) = before_after(study, items, Album(), count=1, all_models=True)
    assert [name for name, *_ in first.lines] == list(study.models)
    assert before_after(replace(study, models=("base",)), items, album) == []
    assert before_after(study, items, album, lost=True) == []  # nothing is significantly worse
    turned = [replace(d, verdict="lower") for d in comparison.subtasks]
    worse = replace(study, comparisons={"fsc-clip": replace(comparison, subtasks=turned)})
    for shown in before_after(worse, items, Album(), lost=True):
        assert [right for *_, right in shown.lines] == [True, False]


def test_scenes_take_turns_and_leave_the_rest(tmp_path):
    results = make_study(tmp_path, photos=30, resamples=20)
    study = read_study([results], None, Bootstrap(20))
    found = examples(study, read_items(study), Album())
    before = sum(len(cards) for *_, cards in found)
    top = scenes(found)
    assert len(top) == min(SCENES, before)
    assert sum(len(cards) for *_, cards in found) == before - len(top)
    assert [skill for skill, _ in top[: len(found)]] == [skill for skill, *_ in found][: len(top)]
    assert any(card.won for _, card in top)
    assert any(card.lost and not card.won for _, card in top)


@pytest.fixture
def photo(tmp_path):
    return str(write_photo(tmp_path / "scene.png", colour="red", size=(64, 64)))


def test_maps_of_the_words_that_differ(photo):
    def looks(album, true, false):
        row = record("choose-text", [true, false], [photo], [0.2, 0.1])
        right = {"base": True, "tuned": False}
        return card(ScorePart("b", "s"), dict.fromkeys(right, row), right, "base", album).looks

    album = Album({"base": load_model("bundled")})
    ((words, uris),) = looks(album, "a red star", "a blue star")
    assert words == "red"
    ((name, uri),) = uris
    assert name == "base"
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as picture:
        assert picture.size == (64, 64)
    added = looks(album, "a star", "a star and no ball")
    assert [words for words, _ in added] == ["and no ball"]
    album.map_budget = 10
    assert looks(album, "a red star", "a blue star") == ()
    assert album.strips_over_budget == 1


def test_models_with_one_image_tower_look_at_the_same_patches(photo, monkeypatch):
    models = {name: load_model("bundled") for name in ("base", "texts", "images")}
    with torch.no_grad():
        models["texts"].encoder.model.text_projection += 1
        models["images"].encoder.model.visual.conv1.weight += 1
    encoded = []

    def counted(model, image):
        encoded.append(model)
        return image_patches(model, image)

    monkeypatch.setattr(maps, "image_patches", counted)
    (pieces, _) = word_diff("a red star", "a blue star")
    ((_, uris),) = Album(models).looks(photo, pieces)
    assert encoded == [models["base"], models["images"]]
    alone = [Album({name: model}).looks(photo, pieces) for name, model in models.items()]
    assert uris == tuple(uri for ((_, (uri,)),) in alone)


@pytest.mark.parametrize(
    ("text", "other", "runs"),
    [
        ("a red cup, a big dog", "a blue cup, a small dog", [("red", (1,)), ("big", (4,))]),
        ("the cup is left of it", "it is left of the cup", [("the cup", (0, 1)), ("it", (5,))]),
        ("one two three four", "a b c d", []),  # too long for a map
    ],
)
def test_short_runs_of_changed_words(text, other, runs):
    assert changed_runs(word_diff(text, other)[0]) == runs
