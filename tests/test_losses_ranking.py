"""The adaptive ranking loss over several steps."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

import losses_loops as loops
from compoclip.losses import Features, Layout, RankingLoss
from losses_oracle import CAPTION, CASES, KINDS, NEGATIVE, features_for, layout_of

ORDER = ["full", "ragged", "one type empty", "no negative", "one negative", "full"]


def _steps(dtype: torch.dtype = torch.float64) -> list[tuple[Features, Layout]]:
    """Batches in which captions score above most negatives."""
    steps = []
    for seed, name in enumerate(ORDER):
        layout = layout_of(CASES[name])
        features = features_for(layout, seed, dtype=dtype)
        caption = (layout.role == int(CAPTION))[:, None]
        text = features.text.detach() + 0.5 * caption * features.image.detach()[layout.owner]
        steps.append((replace(features, text=text.requires_grad_()), layout))
    return steps


def test_margins_follow_the_batches() -> None:
    loss, margins = RankingLoss(KINDS), [0.0] * len(KINDS)
    for features, layout in _steps():
        expected = loops.ranking(features, layout, margins)
        torch.testing.assert_close(loss(features, layout), expected, atol=1e-9, rtol=1e-9)
        margins = loops.next_margins(features, layout, margins)
        assert list(loss.state_dict().values()) == pytest.approx(margins)
    assert any(margins)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_resumed_steps_are_the_same(dtype: torch.dtype) -> None:
    """Equal to the last bit, though the state went through JSON."""
    steps = _steps(dtype)
    whole = RankingLoss(KINDS)
    values = [whole(*step) for step in steps]
    first = RankingLoss(KINDS)
    for step in steps[:3]:
        first(*step)
    second = RankingLoss(KINDS)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [second(*step) for step in steps[3:]] == values[3:]
    assert second.state_dict() == whole.state_dict()
    second.load_state_dict({})
    assert [second(*step) for step in steps] == values


def test_margin_is_between_zero_and_the_largest() -> None:
    layout = layout_of([(0, CAPTION, -1), (0, NEGATIVE, 0), (0, NEGATIVE, 1)])
    axis = torch.tensor([[1.0, 0.0]])
    features = Features(axis, torch.cat([axis, -axis, axis]), torch.tensor(100.0))
    loss = RankingLoss(KINDS[:2])
    assert loss(features, layout).item() == 0.0
    assert loss.state_dict() == {"0": 10.0, "1": 0.0}
    worse = replace(features, text=torch.cat([-axis, axis, axis]), logit_scale=torch.tensor(1.0))
    assert loss(worse, layout).item() == pytest.approx((12 + 2) / 2)
    assert loss.state_dict() == {"0": 0.0, "1": 0.0}


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_batch_leaves_the_margins(broken: float) -> None:
    features, layout = _steps()[0]
    loss = RankingLoss(KINDS)
    loss(features, layout)
    before = loss.state_dict()
    assert any(before.values())
    image = features.image.detach().clone()
    image[1] = broken
    loss(replace(features, image=image), layout)
    assert loss.state_dict() == before


def test_margins_carry_no_gradient() -> None:
    (first, layout), (second, _) = _steps()[0], _steps()[5]
    loss = RankingLoss(KINDS)
    loss(first, layout)
    loss(second, layout).backward()
    assert first.image.grad is None
    assert second.image.grad is not None


@pytest.mark.parametrize("state", [{"3": 1.0}, {"-1": 1.0}, {"x": 1.0}, {"0": math.nan}])
def test_a_state_of_other_kinds_is_refused(state: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="in a loss of 3 kinds"):
        RankingLoss(KINDS).load_state_dict(state)


@pytest.mark.parametrize("other", [-1, len(KINDS)])
def test_negatives_of_other_kinds_are_not_read(other: int) -> None:
    texts = [(0, CAPTION, -1), (0, NEGATIVE, 0)]
    layout, few = layout_of([*texts, (0, NEGATIVE, other)]), layout_of(texts)
    features = features_for(layout)
    own = Features(features.image, features.text[:2], features.logit_scale)
    with_others, alone = RankingLoss(KINDS), RankingLoss(KINDS)
    for _ in range(2):
        value = with_others(features, layout)
        assert value == alone(own, few)
        assert with_others.state_dict() == alone.state_dict()
    (grad,) = torch.autograd.grad(value, features.text)
    assert not grad[2].any()
