"""The words of the world: kinds, colours, sizes, patterns and backgrounds, each with synonyms.

Every concept has one canonical word (its key in the tables) and words that mean exactly the same
*in this world*. No word names two concepts. Words that are merely true of a concept (hypernyms
such as "vehicle") live with the oracle, because captions never need them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from compoclip.errors import UsageError

Rgb = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KindSpec:
    """A kind of thing: other nouns for it, whether it can hold a thing, whether it fills its disc.

    hollow: a smaller thing can be drawn inside it. solid: its silhouette covers enough of its
    disc to take part in an occlusion, where overlap has to be visible. marked_from: the smallest
    size at which a surface pattern can be told on it; None for shapes too thin to show any.
    """

    synonyms: tuple[str, ...]
    hollow: bool = False
    solid: bool = True
    marked_from: str | None = "small"


@dataclass(frozen=True, slots=True)
class ColourSpec:
    """A colour: other adjectives, its RGB, and the contrasting RGB that patterns are drawn in."""

    synonyms: tuple[str, ...]
    rgb: Rgb
    mark: Rgb


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A size class: adjectives for it, and the radius as a share of the image side."""

    synonyms: tuple[str, ...]
    radius: float


def read_tables(name: str) -> Any:
    """Return the tables of `NAME.yaml` next to this module."""
    return yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8"))


_TABLES = read_tables("vocabulary")


def frozen(value: Any) -> Any:
    """Return the value with tuples for lists."""
    if isinstance(value, dict):
        return {key: frozen(part) for key, part in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, list) else value


KINDS = {name: KindSpec(**frozen(spec)) for name, spec in _TABLES["kinds"].items()}
COLOURS = {name: ColourSpec(**frozen(spec)) for name, spec in _TABLES["colours"].items()}
SIZES = {name: SizeSpec(**frozen(spec)) for name, spec in _TABLES["sizes"].items()}
SIZE_ORDER: tuple[str, ...] = tuple(SIZES)
PATTERNS: dict[str, tuple[str, ...]] = frozen(_TABLES["patterns"])
BACKDROP_COLOURS: dict[str, tuple[tuple[str, ...], Rgb]] = frozen(_TABLES["backdrop_colours"])
BACKDROP_TEXTURES: dict[str, tuple[str, ...]] = frozen(_TABLES["backdrop_textures"])

# --- How concepts are said: numbers, relations, places, and every word with its synonyms. ---

NUMERALS: dict[int, str] = {1: "one", 2: "two", 3: "three", 4: "four"}
RELATION_PHRASES: dict[str, tuple[str, ...]] = frozen(_TABLES["relations"])
POSITION_PHRASES: dict[str, tuple[str, ...]] = frozen(_TABLES["positions"])
SYNONYMS: dict[str, tuple[str, ...]] = {
    **{word: spec.synonyms for word, spec in COLOURS.items()},
    **{word: spec.synonyms for word, spec in SIZES.items()},
    **PATTERNS,
    **{word: spec.synonyms for word, spec in KINDS.items()},
}
SCREEN_PHRASES = ("on {}", "against {}", "with {}")

VALUES: dict[str, tuple[str, ...]] = {
    "colour": tuple(COLOURS),
    "size": SIZE_ORDER,
    "pattern": tuple(PATTERNS),
}
"""Property of a thing, by the name of its field -> its values."""
FAMILIES = tuple(VALUES)

_IRREGULAR_PLURALS = {"fish": "fish", "trout": "trout", "hare": "hares"}


def require_known(label: str, words: Iterable[str], names: Iterable[str]) -> None:
    """Raise UsageError when one of the words is none of the known ones."""
    allowed = tuple(names)
    for word in words:
        if word not in allowed:
            raise UsageError(f"world: unknown {label} {word!r}; known: {', '.join(allowed)}")


def pluralise(noun: str) -> str:
    """The plural of a (possibly compound) noun of the world: "box" -> "boxes", "fish" -> "fish"."""
    if noun in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def usual(word: str) -> str:
    """The word that captions have for a concept: its canonical word, "medium-sized" for medium."""
    return "medium-sized" if word == "medium" else word


def with_article(phrase: str) -> str:
    """The phrase with "a" or "an" before it, by its first letter (right for the world's words)."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def clashes(colour: str, backdrop: str) -> bool:
    """True if a thing of this colour would be hard to see on a background of that colour."""
    a, b = COLOURS[colour].rgb, BACKDROP_COLOURS[backdrop][1]
    return sum((p - q) ** 2 for p, q in zip(a, b)) < 105**2


def can_show(kind: str, size: str) -> bool:
    """True if a surface pattern can be told on a thing of this kind and size."""
    smallest = KINDS[kind].marked_from
    return smallest is not None and SIZE_ORDER.index(size) >= SIZE_ORDER.index(smallest)
