"""ARO's order task: four shuffled versions of a caption (Yuksekgonul et al., ICLR 2023, 3.2).

The published code draws from the global generator without a seed. Here every shuffle has a seed of
its own, made from the caption's key and the kind of shuffle, so that the cases are always the same.
A shuffle may by chance return the caption itself; such distractors are kept, as in the original.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from typing import TypeVar

from compoclip.captions.types import Token

T = TypeVar("T")

KINDS = ("nouns and adjectives", "other words", "within trigrams", "trigrams")
_WORD = re.compile(r"\w+(?:[-.,]\w+)*|['’]\w+|[^\w\s]")


def shuffled(text: str, tokens: Sequence[Token], key: str) -> tuple[str, str, str, str]:
    """The four distractors of `text` in the order of KINDS, tokens joined by blanks.

    1. nouns (Penn tags NN*) permuted among their places, then adjectives (JJ*) among theirs;
    2. all other tokens permuted among their places;
    3. the words inside each run of three permuted; 4. the runs of three permuted. For 3 and 4 the
    words come from a plain word splitter, for 1 and 2 from the tagger (`tokens`).
    """
    content = [token.tag[:2] if token.tag[:2] in ("NN", "JJ") else "" for token in tokens]
    words = [token.text for token in tokens]
    rng = _generator(key, KINDS[0])
    first = _among(_among(words, _is(content, "NN"), rng), _is(content, "JJ"), rng)
    second = _among(words, _is(content, ""), _generator(key, KINDS[1]))
    runs = trigrams(split_words(text))
    rng = _generator(key, KINDS[2])
    third = [word for run in runs for word in permuted(run, rng)]
    fourth = [word for run in permuted(runs, _generator(key, KINDS[3])) for word in run]
    return " ".join(first), " ".join(second), " ".join(third), " ".join(fourth)


def split_words(text: str) -> list[str]:
    """Words, with inner hyphens, points and commas, clitics such as 's, and single marks."""
    return _WORD.findall(text)


def trigrams(words: Sequence[str]) -> list[list[str]]:
    """Consecutive runs of three words; the last run may be shorter."""
    return [list(words[start : start + 3]) for start in range(0, len(words), 3)]


def permuted(values: Sequence[T], rng: random.Random) -> list[T]:
    """A uniform random permutation, from `random()` alone, whose sequence Python guarantees."""
    keys = [rng.random() for _ in values]
    return [values[i] for i in sorted(range(len(values)), key=keys.__getitem__)]


def _is(tags: Sequence[str], tag: str) -> list[bool]:
    return [each == tag for each in tags]


def _among(words: Sequence[str], chosen: Sequence[bool], rng: random.Random) -> list[str]:
    """Permute the chosen words among their places."""
    moved = iter(permuted([word for word, pick in zip(words, chosen) if pick], rng))
    return [next(moved) if pick else word for word, pick in zip(words, chosen)]


def _generator(key: str, kind: str) -> random.Random:
    digest = hashlib.blake2b(f"{key}\0{kind}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "big"))
