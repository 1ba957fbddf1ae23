"""Single edits of a logical form: every way to change it for one skill."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from compoclip.errors import UsageError
from compoclip_world.captions import WorldCaption
from compoclip_world.geometry import CONVERSE, POSITIONS
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
from compoclip_world.oracle import Oracle, Truth
from compoclip_world.scene import Scene
from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    BACKDROP_TEXTURES,
    KINDS,
    NUMERALS,
    VALUES,
)
from compoclip_world.wording import Wording

Node = Statement | Modifier | NounPhrase

_OPPOSITE = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}
_PLACING = ("left", "right", "above", "below")


def _children(node: Node) -> tuple[Node, ...]:
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


def nodes_of(form: Form) -> list[Node]:
    """All statements, noun phrases and modifiers of the form, outermost first."""
    found: list[Node] = []

    def visit(node: Node) -> None:
        found.append(node)
        for child in _children(node):
            visit(child)

    for statement in form:
        visit(statement)
    return found


def substitute(form: Form, changes: dict[int, Node]) -> Form:
    """The form with the nodes at the given places of `nodes_of` replaced."""
    place = -1

    def visit(node: Node) -> Node:
        nonlocal place
        place += 1
        here = place
        children = tuple(visit(child) for child in _children(node))
        if here in changes:
            return changes[here]
        match node:
            case Exists():
                return Exists(cast(NounPhrase, children[0]))
            case Claim():
                modifiers = cast(tuple[Modifier, ...], children[1:])
                return Claim(cast(NounPhrase, children[0]), modifiers)
            case NounPhrase():
                return replace(node, modifiers=cast(tuple[Modifier, ...], children))
            case Relation() | Lacking():
                return replace(node, object=cast(NounPhrase, children[0]))
        return node

    return cast(Form, tuple(visit(statement) for statement in form))


def with_values(phrase: NounPhrase, family: str, value: str) -> NounPhrase:
    """The phrase with its attribute of this family set to the value."""
    return replace(
        phrase,
        modifiers=tuple(
            replace(m, value=value) if isinstance(m, Attribute) and m.family == family else m
            for m in phrase.modifiers
        ),
    )


def _value(phrase: NounPhrase, family: str) -> str | None:
    for m in phrase.modifiers:
        if isinstance(m, Attribute) and m.family == family and not m.negated:
            return m.value
    return None


def _described(form: Form, family: str) -> list[tuple[int, Node, str]]:
    """Places that carry a value of the family, with the noun they belong to: phrases, claims."""
    found: list[tuple[int, Node, str]] = []
    for place, node in enumerate(nodes_of(form)):
        if isinstance(node, NounPhrase) and (value := _value(node, family)):
            found.append((place, node, value))
        if isinstance(node, Claim):
            said = NounPhrase(frozenset(), "", node.modifiers)
            if value := _value(said, family):
                found.append((place, node, value))
    return found


def _set(node: Node, family: str, value: str) -> Node:
    if isinstance(node, Claim):
        said = with_values(NounPhrase(frozenset(), "", node.modifiers), family, value)
        return replace(node, modifiers=said.modifiers)
    return with_values(cast(NounPhrase, node), family, value)


def swaps_of_values(form: Form, family: str) -> Iterator[Form]:
    """Forms with two different values of the family exchanged between two descriptions."""
    places = _described(form, family)
    for k, (i, a, first) in enumerate(places):
        for j, b, second in places[k + 1 :]:
            if first != second and not _nested(a, b):
                yield substitute(form, {i: _set(a, family, second), j: _set(b, family, first)})
            elif first != second:
                yield substitute_nested(form, i, j, family, first, second)


def _nested(a: Node, b: Node) -> bool:
    return any(child is b or _nested(child, b) for child in _children(a))


def substitute_nested(
    form: Form, outer: int, inner: int, family: str, first: str, second: str
) -> Form:
    """Exchange values where the second description lies within the first ("a star by a mug")."""
    nodes = nodes_of(form)
    changed = substitute(form, {inner: _set(nodes[inner], family, first)})
    return substitute(changed, {outer: _set(nodes_of(changed)[outer], family, second)})


def replacements_of_values(form: Form, family: str) -> Iterator[Form]:
    """Forms with one value of the family replaced by another."""
    for place, node in enumerate(nodes_of(form)):
        if isinstance(node, Attribute) and node.family == family:
            for value in VALUES[family]:
                if value != node.value:
                    yield substitute(form, {place: replace(node, value=value)})


def replacements_of_kinds(form: Form) -> Iterator[Form]:
    """Forms with one noun replaced by another kind."""
    used = {n.word for n in nodes_of(form) if isinstance(n, NounPhrase)}
    for place, node in enumerate(nodes_of(form)):
        if isinstance(node, NounPhrase):
            for kind in KINDS:
                if kind not in used:
                    changed = replace(node, kinds=frozenset((kind,)), word=kind)
                    yield substitute(form, {place: changed})


def swaps_of_arguments(form: Form) -> Iterator[Form]:
    """Forms with the two sides of a relation exchanged, each keeping its attributes."""
    for place, node in enumerate(nodes_of(form)):
        if isinstance(node, NounPhrase):
            relations = [m for m in node.modifiers if isinstance(m, Relation)]
            if len(relations) != 1 or len({type(m) for m in node.modifiers} - {Attribute}) != 1:
                continue
            link = relations[0]
            outer = tuple(m for m in node.modifiers if m is not link)
            inner = replace(node, modifiers=outer)
            swapped = replace(link, object=inner)
            other = replace(link.object, modifiers=(*link.object.modifiers, swapped))
            yield substitute(form, {place: other})
        if isinstance(node, Claim) and len(node.modifiers) == 1:
            said = node.modifiers[0]
            if isinstance(said, Relation):
                swapped = replace(said, object=node.subject)
                yield substitute(form, {place: Claim(said.object, (swapped,))})


def replacements_of_relations(form: Form) -> Iterator[Form]:
    """Forms with a relation replaced: by its converse first, then by other placings."""
    for place, node in enumerate(nodes_of(form)):
        if isinstance(node, Relation) and node.name in CONVERSE and node.name != "same colour":
            others = [CONVERSE[node.name]]
            if node.name in ("inside", "around"):
                others = list(_PLACING)
            elif node.name in _PLACING:
                others += [r for r in _PLACING if r not in (node.name, *others)]
            for name in others:
                yield substitute(form, {place: replace(node, name=name)})


def replacements_of_counts(form: Form) -> Iterator[Form]:
    """Forms with a number replaced by another one up to four."""
    for place, node in enumerate(nodes_of(form)):
        if isinstance(node, NounPhrase) and node.quantifier is Quantifier.EXACTLY:
            for number in NUMERALS:
                if number != node.number:
                    yield substitute(form, {place: replace(node, number=number)})


def negations(form: Form) -> Iterator[Form]:
    """Forms that deny what was claimed, or claim what was denied."""
    for place, node in enumerate(nodes_of(form)):
        match node:
            case Exists(phrase) if phrase.quantifier is Quantifier.NONE:
                yield substitute(form, {place: Exists(replace(phrase, quantifier=Quantifier.SOME))})
            case Exists(phrase) if phrase.quantifier is Quantifier.SOME and phrase.number == 1:
                yield substitute(form, {place: Exists(replace(phrase, quantifier=Quantifier.NONE))})
            case Claim(_, modifiers) if len(modifiers) == 1:
                said = modifiers[0]
                if isinstance(said, Attribute | Relation | Position):
                    changed = replace(said, negated=not said.negated)
                    yield substitute(form, {place: replace(node, modifiers=(changed,))})


def replacements_of_positions(form: Form) -> Iterator[Form]:
    """Forms with a place replaced: by the opposite one first, then by any other."""
    for place, node in enumerate(nodes_of(form)):
        if isinstance(node, Position) and node.name is not None:
            opposite = " ".join(_OPPOSITE.get(word, word) for word in node.name.split())
            for name in dict.fromkeys((opposite, *POSITIONS)):
                if name != node.name:
                    yield substitute(form, {place: replace(node, name=name)})


def replacements_of_backgrounds(form: Form) -> Iterator[Form]:
    """Forms with the colour, or else the texture, of the background replaced."""
    for place, node in enumerate(nodes_of(form)):
        if isinstance(node, Background):
            family = "colour" if node.colour else "texture"
            for value in BACKDROP_COLOURS if node.colour else BACKDROP_TEXTURES:
                if value != getattr(node, family):
                    changed = (
                        replace(node, colour=value) if node.colour else replace(node, texture=value)
                    )
                    yield substitute(form, {place: changed})


# --- Captions that differ in one thing: hard negatives and hard positives of a caption. ---

_ORACLE = Oracle()

NEGATIVES: dict[str, Callable[[Form], Iterable[Form]]] = {
    "replace-object": replacements_of_kinds,
    "replace-colour": partial(replacements_of_values, family="colour"),
    "replace-size": partial(replacements_of_values, family="size"),
    "replace-pattern": partial(replacements_of_values, family="pattern"),
    "replace-relation": replacements_of_relations,
    "swap-colour": partial(swaps_of_values, family="colour"),
    "swap-size": partial(swaps_of_values, family="size"),
    "swap-pattern": partial(swaps_of_values, family="pattern"),
    "swap-object": swaps_of_arguments,
    "count": replacements_of_counts,
    "negation": negations,
    "position": replacements_of_positions,
    "background": replacements_of_backgrounds,
}
"""Skill -> all forms one such edit away. "word-order" works on the text and is not listed here."""

NEGATIVE_SKILLS: tuple[str, ...] = (*NEGATIVES, "word-order")
POSITIVE_RULES: tuple[str, ...] = ("synonym", "phrase", "converse", "and-swap")


@dataclass(frozen=True, slots=True)
class Contrast:
    """A true caption and another text that differs from it by one edit.

    other: false of the scene for a hard negative, true for a hard positive (`keeps_meaning`).
    skill: a member of `NEGATIVE_SKILLS` or `POSITIVE_RULES`.
    """

    caption: str
    other: str
    skill: str
    keeps_meaning: bool


def hard_negative(
    scene: Scene, caption: WorldCaption, skill: str, rng: random.Random
) -> Contrast | None:
    """A pair (true, false) for one skill; None when the caption offers no such edit.

    Both texts are worded anew in the same way, so that they differ by the edit alone. The oracle
    has judged the first TRUE and the second FALSE. A "word-order" negative is a scrambled text,
    which the oracle must not judge TRUE.

    Raises:
        UsageError: For an unknown skill.
    """
    if skill not in NEGATIVE_SKILLS:
        raise UsageError(f"world: unknown skill {skill!r}; known: {', '.join(NEGATIVE_SKILLS)}")
    style = rng.randrange(2**32)
    text = _worded(caption.form, style)
    if not _is(text, scene, Truth.TRUE):
        return None
    if skill == "word-order":
        return _scrambled(scene, text, rng)
    forms = list(NEGATIVES[skill](caption.form))
    # Relations and positions list the most telling edit first; the others have no order.
    if skill not in ("replace-relation", "position") or rng.random() < 0.3:
        rng.shuffle(forms)
    for form in forms:
        other = _worded(form, style)
        if other != text and _is(other, scene, Truth.FALSE):
            return Contrast(text, other, skill, keeps_meaning=False)
    return None


def _scrambled(scene: Scene, text: str, rng: random.Random) -> Contrast | None:
    words = text.split()
    for _ in range(10):
        rng.shuffle(words)
        other = " ".join(words)
        if other != text and not _is(other, scene, Truth.TRUE):
            return Contrast(text, other, "word-order", keeps_meaning=False)
    return None


def hard_positive(
    scene: Scene, caption: WorldCaption, rule: str, rng: random.Random
) -> Contrast | None:
    """A pair (true, also true); None when the rule does not apply to the caption.

    Args:
        scene: What the caption is true of.
        caption: The caption to reword.
        rule: "synonym" (other nouns and adjectives), "phrase" (other words for relations and
            positions), "converse" ("a star left of a mug" as "a mug right of a star") or
            "and-swap" (the statements joined by "and" in reverse).
        rng: Of all choices.

    Raises:
        UsageError: For an unknown rule.
    """
    style = rng.randrange(2**32)
    text = _worded(caption.form, style, variants=0.0)
    match rule:
        case "synonym":
            other = _worded(caption.form, style, synonyms=1.0, variants=0.0)
        case "phrase":
            other = _worded(caption.form, style, variants=1.0)
        case "converse":
            form = _converse(caption.form)
            if form is None:
                return None
            other = _worded(form, style, variants=0.0)
        case "and-swap":
            if len(caption.form) != 2:
                return None
            other = _worded(caption.form[::-1], style, variants=0.0)
        case _:
            raise UsageError(f"world: unknown rule {rule!r}; known: {', '.join(POSITIVE_RULES)}")
    if other == text or not (_is(text, scene, Truth.TRUE) and _is(other, scene, Truth.TRUE)):
        return None
    return Contrast(text, other, rule, keeps_meaning=True)


def _converse(form: Form) -> Form | None:
    """The form with its first relation told from the other side, or None without a relation."""
    for place, node in enumerate(nodes_of(form)):
        if not isinstance(node, Relation) or node.name not in CONVERSE:
            continue
        told = substitute(form, {place: replace(node, name=CONVERSE[node.name])})
        return next(iter(swaps_of_arguments(told)), None)
    return None


def _worded(form: Form, style: int, synonyms: float = 0.0, variants: float = 0.5) -> str:
    wording = Wording(random.Random(style), synonyms, variants, colour_first=style % 5 < 2)
    return wording.caption(form)


def _is(text: str, scene: Scene, truth: Truth) -> bool:
    return _ORACLE.verdict(text, scene).truth is truth
