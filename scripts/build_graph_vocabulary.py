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
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from graph_score import parse_facts

from compoclip.console import end_with
from compoclip.errors import CompoclipError
from compoclip.files import read_json, read_text, write_json
from compoclip.rewrites.graph_edits import VOCABULARY_FORMAT, WORD_KINDS

#: Least instances of an object, number of attributes and of relations.
MIN_OBJECTS, ATTRIBUTES, RELATIONS = 30, 524, 50

_FORMATS = "give FACTUAL's .csv, Visual Genome's scene_graphs.json or GQA's sceneGraphs.json"

Words = dict[str, list[str]]
"""The names of a scene graph's objects, attributes and relations, one per instance."""


def read_scene_graphs(path: Path) -> Iterator[Words]:
    """Yield the words of the scene graphs of a file.

    Raises CompoclipError, naming the file and the place, when it cannot be read or holds none.
    """
    if path.suffix.lower() != ".json":
        yield from _table_words(path)
        return
    whole = read_json(path, damaged=_FORMATS)
    try:
        yield from map(_image_words, whole if isinstance(whole, list) else whole.values())
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise CompoclipError(
            f"{path}: not a file of scene graphs ({type(error).__name__} {error}); {_FORMATS}"
        ) from error


def _table_words(path: Path) -> Iterator[Words]:
    text = io.StringIO(read_text(path, damaged=_FORMATS), newline="")
    rows = csv.DictReader(text, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    try:
        if "scene_graph" not in (rows.fieldnames or ()):
            raise CompoclipError(f"{path}: no column scene_graph; {_FORMATS}")
        for row in rows:
            facts = parse_facts(row["scene_graph"] or "")
            said: Words = {"attributes": [], "relations": []}
            for _, predicate, target in facts.triples:
                if predicate == "is":
                    said["attributes"].append(target)
                else:
                    said["relations"].append(predicate)
            yield {"objects": [*facts.entities], **said}
    except (ValueError, csv.Error) as error:
        raise CompoclipError(f"{path}, line {rows.line_num}: {error}; fix the table") from error


def _image_words(image: Any) -> Words:
    """Words of an image of Visual Genome (objects in a list) or GQA (by their ids)."""
    nodes = image["objects"]
    if isinstance(nodes, dict):
        known, nodes = nodes, [*nodes.values()]
        links = (link for node in nodes for link in node.get("relations") or ())
        relations = [link["name"] for link in links if link["object"] in known]
    else:
        ids = {node["object_id"] for node in nodes}
        links = (r for r in image["relationships"] if {r["subject_id"], r["object_id"]} <= ids)
        relations = [link["predicate"] for link in links]
    names = [node["names"][0] if "names" in node else node["name"] for node in nodes]
    attributes = [each for node in nodes for each in node.get("attributes") or ()]
    return {"objects": names, "attributes": attributes, "relations": relations}


def build_vocabulary(
    graphs: Iterable[Words],
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
        for kind, words in graph.items():
            counted[kind].update(map(_normal, words))
    for word in [each for each in counted["attributes"] if each.isdigit()]:
        del counted["attributes"][word]
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
