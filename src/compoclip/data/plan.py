"""Which texts accompany a sample in an epoch: one caption, and one draw of each rewrite."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from compoclip.captions.types import Caption
from compoclip.data.sample import Sample
from compoclip.losses.contract import Role
from compoclip.rewrites.base import Rewrite, Rewritten, rng_for
from compoclip.rewrites.registry import get_rewrite
from compoclip.rewrites.tokenkey import fits_context, token_key

GIVEN = "given"  # the plan's name for hard negatives that came with the data

# Reasons for leaving a text out, beside those of the rewrites themselves.
NONE_GIVEN = "none-given"
EQUALS_CAPTION = "equals-a-caption-of-the-sample"
EQUALS_OTHER = "equals-another-text-of-the-sample"
TOO_LONG = "too-long"


class ParsedCaptions(Protocol):
    """Parsed captions by text, as prepared before training."""

    def __getitem__(self, text: str) -> Caption: ...


@dataclass(frozen=True)
class Drawn:
    """One text of a sample; `rewrite` is "" for the caption."""

    text: str
    role: Role
    rewrite: str = ""


@dataclass
class PlanCounts:
    """What the plan made: samples seen, texts made by rewrite, and refusals by rewrite and reason.

    Counts add up, so the totals do not depend on how the samples were spread over workers.
    """

    samples: int = 0
    made: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: PlanCounts) -> None:
        """Add the counts of `other` to these."""
        self.samples += other.samples
        self.made.update(other.made)
        self.refused.update(other.refused)

    def coverage(self, rewrite: str) -> float:
        """The fraction of samples that got a text from `rewrite`; 0 when no sample was seen."""
        return self.made[rewrite] / self.samples if self.samples else 0.0

    def to_json(self) -> dict[str, Any]:
        """{"samples": n, "rewrites": {name: {"made", "coverage", "refused": {reason: n}}}}."""
        names = sorted(set(self.made) | {name for name, _ in self.refused})
        return {
            "samples": self.samples,
            "rewrites": {
                name: {
                    "made": self.made[name],
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


class TextPlan:
    """Draws the texts of a sample; the same for the same seed, sample id and epoch, anywhere.

    rewrites: names, drawn in this order; "given" is one of the sample's own negatives. parsed:
    the parsed captions, needed for every other rewrite. resolve: finds a rewrite by name (raising
    for an unknown one), in each process anew, so that plans travel whatever a rewrite holds.
    """

    def __init__(
        self,
        rewrites: Sequence[str] = (),
        *,
        seed: int = 0,
        parsed: ParsedCaptions | None = None,
        resolve: Callable[[str], Rewrite] = get_rewrite,
    ) -> None:
        self.rewrites = tuple(rewrites)
        self._seed = seed
        self._parsed = parsed
        self._resolve = resolve
        self._rewrites = self._find()
        if self.needs_parsing and parsed is None:
            raise ValueError("a plan with rewrites needs parsed captions")

    @property
    def needs_parsing(self) -> bool:
        """Whether any rewrite reads parsed captions."""
        return any(name != GIVEN for name in self.rewrites)

    def draw(self, sample: Sample, epoch: int) -> tuple[list[Drawn], PlanCounts]:
        """The caption first, then the rewrites that exist, in the order of the plan.

        A text that CLIP's tokenizer cannot tell from another text of the sample is left out and
        counted; so is a negative that equals any of the sample's captions, drawn or not.
        """
        counts = PlanCounts(samples=1)
        caption = rng_for(self._seed, sample.id, epoch, "caption").choice(sample.captions)
        texts = [Drawn(caption, Role.CAPTION)]
        if not self.rewrites:
            return texts, counts
        parsed = self._parsed[caption] if self._parsed is not None else None
        captions = {token_key(text) for text in sample.captions}
        taken = {token_key(caption)}
        for name in self.rewrites:
            rng = rng_for(self._seed, sample.id, epoch, name)
            if name == GIVEN:
                drawn = _draw_given(sample, captions, rng)
            else:
                assert parsed is not None  # a plan that rewrites has parsed captions: __init__
                drawn = _apply(self._rewrites[name], parsed, rng)
            if isinstance(drawn, Drawn):
                key = token_key(drawn.text)
                if drawn.role is Role.NEGATIVE and key in captions:
                    drawn = EQUALS_CAPTION
                elif key in taken:
                    drawn = EQUALS_OTHER
                else:
                    taken.add(key)
                    texts.append(Drawn(drawn.text, drawn.role, name))
                    counts.made[name] += 1
                    continue
            counts.refused[name, drawn] += 1
        return texts, counts

    def _find(self) -> Mapping[str, Rewrite]:
        return {name: self._resolve(name) for name in self.rewrites if name != GIVEN}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_rewrites"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._rewrites = self._find()


def _draw_given(sample: Sample, captions: set[tuple[str, ...]], rng: random.Random) -> Drawn | str:
    """One of the negatives that came with the data, or the reason why there is none."""
    if not sample.negatives:
        return NONE_GIVEN
    different = [text for text in sample.negatives if token_key(text) not in captions]
    if not different:
        return EQUALS_CAPTION
    fitting = [text for text in different if fits_context(text)]
    return Drawn(rng.choice(fitting), Role.NEGATIVE) if fitting else TOO_LONG


def _apply(rewrite: Rewrite, caption: Caption, rng: random.Random) -> Drawn | str:
    """One draw of a rewrite, or the reason why there is none."""
    result = rewrite(caption, rng)
    if not isinstance(result, Rewritten):
        return result.reason
    return Drawn(result.text, Role.POSITIVE if result.keeps_meaning else Role.NEGATIVE)
