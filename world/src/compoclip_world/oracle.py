"""The oracle: whether a caption, or a scene graph, is true of a scene.

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

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from compoclip.captions.types import GraphObject, SceneGraph
from compoclip_world.geometry import located as is_at
from compoclip_world.geometry import related, touching
from compoclip_world.lexicon import (
    ADJECTIVES,
    BACKGROUND_COLOURS,
    BACKGROUND_MAYBE,
    BACKGROUND_TEXTURES,
    NOUNS,
    NUMBERS,
    PLACES,
    RELATIONS,
)
from compoclip_world.logic import (
    Attribute,
    Background,
    Claim,
    Exists,
    Form,
    Lacking,
    Modifier,
    NounPhrase,
    Position,
    Quantifier,
    Relation,
    Statement,
)
from compoclip_world.parser import (
    Mark,
    UngrammaticalError,
    lex,
    parse,
    read_attribute,
    read_background,
    read_noun,
)
from compoclip_world.scene import Scene, Thing

# --- Reading a scene graph of any parser as claims about a world scene. ---

_PLACE_TAILS = frozenset(("corner", "side", "edge", "part", "half"))


@dataclass(frozen=True, slots=True)
class GraphForm:
    """Nodes to be matched with different things, links between them, and further statements.

    links: (subject node, relation as the oracle names it, object node).
    foreign: a word was met that is not part of the world.
    """

    nodes: tuple[NounPhrase, ...]
    links: tuple[tuple[int, str | None, int], ...]
    statements: tuple[Statement, ...]
    foreign: bool


def _is_place(node: GraphObject) -> bool:
    words = node.name.lower().replace("-", " ").split()
    return bool(words) and all(w in PLACES or w in _PLACE_TAILS for w in words)


def _place(node: GraphObject) -> str | None:
    said = " ".join((*(a.name for a in node.attributes), node.name)).lower()
    found = lex("at the " + said.replace("-", " "))
    if len(found) == 1 and found[0].mark is Mark.POSITION and found[0].text not in "?!":
        return found[0].text
    return None


def _relation(name: str) -> str | None:
    """The oracle's relation for a graph's relation name, None when unknown."""
    words = name.lower()
    for phrase in (words, words.removeprefix("is "), words + " of", words + " as", words + " than"):
        if phrase in RELATIONS:
            relation, negated = RELATIONS[phrase]
            return None if negated else relation
    return None


def graph_form(graph: SceneGraph) -> GraphForm:
    """Return the claims of a graph. Place nodes ("corner") become positions of the objects they
    relate to, and background nodes claims about the background.
    """
    places = {i: _place(n) for i, n in enumerate(graph.objects) if _is_place(n)}
    grounds = {
        i for i, n in enumerate(graph.objects) if n.name.lower() in ("background", "backdrop")
    }
    extra: dict[int, list[Modifier]] = {}
    links: list[tuple[int, str | None, int]] = []
    for relation in graph.relations:
        if relation.object in places and relation.subject not in places:
            extra.setdefault(relation.subject, []).append(Position(places[relation.object]))
        elif not {relation.subject, relation.object} & (places.keys() | grounds):
            links.append((relation.subject, _relation(relation.name), relation.object))
    statements: list[Statement] = []
    nodes: list[NounPhrase] = []
    number: dict[int, int] = {}
    foreign = False
    for i, node in enumerate(graph.objects):
        if i in places:
            continue
        words = [a.name.lower() for a in node.attributes]
        if i in grounds:
            statements.extend(read_background(w) if w else Background() for w in words)
            continue
        phrase, _ = read_noun(node.name.lower())
        modifiers: list[Modifier] = []
        for word in words:
            if word in NUMBERS:
                continue
            modifiers.append(Position(PLACES[word]) if word in PLACES else read_attribute(word))
        foreign |= node.name.lower() not in NOUNS
        foreign |= any(isinstance(m, Attribute) and m.family == "foreign" for m in modifiers)
        full = NounPhrase(
            phrase.kinds, phrase.word, (*modifiers, *extra.get(i, ())), maybe=phrase.maybe
        )
        for word in words:
            if word in NUMBERS:
                counted = NounPhrase(
                    full.kinds,
                    full.word,
                    full.modifiers,
                    Quantifier.EXACTLY,
                    NUMBERS[word],
                    full.maybe,
                )
                statements.append(Exists(counted))
        number[i] = len(nodes)
        nodes.append(full)
    return GraphForm(
        tuple(nodes),
        tuple((number[a], name, number[b]) for a, name, b in links),
        tuple(statements),
        foreign,
    )


# --- The oracle: whether a caption, or a scene graph, is true of a scene. ---

Maybe = bool | None
_SCREEN_WORDS = BACKGROUND_COLOURS.keys() | BACKGROUND_TEXTURES.keys() | BACKGROUND_MAYBE.keys()


class Truth(StrEnum):
    """The oracle's answer: true, false, or not decidable from the scene."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The oracle's judgement of a caption.

    Args:
        truth: Its answer.
        reason: Why the answer is UNKNOWN, empty otherwise.
        foreign: The caption has words that are not of the world.
    """

    truth: Truth
    reason: str = ""
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Oracle:
    """Decides captions of the world. It has no settings and keeps nothing between calls."""

    def verdict(self, claim: str | Form | SceneGraph, scene: Scene) -> Verdict:
        """Return whether a text, a logical form or a scene graph is true of the scene."""
        if isinstance(claim, SceneGraph):
            graph = graph_form(claim)
            return _verdict(_graph_holds(graph, scene), graph.foreign)
        try:
            form = parse(claim) if isinstance(claim, str) else claim
        except UngrammaticalError as error:
            return Verdict(Truth.UNKNOWN, f"ungrammatical: {error}")
        return _verdict(_form_holds(form, scene), any(map(_is_foreign, form)))


def _verdict(held: Maybe, foreign: bool) -> Verdict:
    if held is None:
        return Verdict(Truth.UNKNOWN, "ambiguous", foreign)
    return Verdict(Truth.TRUE if held else Truth.FALSE, "", foreign)


def _all(values: Iterable[Maybe]) -> Maybe:
    """Three-valued conjunction."""
    result: Maybe = True
    for value in values:
        if value is False:
            return False
        if value is None:
            result = None
    return result


def _any(values: Iterable[Maybe]) -> Maybe:
    """Three-valued disjunction."""
    return _not(_all(map(_not, values)))


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


def _form_holds(form: Form, scene: Scene) -> Maybe:
    held = _all(_statement_holds(statement, scene) for statement in form)
    return held if held is False or _distinct(form, scene) else None


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
            each = _number(both, Quantifier.EXACTLY, phrase.number)
            return each if each is False or total else None
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


def _graph_holds(graph: GraphForm, scene: Scene) -> Maybe:
    """Return whether different things can be found for all nodes so that everything said holds."""
    if (world := _all(_statement_holds(s, scene) for s in graph.statements)) is False:
        return False
    fits = [_matches(node, scene) for node in graph.nodes]
    if len(graph.nodes) > len(scene.things):
        # Two nodes may be one thing mentioned twice, so too many nodes alone settle nothing.
        return None if all(any(v is not False for v in row) for row in fits) else False
    found = _any(
        _all(
            (
                *(fits[node][thing] for node, thing in enumerate(chosen)),
                *(
                    holds_between(name, scene.things[chosen[a]], scene.things[chosen[b]])
                    for a, name, b in graph.links
                ),
            )
        )
        for chosen in itertools.permutations(range(len(scene.things)), len(graph.nodes))
    )
    return _all((world, found))


def _is_foreign(part: Statement | Modifier) -> bool:
    match part:
        case Exists(phrase) | Lacking(phrase):
            return _is_foreign_phrase(phrase)
        case Claim(subject, modifiers):
            return _is_foreign_phrase(subject) or any(map(_is_foreign, modifiers))
        case Relation(name, phrase):
            return name == "foreign" or _is_foreign_phrase(phrase)
        case Attribute(family, value):
            return family == "foreign" and value not in _SCREEN_WORDS
        case Background(colour):
            return bool(colour) and colour not in _SCREEN_WORDS and colour not in ADJECTIVES
    return False


def _is_foreign_phrase(phrase: NounPhrase) -> bool:
    named = phrase.kinds or phrase.maybe or phrase.word in PLACES
    return not named or any(map(_is_foreign, phrase.modifiers))
