"""LABCLIP: one trained matrix after the text tower, all else frozen."""

from __future__ import annotations

from compoclip.methods.base import NEGCLIP, CaptionPlan, Matrix, Method, Optim, Trains
from compoclip.methods.registry import recipe

OPTIM = Optim(
    epochs=10, batch_size=1024, lr=1e-3, weight_decay=0.0, beta2=0.999, eps=1e-8, warmup=0
)  # without weight decay AdamW is Adam
PLAN = CaptionPlan(rewrites=("noun-adj-shuffle",), pre_caption=40, cleaned="texts")


@recipe
def lab_clip(*, matrix: Matrix = "after", start_scale: float = 1.0) -> Method:
    r"""Train one matrix after the text tower, against shuffled captions; both towers are frozen.

    With W the matrix, initially the identity, and t = W x / |W x| for the text feature x of a
    caption or negative,

    .. math::
        L = \tfrac12 \big[ \mathrm{mean}_i \mathrm{CE}(e^q\, u_i \cdot [t; n],\ i)
            + \mathrm{mean}_i \mathrm{CE}(e^q\, t_i \cdot u,\ i) \big],

    with a separate temperature q that starts at 0. In a negative all nouns of the caption are
    permuted at random, and all adjectives. The score measures how much the frozen towers know about
    binding. The merged result is a plain checkpoint. With --cache-frozen each image and text is
    encoded once. CLIP Behaves like a Bag-of-Words Model Cross-modally but not Uni-modally (ICLR
    2026, arXiv 2502.03566).

    Args:
        matrix: after trains a square matrix after the projection; projection trains the projection.
        start_scale: Initial temperature e^q; 0 trains the model's temperature.
    """
    return Method(
        paper="Koishigarina et al., ICLR 2026",
        plan=PLAN,
        losses=(NEGCLIP,),
        optim=OPTIM,
        trains=Trains(image_tower=False, text_tower=False, matrix=matrix, start_scale=start_scale),
        crop=False,
    )
