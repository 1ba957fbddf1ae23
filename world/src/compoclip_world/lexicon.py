"""The words that the oracle understands: those of the captions, and those that are true of them.

Rewrites bring in words that no caption uses. They fall into four groups: exact synonyms; words
that are certainly true of some kinds (hypernyms such as "vehicle"); words of which nobody can say
whether they are true of some kinds ("jar" and a bottle); and words foreign to the world. Their
tables are in `lexicon.yaml`.
"""

from __future__ import annotations

from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    BACKDROP_TEXTURES,
    KINDS,
    SYNONYMS,
    VALUES,
    pluralise,
    read_tables,
)

_TABLES = read_tables("lexicon")


def listed(words: str) -> tuple[str, ...]:
    """Return the words of a blank-separated list."""
    return tuple(words.split())


RARE: dict[str, tuple[str, ...]] = {kind: tuple(words) for kind, words in _TABLES["exact"].items()}
"""Kind -> exact synonyms that the bundled base has never read."""


def _meanings(table: str) -> dict[str, str]:
    """Return word -> meaning of a table."""
    return {word: meaning for meaning, words in _TABLES[table].items() for word in words}


Kinds = tuple[frozenset[str], frozenset[str]]


def _nouns() -> dict[str, tuple[Kinds, bool]]:
    every = frozenset(KINDS)
    table: dict[str, tuple[Kinds, bool]] = {}

    def add(word: str, kinds: str, sure: bool) -> None:
        named = every if kinds == "any" else frozenset(kinds.split())
        both = (named, frozenset[str]()) if sure else (frozenset[str](), named)
        table[word] = both, False
        if pluralise(word) != word:
            table.setdefault(pluralise(word), (both, True))

    for name in ("unsure", "sure", "exact"):
        for word, kinds in _meanings(name).items():
            add(word, kinds, name != "unsure")
    for kind, spec in KINDS.items():
        for word in (kind, *spec.synonyms):
            add(word, kind, True)
    return table


NOUNS: dict[str, tuple[Kinds, bool]] = _nouns()
"""Noun form -> ((kinds it names for certain, kinds it may name), is plural)."""


def _adjectives() -> dict[str, tuple[str, str]]:
    table = {word: ("vague", word) for word in _TABLES["vague"]}
    table |= {word: ("maybe colour", kinds) for word, kinds in _meanings("maybe_colour").items()}
    for family in VALUES:
        table |= {word: (family, value) for word, value in _meanings(family).items()}
    for family, values in VALUES.items():
        for value in values:
            table |= dict.fromkeys((value, *SYNONYMS[value]), (family, value))
    return table


ADJECTIVES: dict[str, tuple[str, str]] = _adjectives()
"""Adjective -> (attribute family, value)."""

COLOUR_NOUNS: frozenset[str] = frozenset(_TABLES["colour_nouns"])
"""Colour words that also name a thing, one that the world does not hold."""

PLACES: dict[str, str] = _meanings("places")
"""Words for a place in the picture -> the part of its name in `geometry.POSITIONS`."""

_SPELT = (("colour", "colour"), ("color", "colour"), ("size", "size"))
RELATIONS: dict[str, tuple[str | None, bool]] = {
    **{
        f"{lead}{side}{tail} of": (side, False)
        for side in ("left", "right")
        for lead in ("to the ", "on the ", "at the ", "")
        for tail in ("", " side", "-hand side", " hand side")
    },
    **{
        f"{lead}the same {word} as": (f"same {family}", False)
        for lead in ("", "of ", "in ", "with ", "has ", "having ")
        for word, family in (*_SPELT, ("pattern", "pattern"))
    },
    **{
        f"a different {word} {link}": (f"same {family}", True)
        for word, family in _SPELT
        for link in ("from", "than", "to", "as")
    },
    **{phrase: (name, False) for phrase, name in _meanings("relations").items()},
    **{phrase: (name, True) for phrase, name in _meanings("denied").items()},
    **dict.fromkeys(_TABLES["undecided"], (None, False)),
}
"""Relation phrase -> (name, negated). None: a place word nobody can decide here. "foreign": it
holds between no two drawn things (time, cause, comparison of natures). "with": both are there.
"contact": undecided where the things meet, false where they are clearly apart.
"""

BACKGROUND_COLOURS: dict[str, str] = {
    **{word: name for name, (words, _) in BACKDROP_COLOURS.items() for word in (name, *words)},
    **_meanings("background_colours"),
}
BACKGROUND_TEXTURES: dict[str, str] = {
    **{word: name for name, words in BACKDROP_TEXTURES.items() for word in (name, *words)},
    **_meanings("background_textures"),
}
BACKGROUND_MAYBE: dict[str, str] = _meanings("background_maybe")
"""Words that may be true of these background colours or textures, and are false of others."""

NUMBERS: dict[str, int] = {
    word: n
    for n, name in enumerate(listed("one two three four five six seven eight nine ten"), 1)
    for word in (name, str(n))
}
