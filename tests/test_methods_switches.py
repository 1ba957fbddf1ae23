"""What a switch to released behaviour changes, and that it changes nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compoclip.data.texts import TargetPlan
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from losses_oracle import CAPTION, NEGATIVE, POSITIVE, features_for, layout_of

# Three images with a negative each of every kind but one; two of them with a paraphrase.
TEXTS = [
    *((i, CAPTION, -1) for i in range(3)),
    *((i, NEGATIVE, k) for i in range(3) for k in range(3) if i + k != 3),
    *((i, POSITIVE, 3) for i in (0, 2)),
]
KINDS = ("negclip", "ce-adj", "ce-noun", "other-caption", "", "")


def values_of(method: Method) -> dict[str, float]:
    """Every term of a method that no head computes, on one batch."""
    layout = layout_of(TEXTS, KINDS)
    features, hidden = features_for(layout), features_for(layout, seed=1)
    features = replace(features, masked_image=hidden.image, masked_text=hidden.text[:3])
    return {t.name: t.loss(features, layout).item() for t in method.losses if t.head is None}


@pytest.mark.parametrize(
    ("name", "option", "value", "term"),
    [
        ("degla", "tgc_mask", "tiled", "text_contrast"),
        ("degla", "distill", "sum", "distill"),
        ("degla", "text_scale", 5.0, "text_contrast"),
        ("read-clip", "align", "transpose", "alignment"),
        ("read-clip-align", "align", "transpose", "alignment"),
    ],
)
def test_a_switch_changes_one_term(name: str, option: str, value: float | str, term: str) -> None:
    usual, changed = load_recipe(name)(), load_recipe(name)(**{option: value})
    before, after = values_of(usual), values_of(changed)
    assert before.keys() == after.keys()
    assert {each for each in before if before[each] != after[each]} == {term}
    assert [t.weight for t in usual.losses] == [t.weight for t in changed.losses]
    for part in ("plan", "optim", "trains", "teacher", "images", "crop"):
        assert getattr(usual, part) == getattr(changed, part), part


@pytest.mark.parametrize(
    ("name", "option", "value", "part"),
    [
        ("degla", "decay", 1.0, "teacher"),
        ("degla", "negatives", "given", "plan"),
        ("read-clip", "target", "any", "plan"),
        ("lab-clip", "matrix", "projection", "trains"),
        ("lab-clip", "start_scale", 0.0, "trains"),
        ("macco", "concepts", "found.tsv", "plan"),
        ("macco", "rectangles", 0.5, "plan"),
    ],
)
def test_a_switch_changes_one_part(name: str, option: str, value: float | str, part: str) -> None:
    usual, changed = load_recipe(name)(), load_recipe(name)(**{option: value})
    assert values_of(usual) == values_of(changed)
    assert getattr(usual, part) != getattr(changed, part)
    for other in {"plan", "optim", "trains", "teacher", "images", "crop"} - {part}:
        assert getattr(usual, other) == getattr(changed, other), other
    if option == "target":
        assert replace(changed.plan, texts=(TargetPlan("other"),)) == usual.plan
