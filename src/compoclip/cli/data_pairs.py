"""`compoclip data mirror-pairs` and `data cc-neg`: training tables made of published files."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from compoclip.cli.options import Outcome, Printing
from compoclip.config import Shown
from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import write_text
from compoclip.typed import Within


@dataclass(frozen=True)
class MirrorOptions(Printing):
    """Write training rows about the relative position of two things in a photo.

    The photos have boxes in the format of COCO's instances. A row needs two things, each shown
    once, apart on one axis. Left-right rows have the mirrored photo as counterpart, above-below
    rows only the opposite caption. COCO's val2017 and the Karpathy test split occur in benchmarks:
    leave them out with --without. Rows name photos without a folder; train with --images.

    Examples:
        compoclip data mirror-pairs instances_train2014.json --captions captions_train2014.json \
            --without coco_karpathy_test.json val2017 --out pairs.jsonl

    Args:
        boxes: File in the format of COCO's instances.
        out: Table to write, .jsonl.
        captions: COCO's captions of these photos; half of the rows get one appended.
        without: Held-out photos: Karpathy's or COCO's JSON, or folders of photos.
        human: Share of rows with an appended caption.
        seed: Seed of all random choices.
    """

    boxes: Annotated[Path, Shown(positional=True)]
    out: Path
    captions: Path | None = None
    without: Annotated[tuple[Path, ...], Shown("FILE ...")] = ()
    human: Annotated[float, Within(0, 1)] = 0.5
    seed: int = 0


def mirror_pairs_main(options: MirrorOptions) -> Outcome:
    """Write the table, print what it holds."""
    from compoclip.benchmarks.photo_set import coco_boxes  # torch comes with sources
    from compoclip.data.boxes import mirror_rows
    from compoclip.data.overlap import coco_number, held_out_photos
    from compoclip.data.sources.open import Request
    from compoclip.data.sources.published import open_coco
    from compoclip.files import read_json

    _require(options.out, ".jsonl")
    photos = coco_boxes(options.boxes)
    left_out: Counter[str] = Counter()
    for path in options.without:
        held_out = held_out_photos(path)
        kept = [photo for photo in photos if coco_number(photo.image) not in held_out]
        left_out[f"photo held out by {path}"] = len(photos) - len(kept)
        photos = kept
    captions: dict[str, tuple[str, ...]] = {}
    if options.captions is not None:
        found = read_json(options.captions, damaged="fetch the file again")
        source = open_coco(options.captions, found, Request(str(options.captions)))
        captions = dict(zip(source.column("id"), source.column("captions")))
    rows = list(mirror_rows(photos, captions, options.seed, options.human, left_out))
    if not rows:
        raise CompoclipError(
            f"{options.boxes}: no photo shows two single things apart; are there boxes of several "
            "categories?"
        )
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_text(options.out, "".join(lines))
    mirrored = sum("mirror" in row for row in rows)
    counts = {"left_right": mirrored, "above_below": len(rows) - mirrored}
    return _told(options, counts, left_out)


@dataclass(frozen=True)
class CcNegOptions(Printing):
    """Convert the training rows of CC-Neg into a table for train.

    These are all rows but the last 40,000, which are the test (benchmark cc_neg). No code in the
    pickle is executed: a pickle that names any class or function is refused. Image paths are the
    last two parts of the authors' paths: train with --images, the folder of CC3M.

    Examples:
        compoclip data cc-neg ccneg_preprocessed.pt --out cc_neg.tsv

    Args:
        pickle: The authors' file, ccneg_preprocessed.pt.
        out: Table to write, .tsv: title, filepath, neg_caption.
    """

    pickle: Annotated[Path, Shown(positional=True)]
    out: Path


def cc_neg_main(options: CcNegOptions) -> Outcome:
    """Write the table, print what it holds."""
    from compoclip.benchmarks.negation import cc_neg_training

    _require(options.out, ".tsv")
    rows = list(cc_neg_training(options.pickle))
    made = io.StringIO()
    writer = csv.DictWriter(made, ("title", "filepath", "neg_caption"), delimiter="\t")
    writer.writeheader()
    writer.writerows(rows)
    write_text(options.out, made.getvalue())
    return _told(options, {"rows": len(rows)}, {})


def _require(out: Path, ending: str) -> None:
    if out.suffix.lower() != ending:
        raise UsageError(f"--out {out}: the name must end in {ending}")


def _told(
    options: MirrorOptions | CcNegOptions, counts: Mapping[str, int], left_out: Mapping[str, int]
) -> Outcome:
    record = {"out": str(options.out), **counts, "left_out": dict(left_out)}
    for why, number in () if options.json else left_out.items():
        note(f"left out, {why}: {number:,}")
    said = ", ".join(f"{n:,} {name}" for name, n in counts.items())
    return record, f"{options.out}: {said}"
