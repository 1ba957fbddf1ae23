"""Why a scene graph differs from a human one: each triple that only one side has, by kind."""

from __future__ import annotations

from collections import Counter

from compoclip.captions.factual_form import Triple
from compoclip.captions.graph_score import Facts

#: The kinds in the order in which they are tried.
KINDS = (
    "attribute of another object",
    "attribute is part of a name",
    "attribute only on this side",
    "relation turned round",
    "relation in other words",
    "relation attached elsewhere",
    "relation whose object has another name",
    "relation only on this side",
)


def differences(facts: Facts, others: Facts) -> Counter[str]:
    """How many triples of `facts` that `others` lacks are of each kind (`KINDS`).

    With the human facts first these are what was missed, with them last what is too much.
    """
    return Counter(_kind(triple, facts, others) for triple in facts.triples - others.triples)


def _kind(triple: Triple, facts: Facts, others: Facts) -> str:
    subject, predicate, target = triple
    if predicate == "is":
        if any(p == "is" and t == target for _, p, t in others.triples):
            return KINDS[0]
        names = others.entities - facts.entities
        inside = any(set(target.split()) & set(name.split()) for name in names)
        return KINDS[1] if inside else KINDS[2]
    relations = [t for t in others.triples - facts.triples if t[1] != "is"]
    if any((s, t) == (target, subject) for s, _, t in relations):
        return KINDS[3]
    if any((s, t) == (subject, target) for s, _, t in relations):
        return KINDS[4]
    if not {subject, target} <= others.entities:
        return KINDS[6]
    if any(s == subject or t == target for s, _, t in relations):
        return KINDS[5]
    return KINDS[7]
