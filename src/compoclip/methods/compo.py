"""compo: parts of several recipes in one, each as far as an ablation found it to help."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from compoclip.data.caption_plan import OneOf
from compoclip.errors import UsageError
from compoclip.losses import denial_loss, feature_distillation, global_hn_loss, negclip_loss
from compoclip.losses.hard_negative import require_calibration
from compoclip.losses.rows import OnlyKinds
from compoclip.methods.base import (
    NEGATIVES,
    POSITIVES,
    CaptionPlan,
    LossTerm,
    Method,
    Teacher,
    Trains,
)
from compoclip.methods.registry import recipe

DENIAL = "denial"
PARAPHRASE = OneOf("paraphrase", ("synonym", "and-swap", "converse"))


@recipe
def compo(
    *,
    strength: float = 1.0,
    contrast_negatives: bool = True,
    global_weight: float = 1.5,
    gamma: float = 2.0,
    beta: float = 0.1,
    positive_share: float = 0.67,
    denial_weight: float = 1.0,
    distill_weight: float = 0.85,
    shuffle: bool = True,
) -> Method:
    r"""Calibrated hard negatives, paraphrases, negated captions, base distillation: our own method.

    The text tower learns. With captions t, negatives n, a paraphrase p, a negated caption d ("no
    cat"), and x* the embedding of an image or text x before training,

    .. math::
        L = L_{neg} + 1.5\, \mathrm{SCR}(s\, u_i \cdot [t_i, p_i, n_i]) + L_{denial}(u, d)
            + 0.85\, \mathrm{mean}\, \lVert x - x^* \rVert^2,

    where the contrast L_neg of the batch includes the negatives (`negclip`) and the calibrated loss
    (`fsc-clip`) puts two thirds of the label on the paraphrase. An image's negated caption must
    score lowest of all in the batch. The last mean is over all images and texts except negated
    captions (`degla` with a frozen teacher). The page "compo" has the ablation.

    Args:
        strength: Factor on the weights of hard negatives and negated captions, from 0 (the contrast
            with distillation) to 3 (most compositional).
        contrast_negatives: Whether the contrast of the batch includes the negatives (`negclip`).
        global_weight: Weight of the global hard-negative loss; 0 leaves the loss out.
        gamma: Focal exponent of the hard-negative loss.
        beta: Label smoothing of the hard-negative loss.
        positive_share: Share of the hard-negative loss's label on the paraphrase; 0 leaves
            paraphrases out.
        denial_weight: Weight of the contrast of negated captions; 0 leaves it out.
        distill_weight: Weight of the distance to the model before training; 0 leaves it out.
        shuffle: Whether captions with shuffled words are among the negatives.
    """
    require_calibration(gamma, beta, positive_share, UsageError)
    plan = CaptionPlan(
        rewrites=(
            "negclip",
            "replace",
            *(("bigram-shuffle",) if shuffle else ()),
            *((PARAPHRASE,) if positive_share > 0 else ()),
        ),
    )
    kinds = plan.rewrite_names
    if denial_weight > 0:  # negated captions are for their own loss alone
        plan = replace(plan, rewrites=(*plan.rewrites, DENIAL))
    ranking = partial(global_hn_loss, gamma=gamma, beta=beta, positive_share=positive_share)
    terms = (
        LossTerm(
            "clip",
            OnlyKinds(negclip_loss, kinds if contrast_negatives else ()),
            reads=NEGATIVES if contrast_negatives else (),
        ),
        LossTerm(
            "global_hn",
            OnlyKinds(ranking, kinds),
            weight=global_weight,
            reads=(*NEGATIVES, *(POSITIVES if positive_share > 0 else ())),
        ),
        LossTerm(
            "denial", OnlyKinds(denial_loss, (DENIAL,)), weight=denial_weight, reads=NEGATIVES
        ),
        LossTerm(
            "distill",
            OnlyKinds(feature_distillation, kinds),
            weight=distill_weight,
            needs_teacher=True,
        ),
    )
    method = Method(plan=plan, losses=terms, trains=Trains(image_tower=False), teacher=Teacher())
    return method.scaled(strength, "global_hn", "denial")
