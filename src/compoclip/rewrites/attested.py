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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from compoclip.captions.lists import word_lists
from compoclip.captions.types import Caption, Token
from compoclip.rewrites.exclusion import ANY_THING, families, is_living, members, names_people
from compoclip.rewrites.reading import Reading, of_last
from compoclip.rewrites.slots import GROUPS, KINDS, NOUNS, Pairing, preposition, slots, words_of

#: The level of what is bad English.
BROKEN = -9
_QUALITIES = frozenset(("mod", "pred"))
#: Kinds of slots that, unattested, make an odd picture ("a couch on a dog") and no bad English.
_SENSE = frozenset(("act", "done", "mod", "np", "obj", "pn", "pred", "subj", "tie"))

# --- What is known of words. ---

#: Kinds whose left, right, or both sides have classes.
_LEFT_CLASS = frozenset(("subj", "done", "np"))
_RIGHT_CLASS = frozenset(("obj", "pn"))
_PLACES = frozenset(("fields", "heights", "places", "roads", "waters"))
#: Families of things that captions do not show alike.
_MIXED = frozenset(("places", "shapes", "sky", "small things", "sports gear", "street things"))
#: Kinds of what grows its own colours.
_NATURAL = frozenset(("animals", "birds", "body parts", "fields", "people", "plants", "produce"))
_USUAL = 8  # times that a noun was met with a colour, for others to be unlikely
_SELDOM = 0.03  # share of a colour below which it is
_KNOWN = 5  # times that a noun was met, for the counts to say anything of it
_INSIDE = frozenset(("in", "inside", "into", "within"))
#: Kinds of what other things can be anywhere around.
_SOLID = frozenset(word_lists(__file__, "rules").rows("solid"))
_MOVING = frozenset(("into", "off", "onto", "out of"))  # which only some verbs take
_LACKING = frozenset(("with", "without"))
_ABOUT_PLACES = frozenset(("at", "behind", "down", "in", "on", "under"))
#: Prepositions that go before all things of a kind when they go before some.
_PLACING = frozenset(
    ("above", "among", "behind", "in", "in_front_of", "near", "on", "under", "with")
)
_BARE = 0.15  # share of a noun without an article, below which it needs one
_FEW = 2  # a class is attested from this many captions on
_OFTEN = 5  # and as good as words themselves from this many on


@of_last
def _slots_of(s: Reading) -> tuple[Mapping[int, Sequence[Pairing]], Sequence[str]]:
    """The slots of each token, and the words of all."""
    words, ends = words_of(s.caption.tokens)
    found: dict[int, list[Pairing]] = {}
    for slot in slots(s.caption.tokens, ends):
        for index in slot[1:]:
            if index >= 0:
                found.setdefault(index, []).append(slot)
    return found, words


# --- Counting them. ---


@lru_cache(maxsize=65536)
def kind_of(word: str) -> str:
    """The class of a noun: its family, or itself."""
    if word in KINDS:
        return KINDS[word]
    known = families(word, "NOUN")
    if names_people(word) or ("beings" in known and "animals" not in known):
        return "people"
    if known <= _MIXED and known:
        return word
    if known:
        return min(known - _MIXED or known)
    return word


def count_slots(captions: Iterable[Caption]) -> Counter[str]:
    """Count the slots of captions, by words and by classes.

    Keys are "kind left right"; class keys hold a "*" behind their kind.
    """
    counts: Counter[str] = Counter()
    for caption in captions:
        lemmas, ends = words_of(caption.tokens)
        for kind, left, right, at, by in slots(caption.tokens, ends):
            a, b = lemmas[left] if left >= 0 else "", lemmas[right]
            if kind == "tie":
                counts[tie(a, caption.tokens[left].pos, lemmas[at], b)] += 1
                continue
            if kind == "act":
                counts[act(a, lemmas[at], lemmas[by] if by >= 0 else "", b)] += 1
                continue
            counts[f"{kind} {a} {b}"] += 1
            for key in _classes(kind, a, b):
                counts[key] += 1
    return counts


@lru_cache(maxsize=1 << 18)
def tie(a: str, pos: str, preposition: str, b: str) -> str:
    """Return the key of a governor, of a part of speech, and the noun behind its preposition."""
    return f"tie* {kind_of(a) if pos in NOUNS else a}|{preposition} {kind_of(b)}"


@lru_cache(maxsize=1 << 18)
def act(a: str, verb: str, preposition: str, b: str) -> str:
    """Return the key of a noun that does something to another, or somewhere."""
    return f"act* {kind_of(a)}|{verb}|{preposition} {kind_of(b)}"


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

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self.level = lru_cache(maxsize=1 << 18)(self._level)

    def unknown(
        self,
        tokens: tuple[Token, ...],
        said: Sequence[str],
        words: Mapping[int, str],
        slot: Pairing,
    ) -> bool:
        """Return whether the counts lack the caption's words: a noun that stays, or its places."""
        kind, left, right, *_ = slot
        if kind in ("tie", "act", "np"):
            return not self.slot(tokens, said, {}, slot)
        stays = left if right in words else right
        return (
            kind in _SENSE
            and kind != "obj"
            and stays >= 0
            and stays not in words
            and tokens[stays].pos in NOUNS
            and not self.knows(said[stays])
        )

    def slot(
        self,
        tokens: tuple[Token, ...],
        said: Sequence[str],
        words: Mapping[int, str],
        slot: Pairing,
    ) -> int:
        """Return the level of a slot with some words replaced."""
        kind, left, right, at, by = slot
        a = words.get(left, said[left]) if left >= 0 else ""
        b = words.get(right, said[right])
        if kind == "tie":
            return self.graded(tie(a, tokens[left].pos, words.get(at, said[at]), b))
        if kind == "act":
            where = words.get(by, said[by]) if by >= 0 else ""
            return self.graded(act(a, words.get(at, said[at]), where, b))
        return int(self.level(kind, a, b))

    def count(self, key: str) -> int:
        """How often a key was met."""
        return self._counts.get(key, 0)

    def _level(self, kind: str, a: str, b: str) -> int:
        met = self.count(f"{kind} {a} {b}")
        if kind == "pn" and a in _INSIDE and is_living(b):
            return 0
        if kind == "obj" and a == "wear" and kind_of(b) != "clothing" and met < _OFTEN:
            return 0  # a backpack, and no other bag
        quality, noun = (a, b) if kind == "mod" else (b, a)
        if kind in _QUALITIES and self.has_other_colours(quality, noun):
            return 0  # "a green horse"
        if met and not (kind == "bare" and met < _BARE * self.met(b)):
            return 2
        if kind == "pred" and self.count(f"mod {b} {a}"):
            return 2
        if kind in ("a", "the", "bare", "many"):
            return 1 if kind == "the" or (kind != "bare" and not self.knows(b)) else 0
        if kind == "end" or (kind == "np" and b == "of"):
            return 0
        if kind == "subj" and _is_place(a):
            return 0  # "a man in a field sitting" is none of the field
        if kind == "pn" and (a not in _PLACING or (a in _ABOUT_PLACES and _is_place(b))):
            return 0  # "in a forest", but "on a field"; "at a table", but "on a chair"
        keys = _classes(kind, a, b)
        few = _FEW + (kind in ("obj", "pn"))
        return int(any(self.count(key) >= few for key in keys))

    def met(self, noun: str) -> int:
        """How often a noun was met."""
        return sum(self.count(f"{each}  {noun}") for each in ("a", "the", "bare", "many"))

    def knows(self, noun: str) -> bool:
        """Return whether the counts say anything of a noun."""
        return self.met(noun) >= _KNOWN

    def has_other_colours(self, adjective: str, noun: str) -> bool:
        """Return whether the adjective is a colour that captions give to no noun like this one,
        although they give it other colours."""
        kind = kind_of(noun)
        if "colour" not in families(adjective, "ADJ") or kind not in _NATURAL:
            return False
        for key in (f"mod {{}} {noun}", f"mod* {{}} {kind}"):
            total = sum(self.count(key.format(each)) for each in members("colour", "ADJ"))
            if total >= _USUAL:
                return self.count(key.format(adjective)) < _SELDOM * total
        return False

    def graded(self, key: str) -> int:
        """Return the level of a `tie` or an `act`."""
        times = self.count(key)
        return 2 if times >= _OFTEN else int(times >= _FEW)


def _is_place(noun: str) -> bool:
    return kind_of(noun) in _PLACES or "places" in families(noun, "NOUN")


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
        s: Reading of the caption.
        words: Token -> the lemma that comes to stand there, of a compound its last word; "" for a
            word that goes.
        moved: Spans that are moved as they are: what belongs together inside stays.
        strict: Ask of the new words also where the counts do not know the caption's own.

    Returns:
        2 or 1 where all slots are; else 1 less for each that is not, and `BROKEN` where one of
        those makes bad English and no odd picture.
    """
    known, lowest, odd = attested(), 2, 0
    tokens = s.caption.tokens
    known_slots, lemmas = _slots_of(s)
    touched = (slot for index in words for slot in known_slots.get(index, ()))
    for slot in touched if len(words) == 1 else dict.fromkeys(touched):
        kind, left, right, *_ = slot
        if moved and any(right in span and (left < 0 or left in span) for span in moved):
            continue
        b = words.get(right, lemmas[right])
        a = words.get(left, lemmas[left]) if left >= 0 else ""
        if not b or (left >= 0 and not a):
            continue
        level = known.slot(tokens, lemmas, words, slot)
        if (level == 0 and not strict and known.unknown(tokens, lemmas, words, slot)) or (
            level == 0 and kind in _QUALITIES and _same_quality(lemmas, words, left, right)
        ):
            lowest = min(lowest, 1)
        elif level == 0:
            if kind not in _SENSE:
                return BROKEN
            odd += 1
        elif (
            kind == "subj"
            and left in words
            and _alive(lemmas[left])
            and not (_alive(a) or stays_still(b))
        ):
            odd += 2  # "a trick doing a man"
        elif level < lowest:
            lowest = level
    return lowest if not odd else 1 - odd


def _same_quality(lemmas: Sequence[str], words: Mapping[int, str], left: int, right: int) -> bool:
    """Return whether a colour, size or pattern gives way to another: what has one can have any."""
    if left in words and right in words:
        return False
    at = left if left in words else right
    noun = lemmas[right if at == left else left]
    if attested().has_other_colours(words[at], noun):
        return False
    return bool(families(lemmas[at], "ADJ") & families(words[at], "ADJ") & ANY_THING)


def preposition_level(s: Reading, first: int, words: str) -> int:
    """How well another preposition goes between what the one at token `first` relates: nothing is
    under a beach, or outside a shirt.
    """
    if words in _MOVING:
        return 0
    if words in _LACKING:
        return 2
    known, tokens = attested(), s.caption.tokens
    slots_at, lemmas = _slots_of(s)
    # What may be near a thing may be far from it.
    word = "near" if (key := preposition(words)) == "far_from" else key
    lowest = 2
    done_by = [lemmas[slot.left] for slot in slots_at.get(first, ()) if slot.kind == "act"]
    alive = any(map(_alive, done_by))
    for kind, left, right, *_ in slots_at.get(first, ()):
        if kind not in ("pn", "tie"):
            continue
        if kind == "pn":
            level = known.level("pn", word, lemmas[right])
        else:
            level = known.graded(tie(lemmas[left], tokens[left].pos, word, lemmas[right]))
        nouns = [index for index in (left, right) if tokens[index].pos in NOUNS]
        # Whether a thing is there, and nobody does something.
        governor, does = lemmas[left], tokens[left].pos == "VERB"
        rests = stays_still(governor) if does else not _alive(governor)
        if level == 0 and (
            any(not known.knows(lemmas[index]) for index in nouns)
            or (not alive and is_solid(lemmas[right]) and rests)
        ):
            level = 1
        lowest = min(lowest, level)
    return lowest


def is_solid(noun: str) -> bool:
    """Return whether other things can be under, behind, above or near what the noun names."""
    return kind_of(noun.rpartition(" ")[2]) in _SOLID


def _alive(noun: str) -> bool:
    return is_living(noun) or noun in GROUPS


_STILL = frozenset(("posture", "hanging", "parking", "floating", "looking", "motion through"))


def stays_still(verb: str) -> bool:
    """Return whether things can do it: stand, hang, float."""
    return bool(families(verb, "VERB") & _STILL)
