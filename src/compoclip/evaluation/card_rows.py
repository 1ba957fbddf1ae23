"""Results as rows of a model card."""

from __future__ import annotations

from collections.abc import Sequence

from compoclip.errors import CompoclipError
from compoclip.evaluation.results import Results
from compoclip.models.config import ModelIdentity
from compoclip.models.formats.hub import CardResult


def card_rows(results: Sequence[Results], identity: ModelIdentity) -> tuple[CardResult, ...]:
    """The headline of each benchmark, in the order given, for the card of the model `identity`.

    A benchmark measured in part says so beside its name. Raises CompoclipError for results of other
    weights.
    """
    for each in results:
        if each.identity.get("weights") != identity.weights:
            raise CompoclipError(
                f"the results of '{each.model}' on {each.benchmark} are not of this checkpoint "
                f"(weights {each.identity.get('weights')}, not {identity.weights}): evaluate it"
            )
    return tuple(_row(each) for each in results)


def _row(result: Results) -> CardResult:
    score = result.aggregates[result.headline]
    part = f" ({score.n:,} of {score.expected:,} items)" if result.partial else ""
    return CardResult(
        result.benchmark + part,
        result.headline,
        score.value,
        score.low,
        score.high,
        score.chance,
        score.n,
    )
