"""How well scene graphs agree with human ones in the FACTUAL format: strict set comparison.

A caption's graph is a set of (subject, predicate, object) triples and a set of entities, the names
that stand as subject or object of a relation or as subject of an attribute; a graph without
triples is one or more bare objects. Two triples are equal when all three strings are, after
`normal_triple`: lower case, noun names in the singular, verbs as lemmas. No synonyms, no partial
credit. Pooled F1 counts matches over the whole file; mean F1 averages each caption's F1 (two empty
sets agree: 1); exact is the share of captions whose two sets of triples are equal (FACTUAL's "set
match").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compoclip.captions.factual_form import Triple, factual_objects, factual_triples
from compoclip.captions.lemmas import lemma_of
from compoclip.captions.types import SceneGraph


@dataclass(frozen=True, slots=True)
class Facts:
    """A graph as sets of normal triples and entity names."""

    triples: frozenset[Triple]
    entities: frozenset[str]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Scores of a set of graphs against their references, see the module docstring."""

    captions: int
    precision: float
    recall: float
    f1: float
    mean_f1: float
    exact: float


def parse_facts(text: str) -> Facts:
    """The facts of a graph in FACTUAL's notation, "( a , is , red ) , ( b )".

    Raises ValueError when the text is not in that notation.
    """
    stripped = text.strip()
    if not (stripped.startswith("(") and stripped.endswith(")")):
        raise ValueError("no list of ( subject , predicate , object )")
    triples, bare = [], []
    for part in stripped[1:-1].split(") , ("):
        names = [name.strip() for name in part.split(" , ")]
        if len(names) not in (1, 3) or not all(names):
            raise ValueError(f"({part}) is neither an object nor a triple")
        if len(names) == 3:
            triples.append((names[0], names[1], names[2]))
        else:
            bare.append(names[0])
    return _facts(triples, bare)


def graph_facts(graph: SceneGraph) -> Facts:
    """The facts of a parsed graph in FACTUAL's form."""
    triples = factual_triples(graph)
    return _facts(triples, () if triples else factual_objects(graph))


def _facts(triples: Iterable[Triple], bare: Iterable[str]) -> Facts:
    normal = frozenset(normal_triple(triple) for triple in triples)
    entities = {normal_noun(name) for name in bare}
    for subject, predicate, target in normal:
        entities.add(subject)
        if predicate != "is":
            entities.add(target)
    return Facts(normal, frozenset(entities))


def normal_triple(triple: Triple) -> Triple:
    """Lower case; nouns singular; the predicate's first word a verb lemma."""
    subject, predicate, target = triple
    first, _, rest = predicate.lower().partition(" ")
    if first != "is":
        first = lemma_of(first, "VERB", "VBZ")
    predicate = f"{first} {rest}".strip()
    target = target.lower() if predicate == "is" else normal_noun(target)
    return normal_noun(subject), predicate, target


def normal_noun(name: str) -> str:
    """Lower case, the last word in the singular."""
    rest, space, last = name.lower().rpartition(" ")
    return rest + space + lemma_of(last, "NOUN", "NNS")


def agreement(pairs: Iterable[tuple[frozenset[object], frozenset[object]]]) -> Agreement:
    """Scores of (found, wanted) sets, one pair a caption."""
    matched = found_count = wanted_count = captions = exact = 0
    total = 0.0
    for found, wanted in pairs:
        both = len(found & wanted)
        matched, captions = matched + both, captions + 1
        found_count, wanted_count = found_count + len(found), wanted_count + len(wanted)
        exact += found == wanted
        size = len(found) + len(wanted)
        total += 2 * both / size if size else 1.0
    size = found_count + wanted_count
    return Agreement(
        captions,
        matched / found_count if found_count else 0.0,
        matched / wanted_count if wanted_count else 0.0,
        2 * matched / size if size else 0.0,
        total / captions if captions else 0.0,
        exact / captions if captions else 0.0,
    )
