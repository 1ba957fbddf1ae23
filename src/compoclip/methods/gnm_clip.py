"""GNM-CLIP: generated variations of an object, each a matching pair."""

from __future__ import annotations

from typing import Literal

from compoclip.data.images.groups import Groups
from compoclip.methods.base import CLIP, CaptionPlan, Method, Optim
from compoclip.methods.registry import recipe


@recipe
def gnm_clip(
    *,
    variations: int = 2,
    pairs: int = 8,
    caption_words: int = 50,
    cleaned: Literal["variations", "all"] = "variations",
) -> Method:
    """Plain contrastive loss on batches with several variations of one object.

    A group of a batch holds variations of one image with an object replaced, and ordinary pairs: 20
    groups of 2 + 8 are the published batch of 200 (100 of 1 + 1 its other mode). The data must have
    the variations, images with captions: a table with a column `group` (equal for variations of one
    object, empty for ordinary pairs) and optionally `score` (mean image-text matching), the
    sampling weight, and `image_score`. Variations are used if score > 0 and image_score > 14.
    Images are not cropped. Released: Adam with L2; here weight decay is decoupled.

    Args:
        variations: Variations of one object per group.
        pairs: Ordinary pairs per group.
        caption_words: Lower-case captions, remove marks and cut them to this many words; 0 leaves
            them unchanged.
        cleaned: Clean captions of variations only, as in the released code, or all captions.
    """
    return Method(
        plan=CaptionPlan(pre_caption=caption_words, cleaned=cleaned),
        images=Groups(variations=variations, pairs=pairs),
        losses=(CLIP,),
        optim=Optim(epochs=10, batch_size=200, lr=1e-6, min_lr=1e-6, warmup=0),
        crop=False,
    )
