"""What an option of a recipe changes, and that it changes nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compoclip.data.sources.open import open_source
from compoclip.data.texts import TargetPlan
from compoclip.errors import UsageError
from compoclip.losses.units import unit_loss
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from losses_oracle import CAPTION, NEGATIVE, POSITIVE, features_for, layout_of
from train_helpers import write_data

# Three images with a negative each of every kind but one; two of them with a paraphrase and a unit.
TEXTS = [
    *((i, CAPTION, -1) for i in range(3)),
    *((i, NEGATIVE, k) for i in range(3) for k in range(3) if i + k != 3),
    *((i, POSITIVE, 3) for i in (0, 2)),
    *((i, role, kind) for i in (0, 2) for role, kind in ((POSITIVE, 4), (NEGATIVE, 5))),
]
KINDS = ("negclip", "ce-adj", "ce-noun", "other-caption", "unit-1", "unit-foil-1")
LAYOUT = layout_of(TEXTS, KINDS)
FEATURES = features_for(LAYOUT)
PARTS = ("plan", "optim", "trains", "teacher", "images", "crop")


def values_of(method: Method) -> dict[str, float]:
    """Every term of a method that no head computes, on one batch."""
    hidden = features_for(LAYOUT, seed=1)
    features = replace(FEATURES, masked_image=hidden.image, masked_text=hidden.text[:3])
    return {t.name: t.loss(features, LAYOUT).item() for t in method.losses if t.head is None}


def weights_of(method: Method) -> dict[str, float]:
    return {term.name: term.weight for term in method.losses}


@pytest.mark.parametrize(
    ("name", "option", "value", "changes"),
    [
        ("degla", "tgc_mask", "tiled", "text_contrast"),
        ("degla", "distill", "sum", "distill"),
        ("degla", "text_scale", 5.0, "text_contrast"),
        ("read-clip", "align", "transpose", "alignment"),
        ("read-clip-align", "align", "transpose", "alignment"),
        ("cs-clip", "slots", "all", "unit"),
        ("degla", "decay", 1.0, "teacher"),
        ("degla", "negatives", "given", "plan"),
        ("read-clip", "target", "any", "plan"),
        ("lab-clip", "matrix", "projection", "trains"),
        ("lab-clip", "start_scale", 0.0, "trains"),
        ("macco", "concepts", "found.tsv", "plan"),
        ("macco", "rectangles", 0.5, "plan"),
    ],
)
def test_a_switch_changes_one_term_or_part(
    name: str, option: str, value: float | str, changes: str
) -> None:
    usual, changed = load_recipe(name)(), load_recipe(name)(**{option: value})
    before, after = values_of(usual), values_of(changed)
    assert before.keys() == after.keys()
    terms = {name for name in before if before[name] != after[name]}
    parts = {name for name in PARTS if getattr(usual, name) != getattr(changed, name)}
    assert terms | parts == {changes}
    assert weights_of(usual) == weights_of(changed)
    if option == "target":
        assert changed.plan.texts == (TargetPlan("any"),)
        assert replace(changed.plan, texts=(TargetPlan("other"),)) == usual.plan


def test_parts_of_read_clip_that_are_off_ask_for_nothing() -> None:
    read_clip = load_recipe("read-clip")
    assert read_clip().plan.rewrites == ("negclip", "negclip", "negclip", "other-caption")
    assert read_clip(alignment=0.0).plan.rewrites == ("negclip",) * 3
    without = load_recipe("read-clip-align")()
    assert (without.heads, without.plan.texts) == ({}, ())


# --- CS-CLIP. ---


def test_switches_of_cs_clip_reach_the_loss() -> None:
    cs_clip = load_recipe("cs-clip")
    units, foils = ("unit-1", "unit-2"), ("unit-foil-1", "unit-foil-2")
    for options in ({}, {"slots": "all"}):
        expected = unit_loss(FEATURES, LAYOUT, units, foils, **options).item()
        assert values_of(cs_clip(**options))["unit"] == pytest.approx(expected)
    without = cs_clip(unit_weight=0.0)
    assert [term.name for term in without.losses] == ["negclip"]
    assert without.plan.texts == ()
    assert cs_clip(unit_slots=3, units="u.json").plan.kinds[-2:] == ("unit-3", "unit-foil-3")


def test_foil_captions_of_the_data_come_first(tmp_path: Path) -> None:
    ours, foils = load_recipe("cs-clip")().plan, load_recipe("cs-clip")(negatives="given").plan
    (made,), (given,) = ours.rewrites, foils.rewrites
    assert (made.of, given.of) == (("negclip", "replace"), ("given", "negclip", "replace"))
    source = open_source(str(write_data(tmp_path, count=1)))
    ours.require(source)
    with pytest.raises(UsageError, match="brings no negatives"):
        foils.require(source)


# --- The recipe of our own. ---


def test_the_dial_of_compo_scales_what_is_asked_and_not_what_holds() -> None:
    compo = load_recipe("compo")
    one = {"clip": 1.0, "global_hn": 1.5, "denial": 1.0, "distill": 0.85}
    assert weights_of(compo()) == one
    three = weights_of(compo(strength=3.0))
    assert three == pytest.approx({**one, "global_hn": 4.5, "denial": 3.0})
    assert weights_of(compo(strength=0.0)) == {"clip": 1.0, "distill": 0.85}
    with pytest.raises(UsageError, match=r"weight -1\.5 must be 0 or more"):
        compo(strength=-1.0)


def test_parts_of_compo_that_are_off_ask_for_nothing() -> None:
    compo = load_recipe("compo")
    every = {*compo().plan.kinds}
    for off, kinds in (
        ({"positive_share": 0.0}, {"synonym", "and-swap", "converse"}),
        ({"shuffle": False}, {"bigram-shuffle"}),
        ({"denial_weight": 0.0}, {"denial"}),
    ):
        assert every - {*compo(**off).plan.kinds} == kinds
    # The base reads a denial as a mention: it is no negative for any loss but its own.
    reading = {term.name: getattr(term.loss, "kinds", ()) for term in compo().losses}
    assert [name for name, kinds in reading.items() if "denial" in kinds] == ["denial"]
