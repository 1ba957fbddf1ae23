"""Zero-shot classification: class embeddings from prompts, then accuracy and top-5, ROC-AUC, or
11-point mean average precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from compoclip.benchmarks.case import Classification, TiePolicy, image_key, image_names
from compoclip.errors import CompoclipError
from compoclip.evaluation.items import EncodedFeatures, Flags, Items, Outcomes, Scores, Values
from compoclip.evaluation.retrieval import rank

# --- What a score tells over all thresholds: ROC-AUC, 11-point average precision, the best
# threshold. ---
#
# Pure numpy. `scores` (n,) are real numbers, `truth` (n,) says which items are true. Equal scores
# never depend on the order they stand in.

Reals = npt.NDArray[np.floating]
_ITEMS_DRAWN = 2_000_000


def roc_auc(scores: Reals, truth: Flags, tie: float = 0.5) -> float:
    """Share of (true, false) pairs in which the true item scores more; a tie counts `tie`.

    With tie = 1/2 this is the area under the ROC curve and the Mann-Whitney statistic divided by
    its maximum (Hanley and McNeil, The Meaning and Use of the Area under a ROC Curve, 1982). nan
    when one of the two kinds is missing.
    """
    return float(weighted_auc(scores, truth, np.ones((1, len(scores))), tie)[0])


def weighted_auc(scores: Reals, truth: Flags, weights: Values, tie: float = 0.5) -> Values:
    """`roc_auc` for each row of `weights` (r, n), item i counting weights[r, i] times; (r,).

    nan for rows in which one of the two kinds has no weight.
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
    own = weights[:, truth]
    wins = np.einsum("ij,ij->i", own, beaten)
    pairs = own.sum(axis=1) * up_to[:, -1]
    area: Values = np.divide(wins, pairs, out=np.full(len(weights), np.nan), where=pairs > 0)
    return area


def placements(scores: Reals, truth: Flags, tie: float = 0.5) -> Values:
    """For each item the share of the other kind on its right side: lower for a true item, higher
    for a false one, a tie counting `tie`; (n,). Their mean over either kind is the ROC-AUC.

    Source: DeLong, DeLong and Clarke-Pearson, Comparing the Areas under Two or More Correlated
    ROC Curves (1988), the structural components.
    """
    out = np.empty(len(scores))
    for mine, sign in ((truth, 1.0), (~truth, -1.0)):
        others = np.sort(sign * scores[~mine])
        own = sign * scores[mine]
        below = np.searchsorted(others, own, "left")
        equal = np.searchsorted(others, own, "right") - below
        out[mine] = (below + tie * equal) / len(others)
    return out


def balanced_threshold(scores: Reals, truth: Flags) -> float:
    """The threshold whose rule "true when the score is above it" has the best balanced accuracy.

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


def average_precision_11(scores: Reals, truth: Flags, devkit: bool = False) -> float:
    """11-point interpolated average precision of the ELEVATER toolkit, or of PASCAL VOC 2007.

    Mean over the recall levels 0, 0.1, ..., 1 of the best precision at that recall or more. At
    recall 0 the toolkit counts a precision of 1, as of a ranking that retrieves nothing;
    `devkit`: the best of all precisions, as the challenge's own code and its paper have it, which
    is lower where the first item is false. Items with equal scores are retrieved together. nan
    when no item is true.

    Sources: Li et al., ELEVATER, NeurIPS 2022, and its evaluation code; Everingham et al., The
    PASCAL Visual Object Classes (VOC) Challenge, IJCV 2010, eq. 1.
    """
    return float(weighted_ap_11(scores, truth, np.ones((1, len(scores))), devkit=devkit)[0])


def weighted_ap_11(
    scores: Reals, truth: Flags, weights: Values, tie: float = 0.5, devkit: bool = False
) -> Values:
    """`average_precision_11` for each row of `weights` (r, n), whole numbers: item i counts
    weights[r, i] times; (r,).

    tie: 0 retrieves the false ones among equal scores first, anything else all together. nan for
    rows in which no true item has weight.
    """
    order = np.lexsort((truth, -scores))
    last = np.ones(len(order), dtype=bool)
    if tie:
        last[:-1] = scores[order[1:]] != scores[order[:-1]]
    found = np.cumsum(weights[:, order] * truth[order], axis=1)[:, last]
    retrieved = np.cumsum(weights[:, order], axis=1)[:, last]
    return _eleven(found, retrieved, devkit)


@lru_cache(maxsize=256)
def expected_ap_11(true: int, n: int, devkit: bool = False) -> float:
    """Mean 11-point average precision of rankings at random of n items, `true` of them true.

    It lies above the share of true items, since a lucky start counts for low recalls. From a fixed
    sample of rankings, so good to about 0.005. nan without true items.
    """
    rng = np.random.default_rng(0)
    draws = min(2000, max(200, _ITEMS_DRAWN // n))
    ranked = rng.permuted(np.tile(np.arange(n) < true, (draws, 1)), axis=1)
    found = np.cumsum(ranked, axis=1, dtype=np.float64)
    retrieved = np.broadcast_to(np.arange(1.0, n + 1), found.shape)
    return float(_eleven(found, retrieved, devkit).mean())


def _eleven(found: Values, retrieved: Values, devkit: bool) -> Values:
    """Eleven-point precision of rankings (r, m): true items and items up to each place; (r,)."""
    precision = np.divide(found, retrieved, out=np.zeros_like(found), where=retrieved > 0)
    best_from = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    total = found[:, -1]
    rows = np.arange(len(found))
    # In whole numbers: a recall of 3/10 must reach the level 0.3 despite rounding.
    mean: Values = np.mean(
        [
            best_from[rows, (10 * found >= level * total[:, None]).argmax(axis=1)]
            if level or devkit
            else np.ones(len(found))
            for level in range(11)
        ],
        axis=0,
    )
    return np.where(total > 0, mean, np.nan)


# --- Zero-shot classification: class embeddings from prompts, then accuracy and top-5, ROC-AUC,
# or ---

SUBTASK = "zero_shot"
CLASS_LABEL = "class"
_SCALE = 100.0


def class_embeddings(prompts: Sequence[Sequence[str]], features: EncodedFeatures) -> Scores:
    """(classes, D): the mean of each class's unit-length prompt features, scaled to length 1.

    Raises CompoclipError for a class without prompts.
    """
    rows = []
    for number, texts in enumerate(prompts):
        if not texts:
            raise CompoclipError(
                f"class {number} has no prompts; check the class and template file"
            )
        mean = features.texts[features.text_index(texts)].mean(axis=0, dtype=np.float32)
        rows.append(mean / np.linalg.norm(mean))
    return np.stack(rows).astype(np.float32)


def log_odds(cosines: Scores) -> Values:
    """log(p / (1 - p)) of the softmax p over the classes of 100 * cosine; (images, classes).

    It ranks as p does, but keeps apart what would round to a p of 1. 100 is CLIP's trained
    temperature; the toolkit that defines the sets uses it for every model.
    """
    logits = _SCALE * cosines.astype(np.float64)
    odds = np.empty_like(logits)
    for k in range(logits.shape[1]):
        odds[:, k] = logits[:, k] - logsumexp(np.delete(logits, k, axis=1), axis=1)
    return odds


def score_classification(
    content: Classification, features: EncodedFeatures, ties: Mapping[str, TiePolicy] | None = None
) -> Items:
    """Nearest class embedding for each image; the metrics are "accuracy" and, above five classes,
    "top5". Ties go to the first class (argmax) unless the benchmark says otherwise.

    Each item shows its true class and the best other class, and carries the label "class". Of a set
    with the metric "auc" the items also have that, and show the log odds of class 1; of a set
    with the metric "map11" every class has an item for each image: see `Classification`. Raises
    CompoclipError for a class without prompts, and where "auc" has nothing to tell apart.
    """
    policies = ties or {}
    first = policies.get(SUBTASK, policies.get("", TiePolicy.FIRST)) is TiePolicy.FIRST
    images = features.images[features.image_index(content.images)]
    classes = class_embeddings(content.prompts, features)
    if content.metric == "map11":
        return _several(content, images @ classes.T)
    ranks = rank(images, classes, [[label] for label in content.labels])
    outcomes = {"accuracy": ranks.within(1, first)}
    if len(content.classes) > 5:
        outcomes["top5"] = ranks.within(5, first)
    n = len(content.images)
    items = Items(
        ids=image_names(content.images),
        forms=["classification"] * n,
        subtasks=[SUBTASK] * n,
        labels=[{CLASS_LABEL: content.classes[label]} for label in content.labels],
        truth=[0] * n,
        images=[(image_key(ref),) for ref in content.images],
        texts=[
            (content.classes[own],) if rival < 0 else (content.classes[own], content.classes[rival])
            for own, rival in zip(ranks.best, ranks.rival)
        ],
        scores=[
            [float(own)] if rival < 0 else [float(own), float(score)]
            for own, rival, score in zip(ranks.best_score, ranks.rival, ranks.rival_score)
        ],
        clusters=[ref.photo for ref in content.images],
        positive=ranks.best_score.astype(np.float64),
        outcomes=outcomes,
        extra={"rank": [int(r) for r in ranks.rank]},
    )
    return _with_auc(items, content, images @ classes.T) if content.metric == "auc" else items


def _with_auc(items: Items, content: Classification, cosines: Scores) -> Items:
    """The items of a two-class set, to be ranked by the probability of class 1."""
    truth = np.array(content.labels) == 1
    if len(content.classes) != 2 or truth.all() or not truth.any():
        raise CompoclipError(
            f"the area under the ROC curve needs images of two classes, not {truth.sum()} of "
            f"{len(truth)} images in class 1 of {len(content.classes)}; get the whole set"
        )
    odds = log_odds(cosines)[:, 1].astype(np.float32)
    return replace(
        items,
        truth=truth.astype(int).tolist(),
        texts=[(content.classes[1],)] * len(items),
        scores=[[float(each)] for each in odds],
        outcomes={"auc": _placed(odds, truth, 0.5), **items.outcomes},
    )


def _several(content: Classification, cosines: Scores) -> Items:
    """An item for each class and image, class after class, to be ranked within the class."""
    n, k = len(content.images), len(content.classes)
    odds = log_odds(cosines).astype(np.float32)
    truth = np.zeros((n, k), dtype=bool)
    for row, tags in enumerate(content.tags):
        truth[row, list(tags)] = True
    chance = {
        "ap11": [expected_ap_11(each, n) for each in truth.sum(axis=0).tolist()],
        "ap11_devkit": [expected_ap_11(each, n, True) for each in truth.sum(axis=0).tolist()],
    }
    return Items(
        ids=image_names(content.images) * k,
        forms=["classification"] * (n * k),
        subtasks=[name for name in content.classes for _ in range(n)],
        labels=[{CLASS_LABEL: name} for name in content.classes for _ in range(n)],
        truth=truth.T.astype(int).ravel().tolist(),
        images=[(image_key(ref),) for _ in range(k) for ref in content.images],
        texts=[(name,) for name in content.classes for _ in range(n)],
        scores=[[float(each)] for each in odds.T.ravel()],
        clusters=[ref.photo for ref in content.images] * k,
        positive=np.where(truth, cosines.astype(np.float64), np.nan).T.ravel(),
        outcomes={
            metric: _stacked([_placed(odds[:, c], truth[:, c], by[c]) for c in range(k)])
            for metric, by in chance.items()
        },
    )


def _stacked(parts: Sequence[Outcomes]) -> Outcomes:
    names = ("used", "strict", "fractional", "chance")
    return Outcomes(*(np.concatenate([getattr(each, name) for each in parts]) for name in names))


def _placed(scores: Scores, truth: Flags, chance: float) -> Outcomes:
    """What a curve shows of its items: for each, the share of the other kind on its right side.

    nan where there are not both kinds, for which no curve exists. chance: of the curve.
    """
    if truth.all() or not truth.any():
        return Outcomes(*(np.full(len(truth), np.nan) for _ in range(4)))
    half = placements(scores, truth)
    return Outcomes(half, placements(scores, truth, tie=0.0), half, np.full(len(truth), chance))
