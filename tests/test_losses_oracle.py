"""Every loss and its gradient against plain loops, over every kind of batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import losses_loops as loops
import losses_oracle as oracle
from compoclip.losses.contract import Features, Layout
from compoclip.losses.teacher import similarity_distillation
from losses_oracle import (
    CASES,
    LEAVES,
    features_for,
    gradients,
    layout_of,
    with_dtype,
)
from losses_table import LOOPS, LOSSES, LossFn


def wider(loss: LossFn) -> LossFn:
    """The loss with a teacher of another width and temperature."""

    def of_wider(f: Features, layout: Layout) -> Tensor:
        teacher = {"teacher_scale": f.logit_scale.new_tensor(5.0)}
        for name in ("teacher_image", "teacher_text"):
            rows = getattr(f, name)
            teacher[name] = torch.cat([0.6 * rows, 0.8 * rows.roll(1, 0)], dim=1)
        return loss(replace(f, **teacher), layout)

    return of_wider


PAIRS = {name: (loss, LOOPS[name]) for name, loss in LOSSES.items()}
PAIRS["similarity wider"] = wider(similarity_distillation), wider(loops.similarity)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", PAIRS)
def test_equals_loop(name: str, case: str) -> None:
    oracle.assert_equal(*PAIRS[name], layout_of(CASES[case]), seed=len(case))


SINGLE = [n for n in PAIRS if "0.02" in n or not n.startswith(("global", "local"))]


@pytest.mark.parametrize("name", SINGLE)
def test_float32_equals_float64(name: str) -> None:
    ours, _ = PAIRS[name]
    for case in ("ragged", "positives", "bags"):
        layout = layout_of(CASES[case])
        features = features_for(layout)
        single = with_dtype(features, torch.float32)
        value, expected = ours(single, layout), ours(features, layout)
        assert value.dtype == torch.float32, case
        torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=1e-6, msg=case)
        got, wanted = gradients(value, single), gradients(expected, features)
        for leaf in LEAVES:
            where = f"{leaf} of {case}"
            ours_now = got[leaf].double()
            torch.testing.assert_close(ours_now, wanted[leaf], atol=3e-6, rtol=1e-5, msg=where)
