"""`compoclip rewrite TEXT|FILE`: show or mass-produce hard negatives and positives of captions."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from compoclip import console
from compoclip.captions.graph import graph_tree
from compoclip.captions.parser import parse as parse_caption
from compoclip.captions.parser import parse_records, provenance
from compoclip.captions.tagger import get_tagger
from compoclip.captions.types import MOST_TOKENS, SceneGraph, is_cut
from compoclip.cli.caption_input import (
    DEFAULT_COLUMN,
    CaptionFile,
    caption_file,
)
from compoclip.cli.options import WorkerCount, parse, processes
from compoclip.config import Shown
from compoclip.corpora.job import CorpusJob, Counts, ParseJob, RewriteJob
from compoclip.corpora.run import CorpusOutcome, Engine, process
from compoclip.corpora.shard import find_shards, kind_of, names_shards
from compoclip.errors import UsageError
from compoclip.recordfile import Track, write_records
from compoclip.rewrites.base import rewrites_named
from compoclip.rewrites.records import (
    HEADER,
    RewriteTally,
    Settings,
    reason_lines,
    records,
    rows,
    write_corpus,
)

# --- What `compoclip rewrite` and `compoclip parse` share: a text, a file, or shards in and
# out. ---


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Where captions come from and go to, and how.

    Args:
        source: A caption, or a file: .txt (one caption a line), .jsonl, .csv or .tsv; or shards.
        out: JSONL file to write, for a file of captions; folder, for shards.
        column: Column with the captions, for .jsonl, .csv and .tsv ("caption" if not given), and
            for shards (found by the usual names if not given). A column "id", where there is one,
            names the samples; else the line or row number does, in shards with their name.
        workers: Processes; the result does not depend on it. auto is one a core for megabytes of
            captions.
        engine: For shards: processes of this machine, or tasks of a Ray cluster: the one that
            RAY_ADDRESS names, else one of --workers processes here.
        max_bad: Damaged shards to leave out before the exit code is 1.
        tagger: hanta, spacy or spacy:MODEL.
        json: Print records (a text) or statistics (a file) as JSON.
    """

    source: Annotated[str, Shown("TEXT|FILE", positional=True)]
    out: Annotated[Path | None, Shown(short="-o")] = None
    column: str | None = None
    workers: WorkerCount = "auto"
    engine: Engine = "local"
    max_bad: int = 0
    tagger: str = "hanta"
    json: bool = False


_MUCH = 4 << 20  # bytes of captions that are worth starting processes for


def workers_for(options: CorpusOptions, file: CaptionFile) -> int:
    """The number of processes for a file of captions."""
    return processes(options.workers, file.path.stat().st_size, _MUCH)


def dispatch(
    options: CorpusOptions,
    made: str,
    text: Callable[[], int],
    file: Callable[[CaptionFile, Path], int],
    shards: Callable[[Path], int],
) -> int:
    """Does with the source what its kind asks for; returns the exit code.

    made: what a text is turned into, for messages. file, shards: get the output. Raises UsageError
    for options that do not go together.
    """
    processes(options.workers, 0, 1)  # checks it
    get_tagger(options.tagger)  # an unknown tagger is an error before any file is touched
    out = options.out
    if is_corpus(options.source, out):
        assert out is not None  # is_corpus asks for it
        return shards(out)
    source = caption_file(options.source, options.column or DEFAULT_COLUMN)
    if source is None:
        if out is not None:
            raise UsageError(
                f"-o is for files of captions; leave it out to see one caption's {made}"
            )
        return text()
    if out is None:
        raise UsageError(f"{options.source}: name the file to write with -o OUT.jsonl")
    if out.resolve() == source.path.resolve():
        raise UsageError(f"{out}: is the input itself; choose another -o")
    return file(source, out)


def write_file(
    options: CorpusOptions,
    out: Path,
    file: CaptionFile,
    verb: str,
    write: Callable[[Track], int],
    report: Callable[[], dict[str, Any]],
    show: Callable[[int], None],
) -> int:
    """Write the records of a file of captions and say what was done; returns the exit code.

    All captions are read first, so that a bad row shows before hours of work. write: takes what
    shows progress, returns how many records were there already. report: what the JSON says besides.
    show: prints the summary, given the number of captions. Raises UsageError for an empty file.
    """
    total = cut = 0
    for _, text in file:
        total += 1
        cut += is_cut(text)
    if not total:
        raise UsageError(f"{file.path}: holds no captions")
    resumed = write(lambda done: console.track(done, verb, total, "captions"))
    if options.json:
        counts = {"captions": total, "captions_cut": cut, "records_from_before": resumed}
        console.emit_json({"out": str(out), **counts, **report()})
        return 0
    if resumed:
        console.note(f"already there: {console.counted(resumed, 'record')}")
    note_cut(cut)
    show(total)
    return 0


def note_cut(number: int) -> None:
    """Say how many captions were cut before they were parsed, if any."""
    if number:
        console.note(
            f"{console.counted(number, 'caption')} cut to {MOST_TOKENS} words and marks before "
            "parsing: no model reads more"
        )


def is_corpus(source: str, out: Path | None) -> bool:
    """Whether `source` is to be read as shards.

    A .jsonl file is when the output is no .jsonl file; the other kinds of shards, folders and
    patterns always are. Raises UsageError when the output does not fit.
    """
    if not names_shards(source):
        return False
    records = out is not None and out.suffix.lower() == ".jsonl" and not out.is_dir()
    if Path(source).is_file() and kind_of(source) == ".jsonl" and (records or out is None):
        return False
    if out is None:
        raise UsageError(f"{source}: name the folder to write the shards to with -o OUT")
    if records:
        raise UsageError(f"{out}: shards are written to a folder, not to a .jsonl file; name one")
    return True


def run_corpus(
    options: CorpusOptions, out: Path, job: CorpusJob, verb: str, show: Callable[[Counts], None]
) -> int:
    """Process the corpus and say what was done; returns the exit code.

    show: prints what the job counted.
    """
    if options.max_bad < 0:
        raise UsageError("--max-bad must not be negative")
    shards = find_shards(options.source)
    start = time.monotonic()
    outcome = process(
        shards,
        out,
        job,
        column=options.column,
        workers=processes(
            options.workers, sum(each.stat().st_size for each in shards if each.is_file()), _MUCH
        ),
        engine=options.engine,
        track=lambda results: console.track(results, verb, unit="shards"),
    )
    seconds = time.monotonic() - start
    for error in outcome.bad.values():
        console.note(f"left out: {error}")
    if options.json:
        settings = {**job.settings(), "column": options.column}
        console.emit_json({"out": str(out), "settings": settings, **_report(outcome)})
    else:
        _say(out, outcome, seconds)
        show(outcome.total)
    if len(outcome.bad) > options.max_bad:
        console.note(
            f"compoclip {verb}: {console.counted(len(outcome.bad), 'shard')} left out, "
            f"{options.max_bad} allowed (--max-bad); mend them and run again"
        )
        return 1
    return 0


def _report(outcome: CorpusOutcome) -> dict[str, Any]:
    return {
        "shards": {**outcome.made, **outcome.skipped},
        "from_before": sorted(outcome.skipped),
        "left_out": outcome.bad,
        "total": outcome.total,
    }


def _say(out: Path, outcome: CorpusOutcome, seconds: float) -> None:
    captions = sum(counts["captions"] for counts in outcome.made.values())
    rate = f", {captions / seconds:.0f} captions/s" if captions else ""
    print(
        f"{console.counted(len(outcome.made), 'shard')} written in {seconds:.1f} s{rate}; "
        f"{len(outcome.skipped)} were there already; {len(outcome.bad)} left out"
    )
    total = outcome.total
    parts = [f"{number} {reason}" for reason, number in sorted(total["left_out"].items())]
    more = f" (left out: {', '.join(parts)})" if parts else ""
    rows, captions = (console.counted(total[f"{each}s"], each) for each in ("row", "caption"))
    print(f"{rows} with {captions}{more}")
    note_cut(total["cut"])
    print(f"written to {out}")


# --- `compoclip rewrite TEXT|FILE`: show or mass-produce hard negatives and positives of
# captions. ---


@dataclass(frozen=True)
class RewriteOptions(CorpusOptions):
    """Show or mass-produce hard negatives and positives of captions.

    A text is rewritten in every way, negatives before positives, with the changed words marked, or
    the reason why there is no valid rewrite. A file becomes JSON lines, one record for each caption
    and rewrite, refusals included: id, caption, rewrite, version, keeps_meaning, text, rule, edits
    (character ranges and words before and after), reason, seed, epoch, tagger, lexicon. The bytes
    do not depend on --workers. A rerun of an interrupted run goes on where it stopped.

    Shards (.parquet, .jsonl, .jsonl.gz, webdataset .tar; a file, a folder, or a pattern such as
    'part-{000..099}.tar') become shards of the same names in the folder -o: everything in them is
    kept, negatives are added as neg_caption, positives as positive, which train reads. Finished
    shards are not made again; damaged ones are named and left out. See docs/corpora.md.

    Examples:
        compoclip rewrite "a red star to the left of a large mug"
        compoclip rewrite captions.txt -o negatives.jsonl --rewrites negclip,replace --workers 4
        compoclip rewrite coco.csv --column title -o out.jsonl --epoch 3
        compoclip rewrite 'cc3m/*.tar' -o cc3m-negatives --rewrites negclip,replace --workers 16

    Args:
        rewrites: Names, or files of yours (./my_rewrite.py), joined by commas; or "all" (see
            compoclip rewrites).
        seed: Fixes, with sample and epoch, which of the possible rewrites is drawn.
        epoch: Another epoch draws anew.
    """

    rewrites: str = "all"
    seed: int = 0
    epoch: int = 0


def main(argv: Sequence[str]) -> int:
    """Parse the options, rewrite a text or a file; returns the exit code."""
    options = parse(RewriteOptions, "rewrite", argv)
    names = rewrites_named(options.rewrites)
    settings = Settings(names, options.seed, options.epoch, options.tagger)
    return dispatch(
        options,
        "rewrites",
        lambda: _show(options, settings),
        lambda file, out: _produce(options, out, file, settings),
        lambda out: _produce_shards(options, out, settings),
    )


def _show(options: RewriteOptions, settings: Settings) -> int:
    made = records([("0", options.source)], settings)
    if options.json:
        console.emit_json(made)
        return 0
    width = max(len(r["rewrite"]) for r in made) + 2
    coloured = sys.stdout.isatty()
    print("caption".ljust(width) + made[0]["caption"])
    note_cut(is_cut(options.source))
    kinds = (("negative", False), ("positive", True))
    groups = [(kind, [r for r in made if r["keeps_meaning"] is keeps]) for kind, keeps in kinds]
    for kind, group in groups:
        if group and len(made) > len(group):
            print(f"\n{kind}s")
        for record in group:
            name = record["rewrite"].ljust(width)
            if record["reason"] is not None:
                print(f"{name}refused: {record['reason']}")
            else:
                print(f"{name}{_marked(record, coloured)}  ({kind}, {record['rule']})")
    return 0


def _marked(record: dict[str, Any], coloured: bool) -> str:
    """The new text with its edited ranges highlighted: bold on a terminal, else in brackets."""
    opening, closing = ("\x1b[1;33m", "\x1b[0m") if coloured else ("[", "]")
    text, parts, end = record["text"], [], 0
    for edit in record["edits"]:
        changed = text[edit["new_start"] : edit["new_end"]]
        parts += [text[end : edit["new_start"]], opening, changed, closing]
        end = edit["new_end"]
    return "".join([*parts, text[end:]])


def _produce_shards(options: RewriteOptions, out: Path, settings: Settings) -> int:
    def show(total: Counts) -> None:
        made = total.get("rewrites", {})
        tallies = {name: RewriteTally.from_counts(made[name]) for name in settings.rewrites if made}
        _print_tallies(tallies)

    return run_corpus(options, out, RewriteJob(settings), "rewrite", show)


def _produce(options: RewriteOptions, out: Path, file: CaptionFile, settings: Settings) -> int:
    tallies: dict[str, RewriteTally] = {}

    def write(track: Track) -> int:
        outcome = write_corpus(
            file, out, settings, file.identity(), workers_for(options, file), track
        )
        tallies.update(outcome.tallies)
        return outcome.resumed

    def report() -> dict[str, Any]:
        made = {name: tally.as_json() for name, tally in tallies.items()}
        return {**settings.provenance(), "rewrites": made}

    def show(total: int) -> None:
        _print_tallies(tallies)
        print(f"written to {out} (lexicon: {settings.provenance()['lexicon']})")

    return write_file(options, out, file, "rewrite", write, report, show)


def _print_tallies(tallies: Mapping[str, RewriteTally]) -> None:
    print(console.table(rows(tallies), HEADER))
    for line in reason_lines(tallies):
        print(line)


# --- `compoclip parse TEXT|FILE`: tags and scene graphs of captions. ---


@dataclass(frozen=True)
class ParseOptions(CorpusOptions):
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
    """


def parse_main(argv: Sequence[str]) -> int:
    """Parse the options, then a text or a file; returns the exit code."""
    options = parse(ParseOptions, "parse", argv)
    return dispatch(
        options,
        "graph",
        lambda: _parse_show(options),
        lambda file, out: _parse_produce(options, out, file),
        lambda out: run_corpus(options, out, ParseJob(options.tagger), "parse", _show_counts),
    )


def _parse_show(options: ParseOptions) -> int:
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
        without = console.counted(counts["without_objects"], "caption")
        print(f"{_parts(counts)}; {without} without an object")


def _parts(counts: Mapping[str, int]) -> str:
    nodes = ("object", "attribute", "relation")
    return ", ".join(console.counted(counts[f"{each}s"], each) for each in nodes)


def _parse_produce(options: ParseOptions, out: Path, file: CaptionFile) -> int:
    counts = {"objects": 0, "attributes": 0, "relations": 0, "captions_without_objects": 0}

    def count(record: dict[str, Any]) -> None:
        objects = record["objects"]
        counts["attributes"] += sum(len(node["attributes"]) for node in objects)
        counts["objects"] += len(objects)
        counts["relations"] += len(record["relations"])
        counts["captions_without_objects"] += not objects

    def write(track: Track) -> int:
        make = partial(parse_records, tagger=options.tagger)
        made_from = {**provenance(options.tagger), "source": file.identity()}
        return write_records(
            file, out, make, made_from, count, 1, workers_for(options, file), track
        )

    def report() -> dict[str, Any]:
        return {**counts, **provenance(options.tagger)}

    def show(total: int) -> None:
        print(
            f"{console.counted(total, 'caption')}: {_parts(counts)}; "
            f"{counts['captions_without_objects']} without an object\nwritten to {out}"
        )

    return write_file(options, out, file, "parse", write, report, show)
