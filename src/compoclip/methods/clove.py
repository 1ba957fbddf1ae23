"""CLoVe: replacement negatives on synthetic captions, then weight interpolation."""

from __future__ import annotations

from compoclip.methods.base import NEGCLIP, CaptionPlan, Method, Optim
from compoclip.methods.registry import recipe


@recipe
def clove() -> Method:
    """Contrastive loss with one word replaced per caption; interpolate with the base afterwards.

    The loss of `negclip` on negatives of the rewrite `replace`. Castro et al., CLoVe: Encoding
    Compositional Language in Contrastive Vision-Language Models (2024): LAION-COCO, 100 epochs of
    10 M samples. The third step of the method is `compoclip wise-ft BASE TUNED` with 0.6 of the
    tuned weights.
    """
    return Method(
        paper="Castro et al., 2024",
        plan=CaptionPlan(rewrites=("replace",)),
        losses=(NEGCLIP,),
        optim=Optim(epochs=100, batch_size=2048, lr=1e-6, warmup=2000),
    )
