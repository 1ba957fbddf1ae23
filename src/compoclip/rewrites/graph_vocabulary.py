"""The words that graph negatives take: objects, attributes and relations.

MosaiCLIP's lists N, A, R come from Visual Genome and were not published. A list of our own is in
data/graph_vocabulary.json; `scripts/build_graph_vocabulary.py` makes one from scene graphs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from compoclip.captions.types import SceneGraph
from compoclip.errors import CompoclipError
from compoclip.files import read_json, write_atomically

FORMAT = "compoclip-graph-vocabulary-1"
#: Least instances of an object, number of attributes and of relations.
MIN_OBJECTS, ATTRIBUTES, RELATIONS = 30, 524, 50
_KINDS = ("objects", "attributes", "relations")
_REMEDY = "make one with scripts/build_graph_vocabulary.py"


@dataclass(frozen=True, eq=False)
class GraphVocabulary:
    """Objects N, attributes A and relations R, each word once, and where they come from.

    `counts` holds, by kind, how often each word was met; it is empty for a list made by hand.
    """

    objects: tuple[str, ...]
    attributes: tuple[str, ...]
    relations: tuple[str, ...]
    source: str
    licence: str
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    built: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The content of a vocabulary file: lists, or counts by word where they are known."""
        lists: dict[str, Any] = {
            kind: self.counts.get(kind) or list(getattr(self, kind)) for kind in _KINDS
        }
        head = {"format": FORMAT, "source": self.source, "licence": self.licence}
        return {**head, **({"built": dict(self.built)} if self.built else {}), **lists}


@lru_cache(maxsize=1)
def default_vocabulary() -> GraphVocabulary:
    """The shipped vocabulary, read once."""
    return load_vocabulary(Path(__file__).with_name("data") / "graph_vocabulary.json")


def load_vocabulary(path: Path) -> GraphVocabulary:
    """The vocabulary in a file. Raises CompoclipError when it is none or a list is empty."""
    data = read_json(path, absent=_REMEDY, damaged=_REMEDY)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CompoclipError(f"{path}: not a graph vocabulary ({FORMAT}); {_REMEDY}")
    counts: dict[str, dict[str, int]] = {}
    lists: dict[str, tuple[str, ...]] = {}
    for kind in _KINDS:
        words = data.get(kind)
        if not isinstance(words, list | dict) or not words:
            raise CompoclipError(f"{path}: no list of {kind}; {_REMEDY}")
        if not all(isinstance(word, str) and word.strip() for word in words):
            raise CompoclipError(f"{path}: {kind} must be words; {_REMEDY}")
        if isinstance(words, dict):
            if not all(isinstance(count, int) for count in words.values()):
                raise CompoclipError(f"{path}: counts of {kind} must be numbers; {_REMEDY}")
            counts[kind] = words
        lists[kind] = tuple(dict.fromkeys(_normal(word) for word in words))
    built = data.get("built")
    return GraphVocabulary(
        objects=lists["objects"],
        attributes=lists["attributes"],
        relations=lists["relations"],
        source=str(data.get("source", path.name)),
        licence=str(data.get("licence", "unknown")),
        counts=counts,
        built=built if isinstance(built, dict) else {},
    )


def save_vocabulary(vocabulary: GraphVocabulary, path: Path) -> None:
    """Write a vocabulary file whole or not at all. Raises CompoclipError when it cannot."""
    text = json.dumps(vocabulary.as_json(), indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def build_vocabulary(
    graphs: Iterable[SceneGraph],
    *,
    source: str,
    licence: str,
    min_objects: int = MIN_OBJECTS,
    attributes: int = ATTRIBUTES,
    relations: int = RELATIONS,
) -> GraphVocabulary:
    """Count the words of scene graphs and keep the usual ones.

    Objects met at least `min_objects` times, and the most frequent `attributes` and `relations`;
    among equals in alphabetical order. `built` records thresholds, graphs, instances and distinct
    words. Raises CompoclipError when a list would be empty.
    """
    total = 0
    counted: dict[str, Counter[str]] = {kind: Counter() for kind in _KINDS}
    for graph in graphs:
        total += 1
        for node in graph.objects:
            counted["objects"][_normal(node.name)] += 1
            for attribute in node.attributes:
                if attribute.kind != "number" and not _normal(attribute.name).isdigit():
                    counted["attributes"][_normal(attribute.name)] += 1
        for relation in graph.relations:
            counted["relations"][_normal(relation.name)] += 1
    ranked = {
        kind: sorted((item for item in counts.items() if item[0]), key=lambda i: (-i[1], i[0]))
        for kind, counts in counted.items()
    }
    kept = {
        "objects": dict(item for item in ranked["objects"] if item[1] >= min_objects),
        "attributes": dict(ranked["attributes"][:attributes]),
        "relations": dict(ranked["relations"][:relations]),
    }
    for kind, words in kept.items():
        if not words:
            raise CompoclipError(
                f"{source}: no {kind} left of {len(ranked[kind])} in {total} scene graphs; "
                "lower the thresholds or use more graphs"
            )
    built = {"graphs": total, "min_objects": min_objects}
    built |= {f"{kind}_met": counted[kind].total() for kind in _KINDS}
    built |= {f"{kind}_distinct": len(ranked[kind]) for kind in _KINDS}
    return GraphVocabulary(
        objects=tuple(kept["objects"]),
        attributes=tuple(kept["attributes"]),
        relations=tuple(kept["relations"]),
        source=source,
        licence=licence,
        counts=kept,
        built=built,
    )


def _normal(word: str) -> str:
    return " ".join(word.lower().replace("_", " ").split())
