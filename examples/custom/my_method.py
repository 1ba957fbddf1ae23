"""my-method: a custom training method.

compoclip train my_method.py --data DATA --out RUN --cache-frozen
"""

from torch import Tensor

from compoclip.losses import Features, Layout, Role, clip_loss
from compoclip.methods import NEGATIVES, CaptionPlan, LossTerm, Method, Optim, Trains, recipe


def margin_loss(features: Features, layout: Layout) -> Tensor:
    """Return by how much negatives come closer than 0.1 to the score of the caption, on average."""
    # Texts are one list: layout.owner is the image of each, layout.role its purpose.
    cosine = (features.image[layout.owner] * features.text).sum(-1)  # (T,)
    caption, negative = layout.role == Role.CAPTION, layout.role == Role.NEGATIVE
    right = cosine.new_zeros(layout.images)
    right = right.index_put((layout.owner[caption],), cosine[caption])  # (B,)
    gaps = 0.1 - right[layout.owner[negative]] + cosine[negative]
    return gaps.relu().sum() / max(1, len(gaps))  # 0 in a batch without negatives


@recipe
def my_method(*, margin_weight: float = 10.0) -> Method:
    """Plain fine-tuning with a margin between each caption and its negatives.

    Args:
        margin_weight: Weight of the loss with the margin.
    """
    return Method(
        name="my-method",
        plan=CaptionPlan(rewrites=("negclip", "replace")),  # compoclip list rewrites
        losses=(
            LossTerm("clip", clip_loss),
            LossTerm("margin", margin_loss, weight=margin_weight, reads=NEGATIVES),
        ),
        # The image tower is frozen, and --cache-frozen encodes each image once.
        trains=Trains(image_tower=False),
        crop=False,
        # For the small bundled model; a CLIP of 150 million parameters learns at 1e-6 to 5e-6.
        optim=Optim(epochs=4, batch_size=64, lr=1e-3, warmup=10),
    )
