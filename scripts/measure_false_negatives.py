"""Measure how often rewrites fail, by the world's oracle: all rewrites of the registry.

    python scripts/measure_false_negatives.py [--captions 2000] [--seed 0] [--rewrites NAMES]

Each caption is true of its scene. A negative that the oracle finds true, and a positive that it
finds false, is wrong. What the oracle cannot judge (scrambled or vague text) is counted apart.
"foreign" are rewrites that are false through a word that names nothing in the world.
"""

from __future__ import annotations

import argparse

from rewrite_truth import Judged, judge_rewrites

from compoclip.console import end_with, table
from compoclip.evaluation.statistics import wilson

_HEADER = ["rewrite", "coverage", "made", "undecided", "judged", "wrong", "rate", "95 % interval"]


def main() -> int:
    """Rewrite, judge, print one row a rewrite: negatives, then positives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rewrites", help="names joined by commas (default: all)")
    parser.add_argument("--examples", type=int, default=5, help="wrong ones to show of each")
    options = parser.parse_args()
    names = options.rewrites.split(",") if options.rewrites else None
    counts = judge_rewrites(options.captions, options.seed, names=names)
    for keeps, title in (
        (False, "negatives (wrong: still true)"),
        (True, "positives (wrong: false)"),
    ):
        rows = [_row(n, c) for n, c in counts.items() if c.keeps_meaning is keeps]
        if rows:
            print(f"{title}\n{table(rows, [*_HEADER, 'foreign'])}")
    for name, count in counts.items():
        for example in count.examples[: options.examples]:
            print(f"  {name} wrong: {example}")
    return 0


def _row(name: str, count: Judged) -> list[str]:
    low, high = wilson(count.wrong, count.judged) if count.judged else (0.0, 1.0)
    return [
        name,
        f"{count.made / max(1, count.captions):.1%}",
        str(count.made),
        str(count.unknown),
        str(count.judged),
        str(count.wrong),
        f"{count.rate:.2%}",
        f"{low:.2%} to {high:.2%}",
        str(count.foreign),
    ]


if __name__ == "__main__":
    end_with(main, "measure_false_negatives")
