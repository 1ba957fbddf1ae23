"""A benchmark made from captions of your own photos: half-truths.

    compoclip evaluate MODEL --on lab/own_captions.py:half_truth_own,annotations=captions.json

**half_truth_own** follows the protocol of the preprint CS-CLIP (arXiv 2602.23906) on scene graphs:

- entity: short "black dog", full "black dog and blue chair", half "black dog and red chair": the
  second entity has another noun or attribute, or is an entity of another photo;
- relation: short "dog", full "dog under chair", half one of "chair under dog" (swap, where that
  says something else), "dog on chair" (antonym: another relation that excludes it), "dog not under
  chair" (negation), another object, subject or attribute.

Captions are read from `<root>/NAME/captions.json` (option `annotations`: another file), photos from
`<root>/NAME/images` (argument `images`). The file is BLIP's or Karpathy's JSON (of the latter the
photos of the test), a list of {"image": name, "caption": text or texts} lines in .jsonl, or
Flickr8k's token file in .txt with the option `split_file`. A photo gives at most one item of a
sub-task, a sub-task has at most `most` items (1,000). The items follow from `seed` (42) and the
photo's name.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.entries import each_value
from compoclip.benchmarks.reader import CaseReader, Loading
from compoclip.benchmarks.retrieval import Captioned, read_captions, read_flickr8k
from compoclip.captions.clip_text import same_to_clip
from compoclip.captions.parser import parse
from compoclip.captions.subgraphs import SubGraph, phrase, relation_words
from compoclip.captions.tagger import Tagger, get_tagger
from compoclip.errors import UsageError
from compoclip.rewrites.base import Refused, rng_for
from compoclip.rewrites.exclusion import NOT_THINGS, same_thing
from compoclip.rewrites.graph_edits import (
    ATTR,
    NEW_ATTRIBUTE,
    NEW_OBJECT,
    NEW_RELATION,
    OBJ,
    REL,
    SWAP_OBJECTS,
    Slot,
    Transform,
    default_vocabulary,
)
from compoclip.rewrites.legality import noun_refusal
from compoclip.rewrites.mosaic import usable_subgraphs
from compoclip.rewrites.reading import Reading, read
from compoclip.typed import Count

# --- Captioned photos. ---


def _captioned(data: Loading, path: Path, split_file: Path | None) -> tuple[Captioned, ...]:
    data.files["captions"] = path
    match path.suffix.lower():
        case ".json":
            return read_captions(path)
        case ".txt" if split_file is not None:
            data.files["split"] = split_file
            photos, left_out = read_flickr8k(path, split_file)
            data.left_out.update(left_out)
            return photos
        case ".jsonl":
            captions: dict[str, list[str]] = {}
            for _, where, row in data.rows("captions", path):
                value = files.field(row, "caption", where)
                texts = value if isinstance(value, list) else [value]
                captions.setdefault(files.text(row, "image", where), []).extend(
                    files.nonempty(text, f"{where}: caption {k}", "fix the row")
                    for k, text in enumerate(texts)
                )
            return tuple(Captioned(name, tuple(texts)) for name, texts in captions.items())
    raise UsageError(
        f"{path}: expected captions in .json or .jsonl, or Flickr8k's .txt with split_file=..."
    )


# --- Half-truths. ---

_HALF_VERSION = "half_truth_own 1"
_OBJECT, _ATTRIBUTE, _OTHER = "object", "attribute", "other photo"
_ENTITY_FOILS = (_OBJECT, _ATTRIBUTE, _OTHER)
_RELATION_FOILS = ("swap", "antonym", "negation", _OBJECT, "subject", _ATTRIBUTE)
_DRAWS = 8  # texts of a photo that are tried


@dataclass
class _Photo:
    """A photo and the readings of its captions, made when they are asked for."""

    name: str
    captions: tuple[str, ...]
    tagger: Tagger

    @cached_property
    def readings(self) -> list[Reading]:
        return [read(parse(text, self.tagger)) for text in self.captions]

    def entities(self) -> list[tuple[Reading, SubGraph]]:
        """Every thing that a caption asserts, with its attributes."""
        found = []
        for reading in self.readings:
            for index, node in enumerate(reading.graph.objects):
                alone = SubGraph((node,), (), (index,))
                if _asserted(reading, alone):
                    found.append((reading, alone))
        return found

    def relations(self) -> list[tuple[Reading, SubGraph]]:
        return [
            (reading, subgraph)
            for reading in self.readings
            for subgraph in usable_subgraphs(reading)[0]
            if subgraph.relations and all(_thing(node.name) for node in subgraph.objects)
        ]

    def names(self, text: str, old: str) -> bool:
        """Whether a caption names a word of `text` that `old` does not have."""
        new = set(text.lower().split()) - set(old.lower().split())
        return any(reading.holds(word) for reading in self.readings for word in new)

    def may_show(self, noun: str) -> bool:
        """Whether the photo may show the thing as well, by its captions."""
        return any(noun_refusal(reading, noun) is not None for reading in self.readings)


def _asserted(reading: Reading, subgraph: SubGraph) -> bool:
    return (
        subgraph.sure
        and reading.asserts(subgraph)
        and all(_thing(node.name) for node in subgraph.objects)
    )


def _thing(name: str) -> bool:
    """Whether a name is a thing that a photo can show or not."""
    return name.rpartition(" ")[2] not in NOT_THINGS


@dataclass(frozen=True)
class _HalfTruth:
    """An item before it has a photo."""

    short: str
    full: str
    half: str
    foil: str


def _entity(photo: _Photo, others: Sequence[_Photo], rng: random.Random) -> _HalfTruth | None:
    """A thing, with another one that the photo shows, and with one that it does not."""
    entities = photo.entities()
    pairs = [
        (a, b)
        for a in entities
        for b in entities
        if a[0] is b[0] and a is not b and not same_thing(_lemma(*a), _lemma(*b))
    ]
    for one, (reading, two) in rng.sample(pairs, min(_DRAWS, len(pairs))):
        short, said = phrase(one[1]).lower(), phrase(two).lower()
        for kind in rng.sample(_ENTITY_FOILS, len(_ENTITY_FOILS)):
            foil = _entity_foil(photo, others, reading, two, kind, rng)
            if foil is not None and not same_to_clip(foil, said):
                return _HalfTruth(short, f"{short} and {said}", f"{short} and {foil}", kind)
    return None


def _entity_foil(
    photo: _Photo,
    others: Sequence[_Photo],
    reading: Reading,
    entity: SubGraph,
    kind: str,
    rng: random.Random,
) -> str | None:
    said = phrase(entity).lower()
    if kind == _OTHER:
        for other in rng.sample(others, min(_DRAWS, len(others))):
            found = other.entities()
            if not found:
                continue
            theirs, strange = rng.choice(found)
            if not photo.may_show(_lemma(theirs, strange)):
                return phrase(strange).lower()
        return None
    if kind == _ATTRIBUTE and not entity.objects[0].attributes:
        return None
    place = rng.randrange(max(1, len(entity.objects[0].attributes)))
    slot = (
        Slot(OBJ, NEW_ATTRIBUTE, entity, 0, place)
        if kind == _ATTRIBUTE
        else Slot(REL, NEW_OBJECT, entity)
    )
    return _made(photo, reading, slot, said, rng)


def _made(photo: _Photo, reading: Reading, slot: Slot, said: str, rng: random.Random) -> str | None:
    """A foil of a slot that no caption of the photo supports."""
    transform = Transform(reading, default_vocabulary())
    for _ in range(_DRAWS):
        made = transform.draw(slot, rng)
        if isinstance(made, Refused):
            return None
        text = made.text.lower()
        new = " ".join(word for word in text.split() if word not in said.split())
        if photo.names(text, said) or (slot.rule == NEW_OBJECT and photo.may_show(new)):
            continue
        return text
    return None


def _lemma(reading: Reading, entity: SubGraph) -> str:
    return reading.names[entity.nodes[0]]


def _relation(photo: _Photo, rng: random.Random) -> _HalfTruth | None:
    """The subject of a relation, the relation, and one that does not hold."""
    relations = photo.relations()
    for reading, subgraph in rng.sample(relations, min(_DRAWS, len(relations))):
        subject = SubGraph(subgraph.objects[:1], (), subgraph.nodes[:1])
        short, full = phrase(subject).lower(), phrase(subgraph).lower()
        for kind in rng.sample(_RELATION_FOILS, len(_RELATION_FOILS)):
            half = _relation_foil(photo, reading, subgraph, kind, full, rng)
            if half is not None:
                return _HalfTruth(short, full, half, kind)
    return None


def _relation_foil(
    photo: _Photo, reading: Reading, subgraph: SubGraph, kind: str, full: str, rng: random.Random
) -> str | None:
    if kind == "negation":
        ends = [phrase(SubGraph((node,), ())) for node in subgraph.objects]
        return f"{ends[0]} not {relation_words(subgraph.relations[0])} {ends[1]}".lower()
    if kind == "swap" and _said_swapped(photo, reading, subgraph):
        return None
    described = [
        (node, place)
        for node, each in enumerate(subgraph.objects)
        for place in range(len(each.attributes))
    ]
    if kind == _ATTRIBUTE and not described:
        return None
    node, place = rng.choice(described) if described else (0, 0)
    slots = {
        "swap": Slot(REL, SWAP_OBJECTS, subgraph),
        "antonym": Slot(REL, NEW_RELATION, subgraph),
        _OBJECT: Slot(REL, NEW_OBJECT, subgraph, 1),
        "subject": Slot(REL, NEW_OBJECT, subgraph, 0),
        _ATTRIBUTE: Slot(ATTR, NEW_ATTRIBUTE, subgraph, node, place),
    }
    return _made(photo, reading, slots[kind], full, rng)


def _said_swapped(photo: _Photo, own: Reading, subgraph: SubGraph) -> bool:
    """Whether a caption relates the two things the other way round, whatever the relation."""
    subject, target = (own.names[node] for node in subgraph.nodes)
    return any(
        same_thing(reading.names[relation.subject], target)
        and same_thing(reading.names[relation.object], subject)
        for reading in photo.readings
        for relation in reading.graph.relations
    )


def half_truths(
    data: Loading,
    *,
    annotations: Path | None = None,
    split_file: Path | None = None,
    seed: int = 42,
    most: Count = 1000,
) -> Iterator[Case]:
    """Yield items of captions. most: items of each kind. seed: of all that is drawn."""
    path = annotations or data.root / data.name / "captions.json"
    folder = data.photos(f"{data.name}/images")
    data.stated += ["upright"]
    captioned = _captioned(data, path, split_file)
    tagger = get_tagger()
    photos = [_Photo(each.image, each.captions, tagger) for each in captioned]
    order = random.Random(seed).sample(photos, len(photos))
    items: list[tuple[str, str, _HalfTruth]] = []
    for kind in data.parts:
        made = 0
        for place, photo in enumerate(order):
            if made == most:
                data.left_out[f"photos beyond the first {most} with an item of kind {kind}"] += (
                    len(order) - place
                )
                break
            rng = rng_for(seed, photo.name, 0, kind)
            # Few others, those behind it in the drawn order: each caption is parsed once or twice.
            others = [order[(place + k) % len(order)] for k in range(1, min(9, len(order)))]
            found = _entity(photo, others, rng) if kind == "entity" else _relation(photo, rng)
            if found is None:
                data.left_out[f"photos without an item of kind {kind}"] += 1
                continue
            made += 1
            items.append((kind, photo.name, found))
    drawn = [[kind, name, each.short, each.full, each.half] for kind, name, each in items]
    # The items depend on the parser and its words, too.
    data.files["items"] = json.dumps(drawn).encode()
    data.stated += [_HALF_VERSION, f"seed {seed}", f"most {most}"]
    for kind, name, each in items:
        texts = (each.short, each.full, each.half)
        labels = {"foil": each.foil}
        image = files.image_path(folder, name, f"{path}: photo {name!r:.80}")
        images = (ImageRef(image, upright=True),)
        yield Case(f"{kind}/{name}", Form.HALF_TRUTH, images, texts, kind, labels=labels)


def half_truth_rules(data: Loading) -> dict[str, Aggregate]:
    """Return the three scores over all items, and the share of right items for each foil."""
    rules = {name: Aggregate(data.parts, "micro", metric=name) for name in ("ht", "cor", "full")}
    for part in data.parts:
        values = each_value(data, (part,), "foil")
        rules |= {f"{part}: {foil}": rule for foil, rule in values.items()}
    return rules


HALF_TRUTHS = CaseReader(
    Meta(
        id="half_truth_own",
        title="Half-truths (your own photos)",
        citation="CS-CLIP, arXiv 2602.23906, 2026; the captions' own",
        source="any captioned photos: BLIP's or Karpathy's JSON, .jsonl, Flickr8k's token file",
        licence="the data's own",
        access="open",
        files=("half_truth_own/captions.json",),
        images=("half_truth_own/images",),
        parts=("entity", "relation"),
        chance={"/ht": 1 / 2, "/cor": 1 / 6, "/full": 1 / 2},
        skills={"entity": "addition", "relation": "addition"},
    ),
    half_truths,
    rules=half_truth_rules,
    headline="ht",
    empty="no photo gives an item of PARTS; are the captions English sentences?",
)
