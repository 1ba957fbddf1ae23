"""Which words captions put side by side: the evidence that a rewritten text reads like a caption.

A caption is a row of slots: an adjective with its noun, a noun with its verb, a verb with its
object, what stands before and after a preposition, who does what to what, a noun with its article.
Prepositions that say nearly the same ("on", "on top of") are one. A word that takes the
place of another gets the slots of that one, and each must have been met in captions with the new
word in it (level 2), or with words of its kind ("riding" with animals: level 1). A text with a slot
that was never met (level 0) is refused.

The counts are of COCO captions (data/README.md).
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from compoclip.captions.types import NOUNS
from compoclip.rewrites.edit import RULES
from compoclip.rewrites.exclusion import (
    ANY_THING,
    families,
    head_noun,
    is_living,
    members,
    names_people,
)
from compoclip.rewrites.reading import Reading
from compoclip.rewrites.slots import GROUPS, KINDS, Pairing, preposition, slots, words_of

#: The level of what is bad English.
BROKEN = -9
_QUALITIES = ("mod", "pred")
_ARTICLES = ("a", "the", "bare", "many")
#: Kinds of slots that, unattested, make an odd picture ("a couch on a dog") and no bad English.
_SENSE = frozenset(("act", "done", "mod", "np", "obj", "pn", "pred", "subj", "tie"))
#: Families of things that captions do not show alike.
_MIXED = frozenset(("places", "shapes", "sky", "small things", "sports gear", "street things"))
_USUAL = 8  # times that a noun was met with a colour, for others to be unlikely
_SELDOM = 0.03  # share of a colour below which it is
_KNOWN = 5  # times that a noun was met, for the counts to say anything of it
_BARE = 0.15  # share of a noun without an article, below which it needs one
_FEW = 2  # a class is attested from this many captions on
_OFTEN = 5  # and as good as words themselves from this many on


@lru_cache(maxsize=1)
def _slots_of(s: Reading) -> tuple[Mapping[int, Sequence[Pairing]], Sequence[str]]:
    """The slots of each token, and the words of all, with "" for token -1."""
    words, ends = words_of(s.caption.tokens)
    slots_at: dict[int, list[Pairing]] = {}
    for slot in slots(s.caption.tokens, ends):
        for index in slot[1:]:
            if index >= 0:
                slots_at.setdefault(index, []).append(slot)
    return slots_at, [*words, ""]


# --- The keys of slots in the counts: "kind left right", by words; classes have a "*". ---


@lru_cache(maxsize=65536)
def kind_of(word: str) -> str:
    """The class of a noun: its family, or itself."""
    if word in KINDS:
        return KINDS[word]
    noun_families = families(word, "NOUN")
    if names_people(word) or ("beings" in noun_families and "animals" not in noun_families):
        return "people"
    return min(noun_families - _MIXED, default=word)


@lru_cache(maxsize=1 << 18)
def tie(a: str, pos: str, preposition: str, b: str) -> str:
    """Return the key of a governor, of a part of speech, and the noun behind its preposition."""
    return f"tie* {kind_of(a) if pos in NOUNS else a}|{preposition} {kind_of(b)}"


@lru_cache(maxsize=1 << 18)
def act(a: str, verb: str, preposition: str, b: str) -> str:
    """Return the key of a noun that does something to another, or somewhere."""
    return f"act* {kind_of(a)}|{verb}|{preposition} {kind_of(b)}"


def classes(kind: str, a: str, b: str) -> tuple[str, ...]:
    """Return the keys of which one must be attested when the words are not; none: refused."""
    match kind:
        case "subj" | "done" | "np":
            return (f"{kind}* {kind_of(a)} {b}",)
        case "obj" | "pn":
            return (f"{kind}* {a} {kind_of(b)}",)
        case "mod" | "pred":
            quality, noun = (a, b) if kind == "mod" else (b, a)
            kinds = (kind.replace(" ", "/") for kind in sorted(families(quality, "ADJ")))
            return f"mod* {quality} {kind_of(noun)}", *(f"mod* {kind} {noun}" for kind in kinds)
    return ()


class Attested:
    """Counts of slots, asked for the level of one."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self.level = lru_cache(maxsize=1 << 18)(self._level)

    def slot(self, s: Reading, said: Sequence[str], words: Mapping[int, str], slot: Pairing) -> int:
        """Return the level of a slot of a caption with some of what it says replaced."""
        kind, left, right, at, by = slot
        a, b = words.get(left, said[left]), words.get(right, said[right])
        if at < 0:
            return int(self.level(kind, a, b))
        middle = words.get(at, said[at])
        if kind == "tie":
            return self.graded(tie(a, s.caption.tokens[left].pos, middle, b))
        return self.graded(act(a, middle, words.get(by, said[by]), b))

    def unknown(self, s: Reading, words: Mapping[int, str], slot: Pairing) -> bool:
        """Return whether the counts lack the caption's words: a noun that stays, or its places."""
        kind, left, right, *_ = slot
        if kind in ("tie", "act", "np"):
            return not self.slot(s, _slots_of(s)[1], {}, slot)
        stays = left if right in words else right
        if kind not in _SENSE or kind == "obj" or stays < 0 or stays in words:
            return False
        return s.caption.tokens[stays].pos in NOUNS and not self.knows(_slots_of(s)[1][stays])

    def count(self, key: str) -> int:
        """How often a key was met."""
        return self._counts.get(key, 0)

    def graded(self, key: str) -> int:
        """Return the level of a `tie` or an `act`."""
        times = self.count(key)
        return 2 if times >= _OFTEN else int(times >= _FEW)

    def _level(self, kind: str, a: str, b: str) -> int:
        met = self.count(f"{kind} {a} {b}")
        quality, noun = (a, b) if kind == "mod" else (b, a)
        if (
            (kind == "pn" and a in ("in", "inside", "into", "within") and is_living(b))
            # a backpack, and no other bag
            or (kind == "obj" and a == "wear" and kind_of(b) != "clothing" and met < _OFTEN)
            # "a green horse"
            or (kind in _QUALITIES and self.has_other_colours(quality, noun))
        ):
            return 0
        if met and not (kind == "bare" and met < _BARE * self.met(b)):
            return 2
        if kind == "pred" and self.count(f"mod {b} {a}"):
            return 2
        if kind in _ARTICLES:
            return int(kind == "the" or (kind != "bare" and not self.knows(b)))
        if (
            kind == "end"
            or (kind == "np" and b == "of")
            # "a man in a field sitting" is none of the field
            or (kind == "subj" and _is_place(a))
            or (kind == "pn" and a not in RULES["placing"])
            # "in a forest", but "on a field"; "at a table", but "on a chair"
            or (kind == "pn" and a in RULES["about places"] and _is_place(b))
        ):
            return 0
        few = _FEW + (kind in ("obj", "pn"))
        return int(any(self.count(key) >= few for key in classes(kind, a, b)))

    def met(self, noun: str) -> int:
        """How often a noun was met."""
        return sum(self.count(f"{article}  {noun}") for article in _ARTICLES)

    def knows(self, noun: str) -> bool:
        """Return whether the counts say anything of a noun."""
        return self.met(noun) >= _KNOWN

    def has_other_colours(self, adjective: str, noun: str) -> bool:
        """Return whether captions give other colours than this one to nouns like this one."""
        kind = kind_of(noun)
        if "colour" not in families(adjective, "ADJ") or kind not in RULES["natural"]:
            return False
        for key in (f"mod {{}} {noun}", f"mod* {{}} {kind}"):
            total = sum(self.count(key.format(colour)) for colour in members("colour", "ADJ"))
            if total >= _USUAL:
                return self.count(key.format(adjective)) < _SELDOM * total
        return False


def _is_place(noun: str) -> bool:
    return kind_of(noun) in RULES["kinds of places"] or "places" in families(noun, "NOUN")


@lru_cache(maxsize=1)
def attested() -> Attested:
    """Return the bundled counts, read once."""
    content = Path(__file__).with_name("data").joinpath("attested.xz").read_bytes()
    _, *lines = lzma.decompress(content).decode("utf-8").splitlines()
    rows = (line.partition("\t") for line in lines)
    return Attested({key: int(count) for key, _, count in rows})


# --- What an edit of a caption comes to. ---


def edit_level(
    s: Reading, words: Mapping[int, str], moved: tuple[range, ...] = (), *, strict: bool = False
) -> int:
    """How well the slots that an edit changes are attested.

    Args:
        words: Token -> the lemma that comes to stand there, of a compound its last word; "" for a
            word that goes.
        moved: Spans that are moved as they are: what belongs together inside stays.
        strict: Ask of the new words also where the counts do not know the caption's own.

    Returns:
        2 or 1 where all slots are; else 1 less for each that is not, and `BROKEN` where one of
        those makes bad English and no odd picture.
    """
    counts, lowest, odd = attested(), 2, 0
    known_slots, lemmas = _slots_of(s)
    touched = (slot for index in words for slot in known_slots.get(index, ()))
    for slot in touched if len(words) == 1 else dict.fromkeys(touched):
        kind, left, right, _, _ = slot
        if moved and any(right in span and (left < 0 or left in span) for span in moved):
            continue
        a, b = words.get(left, lemmas[left]), words.get(right, lemmas[right])
        if not b or (left >= 0 and not a):
            continue
        level = counts.slot(s, lemmas, words, slot)
        if level == 0:
            if (not strict and counts.unknown(s, words, slot)) or (
                kind in _QUALITIES and _same_quality(lemmas, words, left, right)
            ):
                level = 1
            elif kind not in _SENSE:
                return BROKEN
            else:
                odd += 1
        elif kind == "subj" and left in words and is_alive(lemmas[left]) and not is_alive(a):
            odd += 0 if stays_still(b) else 2  # "a trick doing a man"
        lowest = level if level < lowest else lowest
    return 1 - odd if odd else lowest


def _same_quality(lemmas: Sequence[str], words: Mapping[int, str], left: int, right: int) -> bool:
    """Return whether a colour, size or pattern gives way to another: what has one can have any."""
    if left in words and right in words:
        return False
    at, noun = (left, lemmas[right]) if left in words else (right, lemmas[left])
    alike = families(lemmas[at], "ADJ") & families(words[at], "ADJ") & ANY_THING
    return bool(alike) and not attested().has_other_colours(words[at], noun)


def preposition_level(s: Reading, first: int, words: str) -> int:
    """How well another preposition goes between what the one at token `first` relates.

    Nothing is under a beach, or outside a shirt.
    """
    if words in ("into", "off", "onto", "out of"):  # which only some verbs take
        return 0
    if words in ("with", "without"):
        return 2
    counts, tokens = attested(), s.caption.tokens
    slots_at, lemmas = _slots_of(s)
    # What may be near a thing may be far from it.
    key = preposition(words)
    word = "near" if key == "far_from" else key
    lowest = 2
    here = slots_at.get(first, ())
    alive = any(is_alive(lemmas[slot.left]) for slot in here if slot.kind == "act")
    for slot in here:
        kind, left, right, *_ = slot
        if kind == "pn":
            level = counts.level("pn", word, lemmas[right])
        elif kind == "tie":
            level = counts.graded(tie(lemmas[left], tokens[left].pos, word, lemmas[right]))
        else:
            continue
        nouns = [index for index in (left, right) if tokens[index].pos in NOUNS]
        # Whether a thing is there, and nobody does something.
        governor, does = lemmas[left], tokens[left].pos == "VERB"
        rests = stays_still(governor) if does else not is_alive(governor)
        free = not alive and is_solid(lemmas[right]) and rests
        if level == 0 and (free or any(not counts.knows(lemmas[index]) for index in nouns)):
            level = 1
        lowest = min(lowest, level)
    return lowest


def is_solid(noun: str) -> bool:
    """Return whether other things can be under, behind, above or near what the noun names."""
    return kind_of(head_noun(noun)) in RULES.rows("solid")


def is_alive(noun: str) -> bool:
    """Return whether the noun names people, animals, or a group of them."""
    return is_living(noun) or noun in GROUPS


def stays_still(verb: str) -> bool:
    """Return whether things can do it: stand, hang, float."""
    return bool(families(verb, "VERB") & RULES["still"])
