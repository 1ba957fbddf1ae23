"""Every loss and its gradient against plain loops, over every kind of batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

import losses_loops as loops
import losses_oracle as oracle
import losses_pairs as of_pairs
from compoclip.losses.alignment import caption_alignment
from compoclip.losses.bags import bag_loss, bag_negative_loss
from compoclip.losses.composite import (
    composite_contrast_loss,
    single_negative_loss,
    unimodal_loss,
)
from compoclip.losses.contract import Features, Layout
from compoclip.losses.contrastive import clip_loss, negclip_loss
from compoclip.losses.hard_negative import global_hn_loss
from compoclip.losses.hard_positive import hard_positive_loss
from compoclip.losses.intra_cross import RankingLoss, intra_modal_loss
from compoclip.losses.local import local_hn_loss
from compoclip.losses.multi_text import multi_text_loss
from compoclip.losses.phrases import patch_phrase_loss, phrase_loss
from compoclip.losses.teacher import feature_distillation, teacher_text_contrast
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


def _pairs() -> dict[str, tuple[LossFn, LossFn]]:
    """Name -> (ours, the loop)."""
    pairs: dict[str, tuple[LossFn, LossFn]] = {"clip": (clip_loss, oracle.clip)}
    for missing in ("mask", "zero"):
        pairs[f"negclip {missing}"] = (
            partial(negclip_loss, missing_hn=missing, kinds=KINDS),
            partial(oracle.negclip, missing_hn=missing),
        )
    calibrations = [
        {"gamma": 0.0, "beta": 0.0},
        {"gamma": 2.0, "beta": 0.02},
        {"gamma": 0.5, "beta": 0.3, "reduction": "batch"},
        {"gamma": 2.0, "beta": 0.1, "missing_hn": "zero"},
        {"gamma": 1.0, "beta": 0.0, "missing_hn": "zero", "reduction": "batch"},
        {"gamma": 2.0, "beta": 0.02, "positive_share": 0.3},
        {"gamma": 0.0, "beta": 0.1, "missing_hn": "zero", "positive_share": 1.0},
    ]
    for c in calibrations:
        pairs[f"global {c}"] = (
            partial(global_hn_loss, kinds=KINDS, **c),
            partial(oracle.scr, score=oracle.global_score, **c),
        )
    for attention in ("minmax", "minmax_sparse", "softmax"):
        for grad in (False, True):
            for c in calibrations if (attention, grad) == ("minmax", False) else calibrations[1:2]:
                pairs[f"local {attention} {grad} {c}"] = (
                    partial(
                        local_hn_loss,
                        kinds=KINDS,
                        attention=attention,
                        attention_grad=grad,
                        **c,
                    ),
                    partial(oracle.scr, score=oracle.local_score(attention, grad), **c),
                )
    for symmetric in (False, True):
        pairs[f"hard positive {symmetric}"] = (
            partial(hard_positive_loss, symmetric_pos=symmetric),
            partial(loops.hard_positive, symmetric_pos=symmetric),
        )
    for masked in (False, True):
        for reduction in ("mean", "sum"):
            pairs[f"multi-text {reduction} {masked}"] = (
                masking(partial(multi_text_loss, reduction=reduction), masked),
                partial(loops.multi_text, reduction=reduction, mask_duplicates=masked),
            )
    clic = {"positives": POSITIVES}
    pairs["composite"] = (partial(composite_contrast_loss, **clic), loops.composite_contrast)
    pairs["single negative"] = (partial(single_negative_loss, **clic), loops.single_negative)
    pairs["unimodal"] = (partial(unimodal_loss, positive=POSITIVES[0]), loops.unimodal)
    for imc in ("paper", "head"):
        pairs[f"intra-modal {imc}"] = (
            partial(intra_modal_loss, imc=imc),
            partial(loops.intra_modal, imc=imc),
        )
    for margins in ([0.0, 0.0, 0.0], [0.5, 3.0, 10.0]):
        pairs[f"ranking {margins}"] = (
            partial(_ranking, margins=margins),
            partial(loops.ranking, margins=margins),
        )
    dac = {"bag": POSITIVES[0], "bag_negative": KINDS[1]}
    pairs["bag"] = (partial(bag_loss, bag=POSITIVES[0]), partial(loops.bag, bag=POSITIVES[0]))
    pairs["bag negative"] = (
        partial(bag_negative_loss, **dac),
        partial(loops.bag_negative, **dac),
    )
    pairs["negclip duplicates"] = (
        masking(negclip_loss),
        partial(oracle.negclip, mask_duplicates=True),
    )
    pairs["triplet"] = (triplet_clip_loss, loops.triplet)
    for align in ("paraphrase", "transpose"):
        for masked in (False, True):
            pairs[f"alignment {align} {masked}"] = (
                masking(partial(caption_alignment, align=align), masked),
                partial(loops.alignment, align=align, mask_duplicates=masked),
            )
    for vectors in (None, 1536):
        pairs[f"distillation {vectors}"] = (
            partial(feature_distillation, vectors=vectors),
            partial(loops.distillation, vectors=vectors),
        )
    for negatives in ("own", "tiled"):
        pairs[f"teacher contrast {negatives}"] = (
            partial(teacher_text_contrast, negatives=negatives),
            partial(loops.teacher_contrast, tiled=negatives == "tiled"),
        )
    pairs |= _of_parts()
    return pairs | {f"{name} of a bias": each for name, each in _with_a_bias().items()}


def _of_parts() -> dict[str, tuple[LossFn, LossFn]]:
    """The losses on parts of captions: units with foils, noun phrases."""
    found: dict[str, tuple[LossFn, LossFn]] = {}
    for masked in (False, True):
        for slots in ("filled", "all"):
            options = {"units": POSITIVES, "foils": KINDS, "slots": slots}
            found[f"unit {slots} {masked}"] = (
                masking(partial(unit_loss, **options), masked),
                partial(of_pairs.unit, mask_duplicates=masked, **options),
            )
        of = {"phrase": POSITIVES[0], "mask_duplicates": masked}
        found[f"phrase {masked}"] = (
            masking(partial(phrase_loss, phrase=POSITIVES[0]), masked),
            partial(of_pairs.phrase, **of),
        )
        found[f"patch phrase {masked}"] = (
            masking(partial(patch_phrase_loss, phrase=POSITIVES[0]), masked),
            partial(of_pairs.phrase, score=of_pairs.attended, **of),
        )
    return found


def _with_a_bias() -> dict[str, tuple[LossFn, LossFn]]:
    """The contrasts of a model whose logits have a bias."""
    found: dict[str, tuple[LossFn, LossFn]] = {
        "clip": (clip_loss, of_pairs.clip),
        "negclip": (negclip_loss, of_pairs.negclip),
        "negclip duplicates": (
            masking(negclip_loss),
            partial(of_pairs.negclip, mask_duplicates=True),
        ),
        "negclip zero": (
            partial(negclip_loss, missing_hn="zero", kinds=KINDS),
            partial(of_pairs.negclip, missing_hn="zero"),
        ),
        "bag": (partial(bag_loss, bag=POSITIVES[0]), partial(of_pairs.bag, bag=POSITIVES[0])),
        **_of_parts(),
    }
    for masked in (False, True):
        for reduction in ("mean", "sum"):
            found[f"multi-text {reduction} {masked}"] = (
                masking(partial(multi_text_loss, reduction=reduction), masked),
                partial(of_pairs.multi_text, reduction=reduction, mask_duplicates=masked),
            )
    for symmetric in (False, True):
        found[f"hard positive {symmetric}"] = (
            partial(hard_positive_loss, symmetric_pos=symmetric),
            partial(of_pairs.hard_positive, symmetric_pos=symmetric),
        )
    return {
        name: (of_pairs.biased(ours), of_pairs.biased(loop)) for name, (ours, loop) in found.items()
    }


def _ranking(features: Features, layout: Layout, margins: list[float]) -> Tensor:
    loss = RankingLoss(KINDS)
    loss.load_state_dict({str(kind): margin for kind, margin in enumerate(margins)})
    return loss(features, layout)


PAIRS = _pairs()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", PAIRS)
def test_equals_loop(name: str, case: str) -> None:
    ours, loop = PAIRS[name]
    layout = layout_of(CASES[case])
    features = features_for(layout, seed=len(case))
    value = ours(features, layout)
    assert value.dtype == torch.float64
    assert value.shape == ()
    expected = loop(features, layout)
    torch.testing.assert_close(value, expected, atol=1e-9, rtol=1e-9)
    got = gradients(value, features)
    wanted = gradients(expected, features) if expected.requires_grad else None
    for leaf in LEAVES:
        reference = wanted[leaf] if wanted else torch.zeros_like(got[leaf])
        torch.testing.assert_close(got[leaf], reference, atol=1e-8, rtol=1e-8, msg=leaf)


SINGLE = [n for n in PAIRS if "0.02" in n or not n.startswith(("global", "local"))]


@pytest.mark.parametrize("case", ["ragged", "positives", "bags"])
@pytest.mark.parametrize("name", SINGLE)
def test_float32_equals_loop(name: str, case: str) -> None:
    ours, loop = PAIRS[name]
    layout = layout_of(CASES[case])
    features = features_for(layout)
    expected = loop(features, layout)
    single = with_dtype(features, torch.float32)
    value = ours(single, layout)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=1e-6)
    if not expected.requires_grad:  # the loop met no row
        return
    got, wanted = gradients(value, single), gradients(expected, features)
    for leaf in LEAVES:
        torch.testing.assert_close(got[leaf].double(), wanted[leaf], atol=3e-6, rtol=1e-5, msg=leaf)


def test_reference_size() -> None:
    """Six images of 49 patches, texts of 20 tokens, width 64."""
    texts = [(i, oracle.CAPTION, -1) for i in range(6)]
    texts += [(i, oracle.NEGATIVE, k) for i in range(6) for k in range(len(KINDS)) if (i + k) % 4]
    layout = layout_of(texts)
    features = features_for(layout, scale=100.0, dim=64, patches=49, tokens=20)
    loop = oracle.scr(features, layout, oracle.local_score("minmax", False), 2.0, 0.02)
    value = local_hn_loss(features, layout, gamma=2.0, beta=0.02)
    torch.testing.assert_close(value, loop, atol=1e-9, rtol=0)
    got, wanted = gradients(value, features), gradients(loop, features)
    for leaf in LEAVES:
        torch.testing.assert_close(got[leaf], wanted[leaf], atol=1e-8, rtol=1e-7, msg=leaf)
    single = local_hn_loss(with_dtype(features, torch.float32), layout, gamma=2.0, beta=0.02)
    torch.testing.assert_close(single.double(), loop, atol=1e-5, rtol=0)


GLOBAL, LOCAL = ("image", "text", "logit_scale"), ("patches", "tokens", "logit_scale")


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (clip_loss, GLOBAL),
        (partial(negclip_loss, missing_hn="zero", kinds=KINDS), GLOBAL),
        (partial(global_hn_loss, gamma=2.0, beta=0.1), GLOBAL),
        (partial(global_hn_loss, gamma=0.5, missing_hn="zero", kinds=KINDS), GLOBAL),
        (partial(local_hn_loss, attention_grad=True, gamma=2.0, beta=0.1), LOCAL),
        (partial(local_hn_loss, attention="softmax", attention_grad=True, gamma=2.0), LOCAL),
    ],
)
def test_gradcheck(loss: LossFn, names: tuple[str, ...]) -> None:
    layout = layout_of(CASES["ragged"])
    features = features_for(layout, scale=3.0, dim=3, patches=3, tokens=2)

    def call(*leaves: Tensor) -> Tensor:
        return loss(replace(features, **dict(zip(names, leaves))), layout)

    assert torch.autograd.gradcheck(call, [getattr(features, name) for name in names])
