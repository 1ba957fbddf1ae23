"""CoN-CLIP: negated captions, and distractor images that they are paired with."""

from __future__ import annotations

from functools import partial
from typing import Literal

from compoclip.data.images.neighbours import Distractors
from compoclip.losses import conclip_loss
from compoclip.methods.base import NEGATIVES, CaptionPlan, LossTerm, Method, Optim, Trains
from compoclip.methods.registry import recipe


@recipe
def con_clip(
    *,
    negatives: Literal["given", "crepe-negate"] = "given",
    distractors: Literal["given", "mined"] = "given",
    distractor_weight: float = 1.0,
) -> Method:
    r"""Text tower trained on captions, their negations, and distractor images.

    With images u, captions t, negated captions t- and distractors u-,

    .. math::
        L = \tfrac13 \big[ \mathrm{CE}(s\, u_i \cdot [t; t^-],\ i)
            + \mathrm{CE}(s\, t_i \cdot [u; u^-],\ i)
            + w\, \mathrm{CE}(s\, u^-_i \cdot [t^-; t],\ i) \big].

    The image tower is frozen. Data: a table with the columns neg_caption (the negation; CC-Neg as
    `compoclip data cc-neg` writes it) and neg_image (published: the COCO photo nearest to the
    caption). Without distractors only the first two terms are left, and the run is called
    con-clip-text. Singh et al., Learn "No" to Say "Yes" Better: Improving Vision-Language Models
    via Negations (WACV 2025). The released loader does not shuffle; this one does.

    Args:
        negatives: given takes the data's negations; crepe-negate makes them by rule.
        distractors: given takes the data's neg_image; mined takes one of the three nearest other
            images by the model's features before training.
        distractor_weight: Weight w of the distractors; 0 leaves them out.
    """
    loss = partial(conclip_loss, distractor_weight=distractor_weight)
    return Method(
        paper="Singh et al., WACV 2025",
        plan=CaptionPlan(rewrites=(negatives,)),
        images=Distractors(mined=distractors == "mined"),
        losses=(LossTerm("conclip", loss, reads=NEGATIVES),),
        trains=Trains(image_tower=False),
        optim=Optim(batch_size=200, lr=1e-6, weight_decay=0.2, beta2=0.999, eps=1e-8),
        crop=False,
    )
