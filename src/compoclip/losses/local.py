"""Hard-negative loss on local features: text tokens against the image patches they attend to."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, computed, loss_function, normalise
from compoclip.losses.hard_negative import global_hn_loss
from compoclip.losses.rows import RowIndex

Attention = Literal["minmax", "minmax_sparse", "softmax"]
"""Conversion of token-patch similarities into weights over patches."""


def patch_attention(similarity: Tensor, attention: Attention = "minmax") -> Tensor:
    r"""Weights over patches (last dimension, sum 1) from token-patch similarities.

    minmax: a_p = (sim_p - min) / (max - min), then divided by its sum. minmax_sparse: a_p below 1/P
    become 0 first. softmax: softmax_p(sim_p), no temperature. Similarities that differ by less
    than 1e-6 give 1/P under both minmax forms, where the formula would divide by zero.

    Reference: Oh et al. (EMNLP 2024), local hard-negative loss and its ablation of attention.
    """
    if attention == "softmax":
        return similarity.softmax(-1)
    patches = similarity.shape[-1]
    low, high = similarity.amin(-1, keepdim=True), similarity.amax(-1, keepdim=True)
    span = high - low
    flat = span < 1e-6
    weight = (similarity - low) / span.masked_fill(flat, 1.0)
    if attention == "minmax_sparse":
        weight = weight.masked_fill(weight < 1 / patches, 0.0)
    weight = weight.masked_fill(flat, 1 / patches)
    return weight / weight.sum(-1, keepdim=True)


def local_similarity(
    tokens: Tensor,
    token_mask: Tensor,
    patches: Tensor,
    logit_scale: Tensor,
    attention: Attention = "minmax",
    attention_grad: bool = False,
) -> Tensor:
    r"""Log local score of N (text, image) pairs.

    .. math::
        \hat v_w = \mathrm{normalise}\Big(\sum_p a_{wp} v_p\Big), \quad
        \log S = \mathrm{LSE}_{w\ \mathrm{valid}}\ s \cos(\hat v_w, t_w)

    with a_wp = `patch_attention` of the raw dot products t_w . v_p.

    The largest intermediate is (N, L, max(P, D)). A vector of length zero has cosine zero and no
    gradient.

    Args:
        tokens: t (N, L, D), not normalised; positions outside the mask may hold anything, NaN
            included.
        token_mask: (N, L) bool, at least one True a row.
        patches: v (N, P, D), not normalised.
        logit_scale: Scalar s.
        attention: How similarities become weights, see `patch_attention`.
        attention_grad: Let gradient flow through a_wp; the released code does not.

    Returns (N,) log scores.
    """
    tokens = tokens.masked_fill(~token_mask[..., None], 0.0)
    with nullcontext() if attention_grad else torch.no_grad():
        weight = patch_attention(tokens @ patches.transpose(1, 2), attention)
    grouped = normalise(weight @ patches)
    cosine = (grouped * normalise(tokens)).sum(-1)
    return (logit_scale * cosine).masked_fill(~token_mask, -torch.inf).logsumexp(-1)


def max_similarity(
    tokens: Tensor, token_mask: Tensor, patches: Tensor, logit_scale: Tensor | None = None
) -> Tensor:
    r"""Late interaction of N (text, image) pairs.

    .. math:: S = \mathrm{mean}_{w\ \mathrm{valid}}\ \max_p \cos(v_p, t_w)

    Args:
        tokens: t (N, L, D), not normalised; positions outside the mask may hold anything.
        token_mask: (N, L) bool, at least one True a row.
        patches: v (N, P, D), not normalised.
        logit_scale: Not read; it makes the arguments those of `local_similarity`.

    Returns (N,) scores from -1 to 1.

    Reference: Yao et al., FILIP, ICLR 2022, text to image, without its pruning of tokens.
    """
    tokens = tokens.masked_fill(~token_mask[..., None], 0.0)
    best = (normalise(tokens) @ normalise(patches).transpose(1, 2)).amax(-1)
    return best.masked_fill(~token_mask, 0.0).sum(-1) / token_mask.sum(-1)


@loss_function
def local_hn_loss(
    f: Features,
    layout: Layout,
    /,
    attention: Attention = "minmax",
    attention_grad: bool = False,
    **options: Any,
) -> Tensor:
    r"""Local hard-negative loss (LHN): `global_hn_loss` on log local scores.

    .. math::
        z_{i0} = \log S(i, t_i), \quad z_{ik} = \log S(i, n_{ik}), \quad
        L = \mathrm{SCR}(z;\ \gamma, \beta)

    A text attends to the patches of its image only: memory grows with T, not with B T. Reduces the
    loss of multi-modal ability caused by hard negatives on global features. Reads `patches` and
    `tokens`, and raises ValueError without them.

    Args:
        attention: Conversion of similarities into weights, see `patch_attention`.
        attention_grad: Let gradient flow through these weights.
        **options: The options of `global_hn_loss`.

    Reference: Oh et al. (EMNLP 2024), local hard-negative (LHN) loss.
    """
    tokens, mask, patches = computed(f, "tokens", "token_mask", "patches")

    def scores(f: Features, rows: RowIndex) -> Tensor:
        read = tokens.index_select(0, rows.texts), mask.index_select(0, rows.texts)
        image_patches = patches.index_select(0, rows.image)
        return local_similarity(*read, image_patches, f.logit_scale, attention, attention_grad)

    return global_hn_loss(f, layout, scores=scores, **options)
