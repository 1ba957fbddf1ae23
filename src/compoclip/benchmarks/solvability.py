"""How far a benchmark can be solved without looking at an image: the text-only baseline.

A linear model scores each text by its length (words, characters, mean word length) and its one- and
two-word stretches, punctuation and the ends of the text included. It is fitted to tell true from
false texts of the same item (logistic loss on the difference of their features, ridge penalty) on
four fifths of a sub-task and judged on the rest, five times; items that share an image (or, for
true-or-false statements, the text) stay together. A second model sees lengths alone. Both know
nothing of the other sub-tasks.

An accuracy well above chance says that negatives give themselves away; it is a lower bound for what
a language model could do.

Beside it stand rules of thumb that need no fitting: take the shorter text, take the larger box.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb
from typing import TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.sparse import csr_array, hstack
from scipy.stats import rankdata

from compoclip.benchmarks.case import Benchmark, Case, Form
from compoclip.benchmarks.files import hash_number

Values: TypeAlias = npt.NDArray[np.float64]
FOLDS = 5
MOST_ITEMS = 5000
LEAST_ITEMS = 50
_BUCKETS = 1 << 16
_RIDGE = 1.0
_PIECES = re.compile(r"[\w']+|[^\w\s]")


@dataclass(frozen=True)
class Solvability:
    """The baseline's score on one sub-task, without images.

    metric: "accuracy", the share of items whose true text scores above every false one (for two
    true texts both of them, of a half truth the short one; equal scores count as their share under
    random order), or "auc" of true-or-false statements. ngrams, length: of the model with all
    features and with lengths only. n: items used; of: items of the sub-task.
    """

    subtask: str
    metric: str
    ngrams: float
    length: float
    chance: float
    n: int
    of: int


def solvability(benchmark: Benchmark) -> list[Solvability]:
    """Return the baseline on every sub-task with false texts and at least LEAST_ITEMS items.

    Of more than MOST_ITEMS the ones with the smallest hash of their id are used. Deterministic.
    Empty for benchmarks whose texts are all true (pairs of images, retrieval, classification).
    """
    results = []
    for subtask, cases in _by_part(benchmark, _has_false).items():
        sample = sorted(cases, key=lambda case: hash_number(case.id))[:MOST_ITEMS]
        measure = _statements if sample[0].form is Form.BINARY else _choices
        score = measure(sample) if len(sample) >= LEAST_ITEMS else None
        if score is not None:
            metric, both, chance = score
            results.append(Solvability(subtask, metric, *both, chance, len(sample), len(cases)))
    return results


def _has_false(case: Case) -> bool:
    return case.form is Form.BINARY or (case.form is not Form.GROUP and bool(case.sides[1]))


def _candidates(case: Case) -> tuple[list[int], list[int]]:
    """Return the places of the right and of the wrong candidates of the main question.

    The longer true text of a half truth is no candidate.
    """
    if case.form is Form.CHOOSE_IMAGE:
        return [case.truth], [k for k in range(len(case.images)) if k != case.truth]
    true, false = case.sides
    return true[:1] if case.form is Form.HALF_TRUTH else true, false


def _by_part(benchmark: Benchmark, fits: Callable[[Case], bool]) -> dict[str, list[Case]]:
    parts: dict[str, list[Case]] = {}
    for case in filter(fits, benchmark.content.cases):
        parts.setdefault(case.subtask, []).append(case)
    return parts


# --- Rules of thumb. ---

SHORTER, LARGER = "shorter text", "larger box"


@dataclass(frozen=True)
class RuleOfThumb:
    """The score of a rule that looks at neither meaning nor image.

    rule: SHORTER or LARGER. value: share of items that it gets right; equal ones count as their
    share under random order. longer: words and punctuation marks that a false text has more than
    a true one of its item, on average; None for boxes. n: items.
    """

    subtask: str
    rule: str
    value: float
    chance: float
    longer: float | None
    n: int


def rules_of_thumb(benchmark: Benchmark) -> list[RuleOfThumb]:
    """Return how far "take the shorter text" and "take the larger box" get, by sub-task."""

    def fits(case: Case) -> bool:
        boxes = case.form is Form.CHOOSE_IMAGE and all(ref.box for ref in case.images)
        return boxes or (case.form is not Form.BINARY and _has_false(case))

    results = []
    for subtask, cases in _by_part(benchmark, fits).items():
        boxes = cases[0].form is Form.CHOOSE_IMAGE
        judged = []  # outcome, share of a random order, how much longer a wrong text is
        for case in cases:
            if boxes:
                edges = [ref.box or (0.0, 0.0, 0.0, 0.0) for ref in case.images]
                scores = np.array([(right - left) * (low - up) for left, up, right, low in edges])
            else:
                scores = -np.array([float(len(_PIECES.findall(text))) for text in case.texts])
            true, false = (scores[places] for places in _candidates(case))
            share, longer = _share(len(true), len(false)), true.mean() - false.mean()
            judged.append((_outcome(true, false), share, longer))
        value, chance, longer = (float(np.mean(column)) for column in zip(*judged))
        rule = LARGER if boxes else SHORTER
        words = None if boxes else longer
        results.append(RuleOfThumb(subtask, rule, value, chance, words, len(cases)))
    return results


# --- The fitted baseline. ---

Score: TypeAlias = tuple[str, tuple[float, float], float]
"""Metric, its value with all features and with lengths alone, chance."""


def _choices(cases: Sequence[Case]) -> Score | None:
    texts = list(dict.fromkeys(text for case in cases for text in case.texts))
    row = {text: number for number, text in enumerate(texts)}
    sides = ([[row[case.texts[k]] for k in side] for side in _candidates(case)] for case in cases)
    true, false = zip(*sides)
    folds = _folds(cases)
    share = np.mean([_share(len(r), len(w)) for r, w in zip(true, false)])

    def held_out(features: csr_array) -> float:
        outcomes = np.zeros(len(cases))
        for fold in range(FOLDS):
            train = [k for k in range(len(cases)) if folds[k] != fold]
            pairs = [(p, q) for k in train for p in true[k] for q in false[k]]
            if not pairs:
                continue
            plus, minus = (np.array(side) for side in zip(*pairs))
            scores = features @ _fit(features[plus] - features[minus], np.ones(len(pairs)))
            for k in np.flatnonzero(folds == fold):
                outcomes[k] = _outcome(scores[true[k]], scores[false[k]])
        return float(outcomes.mean())

    return "accuracy", _both(texts, held_out), float(share)


def _statements(cases: Sequence[Case]) -> Score | None:
    """Statements that are true or false: the area under the ROC curve, pairs of a fold only."""
    truth = np.array([case.truth == 1 for case in cases])
    if truth.all() or not truth.any():
        return None
    folds = _folds(cases)
    sign = np.where(truth, 1.0, -1.0)

    def held_out(features: csr_array) -> float:
        wins = pairs = 0.0
        for fold in range(FOLDS):
            here = folds == fold
            true = int(truth[here].sum())
            false = int(here.sum()) - true
            if true * false == 0 or here.all():
                continue
            ranks = rankdata(features[here] @ _fit(features[~here], sign[~here]))
            wins += float(ranks[truth[here]].sum()) - true * (true + 1) / 2
            pairs += true * false
        return wins / pairs if pairs else 0.5

    return "auc", _both([case.texts[0] for case in cases], held_out), 0.5


def _both(texts: Sequence[str], held_out: Callable[[csr_array], float]) -> tuple[float, float]:
    """Return the values with lengths and counts of hashed stretches, and with lengths alone."""
    pieces = [_PIECES.findall(text) for text in texts]
    words = np.array([len(tokens) for tokens in pieces], dtype=np.float64)
    letters = np.array([sum(map(len, tokens)) for tokens in pieces], dtype=np.float64)
    table = np.stack([words, letters, letters / np.maximum(words, 1)], axis=1)
    spread = table.std(axis=0)
    lengths = csr_array((table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0))
    rows, columns = [], []
    for number, text in enumerate(texts):
        lower = ["<", *_PIECES.findall(text.lower()), ">"]
        grams = lower[1:-1] + [f"{a} {b}" for a, b in pairwise(lower)]
        rows += [number for _ in grams]
        columns += [crc32(gram.encode()) % _BUCKETS for gram in grams]
    counts = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(texts), _BUCKETS))
    return held_out(hstack([lengths, counts], format="csr")), held_out(lengths)


def _fit(features: csr_array, sign: Values) -> Values:
    """Return the weights w that minimise sum log(1 + exp(-sign x.w)) + ridge/2 |w|^2."""

    def loss(weights: Values) -> tuple[float, Values]:
        margin = sign * (features @ weights)
        value = np.logaddexp(0.0, -margin).sum() + 0.5 * _RIDGE * weights @ weights
        pull = -sign / (1.0 + np.exp(np.clip(margin, -700, 700)))
        return float(value), features.T @ pull + _RIDGE * weights

    start = np.zeros(features.shape[1])
    fitted: Values = minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 100, "ftol": 1e-7}
    ).x
    return fitted


def _outcome(right: Values, others: Values) -> float:
    """Return the probability that all of `right` come first when ties are broken at random."""
    floor, ceiling = right.min(), others.max()
    if floor != ceiling:
        return float(floor > ceiling)
    return _share(int((right == floor).sum()), int((others == ceiling).sum()))


def _share(right: int, others: int) -> float:
    """Return the share of the orders of things in which all right ones come first."""
    return 1.0 / comb(right + others, right)


def _folds(cases: Sequence[Case]) -> npt.NDArray[np.int64]:
    """Return the fold of each item, by the hash of its image or, without one and for statements, of
    its first text: data sets pair a statement with an image that it is true of and another."""
    names = [
        case.texts[0] if case.form is Form.BINARY or not case.images else case.images[0].photo
        for case in cases
    ]
    return np.array([hash_number(name) % FOLDS for name in names])
