"""The result of one model on one benchmark; `compare` and `report` read only these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = 2
"""Raised when numbers of earlier files would not go together with new ones."""


@dataclass(frozen=True)
class Score:
    """One number with everything needed to judge it. Values lie in [0, 1].

    n: items used; expected: items of the full benchmark (equal to n when nothing is known missing).
    low, high: 95 % interval; interval: "wilson" or "bootstrap"; "none", and both None, for a single
    photo. chance: what is reached without looking (`outcomes.Outcomes`). photos: how many the items
    are about; below `statistics.FEWEST` the value is not judged. ties: items whose outcome
    hung on equal scores; strict, fractional: value under those policies.
    """

    metric: str
    value: float
    n: int
    expected: int
    low: float | None
    high: float | None
    interval: str
    chance: float
    photos: int
    ties: int = 0
    strict: float | None = None
    fractional: float | None = None


@dataclass(frozen=True)
class Clean:
    """Scores without faulty items (`benchmarks.audit`), a tie being wrong.

    faulty: items of the full benchmark with a fault; faults: kind -> how many have it (an item may
    have several). left_out: of the items measured, those that are not in here. scores, aggregates:
    as in Results.
    """

    faulty: int
    left_out: int
    faults: dict[str, int]
    scores: dict[str, dict[str, Score]]
    aggregates: dict[str, Score]


@dataclass(frozen=True)
class Results:
    """What is written to `<out>/<model>/<benchmark>.json`; per-item outcomes in parquet beside it.

    scores: sub-task -> metric -> Score, the sub-task's main metric first and "positive_score", the
    mean cosine of matching pairs, last. aggregates: rule name -> Score. rules: the rule of each
    aggregate (`aggregate.rule_to_json`). missing: the first 20 image keys left out, absent or
    damaged, and `missing_count` of all. left_out: reason -> rows that the reader made no items of.
    partial: some items of the full benchmark are not in here. tie_policy: sub-task -> policy as
    used for `value`. items: name of the parquet file. known_as: what the reader calls the benchmark
    where `benchmark` is another name (id=NAME), else "". resamples, seed: of the bootstrap. score:
    "itc", cosines of features, or "itm", a matching head's log-odds of pairs.
    clean: the scores without faulty items, where they were asked for.
    """

    model: str
    benchmark: str
    protocol: int
    identity: dict[str, Any]
    data_hash: str
    tie_policy: dict[str, str]
    scores: dict[str, dict[str, Score]]
    aggregates: dict[str, Score]
    headline: str
    skills: dict[str, str]
    items: str
    rules: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    missing_count: int = 0
    partial: bool = False
    truncated_texts: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    known_as: str = ""
    resamples: int = 0
    seed: int = 0
    clean: Clean | None = None
    score: str = "itc"
    schema: int = SCHEMA

    @property
    def reader_name(self) -> str:
        """What the benchmark's reader calls it: "sugarcrepe", "sugarcrepe@world"."""
        return self.known_as or self.benchmark
