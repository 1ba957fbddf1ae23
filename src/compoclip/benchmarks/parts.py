"""Choosing sub-tasks of a benchmark, and the aggregates that remain defined for the choice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Classification, TiePolicy
from compoclip.benchmarks.meta import Meta
from compoclip.errors import UsageError

_LONGEST_HINT = 1000


def close(name: str, known: Iterable[str]) -> str:
    """A hint such as "did you mean swap_obj?", or the whole list when nothing comes close."""
    known = tuple(known)
    match = difflib.get_close_matches(name[:100], known[:1000], n=3)
    hint = f"did you mean {' or '.join(match)}?" if match else f"known: {', '.join(known)}"
    # Names may come from a file: whatever they hold, the hint is short and on one line.
    hint = hint if hint.isprintable() else ascii(hint)[1:-1]
    return hint if len(hint) <= _LONGEST_HINT else f"{hint[:_LONGEST_HINT]} ..."


def select(benchmark: str, known: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """The `known` sub-tasks that match any of `patterns` (shell style, "swap_*"), in known order.

    No patterns select all. Raises UsageError for a pattern that matches nothing.
    """
    if not patterns:
        return tuple(known)
    chosen: set[str] = set()
    for pattern in patterns:
        hits = {name for name in known if fnmatchcase(name, pattern)}
        if not hits:
            raise UsageError(f"{benchmark} has no sub-task {pattern!r}; {close(pattern, known)}")
        chosen |= hits
    return tuple(name for name in known if name in chosen)


def aggregates(
    rules: Mapping[str, Aggregate], kept: Sequence[str], headline: str
) -> tuple[dict[str, Aggregate], str]:
    """The rules whose sub-tasks are all `kept`, plus "micro" and "macro" over `kept`.

    Returns them with the headline, which falls back to "micro" when its rule is no longer defined.
    """
    defined = {
        "micro": Aggregate(tuple(kept), weighting="micro"),
        "macro": Aggregate(tuple(kept)),
    }
    defined |= {name: rule for name, rule in rules.items() if rule.subtasks() <= set(kept)}
    return defined, headline if headline in defined else "micro"


def keep(values: Mapping[str, int], kept: Sequence[str]) -> dict[str, int]:
    """The entries of `values` whose sub-task is kept."""
    return {name: values[name] for name in kept if name in values}


def of_cases(
    meta: Meta,
    kept: Sequence[str],
    cases: Iterable[Case],
    data_hash: str,
    rules: Mapping[str, Aggregate],
    headline: str,
    *,
    ties: TiePolicy = TiePolicy.STRICT,
    expected: Mapping[str, int] | None = None,
    left_out: Mapping[str, int] | None = None,
) -> Benchmark:
    """The benchmark `meta` with its sub-tasks `kept`: its skills and expected items of these, and
    those of `rules` that they define (see `aggregates`). expected: where other than in `meta`."""
    defined, headline = aggregates(rules, kept, headline)
    return Benchmark(
        name=meta.id,
        content=tuple(cases),
        data_hash=data_hash,
        ties={"": ties},
        skills={name: meta.skills[name] for name in kept if name in meta.skills},
        expected=keep(meta.expected, kept) if expected is None else dict(expected),
        aggregates=defined,
        headline=headline,
        left_out={reason: n for reason, n in (left_out or {}).items() if n},
    )


def classification_rules(content: Classification) -> dict[str, Aggregate]:
    """Aggregates of a classification set; the one called like its metric is the headline.

    Mean-per-class only where no two classes share a name.
    """
    one = ("zero_shot",)
    if content.metric == "map11":
        devkit = Aggregate(content.classes, metric="ap11_devkit")
        return {"map11": Aggregate(content.classes), "map11_devkit": devkit}
    if content.metric == "auc":
        return {"auc": Aggregate(one), "accuracy": Aggregate(one, metric="accuracy")}
    rules = {"accuracy": Aggregate(one)}
    if len(set(content.classes)) == len(content.classes):
        rules["mean-per-class"] = Aggregate(one, macro_by="class")
    return rules
