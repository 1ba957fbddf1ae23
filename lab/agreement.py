"""Do two labs agree? The rank correlation of their recipes, skill by skill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from compoclip.errors import CompoclipError
from compoclip.files import read_json
from compoclip.world.bounds import BOUNDS
from lab.settings import BASE

_DRAWS = 10_000
_FEWEST = 4
"""Recipes; of fewer a rank correlation says nothing."""

Means = Mapping[str, Mapping[str, float]]
"""Arm -> column -> mean over the seeds."""


def means_of(path: Path) -> Means:
    """The means in the numbers of a lab (`lab.json`), without the base and the bounds.

    Raises CompoclipError, naming the file, when it is none.
    """
    value = read_json(path, damaged="run that lab again")
    try:
        return {
            line["name"]: {name: fmean(values) for name, values in line["values"].items()}
            for line in value["lines"]
            if line["name"] not in (BASE, *BOUNDS)
        }
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise CompoclipError(f"{path}: no numbers of a lab; run that lab again") from error


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks. nan when all of a
    list are equal."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else float("nan")


def _ranks(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    given = np.asarray(values, dtype=np.float64)
    below = (given[:, None] > given[None, :]).sum(1)
    equal = (given[:, None] == given[None, :]).sum(1)
    ranks: np.ndarray[Any, np.dtype[np.float64]] = below + (equal - 1) / 2
    return ranks


def chance_of(a: Sequence[float], b: Sequence[float], draws: int = _DRAWS, seed: int = 0) -> float:
    """How often a random order of `b` correlates with `a` at least as much, either way."""
    rng, found = np.random.default_rng(seed), abs(spearman(a, b))
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    drawn = np.array([abs(float(x @ rng.permutation(y))) / scale for _ in range(draws)])
    return float((1 + (drawn >= found - 1e-12).sum()) / (1 + draws))


def agreement(mine: Means, other: Means) -> list[tuple[str, int, float, float]]:
    """(column, recipes in both labs, rank correlation, its p) of every column that both have.

    Columns that do not vary, or that fewer than four recipes share, are left out.
    """
    arms = [name for name in mine if name in other]
    rows = []
    for column in next(iter(mine.values()), {}):
        shared = [name for name in arms if column in mine[name] and column in other[name]]
        if len(shared) < _FEWEST:
            continue
        a, b = ([lab[name][column] for name in shared] for lab in (mine, other))
        rho = spearman(a, b)
        if not np.isnan(rho):
            rows.append((column, len(shared), rho, chance_of(a, b)))
    return rows
