"""Losses for bags of dense sentences of which only some may fit the image (DAC)."""

from __future__ import annotations

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Role, full_precision
from compoclip.losses.rows import RowIndex, caption_index, check, texts_by_owner


def bag_rows(layout: Layout, bag: str) -> RowIndex:
    """(B, 1+M) the sentences of every image's bag: its POSITIVE texts of kind `bag`.

    An image without any has its caption (column 0) for a bag. Raises ValueError when it has none.
    """
    sentence, valid = texts_by_owner(layout, Role.POSITIVE, bag)
    empty = ~valid.any(1, keepdim=True)
    return RowIndex(
        index=torch.cat([caption_index(layout)[:, None], sentence], dim=1),
        valid=torch.cat([empty, valid], dim=1),
    )


def _lse(rows: RowIndex, scores: Tensor) -> Tensor:
    """Log-sum-exp of every row of the scores of `rows.texts`."""
    return rows.spread(scores).masked_fill(~rows.valid, -torch.inf).logsumexp(1)


def bag_loss(features: Features, layout: Layout, bag: str) -> Tensor:
    r"""Multiple-instance contrast of images with the sentences of all bags (L_MIL).

    With z_ib = s u_i . b for image i and sentence b, and S_i the bag of image i:

    .. math::
        L = \frac1B \sum_i \Big[ \ln\Big( \sum_j \sum_{b \in S_j} e^{z_{ib}}
            + \sum_{b \in S_i} \sum_j e^{z_{jb}} \Big) - \ln \sum_{b \in S_i} e^{z_{ib}} \Big]

    An image's own pairs occur twice in the first sum, once for each direction, as in the released
    code.

    Args:
        features: `image` u (B, D), `text` (T, D), `logit_scale` s.
        layout: The texts of the batch.
        bag: The kind of the sentences, which are POSITIVE texts, any number an image; an image
            without any has its caption for a bag.

    Returns:
        A scalar; ln(2 B) when all scores are equal and all bags have as many sentences.

    Raises:
        ValueError: When an image has no caption.

    Relation: with bags of one, the two softmaxes of `clip_loss` share one denominator. Only the
    best-fitting sentences of a bag need to score high, where `multi_text_loss` asks it of all.
    Reference: Doveh et al., Dense and Aligned Captions (DAC) Promote Compositional Reasoning in VL
    Models (NeurIPS 2023), multiple-instance loss.
    """
    check(features, layout)
    bags = bag_rows(layout, bag)
    sentence = bags.texts
    owner = layout.owner[sentence]
    with full_precision(features) as f:
        scores = f.logit_scale * f.image @ f.text[sentence].T
        own = _lse(bags, scores.gather(0, owner[None])[0])
        to_text, to_image = scores.logsumexp(1), _lse(bags, scores.logsumexp(0))
        return (torch.logaddexp(to_text, to_image) - own).mean()


def bag_negative_loss(features: Features, layout: Layout, bag: str, bag_negative: str) -> Tensor:
    r"""The sentences of a bag against their own negatives (L_MILneg).

    .. math::
        L = \frac{1}{|R|} \sum_{i \in R} \Big[ \mathrm{LSE}_{b \in S_i \cup S^-_i} z_{ib}
            - \mathrm{LSE}_{b \in S_i} z_{ib} \Big]

    with S_i^- the negatives of the bag of image i and R the images that have one.

    Args:
        features: As for `bag_loss`.
        layout: The texts of the batch.
        bag: The kind of the sentences.
        bag_negative: The kind of their negatives, which are NEGATIVE texts; the negatives of
            captions are of other kinds and not read.

    Returns:
        A scalar; exactly zero, with zero gradient, without any negative of a bag. The mean of
        ln(1 + |S_i^-| / |S_i|) when all scores are equal.

    Raises:
        ValueError: When an image has no caption.

    Relation: with bags of one this is `global_hn_loss`.
    Reference: as for `bag_loss`.
    """
    check(features, layout)
    bags = bag_rows(layout, bag)
    negative, valid = texts_by_owner(layout, Role.NEGATIVE, bag_negative)
    rows = valid.any(1)
    own = RowIndex(bags.index[rows], bags.valid[rows])
    union = RowIndex(
        torch.cat([bags.index, negative], dim=1)[rows], torch.cat([bags.valid, valid], dim=1)[rows]
    )
    with full_precision(features) as f:

        def lse(of: RowIndex) -> Tensor:
            texts = of.texts
            score = f.logit_scale * (f.image[layout.owner[texts]] * f.text[texts]).sum(-1)
            return _lse(of, score)

        loss = lse(union) - lse(own)
        return loss.sum() / max(1, loss.numel())
