"""Contrastive losses over the whole batch: CLIP, and NegCLIP with generated negatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from compoclip.losses.contract import Features, Layout, Role, full_precision
from compoclip.losses.rows import MissingHN, caption_index, check, phantom_count, true_pairs


def match_loss(logits: Tensor, target: Tensor | None = None) -> Tensor:
    """Mean over rows of CE(logits_i, target_i); entries of -inf are left out of their softmax.

    Inputs: `logits` (N, M), `target` (N,) int64, by default column i for row i. No row at all
    gives zero, still connected to the graph.
    """
    if target is None:
        target = torch.arange(logits.shape[0], device=logits.device)
    return F.cross_entropy(logits, target, reduction="sum") / max(1, logits.shape[0])


def symmetric_contrast(
    logit_scale: Tensor,
    image: Tensor,
    text: Tensor,
    masked: Tensor | None = None,
    phantoms: Tensor | None = None,
) -> Tensor:
    """Half the contrast of images with texts, half that of captions with images.

    The shared core of every loss of the CLIP kind.

    Args:
        logit_scale: Scalar s.
        image: (B, D).
        text: (B+N, D), the caption of each image, then N texts that are columns for every image but
            have no image to rank.
        masked: (B, B+N) bool, pairs to leave out of both directions; no target may be among them.
        phantoms: Scalar, how many columns of logit 0 join every image.
    """
    to_text = logit_scale * image @ text.T
    if masked is not None:
        to_text = to_text.masked_fill(masked, -torch.inf)
    to_image = to_text[:, : image.shape[0]].T
    if phantoms is not None:
        # m columns of logit 0 weigh as much as one of ln m; ln 0 = -inf is no column at all.
        phantom = phantoms.to(to_text.dtype).log().expand(image.shape[0], 1)
        to_text = torch.cat([to_text, phantom], dim=1)
    return (match_loss(to_text) + match_loss(to_image)) / 2


def clip_loss(features: Features, layout: Layout) -> Tensor:
    r"""Symmetric contrastive loss between images and their captions.

    .. math::
        L = \tfrac12 \Big[ \tfrac1B \sum_i \mathrm{CE}_j(s\, u_i \cdot t_j,\ i)
            + \tfrac1B \sum_i \mathrm{CE}_j(s\, t_i \cdot u_j,\ i) \Big]

    Args:
        features: `image` u (B, D), `text` (T, D), `logit_scale` s.
        layout: Of it the first CAPTION of each image, which is t_i; further captions, positives and
            negatives are not read.

    Returns:
        A scalar, in at least float32; ln B when all scores are equal.

    Raises:
        ValueError: When an image has no caption.

    Relation: `negclip_loss` without negatives is this loss.
    Reference: Radford et al., Learning Transferable Visual Models From Natural Language
    Supervision (ICML 2021), figure 3.
    """
    check(features, layout)
    with full_precision(features) as f:
        return symmetric_contrast(f.logit_scale, f.image, f.text[caption_index(layout)])


def negclip_loss(
    features: Features,
    layout: Layout,
    missing_hn: MissingHN = "mask",
    kinds: Sequence[str] = (),
    mask_duplicates: bool = False,
) -> Tensor:
    r"""Contrastive loss whose image-to-text direction also ranks every negative of the batch.

    .. math::
        L = \tfrac12 \Big[ \tfrac1B \sum_i \mathrm{CE}(s\, u_i \cdot [t_1 .. t_B, n_1 .. n_N],\ i)
            + \tfrac1B \sum_i \mathrm{CE}_j(s\, t_i \cdot u_j,\ i) \Big]

    The text-to-image direction reads captions only: a negative has no image. With hard images (the
    original NegCLIP) the batch holds neighbours as well: 2B images, the 2B captions and the
    negatives of both. Neighbours may already be in the batch; hence `mask_duplicates`.

    Args:
        features: `image` u (B, D), `text` (T, D), `logit_scale` s.
        layout: The first CAPTION of each image is t_i; n_1 .. n_N are all NEGATIVE texts of all
            images.
        missing_hn: "mask" leaves out negatives that do not exist; "zero" puts a column of logit 0
            in the place of each, which is what zero-filled features of the released code amount to.
        kinds: The kinds of negative a caption should have; read under "zero" only.
        mask_duplicates: Leave out of both directions the pairs of image and text that are true
            without being the target: the text equals a caption of the image or of the same photo
            (`true_pairs`).

    Returns:
        A scalar, in at least float32.

    Raises:
        ValueError: When an image has no caption, when "zero" comes without `kinds`, or when
            duplicates are to be masked and the layout tells neither which texts nor which images
            are the same.

    Relation: a batch without negatives gives `clip_loss` (under "mask"); unlike `global_hn_loss`
    the negatives share the softmax with the other captions.
    Reference: Yuksekgonul et al., When and Why Vision-Language Models Behave like Bags-of-Words
    (ICLR 2023), section 4; negatives generated anew each step as in the NegCLIP baseline of Oh et
    al., Preserving Multi-Modal Capabilities of Pre-trained VLMs (EMNLP 2024).
    """
    check(features, layout)
    column = torch.cat(
        [caption_index(layout), (layout.role == int(Role.NEGATIVE)).nonzero().squeeze(1)]
    )
    masked = None
    if mask_duplicates:
        masked = true_pairs(layout)[:, column].fill_diagonal_(False)
    phantoms = None
    if missing_hn == "zero":
        phantoms = phantom_count(layout, missing_hn, kinds).sum()
    with full_precision(features) as f:
        return symmetric_contrast(f.logit_scale, f.image, f.text[column], masked, phantoms)
