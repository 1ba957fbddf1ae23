"""`compoclip rewrite TEXT|FILE`: show or mass-produce hard negatives and positives of captions."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from compoclip import console
from compoclip.captions.words import is_cut
from compoclip.cli.corpus import counted_captions, dispatch, note_cut, run_corpus
from compoclip.cli.options import parse
from compoclip.cli.rewrite_input import CaptionFile
from compoclip.corpora.engine import Engine
from compoclip.corpora.job import Counts, RewriteJob
from compoclip.errors import UsageError
from compoclip.rewrites.corpus import write_corpus
from compoclip.rewrites.records import Settings, records
from compoclip.rewrites.registry import get_rewrite, rewrite_names
from compoclip.rewrites.statistics import HEADER, Tally, reason_lines, rows


@dataclass(frozen=True)
class RewriteOptions:
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
        source: A caption, or a file: .txt (one caption a line), .jsonl, .csv or .tsv; or shards.
        out: JSONL file to write, for a file of captions; folder, for shards.
        rewrites: Names joined by commas, or "all".
        column: Column with the captions, for .jsonl, .csv and .tsv ("caption" if not given), and
            for shards (found by the usual names if not given). A column "id", where there is one,
            names the samples; else the line or row number does, in shards with their name.
        workers: Processes; the result does not depend on it.
        engine: For shards: processes of this machine, or tasks of a Ray cluster: the one that
            RAY_ADDRESS names, else one of --workers processes here.
        max_bad: Damaged shards to leave out before the exit code is 1.
        seed: Fixes, with sample and epoch, which of the possible rewrites is drawn.
        epoch: Another epoch draws anew.
        tagger: hanta, spacy or spacy:MODEL.
        json: Print records (a text) or statistics (a file) as JSON.
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT|FILE")]
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    rewrites: str = "all"
    column: str | None = None
    workers: int = 1
    engine: Engine = "local"
    max_bad: int = 0
    seed: int = 0
    epoch: int = 0
    tagger: str = "hanta"
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse the options, rewrite a text or a file; returns the exit code."""
    options = parse(RewriteOptions, "rewrite", argv)
    settings = Settings(names_of(options.rewrites), options.seed, options.epoch, options.tagger)
    return dispatch(
        options,
        "rewrites",
        lambda: _show(options, settings),
        lambda file, out: _produce(options, out, file, settings),
        lambda out: _produce_shards(options, out, settings),
    )


def names_of(text: str) -> tuple[str, ...]:
    """The rewrite names of the --rewrites option, each once. Raises UsageError for unknown ones."""
    if text.strip() == "all":
        return rewrite_names()
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise UsageError(f"--rewrites names none; choose from: {', '.join(rewrite_names())}")
    return tuple(get_rewrite(name).name for name in names)


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
        tallies = {name: Tally.from_counts(made[name]) for name in settings.rewrites if made}
        print(console.table(rows(tallies), HEADER))
        for line in reason_lines(tallies):
            print(line)

    return run_corpus(options, out, RewriteJob(settings), "rewrite", show)


def _produce(options: RewriteOptions, out: Path, file: CaptionFile, settings: Settings) -> int:
    total, cut = counted_captions(file)

    def track(captions: Iterable[int]) -> Iterable[int]:
        return console.track(captions, "rewrite", total, "captions")

    outcome = write_corpus(file, out, settings, file.identity(), options.workers, track)
    tallies = outcome.tallies
    if options.json:
        console.emit_json(
            {
                "out": str(out),
                "captions": total,
                "captions_cut": cut,
                "records_from_before": outcome.resumed,
                **settings.provenance(),
                "rewrites": {name: tally.as_json() for name, tally in tallies.items()},
            }
        )
        return 0
    if outcome.resumed:
        console.note(f"{outcome.resumed} records were there already")
    note_cut(cut)
    print(console.table(rows(tallies), HEADER))
    for line in reason_lines(tallies):
        print(line)
    print(f"written to {out} (lexicon: {settings.provenance()['lexicon']})")
    return 0
