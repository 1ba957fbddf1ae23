"""The contract of a caption rewrite."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Protocol

from compoclip.captions.types import Caption


@dataclass(frozen=True, slots=True)
class Edit:
    """One edited place: character range in the caption, and in the rewritten text."""

    start: int
    end: int
    new_start: int
    new_end: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A valid rewrite: the new text, which rule made it, and which spans it changed.

    A text that keeps only a part of the caption (a sub-graph) lists what it changes in that part.
    """

    text: str
    rewrite: str
    keeps_meaning: bool
    rule: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """No valid rewrite exists (or none was found in the allowed draws), and why.

    `reason` is a short stable key such as "no-legal-pair", fit for counting.
    """

    reason: str


class Rewrite(Protocol):
    """A family of caption edits.

    Calling it never raises on odd captions, never returns the caption itself, and draws all
    randomness from `rng`. It returns `Refused` rather than a placeholder when nothing valid exists.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def keeps_meaning(self) -> bool: ...

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused: ...


class PairRewrite(Protocol):
    """A rewrite of two captions at once: what one loses, the other gains.

    As `Rewrite`, for two captions: both texts are rewritten, or neither.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def keeps_meaning(self) -> bool: ...

    def __call__(
        self, first: Caption, second: Caption, rng: random.Random
    ) -> tuple[Rewritten, Rewritten] | Refused: ...


def rng_for(seed: int, sample_id: str, epoch: int, name: str) -> random.Random:
    """The generator for one sample, epoch and rewrite: the same whatever the worker or order.

    Seeded by blake2b over (seed, sample id, epoch, rewrite name), METHODS 17.1 rule 7.
    """
    key = f"{seed}\x1f{sample_id}\x1f{epoch}\x1f{name}".encode("utf-8", "surrogatepass")
    return random.Random(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big"))
