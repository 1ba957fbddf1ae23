"""`compoclip evaluate MODEL ... --on BENCHMARK ...`: measure models on benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from compoclip import console
from compoclip.cli.options import parse
from compoclip.errors import CompoclipError
from compoclip.run import EvaluateOptions, evaluate, named_models

if TYPE_CHECKING:
    from compoclip.evaluation.results import Results


def main(argv: Sequence[str]) -> int:
    """Measure every model, print a table per benchmark; of several models one for all first."""
    options = parse(EvaluateOptions, "evaluate", argv)
    models = named_models(options.models)
    several = len(models) > 1

    def show(name: str, found: list[Results], details: bool = True) -> None:
        """Print a model's results, each in full if wanted, and the means over groups of them."""
        from compoclip.evaluation.groups import overall_scores, overall_text
        from compoclip.evaluation.tables import results_text

        texts = [results_text(each) for each in found] if details else []
        if means := overall_scores(found, options.resamples, options.seed):
            texts.append(overall_text(name, means))
        print("".join(f"{text}\n\n" for text in texts), end="", flush=True)

    done = (lambda *_: None) if options.json or several else show
    failures: list[CompoclipError] = []

    def failed(name: str, error: CompoclipError) -> None:
        console.note(f"compoclip: {name} is left out: {error}")
        failures.append(error)

    results = evaluate(options, models, done, processes=True, failed=failed if several else None)
    code = failures[0].exit_code if failures else 0
    if not results:  # rank 0 has them
        return code
    if options.json:
        console.emit_json([asdict(each) for each in results])
    elif several:
        from compoclip.evaluation.tables import overview_text

        print(overview_text(results, base=results[0].model), end="\n\n")
        for name in models:
            show(name, [each for each in results if each.model == name], options.details)
        if not options.details:
            print("--details adds a table for each model and benchmark")
    return code
