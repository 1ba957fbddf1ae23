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
- places have one preposition each: "at the corner of" -> "in corner of";
- "a plate with food on it" is said once: (food, on, plate);
- a few names: guy -> person, cell phone -> cellphone, left hand is an object of its own.
"""

from __future__ import annotations

from compoclip.captions.graph_words import ANIMALS, CLOTHES, NUMBERS, PEOPLE
from compoclip.captions.types import GraphObject, GraphRelation, SceneGraph
from compoclip.captions.words import word_set

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
    """ "X with Y on it": said by Y on X."""
    return relation.name == "with" and any(
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
    if (here in PEOPLE or here in ANIMALS) and there in CLOTHES:
        if relation.name in ("in", "with"):
            return ((subject, "wear", target),)
        if relation.kind == "verb" and len(words) == 2 and words[1] == "in":
            return (subject, "wear", target), (subject, "is", relation.words.split()[0])
    if here in CLOTHES and there in PEOPLE and relation.name == "on":
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
