"""Lexical relations from Princeton WordNet 3.0: synonyms, antonyms, hypernyms, co-hyponyms.

`synonyms`, `hypernyms`, `hyponyms` and `related` look at every sense of a word, because they guard
against rewrites that keep (or may keep) the meaning. `antonyms` and `cohyponyms` propose
replacements and look at the dominant senses only, so that "cat" yields animals and not gossips.

Dominance: a sense's usage count plus one, four times that for senses a picture can show (animals,
things, people, food, plants, places, substances, shapes, colours; deeds of body and motion), since
WordNet's counts come from news and fiction where a "table" is as often one of figures. The best
sense counts, and the second when it reaches half of the best. A proposed word must mean the
proposal in a dominant sense of its own ("head" is no sort of animal), and must be familiar: met in
the tagged texts or twice in WordNet's definitions (rare words come only where hardly a familiar one
is found). A few kinds that WordNet does not know come from `data/lexicon.txt`.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from compoclip.captions.lists import word_lists
from compoclip.errors import CompoclipError

# --- The shipped word-sense file: an xz-compressed text table, read fast and parsed lazily. ---
#
# Layout (UTF-8, one record a line):
#
# - line 1: ``compoclip-lexicon<TAB>format<TAB>number of synsets<TAB>number of entries<TAB>source``
# - one line for each synset, its number being its position:
#   ``type<TAB>lexicographer file<TAB>lemma|lemma|...<TAB>pointer pointer ...``
#   with type n, v, a (adjective), s (satellite adjective) or r (adverb)
# - one line for each entry: ``pos<TAB>lemma<TAB>uses synset:count synset:count ...`` in sense
# order,
#   `uses` being how often the word occurs in WordNet's own definitions and examples.
#
# Pointers keep WordNet's symbols: ``@12`` hypernym, ``~12`` hyponym, ``&12`` similar to, ``=12``
# attribute, ``$12`` verb group; between words (own word number, synset, word number): ``!0.12.1``
# antonym, ``+0.12.0`` derivationally related, ``\0.12.0`` pertainym.

MAGIC = "compoclip-lexicon"
FORMAT = 1
#: WordNet's letter for each part of speech of an entry.
_KINDS = word_lists(__file__, "lexicon")
POS_LETTERS = {"NOUN": "n", "PROPN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}


@dataclass(frozen=True, slots=True)
class WordPointer:
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
    hypernyms: tuple[int, ...] = ()
    hyponyms: tuple[int, ...] = ()
    similar: tuple[int, ...] = ()
    attributes: tuple[int, ...] = ()
    words: tuple[WordPointer, ...] = ()


@dataclass(frozen=True, slots=True)
class SenseTable:
    """The whole file: synset lines (parsed when asked for) and entries by (letter, lemma)."""

    path: Path
    source: str
    synset_lines: list[str]
    entry_lines: dict[str, str]
    _parsed: dict[int, Synset] = field(default_factory=dict, repr=False)

    def synset(self, number: int) -> Synset:
        """Synset `number`; raises CompoclipError when its line is malformed."""
        found = self._parsed.get(number)
        if found is None:
            try:
                found = parse_synset(self.synset_lines[number])
            except (ValueError, IndexError) as error:
                raise _malformed(self.path, f"synset {number}") from error
            self._parsed[number] = found
        return found

    def senses(self, letter: str, lemma: str) -> tuple[tuple[int, int], ...]:
        """(synset number, usage count) of every sense of a lemma, in WordNet's order."""
        line = self.entry_lines.get(f"{letter}\t{lemma}")
        if line is None:
            return ()
        try:
            pairs = [item.split(":") for item in line.split(" ")[1:]]
            return tuple((int(number), int(count)) for number, count in pairs)
        except ValueError as error:
            raise _malformed(self.path, f"the entry of {lemma!r}") from error

    def uses(self, letter: str, lemma: str) -> int:
        """How often the lemma occurs in WordNet's definitions and examples."""
        line = self.entry_lines.get(f"{letter}\t{lemma}", "0")
        try:
            return int(line.partition(" ")[0])
        except ValueError as error:
            raise _malformed(self.path, f"the entry of {lemma!r}") from error

    def linked_words(self, symbol: str, lemma: str, synsets: Iterable[int]) -> list[str]:
        """Words that the word pointers `symbol` of `lemma` in these synsets lead to."""
        found = []
        for number in synsets:
            synset = self.synset(number)
            for pointer in synset.words:
                if pointer.symbol == symbol and synset.lemmas[pointer.word].lower() == lemma:
                    target = self.synset(pointer.synset)
                    found.append(target.lemmas[pointer.target_word].lower())
        return found


def parse_synset(line: str) -> Synset:
    """One synset line as a Synset; raises ValueError or IndexError when malformed."""
    kind, lexfile, lemmas, pointers = line.split("\t")
    plain: dict[str, list[int]] = {"@": [], "~": [], "&": [], "=": [], "$": []}
    words: list[WordPointer] = []
    for pointer in pointers.split(" ") if pointers else []:
        symbol = pointer[0]
        if symbol in plain:
            plain[symbol].append(int(pointer[1:]))
        else:
            word, synset, target = pointer[1:].split(".")
            words.append(WordPointer(symbol, int(word), int(synset), int(target)))
    return Synset(
        kind,
        int(lexfile),
        tuple(lemmas.split("|")) if lemmas else (),
        tuple(plain["@"]),
        tuple(plain["~"]),
        tuple(plain["&"]),
        tuple(plain["="]),
        tuple(words),
    )


def read_sense_table(path: Path) -> SenseTable:
    """Read a word-sense file.

    Raises CompoclipError when it is missing, not xz, cut short or of another format.
    """
    try:
        text = lzma.decompress(path.read_bytes()).decode("utf-8")
    except OSError as error:
        raise CompoclipError(
            f"{path}: cannot read the word-sense file ({error.strerror}); reinstall compoclip"
        ) from error
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise _malformed(path, "its compression") from error
    header, _, body = text.partition("\n")
    fields = header.split("\t")
    if len(fields) != 5 or fields[0] != MAGIC or fields[1] != str(FORMAT):
        raise _malformed(path, "its first line")
    try:
        synsets, entries = int(fields[2]), int(fields[3])
    except ValueError as error:
        raise _malformed(path, "its first line") from error
    lines = body.split("\n")
    if lines.pop() != "" or len(lines) != synsets + entries:
        raise _malformed(path, f"its length (expected {synsets + entries} records)")
    table: dict[str, str] = {}
    for line in lines[synsets:]:
        key, _, senses = line.rpartition("\t")
        table[key] = senses
    return SenseTable(path, fields[4], lines[:synsets], table)


def _malformed(path: Path, what: str) -> CompoclipError:
    return CompoclipError(
        f"{path}: not a usable word-sense file ({what} is wrong); "
        "reinstall compoclip or rebuild it with scripts/build_lexicon.py"
    )


# --- Contrasts between adjectives and between adverbs, which WordNet does not keep in a
# hierarchy. ---
#
# WordNet groups adjectives around heads ("large": huge, enormous, ...). Satellites of a head of
# degree are near-synonyms of each other and no good replacements; satellites of a head of kind (the
# colours under "chromatic", the patterns under "patterned") exclude each other and are. Three more
# sources of contrast: the cluster of the opposite head, adjectives that are values
# of the same attribute noun (hot, cold: temperature), and the way over nouns: red -> (the colour)
# red -> its co-hyponyms blue, green -> the adjectives blue, green; wooden -> wood -> rubber.

#: First lemmas of the heads whose satellites exclude one another.
KIND_HEADS = _KINDS.words("kind heads")
#: Lexicographer files of nouns that name what an adjective says: attribute, substance.
QUALITY_LEXFILES = frozenset({7, 27})


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
    near: Lexicon, table: SenseTable, lemma: str, up: int, down: int
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
    near: Lexicon, table: SenseTable, lemma: str, up: int, down: int
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


# --- What words mean to one another: synonyms, opposites, co-hyponyms, from Princeton WordNet
# 3.0. ---

#: Lexicographer files of WordNet whose words a picture can show, see the module docstring.
VISIBLE_LEXFILES = frozenset({5, 6, 7, 8, 13, 15, 17, 18, 20, 25, 27, 29, 34, 35, 38})
VISIBLE_WEIGHT = 4
SECOND_SENSE_SHARE = 2
FAMILIAR_USES = 2
ENOUGH_FAMILIAR = 5
#: First lemmas of synsets too general for their descendants to be of one kind.
GENERAL = _KINDS.words("general")


class Lexicon:
    """Lexical relations between words, from Princeton WordNet 3.0 (see the module docstring).

    Parts of speech are NOUN (or PROPN), VERB, ADJ and ADV. Lemmas are lower case, words of a phrase
    separated by blanks. An unknown lemma or another part of speech is no error: the answers are
    empty.

    Args:
        table: The sense table; `lexicon()` has the shipped one.
    """

    def __init__(self, table: SenseTable) -> None:
        self._table = table
        self._closures: dict[tuple[str, str, int, bool], frozenset[int]] = {}
        self._kin: dict[str, frozenset[int]] = {}
        self._cohyponyms: dict[tuple[str, str, int, int], tuple[str, ...]] = {}
        self._dominants: dict[tuple[str, str], tuple[int, ...]] = {}

    @property
    def name(self) -> str:
        """Source and size, for provenance records."""
        return f"{self._table.source} ({len(self._table.entry_lines)} entries)"

    def known(self, lemma: str, pos: str) -> bool:
        """Whether the lexicon has the lemma with this part of speech."""
        return bool(self._senses(lemma, pos))

    def count(self, lemma: str, pos: str) -> int:
        """How often the lemma was met, over its senses, in WordNet's sense-tagged texts."""
        return sum(count for _, count in self._senses(lemma, pos))

    def synonyms(self, lemma: str, pos: str) -> frozenset[str]:
        """All other lemmas that share a synset with `lemma`, whatever the sense."""
        words = self._words(number for number, _ in self._senses(lemma, pos))
        return frozenset(words) - {_normal(lemma)}

    def hypernyms(self, lemma: str, pos: str, levels: int = 3) -> frozenset[str]:
        """Lemmas up to `levels` above any sense; for adjectives the heads they are similar to."""
        above = self._closure(lemma, pos, levels, upward=True) - self._synsets(lemma, pos)
        return frozenset(self._words(above)) - {_normal(lemma)}

    def hyponyms(self, lemma: str, pos: str, levels: int = 3) -> frozenset[str]:
        """Lemmas up to `levels` below any sense; for adjectives the satellites of a head."""
        below = self._closure(lemma, pos, levels, upward=False) - self._synsets(lemma, pos)
        return frozenset(self._words(below)) - {_normal(lemma)}

    def antonyms(self, lemma: str, pos: str) -> tuple[str, ...]:
        """Opposites, direct ones first, each once.

        For adjectives the antonyms of the head that a dominant sense is similar to come next
        ("huge" -> "small"); lemmas related to the word in another sense are left out.
        """
        senses = [number for number, _ in self._senses(lemma, pos)]
        direct = self._table.linked_words("!", _normal(lemma), senses)
        found = list(direct)
        if pos == "ADJ":
            found += head_antonyms(self._table, self.dominant(lemma, pos))
        unique = dict.fromkeys(word for word in found if word != _normal(lemma))
        return tuple(w for w in unique if w in direct or not self.related(lemma, w, pos))

    def cohyponyms(self, lemma: str, pos: str, up: int = 2, down: int = 2) -> tuple[str, ...]:
        """Words of the same kind but another meaning.

        Nouns and verbs: from the dominant senses up to each ancestor at distance k <= `up`, then
        down at most min(k, `down`). Adjectives and adverbs: by sources of their own. Lemmas
        `related` to the word, proper names and the words of its hypernyms are left out.

        Args:
            lemma: A word or phrase.
            pos: Its part of speech.
            up: Levels to go up.
            down: Levels to go down.

        Returns:
            The words in alphabetical order.
        """
        key = (_normal(lemma), pos, up, down)
        found = self._cohyponyms.get(key)
        if found is None:
            if pos in ("NOUN", "PROPN", "VERB"):
                words = self._siblings(lemma, pos, up, down)
            elif pos == "ADJ":
                words = contrasting_adjectives(self, self._table, lemma, up, down)
            elif pos == "ADV":
                words = contrasting_adverbs(self, self._table, lemma, up, down)
            else:
                words = set()
            words |= _same_kind(key[0], pos)
            kept = sorted(word for word in words if not self.related(key[0], word, pos))
            familiar = [word for word in kept if self.familiar(word, pos)]
            found = tuple(familiar if len(familiar) >= ENOUGH_FAMILIAR else kept)
            self._cohyponyms[key] = found
        return found

    def familiar(self, lemma: str, pos: str) -> bool:
        """Whether the lemma was met in tagged texts, or at least twice in WordNet's definitions."""
        if self.count(lemma, pos):
            return True
        return self._table.uses(POS_LETTERS.get(pos, ""), _normal(lemma)) >= FAMILIAR_USES

    def _siblings(self, lemma: str, pos: str, up: int, down: int) -> set[str]:
        """Words around the dominant senses; when there are none, around the next sense that has."""
        ranked = self._ranked(lemma, pos)
        dominant = self.dominant(lemma, pos)
        for synsets in (dominant, *((n,) for n in ranked[len(dominant) :])):
            reached = self.around(synsets, up, down)
            words = {
                word
                for word in self._words(reached, proper=False)
                if not reached.isdisjoint(self.dominant(word, pos))
                and not self.related(lemma, word, pos)
            }
            if words:
                return words
        return set()

    def related(self, a: str, b: str, pos: str, levels: int = 3) -> bool:
        """Whether exchanging two words may keep the meaning (docs/decisions.md, rule 5).

        They may when they are the same lemma, share a synset, or one is above the other, in any
        sense. Adjectives also when both are satellites of one head of degree ("huge", "enormous")
        or when their nouns are related so ("azure", "blue").

        Args:
            a: A lemma.
            b: Another lemma.
            pos: The part of speech of both.
            levels: How many levels above counts.

        Returns:
            Whether the words are related.
        """
        if _normal(a) == _normal(b):
            return True
        mine, theirs = self._synsets(a, pos), self._synsets(b, pos)
        if (
            mine & theirs
            or self._closure(a, pos, levels, upward=True) & theirs
            or self._closure(b, pos, levels, upward=True) & mine
        ):
            return True
        return pos == "ADJ" and self._related_adjectives(a, b, levels)

    def around(self, synsets: Iterable[int], up: int, down: int) -> set[int]:
        """Synsets reached by going up k <= `up` levels and then down at most min(k, `down`)."""
        reached: set[int] = set()
        level = set(synsets)
        for distance in range(1, up + 1):
            level = {
                h
                for number in level
                for h in self._table.synset(number).hypernyms
                if not GENERAL.intersection(self._table.synset(h).lemmas[:1])
            }
            below = level
            for _ in range(min(distance, down)):
                below = {h for number in below for h in self._table.synset(number).hyponyms}
                reached |= below
        return reached

    def _senses(self, lemma: str, pos: str) -> tuple[tuple[int, int], ...]:
        letter = POS_LETTERS.get(pos)
        return self._table.senses(letter, _normal(lemma)) if letter else ()

    def _synsets(self, lemma: str, pos: str) -> frozenset[int]:
        return self._closure(lemma, pos, 0, upward=True)

    def dominant(self, lemma: str, pos: str) -> tuple[int, ...]:
        """The one or two synsets the lemma most likely means in a caption (module docstring)."""
        key = (_normal(lemma), POS_LETTERS.get(pos, ""))
        found = self._dominants.get(key)
        if found is None:
            scores = self._scores(lemma, pos)
            found = tuple(
                number
                for rank, (score, count, number) in enumerate(scores[:2])
                if rank == 0 or (count and SECOND_SENSE_SHARE * score >= scores[0][0])
            )
            self._dominants[key] = found
        return found

    def fields(self, lemma: str, pos: str) -> frozenset[int]:
        """WordNet's lexicographer files of the dominant senses: 18 for people, 8 for body parts."""
        return frozenset(self._table.synset(n).lexfile for n in self.dominant(lemma, pos))

    def _ranked(self, lemma: str, pos: str) -> tuple[int, ...]:
        return tuple(number for _, _, number in self._scores(lemma, pos))

    def _scores(self, lemma: str, pos: str) -> list[tuple[int, int, int]]:
        """(score, usage count, synset) of every sense, best first, else in WordNet's order."""
        scored = []
        for number, count in self._senses(lemma, pos):
            visible = self._table.synset(number).lexfile in VISIBLE_LEXFILES
            scored.append(((count + 1) * (VISIBLE_WEIGHT if visible else 1), count, number))
        return sorted(scored, key=lambda item: -item[0])

    def _closure(self, lemma: str, pos: str, levels: int, *, upward: bool) -> frozenset[int]:
        """The synsets of a lemma and everything up to `levels` above (or below) them."""
        key = (_normal(lemma), POS_LETTERS.get(pos, ""), levels, upward)
        found = self._closures.get(key)
        if found is None:
            reached = {number for number, _ in self._senses(lemma, pos)}
            level = set(reached)
            for _ in range(levels):
                level = {n for number in level for n in self._next(number, upward)} - reached
                reached |= level
            found = self._closures[key] = frozenset(reached)
        return found

    def _next(self, number: int, upward: bool) -> tuple[int, ...]:
        synset = self._table.synset(number)
        if synset.kind in "as":
            return synset.similar if (synset.kind == "s") == upward else ()
        return synset.hypernyms if upward else synset.hyponyms

    def _words(self, numbers: Iterable[int], proper: bool = True) -> set[str]:
        lemmas = (lemma for number in numbers for lemma in self._table.synset(number).lemmas)
        return {lemma.lower() for lemma in lemmas if proper or lemma == lemma.lower()}

    def _related_adjectives(self, a: str, b: str, levels: int) -> bool:
        if self._kin_of(a) & self._kin_of(b):
            return True
        nouns_a = quality_nouns(self._table, a, self.dominant(a, "ADJ"))
        nouns_b = quality_nouns(self._table, b, self.dominant(b, "ADJ"))
        return bool(
            self._above(nouns_a, levels) & nouns_b or self._above(nouns_b, levels) & nouns_a
        )

    def _kin_of(self, lemma: str) -> frozenset[int]:
        """Heads of degree whose cluster holds a dominant sense of the adjective."""
        key = _normal(lemma)
        found = self._kin.get(key)
        if found is None:
            found = degree_heads(self._table, self.dominant(lemma, "ADJ"))
            self._kin[key] = found
        return found

    def _above(self, synsets: Iterable[int], levels: int) -> set[int]:
        reached = set(synsets)
        level = set(reached)
        for _ in range(levels):
            level = {h for number in level for h in self._table.synset(number).hypernyms}
            reached |= level
        return reached


def _same_kind(lemma: str, pos: str) -> frozenset[str]:
    """The other words of every group that holds the lemma, of kinds that WordNet does not know."""
    groups = _KINDS.groups(pos) if pos in ("ADJ", "VERB") else ()
    return frozenset(word for group in groups if lemma in group for word in group) - {lemma}


def _normal(lemma: str) -> str:
    return lemma.lower().replace("_", " ")


@lru_cache(maxsize=4)
def lexicon(path: Path | None = None) -> Lexicon:
    """The shipped lexicon (or the one at `path`), read once. Raises CompoclipError if unusable."""
    return Lexicon(read_sense_table(path or Path(__file__).parent / "data" / "lexicon.xz"))
