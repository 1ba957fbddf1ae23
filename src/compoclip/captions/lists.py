"""Word lists of data files, and the lists of the scene-graph parser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path


class WordLists:
    """The named lists of one data file, such as `captions/data/parsing.txt`.

    A line "[name]" begins a list, "#" a comment; lines before the first name form the list "".
    Entries are separated by commas if the list has any, else by blanks. A row may give its entries
    a key: "key: entry entry".

    Args:
        path: The file, UTF-8.
    """

    def __init__(self, path: Path) -> None:
        self._rows: dict[str, list[str]] = {}
        rows = self._rows.setdefault("", [])
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                rows = self._rows.setdefault(line.strip("[]"), [])
            elif line and not line.startswith("#"):
                rows.append(line)

    def names(self) -> tuple[str, ...]:
        """Return the names of the lists, in the order of the file."""
        return tuple(self._rows)

    def rows(self, name: str = "") -> tuple[str, ...]:
        """Return the lines of a list."""
        return tuple(self._rows[name])

    def groups(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Return the entries of each row."""
        comma = any("," in row for row in self._rows[name])
        return tuple(_entries(row, comma) for row in self._rows[name])

    def words(self, name: str) -> frozenset[str]:
        """Return all entries of a list."""
        return frozenset(word for group in self.groups(name) for word in group)

    def table(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return key -> the entries of its row."""
        comma = any("," in row for row in self._rows[name])
        pairs = (row.partition(": ") for row in self._rows[name])
        return {
            key: _entries(entries, comma)
            for keys, _, entries in pairs
            for key in _entries(keys, comma)
        }

    def keys(self, name: str) -> dict[str, str]:
        """Return entry -> its key: the inverse of `table`."""
        return {word: key for key, words in self.table(name).items() for word in words}


def _entries(row: str, comma: bool) -> tuple[str, ...]:
    parts = row.split(",") if comma else row.split()
    return tuple(part.strip() for part in parts if part.strip())


class PhraseTable:
    """Phrases of words, found by their first word, the longest first."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._phrases = {tuple(each.split()) for each in phrases}
        heads = {each[0] for each in self._phrases}
        self.sizes = {
            head: sorted({len(each) for each in self._phrases if each[0] == head}, reverse=True)
            for head in heads
        }

    def __contains__(self, words: Sequence[str]) -> bool:
        return tuple(words) in self._phrases

    def size_at(self, lows: Sequence[str], at: int) -> int:
        """Return the number of words of the longest phrase at a place; 0 for none."""
        for size in self.sizes.get(lows[at], ()) if at < len(lows) else ():
            if at + size <= len(lows) and lows[at : at + size] in self:
                return size
        return 0

    def spans(self, lows: Sequence[str]) -> list[tuple[int, int]]:
        """Return the spans of phrases, left to right, without overlap."""
        found, end = [], 0
        for at, word in enumerate(lows):
            if at >= end and word in self.sizes and (size := self.size_at(lows, at)):
                end = at + size
                found.append((at, end))
        return found


_read = lru_cache(maxsize=None)(WordLists)  # several modules take lists from one file


def word_lists(module: str, name: str) -> WordLists:
    """Return the lists of `data/NAME.txt` next to the module with this `__file__`."""
    return _read(Path(module).with_name("data") / f"{name}.txt")


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text as a set, for short lists within code."""
    return frozenset(text.split())


# --- The lists of the scene-graph parser; data/parsing.txt says what each is for. ---

_PARSING = word_lists(__file__, "parsing")

COLOURS = _PARSING.words("colours")
COMPOUND_ING = _PARSING.words("compounds in -ing")
MATERIALS = COLOURS | _PARSING.words("materials")
COLLOCATIONS = _PARSING.words("collocations")
SHADES = _PARSING.words("shades")
PAIRED_QUALITIES = _PARSING.words("paired qualities")
WHEREABOUTS = _PARSING.words("whereabouts")
QUALITY_NOUNS = _PARSING.words("quality nouns")
PLACES_AT_THINGS = _PARSING.words("places at things")
BACKDROPS = _PARSING.words("backdrops")
PICTURES = _PARSING.words("pictures")
PICTURING_VERBS = _PARSING.words("picturing verbs")
STRIVING_VERBS = _PARSING.words("striving verbs")
DEPICTIONS = PICTURES | _PARSING.words("depictions")
EXTENTS = _PARSING.words("extents")
#: Counting noun -> the attribute of what it counts; "" for none.
QUANTITIES: Mapping[str, str] = {
    **dict.fromkeys(_PARSING.words("quantities") | PICTURES, ""),
    **{word: f"{word} of" for word in _PARSING.words("telling quantities")},
}
NUMBERS: Mapping[str, int] = {
    name: value for value, name in enumerate(" ".join(_PARSING.rows("numbers")).split())
}
NO_QUALITY = _PARSING.words("no qualities")
#: Two words that refer to things named before.
RECIPROCALS = frozenset({("each", "other"), ("one", "another")})
NEGATIONS = _PARSING.words("negations")
PRONOUNS: Mapping[str, str] = _PARSING.keys("pronouns")
PEOPLE = _PARSING.words("people")
ANIMALS = _PARSING.words("animals")
GONE = _PARSING.words("gone")
MANNERS = _PARSING.words("manners")
VEHICLES = _PARSING.words("vehicles")
BODY_PARTS = _PARSING.words("body parts")
CLOTHES = _PARSING.words("clothes")
SCENES = _PARSING.words("scenes")
HOLDING_PLACES = SCENES | _PARSING.words("furniture")
CARRIED = CLOTHES | BODY_PARTS | _PARSING.words("carried")
MOUNTS = _PARSING.words("mounts")
MARKINGS = _PARSING.words("markings")
ALIVE = PEOPLE | ANIMALS
OF_THE_BODY = BODY_PARTS | CLOTHES
TIMES = _PARSING.words("times")
BACKGROUNDS = _PARSING.words("backgrounds")
DEEDS = _PARSING.words("deeds")
DEEDS_OF_THINGS = _PARSING.words("deeds of things")
RESTING_VERBS = _PARSING.words("resting verbs")
MOTION_VERBS = _PARSING.words("motion verbs")
LINKING_VERBS = _PARSING.words("linking verbs")
HOLDING_VERBS = _PARSING.words("holding verbs")
SHOWING_VERBS = _PARSING.words("showing verbs")
GIVING_VERBS = _PARSING.words("giving verbs")
KEEPING_VERBS = _PARSING.words("keeping verbs")
DRESSING_VERBS = _PARSING.words("dressing verbs")
TRANSITIVE_VERBS = _PARSING.words("transitive verbs")
EMPTY_PARTICIPLES = _PARSING.words("empty participles")
TAKING_DEEDS = _PARSING.words("taking deeds")
INTENSIFIERS = _PARSING.words("intensifiers")
ABBREVIATIONS = _PARSING.words("abbreviations")
BEFORE_IS = _PARSING.words("before is")


#: Phrasal prepositions.
PHRASAL = PhraseTable(_PARSING.words("phrasal prepositions"))
