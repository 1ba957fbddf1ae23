"""Mirrored photos as counterparts of captions that say left and right (after CounterCurate)."""

from __future__ import annotations

from compoclip.data.images import NegativeImages
from compoclip.data.text_names import GIVEN
from compoclip.losses import grouping_loss
from compoclip.methods.base import NEGATIVES, CaptionPlan, LossTerm, Method
from compoclip.methods.registry import recipe


@recipe
def mirror_pairs() -> Method:
    r"""Contrast of photos with their mirror images, each with its true caption.

    With a photo x, a caption c that says which of two things is on the left, the mirror image x',
    and the caption c' that is true of x':

    .. math::
        L = L_{clip}([x; x'],\ [c; c']).

    Data: the output of `python -m lab.mirror_pairs` for photos with boxes, or any table with the
    columns neg_caption and mirror. Rows about above and below have only a negative caption, which
    competes for every image. Mix such rows with captions written by people, at most one in four:
    on their own they ruin retrieval. After Zhang et al., CounterCurate (Findings of ACL 2024),
    which generates photos of above and below and of counts, and has no such mixture.
    """
    return Method(
        paper="Zhang et al., Findings of ACL 2024",
        plan=CaptionPlan(rewrites=(GIVEN,)),
        images=NegativeImages(),
        losses=(LossTerm("grouping", grouping_loss, reads=NEGATIVES),),
    )
