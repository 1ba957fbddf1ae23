"""TSVLC with rule-based and language-model negatives."""

from __future__ import annotations

from dataclasses import replace

from compoclip.data.plans import WRITTEN_NEGATIVE, CaptionPlan, OneOf
from compoclip.methods import tsvlc
from compoclip.methods.base import Method, Optim

OPTIM = tsvlc.OPTIM
BY_RULE = OneOf("hard-negative", ("tsvlc-rb", "replace"))
WRITTEN = OneOf("hard-negative", ("tsvlc-rb", WRITTEN_NEGATIVE))


def recipe(*, negatives: str = "", negative_weight: float = 1.0, optim: Optim = OPTIM) -> Method:
    """TSVLC whose negatives are by rule or, half of the time, a replacement of any word.

    The published method lets a masked language model fill in a noun, adposition, adjective or verb;
    here such negatives are read from a file, or else the rewrite `replace` makes them, from a
    lexicon. All else as `tsvlc`: Doveh et al. (CVPR 2023), RB+LLM.

    Args:
        negatives: File of negatives that were written for the captions: JSON lines {"caption",
            "negative"}, a text, several, or "None".
        negative_weight: Weight of the loss on an image's own negatives; 0 leaves the loss out.
        optim: Optimiser and schedule.
    """
    method = tsvlc.recipe(negative_weight=negative_weight, optim=optim)
    return replace(
        method,
        name="tsvlc-llm",
        plan=CaptionPlan(rewrites=(WRITTEN if negatives else BY_RULE,), written=negatives),
        settings={"negatives": negatives, "negative_weight": negative_weight},
    )
