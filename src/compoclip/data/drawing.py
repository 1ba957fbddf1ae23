"""The texts sampled for a sample, and counts of texts made and refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from compoclip.captions.clip_text import token_key
from compoclip.captions.types import Caption
from compoclip.data.masks import Mask
from compoclip.data.sources import Sample
from compoclip.losses.contract import Role
from compoclip.rewrites.base import Rewritten

# Reasons for leaving a text out, besides a rewrite's own.
EQUALS_CAPTION = "equals-a-caption-of-the-sample"
EQUALS_OTHER = "equals-another-text-of-the-sample"
NOT_CHOSEN = "caption-without-negatives"
NONE_APPLIES = "none-applies"


@dataclass(frozen=True)
class Drawn:
    """One text of a sample; `rewrite` is "" for the caption, which alone may have a mask."""

    text: str
    role: Role
    rewrite: str = ""
    mask: Mask | None = None

    @classmethod
    def of(cls, rewritten: Rewritten) -> Drawn:
        """Return the text of a rewrite."""
        role = Role.POSITIVE if rewritten.keeps_meaning else Role.NEGATIVE
        return cls(rewritten.text, role, rewritten.rewrite)


@dataclass
class PlanCounts:
    """Counts of a plan: samples seen, texts made by rewrite, refusals by rewrite and reason.

    covered: samples that got at least one text of a rewrite. Counts add up, so the totals do not
    depend on how the samples were spread over workers.
    """

    samples: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    covered: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: PlanCounts) -> None:
        """Add the counts of `other` to these."""
        self.samples += other.samples
        for counter, others in zip(vars(self).values(), vars(other).values()):
            if isinstance(counter, Counter):
                counter.update(others)

    def count(self, name: str) -> None:
        """Count a text of this name for the sample."""
        self.accepted[name] += 1
        self.covered[name] = 1

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> PlanCounts:
        """Return the counts that `to_json` wrote."""
        counts = PlanCounts(record["samples"])
        for name, entry in record["rewrites"].items():
            counts.accepted[name] = entry["made"]
            counts.covered[name] = entry["samples"]
            counts.refused.update({(name, reason): n for reason, n in entry["refused"].items()})
        return counts

    def coverage(self, rewrite: str) -> float:
        """Return the fraction of samples with a text from `rewrite`; 0 without samples."""
        return self.covered[rewrite] / self.samples if self.samples else 0.0

    def to_json(self) -> dict[str, Any]:
        """{"samples": n, "rewrites": {name: counts}}.

        Counts: texts "made", "samples" that got any, their share "coverage", and "refused" by
        reason.
        """
        refused = sorted(self.refused.items())
        return {
            "samples": self.samples,
            "rewrites": {
                name: {
                    "made": self.accepted[name],
                    "samples": self.covered[name],
                    "coverage": self.coverage(name),
                    "refused": {reason: count for (of, reason), count in refused if of == name},
                }
                for name in sorted({*self.accepted, *(name for name, _ in self.refused)})
            },
        }


@dataclass
class Drawing:
    """The texts of one sample in an epoch while they are sampled.

    caption: the sampled caption, as in the data. texts: those so far, the caption first. negatives:
    whether the caption has negatives. rng: name of a draw -> its generator. rewrite: returns a text
    by the name of a rewrite or of written texts, or the reason why there is none; its last argument
    is `negatives`.
    """

    sample: Sample
    epoch: int
    caption: str
    texts: list[Drawn]
    negatives: bool
    rng: Callable[[str], random.Random]
    parse: Callable[[str], Caption]
    rewrite: Callable[[str, str, random.Random, bool], Drawn | str]
    counts: PlanCounts

    @cached_property
    def captions(self) -> set[tuple[str, ...]]:
        """Return the captions of the sample as CLIP's tokenizer reads them."""
        return {token_key(text) for text in self.sample.captions}

    @cached_property
    def taken(self) -> dict[tuple[str, ...], Role]:
        """Return the role of each text so far, by its tokens for CLIP."""
        return {token_key(text): Role.CAPTION for text in (self.caption, self.texts[0].text)}

    def other_captions(self) -> list[str]:
        """Return the captions that differ from the sampled one and from each other."""
        captions = {token_key(self.caption): self.caption}
        for text in self.sample.captions:
            captions.setdefault(token_key(text), text)
        return list(captions.values())[1:]

    def add(self, text: Drawn | str, name: str, counted: str = "", again: bool = False) -> bool:
        """Add a text of a kind if its tokens are new and no negative equals a caption of the
        sample.

        text: it, or the reason for none. counted: the name to count it by, by default its
        kind. again: a text of the same side may be repeated. Returns whether it was added.
        """
        counted = counted or name
        if isinstance(text, Drawn):
            key, negative = token_key(text.text), text.role is Role.NEGATIVE
            taken = self.taken.get(key)
            if negative and key in self.captions:
                text = EQUALS_CAPTION
            elif taken is not None and not (again and (taken is Role.NEGATIVE) is negative):
                text = EQUALS_OTHER
            else:
                self.taken.setdefault(key, text.role)
                self.texts.append(Drawn(text.text, text.role, name))
                self.counts.count(counted)
                return True
        self.refuse(counted, text)
        return False

    def refuse(self, name: str, reason: str) -> None:
        """Count a refusal of this name."""
        self.counts.refused[name, reason] += 1
