"""TSVLC with rule-based and language-model negatives."""

from __future__ import annotations

from dataclasses import replace

from compoclip.data.plans import CaptionPlan, OneOf
from compoclip.methods import tsvlc
from compoclip.methods.base import Method, Optim

OPTIM = tsvlc.OPTIM
NEGATIVES = OneOf("hard-negative", ("tsvlc-rb", "replace"))


def recipe(*, negative_weight: float = 1.0, optim: Optim = OPTIM) -> Method:
    """TSVLC whose negatives are by rule or, half of the time, a replacement of any word.

    The published method lets a masked language model fill in a noun, adposition, adjective or verb;
    here the rewrite `replace` does, from a lexicon. All else as `tsvlc`: Doveh et al. (CVPR 2023),
    RB+LLM.

    Args:
        negative_weight: Weight of the loss on an image's own negatives; 0 leaves the loss out.
        optim: Optimiser and schedule.
    """
    method = tsvlc.recipe(negative_weight=negative_weight, optim=optim)
    return replace(
        method,
        name="tsvlc-llm",
        plan=CaptionPlan(rewrites=(NEGATIVES,)),
        settings={"negative_weight": negative_weight},
    )
