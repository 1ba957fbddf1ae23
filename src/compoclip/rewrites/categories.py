"""Built-in families of words that exclude one another, for words of everyday pictures.

Every family is a row of cells (see data/families.txt). Words of one cell may name the same thing
("mug/cup", "red/crimson") and never replace each other; words of different cells of a family
exclude each other. WordNet's co-hyponyms do not promise that: by its hierarchy a "dog" may turn
into a "pet" and "large" into "tall", which can still be true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

#: Families that any visible thing has a value of, so values of two of them can hold together.
UNIVERSAL = frozenset(("colour", "size", "pattern", "material", "shape"))
PEOPLE = frozenset(("people", "occupations", "athletes"))
_FILE = Path(__file__).with_name("data") / "families.txt"
Cells = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Index:
    """Where each word stands: word -> (family, cell) pairs, and the cells of every family."""

    places: Mapping[str, tuple[tuple[str, int], ...]]
    cells: Mapping[str, Cells]


@lru_cache(maxsize=1)
def _sections() -> Mapping[str, tuple[str, ...]]:
    """The lines of each section of the families file."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return {name: tuple(lines) for name, lines in found.items()}


def _families(pos: str) -> Iterator[tuple[str, str]]:
    section = "NOUN" if pos == "PROPN" else pos
    for line in _sections().get(section, ()):
        name, _, cells = line.partition(": ")
        yield name, cells
    if pos == "ADJ":
        yield from ((line, line) for line in _sections()["OPPOSITES"])


@lru_cache(maxsize=8)
def _index(pos: str) -> _Index:
    cells: dict[str, Cells] = {}
    places: dict[str, list[tuple[str, int]]] = {}
    for family, text in _families(pos):
        row = tuple(tuple(cell.replace("_", " ").split("/")) for cell in text.split())
        cells[family] = row
        for number, cell in enumerate(row):
            for word in cell:
                places.setdefault(word, []).append((family, number))
    return _Index({word: tuple(found) for word, found in places.items()}, cells)


@lru_cache(maxsize=1)
def not_things() -> frozenset[str]:
    """Nouns that name nothing one could exchange for another: measures, parts of the picture."""
    return frozenset(word for line in _sections()["NOT THINGS"] for word in line.split())


def families(lemma: str, pos: str) -> frozenset[str]:
    """Names of the families that hold the word; empty when it is in none."""
    return frozenset(family for family, _ in _index(pos).places.get(lemma.lower(), ()))


def names_people(lemma: str) -> bool:
    """Whether the noun names people, by their age, role or sport."""
    return bool(families(lemma, "NOUN") & PEOPLE) or may_coincide(lemma, "person", "NOUN")


def may_coincide(a: str, b: str, pos: str) -> bool:
    """Whether the lists put both words into one cell somewhere, so that they can mean the same."""
    places = _index(pos).places
    return a == b or not set(places.get(a.lower(), ())).isdisjoint(places.get(b.lower(), ()))


@lru_cache(maxsize=16384)
def exclusive(lemma: str, pos: str) -> tuple[str, ...]:
    """First words of the other cells of every family of the word: what it certainly is not."""
    index = _index(pos)
    found: dict[str, None] = {}
    for family, number in index.places.get(lemma.lower(), ()):
        for other, cell in enumerate(index.cells[family]):
            if other != number and not any(may_coincide(lemma, w, pos) for w in cell):
                found[cell[0]] = None
    return tuple(found)
