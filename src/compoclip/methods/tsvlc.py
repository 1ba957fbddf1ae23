"""TSVLC (also SVLC) with rule-based negatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from compoclip.config import RecordNames
from compoclip.data.caption_plan import CaptionPlan, OneOf
from compoclip.data.text_names import WRITTEN_NEGATIVE
from compoclip.losses import global_hn_loss, hard_positive_loss
from compoclip.methods.base import NEGATIVES, NEGCLIP, POSITIVES, Lora, LossTerm, Method, Optim
from compoclip.methods.registry import recipe, variant

Actions = Literal["spatial", "verbs", "released"]
"""Which words count as actions, and which word takes the place of one (see `tsvlc`)."""

HARD_POSITIVES = OneOf("hard-positive", ("synonym", "and-swap"))
BY_RULE = {"spatial": "tsvlc-rb-spatial", "verbs": "tsvlc-rb", "released": "tsvlc-rb-released"}


@recipe
def tsvlc(
    *, negative_weight: float = 1.0, positive_weight: float = 0.0, actions: Actions = "spatial"
) -> Method:
    r"""Low-rank adapters, and a negative with one word replaced by another of its category.

    With negatives n and captions t,

    .. math::
        L = L_{clip+neg} + w_- \mathrm{mean}_i \mathrm{CE}(s\, u_i \cdot [t_i, n_i],\ 0),

    where L_clip+neg has all negatives of the batch in its image-to-text direction. Negatives
    replace a colour, size, state, material or action. Doveh et al., Teaching Structured Vision &
    Language Concepts to Vision & Language Models (CVPR 2023). Warm-up: 10,000 steps, at most a
    tenth of the run.

    Args:
        negative_weight: Weight of the loss on an image's negatives; 0 leaves the loss out.
        positive_weight: Weight of the loss on synonyms and swapped conjuncts; 0 leaves it out, as
            in the published runs on negatives.
        actions: spatial exchanges verbs and prepositions of place, verbs verbs alone, by words that
            exclude the old one. released has the 47 words of the released code's list of actions
            (in, on, with, holding, wearing), and puts any other word of a list for one of it.
    """
    by_rule = BY_RULE[actions]
    terms = (
        NEGCLIP,
        LossTerm("negative", global_hn_loss, weight=negative_weight, reads=NEGATIVES),
        LossTerm("positive", hard_positive_loss, weight=positive_weight, reads=POSITIVES),
    )
    return Method(
        paper="Doveh et al., CVPR 2023",
        plan=CaptionPlan(rewrites=(by_rule, HARD_POSITIVES) if positive_weight > 0 else (by_rule,)),
        losses=terms,
        optim=Optim(batch_size=128, warmup=10_000, warmup_share=0.1),
        lora=Lora(),
    )


# --- TSVLC with rule-based and language-model negatives. ---

FILLED = "replace"  # what stands in for the masked language model
STAND_INS = {
    FILLED: "`replace` takes words from a lexicon; the paper used a masked language model "
    "(--negatives FILE reads its texts)"
}


@recipe
def tsvlc_llm(
    *, negatives: RecordNames = "", negative_weight: float = 1.0, actions: Actions = "spatial"
) -> Method:
    """TSVLC with half rule-based negatives and half replacements of any word.

    In the published method a masked language model fills in a noun, adposition, adjective or verb;
    here such negatives are read from a file, or else made from a lexicon by the rewrite `replace`.
    Otherwise like `tsvlc`: Doveh et al. (CVPR 2023), RB+LLM.

    Args:
        negatives: File of written negatives: JSON lines {"caption", "negative"}, with a text,
            several, or "None".
        negative_weight: Weight of the loss on an image's negatives; 0 leaves the loss out.
        actions: spatial exchanges verbs and prepositions of place, verbs verbs alone, by words that
            exclude the old one. released has the 47 words of the released code's list of actions
            (in, on, with, holding, wearing), and puts any other word of a list for one of it.
    """
    method = tsvlc(negative_weight=negative_weight, actions=actions)
    either = (BY_RULE[actions], WRITTEN_NEGATIVE if negatives else FILLED)
    return replace(
        method,
        name="tsvlc-llm",
        plan=CaptionPlan(rewrites=(OneOf("hard-negative", either),), written=negatives),
        stand_ins=STAND_INS,
    )


@variant(tsvlc, positive_weight=1.0)
def tsvlc_pos(method: Method) -> Method:
    r"""TSVLC, and a positive per caption with a synonym or swapped conjuncts.

    To the losses of `tsvlc` comes, with hard positives v+ and captions t,

    .. math::
        w_+ \tfrac12 \big[ \mathrm{mean}_i \mathrm{CE}(s\, u_i \cdot v^+,\ i)
            + \mathrm{mean}_i \mathrm{CE}(s\, t_i \cdot v^+,\ i) \big].

    Otherwise like `tsvlc`: Doveh et al. (CVPR 2023).

    Args:
        positive_weight: Weight of the loss on hard positives; 0 is `tsvlc`.
    """
    return method
