"""The published table of synonyms (Kamath et al., The Hard Positive Truth, ECCV 2024), and where
in a caption each entry fits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from compoclip.captions.lists import SHADES, word_lists
from compoclip.captions.tagger import lemma_of
from compoclip.captions.types import Caption, Token
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.rewrites.edit import EMPTY, SpanChange, cased_like, edited, first_valid, inflect
from compoclip.rewrites.exclusion import families, is_living, names_people
from compoclip.rewrites.legality import names_together, states_place, subject_of
from compoclip.rewrites.reading import Reading, read
from compoclip.rewrites.relations import is_symmetric, phrases

_VERBS = ("VERB", "AUX")
_LISTS = word_lists(__file__, "rules")  # which says what each list is for
_KINDS_BY_COLOUR = _LISTS.words("kinds by colour")
_SHADES = SHADES | _LISTS.words("shades")
_SKIES = _LISTS.words("skies")
_INSIDE = _LISTS.words("inside")
_HOLDING = frozenset(("rooms", "places", "buildings", "containers", "tableware"))
_GAZED = _LISTS.words("gazed")
_MEASURES = _LISTS.words("measures")
_LONG = _LISTS.words("long")


@dataclass(frozen=True, slots=True)
class SynonymEntry:
    """One row of the table. kind: "relation" or "attribute". rows: how often it was published.
    loose: not quite the same. never: not the same, and not drawn."""

    kind: str
    word: str
    synonym: str
    rows: int
    loose: bool = False
    never: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Tokens [first, stop) that an entry may replace by `text`."""

    entry: SynonymEntry
    first: int
    stop: int
    text: str


@lru_cache(maxsize=1)
def table() -> tuple[SynonymEntry, ...]:
    """All entries, in the order of the file."""
    entries = []
    for line in word_lists(__file__, "synonyms").rows():
        kind, word, synonym, rows, *flags = (cell.strip() for cell in line.split("|"))
        entries.append(
            SynonymEntry(kind, word, synonym, int(rows), "loose" in flags, "never" in flags)
        )
    return tuple(entries)


@lru_cache(maxsize=1)
def _needs() -> tuple[tuple[SynonymEntry, frozenset[str]], ...]:
    """All entries, with the words and lemmas of which a caption must hold one for them to apply."""
    found = []
    for entry in table():
        head = entry.word.split()[0]
        found.append((entry, frozenset((head, entry.word, _verb(head)))))
    return tuple(found)


def places(s: Reading) -> Iterator[Place]:
    """Every place of the caption where an entry keeps the meaning, one for each text.

    Only asserted words count: "not near" does not mean "not next to".
    """
    low = list(s.lows)
    seen: set[tuple[int, str]] = set()
    present = {*s.lows, *s.lemmas}
    for entry, needed in _needs():
        if entry.never or needed.isdisjoint(present):
            continue
        for first in range(len(low)):
            place = _place(s, low, entry, first)
            if place is None or not s.asserted(first) or (first, place.text) in seen:
                continue
            if entry.kind == "relation" and place.stop - first == 1 and place.text in low:
                continue
            seen.add((first, place.text))
            yield place


def _place(s: Reading, low: list[str], entry: SynonymEntry, first: int) -> Place | None:
    words = entry.word.split()
    token = s.caption.tokens[first]
    stop = first + len(words)
    if token.pos == "VERB" and words[0].endswith(("ing", "wears")):
        if token.lemma.lower() != _verb(words[0]) or low[first + 1 : stop] != words[1:]:
            return None
        text = _verb_text(entry, token)
        return Place(entry, first, stop, text) if text and _verb_fits(s, entry, first) else None
    if token.pos == "ADJ" and entry.kind == "attribute" and token.lemma.lower() == entry.word:
        text = inflect(entry.synonym, token.tag)
        fits = " " not in text and text not in low and _adjective_fits(s, entry, first)
        return Place(entry, first, stop, text) if fits else None
    if entry.kind == "relation" and low[first:stop] == words and token.pos not in _VERBS:
        fits = _preposition_fits(s, entry.word, first, stop)
        return Place(entry, first, stop, entry.synonym) if fits else None
    return None


@lru_cache(maxsize=256)
def _verb(form: str) -> str:
    return lemma_of(form, "VERB", "VBZ" if form.endswith("s") else "VBG")


def _verb_text(entry: SynonymEntry, token: Token) -> str | None:
    """The synonym in the form of the verb; those that are no verbs stand for the listed form."""
    head, *rest = entry.synonym.split()
    if head.endswith("ing"):
        if entry.word == "hanging" and token.tag in ("VBN", "VBD"):
            return None  # "hung" is also what someone did
        return " ".join([inflect(_verb(head), token.tag), *rest])
    return entry.synonym if token.text.lower() == entry.word else None


def _verb_fits(s: Reading, entry: SynonymEntry, at: int) -> bool:
    """Whether the verb has the sense, and the surroundings, that its synonym needs."""
    tokens = s.caption.tokens
    if s.owner[at] >= 0:
        return False
    after = at + len(entry.word.split())
    follower = tokens[after].text.lower() if after < len(tokens) else ""
    has_object = after < len(tokens) and s.owner[after] >= 0
    be = at > 0 and tokens[at - 1].lemma.lower() == "be"
    match entry.word:
        case "holding":
            subject = subject_of(s, (at, at + 1))
            return has_object and (subject < 0 or is_living(s.head_lemma(subject)))
        case "wearing" | "wears" | "riding" | "riding on" | "eating":
            return has_object
        case "sitting" | "standing":
            subject = subject_of(s, (at, at + 1))
            if subject < 0 or not is_living(s.head_lemma(subject)):
                return False  # plates stand, and are not upright; houses sit
            bare = not has_object and follower not in ("up", "down", "out", "upright")
            return bare and (be or entry.kind == "relation")
        case "hanging" | "walking":
            return not has_object and follower not in ("out", "up", "off", "on")
        case "looking":
            return follower in _GAZED and (at == 0 or tokens[at - 1].pos != "ADJ")
        case "smiling":
            return be and not has_object and follower not in ("at", "for")
    return False


def _adjective_fits(s: Reading, entry: SynonymEntry, at: int) -> bool:
    tokens = s.caption.tokens
    if at in s.phrasal or names_together(tokens, at):
        return False
    head = s.head_lemma(s.owner[at]) if s.owner[at] >= 0 else ""
    match entry.word:
        case "looking" | "sitting" | "standing" | "hanging":
            return False  # "a fresh looking salad"
        case "clear":
            return head in _SKIES
        case "old" if at + 1 < len(tokens) and "fashion" in tokens[at + 1].text.lower():
            return False
        case "old":
            return not any(t.text.lower() in _MEASURES for t in tokens[max(at - 2, 0) : at])
        case "long":
            return head not in _LONG
    if families(entry.word, "ADJ") & {"colour"}:
        if at and tokens[at - 1].text.lower() in _SHADES:
            return False
        return head not in _KINDS_BY_COLOUR and not names_people(head)
    return True


def _preposition_fits(s: Reading, word: str, first: int, stop: int) -> bool:
    """Whether the phrase stands by itself and ties a thing to a place."""
    tokens = s.caption.tokens
    whole = next((span for span in phrases(s.lows) if span[0] <= first < span[1]), (first, stop))
    if whole != (first, stop) or stop >= len(tokens) or not states_place(s, first, stop):
        return False
    place = s.owner[stop]
    if place < 0 or s.mentions[place].first != stop:
        return False
    head = s.head_lemma(place)
    if word == "by":
        before = first - 1
        while before > 0 and tokens[before].pos == "ADV":
            before -= 1
        verb = tokens[before] if before >= 0 else None
        return verb is None or verb.tag not in ("VBN", "JJ") or is_symmetric([verb.text, "by"])
    return word != "in" or _is_inside(head)


@lru_cache(maxsize=4096)
def _is_inside(lemma: str) -> bool:
    """Whether what is in it is within it: no clothes, idioms ("in progress"), "in the sun"."""
    return lemma in _INSIDE or bool(families(lemma, "NOUN") & _HOLDING)


# --- Hard positives by one synonym of the published table. ---

NO_SYNONYM = "no-synonym"


@dataclass(frozen=True)
class Synonym:
    """Replaces one word or phrase by its synonym, in the same form; place and entry uniform.

    The rule of a result says whether its entry is a loose one (The Hard Positive Truth, Kamath et
    al., ECCV 2024).

    Attributes:
        strict: Leave out the loose entries (above -> on top of, wearing -> in, by -> near).
    """

    name: str = "synonym"
    version: str = "4"
    keeps_meaning: bool = True
    strict: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        """One drawn rewrite, or `Refused`: "no-synonym", "empty-caption" or a failed check."""
        if not caption.tokens:
            return Refused(EMPTY)
        found = [p for p in places(read(caption)) if not (self.strict and p.entry.loose)]

        def attempt(place: Place) -> Rewritten | Refused:
            text = cased_like(place.text, caption, place.first)
            rule = f"synonym:{place.entry.kind}{'-loose' if place.entry.loose else ''}"
            change = SpanChange(place.first, place.stop, text)
            return edited(caption, [change], rewrite=self.name, keeps_meaning=True, rule=rule)

        return first_valid(map(attempt, rng.sample(found, len(found))), NO_SYNONYM)


SYNONYM_STRICT = Synonym(name="synonym-strict", strict=True)
