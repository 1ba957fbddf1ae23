"""How often the verdicts of `compare` are wrong, and how often they see a difference.

Draws data sets in which both models are equally good, by items that share photos to some degree,
and counts how often a whole family of them holds a verdict of "higher" or "lower" (the family-wise
error, 5 % by right); and the same where the other model is better everywhere, counting sub-tasks.

    python scripts/verdicts.py --sets 2000

prints the table of reports/verdicts.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from compoclip.evaluation.comparison import Difference, Pair, corrected, subtask_differences
from compoclip.evaluation.items import MAIN

FAMILIES = (1, 10, 60)


@dataclass(frozen=True)
class Shape:
    """photos and items a photo of every sub-task; alike: how much of what makes an item hard for a
    model is its photo (0: nothing, items are independent)."""

    photos: int
    items: int
    alike: float = 0.0


SHAPES = (
    *(Shape(photos, 1) for photos in (10, 30, 100, 300)),
    *(
        Shape(photos, items, alike)
        for items in (5, 30)
        for alike in (0.0, 0.3)
        for photos in (10, 30, 100)
    ),
)
GAINS = (
    (Shape(100, 5, 0.3), 0.6),
    (Shape(300, 5, 0.3), 0.3),
    (Shape(30, 1), 2.0),
    (Shape(100, 1), 2.0),
    (Shape(30, 5, 0.3), 2.0),
)
"""What the other model is better by, as of `data_sets`."""


def data_sets(
    shape: Shape, sets: int, seed: int, gain: float = 0.0, subtasks: int = max(FAMILIES)
) -> Iterator[list[Difference]]:
    """For each data set the differences of all its sub-tasks, uncorrected.

    An item is right where a sum of normal variables is positive: how hard it is for all, how hard
    its photo is for the model, and the rest. gain: by how much the other model's sum is higher.
    """
    rng = np.random.default_rng(seed)
    shown = (subtasks, shape.photos, shape.items)
    n = int(np.prod(shown))
    names = [f"photo {k}" for k in np.broadcast_to(np.arange(shape.photos)[:, None], shown).ravel()]
    rows = np.arange(n).reshape(subtasks, -1)
    base, other = np.zeros(n), np.zeros(n)
    pair = Pair(
        benchmark="simulated",
        headline="",
        trees={},
        subtask_rows={f"part {k}": own for k, own in enumerate(rows)},
        clusters=names,
        base={MAIN: base},
        other={MAIN: other},
        main=MAIN,
        truth=[],
    )
    for _ in range(sets):
        hard = rng.standard_normal(shown, dtype=np.float32)
        for values, better in ((base, 0.0), (other, gain)):
            photo = rng.standard_normal((*shown[:2], 1), dtype=np.float32)
            rest = rng.standard_normal(shown, dtype=np.float32)
            own = np.sqrt(shape.alike) * photo + np.sqrt(1 - shape.alike) * rest
            values[:] = (hard + own + better > 0).ravel()
        yield subtask_differences(pair, 0, 0)


def wrong(shape: Shape, sets: int, seed: int = 0) -> dict[int, int]:
    """Size of the family -> families of equal models that hold a wrong verdict.

    Sub-tasks are drawn independently, so a data set holds as many families as fit into it.
    """
    found = dict.fromkeys(FAMILIES, 0)
    for differences in data_sets(shape, sets, seed):
        for size in FAMILIES:
            for first in range(0, len(differences), size):
                family = corrected(differences[first : first + size])
                found[size] += any(each.verdict in ("higher", "lower") for each in family)
    return found


def seen(shape: Shape, sets: int, gain: float, seed: int = 0) -> dict[int, float]:
    """Size of the family -> share of its sub-tasks that are called higher, where all are."""
    found = dict.fromkeys(FAMILIES, 0.0)
    for differences in data_sets(shape, sets, seed, gain):
        for size in FAMILIES:
            verdicts = [each.verdict for each in corrected(differences[:size])]
            found[size] += verdicts.count("higher") / size / sets
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print both tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=2000)
    sets = parser.parse_args(argv).sets
    about, families = "photos | items a photo | alike", " | ".join(map(str, FAMILIES))
    counts = {size: sets * max(FAMILIES) // size for size in FAMILIES}
    bounds = [f"{100 * stats.binom.ppf(0.975, n, 0.05) / n:.1f}" for n in counts.values()]
    print(f"Families with a wrong verdict, % (5 by right, by chance to {' | '.join(bounds)})")
    print(f"\n| {about} | {families} |\n|{'---|' * (3 + len(FAMILIES))}")
    for shape in SHAPES:
        cells = " | ".join(f"{100 * n / counts[k]:.1f}" for k, n in wrong(shape, sets).items())
        print(f"| {shape.photos} | {shape.items} | {shape.alike:g} | {cells} |", flush=True)
    print("\nTrue differences that are seen, %")
    print(f"\n| {about} | points | {families} |\n|{'---|' * (4 + len(FAMILIES))}")
    for shape, gain in GAINS:
        points = 100 * (stats.norm.cdf(gain / np.sqrt(2)) - 0.5)
        cells = " | ".join(f"{100 * n:.1f}" for n in seen(shape, max(1, sets // 10), gain).values())
        row = f"| {shape.photos} | {shape.items} | {shape.alike:g} | +{points:.0f} | {cells} |"
        print(row, flush=True)


if __name__ == "__main__":
    main()
