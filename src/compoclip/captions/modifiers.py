"""Contrasts between adjectives and between adverbs, which WordNet does not keep in a hierarchy.

WordNet groups adjectives around heads ("large": huge, enormous, ...). Satellites of a head of
degree are near-synonyms of each other and no good replacements; satellites of a head of kind (the
colours under "chromatic", the patterns under "patterned") exclude each other and are. Three more
sources of contrast (METHODS 17.3): the cluster of the opposite head, adjectives that are values of
the same attribute noun (hot, cold: temperature), and the way over nouns: red -> (the colour) red ->
its co-hyponyms blue, green -> the adjectives blue, green; wooden -> wood -> rubber.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from compoclip.captions.wordnet_file import SenseTable

#: First lemmas of the heads whose satellites exclude one another.
KIND_HEADS = frozenset({"chromatic", "achromatic", "colored", "patterned", "cooked", "clothed"})
#: Lexicographer files of nouns that name what an adjective says: attribute, substance.
QUALITY_LEXFILES = frozenset({7, 27})


class Neighbourhood(Protocol):
    """What is needed of the lexicon here."""

    def around(self, synsets: Iterable[int], up: int, down: int) -> set[int]: ...

    def dominant(self, lemma: str, pos: str) -> tuple[int, ...]: ...

    def antonyms(self, lemma: str, pos: str) -> tuple[str, ...]: ...

    def cohyponyms(self, lemma: str, pos: str, up: int, down: int) -> tuple[str, ...]: ...


def heads(table: SenseTable, synsets: Iterable[int]) -> Iterator[int]:
    """The head of each adjective synset: itself, or those a satellite is similar to."""
    for number in synsets:
        synset = table.synset(number)
        if synset.kind == "a":
            yield number
        elif synset.kind == "s":
            yield from synset.similar


def degree_heads(table: SenseTable, synsets: Iterable[int]) -> frozenset[int]:
    """The heads of these synsets whose satellites are near-synonyms."""
    return frozenset(n for n in heads(table, synsets) if not _is_kind(table, n))


def head_antonyms(table: SenseTable, synsets: Iterable[int]) -> list[str]:
    """Words opposite to the heads that these satellites are similar to."""
    found = []
    for number in synsets:
        if table.synset(number).kind == "s":
            for head in table.synset(number).similar:
                for target, word in _opposites(table, head):
                    if not _is_kind(table, head) or not _is_kind(table, target):
                        found.append(table.synset(target).lemmas[word].lower())
    return found


def quality_nouns(table: SenseTable, lemma: str, synsets: Iterable[int]) -> set[int]:
    """Noun synsets that name the quality: derived nouns, the word as a noun, wooden -> wood."""
    lemma = lemma.lower()
    found: set[int] = set()
    for number in synsets:
        synset = table.synset(number)
        found |= {
            p.synset
            for p in synset.words
            if p.symbol == "+" and synset.lemmas[p.word].lower() == lemma
        }
    names = [lemma]
    if lemma.endswith("en"):
        names += [lemma[:-2], lemma[:-1]]
    for name in names:
        senses = table.senses("n", name)
        found |= {n for n, _ in senses[:2] if table.synset(n).lexfile in QUALITY_LEXFILES}
    return {n for n in found if table.synset(n).lexfile in QUALITY_LEXFILES}


def contrasting_adjectives(
    near: Neighbourhood, table: SenseTable, lemma: str, up: int, down: int
) -> set[str]:
    """Adjectives of the same kind and another meaning, see the module docstring."""
    dominant = near.dominant(lemma, "ADJ")
    found: set[int] = set()
    for head in set(heads(table, dominant)):
        if _is_kind(table, head):
            found |= set(table.synset(head).similar)
        for opposite, _ in _opposites(table, head):
            found |= set(table.synset(opposite).similar)
            if not _is_kind(table, opposite):
                found.add(opposite)
        for noun in table.synset(head).attributes:
            found |= set(table.synset(noun).attributes)
    words = {word for number in found for word in table.synset(number).lemmas}
    words = {word for word in words if not found.isdisjoint(near.dominant(word, "ADJ"))}
    nouns = near.around(quality_nouns(table, lemma, dominant), up, down)
    for word in {word for number in nouns for word in _adjectives_of(table, number)}:
        if not nouns.isdisjoint(quality_nouns(table, word, near.dominant(word, "ADJ"))):
            words.add(word)
    return {word for word in words if word == word.lower()}


def contrasting_adverbs(
    near: Neighbourhood, table: SenseTable, lemma: str, up: int, down: int
) -> set[str]:
    """Antonyms, and adverbs made from the adjectives that contrast with this adverb's adjective."""
    words = set(near.antonyms(lemma, "ADV"))
    bases = {
        table.synset(p.synset).lemmas[p.target_word].lower()
        for number in near.dominant(lemma, "ADV")
        for p in table.synset(number).words
        if p.symbol == "\\"
    }
    for base in bases:
        for other in near.cohyponyms(base, "ADJ", up, down):
            words |= {w for w in adverb_forms(other) if table.senses("r", w)}
    return words


def adverb_forms(adjective: str) -> tuple[str, ...]:
    """How an adverb of this adjective may be spelt: quick -> quickly, happy -> happily."""
    if adjective.endswith("y"):
        return (adjective[:-1] + "ily", adjective)
    if adjective.endswith("le"):
        return (adjective[:-1] + "y", adjective)
    return (adjective + "ly", adjective)


def _is_kind(table: SenseTable, head: int) -> bool:
    lemmas = table.synset(head).lemmas
    return bool(lemmas) and lemmas[0] in KIND_HEADS


def _opposites(table: SenseTable, head: int) -> list[tuple[int, int]]:
    return [(p.synset, p.target_word) for p in table.synset(head).words if p.symbol == "!"]


def _adjectives_of(table: SenseTable, noun: int) -> Iterator[str]:
    """Adjectives for a noun synset: derived ones, the same word as an adjective, wood -> wooden."""
    synset = table.synset(noun)
    for pointer in synset.words:
        target = table.synset(pointer.synset)
        if pointer.symbol == "+" and target.kind in "as":
            yield target.lemmas[pointer.target_word]
    for lemma in synset.lemmas:
        for form in (lemma, lemma + "en", lemma + "n"):
            if form == form.lower() and table.senses("a", form):
                yield form
