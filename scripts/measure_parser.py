"""Measure the scene-graph parser on human graphs of the FACTUAL data set (Li et al. 2023).

    python scripts/measure_parser.py random/dev.csv length/dev.csv [--errors N] [--json]

Strict triples, see `graph_score`. For each file: precision, recall, pooled and
mean F1 of triples and entities, exact graphs, and the kinds of the triples that differ; --errors
shows the first N captions whose graph differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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

from compoclip.captions.parse import PARSER_VERSION, parse
from compoclip.captions.tagger import tagger_version
from compoclip.captions.types import SceneGraph
from compoclip.console import table


@dataclass(frozen=True)
class Result:
    """Scores and differences of one file."""

    triples: Agreement
    entities: Agreement
    attributes: Agreement
    relations: Agreement
    missed: dict[str, int]
    extra: dict[str, int]


def read_rows(path: Path) -> list[tuple[str, Facts]]:
    """(caption, human facts) of every row."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["caption"], parse_facts(row["scene_graph"])) for row in csv.DictReader(file)]


def measure(rows: Sequence[tuple[str, Facts, Facts]]) -> Result:
    """Compare (caption, our facts, human facts)."""
    missed: Counter[str] = Counter()
    extra: Counter[str] = Counter()
    for _, ours, human in rows:
        missed += differences(human, ours)
        extra += differences(ours, human)
    return Result(
        agreement((ours.triples, human.triples) for _, ours, human in rows),
        agreement((ours.entities, human.entities) for _, ours, human in rows),
        agreement((of_kind(ours, True), of_kind(human, True)) for _, ours, human in rows),
        agreement((of_kind(ours, False), of_kind(human, False)) for _, ours, human in rows),
        dict(missed),
        dict(extra),
    )


def of_kind(facts: Facts, attributes: bool) -> frozenset[tuple[str, str, str]]:
    """The attributes, or the relations, among the triples."""
    return frozenset(t for t in facts.triples if (t[1] == "is") is attributes)


def show(path: Path, rows: Sequence[tuple[str, Facts, Facts]], errors: int) -> None:
    """Print the scores of one file and its first differing captions."""
    result = measure(rows)
    scores = [
        [name, *(f"{100 * v:.1f}" for v in (s.precision, s.recall, s.f1, s.mean_f1, s.exact))]
        for name, s in (
            ("triples", result.triples),
            ("entities", result.entities),
            ("attributes", result.attributes),
            ("relations", result.relations),
        )
    ]
    print(f"{path}: {len(rows)} captions, parser {PARSER_VERSION}, {tagger_version()}\n")
    print(table(scores, ["%", "precision", "recall", "F1", "mean F1", "exact"]))
    kinds = [[k, str(result.missed.get(k, 0)), str(result.extra.get(k, 0))] for k in KINDS]
    print("\n" + table(kinds, ["triples that differ", "missed", "too much"]) + "\n")
    for caption, ours, human in [row for row in rows if row[1] != row[2]][:errors]:
        print(caption)
        print(f"  missed    {sorted(human.triples - ours.triples)}")
        print(f"  too much  {sorted(ours.triples - human.triples)}")


def main(arguments: Sequence[str]) -> int:
    """Measure every file; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--errors", type=int, default=0, help="differing captions to show")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    report = {}
    for path in options.files:
        rows = [
            (caption, graph_facts(parse(caption).graph or SceneGraph()), human)
            for caption, human in read_rows(path)
        ]
        if options.json:
            report[str(path)] = asdict(measure(rows))
        else:
            show(path, rows, options.errors)
    if options.json:
        print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
