"""Scene graphs in the normal form of the FACTUAL data set (Li et al. 2023), for comparison.

A scene graph of this project stays close to the caption's words. FACTUAL's annotators wrote
(subject, predicate, object) triples in a normal form of their own; these are its habits that are
regular enough to follow:

- attributes are triples with "is", counts as digits: (containers, is, 2); an object with neither
  attribute nor relation is left out unless the graph would be empty;
- who has a part or a thing comes first: "tail of the horse", "the horse's tail" -> (horse, have,
  tail); what a vessel or plate holds is in or on it: "plate of food" -> (food, on, plate);
- a passive that names its agent is turned round: "surrounded by grass" -> (grass, surround, bear);
- people in clothes wear them: "man in a hat" -> (man, wear, hat); "lie" is "lay";
- places have one preposition each: "at the corner of" -> "in corner of".
"""

from __future__ import annotations

from compoclip.captions.graph_words import CLOTHES, NUMBERS, PEOPLE
from compoclip.captions.types import GraphRelation, SceneGraph

Triple = tuple[str, str, str]

_VESSELS = frozenset(
    "basket bowl box bottle can cart cup glass glasses jar mug pot vase bucket bag crate container "
    "forest pan tray cups bowls bottles boxes baskets bags".split()
)
_PLATES = frozenset("plate plates platter platters".split())
_PLACES = {
    **dict.fromkeys(("side", "back", "middle", "center", "centre", "bottom", "edge", "top"), "on"),
    **dict.fromkeys(("corner", "end"), "in"),
    "base": "at",
    "front": "in",
}
_SAME = {
    "inside of": "inside", "outside of": "outside", "in between": "between", "off of": "off",
    "besides": "beside", "underneath": "under", "beneath": "under", "nearby": "near",
}  # fmt: skip
_COVERING = frozenset({"cover", "line"})
_NAMES = {"guy": "person", "guys": "people"}
_QUALITIES = {"wood": "wooden", "blond": "blonde"}


def factual_objects(graph: SceneGraph) -> tuple[str, ...]:
    """The name of each object in FACTUAL's form, in order."""
    return tuple(_NAMES.get(node.name, node.name) for node in graph.objects)


def factual_triples(graph: SceneGraph) -> frozenset[Triple]:
    """The graph's triples in FACTUAL's form; empty when nothing is said of any object."""
    names = factual_objects(graph)
    triples: set[Triple] = set()
    for name, node in zip(names, graph.objects, strict=True):
        for attribute in node.attributes:
            triples.add((name, "is", _quality(attribute.name)))
    for relation in graph.relations:
        if not _restates(graph, relation):
            triples.add(_relation(names, graph, relation))
    return frozenset(triples)


def _quality(name: str) -> str:
    if name in NUMBERS:
        return str(NUMBERS[name])
    return _QUALITIES.get(name, name.replace(" colored", "").replace(" coloured", ""))


def _restates(graph: SceneGraph, relation: GraphRelation) -> bool:
    """ "X with Y on it": said by Y on X."""
    return relation.name == "with" and any(
        (r.subject, r.object) == (relation.object, relation.subject) for r in graph.relations
    )


def _relation(names: tuple[str, ...], graph: SceneGraph, relation: GraphRelation) -> Triple:
    subject, target = names[relation.subject], names[relation.object]
    here, there = (graph.objects[i].name.split()[-1] for i in (relation.subject, relation.object))
    if relation.kind == "possession":
        if here in _PLATES:
            return target, "on", subject
        if here in _VESSELS:
            return target, "in", subject
        return target, "have", subject
    words = relation.name.split()
    if relation.kind == "passive" and len(words) == 2:
        agent = words[1] == "by" and words[0] not in _PLACED
        if agent or (words[0] in _COVERING and words[1] in ("by", "with", "in")):
            return target, words[0], subject
    if here in PEOPLE and there in CLOTHES and relation.name in ("in", "with"):
        return subject, "wear", target
    return subject, _predicate(words), target


_PLACED = frozenset("park seat sit locate stand place position perch stop pass go".split())


def _predicate(words: list[str]) -> str:
    if words[0] == "lie":
        words = ["lay", *words[1:]]
    name = " ".join(words)
    for long, short in _SAME.items():
        if name == long or name.endswith(" " + long):
            name = name[: -len(long)] + short
    words = name.split()
    if len(words) >= 3 and words[-1] == "of" and words[-2] in ("left", "right"):
        return " ".join([*words[:-3], "at the", words[-2], "of"])
    if len(words) >= 3 and words[-1] == "of" and words[-2] in _PLACES:
        start = next((i for i, w in enumerate(words) if w in ("on", "in", "at")), None)
        if start is not None:
            return " ".join([*words[:start], _PLACES[words[-2]], words[-2], "of"])
    return name
