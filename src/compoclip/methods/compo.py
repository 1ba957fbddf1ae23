"""compo: parts of several recipes in one, each as far as a screening found it to help."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from compoclip.data.caption_plan import OneOf
from compoclip.data.images import Single
from compoclip.data.images.neighbours import Neighbours
from compoclip.data.texts import UnitPlan
from compoclip.errors import UsageError
from compoclip.losses import (
    caption_alignment,
    denial_loss,
    feature_distillation,
    global_hn_loss,
    local_hn_loss,
    negclip_loss,
    unit_loss,
)
from compoclip.losses.rows import OnlyKinds
from compoclip.methods.base import (
    NEGATIVES,
    POSITIVES,
    CaptionPlan,
    Lora,
    LossTerm,
    Method,
    Teacher,
    Trains,
)
from compoclip.methods.registry import recipe

DENIAL = "denial"
PARAPHRASE = OneOf("paraphrase", ("synonym", "and-swap", "converse"))
WITHOUT_CONVERSE = OneOf("paraphrase", PARAPHRASE.of[:2])


@recipe
def compo(
    *,
    strength: float = 1.0,
    contrast_negatives: bool = False,
    global_weight: float = 1.5,
    local_weight: float = 0.0,
    gamma: float = 2.0,
    beta: float = 0.1,
    positive_share: float = 0.67,
    align_weight: float = 0.0,
    distill_weight: float = 2.56,
    denial_weight: float = 3.0,
    unit_weight: float = 0.0,
    shuffle: bool = True,
    converse: bool = True,
    denials: bool = False,
    absent: bool = False,
    fluent: bool = False,
    neighbours: int = 0,
    image_tower: bool = False,
    adapters: bool = False,
) -> Method:
    r"""Calibrated hard negatives, paraphrases, negated captions, base distillation: our own method.

    The text tower learns. With captions t, negatives n, a paraphrase p, a negated caption d ("no
    cat"), and x* the embedding of an image or text x before training,

    .. math::
        L = L_{clip} + 1.5\, \mathrm{SCR}(s\, u_i \cdot [t_i, p_i, n_i]) + 3\, L_{denial}(u, d)
            + 2.56\, \mathrm{mean}\, \lVert x - x^* \rVert^2,

    where the calibrated loss (`fsc-clip`) puts two thirds of the label on the paraphrase. An
    image's negated caption must score lowest of all in the batch. The last mean is over all images
    and texts except negated captions (`degla` with a frozen teacher). The page "compo" explains the
    parts, and why others are off; all can be switched, to reproduce that page.

    Args:
        strength: Factor on the weights of hard negatives and negated captions, from 0 (plain
            fine-tuning of the text tower with distillation) to 3 (most compositional).
        contrast_negatives: Whether the contrast of the batch includes the negatives (`negclip`).
        global_weight: Weight of the global hard-negative loss; 0 leaves the loss out.
        local_weight: Weight of the local hard-negative loss; 0 leaves the loss out.
        gamma: Focal exponent of both hard-negative losses.
        beta: Label smoothing of both.
        positive_share: Share of the label on the paraphrase in both; 0 leaves it out.
        align_weight: Weight of the alignment of paraphrases with captions (`read-clip`); 0 leaves
            it out.
        distill_weight: Weight of the distance to the model before training; 0 leaves it out.
        denial_weight: Weight of the contrast of negated captions; 0 leaves it out.
        unit_weight: Weight of the loss on units of captions (`cs-clip`); 0 leaves it out.
        shuffle: Whether captions with shuffled words are among the negatives.
        converse: Whether the paraphrase may be the converse of a relation.
        denials: Whether captions that negate a shown object are among the negatives.
        absent: Whether captions that negate an absent object are among the positives.
        fluent: Whether to take only swaps whose words occur together in captions.
        neighbours: Similar images per sample in its batch, of the 3 nearest by the model's image
            features.
        image_tower: Whether the image tower learns too.
        adapters: Whether adapters learn instead of all weights.
    """
    if not (gamma >= 0 and 0 <= beta <= 1 and 0 <= positive_share <= 1):
        raise UsageError(
            f"gamma must be >= 0, beta and positive_share in [0, 1], not {gamma}, {beta} and "
            f"{positive_share}"
        )
    paraphrased = positive_share > 0 or align_weight > 0
    paraphrase = PARAPHRASE if converse else WITHOUT_CONVERSE
    units = UnitPlan()
    plan = CaptionPlan(
        texts=(units,) if unit_weight > 0 else (),
        rewrites=(
            *("negclip-fluent" if fluent else "negclip", "replace"),
            *(("bigram-shuffle",) if shuffle else ()),
            *(("crepe-negate",) if denials else ()),
            *(("absent-object",) if absent else ()),
            *((paraphrase,) if paraphrased else ()),
        ),
    )
    calibration: Any = {"gamma": gamma, "beta": beta, "positive_share": positive_share}
    # Units, their foils and denials are for their own losses alone.
    kinds = plan.rewrite_names
    if denial_weight > 0:
        plan = replace(plan, rewrites=(*plan.rewrites, DENIAL))
    contrast = OnlyKinds(negclip_loss, kinds if contrast_negatives else ())
    global_hn = OnlyKinds(partial(global_hn_loss, **calibration), kinds)
    local_hn = OnlyKinds(partial(local_hn_loss, **calibration), kinds)
    align = partial(caption_alignment, positives=paraphrase.of)
    denial = OnlyKinds(denial_loss, (DENIAL,))
    unit = partial(unit_loss, units=units.units, foils=units.foils)
    distill = OnlyKinds(feature_distillation, (*kinds, *units.units, *units.foils))
    read = (*NEGATIVES, *(POSITIVES if positive_share > 0 else ()))
    terms = (
        LossTerm("clip", contrast, reads=NEGATIVES if contrast_negatives else ()),
        LossTerm("global_hn", global_hn, weight=global_weight, reads=read),
        LossTerm("local_hn", local_hn, weight=local_weight, needs_local=True, reads=read),
        LossTerm("align", align, weight=align_weight, reads=POSITIVES),
        LossTerm("denial", denial, weight=denial_weight, reads=NEGATIVES),
        LossTerm("unit", unit, weight=unit_weight, reads=(*POSITIVES, *NEGATIVES)),
        LossTerm("distill", distill, weight=distill_weight, needs_teacher=True),
    )
    method = Method(
        plan=plan,
        losses=terms,
        images=Neighbours(count=neighbours, mined=True) if neighbours else Single(),
        trains=Trains(image_tower=image_tower),
        teacher=Teacher(),
    ).scaled(strength, "global_hn", "local_hn", "denial")
    return method.with_lora(Lora()) if adapters else method
