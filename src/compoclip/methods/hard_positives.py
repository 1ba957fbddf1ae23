"""Hard positives with hard negatives."""

from __future__ import annotations

from functools import partial

from compoclip.config import RecordNames
from compoclip.data.caption_plan import OneOf
from compoclip.data.text_names import WRITTEN_POSITIVE
from compoclip.losses import global_hn_loss, hard_positive_loss
from compoclip.methods.base import NEGATIVES, NEGCLIP, POSITIVES, CaptionPlan, LossTerm, Method
from compoclip.methods.registry import recipe
from compoclip.methods.tsvlc import HARD_POSITIVES

WRITTEN = OneOf("hard-positive", (WRITTEN_POSITIVE,))
STRICT = OneOf("hard-positive", ("synonym-strict", "and-swap"))
STAND_INS = {
    "and-swap": "using rule-based positives; the paper used a language model (--positives FILE "
    "reads its texts)"
}
HARD_NEGATIVES = OneOf("hard-negative", ("crepe-swap", "crepe-atom", "crepe-negate"))


@recipe
def hard_positives(
    *,
    positives: RecordNames = "",
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    hn_fraction: float = 1.0,
    strict_synonyms: bool = False,
    symmetric_positives: bool = False,
) -> Method:
    r"""Contrastive loss with one hard negative and one hard positive per caption.

    With negatives n, hard positives v+ and captions t,

    .. math::
        L = L_{clip+neg} + w_+ \tfrac12 \big[ \mathrm{mean}_i \mathrm{CE}(s\, u_i \cdot v^+,\ i)
            + \mathrm{mean}_i \mathrm{CE}(s\, t_i \cdot v^+,\ i) \big]
            + w_- \mathrm{mean}_i \mathrm{CE}(s\, u_i \cdot [t_i, n_i],\ 0).

    The hard positive has a synonym or swapped conjuncts; the negative is a swap, replacement or
    negation as in CREPE; each is sampled uniformly among the applicable ones. Kamath et al., The
    Hard Positive Truth about Vision-Language Compositionality (ECCV 2024). The authors wrote
    positives with an LLM. They state no weights and optimiser: weights are 1, the optimiser is that
    of `fsc-clip`.

    Args:
        positives: File (or several: pattern, folder) of written positives instead of rule-based
            ones: JSON lines {"caption", "positive"}, with a text, several, or "None". Each is
            checked: equal content words, or one replaced, and at most 1.5 times the words.
        positive_weight: Weight of the loss on hard positives; 0 leaves it out.
        negative_weight: Weight of the loss on an image's negatives; 0 leaves the loss out.
        hn_fraction: Share of captions that have negatives (paper: 0, 0.25, 0.5, 1).
        strict_synonyms: Leave out loose synonyms such as "by" for "near".
        symmetric_positives: Contrast hard positives with images and captions in both directions.
    """
    by_rule = STRICT if strict_synonyms else HARD_POSITIVES
    positive = WRITTEN if positives else by_rule
    terms = (
        NEGCLIP,
        LossTerm(
            "positive",
            partial(hard_positive_loss, symmetric_pos=symmetric_positives),
            weight=positive_weight,
            reads=POSITIVES,
        ),
        LossTerm("negative", global_hn_loss, weight=negative_weight, reads=NEGATIVES),
    )
    return Method(
        paper="Kamath et al., ECCV 2024",
        plan=CaptionPlan(
            rewrites=(positive, HARD_NEGATIVES) if positive_weight > 0 else (HARD_NEGATIVES,),
            hn_fraction=hn_fraction,
            written=positives,
        ),
        losses=terms,
        stand_ins=STAND_INS,
    )
