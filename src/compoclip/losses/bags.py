"""Losses for bags of dense sentences of which only some may fit the image (DAC)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from compoclip.losses.contract import Features, HostLayout, Ints, Layout, Role, loss_function
from compoclip.losses.contrastive import pairs_at
from compoclip.losses.rows import RowIndex, by_owner, captions, row_arrays, true_pairs


def _bags(host: HostLayout, bag: str) -> tuple[Ints, Ints]:
    """(B, 1+M) the sentences of every image's bag, its POSITIVE texts of kind `bag`, and a mask; an
    image without any has its caption (column 0) for a bag."""
    sentence, valid = by_owner(host, Role.POSITIVE, bag)
    empty = ~valid.any(1, keepdims=True)
    index = np.concatenate([captions(host)[0][:, None], sentence], axis=1)
    return index, np.concatenate([empty, valid], axis=1)


def _bag_rows(host: HostLayout, bag: str) -> tuple[Ints, ...]:
    return row_arrays(host, *_bags(host, bag))


def _rows_with_negative(
    host: HostLayout, bag: str, bag_negative: str, with_negatives: bool
) -> tuple[Ints, ...]:
    """The bags of the images that have a negative of their bag, with these negatives or without."""
    index, valid = _bags(host, bag)
    negative, exists = by_owner(host, Role.NEGATIVE, bag_negative)
    if with_negatives:
        index = np.concatenate([index, negative], axis=1)
        valid = np.concatenate([valid, exists], axis=1)
    rows = exists.any(1)
    return row_arrays(host, index[rows], valid[rows])


def _lse(rows: RowIndex, scores: Tensor) -> Tensor:
    """Log-sum-exp of every row of the scores of `rows.texts`."""
    return rows.spread(scores).masked_fill(~rows.valid, -torch.inf).logsumexp(1)


@loss_function
def bag_loss(f: Features, layout: Layout, bag: str) -> Tensor:
    r"""Multiple-instance contrast of images with the sentences of all bags (L_MIL).

    With z_ib = s u_i . b for image i and sentence b, and S_i the bag of image i, or its caption:

    .. math::
        L = \frac1B \sum_i \Big[ \ln\Big( \sum_j \sum_{b \in S_j} e^{z_{ib}}
            + \sum_{b \in S_i} \sum_j e^{z_{jb}} \Big) - \ln \sum_{b \in S_i} e^{z_{ib}} \Big]

    An image's own pairs occur twice in the first sum, once for each direction, as in the released
    code. ln(2 B) when all scores are equal and all bags have as many sentences. With bags of one,
    the two softmaxes of `clip_loss` share one denominator. Only the best-fitting sentences of a bag
    need to score high; in `multi_text_loss` all do. For a model with a bias b, every sentence of
    another bag is one negative pair, and the bag of the image one positive pair with the logit
    LSE_b(z_ib + b) (`pair_loss`).

    Args:
        bag: The kind of the sentences, POSITIVE texts, any number per image.

    Reference: Doveh et al., Dense and Aligned Captions (DAC) Promote Compositional Reasoning in VL
    Models (NeurIPS 2023), multiple-instance loss.
    """
    of_bags = _bag_rows, bag
    bags = RowIndex(*layout.indices(*of_bags))
    sentences, _, _, images = layout.sizes(*of_bags)
    peers, before, count = layout.peers, layout.peers.before(sentences), max(1, int(images.sum()))
    sentence = f.text.index_select(0, bags.texts)
    # Images of this process against all sentences, its sentences against all images.
    scores = f.logit_scale * f.image @ peers.gathered(sentence, sentences).T
    back = f.logit_scale * sentence @ peers.gathered(f.image, images).T
    positives = scores.narrow(1, before, len(sentence)).gather(0, bags.image[None])[0]
    ours = torch.arange(len(sentence), device=positives.device)
    right = pairs_at(scores, bags.image, ours + before)
    if (masked := true_pairs(layout, of_bags, of_bags)) is not None:
        scores = scores.masked_fill(masked[0] & ~right, -torch.inf)
        true = pairs_at(back, ours, bags.image + peers.before(images))
        back = back.masked_fill(masked[1] & ~true, -torch.inf)
    if f.logit_bias is not None:
        # Every sentence of another bag is wrong; of the own one its best fit is right.
        negatives = scores.masked_fill(right, -torch.inf)
        best = _lse(bags, positives + f.logit_bias)
        return (F.softplus(negatives + f.logit_bias).sum() + F.softplus(-best).sum()) / count
    to_text, to_image = scores.logsumexp(1), _lse(bags, back.logsumexp(1))
    return (torch.logaddexp(to_text, to_image) - _lse(bags, positives)).sum() / count


@loss_function
def bag_negative_loss(f: Features, layout: Layout, bag: str, bag_negative: str) -> Tensor:
    r"""Contrast of a bag's sentences with their negatives (L_MILneg).

    .. math::
        L = \frac{1}{|R|} \sum_{i \in R} \Big[ \mathrm{LSE}_{b \in S_i \cup S^-_i} z_{ib}
            - \mathrm{LSE}_{b \in S_i} z_{ib} \Big]

    with z and S as for `bag_loss`, S_i^- the negatives of the bag of image i, and R the images that
    have one. The mean of ln(1 + |S_i^-| / |S_i|) when all scores are equal. With bags of one this
    is `global_hn_loss`.

    Args:
        bag: The kind of the sentences.
        bag_negative: The kind of their negatives, NEGATIVE texts.

    Reference: as for `bag_loss`.
    """

    def lse(with_negatives: bool) -> Tensor:
        of = RowIndex(*layout.indices(_rows_with_negative, bag, bag_negative, with_negatives))
        image, text = f.image.index_select(0, of.image), f.text.index_select(0, of.texts)
        return _lse(of, f.logit_scale * (image * text).sum(-1))

    rows = layout.sizes(_rows_with_negative, bag, bag_negative, False)[3]  # of `valid`
    return (lse(True) - lse(False)).sum() / max(1, int(rows.sum()))
