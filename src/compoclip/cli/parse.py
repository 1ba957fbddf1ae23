"""`compoclip parse TEXT|FILE`: tags and scene graphs of captions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from compoclip import console
from compoclip.captions.graph_records import parse_records, provenance
from compoclip.captions.graph_tree import graph_tree
from compoclip.captions.parse import parse as parse_caption
from compoclip.captions.tagger import get_tagger
from compoclip.captions.types import SceneGraph
from compoclip.cli.corpus import counted_captions, dispatch, note_cut, run_corpus
from compoclip.cli.options import parse
from compoclip.cli.rewrite_input import CaptionFile
from compoclip.corpora.engine import Engine
from compoclip.corpora.job import Counts, ParseJob
from compoclip.recordfile import write_records


@dataclass(frozen=True)
class ParseOptions:
    """Tags and scene graphs of captions.

    Of a text, its words with lemma and tags are shown, and the scene graph: objects with their
    attributes, below each what it is related to. A file becomes JSON lines, one record a caption:
    id, caption, tokens, objects with attributes, relations (by position in the objects), tagger,
    parser; every node with its character range. The bytes do not depend on --workers. A rerun of an
    interrupted run goes on where it stopped.

    Shards (.parquet, .jsonl, .jsonl.gz, webdataset .tar; a file, a folder, or a pattern such as
    'part-{000..099}.tar') become shards of the same names in the folder -o: everything in them is
    kept, and compact parses are added as parse, which rewrite reads. Finished shards are not made
    again; damaged ones are named and left out. See docs/corpora.md.

    Examples:
        compoclip parse "a man in a red hat walks two dogs"
        compoclip parse captions.txt -o graphs.jsonl --workers 4
        compoclip parse coco.csv --column title -o graphs.jsonl
        compoclip parse 'cc3m/*.tar' -o cc3m-parsed --workers 16

    Args:
        source: A caption, or a file: .txt (one caption a line), .jsonl, .csv or .tsv; or shards.
        out: JSONL file to write, for a file of captions; folder, for shards.
        column: Column with the captions, for .jsonl, .csv and .tsv ("caption" if not given), and
            for shards (found by the usual names if not given). A column "id", where there is one,
            names the captions; else the line or row number does.
        workers: Processes; the result does not depend on it.
        engine: For shards: processes of this machine, or tasks of a Ray cluster: the one that
            RAY_ADDRESS names, else one of --workers processes here.
        max_bad: Damaged shards to leave out before the exit code is 1.
        tagger: hanta, spacy or spacy:MODEL.
        json: Print the record (a text) or counts (a file) as JSON.
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT|FILE")]
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    column: str | None = None
    workers: int = 1
    engine: Engine = "local"
    max_bad: int = 0
    tagger: str = "hanta"
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse the options, then a text or a file; returns the exit code."""
    options = parse(ParseOptions, "parse", argv)
    return dispatch(
        options,
        "graph",
        lambda: _show(options),
        lambda file, out: _produce(options, out, file),
        lambda out: run_corpus(options, out, ParseJob(options.tagger), "parse", _show_counts),
    )


def _show(options: ParseOptions) -> int:
    if options.json:
        console.emit_json(parse_records([("0", options.source)], options.tagger)[0])
        return 0
    caption = parse_caption(options.source, get_tagger(options.tagger))
    note_cut(caption.cut)
    if caption.tokens:
        rows = [[t.text, t.lemma, t.pos, t.tag] for t in caption.tokens]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        print()
    for line in graph_tree(caption.graph or SceneGraph()):
        print(line)
    return 0


def _show_counts(total: Counts) -> None:
    counts = total.get("parses")
    if counts:
        print(
            f"{counts['objects']} objects, {counts['attributes']} attributes, "
            f"{counts['relations']} relations; {counts['without_objects']} captions without an "
            "object"
        )


def _produce(options: ParseOptions, out: Path, file: CaptionFile) -> int:
    total, cut = counted_captions(file)
    counts = {"objects": 0, "attributes": 0, "relations": 0, "captions_without_objects": 0}

    def count(record: dict[str, Any]) -> None:
        objects, relations = record["objects"], len(record["relations"])
        counts["attributes"] += sum(len(node["attributes"]) for node in objects)
        counts["objects"] += len(objects)
        counts["relations"] += relations
        counts["captions_without_objects"] += not objects

    def track(captions: Iterable[int]) -> Iterable[int]:
        return console.track(captions, "parse", total, "captions")

    resumed = write_records(
        file,
        out,
        partial(parse_records, tagger=options.tagger),
        {**provenance(options.tagger), "source": file.identity()},
        count,
        workers=options.workers,
        track=track,
    )
    if options.json:
        report = {"out": str(out), "captions": total, "captions_cut": cut}
        report["records_from_before"] = resumed
        console.emit_json({**report, **counts, **provenance(options.tagger)})
        return 0
    if resumed:
        console.note(f"{resumed} records were there already")
    note_cut(cut)
    print(
        f"{console.counted(total, 'caption')}: {counts['objects']} objects, "
        f"{counts['attributes']} attributes, {counts['relations']} relations; "
        f"{counts['captions_without_objects']} without an object"
    )
    print(f"written to {out}")
    return 0
