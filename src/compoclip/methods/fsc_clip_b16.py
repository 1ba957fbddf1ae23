"""FSC-CLIP as released for ViT-B/16."""

from __future__ import annotations

from dataclasses import replace

from compoclip.losses.local import Attention
from compoclip.losses.rows import MissingHN, Reduction
from compoclip.methods import fsc_clip
from compoclip.methods.base import Difference, Method, Optim

OPTIM = Optim(batch_size=128)
DIFFERENCES = (
    Difference(
        "local_weight",
        "The published rows of ViT-B/16 come from the released command.",
        paper=0.2,
        released=0.5,
    ),
    Difference(
        "batch_size",
        "From the released command; half of that for ViT-B/32.",
        released=128,
    ),
    *fsc_clip.DIFFERENCES,
)


def recipe(
    *,
    global_weight: float = 0.5,
    local_weight: float = 0.5,
    gamma: float = 2.0,
    beta: float = 0.02,
    attention: Attention = "minmax",
    attention_grad: bool = False,
    hn_reduction: Reduction = "valid",
    missing_hn: MissingHN = "mask",
    optim: Optim = OPTIM,
) -> Method:
    """FSC-CLIP with the released settings for ViT-B/16.

    Batch of 128, and a local weight of 0.5 in place of 0.2. All else as `fsc-clip`: Oh et al.
    (EMNLP 2024).

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
    method = fsc_clip.recipe(
        global_weight=global_weight,
        local_weight=local_weight,
        gamma=gamma,
        beta=beta,
        attention=attention,
        attention_grad=attention_grad,
        hn_reduction=hn_reduction,
        missing_hn=missing_hn,
        optim=optim,
    )
    return replace(method, name="fsc-clip-b16", differences=DIFFERENCES)
