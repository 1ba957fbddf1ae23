"""A caption with its words shuffled in four ways, as in ARO's order task (see `aro`)."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TypeVar

from compoclip.benchmarks.files import hash_number
from compoclip.captions.types import Token

T = TypeVar("T")

WORDS = 30
"""Words to which the texts of the task are cut."""
KINDS = ("nouns and adjectives", "other words", "within trigrams", "trigrams")
_WORD = re.compile(r"\w+(?:[-.,]\w+)*|['’]\w+|[^\w\s]")


def shuffled(text: str, tokens: Sequence[Token], key: str) -> tuple[str, str, str, str]:
    """Return the four distractors of `text` in the order of KINDS, tokens joined by blanks.

    1. nouns (Penn tags NN*) permuted among their places, then adjectives (JJ*) among theirs;
    2. all other tokens permuted among their places;
    3. the words inside each run of three permuted; 4. the runs of three permuted. For 3 and 4 the
    words come from a plain word splitter, for 1 and 2 from the tagger (`tokens`).
    """
    content = [token.tag[:2] if token.tag[:2] in ("NN", "JJ") else "" for token in tokens]
    words = [token.text for token in tokens]
    rng = _generator(key, KINDS[0])
    first = _among(_among(words, content, "NN", rng), content, "JJ", rng)
    second = _among(words, content, "", _generator(key, KINDS[1]))
    runs = trigrams(split_words(text))
    rng = _generator(key, KINDS[2])
    third = [word for run in runs for word in permuted(run, rng)]
    fourth = [word for run in permuted(runs, _generator(key, KINDS[3])) for word in run]
    return " ".join(first), " ".join(second), " ".join(third), " ".join(fourth)


def split_words(text: str) -> list[str]:
    """Return words, with inner hyphens, points and commas, clitics such as 's, and single marks."""
    return _WORD.findall(text)


def trigrams(words: Sequence[str]) -> list[list[str]]:
    """Return consecutive runs of three words; the last run may be shorter."""
    return [list(words[start : start + 3]) for start in range(0, len(words), 3)]


def permuted(values: Sequence[T], rng: random.Random) -> list[T]:
    """Return a uniform permutation, from `random()` alone: Python guarantees its sequence."""
    keys = [rng.random() for _ in values]
    return [values[i] for i in sorted(range(len(values)), key=keys.__getitem__)]


def _among(words: list[str], tags: list[str], tag: str, rng: random.Random) -> list[str]:
    moved = iter(permuted([word for word, word_tag in zip(words, tags) if word_tag == tag], rng))
    return [next(moved) if word_tag == tag else word for word, word_tag in zip(words, tags)]


def _generator(key: str, kind: str) -> random.Random:
    return random.Random(hash_number(f"{key}\0{kind}"))


def tagger_stated(tagger: str) -> str:
    """Return what the shuffles depend on in addition to the captions, for the data hash."""
    from compoclip.captions.parser import PARSER_VERSION
    from compoclip.captions.tagger import tagger_version

    return f"tagger {tagger_version(tagger)} {PARSER_VERSION}"
