"""How much of each benchmark was measured, and what an audit found in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compoclip.evaluation.results import Results
from compoclip.report.study import Study
from compoclip.report.wording import count, percent


@dataclass(frozen=True)
class CoverageRow:
    """One benchmark. Numbers that differ between models stand side by side in their order.

    items: measured, of all. share: the same in percent. missing: photos absent or damaged.
    left_out: rows that made no items, with reasons. cut: texts longer than the model's context.
    ties: items whose outcome hangs on equal scores. faulty: items with a fault, with kinds; ""
    where no audit was asked for. clean: the headline without them, by model.
    """

    benchmark: str
    items: str
    share: str
    missing: str
    left_out: str
    cut: str
    ties: str
    faulty: str
    headline: str
    clean: str
    whole: bool


def coverage_rows(study: Study) -> tuple[CoverageRow, ...]:
    """One row a benchmark."""
    return tuple(
        _row(name, [study.results[m][name] for m in study.models if name in study.results[m]])
        for name in study.benchmarks
    )


def _row(benchmark: str, measured: Sequence[Results]) -> CoverageRow:
    heads = [each.aggregates[each.headline] for each in measured]
    every = [max(each.aggregates.values(), key=lambda s: s.expected) for each in measured]
    first, audits = measured[0], [each.clean for each in measured]
    audit = next((each for each in audits if each is not None), None)
    faulty = ""
    if audit is not None:
        kinds = ", ".join(f"{kind} {count(n)}" for kind, n in audit.faults.items())
        faulty = f"{count(audit.faulty)} ({kinds})" if kinds else count(audit.faulty)
    clean = [each.aggregates.get(first.headline) if each is not None else None for each in audits]
    return CoverageRow(
        benchmark=benchmark,
        items=_same(
            [
                count(s.n) if s.n == s.expected else f"{count(s.n)} of {count(s.expected)}"
                for s in every
            ]
        ),
        share=_same([f"{100 * s.n / max(1, s.expected):.0f} %" for s in every]),
        missing=_same([count(each.missing_count) for each in measured]),
        left_out=", ".join(f"{count(n)} × {why}" for why, n in first.left_out.items() if n) or "0",
        cut=_same([count(each.truncated_texts) for each in measured]),
        ties=_same([count(s.ties) for s in every]),
        faulty=faulty,
        headline=" / ".join(percent(s.value) for s in heads),
        clean=" / ".join("–" if s is None else percent(s.value) for s in clean)
        if audit is not None
        else "",
        whole=not any(each.partial for each in measured),
    )


def _same(texts: Sequence[str]) -> str:
    """One text where all are alike, else all of them."""
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)
