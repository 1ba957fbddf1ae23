"""The modes of `compoclip search --negation`, by which denied words change a query's vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from compoclip.errors import UsageError, closest

if TYPE_CHECKING:  # torch is loaded once it is known that the options are right
    from compoclip.data.vectors import Matrix

    Encode: TypeAlias = Callable[[Sequence[str]], Matrix]

DEFAULT = "subtract"
_LIMIT = 10.0  # of weights

_STEPS, _RATE, _STAY = 100, 0.001, 0.2  # of DEO: steps of Adam, their size, weight of the query

# What steering reads a direction from: sentences that state a thing, and that deny it.
_THINGS = ("man", "dog", "street", "table", "room", "woman", "bag", "horse", "chair", "bike", "cat")
_PARTNERS = 3  # per thing
_STATED_AND_DENIED = (
    ("a {} with a {}", "a {} without a {}"),
    ("a {} and a {}", "a {} but no {}"),
    ("a {} that has a {}", "a {} that has no {}"),
)


class Denial(NamedTuple):
    """A query. positive, denied: its parts, by `split_negation`; all of an image is wanted."""

    text: str
    positive: str
    denied: tuple[str, ...] = ()
    is_image: bool = False


@dataclass(frozen=True)
class Mode:
    """A way to treat what queries deny.

    Args:
        about: What the photos are ranked by.
        weight: Its weight unless another is given; None if it takes none.
        limit: The largest weight.
        vectors: Returns the vectors (Q, D) to rank by, from the queries, the features (Q, D) of
            their wanted parts, an encoder of texts, and the weight. None ranks by the wanted part.
        splits: Whether the query is split; if not, all of it is wanted.
        by_torch: Whether `vectors` computes with torch.
    """

    about: str
    weight: float | None = None
    limit: float = _LIMIT
    vectors: Callable[[Sequence[Denial], Matrix, Encode, float], Matrix] | None = None
    splits: bool = True
    by_torch: bool = False


def _rows_of_denied(queries: Sequence[Denial], encode: Encode) -> tuple[Matrix, list[int]]:
    """Return the features (N, D) of all denied phrases, and of each the row of its query."""
    rows = [row for row, query in enumerate(queries) for _ in query.denied]
    return encode([phrase for query in queries for phrase in query.denied]), rows


def subtracted(
    queries: Sequence[Denial], positives: Matrix, encode: Encode, weight: float
) -> Matrix:
    """Return the wanted part minus `weight` times the sum of the denied phrases."""
    denied, rows = _rows_of_denied(queries, encode)
    vectors = positives.copy()
    np.subtract.at(vectors, rows, np.float32(weight) * denied)
    return vectors


def optimized(
    queries: Sequence[Denial], positives: Matrix, encode: Encode, weight: float
) -> Matrix:
    r"""Return the queries optimized towards what is wanted and away from what is denied (DEO).

    DEO (Lee et al., 2026, arXiv:2603.09185) starts at the unit feature q_0 of the whole query and
    takes 100 steps of Adam, of size 0.001, down

    .. math:: \lVert q - w \rVert + 0.2 \lVert q - q_0 \rVert
        - \lambda \operatorname{mean}_j \lVert q - d_j \rVert

    with w the wanted part, d_j the denied phrases, and \lambda the weight; after each step q is
    scaled to unit length. Loss and constants are those of the authors' program, which takes 20 or
    500 steps; of these and 100, `scripts/measure_queries.py` found 100 the best. There a language
    model splits the query, and here `split_negation` does.
    """
    import torch

    denied, rows = _rows_of_denied(queries, encode)
    positive_parts, denied_parts = torch.tensor(positives), torch.tensor(denied)
    shares = torch.tensor([1 / len(queries[row].denied) for row in rows])
    start = torch.tensor(encode([query.text for query in queries]))
    with torch.inference_mode(False), torch.enable_grad():
        vectors = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([vectors], lr=_RATE)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            towards = (vectors - positive_parts).norm(dim=1).sum()
            stay = (vectors - start).norm(dim=1).sum()
            away = (shares * (vectors[rows] - denied_parts).norm(dim=1)).sum()
            (towards + _STAY * stay - weight * away).backward()
            optimizer.step()
            vectors.data /= vectors.data.norm(dim=1, keepdim=True)
    return np.asarray(vectors.detach())


def steered(queries: Sequence[Denial], positives: Matrix, encode: Encode, weight: float) -> Matrix:
    r"""Return the whole queries steered by the direction of negation.

    After Sammani et al. (2026, arXiv:2603.20554), with the formula of their program:
    (1 - \alpha) q + \alpha u for the unit feature q of the whole query, with \alpha the weight and
    u the unit direction from sentences that state a thing to sentences that deny it. They steer the
    end token after every block of the text tower, by the normals of linear classifiers fitted to
    thousands of sentences. This is an interpretation for any model: it steers the final feature,
    and u is the difference of means over 99 pairs of sentences.
    """
    pairs = [
        (thing, _THINGS[(place + step) % len(_THINGS)])
        for place, thing in enumerate(_THINGS)
        for step in range(1, _PARTNERS + 1)
    ]
    stating, denying = (
        encode([forms[side].format(*pair) for forms in _STATED_AND_DENIED for pair in pairs])
        for side in (0, 1)
    )
    direction = denying.mean(axis=0) - stating.mean(axis=0)
    direction /= np.linalg.norm(direction)
    steered = (1 - weight) * encode([query.text for query in queries]) + weight * direction
    vectors: Matrix = steered / np.linalg.norm(steered, axis=1, keepdims=True)
    return vectors


MODES: Mapping[str, Mode] = {
    "off": Mode("the whole text", splits=False),
    "split": Mode("the wanted part alone"),
    "subtract": Mode("the wanted part minus the denied part", 0.25, vectors=subtracted),
    "deo": Mode(
        "the text optimized away from the denied part", 2.0, vectors=optimized, by_torch=True
    ),
    "steer": Mode("the text steered by a direction of negation", 0.13, 1.0, vectors=steered),
}


def negation_mode(value: str | float) -> tuple[Mode, float]:
    """Return the mode that a value of `--negation` names, and its weight.

    Args:
        value: A name of `MODES`, with ":WEIGHT" for a weight. A number w is short for "subtract:w",
            and 0 for "off".

    Raises:
        UsageError: For an unknown name and for a weight that the mode does not take.
    """
    name, colon, weight = str(value).partition(":")
    number = _number(name)
    if number is not None and not colon:
        name, colon, weight = ("subtract", ":", name) if number else ("off", "", "")
    if name not in MODES:
        raise UsageError(f"--negation has no mode '{name[:50]}'; {closest(name, MODES)}")
    mode = MODES[name]
    if not colon:
        return mode, mode.weight or 0.0
    if mode.weight is None:
        raise UsageError(f"--negation {name} takes no weight; write {name}")
    number = _number(weight)
    if number is None or not 0 <= number <= mode.limit:
        raise UsageError(
            f"--negation {name}: the weight must be a number from 0 to {mode.limit:g}, "
            f"e.g. {name}:{mode.weight:g}"
        )
    return mode, number


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
