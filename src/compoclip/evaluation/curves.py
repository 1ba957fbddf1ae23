"""Curves over all thresholds: ROC-AUC, 11-point average precision, and the best threshold.

Pure numpy. `scores` (n,) are real numbers, `truth` (n,) says which items are true. Equal scores
never depend on their order.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from compoclip.evaluation.items import Flags, Values

Reals = npt.NDArray[np.floating]
_ITEMS_DRAWN = 2_000_000


def weighted_auc(scores: Reals, truth: Flags, weights: Values, tie: float = 0.5) -> Values:
    """Return the share of (true, false) pairs in which the true item scores higher.

    With tie = 1/2, the credit for equal scores, this is the area under the ROC curve, and the
    Mann-Whitney statistic divided by its maximum. weights: (r, n), item i counts weights[r, i]
    times in row r. Returns (r,), nan for rows in which one of the two kinds has no weight.

    Source: Hanley and McNeil, The Meaning and Use of the Area under a ROC Curve (1982).
    """
    false = np.flatnonzero(~truth)
    false = false[np.argsort(scores[false], kind="stable")]
    lower = np.searchsorted(scores[false], scores[truth], "left")
    not_higher = np.searchsorted(scores[false], scores[truth], "right")
    up_to = np.zeros((len(weights), len(false) + 1))
    np.cumsum(weights[:, false], axis=1, out=up_to[:, 1:])
    beaten = up_to[:, lower]
    tied = lower < not_higher
    beaten[:, tied] += tie * (up_to[:, not_higher[tied]] - beaten[:, tied])
    true_weights = weights[:, truth]
    wins = np.einsum("ij,ij->i", true_weights, beaten)
    pairs = true_weights.sum(axis=1) * up_to[:, -1]
    area: Values = np.divide(wins, pairs, out=np.full(len(weights), np.nan), where=pairs > 0)
    return area


def placements(scores: Reals, truth: Flags, tie: float = 0.5) -> Values:
    """Return for each item the share of the other kind that it is ranked rightly against; (n,).

    A true item counts the false items below it, a false item the true items above it. A tie counts
    `tie`. The mean over the true items is the ROC-AUC, and so is the mean over the false ones.

    Source: DeLong, DeLong and Clarke-Pearson, Comparing the Areas under Two or More Correlated
    ROC Curves (1988), the structural components.
    """
    out = np.empty(len(scores))
    for mine, sign in ((truth, 1.0), (~truth, -1.0)):
        others = np.sort(sign * scores[~mine])
        values = sign * scores[mine]
        below = np.searchsorted(others, values, "left")
        equal = np.searchsorted(others, values, "right") - below
        out[mine] = (below + tie * equal) / len(others)
    return out


def balanced_threshold(scores: Reals, truth: Flags) -> float:
    """Return the threshold with the best balanced accuracy of "true when the score is above it".

    Candidates lie half-way between neighbouring distinct scores, and below all of them; the lowest
    of equally good ones is taken. Balanced accuracy is the mean of the shares of true and of false
    items that the rule gets right. Raises ValueError unless both kinds are there.
    """
    if truth.all() or not truth.any():
        raise ValueError("a threshold needs true and false items")
    levels, place = np.unique(scores.astype(np.float64), return_inverse=True)
    true = np.bincount(place, weights=truth, minlength=len(levels))
    false = np.bincount(place, weights=~truth, minlength=len(levels))
    lost = np.concatenate([[0.0], np.cumsum(true)[:-1]])  # true items at or below candidate k
    won = np.concatenate([[0.0], np.cumsum(false)[:-1]])
    balanced = (1 - lost / true.sum() + won / false.sum()) / 2
    best = int(balanced.argmax())
    return float(levels[0] - 1) if best == 0 else float((levels[best - 1] + levels[best]) / 2)


def weighted_ap_11(
    scores: Reals, truth: Flags, weights: Values, tie: float = 0.5, devkit: bool = False
) -> Values:
    """Return 11-point interpolated average precision as in ELEVATER's toolkit, or PASCAL VOC 2007.

    The mean, over the recall levels 0, 0.1, ..., 1, of the best precision at that recall or more.
    scores: (n,), higher is retrieved earlier. weights: (r, n), whole numbers: in row r, item i
    counts weights[r, i] times. tie: 0 retrieves the false ones of equal scores first; any other
    value all at once. devkit: at recall 0, take the best of all precisions, as the challenge's code
    and paper do; by default it is 1, as in the toolkit. The two differ where the first item is
    false. Returns (r,); nan for a row in which no true item has weight.

    Sources: Li et al., ELEVATER, NeurIPS 2022, and its evaluation code; Everingham et al., The
    PASCAL Visual Object Classes (VOC) Challenge, IJCV 2010, eq. 1.
    """
    order = np.lexsort((truth, -scores))
    last = np.ones(len(order), dtype=bool)
    if tie:
        last[:-1] = scores[order[1:]] != scores[order[:-1]]
    hits = np.cumsum(weights[:, order] * truth[order], axis=1)[:, last]
    retrieved = np.cumsum(weights[:, order], axis=1)[:, last]
    return _eleven(hits, retrieved, devkit)


@lru_cache(maxsize=256)
def expected_ap_11(true: int, n: int, devkit: bool = False) -> float:
    """Return the mean 11-point average precision of random orders of n items, `true` of them true.

    It lies above the share of true items, since a lucky start counts for low recalls. From a fixed
    sample of rankings, so good to about 0.005. nan without true items.
    """
    rng = np.random.default_rng(0)
    draws = min(2000, max(200, _ITEMS_DRAWN // n))
    ranked = rng.permuted(np.tile(np.arange(n) < true, (draws, 1)), axis=1)
    hits = np.cumsum(ranked, axis=1, dtype=np.float64)
    retrieved = np.broadcast_to(np.arange(1.0, n + 1), hits.shape)
    return float(_eleven(hits, retrieved, devkit).mean())


def _eleven(hits: Values, retrieved: Values, devkit: bool) -> Values:
    """Return the precision of rankings (r, m): true items and items up to each place; (r,)."""
    precision = np.divide(hits, retrieved, out=np.zeros_like(hits), where=retrieved > 0)
    best_from = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    total = hits[:, -1]
    rows = np.arange(len(hits))
    levels = [
        # In whole numbers: a recall of 3/10 must reach the level 0.3 despite rounding.
        best_from[rows, (10 * hits >= level * total[:, None]).argmax(axis=1)]
        for level in range(11)
    ]
    if not devkit:
        levels[0] = np.ones(len(hits))
    return np.where(total > 0, np.mean(levels, axis=0), np.nan)
