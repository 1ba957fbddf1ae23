"""MosaiCLIP: sub-graphs of captions as positives, edited ones as negatives."""

from __future__ import annotations

from functools import partial

from compoclip.config import FileName
from compoclip.data.texts import GraphPlan
from compoclip.losses.multi_text import TextReduction, multi_text_loss
from compoclip.methods.base import NEGATIVES, POSITIVES, CaptionPlan, LossTerm, Method, Optim
from compoclip.methods.registry import recipe


@recipe
def mosaic_clip(
    *,
    object_share: float = 0.08,
    max_positives: int = 3,
    max_negatives: int = 6,
    second_stage: int = 2,
    reduction: TextReduction = "mean",
    filter_negatives: bool = True,
    vocabulary: FileName = "",
) -> Method:
    r"""Contrast with scene-graph texts: several positives and negatives per image, in two stages.

    With all M texts v of the batch, P(i) the caption and the sub-graph texts of image i,

    .. math::
        L = \tfrac12 \Big[ \mathrm{mean}_i \tfrac{1}{|P(i)|} \sum_{k \in P(i)}
            (\mathrm{LSE}_j s\, u_i \cdot v_j - s\, u_i \cdot v_k)
            + \mathrm{mean}_{j \in P} (\mathrm{LSE}_i s\, u_i \cdot v_j - s\, u_{o(j)} \cdot v_j)
            \Big].

    At most one sub-graph and one negative before epoch `second_stage`, `max_positives` and
    `max_negatives` from it on.
    Singh et al., Coarse-to-Fine Contrastive Learning in Image-Text-Graph Space for Improved
    Vision-Language Compositionality (EMNLP 2023), fine-tuning.

    Args:
        object_share: Share of negatives about an object's attributes; relations and swapped
            attributes share the rest. The paper tried 0, 0.08 and 0.15.
        max_positives: Most sub-graphs per caption; each of them has a negative.
        max_negatives: Most negatives per caption.
        second_stage: Epoch (from 0) in which the second stage starts; 0 turns the curriculum off.
        reduction: Average over images and texts, or sum as printed in the paper.
        filter_negatives: Refuse negatives that may be true; the paper takes them all.
        vocabulary: File with the words of negatives; a built-in list by default.
    """
    loss = partial(multi_text_loss, reduction=reduction)
    graph = GraphPlan.published(
        object_share, second_stage, vocabulary, filter_negatives, max_positives, max_negatives
    )
    return Method(
        paper="Singh et al., EMNLP 2023",
        plan=CaptionPlan(texts=(graph,)),
        losses=(LossTerm("multi_text", loss, reads=(*POSITIVES, *NEGATIVES)),),
        optim=Optim(lr=1e-5),
    )


@recipe
def mosaic_clip_pretrain(*, object_share: float = 0.15, vocabulary: FileName = "") -> Method:
    """MosaiCLIP pre-training: graph texts and a swapped caption; use with --from-scratch.

    The loss of `mosaic-clip`, no curriculum (at most three sub-graphs and six negatives), and one
    swap negative of the whole caption. Singh et al. (EMNLP 2023), pre-training on CC12M or
    YFCC15M. The paper's cache of earlier sentences is not part of it: it fills every device up to
    the same number of texts, and here a batch has as many as there are, in one ragged list.

    Args:
        object_share: Share of negatives about an object's attributes; relations and swapped
            attributes share the rest.
        vocabulary: File with the words of negatives; a built-in list by default.
    """
    graph = GraphPlan.published(object_share, second_stage=0, vocabulary=vocabulary)
    return Method(
        paper="Singh et al., EMNLP 2023",
        plan=CaptionPlan(rewrites=("negclip",), texts=(graph,)),
        losses=(LossTerm("multi_text", multi_text_loss, reads=(*POSITIVES, *NEGATIVES)),),
        optim=Optim(epochs=32, batch_size=4096, lr=1e-3, warmup=5000),
    )
