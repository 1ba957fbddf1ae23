"""Measure how often a hard negative is still true, by the world's oracle.

    python scripts/measure_false_negatives.py [--captions 2000] [--seed 0]

Each caption is true of its scene. A rewrite that the oracle also finds true is a false negative.
What the oracle cannot judge (scrambled or vague text) is counted apart. "foreign" are rewrites that
are false through a word that names nothing in the world.
"""

from __future__ import annotations

import argparse
import sys

from compoclip.captions.parse import parse
from compoclip.console import table
from compoclip.errors import CompoclipError
from compoclip.evaluation.statistics import wilson
from compoclip.rewrites.base import Rewritten, rng_for
from compoclip.rewrites.registry import get_rewrite, rewrite_names
from compoclip.world.captions import captions_for
from compoclip.world.oracle import Oracle, Truth
from compoclip.world.sampling import scene_for
from compoclip.world.scene import WorldConfig

_PER_SCENE = 4


def main() -> int:
    """Rewrite, judge, print one row a rewrite."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    config, oracle = WorldConfig(), Oracle()
    names = rewrite_names()
    counts = {
        name: dict.fromkeys(("made", "true", "false", "unknown", "foreign"), 0) for name in names
    }
    examples: dict[str, list[str]] = {name: [] for name in names}
    for index in range(-(-options.captions // _PER_SCENE)):
        scene = scene_for(config, options.seed, "val", index)
        for caption in captions_for(scene, config, options.seed, index, _PER_SCENE):
            parsed = parse(caption.text)
            for name in names:
                rng = rng_for(options.seed, f"{index}/{caption.text}", 0, name)
                result = get_rewrite(name)(parsed, rng)
                if not isinstance(result, Rewritten):
                    continue
                verdict = oracle.verdict(result.text, scene)
                count = counts[name]
                count["made"] += 1
                count[verdict.truth.value] += 1
                count["foreign"] += verdict.truth is Truth.FALSE and verdict.foreign
                if verdict.truth is Truth.TRUE:
                    examples[name].append(f"{caption.text!r} -> {result.text!r}")
    rows = []
    for name, count in counts.items():
        judged = count["true"] + count["false"]
        low, high = wilson(count["true"], judged) if judged else (0.0, 1.0)
        rows.append(
            [
                name,
                f"{count['made'] / options.captions:.1%}",
                str(count["made"]),
                str(judged),
                f"{judged / max(1, count['made']):.1%}",
                str(count["true"]),
                f"{count['true'] / max(1, judged):.2%}",
                f"{low:.2%} to {high:.2%}",
                str(count["foreign"]),
            ]
        )
    header = ["rewrite", "coverage", "made", "judged", "judged share", "still true"]
    print(table(rows, [*header, "false negatives", "95 % interval", "foreign"]))
    for name in names:
        for example in examples[name][:5]:
            print(f"  {name} still true: {example}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CompoclipError as error:
        sys.exit(f"measure_false_negatives: {error}")
