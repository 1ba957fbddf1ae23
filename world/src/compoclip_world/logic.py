"""The claims of a caption, as data: noun phrases with modifiers, and statements about the picture.

A caption is a conjunction of statements. The generator builds these forms and puts them into
words; the oracle reads them back from words on its own and decides them against a scene.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Quantifier(StrEnum):
    """How many things a noun phrase speaks of.

    SOME: at least `number` ("a star" 1, "stars" 2, "several stars" 3). EXACTLY: `number` and no
    more ("two stars"). THE: the one thing that fits. NONE: no thing ("no star").
    """

    SOME = "some"
    EXACTLY = "exactly"
    THE = "the"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A property of a thing: `family` is "colour", "size" or "pattern", `value` the word for it.

    Words read from text may also give family "foreign" (a property the world cannot show),
    "impossible" (the words are known, but nothing can be so: a corner that is red),
    "vague" (undecidable) or "maybe colour" (undecidable for the colours in `value`, else false).
    """

    family: str
    value: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """name: one of `geometry.RELATIONS` and the few more that it decides; None if not known."""

    name: str | None
    object: NounPhrase
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """name: one of `geometry.POSITIONS`, or None if not known."""

    name: str | None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Background:
    """A claim about the background. An empty string claims nothing; other words may be foreign.

    impossible: the claim says something that no background can be (to be on a mug, say).
    """

    colour: str = ""
    texture: str = ""
    negated: bool = False
    impossible: bool = False


@dataclass(frozen=True, slots=True)
class Lacking:
    """ "... without a mug", "... but no mug": the picture holds no such thing."""

    object: NounPhrase


Modifier = Attribute | Relation | Position | Background | Lacking


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """kinds: what the noun names for certain (none for a foreign noun). word: the noun itself.

    maybe: kinds of which nobody can say whether the noun names them ("jar" and a bottle).
    """

    kinds: frozenset[str]
    word: str
    modifiers: tuple[Modifier, ...] = ()
    quantifier: Quantifier = Quantifier.SOME
    number: int = 1
    maybe: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        kind: str,
        modifiers: tuple[Modifier, ...] = (),
        quantifier: Quantifier = Quantifier.SOME,
        number: int = 1,
    ) -> NounPhrase:
        """Return the phrase that names a kind by its canonical word."""
        return cls(frozenset((kind,)), kind, modifiers, quantifier, number)


@dataclass(frozen=True, slots=True)
class Exists:
    """The picture holds what the noun phrase speaks of."""

    phrase: NounPhrase


@dataclass(frozen=True, slots=True)
class Claim:
    """The subject has every listed property: "the star is red and left of the mug"."""

    subject: NounPhrase
    modifiers: tuple[Modifier, ...]


Statement = Exists | Claim | Background
Form = tuple[Statement, ...]


Node = Statement | Modifier | NounPhrase


def children(node: Node) -> tuple[Node, ...]:
    """The noun phrases and modifiers that a node holds, in order."""
    match node:
        case Exists(phrase):
            return (phrase,)
        case Claim(subject, modifiers):
            return (subject, *modifiers)
        case NounPhrase():
            return node.modifiers
        case Relation() | Lacking():
            return (node.object,)
    return ()


def nodes_of(form: Iterable[Node]) -> list[Node]:
    """All statements, noun phrases and modifiers of a form, outermost first."""
    return [inner for node in form for inner in (node, *nodes_of(children(node)))]


def count_atoms(form: Form) -> int:
    """Objects, attributes, relations, counts, positions and backgrounds that the form mentions."""

    def atoms(node: Node) -> int:
        match node:
            case NounPhrase():
                return 1 + (node.quantifier is Quantifier.EXACTLY)
            case Exists() | Claim() | Lacking():
                return 0
            case Background(colour, texture):
                return 1 + (bool(texture) and bool(colour))
        return 1

    return sum(map(atoms, nodes_of(form)))
