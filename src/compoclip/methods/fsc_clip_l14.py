"""FSC-CLIP as released for ViT-L/14."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from compoclip.losses.local import Attention
from compoclip.losses.rows import MissingHN, Reduction
from compoclip.methods import fsc_clip
from compoclip.methods.base import Difference, Method, Optim

OPTIM = Optim(batch_size=256)
# Of the released run. The temperature is the exception: its gradient is whole in every process.
PROCESSES = 4
DIFFERENCES = (
    Difference(
        "weights",
        "The formula's; effective is how a gather without gradient weighs it in 4 processes.",
        released="effective",
    ),
    Difference(
        "local_weight",
        "The model is not in the paper; its rows come from the released command.",
        released=0.5,
    ),
    *fsc_clip.DIFFERENCES,
)


def recipe(
    *,
    global_weight: float = 0.5,
    local_weight: float = 0.5,
    weights: Literal["stated", "effective"] = "stated",
    gamma: float = 2.0,
    beta: float = 0.02,
    attention: Attention = "minmax",
    attention_grad: bool = False,
    hn_reduction: Reduction = "valid",
    missing_hn: MissingHN = "mask",
    optim: Optim = OPTIM,
) -> Method:
    """FSC-CLIP with the released settings for ViT-L/14.

    Batch of 256 (released: 64 in each of 4 processes), and a local weight of 0.5 in place of 0.2.
    The released processes gather features without gradient, which divides the gradient of the
    contrast by 4, but not that of the hard-negative losses, which each computes of its own rows.
    AdamW does not see the scale, so that their weights amount to four times what the command says:
    `--weights effective`. All else as `fsc-clip`: Oh et al. (EMNLP 2024).

    Args:
        global_weight: Weight of the global hard-negative loss; 0 leaves the loss out.
        local_weight: Weight of the local hard-negative loss; 0 leaves the loss out.
        weights: stated takes both weights as they are, effective times 4: what the gradients of the
            released run of 4 processes amount to (2.0 and 2.0).
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
    if weights == "effective":
        method = method.scaled(PROCESSES, "global_hn", "local_hn")
    return replace(
        method,
        name="fsc-clip-l14",
        settings={**method.settings, "weights": weights},
        differences=DIFFERENCES,
    )
