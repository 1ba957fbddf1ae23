"""The published table of synonyms (Kamath et al., The Hard Positive Truth, ECCV 2024), and where
in a caption each entry fits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import NamedTuple

from compoclip.captions.lists import WORDS, word_lists
from compoclip.captions.tagger import inflect, lemma_of
from compoclip.rewrites.driver import CandidateEdit, SampledRewrite
from compoclip.rewrites.edit import RULES, SpanChange, cased_like
from compoclip.rewrites.exclusion import families, is_living, names_people
from compoclip.rewrites.legality import names_together, states_place, subject_of
from compoclip.rewrites.reading import EXCEPTIONS, Reading
from compoclip.rewrites.relations import is_symmetric, phrases

NO_SYNONYM = "no-synonym"


class SynonymEntry(NamedTuple):
    """One row of the table. kind: "relation" or "attribute". rows: how often it was published.
    loose: not quite the same. never: not the same, and not drawn."""

    kind: str
    word: str
    synonym: str
    rows: int
    loose: bool = False
    never: bool = False


@lru_cache(maxsize=1)
def table() -> tuple[SynonymEntry, ...]:
    """Return all entries, in the order of the file."""
    rows = word_lists(__file__, "synonyms").cells()
    return tuple(
        SynonymEntry(kind, word, synonym, int(times), "loose" in flags, "never" in flags)
        for kind, word, synonym, times, *flags in rows
    )


@lru_cache(maxsize=1)
def _needed() -> list[tuple[SynonymEntry, tuple[str, ...], set[str]]]:
    """The entries to draw, their words, and the words of which a caption has one where they fit."""
    split = [(entry, tuple(entry.word.split())) for entry in table() if not entry.never]
    return [(entry, words, {words[0], entry.word, _verb(words[0])}) for entry, words in split]


def places(s: Reading) -> Iterator[tuple[SynonymEntry, SpanChange]]:
    """Yield every change that keeps the meaning by an entry, one for each place and text.

    Only asserted words count: "not near" does not mean "not next to".
    """
    yielded: set[tuple[int, str]] = set()
    for entry, words, heads in _needed():
        if s.words.isdisjoint(heads):
            continue
        for first in range(len(s.lows)):
            text = _text(s, entry, words, first)
            if text is None or not s.asserted(first) or (first, text) in yielded:
                continue
            if entry.kind == "relation" and len(words) == 1 and text in s.lows:
                continue
            yielded.add((first, text))
            yield entry, SpanChange(first, first + len(words), text)


def _text(s: Reading, entry: SynonymEntry, words: tuple[str, ...], first: int) -> str | None:
    """The synonym in the form of the words at token `first`; None where the entry does not fit."""
    token, stop = s.caption.tokens[first], first + len(words)
    if token.pos == "VERB" and words[0].endswith(("ing", "wears")):
        if s.lemmas[first] != _verb(words[0]) or s.lows[first + 1 : stop] != words[1:]:
            return None
        text = entry.synonym
        head, *rest = text.split()
        if head.endswith("ing"):
            if entry.word == "hanging" and token.tag in ("VBN", "VBD"):
                return None  # "hung" is also what someone did
            text = " ".join([inflect(_verb(head), token.tag), *rest])
        elif s.lows[first] != entry.word:
            return None  # no verb: it stands for the listed form alone
        return text if _verb_fits(s, entry, first, stop) else None
    if token.pos == "ADJ" and entry.kind == "attribute" and s.lemmas[first] == entry.word:
        text = inflect(entry.synonym, token.tag)
        fits = " " not in text and text not in s.lows and _adjective_fits(s, entry.word, first)
        return text if fits else None
    if (
        entry.kind == "relation"
        and s.lows[first:stop] == words
        and token.pos not in ("VERB", "AUX")
    ):
        return entry.synonym if _preposition_fits(s, entry.word, first, stop) else None
    return None


@lru_cache(maxsize=256)
def _verb(form: str) -> str:
    return lemma_of(form, "VERB", "VBZ" if form.endswith("s") else "VBG")


def _verb_fits(s: Reading, entry: SynonymEntry, at: int, after: int) -> bool:
    """Return whether the verb has the sense, and the surroundings, that its synonym needs."""
    if s.owner[at] >= 0 or entry.word not in EXCEPTIONS:
        return False
    subject = subject_of(s, at)
    lives = subject >= 0 and is_living(s.head_lemma(subject))
    be = at > 0 and s.lemmas[at - 1] == "be"
    if entry.word == "holding" and subject >= 0 and not lives:
        return False
    # Plates stand, and are not upright; houses sit.
    if entry.word in ("sitting", "standing") and not (lives and (be or entry.kind == "relation")):
        return False
    return bool(EXCEPTIONS[entry.word].first(s.columns, after - 1))


def _adjective_fits(s: Reading, word: str, at: int) -> bool:
    if at in s.phrasal or names_together(s.caption.tokens, at):
        return False
    head = s.head_lemma(s.owner[at]) if s.owner[at] >= 0 else ""
    match word:
        case "looking" | "sitting" | "standing" | "hanging":
            return False  # "a fresh looking salad"
        case "clear":
            return head in RULES["skies"]
        case "old":
            measured = not RULES["measures"].isdisjoint(s.lows[max(at - 2, 0) : at])
            return not measured and "fashion" not in "".join(s.lows[at + 1 : at + 2])
        case "long":
            return head not in RULES["long"]
    if "colour" not in families(word, "ADJ"):
        return True
    shade = at > 0 and s.lows[at - 1] in WORDS["shades"] | RULES["shades"]
    return not shade and head not in RULES["kinds by colour"] and not names_people(head)


def _preposition_fits(s: Reading, word: str, first: int, stop: int) -> bool:
    """Return whether the phrase stands by itself and ties a thing to a place."""
    tokens = s.caption.tokens
    whole = next((span for span in phrases(s.lows) if span[0] <= first < span[1]), (first, stop))
    if whole != (first, stop) or not states_place(s, first, stop):
        return False
    place = s.owner_at(stop)
    if place < 0 or s.mentions[place].first != stop:
        return False
    if word == "by":
        before = first - 1
        while before > 0 and tokens[before].pos == "ADV":
            before -= 1
        passive = before >= 0 and tokens[before].tag in ("VBN", "JJ")
        return not passive or is_symmetric([s.lows[before], "by"])
    # Not within: clothes, idioms ("in progress"), "in the sun".
    head = s.head_lemma(place)
    holding = families(head, "NOUN") & {"rooms", "places", "buildings", "containers", "tableware"}
    return word != "in" or head in RULES["inside"] or bool(holding)


def _proposed(s: Reading, rng: random.Random, strict: bool = False) -> Iterator[CandidateEdit]:
    """Replaces one word or phrase by its synonym, in the same form; place and entry uniform."""
    changes = [change for change in places(s) if not (strict and change[0].loose)]
    for entry, (first, stop, text) in rng.sample(changes, len(changes)):
        rule = f"synonym:{entry.kind}{'-loose' if entry.loose else ''}"
        yield CandidateEdit(rule, [SpanChange(first, stop, cased_like(text, s.caption, first))])


SYNONYM = SampledRewrite("synonym", "4", True, NO_SYNONYM, _proposed)
SYNONYM_STRICT = SampledRewrite(
    "synonym-strict", "4", True, NO_SYNONYM, partial(_proposed, strict=True)
)
