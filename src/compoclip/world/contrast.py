"""Captions that differ in one thing: hard negatives and hard positives of a caption."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from compoclip.errors import UsageError
from compoclip.world import edits
from compoclip.world.captions import WorldCaption
from compoclip.world.geometry import CONVERSE
from compoclip.world.logic import Form, Relation
from compoclip.world.oracle import Oracle, Truth
from compoclip.world.scene import Scene
from compoclip.world.wording import Wording

_ORACLE = Oracle()

NEGATIVES: dict[str, Callable[[Form], Iterable[Form]]] = {
    "replace-object": edits.replacements_of_kinds,
    "replace-colour": partial(edits.replacements_of_values, family="colour"),
    "replace-size": partial(edits.replacements_of_values, family="size"),
    "replace-pattern": partial(edits.replacements_of_values, family="pattern"),
    "replace-relation": edits.replacements_of_relations,
    "swap-colour": partial(edits.swaps_of_values, family="colour"),
    "swap-size": partial(edits.swaps_of_values, family="size"),
    "swap-pattern": partial(edits.swaps_of_values, family="pattern"),
    "swap-object": edits.swaps_of_arguments,
    "count": edits.replacements_of_counts,
    "negation": edits.negations,
    "position": edits.replacements_of_positions,
    "background": edits.replacements_of_backgrounds,
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
    which the oracle must not judge TRUE. Raises UsageError for an unknown skill.
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

    synonym: other nouns and adjectives. phrase: other words for relations and positions.
    converse: "a star left of a mug" as "a mug right of a star". and-swap: the statements joined by
    "and" in reverse. Raises UsageError for an unknown rule.
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
    for place, node in enumerate(edits.nodes_of(form)):
        if not isinstance(node, Relation) or node.name not in CONVERSE:
            continue
        told = edits.substitute(form, {place: replace(node, name=CONVERSE[node.name])})
        return next(iter(edits.swaps_of_arguments(told)), None)
    return None


def _worded(form: Form, style: int, synonyms: float = 0.0, variants: float = 0.5) -> str:
    wording = Wording(random.Random(style), synonyms, variants, colour_first=style % 5 < 2)
    return wording.caption(form)


def _is(text: str, scene: Scene, truth: Truth) -> bool:
    return _ORACLE.verdict(text, scene).truth is truth
