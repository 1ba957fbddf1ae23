"""TSVLC with rule-based and language-model negatives."""

from __future__ import annotations

from dataclasses import replace

from compoclip.data.plans import WRITTEN_NEGATIVE, CaptionPlan, OneOf
from compoclip.methods import tsvlc
from compoclip.methods.base import Difference, Method, Optim

OPTIM = tsvlc.OPTIM
FILLED = "replace"  # what stands in for the masked language model
STAND_INS = {
    FILLED: "`replace`, which takes words from a lexicon, stands in for the masked language model "
    "of the published runs; --negatives FILE takes texts of one"
}
DIFFERENCES = (
    Difference(
        "negatives",
        "Published: by a masked language model. None is shipped; `replace` stands in for it.",
    ),
    *tsvlc.DIFFERENCES,
)


def recipe(
    *,
    negatives: str = "",
    negative_weight: float = 1.0,
    actions: tsvlc.Actions = "spatial",
    optim: Optim = OPTIM,
) -> Method:
    """TSVLC whose negatives are by rule or, half of the time, a replacement of any word.

    The published method lets a masked language model fill in a noun, adposition, adjective or verb;
    here such negatives are read from a file, or else the rewrite `replace` makes them, from a
    lexicon. All else as `tsvlc`: Doveh et al. (CVPR 2023), RB+LLM.

    Args:
        negatives: File of negatives that were written for the captions: JSON lines {"caption",
            "negative"}, a text, several, or "None".
        negative_weight: Weight of the loss on an image's own negatives; 0 leaves the loss out.
        actions: spatial exchanges verbs and prepositions of place, verbs verbs alone, by words that
            exclude the old one. released has the 47 words of the released code's list of actions
            (in, on, with, holding, wearing), and puts any other word of a list for one of it.
        optim: Optimiser and schedule.
    """
    method = tsvlc.recipe(negative_weight=negative_weight, actions=actions, optim=optim)
    either = (tsvlc.BY_RULE[actions], WRITTEN_NEGATIVE if negatives else FILLED)
    return replace(
        method,
        name="tsvlc-llm",
        plan=CaptionPlan(rewrites=(OneOf("hard-negative", either),), written=negatives),
        settings={"negatives": negatives, "negative_weight": negative_weight, "actions": actions},
        stand_ins=STAND_INS,
        differences=DIFFERENCES,
    )
