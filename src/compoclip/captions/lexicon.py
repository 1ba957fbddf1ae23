"""Lexical relations from Princeton WordNet 3.0: related words, antonyms, co-hyponyms.

`related` looks at every sense of a word, because it guards against rewrites that keep (or may keep)
the meaning. `antonyms` and `cohyponyms` propose replacements and look at the dominant senses only,
so that "cat" yields animals and not gossips.

Dominance: a sense's usage count plus one, four times that for senses a picture can show, since
WordNet's counts come from news and fiction where a "table" is as often one of figures. The best
sense counts, and the second when it reaches half of the best. A proposed word must mean the
proposal in a dominant sense of its own ("head" is no sort of animal), and must be familiar: met in
the tagged texts or twice in WordNet's definitions (rare words come only where hardly a familiar one
is found). A few kinds that WordNet does not know come from `data/lexicon.txt`.

WordNet groups adjectives around heads ("large": huge, enormous, ...). Satellites of a head of
degree are near-synonyms of each other and no good replacements; satellites of a head of kind (the
colours under "chromatic", the patterns under "patterned") exclude each other and are. Three more
sources of contrast: the cluster of the opposite head, adjectives that are values
of the same attribute noun (hot, cold: temperature), and the way over nouns: red -> (the colour)
red -> its co-hyponyms blue, green -> the adjectives blue, green; wooden -> wood -> rubber.

data/README.md describes the file.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from compoclip.captions.lists import word_lists
from compoclip.errors import CompoclipError
from compoclip.files import reason

MAGIC, FORMAT = "compoclip-lexicon", 2
_LISTS = word_lists(__file__, "lexicon")
_LETTERS = {"NOUN": "n", "PROPN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
# WordNet's lexicographer files of qualities (attribute, substance), and of what a picture can show:
# animals, things, people, food, plants, places, substances, shapes; deeds of body and motion.
_QUALITIES = frozenset({7, 27})
_VISIBLE = frozenset({5, 6, 7, 8, 13, 15, 17, 18, 20, 25, 27, 29, 34, 35, 38})
_VISIBLE_WEIGHT = 4
_FAMILIAR_USES = 2
_ENOUGH_FAMILIAR = 5
#: How many levels above a word are a kind of it, and how many up and down its co-hyponyms are.
_LEVELS, _AROUND = 3, 2
_cached = lru_cache(maxsize=1 << 17)


class WordPointer(NamedTuple):
    """A pointer between two words: own word number -> word number `target_word` of `synset`."""

    symbol: str
    word: int
    synset: int
    target_word: int


@dataclass(frozen=True, slots=True)
class Synset:
    """A set of words with one meaning, and what it points to (synset numbers)."""

    kind: str
    lexfile: int
    lemmas: tuple[str, ...]
    hypernyms: tuple[int, ...]
    heads: tuple[int, ...]
    attributes: tuple[int, ...]
    words: tuple[WordPointer, ...]

    def pointers(self, symbol: str, lemma: str = "") -> Iterator[WordPointer]:
        """The pointers between words with a symbol: of one lemma (lower case), or of all."""
        for pointer in self.words:
            if pointer.symbol == symbol and lemma in ("", self.lemmas[pointer.word].lower()):
                yield pointer


class Lexicon:
    """Lexical relations between words, from Princeton WordNet 3.0 (see the module docstring).

    Parts of speech are NOUN (or PROPN), VERB, ADJ and ADV. Lemmas are lower case, words of a phrase
    separated by blanks. An unknown lemma or another part of speech is no error: the answers are
    empty.

    Args:
        path: A word-sense file; `lexicon()` has the shipped one.

    Raises:
        CompoclipError: When it is missing, damaged or of another format.
    """

    def __init__(self, path: Path) -> None:
        try:
            header, *lines = lzma.decompress(path.read_bytes()).decode("utf-8").split("\n")
            magic, version, synsets, entries, self._source = header.split("\t")
            size, word_count = int(synsets), int(entries)
            self._lemmas, self._pointers = lines[:size], lines[size : 2 * size]
            self._orders = lines[2 * size : 2 * size + word_count]
            self._uses = lines[2 * size + word_count : 2 * (size + word_count)]
            self._kinds: list[tuple[str, int]] = []
            self._entries: dict[str, dict[str, int]] = {letter: {} for letter in "nvar"}
            self._synsets_of: list[int] = []  # the first synset of each entry,
            self._further: dict[int, list[int]] = {}  # and those behind it
            for run in lines[2 * (size + word_count) : -1]:
                self._read_run(*run.split(" "))
            actual = magic, version, lines[-1], len(self._kinds), len(self._synsets_of)
            if actual != (MAGIC, str(FORMAT), "", size, word_count):
                raise ValueError(f"expected {size} synsets and {word_count} words")
        except (OSError, lzma.LZMAError, EOFError, ValueError, TypeError, LookupError) as error:
            raise CompoclipError(
                f"{path}: not a usable word-sense file ({reason(error)}); "
                "reinstall compoclip or rebuild it with scripts/build_lexicon.py"
            ) from error

    def _read_run(self, kind: str, lexfile: str, length: str) -> None:
        """Note the entries that the next synsets, all of one kind, name."""
        firsts, start = self._synsets_of, len(self._kinds)
        entry_of = self._entries["a" if kind == "s" else kind].setdefault
        self._kinds += repeat((kind, int(lexfile)), int(length))
        for number in range(start, len(self._kinds)):
            words = self._lemmas[number].lower()
            for word in words.split("|") if words else ():
                entry = entry_of(word, len(firsts))
                if entry == len(firsts):
                    firsts.append(number)
                elif firsts[entry] != number:
                    self._further.setdefault(entry, []).append(number)

    @property
    def name(self) -> str:
        """Return source and size, for provenance records."""
        return f"{self._source} ({len(self._synsets_of)} entries)"

    # synsets

    def __len__(self) -> int:
        """The number of synsets."""
        return len(self._kinds)

    @_cached
    def synset(self, number: int) -> Synset:
        """Return synset `number`."""
        plain: dict[str, list[int]] = {"@": [], "&": [], "=": []}
        words: list[WordPointer] = []
        for pointer in self._pointers[number].split():
            if pointer[0] in plain:
                plain[pointer[0]].append(int(pointer[1:]))
            else:
                words.append(WordPointer(pointer[0], *map(int, pointer[1:].split("."))))
        lemmas = self._lemmas[number]
        said = tuple(lemmas.split("|")) if lemmas else ()
        up, heads, attributes = map(tuple, plain.values())
        return Synset(*self._kinds[number], said, up, heads, attributes, tuple(words))

    def below(self, number: int) -> Sequence[int]:
        """Return the synsets that point to this one: hyponyms, or the satellites of a head."""
        return self._below.get(number, ())

    @cached_property
    def _below(self) -> dict[int, list[int]]:
        hyponyms: dict[int, list[int]] = {}
        for number, pointers in enumerate(self._pointers):
            for pointer in pointers.split(" "):
                if pointer[:1] in ("@", "&"):
                    hyponyms.setdefault(int(pointer[1:]), []).append(number)
        return hyponyms

    def _entry(self, lemma: str, pos: str) -> int:
        return self._entries.get(_LETTERS.get(pos, ""), {}).get(_normal(lemma), -1)

    @_cached
    def _senses(self, lemma: str, pos: str) -> tuple[tuple[int, int], ...]:
        """(synset number, usage count) of every sense of a lemma, in WordNet's order."""
        entry = self._entry(lemma, pos)
        if entry < 0:
            return ()
        synsets = [self._synsets_of[entry], *self._further.get(entry, ())]
        pairs = (item.partition(":") for item in self._orders[entry].split())
        counted = tuple((synsets[int(at)], int(count or 0)) for at, _, count in pairs)
        return counted or tuple((number, 0) for number in synsets)

    def _above(self, synsets: Iterable[int]) -> set[int]:
        """The synsets and all those up to three levels above them."""
        reached = set(synsets)
        level = set(reached)
        for _ in range(_LEVELS):
            above = map(self.synset, level)
            level = {n for synset in above for n in (*synset.hypernyms, *synset.heads)} - reached
            reached |= level
        return reached

    @_cached
    def _closure(self, lemma: str, pos: str) -> tuple[frozenset[int], frozenset[int]]:
        """The synsets of a lemma; these with the ones above them."""
        synsets = frozenset(number for number, _ in self._senses(lemma, pos))
        return synsets, frozenset(self._above(synsets))

    @_cached
    def _ranked(self, lemma: str, pos: str) -> tuple[tuple[int, int, int], ...]:
        """(score, usage count, synset) of every sense, best first, else in WordNet's order."""
        scored = []
        for number, count in self._senses(lemma, pos):
            visible = self._kinds[number][1] in _VISIBLE
            scored.append(((count + 1) * (_VISIBLE_WEIGHT if visible else 1), count, number))
        return tuple(sorted(scored, key=lambda item: -item[0]))

    def dominant(self, lemma: str, pos: str) -> tuple[int, ...]:
        """Return the one or two likeliest synsets of the lemma in a caption (module docstring)."""
        ranked = self._ranked(lemma, pos)
        second = [n for score, count, n in ranked[1:2] if count and 2 * score >= ranked[0][0]]
        return (*(number for *_, number in ranked[:1]), *second)

    def fields(self, lemma: str, pos: str) -> frozenset[int]:
        """Return WordNet's files of the dominant senses: 18 for people, 8 for body parts."""
        return frozenset(self._kinds[number][1] for number in self.dominant(lemma, pos))

    # words

    def contains(self, lemma: str, pos: str) -> bool:
        """Return whether the lexicon has the lemma with this part of speech."""
        return self._entry(lemma, pos) >= 0

    def count(self, lemma: str, pos: str) -> int:
        """Return the count of the lemma, over its senses, in WordNet's sense-tagged texts."""
        return sum(count for _, count in self._senses(lemma, pos))

    def familiar(self, lemma: str, pos: str) -> bool:
        """Return whether the lemma occurs in tagged texts, or twice in WordNet's definitions."""
        entry = self._entry(lemma, pos)
        if entry < 0 or self.count(lemma, pos) > 0:
            return entry >= 0
        return int(self._uses[entry]) >= _FAMILIAR_USES

    def antonyms(self, lemma: str, pos: str) -> tuple[str, ...]:
        """Return opposites, direct ones first, each once.

        For adjectives the antonyms of the head that a dominant sense is similar to come next
        ("huge" -> "small"); lemmas related to the word in another sense are left out.
        """
        low = _normal(lemma)
        senses = (self.synset(number) for number, _ in self._senses(lemma, pos))
        direct = [self._target(pointer) for sense in senses for pointer in sense.pointers("!", low)]
        opposites = list(direct)
        if pos == "ADJ":
            opposites += [
                self._target(pointer)
                for number in self.dominant(lemma, pos)
                for head in self.synset(number).heads
                for pointer in self.synset(head).pointers("!")
                if not self._is_kind(head) or not self._is_kind(pointer.synset)
            ]
        unique = dict.fromkeys(word for word in opposites if word != low)
        return tuple(w for w in unique if w in direct or not self.related(lemma, w, pos))

    def _target(self, pointer: WordPointer) -> str:
        return self.synset(pointer.synset).lemmas[pointer.target_word].lower()

    def related(self, a: str, b: str, pos: str) -> bool:
        """Return whether exchanging two words may keep the meaning (docs/decisions.md, rule 5).

        They may when they are the same lemma, share a synset, or one is up to three levels above
        the other, in any sense. Adjectives also when both are satellites of one head of degree
        ("huge", "enormous") or when their nouns are related so ("azure", "blue").
        """
        if _normal(a) == _normal(b):
            return True
        (mine, above_mine), (theirs, above_theirs) = self._closure(a, pos), self._closure(b, pos)
        if above_mine & theirs or above_theirs & mine:
            return True
        if pos != "ADJ":
            return False
        if self._degree_heads(a) & self._degree_heads(b):
            return True
        mine, theirs = self._quality_nouns(a), self._quality_nouns(b)
        return bool(self._above(mine) & theirs or self._above(theirs) & mine)

    @_cached
    def cohyponyms(self, lemma: str, pos: str) -> tuple[str, ...]:
        """Return words of the same kind but another meaning, in alphabetical order.

        Nouns and verbs: from the dominant senses up one or two levels, then down at most as many.
        Adjectives and adverbs: by sources of their own. Lemmas `related` to the word, proper names
        and the words of its hypernyms are left out.
        """
        lemma = _normal(lemma)
        words: set[str] = set()
        if pos in ("NOUN", "PROPN", "VERB"):
            words = self._siblings(lemma, pos)
        elif pos == "ADJ":
            words = self._contrasting_adjectives(lemma)
        elif pos == "ADV":
            words = self._contrasting_adverbs(lemma)
        for group in _LISTS.groups(pos) if pos in ("ADJ", "VERB") else ():
            words |= set(group) - {lemma} if lemma in group else set()
        unrelated = sorted(word for word in words if not self.related(lemma, word, pos))
        familiar = [word for word in unrelated if self.familiar(word, pos)]
        return tuple(familiar if len(familiar) >= _ENOUGH_FAMILIAR else unrelated)

    def _siblings(self, lemma: str, pos: str) -> set[str]:
        """Words around the dominant senses; when there are none, around the next sense that has."""
        dominant = self.dominant(lemma, pos)
        others = self._ranked(lemma, pos)[len(dominant) :]
        for synsets in (dominant, *((number,) for _, _, number in others)):
            reached = self._around(synsets)
            words = {
                word
                for number in reached
                for word in self.synset(number).lemmas
                if word == word.lower()  # no proper name
                and not reached.isdisjoint(self.dominant(word, pos))
                and not self.related(lemma, word, pos)
            }
            if words:
                return words
        return set()

    def _around(self, synsets: Iterable[int]) -> set[int]:
        """Synsets reached by going up one or two levels and then down at most as many."""
        reached: set[int] = set()
        level = set(synsets)
        for distance in range(1, _AROUND + 1):
            above = {h for number in level for h in self.synset(number).hypernyms}
            level = {h for h in above if _LISTS["general"].isdisjoint(self.synset(h).lemmas[:1])}
            below = level
            for _ in range(distance):
                below = {h for number in below for h in self.below(number)}
                reached |= below
        return reached

    # adjectives and adverbs

    def _is_kind(self, head: int) -> bool:
        return not _LISTS["kind heads"].isdisjoint(self.synset(head).lemmas[:1])

    def _heads(self, lemma: str) -> set[int]:
        """The heads of an adjective in its dominant senses: itself, or those of a satellite."""
        synsets = ((number, self.synset(number)) for number in self.dominant(lemma, "ADJ"))
        return {h for n, synset in synsets for h in ((n,) if synset.kind == "a" else synset.heads)}

    @_cached
    def _degree_heads(self, lemma: str) -> frozenset[int]:
        """The heads of an adjective whose satellites are near-synonyms."""
        return frozenset(head for head in self._heads(lemma) if not self._is_kind(head))

    @_cached
    def _quality_nouns(self, lemma: str) -> frozenset[int]:
        """Noun synsets that name the quality: derived nouns, the word as a noun, wooden -> wood."""
        low = lemma.lower()
        senses = map(self.synset, self.dominant(lemma, "ADJ"))
        nouns = {pointer.synset for sense in senses for pointer in sense.pointers("+", low)}
        for name in (low, low[:-2], low[:-1]) if low.endswith("en") else (low,):
            nouns.update(number for number, _ in self._senses(name, "NOUN")[:2])
        return frozenset(n for n in nouns if self._kinds[n][1] in _QUALITIES)

    def _contrasting_adjectives(self, lemma: str) -> set[str]:
        """Adjectives of the same kind and another meaning, see the module docstring."""
        synsets: set[int] = set()
        for head in self._heads(lemma):
            if self._is_kind(head):
                synsets.update(self.below(head))
            for opposite in (pointer.synset for pointer in self.synset(head).pointers("!")):
                synsets.update(self.below(opposite), self.synset(opposite).heads)
                if not self._is_kind(opposite):
                    synsets.add(opposite)
            for noun in self.synset(head).attributes:
                synsets.update(self.synset(noun).attributes)
        words = {word for number in synsets for word in self.synset(number).lemmas}
        words = {word for word in words if not synsets.isdisjoint(self.dominant(word, "ADJ"))}
        nouns = self._around(self._quality_nouns(lemma))
        over_nouns: set[str] = set()  # derived adjectives, the noun as one, wood -> wooden
        for synset in map(self.synset, nouns):
            for pointer in synset.pointers("+"):
                if self._kinds[pointer.synset][0] in "as":
                    over_nouns.add(self.synset(pointer.synset).lemmas[pointer.target_word])
            forms = [form + end for form in synset.lemmas for end in ("", "en", "n")]
            over_nouns.update(form for form in forms if self.contains(form, "ADJ"))
        words |= {w for w in over_nouns if not nouns.isdisjoint(self._quality_nouns(w))}
        return {word for word in words if word == word.lower()}

    def _contrasting_adverbs(self, lemma: str) -> set[str]:
        """Antonyms, and the adverbs of adjectives that contrast: quick -> quickly."""
        words = set(self.antonyms(lemma, "ADV"))
        for number in self.dominant(lemma, "ADV"):
            for base in map(self._target, self.synset(number).pointers("\\")):
                for other in self.cohyponyms(base, "ADJ"):
                    form = other + "ly"
                    if other.endswith(("y", "le")):  # happy, gentle
                        form = f"{other[:-1]}ily" if other.endswith("y") else f"{other[:-1]}y"
                    words.update(w for w in (form, other) if self.contains(w, "ADV"))
        return words


def _normal(lemma: str) -> str:
    return lemma.lower().replace("_", " ")


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """The shipped lexicon, read once. Raises CompoclipError if unusable."""
    return Lexicon(Path(__file__).with_name("data") / "lexicon.xz")
