"""`compoclip rewrite TEXT|FILE`: show or write hard negatives and hard positives of captions."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from compoclip import console
from compoclip.cli.caption_input import DEFAULT_COLUMN, caption_file
from compoclip.cli.options import OnEngine, Outcome, WorkerCount, processes
from compoclip.config import InputFolder, Shown, Trainer, require_with
from compoclip.errors import UsageError, require
from compoclip.patterns import names_shards
from compoclip.typed import Natural

if TYPE_CHECKING:
    from compoclip.corpora.job import CorpusJob, Counts
    from compoclip.recordfile import Make, Record
    from compoclip.rewrites.records import Settings


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(OnEngine):
    """Source and destination of captions, and processing.

    Args:
        source: A caption; a file: .txt (one caption per line), .jsonl, .csv or .tsv; or shards.
        out: JSONL file to write, for a file of captions; folder, for shards.
        column: Column with the captions, for .jsonl, .csv and .tsv (default "caption") and for
            shards (by default a column with a usual name). The column "id" names the
            samples. Without it they are named by line or row number, in shards also by the shard.
        workers: Processes; the result does not depend on it. auto is one per core for megabytes of
            captions.
        max_bad: Number of damaged shards up to which the exit code is 0.
        tagger: hanta, spacy or spacy:MODEL.
    """

    source: Annotated[str, Shown("TEXT|FILE", positional=True)]
    out: Annotated[Path | None, Shown(short="-o")] = None
    column: str | None = None
    workers: WorkerCount = "auto"
    max_bad: Natural = 0
    tagger: str = "hanta"


_MUCH = 4 << 20  # bytes of captions that are worth starting processes for


@dataclass(frozen=True)
class CaptionWork:
    """How a verb converts a text, a file of captions or shards; made when these are there.

    job: for shards, counts the same numbers as `count`; its settings are those of the verb. show:
    for a text. make, each: as for `write_records`. count: adds a record to the numbers that `lines`
    and `summary` (for JSON) show.
    """

    job: CorpusJob
    show: Callable[[], Outcome]
    make: Make
    count: Callable[[Counts, Record], None]
    lines: Callable[[Counts], list[str]]
    summary: Callable[[Counts], Mapping[str, Any]]
    each: int = 1


def run(options: CorpusOptions, work_of: Callable[[], CaptionWork]) -> Outcome:
    """Do with the source what its kind asks for.

    A .jsonl file is shards when the output is no .jsonl file; the other kinds of shards, folders
    and patterns always are. Raises UsageError for options that do not go together.
    """
    spec, out = options.source, options.out
    to_file = out is not None and out.suffix.lower() == ".jsonl" and not out.is_dir()
    shards = names_shards(spec)
    rows = shards and Path(spec).is_file() and spec.lower().endswith(".jsonl")
    if shards and not (rows and (to_file or out is None)):
        if out is None or to_file:
            raise UsageError(f"{spec}: name a folder for the shards with -o OUT, not a .jsonl file")
        return _write_shards(options, out, work_of())
    if options.engine != "local":
        raise UsageError(
            f"{spec}: --engine {options.engine} shares shards out; name a folder of them, or leave "
            "--engine out"
        )
    file = caption_file(spec, options.column or DEFAULT_COLUMN)
    if file is None:
        if out is None:
            return work_of().show()
        raise UsageError("-o is for files of captions; leave it out to see what one caption gives")
    if out is None:
        raise UsageError(f"{spec}: name the file to write with -o OUT.jsonl")
    require(not out.is_dir(), out, "is a folder; name a file to write", UsageError)
    if out.resolve() == file.path.resolve():
        raise UsageError(f"{out}: is the input itself; choose another -o")
    require(file.path.is_file(), file.path, "no such file; check the path")
    work = work_of()
    from compoclip.captions.types import is_cut

    cuts = [is_cut(text) for _, text in file]  # reads all, so that a bad row shows early
    if not cuts:
        raise UsageError(f"{file.path}: holds no captions")
    from compoclip.recordfile import write_records  # with multiprocessing

    counts: Counts = {}
    made_from = work.job.settings()
    verb = made_from.pop("job")
    resumed = write_records(
        file,
        out,
        work.make,
        {**made_from, "source": file.identity()},
        partial(work.count, counts),
        work.each,
        processes(options.workers, file.path.stat().st_size, _MUCH),
        lambda done: console.track(done, verb, len(cuts), "captions"),
    )
    if not options.json:
        if resumed:
            console.note(f"already there: {console.counted(resumed, 'record')}")
        note_cut(sum(cuts))
    read = {"captions": len(cuts), "captions_cut": sum(cuts), "records_from_before": resumed}
    lines = [console.counted(len(cuts), "caption"), *work.lines(counts), f"written to {out}"]
    record = {"out": str(out), **read, **made_from, **work.summary(counts)}
    return record, "\n".join(lines)


def note_cut(number: int) -> None:
    """Say how many captions were cut before they were parsed, if any."""
    from compoclip.captions.types import MOST_TOKENS

    if number:
        console.note(
            f"{console.counted(number, 'caption')} cut to {MOST_TOKENS} words and marks before "
            "parsing: no model reads more"
        )


def _left_out(reasons: Mapping[str, int]) -> str:
    parts = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
    return f" (left out: {parts})" if parts else ""


def _write_shards(options: CorpusOptions, out: Path, work: CaptionWork) -> Outcome:
    """Process the shards; exit code 1 when more are damaged than allowed."""
    from compoclip.corpora.run import process
    from compoclip.corpora.shard import find_shards

    settings = work.job.settings()
    shards = find_shards(options.source)
    size = sum(each.stat().st_size for each in shards if each.is_file())
    start = time.monotonic()
    outcome = process(
        shards,
        out,
        work.job,
        column=options.column,
        workers=processes(options.workers, size, _MUCH),
        engine=options.engine,
        track=lambda results: console.track(results, settings["job"], unit="shards"),
    )
    seconds = time.monotonic() - start
    for error in outcome.bad.values():
        console.note(f"left out: {error}")
    total = outcome.total
    record = {
        "out": str(out),
        "settings": {**settings, "column": options.column},
        "shards": {**outcome.written, **outcome.skipped},
        "from_before": sorted(outcome.skipped),
        "left_out": outcome.bad,
        "total": total,
    }
    now = sum(counts["captions"] for counts in outcome.written.values())
    rate = f", {now / seconds:.0f} captions/s" if now else ""
    rows, captions = (console.counted(total[f"{each}s"], each) for each in ("row", "caption"))
    lines = [
        f"{console.counted(len(outcome.written), 'shard')} written in {seconds:.1f} s{rate}; "
        f"{len(outcome.skipped)} were there already; {len(outcome.bad)} left out",
        f"{rows} with {captions}{_left_out(total['left_out'])}",
        f"written to {out}",
        *work.lines(total),
    ]
    if not options.json:
        note_cut(total["cut"])
    failed = len(outcome.bad) > options.max_bad
    if failed:
        console.note(
            f"compoclip {settings['job']}: {console.counted(len(outcome.bad), 'shard')} left out, "
            f"{options.max_bad} allowed (--max-bad); fix them and run again"
        )
    return record, "\n".join(lines), int(failed)


# --- `compoclip rewrite TEXT|FILE`. ---


@dataclass(frozen=True)
class RewriteOptions(CorpusOptions):
    """Show or write hard negatives and hard positives of captions.

    For a text, print the result of every rewrite with the changed words marked, or the reason of
    the refusal. Negatives come before positives. For a file of captions, write JSON lines with one
    record per caption and rewrite, also for refusals. The fields are id, caption, rewrite, version,
    keeps_meaning, text, rule, edits (character ranges and words before and after), reason, seed,
    epoch, tagger and lexicon. The bytes do not depend on --workers. After an interruption, the same
    command resumes.

    Shards are a file, a folder, or a pattern such as 'part-{000..099}.tar'. They may be .parquet,
    .jsonl, .jsonl.gz or webdataset .tar. Each shard is copied to the folder -o under its name, with
    the negatives as neg_caption and the positives as positive. train reads these columns. Finished
    shards are skipped; damaged ones are named and left out. See docs/corpora.md.

    With --to, write a folder that another trainer reads, from any data that train --data takes. It
    has every caption with its hard negatives, and a data card with coverage, error rates and
    provenance. sentence-transformers: Parquet of anchor, positive, negative_1, ...; ms-swift: JSON
    lines of messages; negclip: its table; open-clip: webdataset with negatives in the .json.

    Examples:
        compoclip rewrite "a red star to the left of a large mug"
        compoclip rewrite captions.txt -o negatives.jsonl --rewrites negclip,replace --workers 4
        compoclip rewrite coco.csv --column title -o out.jsonl --epoch 3
        compoclip rewrite 'cc3m/*.tar' -o cc3m-negatives --rewrites negclip,replace --workers 16
        compoclip rewrite pairs.csv --images photos --to negclip --rewrites replace -o exported

    Args:
        rewrites: Names or files (./my_rewrite.py), joined by commas; or "all" (see compoclip list
            rewrites).
        seed: Seed of the sampling. Seed, sample and epoch decide which possible text is taken.
        epoch: Another epoch samples other texts.
        to: Write the data for this trainer into the new folder -o.
        images: With --to, folder that image paths are relative to.
        split: With --to, the split to read.
        licence: With --to, licence of the captions, for the data card.
    """

    rewrites: str = "all"
    seed: int = 0
    epoch: int = 0
    to: Trainer | None = None
    images: InputFolder | None = None
    split: str | None = None
    licence: str = ""


def rewrite_main(options: RewriteOptions) -> Outcome:
    """Rewrite a text, a file of captions or shards."""
    require_with(options, "to", "images", "split", "licence")
    if options.to is not None:
        return _export(options, options.to)
    return run(options, lambda: _rewriting(options))


def _rewriting(options: RewriteOptions) -> CaptionWork:
    from compoclip.rewrites.base import get_rewrite, rewrites_named

    names = rewrites_named(options.rewrites)
    from compoclip.captions.tagger import get_tagger
    from compoclip.corpora.job import RewriteJob, add_counts
    from compoclip.rewrites.records import Settings, records, summary, tally

    get_tagger(options.tagger)  # an unknown tagger is an error before any file is touched
    settings = Settings(names, options.seed, options.epoch, options.tagger)
    known = [get_rewrite(name).name for name in names]

    def add(counts: Counts, record: Record) -> None:
        name = known[known.index(record["rewrite"])]
        add_counts(counts, {"rewrites": {name: tally(record)}})

    return CaptionWork(
        RewriteJob(settings),
        lambda: _show(options, settings),
        partial(records, settings=settings),
        add,
        _tallied,
        lambda counts: {"rewrites": {k: summary(v) for k, v in counts["rewrites"].items()}},
        len(names),
    )


def _export(options: RewriteOptions, to: Trainer) -> Outcome:
    """Write image-text data with its negatives for another trainer."""
    from compoclip.rewrites.base import rewrites_named

    names = rewrites_named(options.rewrites)
    from compoclip.captions.tagger import get_tagger
    from compoclip.corpora.export import export
    from compoclip.data.sources.open import open_source
    from compoclip.rewrites.records import Settings

    if options.out is None or options.rewrites == "all" or options.engine != "local":
        raise UsageError(
            "--to needs a new folder -o and negatives named by --rewrites, e.g. negclip,replace; "
            "it runs on this machine alone"
        )
    get_tagger(options.tagger)
    try:
        source = open_source(
            options.source,
            images=options.images,
            caption_column=options.column,
            split=options.split,
        )
    except UsageError as error:
        if Path(options.source).suffix != ".txt":
            raise
        raise UsageError(
            f"{options.source}: --to writes images with their captions, so name a table of both; "
            "a list of captions is rewritten without --to"
        ) from error
    made = export(
        source,
        options.out,
        to,
        Settings(names, options.seed, options.epoch, options.tagger),
        licence=options.licence,
        workers=processes(options.workers, len(source), 20_000),
        track=lambda done: console.track(done, "export", len(source), "photos"),
    )
    rows, photos, texts = (console.counted(made[f"{n}s"], n) for n in ("row", "photo", "negative"))
    lines = [
        *_tallied(made),
        f"{rows} of {photos} with {texts}{_left_out(made['left_out'])}",
        f"written to {options.out}, with README.md as its data card",
    ]
    return {"out": str(options.out), **made}, "\n".join(lines)


def _tallied(counts: Counts) -> list[str]:
    from compoclip.rewrites.records import tally_table

    return [str(tally_table(counts["rewrites"]))] if counts.get("rewrites") else []


def _show(options: RewriteOptions, settings: Settings) -> Outcome:
    """Return every rewrite of a text, its edits bold on a terminal, else in brackets."""
    from compoclip.captions.types import is_cut
    from compoclip.rewrites.records import records, text_of

    made = records([("0", options.source)], settings)
    if not options.json:
        note_cut(is_cut(options.source))
    marks = ("\x1b[1;33m", "\x1b[0m") if sys.stdout.isatty() else ("[", "]")
    return made, text_of(made, *marks)


# --- `compoclip parse TEXT|FILE`: tags and scene graphs of captions. ---


@dataclass(frozen=True)
class ParseOptions(CorpusOptions):
    """Show or write tags and scene graphs of captions.

    For a text, print its words with lemma and tags, and the scene graph: objects with their
    attributes, and below each its relations. A file becomes JSON lines, one record per caption: id,
    caption, tokens, objects with attributes, relations (by index of the objects), tagger, parser;
    every node has its character range. The bytes do not depend on --workers. After an interruption,
    the same command resumes.

    Shards are a file, a folder, or a pattern such as 'part-{000..099}.tar'. They may be .parquet,
    .jsonl, .jsonl.gz or webdataset .tar. Each shard is copied to the folder -o under its name, with
    compact parses as parse. rewrite reads this column. Finished shards are skipped; damaged ones
    are named and left out. See docs/corpora.md.

    Examples:
        compoclip parse "a man in a red hat walks two dogs"
        compoclip parse captions.txt -o graphs.jsonl --workers 4
        compoclip parse coco.csv --column title -o graphs.jsonl
        compoclip parse 'cc3m/*.tar' -o cc3m-parsed --workers 16
    """


def parse_main(options: ParseOptions) -> Outcome:
    """Parse a text, a file of captions or shards."""
    return run(options, lambda: _parsing(options))


def _parsing(options: ParseOptions) -> CaptionWork:
    from compoclip.captions.parser import parse_records
    from compoclip.captions.tagger import get_tagger
    from compoclip.corpora.job import ParseJob, add_counts, graph_counts

    get_tagger(options.tagger)  # an unknown tagger is an error before any file is touched

    def add(counts: Counts, record: Record) -> None:
        attributes = [node["attributes"] for node in record["objects"]]
        add_counts(counts, {"parses": graph_counts(attributes, record["relations"])})

    def lines(counts: Counts) -> list[str]:
        found = counts.get("parses")
        if not found:
            return []
        parts = [console.counted(found[f"{n}s"], n) for n in ("object", "attribute", "relation")]
        return [f"{', '.join(parts)}; {found['without_objects']} without an object"]

    return CaptionWork(
        ParseJob(options.tagger),
        lambda: _show_parse(options),
        partial(parse_records, tagger=options.tagger),
        add,
        lines,
        lambda counts: counts["parses"],
    )


def _show_parse(options: ParseOptions) -> Outcome:
    from compoclip.captions.graph import graph_tree
    from compoclip.captions.parser import parse, parse_records
    from compoclip.captions.tagger import get_tagger
    from compoclip.captions.types import SceneGraph

    caption = parse(options.source, get_tagger(options.tagger))
    if not options.json:
        note_cut(caption.cut)
    tokens = [[t.text, t.lemma, t.pos, t.tag] for t in caption.tokens]
    lines = [console.columns(tokens), ""] if tokens else []
    text = "\n".join([*lines, *graph_tree(caption.graph or SceneGraph())])
    return parse_records([("0", options.source)], options.tagger)[0], text
