"""Mirrored photos as counterparts of captions that say left and right (after CounterCurate)."""

from __future__ import annotations

from compoclip.data.caption_plan import GIVEN
from compoclip.data.images import NegativeImages
from compoclip.losses.triplet import grouping_loss
from compoclip.methods.base import NEGATIVES, CaptionPlan, LossTerm, Method, PaperDifference
from compoclip.methods.registry import recipe

DIFFERENCES = (
    PaperDifference(
        "lr", "The repository names no hyper-parameters; these are those of plain fine-tuning."
    ),
)


@recipe
def mirror_pairs() -> Method:
    r"""Contrast of photos with their mirror images, each with the caption that is true of it.

    A photo x with a caption c that says which of two things stands to the left, its mirror image
    x', and the caption c' that is true of that:

    .. math::
        L = L_{clip}([x; x'],\ [c; c']).

    Data: what `compoclip data mirror-pairs` writes from photos with boxes, or any table with the
    columns neg_caption and mirror. Rows of which one is above the other have a negative caption
    alone, which competes for every image; rows of ordinary captions may be among them. Use it so:
    at most a quarter of such rows beside captions that people wrote, for alone they ruin retrieval.
    After Zhang et al., CounterCurate (Findings of ACL 2024), whose above and below photos and
    counts are generated and who have no such mixture.
    """
    return Method(
        paper="Zhang et al., Findings of ACL 2024",
        plan=CaptionPlan(rewrites=(GIVEN,)),
        images=NegativeImages(),
        losses=(LossTerm("grouping", grouping_loss, reads=NEGATIVES),),
        differences=DIFFERENCES,
    )
