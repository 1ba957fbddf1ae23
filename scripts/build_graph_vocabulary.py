"""Build the word lists of graph negatives (MosaiCLIP) from files of scene graphs.

    python scripts/build_graph_vocabulary.py scene_graphs.json -o vocabulary.json
    python scripts/build_graph_vocabulary.py train.csv dev.csv -o vocabulary.json --min-objects 5

Reads FACTUAL's .csv, Visual Genome's scene_graphs.json and GQA's sceneGraphs.json. Keeps the
objects met at least --min-objects times and the most frequent attributes and relations; the file
holds every word with its count, and what was met and left out is printed.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from graph_score import parse_facts

from compoclip.captions.types import (
    GraphAttribute,
    GraphObject,
    GraphRelation,
    SceneGraph,
    Span,
)
from compoclip.console import end_with
from compoclip.errors import CompoclipError
from compoclip.files import unreadable, write_json
from compoclip.rewrites.graph_edits import VOCABULARY_FORMAT, WORD_KINDS

#: Least instances of an object, number of attributes and of relations.
MIN_OBJECTS, ATTRIBUTES, RELATIONS = 30, 524, 50

_CHUNK = 1 << 20
_NOWHERE = Span(0, 0)
_FORMATS = "give FACTUAL's .csv, Visual Genome's scene_graphs.json or GQA's sceneGraphs.json"
_Link = tuple[int, str, int]


def read_scene_graphs(path: Path) -> Iterator[SceneGraph]:
    """The scene graphs of a file, without spans.

    Raises CompoclipError, naming the file and the place, when it cannot be read or holds none.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".json":
                yield from _json_graphs(path, file)
            else:
                yield from _table_graphs(path, file)
    except UnicodeDecodeError as error:
        raise CompoclipError(f"{path}: not UTF-8 text; {_FORMATS}") from error
    except OSError as error:
        raise unreadable(path, error, _FORMATS) from error


def _table_graphs(path: Path, file: TextIO) -> Iterator[SceneGraph]:
    rows = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    try:
        if "scene_graph" not in (rows.fieldnames or ()):
            raise CompoclipError(f"{path}: no column scene_graph; {_FORMATS}")
        for row in rows:
            try:
                facts = parse_facts(row["scene_graph"] or "")
            except ValueError as error:
                raise CompoclipError(f"{path}, line {rows.line_num}: {error}; fix it") from error
            names = sorted(facts.entities)
            attributes: dict[str, list[str]] = {name: [] for name in names}
            links: list[_Link] = []
            for subject, predicate, target in sorted(facts.triples):
                if predicate == "is":
                    attributes[subject].append(target)
                else:
                    links.append((names.index(subject), predicate, names.index(target)))
            yield _graph(attributes.items(), links)
    except csv.Error as error:
        raise CompoclipError(f"{path}, line {rows.line_num}: {error}; fix the table") from error


def _json_graphs(path: Path, file: TextIO) -> Iterator[SceneGraph]:
    try:
        head = file.read(_CHUNK)
        if head.lstrip().startswith("["):
            graphs: Iterable[SceneGraph] = map(_visual_genome, _list_items(head, file))
        else:
            whole = json.loads(head + file.read())
            graphs = map(_gqa, whole.values())
        yield from graphs
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__} {error}"
        raise CompoclipError(f"{path}: not a file of scene graphs ({what}); {_FORMATS}") from error


def _list_items(text: str, file: TextIO) -> Iterator[Any]:
    """The items of the JSON list that begins with `text`, holding no more than one of them."""
    decoder = json.JSONDecoder()
    text = text.lstrip()[1:]
    while True:
        text = text.lstrip(" \t\r\n,")
        if text.startswith("]"):
            return
        try:
            item, end = decoder.raw_decode(text)
        except json.JSONDecodeError:
            more = file.read(max(_CHUNK, len(text)))
            if not more:
                raise
            text += more
            continue
        yield item
        text = text[end:]


def _visual_genome(image: Any) -> SceneGraph:
    place = {node["object_id"]: number for number, node in enumerate(image["objects"])}
    nodes = [
        (node["names"][0] if "names" in node else node["name"], node.get("attributes") or ())
        for node in image["objects"]
    ]
    links = [
        (place[r["subject_id"]], r["predicate"], place[r["object_id"]])
        for r in image["relationships"]
        if r["subject_id"] in place and r["object_id"] in place
    ]
    return _graph(nodes, links)


def _gqa(image: Any) -> SceneGraph:
    place = {key: number for number, key in enumerate(image["objects"])}
    nodes = [(node["name"], node.get("attributes") or ()) for node in image["objects"].values()]
    links = [
        (place[key], relation["name"], place[relation["object"]])
        for key, node in image["objects"].items()
        for relation in node.get("relations") or ()
        if relation["object"] in place
    ]
    return _graph(nodes, links)


def _graph(nodes: Iterable[tuple[str, Iterable[str]]], links: Iterable[_Link]) -> SceneGraph:
    return SceneGraph(
        tuple(
            GraphObject(name, _NOWHERE, tuple(GraphAttribute(a, _NOWHERE) for a in attributes))
            for name, attributes in nodes
        ),
        tuple(GraphRelation(a, name, b, _NOWHERE) for a, name, b in links),
    )


def build_vocabulary(
    graphs: Iterable[SceneGraph],
    *,
    source: str,
    licence: str,
    min_objects: int = MIN_OBJECTS,
    attributes: int = ATTRIBUTES,
    relations: int = RELATIONS,
) -> dict[str, Any]:
    """Count the words of scene graphs and keep the usual ones: the content of a vocabulary file.

    Objects met at least `min_objects` times, and the most frequent `attributes` and `relations`;
    among equals in alphabetical order. `built` records thresholds, graphs, instances and distinct
    words. Raises CompoclipError when a list would be empty.
    """
    total = 0
    counted: dict[str, Counter[str]] = {kind: Counter() for kind in WORD_KINDS}
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
    built |= {f"{kind}_met": counted[kind].total() for kind in WORD_KINDS}
    built |= {f"{kind}_distinct": len(ranked[kind]) for kind in WORD_KINDS}
    head = {"format": VOCABULARY_FORMAT, "source": source, "licence": licence}
    return {**head, "built": built, **kept}


def _normal(word: str) -> str:
    return " ".join(word.lower().replace("_", " ").split())


def main() -> int:
    """Count, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="scene graphs")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--min-objects", type=int, default=MIN_OBJECTS, help="least instances")
    parser.add_argument("--attributes", type=int, default=ATTRIBUTES, help="how many to keep")
    parser.add_argument("--relations", type=int, default=RELATIONS, help="how many to keep")
    parser.add_argument("--licence", default="as of the scene graphs", help="of the source")
    options = parser.parse_args()
    vocabulary = build_vocabulary(
        chain.from_iterable(map(read_scene_graphs, options.files)),
        source=", ".join(path.name for path in options.files),
        licence=options.licence,
        min_objects=options.min_objects,
        attributes=options.attributes,
        relations=options.relations,
    )
    write_json(options.out, vocabulary)
    built = vocabulary["built"]
    print(f"{options.out}: from {built['graphs']:,} scene graphs")
    for kind in ("objects", "attributes", "relations"):
        counts, met = vocabulary[kind], built[f"{kind}_met"]
        share = sum(counts.values()) / max(met, 1)
        print(
            f"  {kind}: {len(counts):,} of {built[f'{kind}_distinct']:,} words, "
            f"{share:.1%} of {met:,} instances"
        )
    return 0


if __name__ == "__main__":
    end_with(main, "build_graph_vocabulary")
