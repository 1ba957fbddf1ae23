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

from compoclip.captions.lists import NUMBERS, WORDS, word_set
from compoclip.captions.tagger import lemma_of
from compoclip.captions.types import GraphObject, GraphRelation, SceneGraph

Triple = tuple[str, str, str]

_VESSELS = word_set(
    "basket bowl box bottle can cart cup glass glasses jar mug pot vase bucket bag crate "
    "container forest pan tray"
)
_PLATES = word_set("plate platter")
_PLACES = {
    **dict.fromkeys(("side", "back", "middle", "center", "centre", "bottom", "edge", "top"), "on"),
    **dict.fromkeys(("corner", "end", "front"), "in"),
    "base": "at",
}
_SAME = {
    "inside of": "inside", "outside of": "outside", "in between": "between", "off of": "off",
    "besides": "beside", "underneath": "under", "beneath": "under", "below": "under",
    "onto": "on", "upon": "on",
}  # fmt: skip
_COVERING = word_set("cover line")
_PLACED = word_set("park seat sit locate stand place position perch stop pass go")
_NAMES = {
    "guy": "person", "cell phone": "cellphone", "surf board": "surfboard", "hair cut": "haircut",
    "snow board": "snowboard", "skate board": "skateboard", "wet suit": "wetsuit",
    "side walk": "sidewalk", "t shirt": "t-shirt", "tshirt": "t-shirt", "tee shirt": "t-shirt",
}  # fmt: skip
#: Qualities that FACTUAL writes into the name.
_NAME_PARTS = word_set("left right front")
_QUALITIES = {"wood": "wooden", "blond": "blonde"}


def factual_objects(graph: SceneGraph) -> tuple[str, ...]:
    """The name of each object in FACTUAL's form, in order."""
    return tuple(_name(node) for node in graph.objects)


def factual_triples(graph: SceneGraph) -> frozenset[Triple]:
    """The graph's triples in FACTUAL's form; empty when nothing is said of any object."""
    names = factual_objects(graph)
    triples: set[Triple] = set()
    for name, node in zip(names, graph.objects, strict=True):
        for attribute in node.attributes:
            if attribute.name not in _NAME_PARTS:
                triples.add((name, "is", _quality(attribute.name)))
    for relation in graph.relations:
        if not _restates(graph, relation):
            triples.update(_triples(names, graph, relation))
    return frozenset(triples)


def _name(node: GraphObject) -> str:
    parts = [a.name for a in node.attributes if a.name in _NAME_PARTS]
    return " ".join([*parts, _NAMES.get(node.name, node.name)])


def _quality(name: str) -> str:
    if name in NUMBERS:
        return str(NUMBERS[name])
    if name in ("piece of", "pieces of", "slice of", "slices of", "crowd of"):
        return name.removesuffix(" of")
    return _QUALITIES.get(name, name.removesuffix(" colored").removesuffix(" coloured"))


def _restates(graph: SceneGraph, relation: GraphRelation) -> bool:
    """ "X with Y on it", "X has Y in it": said by Y on X."""
    return relation.name in ("with", "have") and any(
        (r.subject, r.object) == (relation.object, relation.subject) for r in graph.relations
    )


def _triples(
    names: tuple[str, ...], graph: SceneGraph, relation: GraphRelation
) -> tuple[Triple, ...]:
    subject, target = names[relation.subject], names[relation.object]
    here, there = (graph.objects[i].name.split()[-1] for i in (relation.subject, relation.object))
    words = relation.name.split()
    if relation.kind == "possession":
        holds = "on" if here in _PLATES else "in" if here in _VESSELS else ""
        return ((target, holds, subject) if holds else (target, "have", subject),)
    if relation.kind == "passive" and len(words) == 2:
        agent = words[1] == "by" and words[0] not in _PLACED
        if agent or (words[0] in _COVERING and words[1] in ("by", "with", "in")):
            return ((target, words[0], subject),)
    if (here in WORDS["people"] or here in WORDS["animals"]) and there in WORDS["clothes"]:
        if relation.name in ("in", "with"):
            return ((subject, "wear", target),)
        if relation.kind == "verb" and len(words) == 2 and words[1] == "in":
            return (subject, "wear", target), (subject, "is", relation.words.split()[0])
    if here in WORDS["clothes"] and there in WORDS["people"] and relation.name == "on":
        return ((target, "wear", subject),)
    return ((subject, _predicate(words), target),)


def _predicate(words: list[str]) -> str:
    if words[0] == "lie":
        words = ["lay", *words[1:]]
    name = " ".join(words)
    for long, short in _SAME.items():
        if name == long or name.endswith(" " + long):
            name = name[: -len(long)] + short
    words = name.split()
    begin = next((i for i, word in enumerate(words) if word in ("on", "in", "at", "to")), None)
    if len(words) < 3 or words[-1] != "of" or begin is None:
        return name
    place = words[-2]
    if place in ("left", "right"):
        return " ".join([*words[:begin], "at the", place, "of"])
    if place in _PLACES:
        return " ".join([*words[:begin], _PLACES[place], place, "of"])
    return name


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
