"""Checks of texts written by a person or a language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from compoclip.captions.clip_text import fits_context, same_to_clip
from compoclip.captions.lexicon import lexicon
from compoclip.captions.lists import CONTRACTED_NOT, NUMBERS
from compoclip.captions.types import Caption, SceneGraph, Token
from compoclip.rewrites.edit import EMPTY, RULES, SAME_TOKENS, TOO_LONG
from compoclip.rewrites.exclusion import families, may_coincide, related
from compoclip.rewrites.reading import Reading, read
from compoclip.rewrites.relations import (
    PREPOSITIONS,
    contradicting,
    is_symmetric,
    phrases,
    preposition_synonyms,
)
from compoclip.rewrites.synonyms import table

# --- What two texts say differently, as far as words, prepositions and scene graphs tell. ---
#
# Used on texts that people or language models wrote, where nothing is known of how they were made.

CONTENT = frozenset(("NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM"))


@dataclass(frozen=True, slots=True)
class WordDifference:
    """The words that change from one text to another.

    lost, gained: content words of which the other text has fewer; words in both are no change, even
    where the tagger takes them for something else. lost_links, gained_links: prepositions, phrasal
    ones whole. negated: only one of the texts denies something. moved: the content words that both
    have stand in another order.
    """

    lost: tuple[Token, ...]
    gained: tuple[Token, ...]
    lost_links: tuple[str, ...]
    gained_links: tuple[str, ...]
    negated: bool
    moved: bool


def difference(caption: Caption, written: Caption) -> WordDifference:
    """Return the words in which `written` differs from `caption`."""
    readings = read(caption), read(written)
    before, after = (Counter(reading.lows) for reading in readings)
    mine, theirs = map(content_words, readings)
    links, other_links = (Counter(_links(reading)) for reading in readings)
    shared = before & after

    def among(tokens: Iterable[Token], left: Counter[str]) -> tuple[Token, ...]:
        """The tokens with these words, each as often as it is counted."""
        selected = []
        for token in tokens:
            if left[token.text.lower()] > 0:
                left[token.text.lower()] -= 1
                selected.append(token)
        return tuple(selected)

    orders = [
        [word for word in (token.text.lower() for token in tokens) if shared[word]]
        for tokens in (mine, theirs)
    ]
    return WordDifference(
        lost=among(mine, before - after),
        gained=among(theirs, after - before),
        lost_links=tuple((links - other_links).elements()),
        gained_links=tuple((other_links - links).elements()),
        negated=_denies(before) != _denies(after),
        moved=orders[0] != orders[1],
    )


def _denies(lows: Iterable[str]) -> bool:
    return any(low in RULES["negations"] or low.endswith(CONTRACTED_NOT) for low in lows)


def content_words(s: Reading) -> list[Token]:
    """The content words in order; "front" of "in front of" is none."""
    return [t for i, t in enumerate(s.caption.tokens) if t.pos in CONTENT and i not in s.phrasal]


def _links(s: Reading) -> list[str]:
    """The prepositions in order."""
    single = [
        low
        for i, (low, token) in enumerate(zip(s.lows, s.caption.tokens))
        if i not in s.phrasal and token.pos in ("ADP", "ADV") and low in PREPOSITIONS
    ]
    return [" ".join(s.lows[first:stop]) for first, stop in phrases(s.lows)] + single


def may_mean_the_same(a: Token, b: Token) -> bool:
    """Return whether one word can stand for the other, or is a kind of it."""
    first, second = a.lemma.lower(), b.lemma.lower()
    pair = {a.text.lower(), b.text.lower()}
    return (
        str(NUMBERS.get(first, first)) == str(NUMBERS.get(second, second))
        or any({entry.word, entry.synonym} == pair for entry in table())
        # The tagger may take one of them for another part of speech than the other.
        or any(related(first, second, pos) for pos in {a.pos, b.pos} if pos in CONTENT)
    )


def exclude_each_other(a: Token, b: Token) -> bool:
    """Return whether one word rules out the other: numbers, colours, opposites, other kinds."""
    if may_mean_the_same(a, b) or a.pos != b.pos:
        return False
    if a.pos == "NUM":
        return True
    first, second = a.lemma.lower(), b.lemma.lower()
    if families(first, a.pos) & families(second, a.pos):
        return not may_coincide(first, second, a.pos)
    return any(
        other in sources(word, a.pos)
        for sources in (lexicon().antonyms, lexicon().cohyponyms)
        for word, other in ((first, second), (second, first))
    )


def _contradicts(change: WordDifference, gone: Iterable[Token], new: Iterable[Token]) -> bool:
    """Return whether a negation, a preposition or a new word rules out what was there."""
    links = {word for link in change.lost_links for word, _ in contradicting(link)}
    words = product(gone, new)
    return (
        change.negated
        or not links.isdisjoint(change.gained_links)
        or any(exclude_each_other(a, b) for a, b in words)
    )


def same_statement(caption: Caption, written: Caption) -> bool:
    """Return whether texts of the same words state the same things.

    Their scene graphs do, sides of symmetric relations in any order; or what the caption begins
    with and what comes after an "and" are exchanged ("a cup of tea and a pot" and its reverse).
    """
    if caption.graph is None or written.graph is None:
        return False
    if _statements(caption.graph) == _statements(written.graph):
        return True
    before, after = (
        ["a" if t.text.lower() == "an" else t.text.lower() for t in tokens if t.pos != "PUNCT"]
        for tokens in (caption.tokens, written.tokens)
    )
    return any(  # "X and Y S" against "Y and X S"
        [*before[place + 1 : end], "and", *before[:place], *before[end:]] == after
        for place, word in enumerate(before)
        if word == "and"
        for end in range(place + 2, len(before) + 1)
    )


def _statements(graph: SceneGraph) -> tuple[Counter[object], Counter[object]]:
    things = [(o.name, frozenset(a.name for a in o.attributes)) for o in graph.objects]
    relations: Counter[object] = Counter()
    for r in graph.relations:
        sides = things[r.subject], things[r.object]
        free = is_symmetric(r.name.split()) or is_symmetric(r.words.split())
        relations[(r.name, frozenset(sides) if free else sides)] += 1
    return Counter(things), relations


def conflicting_attributes(caption: Caption, sentence: Caption) -> bool:
    """Return whether the sentence gives a thing a property that excludes one of the caption's.

    Only things that either text names once; another property of a kind that the caption gives too
    ("a red and white cup") is no conflict.
    """
    qualities = _qualities(caption)
    return any(
        not any(may_mean_the_same(word, quality) for quality in qualities.get(name, ()))
        and any(exclude_each_other(word, quality) for quality in qualities.get(name, ()))
        for name, words in _qualities(sentence).items()
        for word in words
    )


def _qualities(caption: Caption) -> dict[str, list[Token]]:
    """The adjectives and numbers of every thing that is named once."""
    nodes = caption.graph.objects if caption.graph else ()
    names = Counter(node.name for node in nodes)
    starts = {t.start: t for t in caption.tokens if t.pos in ("ADJ", "NUM")}
    return {
        node.name: [starts[a.span.start] for a in node.attributes if a.span.start in starts]
        for node in nodes
        if names[node.name] == 1
    }


# --- What a text that a person or a language model wrote must be like. ---

#: A rewrite has at most so many times the words of its caption.
MOST_WORDS = 1.5
#: A paraphrase keeps at least this share of the content words, or has words that can mean the same.
LEAST_KEPT = 0.5
TOO_MANY_WORDS = "too-many-words"
#: Neither the same content words in another order, nor exactly one exchanged for another.
OTHER_WORDS = "not-one-content-word-changed"
#: The same words tied in another way: "a black cat and a white dog" of "a white cat and ...".
OTHER_STATEMENT = "states-other-things"
CONTRADICTS = "contradicts-the-caption"
KEEPS_MEANING = "keeps-the-meaning"
ONLY_ADDS, ONLY_DROPS = "only-adds-words", "only-drops-words"
LOSES_CONTENT = "loses-content"


def form_objection(caption: str, written: str) -> str | None:
    """Judge the form of a written positive or negative.

    It must contain words, have other CLIP tokens than the caption, fit into the context and have
    at most 1.5 times as many words.

    Args:
        caption: The caption.
        written: The written text.

    Returns:
        The reason to refuse it, or None.
    """
    if not written.strip():
        return EMPTY
    if same_to_clip(written, caption):
        return SAME_TOKENS
    if len(written.split()) > MOST_WORDS * len(caption.split()):
        return TOO_MANY_WORDS
    return None if fits_context(written) else TOO_LONG


def positive_objection(caption: Caption, written: Caption) -> str | None:
    """Judge whether a written positive keeps the meaning.

    Content words are nouns, verbs, adjectives, adverbs and numbers outside phrasal prepositions.
    Their multiset must be equal (words reordered, same statements), or differ in one word (a word
    replaced) that does not exclude the old one. Neither text may negate a claim of the other.

    Args:
        caption: The caption.
        written: The written text.

    Returns:
        The reason to refuse it, or None if it may keep the meaning.
    """
    change = difference(caption, written)
    if len(change.lost) != len(change.gained) or len(change.lost) > 1:
        return OTHER_WORDS
    if not change.lost and change.moved and not same_statement(caption, written):
        return OTHER_STATEMENT
    return CONTRADICTS if _contradicts(change, change.lost, change.gained) else None


def negative_objection(caption: Caption, written: Caption) -> str | None:
    """Judge whether a written negative has another meaning than the caption.

    It must negate a claim of the caption; or have a content word that excludes a replaced one
    ("crimson" does not exclude "red", nor does "small"); or a preposition that contradicts the
    replaced one; or the same words in an order with another meaning. Texts that only add or drop
    words are refused: both may be true.

    Args:
        caption: The caption.
        written: The written text.

    Returns:
        The reason why it may still be true of the image, or None.
    """

    def both_hold(old: Token, new: Token) -> bool:
        """Return whether one thing can be both: of one meaning, or adjectives of two kinds."""
        if may_mean_the_same(old, new):
            return True
        mine, theirs = (families(t.lemma, "ADJ") if t.pos == "ADJ" else () for t in (old, new))
        return bool(mine and theirs) and set(mine).isdisjoint(theirs)

    change = difference(caption, written)
    if change.negated:
        return None
    if change.lost or change.gained:
        if not change.gained:
            return ONLY_DROPS
        if not change.lost:
            return ONLY_ADDS
        foreign = (not any(both_hold(old, new) for old in change.lost) for new in change.gained)
        return None if any(foreign) else KEEPS_MEANING
    agree = all(  # each preposition that came can describe the scene of one that went
        any(new == old or new in preposition_synonyms(old) for old in change.lost_links)
        for new in change.gained_links
    )
    if change.lost_links and not agree:
        return None
    keeps = not change.moved or same_statement(caption, written)
    return KEEPS_MEANING if keeps else None


def paraphrase_objection(caption: Caption, written: Caption) -> str | None:
    """Judge whether a paraphrase has the same meaning.

    Half of the content words must be in both or be possible synonyms; no word may exclude a removed
    one, and no claim may be negated.

    Args:
        caption: The caption.
        written: The paraphrase.

    Returns:
        The reason to refuse it, or None if it may have the same meaning.
    """
    change = difference(caption, written)
    gone = [old for old in change.lost if not any(may_mean_the_same(old, n) for n in change.gained)]
    new = [new for new in change.gained if not any(may_mean_the_same(o, new) for o in change.lost)]
    if _contradicts(change, gone, new) or conflicting_attributes(caption, written):
        return CONTRADICTS
    total = len(content_words(read(caption)))
    return None if total - len(gone) >= LEAST_KEPT * total else LOSES_CONTENT
