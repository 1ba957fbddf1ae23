"""GNM-CLIP: generated variations of an object, each a matching pair."""

from __future__ import annotations

from compoclip.data.plans import Groups
from compoclip.losses.contrastive import clip_loss
from compoclip.methods.base import CaptionPlan, LossTerm, Method, Optim

OPTIM = Optim(epochs=10, batch_size=200, lr=1e-6, min_lr=1e-6, warmup=0)


def recipe(*, variations: int = 2, pairs: int = 8, optim: Optim = OPTIM) -> Method:
    """Plain contrastive loss on batches in which variations of one object meet.

    A group of a batch holds variations of one image with an object exchanged, and ordinary pairs:
    20 groups of 2 + 8 are the published batch of 200 (100 of 1 + 1 its other mode). The variations,
    images with captions, must be supplied: a table with a column `group` (equal for variations of
    one object, empty for ordinary pairs) and optionally `score`, by which they are drawn. Sahin et
    al., Enhancing Multimodal Compositional Reasoning of Visual Language Models with Generative
    Negative Mining (WACV 2024), with decoupled weight decay.

    Args:
        variations: Of one object, in a group.
        pairs: Ordinary pairs in a group.
        optim: Optimiser and schedule.
    """
    return Method(
        name="gnm-clip",
        paper="Sahin et al., WACV 2024",
        plan=CaptionPlan(),
        images=Groups(variations=variations, pairs=pairs),
        losses=(LossTerm("clip", clip_loss),),
        optim=optim,
        settings={"variations": variations, "pairs": pairs},
    )
