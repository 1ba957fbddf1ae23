"""`compoclip compare BASE OTHER...`: are the differences more than noise?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from compoclip import console
from compoclip.cli.options import parse
from compoclip.errors import UsageError


@dataclass(frozen=True)
class CompareOptions:
    """Compare models pairwise with a base, item by item, on every benchmark both have.

    Sub-tasks: McNemar's test. Headlines and their mean: paired bootstrap over photos. p (Holm) is
    corrected for the number of sub-tasks, or of benchmarks; the verdict goes by it, at 0.05.
    Models measured on different annotations or under different rules are refused.

    Example:
        compoclip compare results/base results/fsc results/negclip

    Args:
        results: Folders that evaluate wrote (OUT/MODEL) or single result files; the first is the
            base, each other one is compared with it.
        resamples: Bootstrap resamples.
        seed: Seed of the bootstrap.
        json: Print the comparisons as JSON.
    """

    results: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RESULTS ...", help_behavior_hint="(required)"),
    ]
    resamples: int = 2000
    seed: int = 0
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse, compare, print one table a pair."""
    options = parse(CompareOptions, "compare", argv)
    if len(options.results) < 2:
        raise UsageError("give the base's results and at least one other; see compare --help")
    if options.resamples < 1:
        raise UsageError("--resamples must be at least 1")
    from compoclip.evaluation.compare import compare, one_model
    from compoclip.evaluation.io import load_results
    from compoclip.evaluation.tables import comparison_text

    base, *others = (one_model(load_results(path), path) for path in options.results)
    found = [compare(base, other, options.resamples, options.seed) for other in others]
    if options.json:
        console.emit_json([asdict(each) for each in found])
    else:
        print("\n\n".join(comparison_text(each) for each in found))
    return 0
