"""`compoclip evaluate MODEL ... --on BENCHMARK ...`: measure models on benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from compoclip import console
from compoclip.cli.options import parse
from compoclip.errors import UsageError
from compoclip.run import EvaluateOptions, evaluate, named_models

if TYPE_CHECKING:
    from compoclip.evaluation.results import Results


def main(argv: Sequence[str]) -> int:
    """Parse, evaluate every model, print a table a benchmark."""
    return run(parse(EvaluateOptions, "evaluate", argv))


def run(options: EvaluateOptions) -> int:
    """Measure every model, print a table a benchmark; of several models one table for all first."""
    if not options.models:
        raise UsageError("name at least one model and one benchmark; see evaluate --help")
    models = named_models(options.models)
    several = len(models) > 1

    def show(name: str, results: list[Results]) -> None:
        if not (options.json or several):  # those of several are shown at the end
            _print_details(results)
            _print_means(name, results, options)

    results = evaluate(options, models, show, processes=True)
    if not results:  # rank 0 has them
        return 0
    if options.json:
        console.emit_json([asdict(each) for each in results])
    elif several:
        from compoclip.evaluation.tables import overview_text

        print(overview_text(results, base=next(iter(models))), end="\n\n")
        for name in models:
            _print_means(name, [each for each in results if each.model == name], options)
        if options.details:
            _print_details(results)
        else:
            print("--details adds a table for each model and benchmark")
    return 0


def _print_details(results: Sequence[Results]) -> None:
    from compoclip.evaluation.tables import results_text

    print("\n\n".join(results_text(each) for each in results), end="\n\n", flush=True)


def _print_means(name: str, results: list[Results], options: EvaluateOptions) -> None:
    from compoclip.evaluation.groups import overall_scores, overall_text

    means = overall_scores(results, options.resamples, options.seed)
    if means:
        print(overall_text(name, means), end="\n\n", flush=True)
