"""`compoclip data audit [NAME ...] --data ROOT`: faulty items of benchmarks and training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from compoclip import config
from compoclip.cli.data import named
from compoclip.cli.options import Outcome, Printing
from compoclip.config import DataName, InputFolder, InputPlace, OfficialName, OutputFile, Shown
from compoclip.console import counted, note, reasons_listed
from compoclip.data.options import DataOptions
from compoclip.data.places import names_data
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import write_jsonl
from compoclip.printed import Table

if TYPE_CHECKING:
    from compoclip.benchmarks.audit import Audit, Defect, Kind
    from compoclip.benchmarks.case import Benchmark
    from compoclip.benchmarks.solvability import RuleOfThumb, Solvability
    from compoclip.data.sources import Source
    from compoclip.data.sources.open import Request

_NAMED = 5  # missing images that are named, and undecodable ones


@dataclass(frozen=True)
class AuditOptions(DataOptions, Printing):
    """Report faulty items: unanswerable, duplicated or suspicious.

    The audit looks for negatives that equal their caption, duplicates, synonyms, boxes outside the
    image, over-long texts and more. Equal texts are counted at four levels: as stored, by CLIP's
    tokens, by words, by letters and digits. No file is changed; evaluate --exclude-faulty gives
    scores without faulty items. The exit code is 1 if images of the file
    in --data are missing.

    Examples:
        compoclip data audit sugarcrepe sugarcrepe_pp --data /data --out defects.jsonl
        compoclip data audit --data captions.csv --images photos/ --decode
        compoclip data audit --train neg_clip/valid_neg_clip.tsv
        compoclip data audit sugarcrepe --data /data --text-only
        compoclip data audit --train trohn --overlap karpathy_test.json val2017 --kept kept.json

    Args:
        names: Benchmarks, named as for evaluate --on; by default all with a file below the root.
        data: Data root in the default layout, or a file or folder of captioned photos, as for
            --train.
        images: Folder with the photos if it is not in the data root, or the folder that image paths
            in training data are relative to.
        train: Training sources to audit, named as for train --data; without NAME only these.
        overlap: Held-out COCO photos, as Karpathy's or COCO's JSON or folders of photos. Reports
            the rows of the training source that show one.
        kept: File to write for train --data: the training source without the rows of --overlap.
        decode: Also decode every image.
        text_only: Also measure a model that sees only the texts (length and n-grams,
            cross-validated). Only a score above its accuracy needs the image.
        out: File for the list of defects, one JSON object per line.
    """

    names: Annotated[tuple[OfficialName, ...], Shown("NAME", positional=True)] = ()
    data: Path = Path("data")
    images: InputFolder | None = None
    train: Annotated[tuple[DataName, ...], Shown("FILE ...")] = ()
    overlap: Annotated[tuple[InputPlace, ...], Shown("FILE ...")] = ()
    kept: OutputFile | None = None
    decode: bool = False
    text_only: bool = False
    out: OutputFile | None = None


def audit_main(options: AuditOptions) -> Outcome:
    """Audit, print counts, write the list."""
    if options.kept is not None and not (options.overlap and len(options.train) == 1):
        raise UsageError("--kept needs --overlap and exactly one --train")
    for name in options.names:
        if Path(name).is_file() and not name.endswith(".py"):
            raise UsageError(f"{name}: is a file; name captioned photos with --data {name}")
    from compoclip.benchmarks.targets import named_or_present

    held_out: dict[str, frozenset[int]] = {}
    if options.overlap:
        from compoclip.data.overlap import held_out_photos

        held_out = {str(path): held_out_photos(path) for path in options.overlap}
    loaded: list[Benchmark] = []
    captioned = names_data(str(options.data))  # a folder may hold benchmarks
    training = (*options.train, *([str(options.data)] if captioned else []))
    if options.names or not training:
        try:
            chosen = named_or_present(options.names, options.data, options.images)
        except CompoclipError:
            if options.names or not any(map(Path.is_file, options.data.rglob("*.*"))):
                raise
            training = (str(options.data),)
        else:
            loaded = [target.load() for target in chosen]
    if not training:
        config.refuse(options, ("overlap",), needs="training data (--train)")
    if not loaded:
        config.refuse(options, ("text_only",), needs="benchmarks: name them")
    from compoclip.data.sources.open import request_of

    requests = [request_of(spec, options) for spec in training]
    sources = [(request, request.open()) for request in requests]
    from compoclip.benchmarks.audit import audit  # with the tagger, once all data are open

    reports: list[dict[str, Any]] = []
    texts: list[str] = []
    defects: list[Defect] = []
    for benchmark in loaded:
        faults = audit(benchmark, decoding=options.decode)
        solved: list[Solvability] = []
        rules: list[RuleOfThumb] = []
        if options.text_only:
            from compoclip.benchmarks.solvability import rules_of_thumb, solvability  # with scipy

            solved, rules = solvability(benchmark), rules_of_thumb(benchmark)
        reports.append(
            {
                "benchmark": faults.benchmark,
                "items": dict(faults.items),
                "faulty": len(faults.faulty),
                "faults": faults.faults,
                "counts": {str(kind): levels for kind, levels in faults.counts.items()},
                "by_subtask": {
                    str(kind): {part: n for part, n in parts.items() if part}
                    for kind, parts in faults.by_subtask.items()
                },
                "left_out": dict(faults.left_out),
                "text_only": [asdict(measured) for measured in solved],
                "rules_of_thumb": [asdict(rule) for rule in rules],
            }
        )
        texts.append(audit_text(faults, solved, rules))
        defects += faults.defects
    for request, rows in sources:
        record, text, of_rows = _training(request, rows, options, held_out)
        reports.append(record)
        texts.append(text)
        defects += of_rows
    listed = [{**asdict(defect), "fault": defect.fault} for defect in defects]
    if options.out is not None:
        write_jsonl(options.out, listed)
        note(f"{options.out}: {counted(len(defects), 'defect')}")
    folder = str(options.data)
    lacks = any(report.get("source") == folder and report["missing_images"] for report in reports)
    return {"audits": reports, "defects": listed}, texts, int(lacks)


def audit_text(
    faults: Audit, solved: Sequence[Solvability] = (), rules: Sequence[RuleOfThumb] = ()
) -> str:
    """Return the counts of one benchmark, and how far models get that see no image."""
    items = sum(faults.items.values())
    lines = [f"{faults.benchmark}: {counted(items, 'item')}, {len(faults.faulty):,} faulty"]
    lines += _counts(faults.counts, faults.by_subtask)
    lines += [f"  left out by the reader: {listed}" for listed in reasons_listed(faults.left_out)]
    from compoclip.evaluation.grounded import NEEDS_NO_IMAGE
    from compoclip.evaluation.numerals import percent
    from compoclip.evaluation.statistics import wilson

    rows = []
    for blind in solved:
        low, high = map(percent, wilson(blind.ngrams * blind.n, blind.n))
        interval = "" if blind.metric == "auc" else f"{low} to {high}"
        shares = [percent(blind.length), percent(blind.chance)]
        number = str(blind.n) if blind.n == blind.of else f"{blind.n} of {blind.of}"
        rows.append([blind.subtask, blind.metric, percent(blind.ngrams), interval, *shares, number])
    header = ["blind (no image)", "metric", "n-grams", "95 % interval", "length", "chance", "items"]
    needless = [blind.subtask for blind in solved if blind.ngrams > NEEDS_NO_IMAGE]
    limit = f"blind above {100 * NEEDS_NO_IMAGE:.0f} %"
    notes = [f"needs no image ({limit}): {', '.join(needless)}"] if needless else []
    if rows:
        lines.append(Table(rows, header, notes=notes).text())
    rows = []
    for rule in rules:
        shares = [percent(rule.value), percent(rule.chance)]
        longer = "" if rule.longer is None else f"{rule.longer:+.1f}"
        rows.append([rule.subtask, rule.rule, *shares, longer, str(rule.n)])
    header = ["rule of thumb", "take the", "right", "chance", "words more if false", "items"]
    if rows:
        lines.append(Table(rows, header).text())
    return "\n".join(lines)


def _counts(
    counts: Mapping[Kind, Mapping[str, int]],
    by_part: Mapping[Kind, Mapping[str, Mapping[str, int]]],
) -> list[str]:
    """A table, what its rows and columns mean, and how many of each defect a sub-task has."""
    from compoclip.benchmarks.audit import FAULTS, MEANING
    from compoclip.benchmarks.files import IGNORED, LEVELS

    if not counts:
        return []
    used = [level for level in LEVELS if any(level in levels for levels in counts.values())]
    rows = []
    for kind, levels in counts.items():
        cells = (f"{levels[level]:,}" if level in levels else "" for level in ("", *used))
        rows.append([kind, "fault" if kind in FAULTS else "note", *cells])
    notes = []
    for kind in counts:
        notes.append(f"{kind}: {MEANING[kind]}")
        parts = [f"{part} {_levels(n)}" for part, n in by_part.get(kind, {}).items() if part]
        if parts:
            notes.append(f"  in {', '.join(parts)}")
    notes += [f"{level}: {IGNORED[level]}" for level in used]
    return [Table(rows, ["defect", "is a", "all", *used], left=2, notes=notes).text()]


def _levels(levels: Mapping[str, int]) -> str:
    """ "384", or where it depends on the level "161 words / 163 letters"."""
    from compoclip.benchmarks.files import LEVELS

    steps: dict[int, str] = {}
    for level in LEVELS:
        if level in levels:
            steps.setdefault(levels[level], level)
    if len(steps) < 2:
        return f"{levels['']:,}"
    return " / ".join(f"{n:,} {level}" for n, level in steps.items())


def _training(
    request: Request, rows: Source, options: AuditOptions, held_out: Mapping[str, frozenset[int]]
) -> tuple[dict[str, Any], str, tuple[Defect, ...]]:
    """Audit training data; return record, text and defects, and write what --kept names."""
    from compoclip.benchmarks.audit import Kind, audit_training
    from compoclip.data.overlap import overlap
    from compoclip.data.sources.open import write_selection

    spec = request.spec
    samples = (rows[index] for index in range(len(rows)))
    faults = audit_training(spec, samples, options.decode)
    record: dict[str, Any] = {
        "source": spec,
        **faults.items,
        "missing_images": len(faults.missing),
        "first_missing": faults.missing[:_NAMED],
        "repeated_images": faults.repeated,
        "stored_sideways": faults.sideways,
        "left_out": dict(rows.left_out),
        "counts": {str(kind): levels for kind, levels in faults.counts.items()},
    }
    damaged = [defect.detail for defect in faults.defects if defect.kind is Kind.UNDECODABLE]
    decoded = "every image was decoded" if options.decode else "--decode also decodes every image"
    holds = ", ".join(counted(n, noun.removesuffix("s")) for noun, n in faults.items.items())
    lines = [
        f"{spec}: {holds}, {counted(len(faults.missing), 'image')} missing",
        f"  {rows.describe()}, images {rows.orientation}",
        *named("missing", faults.missing[:_NAMED], len(faults.missing)),
    ]
    if faults.missing:
        lines.append("  (--images names the folder that paths start from)")
    lines += named("undecodable", damaged[:_NAMED], len(damaged))
    if faults.repeated:
        lines.append(f"  equal to an earlier image: {counted(faults.repeated, 'image')}")
    if faults.sideways:
        lines.append(f"  stored sideways: {counted(faults.sideways, 'image')}")
    if not (faults.defects or faults.missing or faults.repeated or rows.left_out):
        lines.append(f"  no faulty row or image; {decoded}")
    lines += _counts(faults.counts, {})
    if faults.defects and not options.out:
        lines.append("  (--out FILE lists these defects)")
    lines += [f"  left out by the reader: {listed}" for listed in reasons_listed(rows.left_out)]
    if held_out:
        overlapping, unknown = overlap(rows, held_out)
        every = list(dict.fromkeys(id for ids in overlapping.values() for id in ids))
        record["overlap"] = {
            "held_out": {name: len(photos) for name, photos in held_out.items()},
            "rows": {name: len(ids) for name, ids in overlapping.items()},
            "all_rows": len(every),
            "unknown": unknown,
        }
        if options.kept is not None:
            because = f"photo held out by {', '.join(held_out)}"
            write_selection(options.kept, request, every, because)
            without = counted(len(every), "row")
            note(f"{options.kept}: {spec} without {without}; train --data {options.kept}")
        for name, ids in overlapping.items():
            lines.append(
                f"  held-out photos of {name}: {len(ids):,} of {len(rows):,} rows show one of "
                f"its {len(held_out[name]):,}"
            )
        if unknown:
            lines.append(f"  photos without a COCO number, of which nothing is known: {unknown:,}")
    return record, "\n".join(lines), faults.defects
