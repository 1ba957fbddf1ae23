"""The shipped word-sense file: an xz-compressed text table, read fast and parsed lazily.

Layout (UTF-8, one record a line):

- line 1: ``compoclip-lexicon<TAB>format<TAB>number of synsets<TAB>number of entries<TAB>source``
- one line for each synset, its number being its position:
  ``type<TAB>lexicographer file<TAB>lemma|lemma|...<TAB>pointer pointer ...``
  with type n, v, a (adjective), s (satellite adjective) or r (adverb)
- one line for each entry: ``pos<TAB>lemma<TAB>uses synset:count synset:count ...`` in sense order,
  `uses` being how often the word occurs in WordNet's own definitions and examples.

Pointers keep WordNet's symbols: ``@12`` hypernym, ``~12`` hyponym, ``&12`` similar to, ``=12``
attribute, ``$12`` verb group; between words (own word number, synset, word number): ``!0.12.1``
antonym, ``+0.12.0`` derivationally related, ``\\0.12.0`` pertainym.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from compoclip.errors import CompoclipError

MAGIC = "compoclip-lexicon"
FORMAT = 1
#: WordNet's letter for each part of speech of an entry.
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
