"""Measure the scene-graph parser on human graphs of the FACTUAL data set (Li et al. 2023).

    python scripts/measure_parser.py random/dev.csv length/dev.csv [--errors N] [--json]
    python scripts/measure_parser.py reports/parser-graphs.tsv --coco coco_karpathy_test.json

The second form measures it on graphs of long captions of COCO, which name their captions by image
and number; each half of the file is reported alone.

Strict triples, see `graph_score`. For each file: precision, recall, pooled and
mean F1 of triples and entities, exact graphs, the precision of the triples that a graph is sure of
and of the others, and the kinds of the triples that differ; --errors shows the first N captions
whose graph differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from graph_score import (
    KINDS,
    Agreement,
    Facts,
    agreement,
    differences,
    graph_facts,
    parse_facts,
)

from compoclip.captions.parser import PARSER_VERSION, parse
from compoclip.captions.tagger import tagger_version
from compoclip.captions.types import SceneGraph
from compoclip.console import table

Triple = tuple[str, str, str]


@dataclass(frozen=True)
class Result:
    """Scores and differences of one file.

    sure, likely: how many triples of that kind there are, and how many of them people wrote too.
    """

    triples: Agreement
    entities: Agreement
    attributes: Agreement
    relations: Agreement
    missed: dict[str, int]
    extra: dict[str, int]
    sure: tuple[int, int]
    likely: tuple[int, int]


@dataclass(frozen=True)
class Row:
    """A caption, our facts, those of ours that the graph is sure of, and the human ones."""

    caption: str
    ours: Facts
    sure: Facts
    human: Facts


def read_rows(path: Path) -> list[tuple[str, Facts]]:
    """(caption, human facts) of every row."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["caption"], parse_facts(row["scene_graph"])) for row in csv.DictReader(file)]


def read_halves(path: Path, coco: Path) -> dict[str, list[tuple[str, Facts]]]:
    """(caption, human facts) of every row of a file of graphs of COCO's captions, by half."""
    captions = {
        row["image"].rpartition("_")[2].partition(".")[0].lstrip("0"): row["caption"]
        for row in json.loads(coco.read_text(encoding="utf-8"))
    }
    found: dict[str, list[tuple[str, Facts]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            caption = " ".join(captions[row["image"]][int(row["caption"])].split())
            found.setdefault(row["half"], []).append((caption, parse_facts(row["scene_graph"])))
    return found


def compared(caption: str, human: Facts) -> Row:
    """Parse a caption that people have drawn a graph of."""
    graph = parse(caption).graph or SceneGraph()
    objects = [
        replace(node, attributes=tuple(a for a in node.attributes if a.sure))
        for node in graph.objects
    ]
    sure = SceneGraph(tuple(objects), tuple(r for r in graph.relations if r.sure))
    return Row(caption, graph_facts(graph), graph_facts(sure), human)


def measure(rows: Sequence[Row]) -> Result:
    """Compare our facts with the human ones."""
    missed: Counter[str] = Counter()
    extra: Counter[str] = Counter()
    for row in rows:
        missed += differences(row.human, row.ours)
        extra += differences(row.ours, row.human)
    return Result(
        agreement((r.ours.triples, r.human.triples) for r in rows),
        agreement((r.ours.entities, r.human.entities) for r in rows),
        agreement((of_kind(r.ours, True), of_kind(r.human, True)) for r in rows),
        agreement((of_kind(r.ours, False), of_kind(r.human, False)) for r in rows),
        dict(missed),
        dict(extra),
        _right((r.sure.triples, r.human.triples) for r in rows),
        _right((r.ours.triples - r.sure.triples, r.human.triples) for r in rows),
    )


def _right(rows: Iterable[tuple[frozenset[Triple], frozenset[Triple]]]) -> tuple[int, int]:
    """How many triples there are, and how many of them people wrote too."""
    pairs = list(rows)
    return sum(len(a) for a, _ in pairs), sum(len(a & b) for a, b in pairs)


def of_kind(facts: Facts, attributes: bool) -> frozenset[Triple]:
    """The attributes, or the relations, among the triples."""
    return frozenset(t for t in facts.triples if (t[1] == "is") is attributes)


def show(name: str, rows: Sequence[Row], errors: int) -> None:
    """Print the scores of one file and its first differing captions."""
    result = measure(rows)
    scores = [
        [label, *(f"{100 * v:.1f}" for v in (s.precision, s.recall, s.f1, s.mean_f1, s.exact))]
        for label, s in (
            ("triples", result.triples),
            ("entities", result.entities),
            ("attributes", result.attributes),
            ("relations", result.relations),
        )
    ]
    print(f"{name}: {len(rows)} captions, parser {PARSER_VERSION}, {tagger_version()}\n")
    print(table(scores, ["%", "precision", "recall", "F1", "mean F1", "exact"]))
    for kind, (told, right) in (("sure", result.sure), ("likely", result.likely)):
        print(f"\n{kind} triples: {told}, precision {100 * right / max(told, 1):.1f} %", end="")
    print()
    kinds = [[k, str(result.missed.get(k, 0)), str(result.extra.get(k, 0))] for k in KINDS]
    print("\n" + table(kinds, ["triples that differ", "missed", "too much"]) + "\n")
    for row in [row for row in rows if row.ours != row.human][:errors]:
        print(row.caption)
        print(f"  missed    {sorted(row.human.triples - row.ours.triples)}")
        print(f"  too much  {sorted(row.ours.triples - row.human.triples)}")


def main(arguments: Sequence[str]) -> int:
    """Measure every file; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--errors", type=int, default=0, help="differing captions to show")
    parser.add_argument("--coco", type=Path, help="captions that graphs of COCO are of")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    report = {}
    for path in options.files:
        if options.coco is None:
            parts = {str(path): read_rows(path)}
        else:
            parts = read_halves(path, options.coco)
        for name, pairs in parts.items():
            rows = [compared(caption, human) for caption, human in pairs]
            if options.json:
                report[name] = asdict(measure(rows))
            else:
                show(name, rows, options.errors)
    if options.json:
        print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
