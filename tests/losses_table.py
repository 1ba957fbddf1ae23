"""Every loss in the forms that recipes give it, each with its plain loop: the one list of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
from losses_oracle import KINDS, POSITIVES, masking

LossFn = Callable[[Features, Layout], Tensor]

LOSSES: dict[str, LossFn] = {}
LOOPS: dict[str, LossFn] = {}
"""The loop of each of LOSSES."""


def add(
    name: str,
    loss: LossFn,
    loop: Callable[..., Tensor],
    *options: dict[str, Any],
    masked: bool = False,
    bias: bool = False,
    **common: Any,
) -> None:
    """Add a form per set of options that both take, twice if `masked` (without and with).

    bias: of a model whose logits have a bias. common: options that only the loss takes.
    """
    for option in options or ({},):
        for mask in (False, True) if masked else (False,):
            form, reference = partial(loss, **option, **common), partial(loop, **option)
            words = [name, *(f"{key}={value}" for key, value in option.items())]
            if mask:
                form, reference = masking(form), partial(reference, mask_duplicates=True)
                words.append("masked")
            if bias:
                form, reference = of_pairs.biased(form), of_pairs.biased(reference)
                words.append("of a bias")
            LOSSES[" ".join(words)], LOOPS[" ".join(words)] = form, reference


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
ALIGN = {"align": "paraphrase"}, {"align": "transpose"}
BAG = {"bag": POSITIVES[0]}
PHRASE = {"phrase": POSITIVES[0]}
UNITS = {"units": POSITIVES, "foils": KINDS}
SLOTS = {"slots": "filled"}, {"slots": "all"}

add("clip", clip_loss, oracle.clip)
add("negclip", negclip_loss, oracle.negclip, *MISSING, masked=True, kinds=KINDS)
of_global = partial(oracle.scr, score=oracle.global_score)
add("global", global_hn_loss, of_global, *CALIBRATIONS, kinds=KINDS)
for attention in ("minmax", "minmax_sparse", "softmax"):
    for grad in (False, True):
        every = CALIBRATIONS if (attention, grad) == ("minmax", False) else CALIBRATIONS[1:2]
        of_local = partial(oracle.scr, score=oracle.local_score(attention, grad))
        with_attention = partial(local_hn_loss, attention=attention, attention_grad=grad)
        add(f"local {attention} {grad}", with_attention, of_local, *every, kinds=KINDS)
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
add("alignment", caption_alignment, loops.alignment, *ALIGN, masked=True)
add("distillation", feature_distillation, loops.distillation, {"vectors": None}, {"vectors": 1536})
add("similarity", similarity_distillation, loops.similarity)
WIDTHS = (2, 5)
for name, loss, loop in (
    ("negclip", negclip_loss, oracle.negclip),
    ("global", partial(global_hn_loss, gamma=2.0), partial(of_global, gamma=2.0, beta=0.0)),
    ("distillation", feature_distillation, loops.distillation),
):
    cut = LeadingDimensions(loss, WIDTHS, OF_TEACHER)
    add(f"leading {name}", cut, partial(loops.on_dimensions, loop, WIDTHS))
for negatives in ("own", "tiled"):
    of_teacher = partial(loops.teacher_contrast, tiled=negatives == "tiled")
    add(f"teacher {negatives}", teacher_text_contrast, of_teacher, negatives=negatives)
units, of_units = partial(unit_loss, **UNITS), partial(of_pairs.unit, **UNITS)
attended = partial(of_pairs.phrase, score=of_pairs.attended)
for of_bias in (False, True):
    add("unit", units, of_units, *SLOTS, masked=True, bias=of_bias)
    add("phrase", phrase_loss, of_pairs.phrase, PHRASE, masked=True, bias=of_bias)
    add("patch phrase", patch_phrase_loss, attended, PHRASE, masked=True, bias=of_bias)
add("clip", clip_loss, of_pairs.clip, bias=True)
add("negclip", negclip_loss, of_pairs.negclip, *MISSING, masked=True, bias=True, kinds=KINDS)
add("bag", bag_loss, of_pairs.bag, BAG, bias=True)
add("multi-text", multi_text_loss, of_pairs.multi_text, *REDUCTIONS, masked=True, bias=True)
add("hard positive", hard_positive_loss, of_pairs.hard_positive, *SYMMETRIC, bias=True)
