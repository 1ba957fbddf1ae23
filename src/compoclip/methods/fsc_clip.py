"""FSC-CLIP: fine-grained selective calibrated CLIP."""

from __future__ import annotations

from functools import partial

from compoclip.errors import UsageError
from compoclip.losses.contrastive import clip_loss
from compoclip.losses.hard_negative import global_hn_loss
from compoclip.losses.local import Attention, local_hn_loss
from compoclip.losses.rows import MissingHN, Reduction
from compoclip.methods.base import NEGATIVES, CaptionPlan, Difference, LossTerm, Method, Optim

OPTIM = Optim()
PLAN = CaptionPlan(rewrites=("negclip", "replace", "bigram-shuffle"))
DIFFERENCES = (
    Difference(
        "hn_reduction",
        "A caption without a negative says nothing on negatives; the published runs used it.",
        paper="batch",
        released="valid",
    ),
    Difference(
        "missing_hn",
        "A negative that does not exist is none: a score of 0 may take most of a row's softmax.",
        paper="mask",
        released="zero",
    ),
    Difference(
        "attention_grad",
        "Gradient through the weights over patches is not mentioned; the published runs had none.",
        released=False,
    ),
)


def recipe(
    *,
    global_weight: float = 0.5,
    local_weight: float = 0.2,
    gamma: float = 2.0,
    beta: float = 0.02,
    attention: Attention = "minmax",
    attention_grad: bool = False,
    hn_reduction: Reduction = "valid",
    missing_hn: MissingHN = "mask",
    optim: Optim = OPTIM,
) -> Method:
    """CLIP loss plus calibrated hard-negative losses on global and on patch-token features.

    Three negatives a caption (swap, replacement, bigram shuffle). Defaults are those of the paper:
    Oh et al., Preserving Multi-Modal Capabilities of Pre-trained VLMs for Improving
    Vision-Linguistic Compositionality (EMNLP 2024).

    Args:
        global_weight: Weight of the global hard-negative loss; 0 leaves the loss out.
        local_weight: Weight of the local hard-negative loss; 0 leaves the loss out.
        gamma: Focal exponent of both hard-negative losses; 0 switches it off.
        beta: Label smoothing over the valid negatives of both losses; 0 switches it off.
        attention: How token-patch similarities become weights over patches.
        attention_grad: Let gradient flow through these weights; off in the released code.
        hn_reduction: Divide hard-negative losses by the captions that have a negative (valid,
            released code) or by all (batch, paper).
        missing_hn: What stands for a negative that could not be made. mask: nothing. zero: a
            logit of 0, as in released code; for comparison only.
        optim: Optimiser and schedule.
    """
    if not (gamma >= 0 and 0 <= beta <= 1):
        raise UsageError(f"gamma must be >= 0 and beta in [0, 1], not {gamma} and {beta}")
    if not (global_weight >= 0 and local_weight >= 0):
        raise UsageError(
            f"loss weights must be >= 0, not {global_weight} (global) and {local_weight} (local)"
        )
    global_hn = partial(
        global_hn_loss,
        gamma=gamma,
        beta=beta,
        reduction=hn_reduction,
        missing_hn=missing_hn,
        rewrites=len(PLAN.rewrites),
    )
    local_hn = partial(
        local_hn_loss,
        attention=attention,
        attention_grad=attention_grad,
        gamma=gamma,
        beta=beta,
        reduction=hn_reduction,
        missing_hn=missing_hn,
        rewrites=len(PLAN.rewrites),
    )
    terms = (
        LossTerm("clip", clip_loss),
        LossTerm("global_hn", global_hn, weight=global_weight, reads=NEGATIVES),
        LossTerm("local_hn", local_hn, weight=local_weight, needs_local=True, reads=NEGATIVES),
    )
    return Method(
        name="fsc-clip",
        paper="Oh et al., EMNLP 2024",
        plan=PLAN,
        losses=tuple(term for term in terms if term.weight > 0),
        optim=optim,
        settings={
            "global_weight": global_weight,
            "local_weight": local_weight,
            "gamma": gamma,
            "beta": beta,
            "attention": attention,
            "attention_grad": attention_grad,
            "hn_reduction": hn_reduction,
            "missing_hn": missing_hn,
        },
        differences=DIFFERENCES,
    )
