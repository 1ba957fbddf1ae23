"""MosaiCLIP for pre-training."""

from __future__ import annotations

from functools import partial

from compoclip.data.plans import GraphPlan
from compoclip.losses.multi_text import multi_text_loss
from compoclip.methods.base import NEGATIVES, POSITIVES, CaptionPlan, LossTerm, Method, Optim

OPTIM = Optim(epochs=32, batch_size=4096, lr=1e-3, warmup=5000)


def recipe(
    *,
    object_share: float = 0.15,
    mask_duplicates: bool = True,
    vocabulary: str = "",
    optim: Optim = OPTIM,
) -> Method:
    """MosaiCLIP pre-training: graph texts and a swapped caption; use with --from-scratch.

    The loss of `mosaic-clip`, no curriculum (at most three sub-graphs and six negatives), and one
    swap negative of the whole caption. Singh et al. (EMNLP 2023), pre-training on CC12M or
    YFCC15M. The paper's cache of earlier sentences is not part of it: it fills every device up to
    the same number of texts, and here a batch has as many as there are, on a ragged `TextBlock`.

    Args:
        object_share: How often a negative is of an object's attributes; relations and exchanged
            attributes share the rest.
        mask_duplicates: Leave true pairs of equal texts or photos out of the contrast.
        vocabulary: File with the words of negatives; the built-in list when not given.
        optim: Optimiser and schedule.
    """
    loss = partial(multi_text_loss, mask_duplicates=mask_duplicates)
    graph = GraphPlan.published(object_share, second_stage=0, vocabulary=vocabulary)
    return Method(
        name="mosaic-clip-pretrain",
        paper="Singh et al., EMNLP 2023",
        plan=CaptionPlan(rewrites=("negclip",), graph=graph),
        losses=(LossTerm("multi_text", loss, reads=(*POSITIVES, *NEGATIVES)),),
        optim=optim,
        settings={
            "object_share": object_share,
            "mask_duplicates": mask_duplicates,
            "vocabulary": vocabulary,
        },
    )
