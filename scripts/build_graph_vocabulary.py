#!/usr/bin/env python3
"""Build the word lists of graph negatives (MosaiCLIP) from files of scene graphs.

    python scripts/build_graph_vocabulary.py scene_graphs.json -o vocabulary.json
    python scripts/build_graph_vocabulary.py train.csv dev.csv -o vocabulary.json --min-objects 5

Reads FACTUAL's .csv, Visual Genome's scene_graphs.json and GQA's sceneGraphs.json. Keeps the
objects met at least --min-objects times and the most frequent attributes and relations; the file
holds every word with its count, and what was met and left out is printed.
"""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path

from compoclip.errors import CompoclipError
from compoclip.rewrites.graph_sources import read_scene_graphs
from compoclip.rewrites.graph_vocabulary import (
    ATTRIBUTES,
    MIN_OBJECTS,
    RELATIONS,
    build_vocabulary,
    save_vocabulary,
)


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
    save_vocabulary(vocabulary, options.out)
    print(f"{options.out}: from {vocabulary.built['graphs']:,} scene graphs")
    for kind in ("objects", "attributes", "relations"):
        counts, met = vocabulary.counts[kind], vocabulary.built[f"{kind}_met"]
        share = sum(counts.values()) / max(met, 1)
        print(
            f"  {kind}: {len(counts):,} of {vocabulary.built[f'{kind}_distinct']:,} words, "
            f"{share:.1%} of {met:,} instances"
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CompoclipError as error:
        sys.exit(f"build_graph_vocabulary: {error}")
