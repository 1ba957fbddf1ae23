"""CS-CLIP and C2LIP as recipes: defaults, switches that reach the losses, what they ask of data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compoclip.data.sources.open import open_source
from compoclip.errors import UsageError
from compoclip.losses.units import unit_loss
from compoclip.methods.cs_clip import cs_clip
from losses_oracle import CAPTION, NEGATIVE, POSITIVE, features_for, layout_of
from train_helpers import write_data

KINDS = ("negclip", "unit-foil-1", "unit-foil-2", "unit-1", "unit-2", "noun-phrase")
TEXTS = [
    *((i, CAPTION, -1) for i in range(3)),
    *((i, NEGATIVE, 0) for i in range(3)),
    *((i, role, kind) for i in (0, 2) for role, kind in ((POSITIVE, 3), (NEGATIVE, 1))),
    *((i, POSITIVE, 5) for i in (0, 0, 1, 2)),
]
LAYOUT = layout_of(TEXTS, KINDS)
FEATURES = features_for(LAYOUT)


def value(method: Any, name: str) -> float:
    (term,) = [term for term in method.losses if term.name == name]
    return float(term.loss(FEATURES, LAYOUT).detach())


def test_switches_of_cs_clip_reach_the_loss() -> None:
    units, foils = ("unit-1", "unit-2"), ("unit-foil-1", "unit-foil-2")
    for options in ({}, {"slots": "all"}):
        expected = unit_loss(FEATURES, LAYOUT, units, foils, **options).item()
        assert value(cs_clip(**options), "unit") == pytest.approx(expected)
    assert value(cs_clip(slots="all"), "unit") == pytest.approx(value(cs_clip(), "unit") / 2)
    without = cs_clip(unit_weight=0.0)
    assert [term.name for term in without.losses] == ["negclip"]
    assert without.plan.texts == ()
    assert cs_clip(unit_slots=3, units="u.json").plan.kinds[-2:] == ("unit-3", "unit-foil-3")


def test_foil_captions_of_the_data_come_first(tmp_path: Path) -> None:
    (made,), (given,) = cs_clip().plan.rewrites, cs_clip(negatives="given").plan.rewrites
    assert (made.of, given.of) == (("negclip", "replace"), ("given", "negclip", "replace"))
    source = open_source(str(write_data(tmp_path)))
    cs_clip().plan.require(source)
    with pytest.raises(UsageError, match="brings no negatives"):
        cs_clip(negatives="given").plan.require(source)
