"""`compoclip evaluate MODEL ... --on BENCHMARK ...`: measure models on benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from compoclip import console
from compoclip.cli.options import joined, parse
from compoclip.errors import UsageError
from compoclip.run import EvaluateOptions, evaluate, named_models

if TYPE_CHECKING:
    from compoclip.evaluation.results import Results


def main(argv: Sequence[str]) -> int:
    """Parse, evaluate every model, print a table a benchmark."""
    return run(parse(EvaluateOptions, "evaluate", joined(argv, "--on")))


def run(options: EvaluateOptions) -> int:
    """Measure every model, print a table a benchmark."""
    if not options.models:
        raise UsageError("name at least one model and one benchmark; see evaluate --help")

    def show(name: str, results: list[Results]) -> None:
        from compoclip.evaluation.groups import overall_scores, overall_text
        from compoclip.evaluation.tables import results_text

        if options.json:  # all are printed at the end
            return
        print("\n\n".join(results_text(each) for each in results), end="\n\n", flush=True)
        means = overall_scores(results, options.resamples, options.seed)
        if means:
            print(overall_text(name, means), end="\n\n", flush=True)

    models = named_models(options.models)
    results = evaluate(options, models, show)
    if not results:  # rank 0 has them
        return 0
    if options.json:
        console.emit_json([asdict(each) for each in results])
    elif len(models) > 1:
        from compoclip.evaluation.tables import overview_text

        print(overview_text(results, base=next(iter(models))))
    return 0
