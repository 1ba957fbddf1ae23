"""Measure the scene-graph parser on human graphs of the FACTUAL data set (Li et al. 2023).

    python scripts/measure_parser.py random/dev.csv length/dev.csv [--errors N]
    python scripts/measure_parser.py reports/parser-graphs.tsv --coco coco_karpathy_test.json

The second form measures it on graphs of long captions of COCO, which name their captions by image
and number; each half of the file is reported alone.

Strict triples, see `graph_score`. For each file: precision, recall, pooled and mean F1 of triples
and entities, exact graphs, and the precision of the triples that a graph is sure of and of the
others; --errors shows the first N captions whose graph differs.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graph_score import Facts, agreement, graph_facts, parse_facts

from compoclip.captions.parser import PARSER_VERSION, parse
from compoclip.captions.tagger import tagger_version
from compoclip.captions.types import SceneGraph
from compoclip.console import end_with
from compoclip.printed import Table


def read_rows(path: Path, coco: Path | None) -> dict[str, list[tuple[str, Facts]]]:
    """Return (caption, human facts) of every row, by the half of the file that it belongs to."""
    texts: dict[str, list[str]] = {}
    if coco is not None:
        texts = {
            row["image"].rpartition("_")[2].partition(".")[0].lstrip("0"): row["caption"]
            for row in json.loads(coco.read_text(encoding="utf-8"))
        }
    found: dict[str, list[tuple[str, Facts]]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t" if texts else ","):
            caption = texts[row["image"]][int(row["caption"])] if texts else row["caption"]
            facts = parse_facts(row["scene_graph"])
            found[row.get("half") or str(path)].append((" ".join(caption.split()), facts))
    return found


def parsed(caption: str) -> tuple[Facts, Facts]:
    """Return the facts of the parser's graph of a caption, and those it is sure of."""
    graph = parse(caption).graph or SceneGraph()
    objects = [
        replace(node, attributes=tuple(a for a in node.attributes if a.sure))
        for node in graph.objects
    ]
    sure = SceneGraph(tuple(objects), tuple(r for r in graph.relations if r.sure))
    return graph_facts(graph), graph_facts(sure)


def show(name: str, rows: Sequence[tuple[str, Facts]], errors: int) -> None:
    """Print the scores of some rows and the first differing captions."""
    compared = [(caption, *parsed(caption), human) for caption, human in rows]
    sets = {
        "triples": [(ours.triples, human.triples) for _, ours, _, human in compared],
        "entities": [(ours.entities, human.entities) for _, ours, _, human in compared],
    }
    for kind, attribute in (("attributes", True), ("relations", False)):
        sets[kind] = [
            tuple(frozenset(t for t in each if (t[1] == "is") is attribute) for each in pair)
            for pair in sets["triples"]
        ]
    scores = []
    for kind, pairs in sets.items():
        s = agreement(pairs)
        values = (s.precision, s.recall, s.f1, s.mean_f1, s.exact)
        scores.append([kind, *(f"{100 * value:.1f}" for value in values)])
    print(f"{name}: {len(rows)} captions, parser {PARSER_VERSION}, {tagger_version()}\n")
    print(Table(scores, ["%", "precision", "recall", "F1", "mean F1", "exact"]))
    for kind, pairs in (
        ("sure", [(sure.triples, human.triples) for _, _, sure, human in compared]),
        ("likely", [(o.triples - s.triples, h.triples) for _, o, s, h in compared]),
    ):
        found = sum(len(each) for each, _ in pairs)
        print(f"{kind} triples: {found}, precision {100 * agreement(pairs).precision:.1f} %")
    for caption, ours, _, human in [row for row in compared if row[1] != row[3]][:errors]:
        print(caption)
        print(f"  missed    {sorted(human.triples - ours.triples)}")
        print(f"  too much  {sorted(ours.triples - human.triples)}")


def main() -> int:
    """Measure every file; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--errors", type=int, default=0, help="differing captions to show")
    parser.add_argument("--coco", type=Path, help="captions that graphs of COCO are of")
    options = parser.parse_args()
    for path in options.files:
        for name, rows in read_rows(path, options.coco).items():
            show(name, rows, options.errors)
    return 0


if __name__ == "__main__":
    end_with(main, "measure_parser")
