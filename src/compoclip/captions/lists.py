"""Word lists of data files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

_INCLUDED = re.compile(r"\{([^}]+)\}")


class WordLists(dict[str, frozenset[str]]):
    """The named lists of one data file, such as `captions/data/parsing.txt`, as sets of entries.

    A line "[name]" begins a list, "#" a comment; lines before the first name form the list "".
    Entries are separated by commas if the list has any, else by blanks; "{name}" includes another
    list. A row may give its entries a key: "key: entry entry".

    Args:
        path: The file, UTF-8.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._rows: dict[str, list[str]] = {"": []}
        rows = self._rows[""]
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                rows = self._rows.setdefault(line.strip("[]"), [])
            elif line and not line.startswith("#"):
                rows.append(line)

    def __missing__(self, name: str) -> frozenset[str]:
        words = {word for group in self.groups(name) for word in group}
        included = (self[other] for row in self._rows[name] for other in _INCLUDED.findall(row))
        self[name] = members = frozenset(words.union(*included))
        return members

    def names(self) -> tuple[str, ...]:
        """Return the names of the lists, in the order of the file."""
        return tuple(self._rows)

    def rows(self, name: str = "") -> tuple[str, ...]:
        """Return the lines of a list."""
        return tuple(self._rows[name])

    def cells(self, name: str = "") -> list[list[str]]:
        """Return the cells of each row, which bars between blanks separate."""
        return [[cell.strip() for cell in row.split(" | ")] for row in self._rows[name]]

    def groups(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Return the entries of each row."""
        return tuple(map(self._entries(name), self._rows[name]))

    def table(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return key -> the entries of its row."""
        split = self._entries(name)
        pairs = (row.partition(": ") for row in self._rows[name])
        return {key: split(entries) for keys, _, entries in pairs for key in split(keys)}

    def keys_of(self, name: str) -> dict[str, str]:
        """Return entry -> its key: the inverse of `table`."""
        return {word: key for key, words in self.table(name).items() for word in words}

    def _entries(self, name: str) -> Callable[[str], tuple[str, ...]]:
        mark = "," if any("," in row for row in self._rows[name]) else None

        def split(row: str) -> tuple[str, ...]:
            parts = map(str.strip, _INCLUDED.sub("", row).split(mark))
            return tuple(part for part in parts if part)

        return split


class PhraseTable:
    """Phrases of words, found by their first word, the longest first."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._phrases = {tuple(phrase.split()) for phrase in phrases}
        self.sizes: dict[str, list[int]] = {}
        for size, head in sorted(
            {(len(phrase), phrase[0]) for phrase in self._phrases}, reverse=True
        ):
            self.sizes.setdefault(head, []).append(size)

    def __contains__(self, words: Sequence[str]) -> bool:
        return tuple(words) in self._phrases

    def size_at(self, lows: Sequence[str], at: int) -> int:
        """Return the number of words of the longest phrase at a place; 0 for none."""
        for size in self.sizes.get(lows[at], ()) if at < len(lows) else ():
            if at + size <= len(lows) and tuple(lows[at : at + size]) in self._phrases:
                return size
        return 0

    def spans(self, lows: Sequence[str]) -> list[tuple[int, int]]:
        """Return the spans of phrases, left to right, without overlap."""
        spans, end = [], 0
        for at, word in enumerate(lows):
            if at >= end and word in self.sizes and (size := self.size_at(lows, at)):
                end = at + size
                spans.append((at, end))
        return spans


_read = lru_cache(maxsize=None)(WordLists)  # several modules take lists from one file


def word_lists(module: str, name: str) -> WordLists:
    """Return the lists of `data/NAME.txt` next to the module with this `__file__`."""
    return _read(Path(module).with_name("data") / f"{name}.txt")


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text as a set, for short lists within code."""
    return frozenset(text.split())


#: The lists of the chunker and the scene-graph parser.
WORDS = word_lists(__file__, "parsing")
#: How a contracted verb that denies ends: "isn't".
CONTRACTED_NOT = ("n't", "n’t")
NUMBERS = {name: value for value, name in enumerate(" ".join(WORDS.rows("numbers")).split())}
PHRASAL = PhraseTable(WORDS["phrasal prepositions"])
