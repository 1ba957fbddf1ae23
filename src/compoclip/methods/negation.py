"""Fine-tuning on captions with negations: NegBench's, NegationCLIP's, Omni-NegCLIP and SemCLIP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from compoclip.data.caption_plan import OneOf, Texts
from compoclip.data.drawing import Drawing, Drawn
from compoclip.data.text_names import GIVEN, GIVEN_POSITIVE
from compoclip.errors import UsageError
from compoclip.losses import (
    clip_loss,
    global_hn_loss,
    negclip_loss,
    paraphrase_loss,
    phrase_loss,
    projected_negation_loss,
    separation_loss,
)
from compoclip.losses.contract import Role
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
from compoclip.rewrites.absent_object import ABSENT_OBJECT, say_absent
from compoclip.rewrites.base import Refused

THIRD, TWO_THIRDS = 0.3333333333333333, 0.6666666666666666
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
        contrast_weight: Weight alpha of the contrast.
        choice_weight: Weight beta of the multiple choice.
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


# --- Omni-NegCLIP: both kinds of negation; the first blocks of the text tower train. ---


@dataclass(frozen=True)
class AbsentPlan(Texts):
    """A text per caption that adds an absent object to it, which no caption of the image names."""

    name: ClassVar[str] = "absent_objects"
    label: ClassVar[str] = "captions with an absent object"
    roles: ClassVar[tuple[Role, ...]] = POSITIVES
    kinds = (ABSENT_OBJECT.name,)

    def draw_texts(self, drawing: Drawing, loaded: Any) -> None:
        """Add the text, if there is one."""
        (kind,) = self.kinds
        captions = map(drawing.parse, (drawing.caption, *drawing.other_captions()))
        stated = say_absent(tuple(captions), drawing.rng(kind))
        drawing.add(stated.reason if isinstance(stated, Refused) else Drawn.of(stated), kind)


OMNI_PLANS: Plans = {
    "made": CaptionPlan(rewrites=("crepe-negate",), texts=(AbsentPlan(),)),
    "given": CaptionPlan(rewrites=(GIVEN, GIVEN_POSITIVE)),
}


@recipe
def omni_negclip(
    *,
    statements: Made = "made",
    absence_weight: float = 1.0,
    margin: float = 0.9,
    front: float = 0.5,
) -> Method:
    r"""Captions that deny what is there, and captions that say what is absent (Omni-NegCLIP).

    With captions t, their negations n, which are false of the image, and captions a that say what
    is absent, which are true of it,

    .. math::
        L = \tfrac13 \big[ \mathrm{CE}(s\, u_i \cdot [t; n],\ i) + \mathrm{CE}(s\, t_i \cdot u,\ i)
            + \mathrm{CE}([s\, u_i \cdot t_i,\ s\, u_i \cdot n_i],\ 0) \big]
            + w \big[ L_{clip}(u, a) + L_{clip}(u, t)
            + \mathrm{mean}_i \max(0,\ t_i \cdot a_i + m) \big].

    The image tower is frozen, and so are the later blocks of the text tower. Data: with
    --statements given a table with the columns neg_caption and pos_caption. The published runs take
    the negations from CC-Neg and the absent objects from NegationCLIP's captions of COCO, one batch
    of each per step; here a photo has both. Omni-NegCLIP, arXiv 2603.29258 (2026); losses and
    defaults are those of its released code.

    Args:
        statements: made negates a thing of the caption, and adds an absent object to it, by rule;
            given takes both from the data.
        absence_weight: Weight w of the terms with absent objects; 0 leaves absent objects out.
        margin: Margin m between a caption and its copy with an absent object, in cosines.
        front: Share of the blocks of the text tower that learn, from the first one on.
    """
    absence = partial(
        phrase_loss, phrase=GIVEN_POSITIVE if statements == "given" else ABSENT_OBJECT.name
    )
    separation = partial(separation_loss, margin=margin)
    return Method(
        paper="Omni-NegCLIP, arXiv 2603.29258",
        plan=OMNI_PLANS[statements],
        losses=(
            LossTerm("negclip", negclip_loss, weight=TWO_THIRDS, reads=NEGATIVES),
            LossTerm("choice", global_hn_loss, weight=THIRD, reads=NEGATIVES),
            LossTerm("absence", absence, weight=absence_weight, reads=POSITIVES),
            LossTerm("clip", clip_loss, weight=absence_weight),
            LossTerm("separation", separation, weight=absence_weight, reads=POSITIVES),
        ),
        trains=Trains(image_tower=False, text_blocks=front),
        optim=Optim(30, 128, lr=1e-6, weight_decay=0.2, beta2=0.999, eps=1e-8),
        crop=False,
    )


# --- SemCLIP: paraphrases stay, negations leave, along two directions of the text space. ---

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
