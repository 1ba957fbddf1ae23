"""Other captions of an image, texts drawn several times over, and captions to be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from compoclip.data.batch import Batch
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.drawing import Drawn, PlanCounts
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.data.texts import TargetPlan
from compoclip.errors import UsageError
from compoclip.losses.contract import Role
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe
from data_samples import Parses

CAPTIONS = ("a red cat on a blue mat", "a cat lies on a mat", "the mat has a cat on it")


def drawn(
    plan: CaptionPlan, captions: Sequence[str] = CAPTIONS, epoch: int = 0, **more: Any
) -> tuple[list[Drawn], PlanCounts]:
    sample = Sample(id="0", image=b"", captions=tuple(captions), **more)
    return TextPlan(plan, parsed=Parses()).draw(sample, epoch)


def test_another_caption_is_a_positive() -> None:
    plan = CaptionPlan(rewrites=("other-caption",))
    assert not plan.needs_parsing
    seen = set()
    for epoch in range(20):
        texts, counts = drawn(plan, epoch=epoch)
        caption, other = texts
        assert (other.role, other.rewrite) == (Role.POSITIVE, "other-caption")
        assert {caption.text, other.text} < set(CAPTIONS)
        assert counts.accepted == {"other-caption": 1}
        seen.add((caption.text, other.text))
    assert len(seen) == 6
    alone, counts = drawn(plan, ["a cat", "A cat"])
    assert len(alone) == 1
    assert counts.refused == {("other-caption", "no-other-caption"): 1}


def test_a_rewrite_is_drawn_as_often_as_it_stands() -> None:
    once, _ = drawn(CaptionPlan(rewrites=("negclip",)))
    thrice, counts = drawn(CaptionPlan(rewrites=("negclip",) * 3))
    assert thrice[: len(once)] == once
    assert len({text.text for text in thrice}) == len(thrice)
    assert counts.accepted["negclip"] + sum(counts.refused.values()) == 3
    assert CaptionPlan(rewrites=("negclip",) * 3).kinds == ("negclip",)


def test_a_target_is_drawn_and_not_encoded() -> None:
    for target in ("other", "any"):
        plan = CaptionPlan(texts=(TargetPlan(target),))  # type: ignore[arg-type]
        assert plan.kinds == ()
        pairs = set()
        for epoch in range(40):
            (caption, wanted), _ = drawn(plan, epoch=epoch)
            assert wanted.rewrite == "target"
            pairs.add((caption.text, wanted.text))
        assert len(pairs) == (6 if target == "other" else 9)
    (caption, wanted), _ = drawn(CaptionPlan(texts=(TargetPlan("other"),)), ["a cat"])
    assert wanted.text == caption.text == "a cat"
    with pytest.raises(UsageError, match=r"texts.target 'both' is not one of other, any"):
        TargetPlan("both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="targets and masks must name every image"):
        Batch(torch.zeros(1, 3, 1, 1), ("a",), (0,), (Role.CAPTION,), ("",), targets=("a", "b"))


def test_composed_texts_keep_how_often_they_stand() -> None:
    both = compose(load_recipe("read-clip-align")(), ["+other-caption", "+degla"])
    assert both.plan.rewrites[:4] == ("negclip", "negclip", "negclip", "other-caption")
    assert both.plan.rewrites[4:] == load_recipe("degla")().plan.rewrites
    plain = compose(load_recipe("fsc-clip")(), ["+other-caption"])
    assert plain.plan.rewrites[-1] == "other-caption"
