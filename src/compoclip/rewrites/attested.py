"""Which words captions put side by side: the evidence that a rewritten text reads like a caption.

A caption is a row of slots: an adjective with its noun, a noun with its verb, a verb with its
object, what stands before and after a preposition, a noun with its article. A word that takes the
place of another gets the slots of that one, and each must have been met in captions with the new
word in it (level 2), or with words of its kind ("riding" with animals: level 1). A text with a slot
that was never met (level 0) is refused.

The counts that ship with the package are of COCO captions (data/README.md); those of a corpus of
one's own add to them (`use_counts`).
"""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from compoclip.captions.lexicon import lexicon
from compoclip.captions.types import Caption, Token
from compoclip.errors import CompoclipError
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.exclusion import families, names_people
from compoclip.rewrites.reading import Reading, of_last

UNATTESTED = "unattested"
FORMAT = "compoclip-attested-1"
Counts = Mapping[str, int]

# --- The slots of a caption. ---

#: Kinds whose left, right, or both sides have classes.
_LEFT_CLASS = frozenset(("subj", "done", "np"))
_RIGHT_CLASS = frozenset(("obj", "pn"))
_PEOPLE = {14, 18}  # WordNet's fields of groups and persons
_FEW = 2  # a class is attested from this many words on


class Slot(NamedTuple):
    """Two words that belong together: tokens `left` and `right`, -1 for none.

    kind: "mod" (modifier, noun), "subj" and "done" (noun, verb; what is done to it), "obj" (verb,
    noun), "np" and "vp" (noun or verb, preposition), "pn" (preposition, noun), "pred" (noun,
    adjective), "end" (verb that nothing follows), "tie" (governor, noun behind a preposition);
    "a", "the", "bare", "many" (noun with such an article).
    """

    kind: str
    left: int
    right: int


_NOUNS = ("NOUN", "PROPN")
_FOLLOWS_VERB = ("ADP", "ADV", "ADJ", "PART", "DET", "PRON", "NUM", "NOUN", "PROPN", "SCONJ")


def slots(tokens: tuple[Token, ...]) -> tuple[Slot, ...]:
    """The slots of a caption, left to right."""
    found: list[Slot] = []
    described: list[int] = []
    article = "bare"
    anchor, before = -1, -1  # what the next word belongs to; what that belongs to
    size = len(tokens)
    for i, token in enumerate(tokens):
        pos = token.pos
        if pos in _NOUNS:
            if i + 1 < size and tokens[i + 1].pos in _NOUNS:
                described.append(i)
                continue
            found += [Slot("mod", m, i) for m in described]
            many = token.tag in ("NNS", "NNPS")
            found.append(Slot("many" if many else article, -1, i))
            if anchor >= 0 and tokens[anchor].pos == "ADP":
                found.append(Slot("pn", anchor, i))
                if before >= 0:
                    found.append(Slot("tie", before, i))
            elif anchor >= 0 and tokens[anchor].pos == "VERB":
                found.append(Slot("obj", anchor, i))
            anchor, before, article = i, -1, "bare"
            described = []
        elif pos == "ADJ":
            described.append(i)
        elif pos in ("DET", "NUM") or token.tag == "PRP$":
            low = token.text.lower()
            article = "a" if low in ("a", "an", "one", "another", "each", "every") else "the"
            described = []
        elif pos == "VERB":
            if anchor >= 0 and tokens[anchor].pos in _NOUNS:
                found.append(Slot("done" if token.tag == "VBN" else "subj", anchor, i))
            if i + 1 == size or tokens[i + 1].pos not in _FOLLOWS_VERB:
                found.append(Slot("end", -1, i))
            anchor, before, article, described = i, -1, "bare", []
        elif pos == "ADP":
            if described:
                anchor, described = described[-1], []
            if anchor >= 0:
                found.append(Slot("np" if tokens[anchor].pos in _NOUNS else "vp", anchor, i))
            anchor, before, article = i, anchor, "bare"
        elif pos not in ("ADV", "AUX", "PART"):
            if described and anchor >= 0 and tokens[anchor].pos in _NOUNS:
                found += [Slot("pred", anchor, m) for m in described]
            described, article = [], "bare"
            if pos != "PRON" or token.tag not in ("WDT", "WP"):
                anchor = before = -1
    if described and anchor >= 0 and tokens[anchor].pos in _NOUNS:
        found += [Slot("pred", anchor, m) for m in described]
    return tuple(found)


@of_last
def _slots_of(s: Reading) -> tuple[Slot, ...]:
    return slots(s.caption.tokens)


# --- Counting them. ---


@lru_cache(maxsize=65536)
def kind_of(word: str) -> str:
    """The class of a noun: its family, else WordNet's field; "" when it is unknown."""
    word = word.rpartition(" ")[2] if not families(word, "NOUN") else word
    known = families(word, "NOUN")
    if names_people(word) or ("beings" in known and "animals" not in known):
        return "people"
    if known:
        return min(known - {"shapes", "sky"} or known)
    fields = lexicon().fields(word, "NOUN")
    if fields & _PEOPLE:
        return "people"
    return f"#{min(fields)}" if fields else ""


def count_slots(captions: Iterable[Caption]) -> Counter[str]:
    """Count the slots of captions, by words and by classes.

    Args:
        captions: Parsed captions.

    Returns:
        Key ("kind left right") -> how often; class keys hold a "*" behind their kind.
    """
    counts: Counter[str] = Counter()
    for caption in captions:
        lemmas = [token.lemma.lower() for token in caption.tokens]
        for kind, left, right in slots(caption.tokens):
            a, b = lemmas[left] if left >= 0 else "", lemmas[right]
            if kind == "tie":
                word = _preposition(caption.tokens, left + 1)
                counts[_tie(a, caption.tokens[left].pos, lemmas[word], b)] += 1
                continue
            counts[f"{kind} {a} {b}"] += 1
            for key in _classes(kind, a, b):
                counts[key] += 1
    return counts


def _preposition(tokens: tuple[Token, ...], at: int) -> int:
    """The first preposition from a place on, of which there is one."""
    while tokens[at].pos != "ADP":
        at += 1
    return at


def _tie(a: str, pos: str, preposition: str, b: str) -> str:
    return f"tie* {kind_of(a) if pos in _NOUNS else a}|{preposition} {kind_of(b)}"


def _classes(kind: str, a: str, b: str) -> tuple[str, ...]:
    """The keys of which one must be attested when the words are not; none: refused."""
    if kind in _LEFT_CLASS:
        return (f"{kind}* {kind_of(a)} {b}",)
    if kind in _RIGHT_CLASS:
        return (f"{kind}* {a} {kind_of(b)}",)
    if kind in ("mod", "pred"):
        adjective, noun = (a, b) if kind == "mod" else (b, a)
        keys = (f"mod* {adjective} {kind_of(noun)}",)
        kinds = (kind.replace(" ", "/") for kind in sorted(families(adjective, "ADJ")))
        return (*keys, *(f"mod* {kind} {noun}" for kind in kinds))
    return ()


class Attested:
    """Counts of slots, asked for the level of one."""

    def __init__(self, *counts: Counts) -> None:
        self._counts = counts
        self.level = lru_cache(maxsize=1 << 18)(self._level)
        self.tied = lru_cache(maxsize=1 << 18)(self._tied)

    def count(self, key: str) -> int:
        """How often a key was met."""
        return sum(counts.get(key, 0) for counts in self._counts)

    def _level(self, kind: str, a: str, b: str) -> int:
        if self.count(f"{kind} {a} {b}"):
            return 2
        if kind == "pred" and self.count(f"mod {b} {a}"):
            return 2
        if kind in ("a", "the", "bare", "many"):
            met = sum(self.count(f"{each}  {b}") for each in ("a", "the", "bare", "many"))
            return 1 if met < 2 * _FEW or kind == "the" else 0
        if kind == "end":
            return 0
        keys = _classes(kind, a, b)
        return int(any(self.count(key) >= _FEW for key in keys))

    def _tied(self, governor: str, pos: str, preposition: str, noun: str) -> int:
        return 2 if self.count(_tie(governor, pos, preposition, noun)) else 0


# --- The counts that are asked. ---


def read_counts(path: Path) -> Counts:
    """Read a file of counts.

    Args:
        path: As `write_counts` writes it.

    Returns:
        Key -> how often.

    Raises:
        CompoclipError: When it is missing or no file of counts.
    """
    remedy = "make it with scripts/count_captions.py"
    try:
        lines = lzma.decompress(path.read_bytes()).decode("utf-8").splitlines()
        if not lines or lines[0].split("\t")[0] != FORMAT:
            raise ValueError
        return {key: int(count) for key, _, count in (x.partition("\t") for x in lines[1:])}
    except OSError as error:
        raise CompoclipError(
            f"{path}: cannot read the counts of captions ({error.strerror}); {remedy}"
        ) from error
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise CompoclipError(f"{path}: not a file of counts of captions; {remedy}") from error


def write_counts(path: Path, counts: Counts, source: str) -> None:
    """Write counts, keys in order: the same counts give the same bytes.

    Args:
        path: The file.
        counts: Key -> how often.
        source: What was counted, and its licence.
    """
    rows = (f"{key}\t{count}" for key, count in sorted(counts.items()))
    text = "\n".join((f"{FORMAT}\t{source}", *rows)) + "\n"
    path.write_bytes(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))


@lru_cache(maxsize=1)
def _bundled() -> Counts:
    return read_counts(Path(__file__).with_name("data") / "attested.xz")


_own: list[Counts] = []


def use_counts(counts: Counts | None) -> None:
    """Let further counts, of a corpus of one's own, attest texts beside the bundled ones.

    They hold for this process from now on, and with them the texts that rewrites draw.

    Args:
        counts: What `count_slots` or `read_counts` gave; None for the bundled ones alone.
    """
    _own[:] = [] if counts is None else [counts]
    attested.cache_clear()


@lru_cache(maxsize=1)
def attested() -> Attested:
    """The counts in use, read once."""
    return Attested(_bundled(), *_own)


# --- What an edit of a caption comes to. ---


def edit_level(
    s: Reading, words: Mapping[int, str], moved: tuple[range, ...] = (), *, odd: bool = False
) -> int:
    """The lowest level of the slots that an edit changes.

    Args:
        s: Reading of the caption.
        words: Token -> the lemma that comes to stand there; "" for a word that goes.
        moved: Spans that are moved as they are: what belongs together inside stays.
        odd: Whether things may be where none of their kind was met ("a couch on a dog"): level 1.

    Returns:
        2, 1 or 0; 2 where no slot changes.
    """
    known, lemmas, lowest = attested(), s.lemmas, 2
    tokens = s.caption.tokens
    for kind, left, right in _slots_of(s):
        if left not in words and right not in words:
            continue
        if any(left in span and right in span for span in moved):
            continue
        if left < 0 and any(right in span for span in moved):
            continue
        b = words.get(right, lemmas[right])
        a = words.get(left, lemmas[left]) if left >= 0 else ""
        if not b or (left >= 0 and not a):
            continue
        if kind == "tie":
            at = _preposition(tokens, left + 1)
            level = known.tied(_head(a), tokens[left].pos, words.get(at, lemmas[at]), _head(b))
            level = max(level, odd)
        else:
            level = known.level(kind, _head(a), _head(b))
        if level < lowest:
            lowest = level
            if not level:
                return 0
    return lowest


def _head(name: str) -> str:
    return name.rpartition(" ")[2] if " " in name else name


Draw = tuple[int, Callable[[], Rewritten | Refused]]
"""The level of an edit, and what makes its text."""


def first_fluent(draws: Iterable[Draw], reason: str) -> Rewritten | Refused:
    """The first valid text of which all words were met together; else the first of level 1.

    reason: why there is none when nothing is drawn.
    """
    second: Rewritten | None = None
    for level, make in draws:
        if level == 0 or (level == 1 and second is not None):
            reason = reason if level else UNATTESTED
            continue
        result = make()
        if isinstance(result, Refused):
            reason = result.reason
        elif level == 2:
            return result
        else:
            second = result
    return second or Refused(reason)
