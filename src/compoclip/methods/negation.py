"""Fine-tuning on captions that say what is absent: NegBench's, NegationCLIP's and SemCLIP's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

from compoclip.data.caption_plan import GIVEN, GIVEN_POSITIVE, OneOf
from compoclip.errors import UsageError
from compoclip.losses import clip_loss, global_hn_loss, paraphrase_loss, projected_negation_loss
from compoclip.methods.base import (
    CLIP,
    NEGATIVES,
    POSITIVES,
    CaptionPlan,
    LossTerm,
    Method,
    Optim,
    Trains,
)
from compoclip.methods.registry import recipe

Made = Literal["given", "made"]
"""Texts as the data has them, or made by rule of its captions."""
Plans = Mapping[Made, CaptionPlan]


# --- NegBench's fine-tuning: a contrast of captions with negations, and a multiple choice. ---

OPTIONS = CaptionPlan(rewrites=("crepe-negate", "affirmed-object", "replace"), absent=True)
MCQ_PLANS: Plans = {"made": OPTIONS, "given": CaptionPlan(rewrites=(GIVEN, GIVEN, GIVEN))}


@recipe
def neg_mcq(
    *, statements: Made = "made", contrast_weight: float = 0.99, choice_weight: float = 0.01
) -> Method:
    r"""Contrast on captions with negations, and a multiple choice of four options (NegBench).

    With captions t that say what is absent, and false options n_1 .. n_3,

    .. math::
        L = \alpha\, L_{clip}(u, t)
            + \beta\, \mathrm{mean}_i \mathrm{CE}(s\, u_i \cdot [t_i, n_{i1} .. n_{i3}],\ 0).

    Data: with --statements given a table whose captions hold the negations and whose column
    neg_caption holds the false options. Alhamoud et al., Vision-Language Models Do Not Understand
    Negation (CVPR 2025). Published for alpha 0, .5, .9, .99, 1 and beta the rest: R@5 33.9, 37.3,
    47.6, 54.2, 58.5; multiple choice 59.4, 53.7, 54.6, 54.4, 47.3. There captions and choices are
    separate sets of photos, here a photo has both.

    Args:
        statements: made adds ", but no {object}" to captions and makes rule-based options: a
            negated thing that is there, a thing that is absent, a replaced word. given takes both
            from the data.
        contrast_weight: alpha.
        choice_weight: beta.
    """
    terms = (
        LossTerm("clip", clip_loss, weight=contrast_weight),
        LossTerm("choice", global_hn_loss, weight=choice_weight, reads=NEGATIVES),
    )
    return Method(
        paper="Alhamoud et al., CVPR 2025",
        plan=MCQ_PLANS[statements],
        losses=terms,
        optim=Optim(lr=1e-6),
    )


# --- NegationCLIP: a plain contrast, the captions say what is absent. ---

NEGATION_PLANS: Plans = {"made": CaptionPlan(absent=True), "given": CaptionPlan()}
NEGATION_OPTIM = Optim(
    15, 512, lr=1e-6, min_lr=1e-6, warmup=0, weight_decay=0.01, beta2=0.999, eps=1e-8
)


@recipe
def negation_clip(*, statements: Made = "made") -> Method:
    r"""Contrast on captions that state an absent object; the text tower trains (NegationCLIP).

    .. math::
        L = L_{clip}(u, t), \quad t = \text{"..., but no \{object\}"}

    The image tower and the last LayerNorm of the text tower are frozen. Park et al., Know "No"
    Better: A Data-Driven Approach for Enhancing Negation Awareness in CLIP (ICCV 2025).

    Args:
        statements: made adds an absent object that often occurs with the named ones; given uses the
            captions unchanged (updated_caption in NegationCLIP's JSON).
    """
    return Method(
        paper="Park et al., ICCV 2025",
        plan=NEGATION_PLANS[statements],
        losses=(CLIP,),
        optim=NEGATION_OPTIM,
        trains=Trains(image_tower=False, text_norm=False),
        crop=False,
    )


# --- SemCLIP: paraphrases stay, negations leave, along two directions of the text space. ---

THIRD = 0.3333333333333333
SEM_PLANS: Plans = {
    "made": CaptionPlan(rewrites=(OneOf("paraphrase", ("synonym", "and-swap")), "crepe-negate")),
    "given": CaptionPlan(rewrites=(GIVEN_POSITIVE, GIVEN)),
}


@recipe
def sem_clip(
    *, statements: Made = "given", directions: int = 2, directions_seed: int = 0
) -> Method:
    r"""Text tower trained to match paraphrases and reject negations in a fixed projection.

    With captions t, paraphrases p, negations n, and P two orthonormal random directions that never
    learn,

    .. math::
        L = \tfrac13 \big[ L_{clip}(u, t) + \mathrm{mean}_i (1 - \cos(P t_i, P p_i))
            + \mathrm{mean}_i \max(0, \cos(P t_i, P n_i)) \big].

    The image tower is frozen. Data: SemCLIP's CSV (filename, caption, paraphrased, negation), or a
    table with the columns pos_caption and neg_caption. The released contrast is of features that
    are not of unit length, with a new temperature. SemCLIP (submission to AAAI 2026); its base is
    LAION-2B ViT-B/32.

    Args:
        statements: given takes paraphrases and negations from the data; made makes them by rule.
        directions: Number of directions of P.
        directions_seed: Seed of P.
    """
    if directions < 1:
        raise UsageError(f"--directions {directions}: must be at least 1")
    paraphrase = partial(paraphrase_loss, directions=directions, seed=directions_seed)
    negation = partial(projected_negation_loss, directions=directions, seed=directions_seed)
    terms = (
        LossTerm("clip", clip_loss, weight=THIRD),
        LossTerm("paraphrase", paraphrase, weight=THIRD, reads=POSITIVES),
        LossTerm("negation", negation, weight=THIRD, reads=NEGATIVES),
    )
    return Method(
        paper="SemCLIP, AAAI 2026 (submission)",
        plan=SEM_PLANS[statements],
        losses=terms,
        optim=Optim(epochs=200, lr=5e-5, weight_decay=0.2, beta2=0.999, eps=1e-8, clip_grad=1.0),
        trains=Trains(image_tower=False),
        crop=False,
    )
