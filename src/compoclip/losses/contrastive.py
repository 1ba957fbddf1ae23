"""Contrastive losses over the whole batch: CLIP, and NegCLIP with generated negatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from compoclip.losses.contract import (
    Features,
    HostLayout,
    Ints,
    Layout,
    Role,
    computed,
    loss_function,
)
from compoclip.losses.rows import MissingHN, Selection, captions, every_image, missing, true_pairs


def match_loss(logits: Tensor, target: Tensor, rows: int, left_out: Tensor | None = None) -> Tensor:
    """Return this process's share of the mean over rows of CE(logits_i, target_i).

    `logits` (n, M), `target` (n,) int64; rows: how many there are in all processes; `left_out`
    (n, M) bool: entries to leave out as well, but for targets. Zero without any row.
    """
    if left_out is not None:
        logits = logits.masked_fill(left_out.scatter(1, target[:, None], False), -torch.inf)
    return F.cross_entropy(logits, target, reduction="sum") / max(1, rows)


def pair_loss(logits: Tensor, right: Tensor, left_out: Tensor | None = None) -> Tensor:
    r"""Sum -ln sigma(y z) over pairs, the loss of SigLIP: y = 1 where `right`, else -1.

    `logits` z of any shape; `right`, and `left_out` for pairs that do not count, bool of the same.
    Reference: Zhai et al., Sigmoid Loss for Language Image Pre-Training (ICCV 2023), equation 1.
    """
    wrongness = torch.where(right, -logits, logits)
    if left_out is not None:
        wrongness = wrongness.masked_fill(left_out & ~right, -torch.inf)
    return F.softplus(wrongness).sum()


def pairs_at(logits: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return (n, M) bool, as `logits`: True at the places (row, column), each (k,) int64."""
    places = logits.new_zeros(logits.shape, dtype=torch.bool)
    places.view(-1).index_fill_(0, row * logits.shape[1] + column, True)
    return places


def symmetric_contrast(
    f: Features,
    layout: Layout,
    texts: Selection = (captions,),
    columns: Selection | None = None,
    images: Selection = (every_image,),
    masked: tuple[Tensor, Tensor] | None = None,
    phantoms: int | None = None,
    extra: Tensor | None = None,
) -> Tensor:
    r"""Half the contrast of images with texts, half that of these texts with images.

    The shared core of every loss of the CLIP kind, and the one place that makes it one of SigLIP's
    kind: with a bias b, every pair of an image and a text counts once,

    .. math::
        L = - \frac1B \sum_{ij} \ln \sigma(y_{ij} (s\, u_i \cdot t_j + b)), \quad
        y_{ij} = 1 \text{ for an image and its caption, else } -1.

    Args:
        texts: One text per image.
        columns: These texts, then further ones that are columns for every image but have no image
            to rank; by default none.
        images: The images.
        masked: (B, all texts) bool and (B, all images) bool, pairs to leave out of one direction
            and of the other, but for targets; by default `true_pairs`.
        phantoms: How many columns of similarity 0 join every image.
        extra: (B,) s u . n of one more text of each image, which no other image meets; -inf where
            there is none.
    """
    columns = columns or texts
    if masked is None:
        masked = true_pairs(layout, texts, columns, images)
    text = f.text.index_select(0, layout.indices(*columns)[0])
    image = f.image
    if images != (every_image,):
        image = image.index_select(0, layout.indices(*images)[0])
    in_rows, in_columns = layout.sizes(*texts)[0], layout.sizes(*columns)[0]
    peers, count, rows = layout.peers, len(image), int(in_rows.sum())
    to_text = f.logit_scale * image @ peers.gathered(text, in_columns).T
    place = torch.arange(count, device=image.device)
    in_texts, in_images = peers.before(in_columns), peers.before(in_rows)
    of_images, of_texts = masked or (None, None)
    margin = layout.whole.near_margin
    if margin is not None:
        limit = (to_text.diagonal(in_texts)[:count, None] + margin * f.logit_scale).detach()
        # Captions come first in the part of each process; only they may be left out.
        caption = [np.arange(n) < first for first, n in zip(in_rows, in_columns)]
        among = torch.from_numpy(np.concatenate(caption)).to(image.device)
        near = (to_text > limit) & among
        of_images = near if of_images is None else near | of_images
    if f.logit_bias is not None:
        right = pairs_at(to_text, place, place + in_texts)
        loss = pair_loss(to_text + f.logit_bias, right, of_images)
        if phantoms is not None:
            loss = loss + count * phantoms * F.softplus(f.logit_bias)
        if extra is not None:
            loss = loss + F.softplus(extra + f.logit_bias).sum()
        return loss / max(1, rows)
    if peers.world == 1:
        to_image = to_text[:, :count].T  # the same products
    else:
        to_image = f.logit_scale * text[:count] @ peers.gathered(image, in_rows).T
    if margin is not None:
        near = to_image > limit
        of_texts = near if of_texts is None else near | of_texts
    if phantoms is not None or extra is not None:
        # m columns of logit 0 weigh as much as one of ln m; ln 0 = -inf is no column at all.
        if extra is None:
            extra = to_text.new_full((count,), math.log(phantoms) if phantoms else -math.inf)
        to_text = torch.cat([to_text, extra[:, None]], dim=1)
        of_images = None if of_images is None else F.pad(of_images, (0, 1))
    return (
        match_loss(to_text, place + in_texts, rows, of_images)
        + match_loss(to_image, place + in_images, rows, of_texts)
    ) / 2


def several_targets(
    f: Features,
    layout: Layout,
    to_text: Tensor,
    to_image: Callable[[], Tensor],
    target: tuple[Tensor, Tensor, Tensor],
    texts: Selection,
    columns: Selection,
    divisors: tuple[int, int],
) -> Tensor:
    """Contrast images with texts where an image has any number of targets.

    Args:
        to_text: (B, all columns) logits of this process's images, without the bias.
        to_image: Makes the (n, all images) logits of its n target texts, for softmaxes.
        target: (n,) each: the image of a target text, its place among this process's columns, and
            the number of targets of its image.
        texts: The target texts.
        columns: The texts that every image ranks.
        divisors: Of the sum over images, each the mean over its targets, and of that over texts;
            with a bias the sum over all pairs is divided by the second.
    """
    image, place, share = target
    column = place + layout.peers.before(layout.sizes(*columns)[0])
    right = pairs_at(to_text, image, column)
    of_images, of_texts = true_pairs(layout, texts, columns) or (None, None)
    of_image, of_text = divisors
    if f.logit_bias is not None:
        return pair_loss(to_text + f.logit_bias, right, of_images) / of_text
    back = to_image()
    positives = to_text.view(-1).index_select(0, image * to_text.shape[1] + column)
    if of_images is not None:
        to_text = to_text.masked_fill(of_images & ~right, -torch.inf)
    if of_texts is not None:
        owner = image + layout.peers.before(layout.sizes(captions)[0])
        back = back.masked_fill(of_texts.scatter(1, owner[:, None], False), -torch.inf)
    loss = ((to_text.logsumexp(1).index_select(0, image) - positives) / share).sum() / of_image
    return (loss + (back.logsumexp(1) - positives).sum() / of_text) / 2


@loss_function
def clip_loss(f: Features, layout: Layout) -> Tensor:
    r"""Symmetric contrastive loss between images and their captions.

    .. math::
        L = \tfrac12 \Big[ \tfrac1B \sum_i \mathrm{CE}_j(s\, u_i \cdot t_j,\ i)
            + \tfrac1B \sum_i \mathrm{CE}_j(s\, t_i \cdot u_j,\ i) \Big]

    ln B when all scores are equal. Equals `negclip_loss` without negatives. For a model with a bias
    it is the sigmoid loss of SigLIP (`symmetric_contrast`), B ln 2 when all logits are 0.

    Reference: Radford et al., Learning Transferable Visual Models From Natural Language
    Supervision (ICML 2021), figure 3.
    """
    return symmetric_contrast(f, layout)


@loss_function
def negclip_loss(
    f: Features, layout: Layout, missing_hn: MissingHN = "mask", kinds: Sequence[str] = ()
) -> Tensor:
    r"""Contrastive loss whose image-to-text direction also ranks every negative of the batch.

    .. math::
        L = \tfrac12 \Big[ \tfrac1B \sum_i \mathrm{CE}(s\, u_i \cdot [t_1 .. t_B, n_1 .. n_N],\ i)
            + \tfrac1B \sum_i \mathrm{CE}_j(s\, t_i \cdot u_j,\ i) \Big]

    with all N negatives of all images. With hard images (the original NegCLIP) the batch holds
    neighbours as well, with their captions and negatives; those that are in the batch twice are
    left out where the layout masks duplicates. Unlike in `global_hn_loss`, the negatives share the
    softmax with the other captions.

    Args:
        missing_hn: "mask" leaves out missing negatives; "zero" gives each a column of logit 0, like
            the zero-filled features of the released code.
        kinds: The kinds of negative a caption should have; used with "zero" only.

    Reference: Yuksekgonul et al., When and Why Vision-Language Models Behave like Bags-of-Words
    (ICLR 2023), section 4; negatives generated anew each step as in the NegCLIP baseline of Oh et
    al., Preserving Multi-Modal Capabilities of Pre-trained VLMs (EMNLP 2024).
    """
    phantoms = None
    if missing_hn == "zero":
        phantoms = int(layout.sizes(missing, tuple(kinds))[1].sum())
    return symmetric_contrast(f, layout, columns=(captions_and_negatives,), phantoms=phantoms)


def captions_and_negatives(host: HostLayout) -> tuple[Ints, ...]:
    """Return the caption of each image, then all negatives of the batch."""
    return (np.concatenate([*captions(host), host.of(Role.NEGATIVE)]),)


@loss_function
def all_images_loss(f: Features, layout: Layout) -> Tensor:
    r"""Contrast of captions with images of the whole data instead of those of the batch.

    .. math::
        L = - \frac1B \sum_i \ln \frac{e^{s\, t_i \cdot u_i}}
            {e^{s\, t_i \cdot u_i} + \sum_n e^{s\, t_i \cdot v_n}}

    with v_n the images of the bank that are not the photo of u_i. An image tower that is frozen has
    computed them once, so that a step costs no more texts than without. ln(1 + N) when all scores
    are equal. Images that the caption describes as well as its own are among the v_n. Raises
    ValueError when the features come without a bank, or the layout does not name photos.

    A bias of the model is the same in all columns and cancels. Reference: none for frozen towers; a
    memory of the features of all images is that of Wu et al., Unsupervised Feature Learning via
    Non-Parametric Instance Discrimination (CVPR 2018).
    """
    bank, bank_keys = computed(f, "bank", "bank_keys")
    (caption,), (key,) = layout.indices(captions), layout.indices(_photo_keys)
    text = f.text.index_select(0, caption)
    to_own = f.logit_scale * (text * f.image).sum(1, keepdim=True)
    to_bank = f.logit_scale * text @ bank.T
    same = (key.view(-1, 1, 2) == bank_keys.view(-1, 2)).all(dim=2)
    to_bank = to_bank.masked_fill(same, -torch.inf)
    logits = torch.cat([to_own, to_bank], dim=1)
    return match_loss(logits, caption.new_zeros(len(caption)), layout.total(captions))


def _photo_keys(host: HostLayout) -> tuple[Ints, ...]:
    """Return the (2 B,) halves of the keys of photos: indices travel as int32."""
    if host.keys is None or host.keys[1] is None:
        raise ValueError("the layout does not say which photos its images are")
    return (host.keys[1].view(np.int32),)
