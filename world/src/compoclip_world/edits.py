"""Single edits of a logical form: every way to change it for one skill."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any, cast

from compoclip_world.geometry import CONVERSE, PLACINGS, POSITIONS
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
    children,
    nodes_of,
)
from compoclip_world.oracle import is_false, is_true
from compoclip_world.scene import Scene
from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    BACKDROP_TEXTURES,
    KINDS,
    NUMERALS,
    VALUES,
    require_known,
)
from compoclip_world.wording import Wording

OPPOSITE = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}


def substitute(form: Form, changes: dict[int, Node]) -> Form:
    """The form with the nodes at the given places of `nodes_of` replaced."""
    place = -1

    def visit(node: Node) -> Node:
        nonlocal place
        place += 1
        here = place
        parts = tuple(visit(child) for child in children(node))
        if here in changes:
            return changes[here]
        match node:
            case Exists():
                return Exists(cast(NounPhrase, parts[0]))
            case Claim():
                modifiers = cast(tuple[Modifier, ...], parts[1:])
                return Claim(cast(NounPhrase, parts[0]), modifiers)
            case NounPhrase():
                return replace(node, modifiers=cast(tuple[Modifier, ...], parts))
            case Relation() | Lacking():
                return replace(node, object=cast(NounPhrase, parts[0]))
        return node

    return cast(Form, tuple(visit(statement) for statement in form))


def _edit(change: Callable[..., Iterable[Node]]) -> Callable[..., Iterator[Form]]:
    """Make of a change of nodes an edit of forms: one node replaced by each that `change` gives."""

    @wraps(change)
    def edit(form: Form, *options: Any, **named: Any) -> Iterator[Form]:
        for place, node in enumerate(nodes_of(form)):
            for changed in change(node, *options, **named):
                yield substitute(form, {place: changed})

    return edit


def _set(node: Node, family: str, value: str) -> Node:
    """The node with its attribute of this family set to the value."""
    described = cast(NounPhrase | Claim, node)
    return replace(
        described,
        modifiers=tuple(
            replace(m, value=value) if isinstance(m, Attribute) and m.family == family else m
            for m in described.modifiers
        ),
    )


def swaps_of_values(form: Form, family: str) -> Iterator[Form]:
    """Forms with two different values of the family exchanged between two descriptions."""
    places = [
        (place, node, value)
        for place, node in enumerate(nodes_of(form))
        if isinstance(node, NounPhrase | Claim)
        for value in [
            m.value
            for m in node.modifiers
            if isinstance(m, Attribute) and m.family == family and not m.negated
        ][:1]
    ]
    for k, (i, _, first) in enumerate(places):
        for j, b, second in places[k + 1 :]:
            if first != second:  # the second description may lie within the first
                changed = substitute(form, {j: _set(b, family, first)})
                outer = nodes_of(changed)[i]
                yield substitute(changed, {i: _set(outer, family, second)})


@_edit
def replacements_of_values(node: Node, family: str) -> Iterator[Node]:
    """Forms with one value of the family replaced by another."""
    if isinstance(node, Attribute) and node.family == family:
        yield from (replace(node, value=v) for v in VALUES[family] if v != node.value)


@_edit
def _of_kinds(node: Node, kinds: Iterable[str]) -> Iterator[Node]:
    if isinstance(node, NounPhrase):
        yield from (replace(node, kinds=frozenset((kind,)), word=kind) for kind in kinds)


def replacements_of_kinds(form: Form) -> Iterator[Form]:
    """Forms with one noun replaced by another kind."""
    used = {n.word for n in nodes_of(form) if isinstance(n, NounPhrase)}
    return _of_kinds(form, [kind for kind in KINDS if kind not in used])


@_edit
def swaps_of_arguments(node: Node) -> Iterator[Node]:
    """Forms with the two sides of a relation exchanged, each keeping its attributes."""
    match node:
        case NounPhrase():
            relations = [m for m in node.modifiers if isinstance(m, Relation)]
            if len(relations) == 1 and all(
                isinstance(m, Attribute | Relation) for m in node.modifiers
            ):
                link = relations[0]
                inner = replace(node, modifiers=tuple(m for m in node.modifiers if m is not link))
                swapped = replace(link, object=inner)
                yield replace(link.object, modifiers=(*link.object.modifiers, swapped))
        case Claim(subject, (Relation() as relation,)):
            yield Claim(relation.object, (replace(relation, object=subject),))


@_edit
def replacements_of_relations(node: Node) -> Iterator[Node]:
    """Forms with a relation replaced: by its converse first, then by other placings."""
    if isinstance(node, Relation) and node.name in CONVERSE and node.name != "same colour":
        others = [CONVERSE[node.name]]
        if node.name in ("inside", "around"):
            others = list(PLACINGS)
        elif node.name in PLACINGS:
            others += [r for r in PLACINGS if r not in (node.name, *others)]
        yield from (replace(node, name=name) for name in others)


@_edit
def replacements_of_counts(node: Node) -> Iterator[Node]:
    """Forms with a number replaced by another one up to four."""
    if isinstance(node, NounPhrase) and node.quantifier is Quantifier.EXACTLY:
        yield from (replace(node, number=n) for n in NUMERALS if n != node.number)


@_edit
def negations(node: Node) -> Iterator[Node]:
    """Forms that deny what was claimed, or claim what was denied."""
    match node:
        case Exists(phrase) if phrase.quantifier is Quantifier.NONE:
            yield Exists(replace(phrase, quantifier=Quantifier.SOME))
        case Exists(phrase) if phrase.quantifier is Quantifier.SOME and phrase.number == 1:
            yield Exists(replace(phrase, quantifier=Quantifier.NONE))
        case Claim(_, (Attribute() | Relation() | Position() as claimed,)):
            yield replace(node, modifiers=(replace(claimed, negated=not claimed.negated),))


@_edit
def replacements_of_positions(node: Node) -> Iterator[Node]:
    """Forms with a place replaced: by the opposite one first, then by any other."""
    if isinstance(node, Position) and node.name is not None:
        opposite = " ".join(OPPOSITE.get(word, word) for word in node.name.split())
        for name in dict.fromkeys((opposite, *POSITIONS)):
            if name != node.name:
                yield replace(node, name=name)


@_edit
def replacements_of_backgrounds(node: Node) -> Iterator[Node]:
    """Forms with the colour, or else the texture, of the background replaced."""
    if isinstance(node, Background):
        if node.colour:
            yield from (replace(node, colour=c) for c in BACKDROP_COLOURS if c != node.colour)
        else:
            yield from (replace(node, texture=t) for t in BACKDROP_TEXTURES if t != node.texture)


# --- Captions that differ in one thing: hard negatives and hard positives of a caption. ---

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


def hard_negative(
    scene: Scene, form: Form, skill: str, rng: random.Random
) -> tuple[str, str] | None:
    """Return a true caption of the form, and a false one; None when the form offers no such edit.

    Both texts are worded in the same way, so that they differ by the edit alone. The oracle has
    judged the first TRUE and the second FALSE. A "word-order" negative is a scrambled text, which
    the oracle must not judge TRUE. Raises UsageError for a skill that is none of `NEGATIVE_SKILLS`.
    """
    require_known("skill", (skill,), NEGATIVE_SKILLS)
    style = rng.randrange(2**32)
    text = _worded(form, style)
    if not is_true(text, scene):
        return None
    if skill == "word-order":
        words = text.split()
        for _ in range(10):
            rng.shuffle(words)
            other = " ".join(words)
            if other != text and not is_true(other, scene):
                return text, other
        return None
    changed = list(NEGATIVES[skill](form))
    # Relations and positions list the most telling edit first; the others have no order.
    if skill not in ("replace-relation", "position") or rng.random() < 0.3:
        rng.shuffle(changed)
    others = (_worded(other, style) for other in changed)
    return next(((text, o) for o in others if o != text and is_false(o, scene)), None)


def hard_positive(
    scene: Scene, form: Form, rule: str, rng: random.Random
) -> tuple[str, str] | None:
    """Return a true caption of the form, and another one; None when the rule does not apply.

    rule: "synonym" (other nouns and adjectives), "phrase" (other words for relations and
    positions), "converse" ("a star left of a mug" as "a mug right of a star") or "and-swap" (the
    statements joined by "and" in reverse). Raises UsageError for another one.
    """
    require_known("rule", (rule,), POSITIVE_RULES)
    style = rng.randrange(2**32)
    changed: Form | None = form
    if rule == "converse":
        changed = _converse(form)
    elif rule == "and-swap":
        changed = form[::-1] if len(form) == 2 else None
    if changed is None:
        return None
    text = _worded(form, style, variants=0.0)
    synonyms, variants = (float(rule == chosen) for chosen in ("synonym", "phrase"))
    other = _worded(changed, style, synonyms, variants)
    if other == text or not (is_true(text, scene) and is_true(other, scene)):
        return None
    return text, other


def _converse(form: Form) -> Form | None:
    """The form with its first relation told from the other side, or None without a relation."""
    for place, node in enumerate(nodes_of(form)):
        if not isinstance(node, Relation) or node.name not in CONVERSE:
            continue
        turned = substitute(form, {place: replace(node, name=CONVERSE[node.name])})
        return next(iter(swaps_of_arguments(turned)), None)
    return None


def _worded(form: Form, style: int, synonyms: float = 0.0, variants: float = 0.5) -> str:
    wording = Wording(random.Random(style), synonyms, variants, colour_first=style % 5 < 2)
    return wording.caption(form)
