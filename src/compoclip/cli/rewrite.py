"""`compoclip rewrite TEXT|FILE`: show or write hard negatives and hard positives of captions."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from compoclip import config, console
from compoclip.cli.caption_input import KINDS, caption_file
from compoclip.cli.options import OnEngine, Outcome, WorkerCount, processes
from compoclip.config import InputFolder, Shown, Trainer
from compoclip.data.columns import NO_CAPTION
from compoclip.errors import UsageError, require
from compoclip.patterns import has_ending, names_shards
from compoclip.typed import Natural

if TYPE_CHECKING:
    from compoclip.corpora.job import CorpusJob, Counts, ParseJob, RewriteJob
    from compoclip.rewrites.records import Settings

    Job = TypeVar("Job", ParseJob, RewriteJob)


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(OnEngine):
    """Source and destination of captions, and processing.

    Args:
        source: A caption; a file: .txt (one caption per line), .csv, .tsv, .jsonl, .jsonl.gz, .json
            or .parquet; or shards: .parquet, .jsonl, .jsonl.gz or webdataset .tar, as a file, a
            folder or a pattern such as 'part-{000..099}.tar'.
        out: JSONL file to write, for a file of captions; folder, for shards.
        column: Column with the captions (by default a column with a usual name; in a file first
            "caption"). The column "id" names the samples. Without it they are named by line or row
            number, in shards also by the shard.
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


def run(
    options: CorpusOptions, make_job: Callable[[], Job], show: Callable[[Job], Outcome]
) -> Outcome:
    """Process a text, a file of captions or shards.

    make_job: called when the source is there. show: processes a text.

    A file of rows is a shard when the output is no .jsonl file; a tar, a folder and a pattern
    always are shards. Raises UsageError for options that do not go together.
    """
    spec, out = options.source, options.out
    to_file = out is not None and has_ending(out, ".jsonl") and not out.is_dir()
    shards = names_shards(spec)
    rows = shards and Path(spec).is_file() and has_ending(Path(spec), *KINDS)
    if shards and not (rows and (to_file or out is None)):
        if out is None or to_file:
            raise UsageError(f"{spec}: name a folder for the shards with -o OUT, not a .jsonl file")
        return _write_shards(options, out, make_job())
    if options.engine != "local":
        raise UsageError(
            f"{spec}: --engine {options.engine} shares shards out; name a folder of them, or leave "
            "--engine out"
        )
    from compoclip.captions.types import is_cut

    file = caption_file(spec, options.column)
    if file is None:
        if out is None:
            config.refuse(options, ("column", "max_bad"), needs="a file of captions")
            outcome = show(make_job())
            _note_cut(options, is_cut(spec))
            return outcome
        raise UsageError("-o is for files of captions; leave it out to see what one caption gives")
    config.refuse(options, ("max_bad",), needs="shards")
    if out is None:
        raise UsageError(f"{spec}: name the file to write with -o OUT.jsonl")
    require(not out.is_dir(), out, "is a folder; name a file to write", UsageError)
    if out.resolve() == file.path.resolve():
        raise UsageError(f"{out}: is the input itself; choose another -o")
    require(file.path.is_file(), file.path, "no such file; check the path")
    job = make_job()
    left_out: Counter[str] = Counter()
    cuts: list[bool] = []
    used = 0
    for _, captions in file.rows(left_out):  # reads all, so that a bad row shows early
        cuts += map(is_cut, captions)
        used += 1
    if not cuts:
        raise UsageError(f"{file.path}: holds no captions{console.left_out_listed(left_out)}")
    from compoclip.recordfile import write_records  # with multiprocessing

    counts: Counts = {}
    made_from = job.settings()
    verb = made_from.pop("job")
    resumed = write_records(
        file,
        out,
        job.records,
        {**made_from, "source": file.identity()},
        partial(job.count, counts),
        job.per_caption,
        processes(options.workers, file.path.stat().st_size, _MUCH),
        lambda done: console.track(done, verb, len(cuts), "captions"),
    )
    if resumed and not options.json:
        console.note(f"already there: {console.counted(resumed, 'record')}")
    _note_cut(options, sum(cuts))
    read = {
        "rows": used + left_out[NO_CAPTION],
        "captions": len(cuts),
        "captions_cut": sum(cuts),
        "left_out": dict(left_out),
        "records_from_before": resumed,
    }
    captions_read = f"{console.counted(len(cuts), 'caption')}{console.left_out_listed(left_out)}"
    lines = [captions_read, *_counted(counts), f"written to {out}"]
    record = {"out": str(out), **read, **made_from, **counts.get("parses", {})}
    if "rewrites" in counts:
        from compoclip.rewrites.records import summary

        record["rewrites"] = {name: summary(tally) for name, tally in counts["rewrites"].items()}
    return record, "\n".join(lines)


def _counted(counts: Counts) -> list[str]:
    """Return the numbers of rewrites and of parses as lines."""
    lines = []
    rewrites, parses = counts.get("rewrites"), counts.get("parses")
    if rewrites:
        from compoclip.rewrites.records import tally_table

        lines.append(str(tally_table(rewrites)))
    if parses:
        names = ("object", "attribute", "relation")
        parts = ", ".join(console.counted(parses[f"{name}s"], name) for name in names)
        lines.append(f"{parts}; {parses['without_objects']} without an object")
    return lines


def _note_cut(options: CorpusOptions, number: int) -> None:
    """Say how many captions were cut before they were parsed, if any."""
    from compoclip.captions.types import MOST_TOKENS

    if number and not options.json:
        console.note(
            f"{console.counted(number, 'caption')} cut to {MOST_TOKENS} words and marks before "
            "parsing: no model reads more"
        )


def _write_shards(options: CorpusOptions, out: Path, job: CorpusJob) -> Outcome:
    """Process the shards; exit code 1 when more are damaged than allowed."""
    from compoclip.corpora.run import process
    from compoclip.corpora.shard import find_shards

    settings = job.settings()
    shards = find_shards(options.source)
    size = sum(shard.stat().st_size for shard in shards if shard.is_file())
    start = time.monotonic()
    outcome = process(
        shards,
        out,
        job,
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
        "of_other_data": list(outcome.others),
        "total": total,
    }
    now = sum(counts["captions"] for counts in outcome.written.values())
    rate = f", {now / seconds:.0f} captions/s" if now else ""
    rows, captions = (console.counted(total[f"{n}s"], n) for n in ("row", "caption"))
    lines = [
        f"{console.counted(len(outcome.written), 'shard')} written in {seconds:.1f} s{rate}; "
        f"{len(outcome.skipped)} were there already; {len(outcome.bad)} left out",
        f"{rows} with {captions}{console.left_out_listed(total['left_out'])}",
        f"written to {out}",
        *_counted(total),
    ]
    if outcome.others:
        others = console.counted(len(outcome.others), "shard")
        console.note(
            f"{out}: also holds {others} of other data, such as {outcome.others[0]}, not counted "
            "here; remove what training is not to read"
        )
    _note_cut(options, total["cut"])
    failed = len(outcome.bad) > options.max_bad
    if failed:
        console.note(
            f"compoclip {settings['job']}: {console.counted(len(outcome.bad), 'shard')} left out, "
            f"{options.max_bad} allowed (--max-bad); fix them and run again"
        )
    return record, "\n".join(lines), int(failed)


@dataclass(frozen=True)
class RewriteOptions(CorpusOptions):
    """Show or write hard negatives and hard positives of captions.

    For a text, print the result of every rewrite with the changed words marked, or the reason of
    the refusal. Negatives come before positives. For a file of captions, write JSON lines with one
    record per caption and rewrite, also for refusals. The fields are id, caption, rewrite, version,
    keeps_meaning, text, rule, edits (character ranges and words before and after), reason, seed,
    epoch, tagger and lexicon. The bytes do not depend on --workers. After an interruption, the same
    command resumes.

    Each shard is copied to the folder -o under its name, with the negatives as neg_caption and the
    positives as positive. train reads these columns. Finished shards are skipped; damaged ones are
    named and left out. See docs/corpora.md.

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
    config.require_with(options, "to", "images", "split", "licence")
    if options.to is not None:
        config.refuse(options, ("max_bad",), unused_with="--to")
        return _export(options, options.to)

    def make_job() -> RewriteJob:
        settings = _settings(options)
        from compoclip.corpora.job import RewriteJob

        return RewriteJob(settings)

    def show(job: RewriteJob) -> Outcome:
        """Return every rewrite of a text, its edits bold on a terminal, else in brackets."""
        from compoclip.rewrites.records import text_of

        records = job.records([("0", options.source)])
        marks = ("\x1b[1;33m", "\x1b[0m") if sys.stdout.isatty() else ("[", "]")
        return records, text_of(records, *marks)

    return run(options, make_job, show)


def _settings(options: RewriteOptions) -> Settings:
    from compoclip.rewrites.base import rewrites_named

    names = rewrites_named(options.rewrites)
    from compoclip.rewrites.records import Settings

    return Settings(names, options.seed, options.epoch, options.tagger)


def _export(options: RewriteOptions, to: Trainer) -> Outcome:
    """Write image-text data with its negatives for another trainer."""
    settings = _settings(options)
    from compoclip.corpora.export import export
    from compoclip.data.sources.open import open_source

    if options.out is None or options.rewrites == "all" or options.engine != "local":
        raise UsageError(
            "--to needs a new folder -o and negatives named by --rewrites, e.g. negclip,replace; "
            "it runs on this machine alone"
        )
    try:
        source = open_source(
            options.source,
            images=options.images,
            caption_column=options.column,
            split=options.split,
        )
    except UsageError as error:
        if not has_ending(Path(options.source), ".txt"):
            raise
        raise UsageError(
            f"{options.source}: --to writes images with their captions, so name a table of both; "
            "a list of captions is rewritten without --to"
        ) from error
    counts = export(
        source,
        options.out,
        to,
        settings,
        licence=options.licence,
        workers=processes(options.workers, len(source), 20_000),
        track=lambda done: console.track(done, "export", len(source), "photos"),
    )
    nouns = ("row", "photo", "negative")
    rows, photos, texts = (console.counted(counts[f"{noun}s"], noun) for noun in nouns)
    lines = [
        *_counted(counts),
        f"{rows} of {photos} with {texts}{console.left_out_listed(counts['left_out'])}",
        f"written to {options.out}, with README.md as its data card",
    ]
    return {"out": str(options.out), **counts}, "\n".join(lines)


@dataclass(frozen=True)
class ParseOptions(CorpusOptions):
    """Show or write tags and scene graphs of captions.

    For a text, print its words with lemma and tags, and the scene graph: objects with their
    attributes, and below each its relations. A file becomes JSON lines, one record per caption: id,
    caption, tokens, objects with attributes, relations (by index of the objects), tagger, parser;
    every node has its character range. The bytes do not depend on --workers. After an interruption,
    the same command resumes.

    Each shard is copied to the folder -o under its name, with compact parses as parse. rewrite
    reads this column. Finished shards are skipped; damaged ones are named and left out. See
    docs/corpora.md.

    Examples:
        compoclip parse "a man in a red hat walks two dogs"
        compoclip parse captions.txt -o graphs.jsonl --workers 4
        compoclip parse coco.csv --column title -o graphs.jsonl
        compoclip parse 'cc3m/*.tar' -o cc3m-parsed --workers 16
    """


def parse_main(options: ParseOptions) -> Outcome:
    """Parse a text, a file of captions or shards."""

    def make_job() -> ParseJob:
        from compoclip.corpora.job import ParseJob

        return ParseJob(options.tagger)

    def show(job: ParseJob) -> Outcome:
        """Return the words of a text and its graph."""
        from compoclip.captions.graph import graph_tree
        from compoclip.captions.parser import parse
        from compoclip.captions.tagger import get_tagger
        from compoclip.captions.types import SceneGraph

        caption = parse(options.source, get_tagger(options.tagger))
        tokens = [[t.text, t.lemma, t.pos, t.tag] for t in caption.tokens]
        lines = [console.columns(tokens), ""] if tokens else []
        text = "\n".join([*lines, *graph_tree(caption.graph or SceneGraph())])
        return job.records([("0", options.source)])[0], text

    return run(options, make_job, show)
