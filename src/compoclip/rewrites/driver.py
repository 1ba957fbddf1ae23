"""The driver of all rewrites: it samples candidate edits of a caption and returns a valid one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from compoclip.captions.types import Caption
from compoclip.rewrites.base import Edit, Refused, Rewritten
from compoclip.rewrites.edit import EMPTY, SpanChange, apply_changes, check
from compoclip.rewrites.reading import Reading, read

UNATTESTED = "unattested"
NO_CANDIDATE = "no-candidate"


class CandidateEdit(NamedTuple):
    """A candidate edit of a caption.

    Attributes:
        rule: Rule of the rewrite ("swap:noun").
        changes: Token spans with their new text, or a function that returns them.
        whole: Instead of `changes`, the whole new text with its edits.
        level: Level of attestation of the words in their new places (`attested.edit_level`).
        refusal: Returns why the edit is illegal, or None; called unless a better edit is valid.
    """

    rule: str
    changes: Sequence[SpanChange] | Callable[[], Sequence[SpanChange]] = ()
    whole: tuple[str, tuple[Edit, ...]] | None = None
    level: int = 2
    refusal: Callable[[], str | None] | None = None

    def apply(self, caption: Caption, name: str, keeps_meaning: bool) -> Rewritten | Refused:
        """Return the text as made by the rewrite `name`, or the check that it fails."""
        refused = self.refusal() if self.refusal is not None else None
        if refused is None:
            changes = self.changes() if callable(self.changes) else self.changes
            text, edits = self.whole or apply_changes(caption, changes)
            refused = check(caption, text, edits)
            if refused is None:
                return Rewritten(text, name, keeps_meaning, self.rule, edits)
        return Refused(refused)


class Round(NamedTuple):
    """Start of a round of candidates, tried only if all earlier ones are invalid.

    Attributes:
        min_level: The lowest accepted level.
        enough: Number of candidates after which level 1 is accepted.
    """

    min_level: int = 1
    enough: int = 3


#: The level of an edit, and the function that makes its text.
Draw = tuple[int, Callable[[], Rewritten | Refused]]
#: A text of a part of the caption comes made; a refusal is the reason if nothing else comes.
Proposal = CandidateEdit | Rewritten | Refused | Round


@dataclass(frozen=True)
class SampledRewrite:
    """A rewrite that proposes candidate edits of a caption; the driver picks one.

    Attributes:
        none: Reason of the refusal without any candidate.
        propose: Yields candidates of a caption in sampled order.
    """

    name: str
    version: str
    keeps_meaning: bool
    none: str
    propose: Callable[[Reading, random.Random], Iterable[Proposal]]

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """Return one sampled text, or `Refused`: the caption is empty, or all proposals failed."""
        return self.sample(caption, self.propose(read(caption), rng))

    def sample(self, caption: Caption, proposals: Iterable[Proposal]) -> Rewritten | Refused:
        """Return the first fluent and valid proposal."""
        if not caption.tokens:
            return Refused(EMPTY)

        def draw(proposal: Proposal) -> Draw | Refused | Round:
            if isinstance(proposal, CandidateEdit):
                attempt = partial(proposal.apply, caption, self.name, self.keeps_meaning)
                return proposal.level, attempt
            return (2, lambda: proposal) if isinstance(proposal, Rewritten) else proposal

        return first_fluent(map(draw, proposals), self.none)


def first_fluent(draws: Iterable[Draw | Refused | Round], reason: str) -> Rewritten | Refused:
    """Return the first valid text of which all words were met together; else the best one.

    reason: why there is none when nothing is sampled.
    """
    best: Rewritten | None = None
    min_level, enough = Round()
    number, reached, unattested = 0, min_level - 1, False
    for draw in draws:
        if isinstance(draw, Round):
            if best is not None:
                break
            reason = UNATTESTED if unattested else reason
            min_level, enough = draw
            number, reached, unattested = 0, min_level - 1, False
            continue
        if isinstance(draw, Refused):
            reason = draw.reason
            continue
        if number >= enough and reached >= 1:
            break
        number += 1
        level, make = draw
        if level <= reached:
            unattested |= level < min_level
            continue
        result = make()
        if isinstance(result, Refused):
            reason = result.reason
        elif level == 2:
            return result
        else:
            best, reached = result, level
    return best or Refused(UNATTESTED if unattested else reason)
