"""What a run of rewrites achieved: coverage, refusal reasons, rules used, edit size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """Counts for one rewrite: captions made and refused, by rule and reason, and edited words."""

    made: int = 0
    edited_words: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add_made(self, rule: str, words: int) -> None:
        """Count one rewritten caption, made by `rule`, with `words` caption words edited."""
        self.rules[rule] += 1  # first: of a damaged record nothing is counted
        self.made += 1
        self.edited_words += words

    def add_refused(self, reason: str) -> None:
        """Count one caption without a rewrite."""
        self.reasons[reason] += 1

    @property
    def total(self) -> int:
        """Captions seen."""
        return self.made + self.reasons.total()

    @property
    def coverage(self) -> float:
        """Share of captions that got a rewrite; 0 when none was seen."""
        return self.made / self.total if self.total else 0.0

    @property
    def mean_edit(self) -> float:
        """Mean number of caption words inside edits, over the captions rewritten; 0 for none."""
        return self.edited_words / self.made if self.made else 0.0

    def as_counts(self) -> dict[str, Any]:
        """All counts by name; those of several tallies may be added up."""
        return {
            "made": self.made,
            "edited_words": self.edited_words,
            "rules": dict(self.rules),
            "refused": dict(self.reasons),
        }

    @classmethod
    def from_counts(cls, counts: Mapping[str, Any]) -> Tally:
        """The tally with these counts."""
        rules, reasons = Counter(counts["rules"]), Counter(counts["refused"])
        return cls(counts["made"], counts["edited_words"], rules, reasons)

    def as_json(self) -> dict[str, Any]:
        """The numbers by name, most frequent reasons and rules first."""
        return {
            "captions": self.total,
            "rewritten": self.made,
            "coverage": round(self.coverage, 4),
            "mean_edited_words": round(self.mean_edit, 2),
            "rules": dict(self.rules.most_common()),
            "refused": dict(self.reasons.most_common()),
        }


def edited_words(caption: str, spans: Iterable[tuple[int, int]]) -> int:
    """Number of blank-separated words of the caption inside the character spans."""
    return sum(len(caption[start:end].split()) for start, end in spans)


def rows(tallies: Mapping[str, Tally]) -> list[list[str]]:
    """Table rows (rewrite, captions, rewritten, coverage, words edited) for `console.table`."""
    return [
        [name, str(t.total), str(t.made), f"{t.coverage:.1%}", f"{t.mean_edit:.2f}"]
        for name, t in tallies.items()
    ]


HEADER = ("rewrite", "captions", "rewritten", "coverage", "words edited")


def reason_lines(tallies: Mapping[str, Tally]) -> list[str]:
    """One line per rewrite that refused captions: the reasons with their counts."""
    return [
        f"{name} refused: " + ", ".join(f"{reason} {n}" for reason, n in t.reasons.most_common())
        for name, t in tallies.items()
        if t.reasons
    ]
