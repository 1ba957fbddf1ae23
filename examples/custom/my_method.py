"""my-method: a custom training method.

compoclip train my_method.py --data DATA --out RUN
"""

from torch import Tensor

from compoclip.losses import Features, Layout, Role, negclip_loss
from compoclip.methods import NEGATIVES, CaptionPlan, LossTerm, Method, Optim, recipe


def margin_loss(features: Features, layout: Layout) -> Tensor:
    """Return by how much negatives come closer than 0.2 to the score of the caption, on average."""
    # Texts are one list: layout.owner is the image of each, layout.role its purpose.
    cosine = (features.image[layout.owner] * features.text).sum(-1)  # (T,)
    caption, negative = layout.role == Role.CAPTION, layout.role == Role.NEGATIVE
    right = cosine.new_zeros(layout.images)
    right = right.index_put((layout.owner[caption],), cosine[caption])  # (B,)
    gaps = 0.2 - right[layout.owner[negative]] + cosine[negative]
    return gaps.relu().sum() / max(1, len(gaps))  # 0 in a batch without negatives


@recipe
def my_method(*, margin_weight: float = 0.5) -> Method:
    """NegCLIP with a margin between each caption and its negatives.

    Args:
        margin_weight: Weight of the loss with the margin.
    """
    return Method(
        name="my-method",
        plan=CaptionPlan(rewrites=("negclip", "replace")),  # compoclip list rewrites
        losses=(
            LossTerm("negclip", negclip_loss, reads=NEGATIVES),
            LossTerm("margin", margin_loss, weight=margin_weight, reads=NEGATIVES),
        ),
        optim=Optim(lr=1e-6),
    )
