"""Contrast of a batch with a second pass in which parts of texts and images are masked."""

from __future__ import annotations

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, computed, loss_function
from compoclip.losses.contrastive import match_loss, pair_loss, pairs_at
from compoclip.losses.rows import captions, true_pairs


@loss_function
def masked_contrast(f: Features, layout: Layout) -> Tensor:
    r"""Contrast of images and captions, with their masked forms as further rows and negatives.

    With U = [u; u'] and T = [t; t'], where a prime stands for masked,

    .. math::
        L = \tfrac12 \Big[ \tfrac{1}{2B} \sum_{k} \mathrm{CE}(s\, U_k \cdot T,\ k \bmod B)
            + \tfrac{1}{2B} \sum_{k} \mathrm{CE}(s\, T_k \cdot U,\ k \bmod B) \Big]

    Every row, masked or not, must rank its unmasked partner first; its masked partner is a
    negative. If only words are masked, U is u. `clip_loss` + ln 2 if nothing is masked. For a model
    with a bias every pair counts once, as in SigLIP. A true pair with one masked member is
    positive; with both masked it is left out. Reads `masked_text` and `masked_image`.

    Reference: MACCO (ACL 2026, arXiv 2606.13288), masked-augmented cross-modal alignment.
    """
    (images,), (masked_text,) = layout.sizes(captions), computed(f, "masked_text")
    peers, rows = layout.peers, int(images.sum())
    true = true_pairs(layout, (captions,), (captions,)) or (None, None)
    text = f.text.index_select(0, layout.indices(captions)[0])
    ours = [
        [plain] if masked is None else [plain, masked]
        for plain, masked in ((f.image, f.masked_image), (text, masked_text))
    ]
    every = [torch.cat([peers.gathered(part, images) for part in parts]) for parts in ours]
    forms = len(ours[0]), len(ours[1])
    target = torch.arange(len(text), device=text.device) + peers.before(images)
    # The masked partner of a row is one of the wrong ones, whatever else is left out.
    left_out = [None if mask is None else mask.scatter(1, target[:, None], False) for mask in true]
    to_text = f.logit_scale * torch.cat(ours[0]) @ every[1].T
    if f.logit_bias is not None:
        return _of_pairs(to_text + f.logit_bias, target, forms, rows, left_out[0])
    to_image = f.logit_scale * torch.cat(ours[1]) @ every[0].T
    loss = text.new_zeros(())
    for logits, number, others, mask in zip((to_text, to_image), forms, forms[::-1], left_out):
        mask = None if mask is None else mask.repeat(number, others)
        loss = loss + match_loss(logits, target.repeat(number), number * rows, mask)
    return 0.5 * loss


@loss_function
def masked_match(f: Features, layout: Layout) -> Tensor:
    r"""A masked caption must be closest to its caption, a masked image to its image.

    .. math::
        L = \tfrac12 \big[ L_{clip}(t', t) + L_{clip}(u', u) \big]

    with the symmetric contrast L_clip(a, b) of rows a_i with b_i. If only words are masked, L is
    its first part. ln B when all scores are equal. Softmaxes within one modality, where a bias
    cancels: unchanged for SigLIP.

    Reference: MACCO (ACL 2026, arXiv 2606.13288), masked-augmented intra-modal regularisation.
    """
    (images,), (masked_text,) = layout.sizes(captions), computed(f, "masked_text")
    left_out, _ = true_pairs(layout, (captions,), (captions,)) or (None, None)
    text = f.text.index_select(0, layout.indices(captions)[0])
    target = torch.arange(len(text), device=text.device) + layout.peers.before(images)
    losses = []
    for masked, plain in ((masked_text, text), (f.masked_image, f.image)):
        for rows, columns in () if masked is None else ((masked, plain), (plain, masked)):
            logits = f.logit_scale * rows @ layout.peers.gathered(columns, images).T
            losses.append(match_loss(logits, target, layout.total(captions), left_out))
    return torch.stack(losses).mean()


def _of_pairs(
    logits: Tensor, target: Tensor, forms: tuple[int, int], rows: int, true: Tensor | None
) -> Tensor:
    """The sigmoid loss; rows and columns are whole ones, then masked ones."""
    place = torch.arange(len(target), device=target.device)
    right, left_out = (logits.new_zeros(logits.shape, dtype=torch.bool) for _ in range(2))
    for row, column in ((row, column) for row in range(forms[0]) for column in range(forms[1])):
        pairs = pairs_at(logits, place + row * len(target), target + column * rows)
        if row and column:  # both are masked
            left_out |= pairs
        else:
            right |= pairs
    if true is not None:
        left_out |= true.repeat(*forms)
    return pair_loss(logits, right, left_out) / max(1, forms[0] * rows)
