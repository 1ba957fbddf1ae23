"""The texts drawn for a sample, and the counts of what was made and refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from compoclip.captions.types import Caption
from compoclip.data.masks import Mask
from compoclip.data.sources import Sample
from compoclip.losses.contract import Role
from compoclip.rewrites.base import Rewritten, token_key

# Reasons for leaving a text out, besides a rewrite's own.
EQUALS_CAPTION = "equals-a-caption-of-the-sample"
EQUALS_OTHER = "equals-another-text-of-the-sample"
NOT_CHOSEN = "caption-without-negatives"
NONE_APPLIES = "none-applies"
NONE_WRITTEN = "none-written"


@dataclass(frozen=True)
class Drawn:
    """One text of a sample; `rewrite` is "" for the caption, which alone may have a mask."""

    text: str
    role: Role
    rewrite: str = ""
    mask: Mask | None = None

    @classmethod
    def of(cls, made: Rewritten) -> Drawn:
        """The text of a rewrite."""
        role = Role.POSITIVE if made.keeps_meaning else Role.NEGATIVE
        return cls(made.text, role, made.rewrite)


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
        for own, others in zip(vars(self).values(), vars(other).values()):
            if isinstance(own, Counter):
                own.update(others)

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
        """{"samples": n, "rewrites": {name: counts}}.

        Counts: texts "made", "samples" that got any, their share "coverage", and "refused" by
        reason.
        """
        refused = sorted(self.refused.items())
        return {
            "samples": self.samples,
            "rewrites": {
                name: {
                    "made": self.made[name],
                    "samples": self.covered[name],
                    "coverage": self.coverage(name),
                    "refused": {why: count for (of, why), count in refused if of == name},
                }
                for name in sorted({*self.made, *(name for name, _ in self.refused)})
            },
        }


class Makers(Protocol):
    """What a plan of texts has for all samples: parses, rewrites and generators."""

    def parse(self, text: str) -> Caption: ...

    def rng(self, key: str, epoch: int, name: str) -> random.Random: ...

    def rewritten(
        self, name: str, text: str, rng: random.Random, negatives: bool
    ) -> Drawn | str: ...


class Drawing:
    """The texts of one sample in an epoch, while they are drawn.

    Args:
        makers: The plan's.
        sample: The sample.
        epoch: Counted from 0.
        key: Seeds all draws.
        main: Take the first caption, not one at random.
        share: Of all captions those that have negatives.

    Attributes:
        caption: The caption drawn, as the data has it.
        texts: The texts so far, the caption as it is shown first.
        counts: What was made and refused so far.
    """

    def __init__(
        self, makers: Makers, sample: Sample, epoch: int, key: str, main: bool, share: float
    ) -> None:
        self._makers, self._epoch, self._key, self._share = makers, epoch, key, share
        self.sample = sample
        self.counts = PlanCounts(samples=1)
        rng = self.rng("caption")
        self.caption = sample.captions[0] if main else rng.choice(sample.captions)
        self.texts = [Drawn(self.caption, Role.CAPTION)]

    def rng(self, name: str) -> random.Random:
        """The generator of one draw."""
        return self._makers.rng(self._key, self._epoch, name)

    def parse(self, text: str) -> Caption:
        """The parse of a text, of a plan that has parsed captions."""
        return self._makers.parse(text)

    def rewritten(self, name: str, text: str, rng: random.Random) -> Drawn | str:
        """One draw of a rewrite, or of the texts written for `text`; or why there is none."""
        return self._makers.rewritten(name, text, rng, self.negatives)

    @property
    def epoch(self) -> int:
        """Counted from 0."""
        return self._epoch

    @cached_property
    def negatives(self) -> bool:
        """Whether the caption has negatives: by caption, whatever the epoch, as if the data had
        them for a share of its captions."""
        key = f"{self.sample.id}\x1f{self.caption}"
        return self._makers.rng(key, 0, "hn-fraction").random() < self._share

    @cached_property
    def captions(self) -> set[tuple[str, ...]]:
        """The captions of the sample as CLIP's tokenizer reads them."""
        return {token_key(text) for text in self.sample.captions}

    @cached_property
    def taken(self) -> dict[tuple[str, ...], Role]:
        """The role of every text so far, by what CLIP's tokenizer makes of it."""
        return {token_key(text): Role.CAPTION for text in (self.caption, self.texts[0].text)}

    def other_captions(self) -> list[str]:
        """The captions of the sample that differ from the one drawn and from each other."""
        known = {token_key(self.caption): self.caption}
        for text in self.sample.captions:
            known.setdefault(token_key(text), text)
        return list(known.values())[1:]

    def add(self, drawn: Drawn | str, name: str, counted: str = "", again: bool = False) -> bool:
        """Take a text if it is new to CLIP, else count why not.

        A negative that equals any of the sample's captions, drawn or not, is not taken either.

        Args:
            drawn: The text, or the reason why there is none.
            name: Its kind.
            counted: What it is counted as, if not by its kind.
            again: Take also one of its own side that was taken before.

        Returns:
            Whether it was taken.
        """
        counted = counted or name
        if isinstance(drawn, Drawn):
            key, negative = token_key(drawn.text), drawn.role is Role.NEGATIVE
            taken = self.taken.get(key)
            if negative and key in self.captions:
                drawn = EQUALS_CAPTION
            elif taken is not None and not (again and (taken is Role.NEGATIVE) is negative):
                drawn = EQUALS_OTHER
            else:
                self.taken.setdefault(key, drawn.role)
                self.texts.append(Drawn(drawn.text, drawn.role, name))
                self.count(counted)
                return True
        self.refuse(counted, drawn)
        return False

    def count(self, name: str) -> None:
        """Count what was made of a name."""
        self.counts.made[name] += 1
        self.counts.covered[name] = 1

    def refuse(self, name: str, reason: str) -> None:
        """Count that there is none of a name."""
        self.counts.refused[name, reason] += 1
