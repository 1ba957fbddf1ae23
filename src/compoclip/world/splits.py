"""Which compounds are kept out of ordinary splits, so that unseen compounds can be tested.

Ordinary splits (train, val, test) hold no scene with a held-out (colour, kind) pair or a held-out
(kind, relation, kind) triple. Every scene of "novel-attribute" holds such a pair, every scene
of "novel-relation" such a triple. Each kind, colour and relation alone occurs in training.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from compoclip.world.geometry import related
from compoclip.world.scene import Scene, WorldConfig
from compoclip.world.vocabulary import COLOURS, KINDS

ORDINARY: tuple[str, ...] = ("train", "val", "test")
NOVEL_ATTRIBUTE = "novel-attribute"
NOVEL_RELATION = "novel-relation"
SPLITS: tuple[str, ...] = (*ORDINARY, NOVEL_ATTRIBUTE, NOVEL_RELATION)

HELD_RELATIONS: tuple[str, ...] = ("left", "above", "inside", "front")
"""Relations whose compounds are held out; each covers its converse (right, below, behind)."""

Pair = tuple[str, str]
Triple = tuple[str, str, str]
_T = TypeVar("_T", bound=tuple[str, ...])


def generator(*key: object) -> random.Random:
    """The random generator that belongs to a key alone: blake2b over its parts."""
    text = "\x1f".join(map(str, key)).encode("utf-8", "surrogatepass")
    return random.Random(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"))


def _lowest(items: Iterable[_T], share: float, seed: int) -> frozenset[_T]:
    def rank(item: _T) -> bytes:
        return hashlib.blake2b("\x1f".join((str(seed), *item)).encode(), digest_size=8).digest()

    ordered: Sequence[_T] = sorted(items, key=rank)
    return frozenset(ordered[: round(share * len(ordered))])


@lru_cache(maxsize=64)
def _attributes(seed: int, share: float) -> frozenset[Pair]:
    return _lowest(((c, k) for c in COLOURS for k in KINDS), share, seed)


@lru_cache(maxsize=64)
def _relations(seed: int, share: float) -> frozenset[Triple]:
    def possible(relation: str, a: str, b: str) -> bool:
        if relation == "inside":
            return KINDS[b].hollow and not KINDS[a].hollow
        return relation != "front" or (KINDS[a].solid and KINDS[b].solid)

    triples = [(a, r, b) for r in HELD_RELATIONS for a in KINDS for b in KINDS if possible(r, a, b)]
    return _lowest(triples, share, seed)


def held_out_attributes(config: WorldConfig) -> frozenset[Pair]:
    """The (colour, kind) pairs that ordinary splits never show."""
    return _attributes(config.holdout_seed, config.holdout_attribute)


def held_out_relations(config: WorldConfig) -> frozenset[Triple]:
    """The (kind, relation, kind) triples that ordinary splits never show."""
    return _relations(config.holdout_seed, config.holdout_relation)


def held_out_in(scene: Scene, config: WorldConfig) -> tuple[frozenset[Pair], frozenset[Triple]]:
    """The held-out pairs and triples that the scene shows."""
    pairs = {(t.colour, t.kind) for t in scene.things} & held_out_attributes(config)
    held = held_out_relations(config)
    triples = {
        key
        for a in scene.things
        for b in scene.things
        if a is not b
        for relation in HELD_RELATIONS
        if (key := (a.kind, relation, b.kind)) in held and related(relation, a, b)
    }
    return frozenset(pairs), frozenset(triples)
