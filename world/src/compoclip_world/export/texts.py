"""True and false captions of a scene for each kind of edit, all decided by the oracle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from compoclip_world.captions import CAPTION_TYPES, Facts, absent, facts_of
from compoclip_world.edits import POSITIVE_RULES, hard_negative, hard_positive, substitute
from compoclip_world.logic import (
    Attribute,
    Claim,
    Exists,
    Form,
    Node,
    NounPhrase,
    Quantifier,
    Relation,
    nodes_of,
)
from compoclip_world.oracle import is_false, is_true
from compoclip_world.parser import parse
from compoclip_world.sampling import names_held_out
from compoclip_world.scene import Scene, WorldConfig
from compoclip_world.vocabulary import FAMILIES, KINDS, SYNONYMS, VALUES, usual, with_article
from compoclip_world.wording import Wording

_TRIES = 6
_GENERAL = ("object", "conjunction", "relation", "position", "predicate")
_SELDOM = ("plain", usual("medium"))
"""Values that true captions rarely mention, so that they would give a false caption away."""
_SYNONYMS = {**SYNONYMS, usual("medium"): SYNONYMS["medium"]}


@dataclass(frozen=True)
class Foil:
    """A caption of the scene, a false one a single edit away, and what the true one says."""

    caption: str
    negative: str
    form: Form


TASKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "replace_obj": (_GENERAL, ("replace-object",)),
    "replace_att": (_GENERAL, tuple(f"replace-{f}" for f in FAMILIES)),
    "replace_rel": (("relation",), ("replace-relation",)),
    "swap_obj": (("relation",), ("swap-object",)),
    "swap_att": (("conjunction", "relation"), tuple(f"swap-{f}" for f in FAMILIES)),
}
"""Sub-task -> caption types it starts from, and the edits (`hard_negative`) it may use."""

ADDITIONS = ("add_obj", "add_att")


def foil(scene: Scene, rng: Random, config: WorldConfig, task: str) -> Foil | None:
    """A true and a false caption for a sub-task of `TASKS` or `ADDITIONS`; None if none came up.

    The oracle has judged them TRUE and FALSE, and both are `seemly`.
    """
    facts = facts_of(scene)
    for _ in range(_TRIES):
        types, skills = TASKS.get(task, (_GENERAL, ()))
        kind = rng.choice(types)
        form = CAPTION_TYPES[kind][1](facts, config, rng)
        if form is None or not seemly(form, config):
            continue
        if skills:
            texts = hard_negative(scene, form, rng.choice(skills), rng)
            candidate = Foil(*texts, form) if texts else None
        else:
            candidate = _addition(facts, form, task, config, rng)
        if candidate is None or (task.startswith("swap") and not _same_words(candidate)):
            continue
        if (
            task == "replace_att"
            and changed_words(candidate.caption, candidate.negative)[1] in _SELDOM
        ):
            continue
        if seemly(parse(candidate.negative), config):
            return candidate
    return None


def _same_words(candidate: Foil) -> bool:
    """True if both captions use the same words, articles aside: a swap changes their order only."""
    texts = (candidate.caption, candidate.negative)
    first, second = (
        sorted(w for w in text.replace(",", "").split() if w not in ("a", "an")) for text in texts
    )
    return first == second


def _addition(facts: Facts, form: Form, task: str, config: WorldConfig, rng: Random) -> Foil | None:
    """The caption with a thing (add_obj) or a property (add_att) more, which is not there."""
    if task == "add_obj":
        more = replace(absent(facts, config, rng), quantifier=Quantifier.SOME)
        longer: Form | None = (*form, Exists(more))
    else:
        longer = _described(form, rng)
    if longer is None:
        return None
    style, colour_first = rng.randrange(2**32), rng.random() < 0.4
    texts = [
        Wording(Random(style), variants=0.5, colour_first=colour_first).caption(version)
        for version in (form, longer)
    ]
    if task == "add_att" and changed_words(*texts)[0]:
        return None  # the new word made later words be put in another way
    if is_true(texts[0], facts.scene) and is_false(texts[1], facts.scene):
        return Foil(texts[0], texts[1], form)
    return None


def _described(form: Form, rng: Random) -> Form | None:
    """The form with one property more on one of its things."""
    places = [
        (place, node, family)
        for place, node in enumerate(nodes_of(form))
        if isinstance(node, NounPhrase)
        for family in FAMILIES
        if family not in {m.family for m in node.modifiers if isinstance(m, Attribute)}
    ]
    if not places:
        return None
    place, node, family = rng.choice(places)
    new = Attribute(family, rng.choice(VALUES[family]))
    return substitute(form, {place: replace(node, modifiers=(new, *node.modifiers))})


def paraphrase(scene: Scene, base: Foil, rng: Random) -> str | None:
    """Another true caption that says the same as the base in other words or another order.

    None when no rule of `hard_positive` changes the text.
    """
    rules = [*POSITIVE_RULES]
    rng.shuffle(rules)
    for rule in rules:
        texts = hard_positive(scene, base.form, rule, rng)
        if texts and texts[1] not in (base.caption, base.negative):
            return texts[1]
    return None


def seemly(form: Form, config: WorldConfig) -> bool:
    """True if a training caption could say this.

    False for kinds and colours that the config leaves out, held-out compounds, patterns on kinds
    that cannot show them, and things inside solid ones: a false caption with those could be told
    from its words alone.
    """
    nodes = nodes_of(form)
    return not names_held_out(form, config) and all(_known(n, config) and _can_be(n) for n in nodes)


def _known(node: Node, config: WorldConfig) -> bool:
    """True if the config has the kinds and colours that the node names."""
    match node:
        case NounPhrase():
            return node.kinds <= set(config.known_kinds)
        case Attribute("colour", value):
            return value in config.known_colours
    return True


def _can_be(node: Node) -> bool:
    """True if things can have the patterns and contents that the node claims."""
    match node:
        case NounPhrase():
            kinds, modifiers = node.kinds, node.modifiers
        case Claim():
            kinds, modifiers = node.subject.kinds, node.modifiers
        case _:
            return True
    for m in modifiers:
        match m:
            case Attribute("pattern", value) if value != "plain":
                if any(KINDS[kind].marked_from is None for kind in kinds):
                    return False
            case Relation("inside" | "around", other):
                outer = other.kinds if m.name == "inside" else kinds
                if not all(KINDS[kind].hollow for kind in outer):
                    return False
    return True


def changed_words(text: str, other: str) -> tuple[str, str]:
    """The stretch of words in which two texts differ, as it reads in each; articles left out."""
    a, b = text.split(), other.split()
    while a and b and _same(a[0], b[0]):
        del a[0], b[0]
    while a and b and _same(a[-1], b[-1]):
        del a[-1], b[-1]
    return " ".join(a), " ".join(b)


def _same(a: str, b: str) -> bool:
    return a == b or {a, b} == {"a", "an"}


def with_synonym(text: str, word: str, rng: Random) -> str | None:
    """The text with the first occurrence of a word of the world replaced by a synonym.

    An article before it is put right. None when the word has no synonym or is not in the text.
    """
    choices = [w for w in _SYNONYMS.get(word, ()) if w != word]
    spot = re.search(rf"(?:\b(an?) )?\b{re.escape(word)}\b", text)
    if not choices or spot is None:
        return None
    new: str = rng.choice(choices)
    new = with_article(new) if spot[1] else new
    return text[: spot.start()] + new + text[spot.end() :]


def phrases_of(texts: Sequence[str], text: str) -> str | None:
    """The longest of the phrases `texts` that occurs in the text, or None."""
    matches = [phrase for phrase in texts if f" {phrase} " in f" {text} "]
    return max(matches, key=len) if matches else None
