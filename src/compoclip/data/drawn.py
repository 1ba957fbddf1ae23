"""The texts drawn for a sample, and the counts of what was made and refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compoclip.data.masks import Mask
from compoclip.losses.contract import Role


@dataclass(frozen=True)
class Drawn:
    """One text of a sample; `rewrite` is "" for the caption, which alone may have a mask."""

    text: str
    role: Role
    rewrite: str = ""
    mask: Mask | None = None


@dataclass
class PlanCounts:
    """What a plan made: samples seen, texts made by rewrite, and refusals by rewrite and reason.

    covered: samples that got at least one text of a rewrite. Counts add up, so the totals do not
    depend on how the samples were spread over workers.
    """

    samples: int = 0
    made: Counter[str] = field(default_factory=Counter)
    covered: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: PlanCounts) -> None:
        """Add the counts of `other` to these."""
        self.samples += other.samples
        self.made.update(other.made)
        self.covered.update(other.covered)
        self.refused.update(other.refused)

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> PlanCounts:
        """The counts that `to_json` wrote."""
        counts = PlanCounts(record["samples"])
        for name, made in record["rewrites"].items():
            counts.made[name] = made["made"]
            counts.covered[name] = made["samples"]
            counts.refused.update({(name, why): n for why, n in made["refused"].items()})
        return counts

    def coverage(self, rewrite: str) -> float:
        """The fraction of samples that got a text from `rewrite`; 0 when no sample was seen."""
        return self.covered[rewrite] / self.samples if self.samples else 0.0

    def to_json(self) -> dict[str, Any]:
        """{"samples": n, "rewrites": {name: what was made of it}}.

        What was made: texts "made", "samples" that got any, their share "coverage", and "refused",
        counts by reason.
        """
        names = sorted(set(self.made) | {name for name, _ in self.refused})
        return {
            "samples": self.samples,
            "rewrites": {
                name: {
                    "made": self.made[name],
                    "samples": self.covered[name],
                    "coverage": self.coverage(name),
                    "refused": {
                        reason: count
                        for (of, reason), count in sorted(self.refused.items())
                        if of == name
                    },
                }
                for name in names
            },
        }
