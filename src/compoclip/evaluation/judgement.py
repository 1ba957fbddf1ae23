"""What must be said about a score wherever it is shown: chance, coverage, texts that were cut."""

from __future__ import annotations

from compoclip.console import counted
from compoclip.evaluation.items import POSITIVE_SCORE
from compoclip.evaluation.layout import span
from compoclip.evaluation.results import Clean, Results, Score
from compoclip.evaluation.statistics import FEWEST

_NO_ACCURACIES = ("brittleness", "both_below", POSITIVE_SCORE)


def standing(score: Score) -> str:
    """ "at" chance when the 95 % interval holds it, else "above" or "below"; "" for few photos."""
    if score.low is None or score.high is None or score.photos < FEWEST:
        return ""
    if score.low <= score.chance <= score.high:
        return "at"
    return "above" if score.low > score.chance else "below"


def chance_flag(score: Score) -> str:
    """ "at chance", "below chance", "too few photos: 7" for a score that is not judged, or "" for
    one above chance and for rates that are no score."""
    where = standing(score)
    if where == "above" or score.metric in _NO_ACCURACIES:
        return ""
    return f"{where} chance" if where else too_few(score.photos)


def too_few(photos: int) -> str:
    """What stands in the place of a verdict that so many photos do not allow."""
    return f"too few photos: {photos}"


def data_notes(results: Results) -> list[str]:
    """What is missing or was left out of the data, and how many texts the model cannot read whole;
    one line each."""
    lines = []
    if results.missing_count:
        first = f", e.g. {results.missing[0]}" if results.missing else ""
        lines.append(f"{counted(results.missing_count, 'image')} missing or damaged{first}")
    lines += [f"left out, {reason}: {n}" for reason, n in results.left_out.items() if n]
    if results.truncated_texts:
        cut = counted(results.truncated_texts, "text")
        lines.append(f"{cut} cut: longer than the model's context")
    if results.clean is not None:
        lines.append(clean_note(results, results.clean))
    return lines


def clean_note(results: Results, clean: Clean) -> str:
    """The headline without faulty items beside that of all items."""
    if not clean.left_out:
        return "clean: an audit found no faulty item among these"
    kinds = ", ".join(f"{kind} {n}" for kind, n in clean.faults.items())
    part = f"of {clean.faulty} in all: " if clean.left_out < clean.faulty else ""
    left = f"clean: without {counted(clean.left_out, 'faulty item')} ({part}{kinds}) and with "
    left += "ties wrong"
    score, all_items = clean.aggregates.get(results.headline), results.aggregates[results.headline]
    if score is None:
        return f"{left} nothing is left of {results.headline}"
    return (
        f"{left} {results.headline} is {100 * score.value:.1f} ({span(score.low, score.high)}) "
        f"instead of {100 * all_items.value:.1f}"
    )
