"""The oracle: whether a caption is true of a scene.

How captions are read (closed world: the scene shows nothing but its things):

- "a red star": at least one. "red stars": at least two. "several": at least three. "two red
  stars" and "one red star": exactly that many. "no red star": none.
- "a star left of a mug": some star is left of some other thing that is a mug. With a number on
  the second noun, exactly so many such things exist and the first is related to each.
- "the star is red": every thing "the star" can mean must agree, otherwise UNKNOWN; FALSE if there
  is no star. "the stars are red": all are, and there are at least two.
- Nouns joined by "and" speak of different things: true one by one but not of different things is
  UNKNOWN.
- Relations and positions follow `geometry`; its ambiguous zone is UNKNOWN, as are vague words
  and text the grammar does not cover.
- A noun or property that is not part of the world is FALSE and flagged `foreign`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from compoclip_world.geometry import located as is_at
from compoclip_world.geometry import related, touching
from compoclip_world.lexicon import (
    ADJECTIVES,
    BACKGROUND_COLOURS,
    BACKGROUND_MAYBE,
    BACKGROUND_TEXTURES,
    PLACES,
)
from compoclip_world.logic import (
    Attribute,
    Background,
    Claim,
    Exists,
    Form,
    Lacking,
    Modifier,
    Node,
    NounPhrase,
    Position,
    Quantifier,
    Relation,
    Statement,
    nodes_of,
)
from compoclip_world.parser import UngrammaticalError, parse
from compoclip_world.scene import Scene, Thing

Maybe = bool | None
_SCREEN_WORDS = BACKGROUND_COLOURS.keys() | BACKGROUND_TEXTURES.keys() | BACKGROUND_MAYBE.keys()


class Truth(StrEnum):
    """The oracle's answer: true, false, or not decidable from the scene."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The oracle's judgement of a caption. reason: why the answer is UNKNOWN, empty otherwise.
    foreign: the caption has words that are not of the world."""

    truth: Truth
    reason: str = ""
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Oracle:
    """Decides captions of the world. It has no settings and keeps nothing between calls."""

    def verdict(self, claim: str | Form, scene: Scene) -> Verdict:
        """Return whether a text or a logical form is true of the scene."""
        try:
            form = parse(claim) if isinstance(claim, str) else claim
            held = _all(_statement_holds(statement, scene) for statement in form)
            foreign = any(map(_is_foreign, nodes_of(form)))
            if held is None or (held and not _distinct(form, scene)):
                return Verdict(Truth.UNKNOWN, "ambiguous", foreign)
            return Verdict(Truth.TRUE if held else Truth.FALSE, "", foreign)
        except UngrammaticalError as error:
            return Verdict(Truth.UNKNOWN, f"ungrammatical: {error}")
        except RecursionError:
            return Verdict(Truth.UNKNOWN, "ungrammatical: too many things in one another")


def is_true(claim: str | Form, scene: Scene) -> bool:
    """True if the oracle says TRUE."""
    return Oracle().verdict(claim, scene).truth is Truth.TRUE


def is_false(claim: str | Form, scene: Scene) -> bool:
    """True if the oracle says FALSE."""
    return Oracle().verdict(claim, scene).truth is Truth.FALSE


def _all(values: Iterable[Maybe]) -> Maybe:
    """Three-valued conjunction."""
    result: Maybe = True
    for value in values:
        if value is False:
            return False
        if value is None:
            result = None
    return result


def _not(value: Maybe) -> Maybe:
    return None if value is None else not value


def _number(values: Sequence[Maybe], quantifier: Quantifier, number: int) -> Maybe:
    """Return whether as many of the values are true as the quantifier asks."""
    low = sum(v is True for v in values)
    high = low + sum(v is None for v in values)
    if quantifier is Quantifier.EXACTLY:
        return True if low == high == number else None if low <= number <= high else False
    if quantifier is Quantifier.NONE:
        return True if high == 0 else False if low else None
    return True if low >= number else None if high >= number else False


def _statement_holds(statement: Statement, scene: Scene) -> Maybe:
    match statement:
        case Exists(phrase):
            return _number(_matches(phrase, scene), phrase.quantifier, phrase.number)
        case Claim(subject, modifiers):
            return _claim_holds(subject, modifiers, scene)
        case Background():
            return _background_holds(statement, scene)


def _claim_holds(subject: NounPhrase, modifiers: tuple[Modifier, ...], scene: Scene) -> Maybe:
    named = _matches(subject, scene)
    said = [_all(_modifier_holds(m, t, scene) for m in modifiers) for t in scene.things]
    if subject.quantifier is not Quantifier.THE:
        both = [_all(pair) for pair in zip(named, said)]
        return _number(both, subject.quantifier, subject.number)
    return _the(named, said, subject.number)


def _the(named: Sequence[Maybe], said: Sequence[Maybe], number: int) -> Maybe:
    """ "the X" or "the X's": what is said, of the things that are or may be meant."""
    enough = _number(named, Quantifier.SOME, number)
    if enough is False:
        return False
    verdicts = {value for name, value in zip(named, said) if name is not False}
    if number > 1:
        return _all((enough, *verdicts))
    if verdicts == {False}:
        return False
    return True if verdicts == {True} and enough else None


def _matches(phrase: NounPhrase, scene: Scene) -> list[Maybe]:
    return [_fits(phrase, thing, scene) for thing in scene.things]


def _fits(phrase: NounPhrase, thing: Thing, scene: Scene) -> Maybe:
    """Return whether the thing is what the noun phrase describes, its quantifier aside."""
    kind: Maybe = True if thing.kind in phrase.kinds else None
    if kind is None and thing.kind not in phrase.maybe:
        return False
    return _all((kind, *(_modifier_holds(m, thing, scene) for m in phrase.modifiers)))


def _modifier_holds(modifier: Modifier, thing: Thing, scene: Scene) -> Maybe:
    held: Maybe
    match modifier:
        case Attribute(family, value):
            held = _has(thing, family, value)
        case Relation(name, phrase):
            held = _relates(name, thing, phrase, scene)
        case Position(name):
            held = None if name is None else is_at(name, thing)
        case Lacking(phrase):
            return _number(_matches(phrase, scene), Quantifier.NONE, 1)
        case Background():
            return _background_holds(modifier, scene)
    return _not(held) if modifier.negated else held


def _has(thing: Thing, family: str, value: str) -> Maybe:
    match family:
        case "colour" | "size" | "pattern":
            return bool(getattr(thing, family) == value)
        case "maybe colour":
            return None if thing.colour in value.split() else False
        case "vague":
            return None
    return False


def _relates(name: str | None, thing: Thing, phrase: NounPhrase, scene: Scene) -> Maybe:
    others = [t for t in scene.things if t is not thing]
    named = [_fits(phrase, other, scene) for other in others]
    held = [holds_between(name, thing, other) for other in others]
    both = [_all(pair) for pair in zip(named, held)]
    match phrase.quantifier:
        case Quantifier.THE:
            return _the(named, held, phrase.number)
        case Quantifier.EXACTLY:
            total = _number(_matches(phrase, scene), Quantifier.EXACTLY, phrase.number)
            enough = _number(both, Quantifier.EXACTLY, phrase.number)
            return enough if enough is False or total else None
    return _number(both, phrase.quantifier, phrase.number)


def holds_between(name: str | None, a: Thing, b: Thing) -> Maybe:
    """`geometry.related`, and the few further relation words that only the oracle knows."""
    match name:
        case None:
            return None
        case "foreign":
            return False
        case "with":
            return True
        case "contact":
            return False if touching(a, b) is False else None
        case "same size":
            return a.size == b.size
        case "same pattern":
            return a.pattern == b.pattern
    return related(name, a, b)


def _background_holds(claim: Background, scene: Scene) -> Maybe:
    if claim.impossible:
        return False
    held = _all(
        True if not word else _background_word(word, actual, names)
        for word, actual, names in (
            (claim.colour, scene.backdrop.colour, BACKGROUND_COLOURS),
            (claim.texture, scene.backdrop.texture, BACKGROUND_TEXTURES),
        )
    )
    return _not(held) if claim.negated else held


def _background_word(word: str, actual: str, names: dict[str, str]) -> Maybe:
    if word in names:
        return names[word] == actual
    return None if actual in BACKGROUND_MAYBE.get(word, "").split() else False


def _distinct(form: Form, scene: Scene) -> bool:
    """Return whether the singular "a ..." phrases of the form can be about different things."""
    rows = [
        [i for i, fit in enumerate(_matches(s.phrase, scene)) if fit is not False]
        for s in form
        if isinstance(s, Exists) and s.phrase.quantifier is Quantifier.SOME and s.phrase.number == 1
    ]

    def place(row: int, used: frozenset[int]) -> bool:
        if row == len(rows):
            return True
        return any(place(row + 1, used | {i}) for i in rows[row] if i not in used)

    return place(0, frozenset())


def _is_foreign(node: Node) -> bool:
    match node:
        case NounPhrase():
            return not (node.kinds or node.maybe or node.word in PLACES)
        case Relation(name):
            return name == "foreign"
        case Attribute(family, value):
            return family == "foreign" and value not in _SCREEN_WORDS
        case Background(colour):
            return bool(colour) and colour not in _SCREEN_WORDS and colour not in ADJECTIVES
    return False
