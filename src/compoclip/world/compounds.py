"""Which held-out compounds a caption names, so that tests can ask for exactly those."""

from __future__ import annotations

from collections.abc import Iterator

from compoclip.world.geometry import CONVERSE
from compoclip.world.logic import Attribute, Claim, Exists, Form, NounPhrase, Relation
from compoclip.world.scene import WorldConfig
from compoclip.world.splits import (
    HELD_RELATIONS,
    Pair,
    Triple,
    held_out_attributes,
    held_out_relations,
)


def _phrases(phrase: NounPhrase) -> Iterator[NounPhrase]:
    yield phrase
    for modifier in phrase.modifiers:
        if isinstance(modifier, Relation):
            yield from _phrases(modifier.object)


def compounds_in(form: Form) -> tuple[frozenset[Pair], frozenset[Triple]]:
    """The (colour, kind) pairs and (kind, relation, kind) triples that a caption names.

    A relation is given by the member of `splits.HELD_RELATIONS` that says the same ("right of"
    as "left" from the other side); other relations and denied properties name no compound.
    """
    pairs: set[Pair] = set()
    triples: set[Triple] = set()
    for statement in form:
        match statement:
            case Exists(phrase):
                tops = [phrase]
            case Claim(subject, modifiers):
                # What is said of the subject counts like what is said before the noun.
                joined = (*subject.modifiers, *modifiers)
                tops = [NounPhrase(subject.kinds, subject.word, joined)]
            case _:
                tops = []
        for phrase in (p for top in tops for p in _phrases(top)):
            for modifier in phrase.modifiers:
                if isinstance(modifier, Attribute):
                    if modifier.family == "colour" and not modifier.negated:
                        pairs.add((modifier.value, phrase.word))
                elif isinstance(modifier, Relation) and not modifier.negated:
                    triple = _canonical(phrase.word, modifier.name, modifier.object.word)
                    triples.update(() if triple is None else (triple,))
    return frozenset(pairs), frozenset(triples)


def _canonical(subject: str, name: str | None, other: str) -> Triple | None:
    if name in HELD_RELATIONS:
        return subject, name, other
    if name in CONVERSE and CONVERSE[name] in HELD_RELATIONS:
        return other, CONVERSE[name], subject
    return None


def names_held_out(form: Form, config: WorldConfig) -> bool:
    """Whether a caption names a compound that ordinary splits never show."""
    pairs, triples = compounds_in(form)
    return bool(pairs & held_out_attributes(config) or triples & held_out_relations(config))
