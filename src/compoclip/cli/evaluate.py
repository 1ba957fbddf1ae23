"""`compoclip evaluate MODEL ... --on BENCHMARK ...`: measure models on benchmarks."""

from __future__ import annotations

from dataclasses import asdict

from compoclip import console
from compoclip.cli.options import Outcome
from compoclip.errors import CompoclipError
from compoclip.run import EvaluateOptions, evaluate, named_models


def main(options: EvaluateOptions) -> Outcome | int:
    """Measure every model; print headlines, details if wanted, and what they say."""
    models = named_models(options.models)
    several = len(models) > 1
    failures: list[CompoclipError] = []

    def failed(name: str, error: CompoclipError) -> None:
        console.note(f"compoclip: {name} is left out: {error}")
        failures.append(error)

    results = evaluate(options, models, processes=True, failed=failed if several else None)
    code = failures[0].exit_code if failures else 0
    if not results:  # rank 0 has them
        return code
    if options.json:
        return [asdict(each) for each in results], "", code
    from compoclip.evaluation.closing import closing_sentences
    from compoclip.evaluation.groups import overall_scores, overall_text
    from compoclip.evaluation.tables import overview_text, results_text

    names = list(dict.fromkeys(each.model for each in results))
    draws = options.resamples, options.seed
    texts = [overview_text(results, names[0])]
    for name in names:
        own = [each for each in results if each.model == name]
        texts += [results_text(each) for each in own] if options.details else []
        texts.append(overall_text(name, overall_scores(own, *draws)))
    texts.append(console.prose(closing_sentences(results, names[0], (), *draws)))
    more = "" if options.details else "--details adds the sub-tasks\n"
    texts.append(f"{more}next: compoclip report {options.out} -o report.html")
    return None, "\n\n".join(filter(None, texts)), code
