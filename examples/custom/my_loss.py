"""my-loss: a custom loss, as a term that can join any method.

compoclip train negclip --terms +./my_loss.py --data DATA --out RUN
--set terms.my-loss.weight=0.5 changes its weight.
"""

from torch import Tensor

from compoclip.losses import Features, Layout, Role
from compoclip.methods import NEGATIVES, LossTerm


def my_loss(features: Features, layout: Layout) -> Tensor:
    """Return by how much negatives come closer than 0.2 to the score of the caption, on average."""
    # Texts are one list: layout.owner is the image of each, layout.role its purpose.
    cosine = (features.image[layout.owner] * features.text).sum(-1)  # (T,)
    caption, negative = layout.role == Role.CAPTION, layout.role == Role.NEGATIVE
    right = cosine.new_zeros(layout.images)
    right = right.index_put((layout.owner[caption],), cosine[caption])  # (B,)
    gaps = 0.2 - right[layout.owner[negative]] + cosine[negative]
    return gaps.relu().sum() / max(1, len(gaps))  # 0 in a batch without negatives


# reads: texts without which the term is 0. needs_local=True adds features of patches and tokens.
TERM = LossTerm("my-loss", my_loss, weight=1.0, reads=NEGATIVES)
