"""Scores without the items that an audit found faulty, ties wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from compoclip.benchmarks.audit import Audit
from compoclip.benchmarks.case import Aggregate, Benchmark, Case
from compoclip.evaluation.aggregate import RESAMPLES
from compoclip.evaluation.items import Indices, Items
from compoclip.evaluation.results import Clean
from compoclip.evaluation.score import group_sizes, groups_by_part, with_joint
from compoclip.evaluation.summary import Listed, summarise


def clean_scores(
    items: Items,
    audit: Audit,
    benchmark: Benchmark,
    rules: Mapping[str, Aggregate],
    expected: Mapping[str, int],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Clean:
    """Every sub-task and rule over the items without a fault, as `summarise`, with strict ties.

    benchmark: as audited, images there or not. expected: items of the full benchmark by sub-task.
    A group of which one item is faulty is left out of joint metrics. What was fitted or ranked
    against all items stays: the thresholds of true-or-false statements and the galleries of
    retrieval hold the faulty ones.
    """
    faulty = audit.faulty
    keep = np.array(
        [k for k, each in enumerate(zip(items.subtasks, items.ids)) if each not in faulty],
        dtype=np.int64,
    )
    kept = _strict(_take(items, keep))
    sizes = group_sizes(_cases(benchmark), benchmark.joint)
    if benchmark.joint:
        own = {name: each for name, each in kept.outcomes.items() if name not in benchmark.joint}
        kept = with_joint(replace(kept, outcomes=own), benchmark.joint, sizes)
    clean: dict[str, int] = {
        part: n - sum(subtask == part for subtask, _ in faulty) for part, n in expected.items()
    }
    if benchmark.joint:
        left = group_sizes(
            (case for case in _cases(benchmark) if (case.subtask, case.id) not in faulty),
            benchmark.joint,
        )
        whole = {group: n for group, n in sizes.items() if left.get(group) == n}
        clean |= groups_by_part(whole)
    whole_items = [c for c in _cases(benchmark) if (c.subtask, c.id) not in faulty]
    listed = Listed(
        [case.subtask for case in whole_items],
        [case.labels for case in whole_items],
        [case.truth for case in whole_items],
    )
    summary = (
        summarise(kept, rules, clean, resamples, seed, lenient=True, listed=listed)
        if len(kept)
        else None
    )
    return Clean(
        faulty=len(faulty),
        left_out=len(items) - len(keep),
        faults=audit.faults,
        scores=summary.scores if summary else {},
        aggregates=summary.aggregates if summary else {},
    )


def same_faults(clean: Clean | None, audit: Audit | None) -> bool:
    """Whether a result holds the clean scores that `audit` asks for; without one, anything does."""
    if audit is None:
        return True
    return clean is not None and (clean.faulty, clean.faults) == (len(audit.faulty), audit.faults)


def _cases(benchmark: Benchmark) -> tuple[Case, ...]:
    return benchmark.content if isinstance(benchmark.content, tuple) else ()


def _strict(items: Items) -> Items:
    outcomes = {name: replace(each, used=each.strict) for name, each in items.outcomes.items()}
    return replace(items, outcomes=outcomes)


def _take(items: Items, rows: Indices) -> Items:
    """The items at `rows`, in that order."""
    index = rows.tolist()
    lists = {
        each.name: [getattr(items, each.name)[k] for k in index]
        for each in fields(items)
        if isinstance(getattr(items, each.name), list)
    }
    return replace(
        items,
        **lists,
        positive=items.positive[rows],
        outcomes={name: each.take(rows) for name, each in items.outcomes.items()},
        extra={name: [column[k] for k in index] for name, column in items.extra.items()},
    )
