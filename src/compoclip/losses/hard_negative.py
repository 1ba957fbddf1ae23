"""Contrast of an image's caption with its hard negatives, on global features."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Role, at_least_float32, loss_function
from compoclip.losses.rows import (
    MissingHN,
    Reduction,
    RowIndex,
    captions,
    hard_negatives,
    having,
    missing,
)


def require_calibration(
    gamma: float, beta: float, positive_share: float = 0.0, error: type[Exception] = ValueError
) -> None:
    """Raise `error` for settings of `global_hn_loss` that are outside of their range."""
    if not (0 <= gamma < math.inf and 0 <= beta <= 1):
        raise error(f"gamma must be >= 0 and beta in [0, 1], not {gamma} and {beta}")
    if not 0 <= positive_share <= 1:
        raise error(f"positive_share must be in [0, 1], not {positive_share}")


def selective_calibrated_rows(
    logits: Tensor,
    valid: Tensor,
    gamma: float = 0.0,
    beta: float = 0.0,
    phantoms: Tensor | None = None,
    shares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Row-wise softmax loss with focal factor and label smoothing (SCR): column 0 is the target.

    With p_i the softmax of row i over its valid entries and K_i its number of valid negatives:

    .. math::
        y_{i0} = 1 - \beta + \tfrac{\beta}{1+K_i}, \quad y_{ik} = \tfrac{\beta}{1+K_i}, \quad
        \ell_i = - \sum_k y_{ik} (1 - p_{ik})^\gamma \log p_{ik}

    Rows without a valid negative, or without a valid target, do not count. The factor (1-p)^gamma
    carries gradient. gamma = beta = 0 is plain cross-entropy; equal logits then give ln(1+K_i).

    Args:
        logits: (B, 1+K), of any float dtype.
        valid: (B, 1+K) bool. Entries that are not valid may hold anything, NaN included.
        gamma: Focal exponent.
        beta: Label smoothing over the valid entries of a row.
        phantoms: (B,) number of entries of logit 0 that join the softmax of a row without being a
            negative (no target, not in K_i): how the released code treats negatives that do not
            exist.
        shares: (B, 1+K) of the label, 1 in every row, where several texts of a row are true: the
            factor of 1 - beta in y. By default all of it is the caption's.

    Returns:
        The sum over the rows that count, exactly zero with zero gradient without any, and their
        number. Several processes add up both and divide once.

    Raises:
        ValueError: For gamma < 0 or beta outside [0, 1].

    Reference: Oh et al., Preserving Multi-Modal Capabilities of Pre-trained VLMs for Improving
    Vision-Linguistic Compositionality (EMNLP 2024), selective calibrated regularisation; the
    focal factor is that of Lin et al., Focal Loss for Dense Object Detection (ICCV 2017),
    equation 4.
    """
    require_calibration(gamma, beta)
    z = at_least_float32(logits)
    counted = valid[:, 0] & valid[:, 1:].any(1)
    valid = valid & counted[:, None]
    invalid = ~valid
    # A row that does not count is all zeros instead, so that its softmax is defined.
    z = z.masked_fill(invalid, -torch.inf).masked_fill(~counted[:, None], 0.0)
    if phantoms is not None:
        # m entries of logit 0 weigh as much as one of ln m.
        z = torch.cat([z, phantoms.to(z.dtype).log()[:, None]], dim=1)
    nll = -z.log_softmax(1)[:, : valid.shape[1]]
    nll = nll.masked_fill(invalid, 0.0)
    # 1 - p without cancellation. Kept above zero, where x**gamma has no finite slope for gamma < 1.
    focus = (-torch.expm1(-nll)).clamp_min(torch.finfo(z.dtype).tiny) ** gamma
    target = beta * valid.to(z.dtype) / valid.sum(1, keepdim=True).clamp_min(1)
    if shares is None:
        target[:, 0].add_((1.0 - beta) * counted.to(z.dtype))
    else:
        target.add_((1.0 - beta) * shares.to(z.dtype) * counted[:, None])
    return (target * focus * nll).sum(), counted.sum()


def _global_scores(f: Features, rows: RowIndex) -> Tensor:
    image, text = f.image.index_select(0, rows.image), f.text.index_select(0, rows.texts)
    return f.logit_scale * (image * text).sum(-1)


@loss_function
def global_hn_loss(
    f: Features,
    layout: Layout,
    gamma: float = 0.0,
    beta: float = 0.0,
    reduction: Reduction = "valid",
    missing_hn: MissingHN = "mask",
    kinds: Sequence[str] = (),
    positive_share: float = 0.0,
    scores: Callable[[Features, RowIndex], Tensor] = _global_scores,
) -> Tensor:
    r"""Hard-negative loss on global features: each image ranks its caption above its own negatives.

    .. math::
        z_{i0} = s\, u_i \cdot t_i, \quad z_{ik} = s\, u_i \cdot n_{ik}, \quad
        L = \mathrm{SCR}(z;\ \gamma, \beta)

    Added to `clip_loss`, whose softmax holds no negatives.

    Args:
        gamma: Focal exponent, see `selective_calibrated_rows`.
        beta: Label smoothing, see there.
        reduction: Divide by the images that have a negative, or by all.
        missing_hn: "mask" leaves out missing negatives; "zero" gives each an entry of logit 0 in
            the softmax of its row, as the released code does.
        kinds: The kinds of negative a caption should have; used with "zero" only.
        positive_share: m. Above 0, the P_i POSITIVE texts of an image join its row: the label is
            (1 - m) on the caption and m / P_i on each positive, so that paraphrases score alike.
            Rows without a positive do not change.
        scores: Returns the (N,) logits z of the texts of the rows.

    Reference: Oh et al. (EMNLP 2024), global hard-negative loss.
    """
    require_calibration(gamma, beta, positive_share)
    rows = RowIndex(*layout.indices(hard_negatives, positive_share > 0))
    logits, shares = rows.spread(scores(f, rows)), None
    phantoms = layout.indices(missing, tuple(kinds))[0] if missing_hn == "zero" else None
    if rows.positive is not None:
        positive = rows.positive.to(logits.dtype)
        count = positive.sum(1, keepdim=True)
        shares = positive_share * positive / count.clamp_min(1)
        shares[:, :1] = 1.0 - positive_share * (count > 0).to(logits.dtype)
    total, _ = selective_calibrated_rows(logits, rows.valid, gamma, beta, phantoms, shares)
    counted = (having, Role.NEGATIVE) if reduction == "valid" else (captions,)
    return total / max(1, layout.total(*counted))
