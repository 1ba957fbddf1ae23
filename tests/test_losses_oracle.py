"""Every loss and its gradient against plain loops, over every kind of batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import losses_loops as loops
import losses_oracle as oracle
import losses_pairs as of_pairs
from compoclip.losses.alignment import caption_alignment
from compoclip.losses.bags import bag_loss, bag_negative_loss
from compoclip.losses.composite import composite_contrast_loss, single_negative_loss, unimodal_loss
from compoclip.losses.contract import Features, Layout
from compoclip.losses.contrastive import clip_loss, negclip_loss
from compoclip.losses.dimensions import OF_TEACHER, LeadingDimensions
from compoclip.losses.hard_negative import global_hn_loss
from compoclip.losses.hard_positive import hard_positive_loss
from compoclip.losses.intra_cross import RankingLoss, intra_modal_loss
from compoclip.losses.local import local_hn_loss
from compoclip.losses.multi_text import multi_text_loss
from compoclip.losses.phrases import patch_phrase_loss, phrase_loss
from compoclip.losses.teacher import (
    feature_distillation,
    similarity_distillation,
    teacher_text_contrast,
)
from compoclip.losses.triplet import triplet_clip_loss
from compoclip.losses.units import unit_loss
from losses_oracle import (
    CASES,
    KINDS,
    LEAVES,
    POSITIVES,
    features_for,
    gradients,
    layout_of,
    masking,
    with_dtype,
)

LossFn = Callable[[Features, Layout], Tensor]


PAIRS: dict[str, tuple[LossFn, LossFn]] = {}
"""Name -> (ours, the loop)."""


def add(
    name: str,
    ours: LossFn,
    loop: Callable[..., Tensor],
    *options: dict[str, Any],
    masked: bool = False,
    bias: bool = False,
    **more: Any,
) -> None:
    """Add pairs: one per set of options that both take, twice if `masked` (without and with).

    bias: of a model whose logits have a bias. more: options that only ours takes.
    """
    for option in options or ({},):
        for mask in (False, True) if masked else (False,):
            one, other = partial(ours, **option, **more), partial(loop, **option)
            if masked:
                one, other = masking(one, mask), partial(other, mask_duplicates=mask)
            if bias:
                one, other = of_pairs.biased(one), of_pairs.biased(other)
            PAIRS[f"{name} {option} {mask} {bias}"] = one, other


def _ranking(features: Features, layout: Layout, margins: list[float]) -> Tensor:
    loss = RankingLoss(KINDS)
    loss.load_state_dict({str(kind): margin for kind, margin in enumerate(margins)})
    return loss(features, layout)


CALIBRATIONS: list[dict[str, Any]] = [
    {"gamma": 0.0, "beta": 0.0},
    {"gamma": 2.0, "beta": 0.02},
    {"gamma": 0.5, "beta": 0.3, "reduction": "batch"},
    {"gamma": 2.0, "beta": 0.1, "missing_hn": "zero"},
    {"gamma": 1.0, "beta": 0.0, "missing_hn": "zero", "reduction": "batch"},
    {"gamma": 2.0, "beta": 0.02, "positive_share": 0.3},
    {"gamma": 0.0, "beta": 0.1, "missing_hn": "zero", "positive_share": 1.0},
]
MISSING = {"missing_hn": "mask"}, {"missing_hn": "zero"}
SYMMETRIC = {"symmetric_pos": False}, {"symmetric_pos": True}
REDUCTIONS = {"reduction": "mean"}, {"reduction": "sum"}
BAG = {"bag": POSITIVES[0]}
PHRASE = {"phrase": POSITIVES[0]}
UNITS = [{"units": POSITIVES, "foils": KINDS, "slots": slots} for slots in ("filled", "all")]
DUPLICATES = partial(oracle.negclip, mask_duplicates=True)

add("clip", clip_loss, oracle.clip)
add("negclip", negclip_loss, oracle.negclip, *MISSING, kinds=KINDS)
add("negclip duplicates", masking(negclip_loss), DUPLICATES)
of_global = partial(oracle.scr, score=oracle.global_score)
add("global", global_hn_loss, of_global, *CALIBRATIONS, kinds=KINDS)
for attention in ("minmax", "minmax_sparse", "softmax"):
    for grad in (False, True):
        every = CALIBRATIONS if (attention, grad) == ("minmax", False) else CALIBRATIONS[1:2]
        loss = partial(local_hn_loss, kinds=KINDS, attention=attention, attention_grad=grad)
        of_local = partial(oracle.scr, score=oracle.local_score(attention, grad))
        add(f"local {attention} {grad}", loss, of_local, *every)
add("hard positive", hard_positive_loss, loops.hard_positive, *SYMMETRIC)
add("multi-text", multi_text_loss, loops.multi_text, *REDUCTIONS, masked=True)
add("composite", composite_contrast_loss, loops.composite_contrast, positives=POSITIVES)
add("single negative", single_negative_loss, loops.single_negative, positives=POSITIVES)
add("unimodal", unimodal_loss, loops.unimodal, positive=POSITIVES[0])
add("intra-modal", intra_modal_loss, loops.intra_modal, {"imc": "paper"}, {"imc": "head"})
add("ranking", _ranking, loops.ranking, {"margins": [0.0] * 3}, {"margins": [0.5, 3.0, 10.0]})
add("bag", bag_loss, loops.bag, BAG)
add("bag negative", bag_negative_loss, loops.bag_negative, {**BAG, "bag_negative": KINDS[1]})
add("triplet", triplet_clip_loss, loops.triplet)
ALIGN = {"align": "paraphrase"}, {"align": "transpose"}
add("alignment", caption_alignment, loops.alignment, *ALIGN, masked=True)
add("distillation", feature_distillation, loops.distillation, {"vectors": None}, {"vectors": 1536})
add("similarity", similarity_distillation, loops.similarity)


def wider(loss: LossFn) -> LossFn:
    """The loss with a teacher of another width and temperature."""

    def of_wider(f: Features, layout: Layout) -> Tensor:
        found = {"teacher_scale": f.logit_scale.new_tensor(5.0)}
        for name in ("teacher_image", "teacher_text"):
            rows = getattr(f, name)
            found[name] = torch.cat([0.6 * rows, 0.8 * rows.roll(1, 0)], dim=1)
        return loss(replace(f, **found), layout)

    return of_wider


PAIRS["similarity wider"] = wider(similarity_distillation), wider(loops.similarity)
WIDTHS = (2, 5)
for name, (ours, loop) in {
    "negclip": (negclip_loss, oracle.negclip),
    "global": (partial(global_hn_loss, gamma=2.0), partial(of_global, gamma=2.0, beta=0.0)),
    "distillation": (feature_distillation, loops.distillation),
}.items():
    cut = LeadingDimensions(ours, WIDTHS, OF_TEACHER)
    add(f"leading {name}", cut, partial(loops.on_dimensions, loop, WIDTHS))
for negatives in ("own", "tiled"):
    of_teacher = partial(loops.teacher_contrast, tiled=negatives == "tiled")
    add(f"teacher {negatives}", teacher_text_contrast, of_teacher, negatives=negatives)
for of_bias in (False, True):
    more: dict[str, Any] = {"masked": True, "bias": of_bias}
    add("unit", unit_loss, of_pairs.unit, *UNITS, **more)
    add("phrase", phrase_loss, of_pairs.phrase, PHRASE, **more)
    attended = partial(of_pairs.phrase, score=of_pairs.attended)
    add("patch phrase", patch_phrase_loss, attended, PHRASE, **more)
add("clip", clip_loss, of_pairs.clip, bias=True)
add("negclip", negclip_loss, of_pairs.negclip, *MISSING, bias=True, kinds=KINDS)
duplicates = partial(of_pairs.negclip, mask_duplicates=True)
add("negclip duplicates", masking(negclip_loss), duplicates, bias=True)
add("bag", bag_loss, of_pairs.bag, BAG, bias=True)
add("multi-text", multi_text_loss, of_pairs.multi_text, *REDUCTIONS, masked=True, bias=True)
add("hard positive", hard_positive_loss, of_pairs.hard_positive, *SYMMETRIC, bias=True)


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
