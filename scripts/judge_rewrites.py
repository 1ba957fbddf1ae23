"""Draw a blind sheet of rewrites of real captions to be judged by a reader, and count the verdicts.

    python scripts/judge_rewrites.py draw ANNOTATIONS -o SHEET.tsv --key KEY.tsv [--texts 60]
    python scripts/judge_rewrites.py table SHEET.tsv KEY.tsv VERDICTS.txt [--write FOLDED.tsv]
    python scripts/judge_rewrites.py counted ANNOTATIONS -o src/compoclip/rewrites/data/attested.xz

ANNOTATIONS holds coco_karpathy, negclip and sugarcrepe. Captions are those of the Karpathy test
split whose photo number leaves 3 when divided by 10, or those of NegCLIP's file. `counted` makes
the package's counts of words of the other captions of the split. Texts of all
rewrites, official negatives and human captions of other photos are mixed; the key says which is
which and is not to be looked at before the verdicts are written.

A verdict is a line "LETTERS NUMBER NUMBER ..."; letters: S the text says what the caption says, or
a part of it; M it may hold of the photo as well; B it is ungrammatical or senseless (no photo could
show it). Rows in no line are excluded by the caption (and rows not in B are fluent).
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import lzma
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from compoclip.captions.parser import parse_many
from compoclip.captions.types import Caption
from compoclip.console import table
from compoclip.evaluation.statistics import wilson
from compoclip.rewrites.attested import count_slots
from compoclip.rewrites.base import (
    Rewritten,
    get_pair_rewrite,
    get_rewrite,
    pair_rewrite_names,
    rewrite_names,
    rng_for,
)

HUMAN, NEGCLIP, SUGARCREPE = "human caption", "official NegCLIP", "official SugarCrepe"
#: Texts that are scrambled on purpose.
LEFT_OUT = frozenset(("bigram-shuffle",))
HELD_OUT = 3


class Row(NamedTuple):
    """A text to judge. source: the rewrite, or where an official text is from."""

    caption: str
    text: str
    source: str


def karpathy(folder: Path, *, held_out: bool) -> Iterator[str]:
    """Captions of Karpathy's test split: those that are counted, or those held out."""
    path = folder / "coco_karpathy" / "coco_karpathy_test.json"
    for row in json.loads(path.read_text(encoding="utf-8")):
        number = int(re.findall(r"(\d+)\.jpg", row["image"])[0])
        if (number % 10 == HELD_OUT) == held_out:
            yield from (" ".join(text.split()) for text in row["caption"])


def write_counts(path: Path, captions: Sequence[str]) -> None:
    """Count which words the captions put together; the same captions give the same bytes."""
    counts = count_slots(parse_many(captions))
    rows = (f"{key}\t{count}" for key, count in sorted(counts.items()))
    text = "\n".join(("compoclip-attested-2\tcoco_karpathy_test.txt", *rows)) + "\n"
    path.write_bytes(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))


def drawn(caption: Caption, other: Caption, name: str, seed: int) -> str | None:
    """The text that a rewrite makes of a caption; None for none."""
    rng = rng_for(seed, caption.text, 0, name)
    if name in pair_rewrite_names():
        pair = get_pair_rewrite(name)(caption, other, rng)
        return pair[0].text if isinstance(pair, tuple) else None
    result = get_rewrite(name)(caption, rng)
    return result.text if isinstance(result, Rewritten) else None


def rows_of(captions: Sequence[Caption], texts: Mapping[str, int], seed: int) -> list[Row]:
    """As many texts of each rewrite as there are to be, at most four of a caption."""
    rng = random.Random(seed)
    names, left = list(texts), Counter(texts)
    found: list[Row] = []
    for place, caption in enumerate(captions):
        wanted = [name for name in names if left[name]]
        rng.shuffle(wanted)
        other = captions[(place + 1) % len(captions)]
        made = ((name, drawn(caption, other, name, seed)) for name in wanted)
        some = [Row(caption.text, text, name) for name, text in made if text is not None][:4]
        for row in some:
            left[row.source] -= 1
        found += some
        if not +left:
            break
    return found


def official(folder: Path, texts: int, seed: int) -> list[Row]:
    """Official negatives of NegCLIP and SugarCrepe, drawn at random."""
    rng = random.Random(seed)
    found: list[Row] = []
    with (folder / "negclip" / "valid_neg_clip.tsv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t"))
    for line in rng.sample(lines, texts):
        text = rng.choice(ast.literal_eval(line["neg_caption"]))
        found.append(Row(line["title"].strip(), re.sub(r"\s+(?=[.,']|$)", "", text), NEGCLIP))
    items = [
        Row(item["caption"], item["negative_caption"], SUGARCREPE)
        for path in sorted((folder / "sugarcrepe").glob("*.json"))
        for item in json.loads(path.read_text(encoding="utf-8")).values()
    ]
    return found + rng.sample(items, texts)


def draw(options: argparse.Namespace) -> None:
    """Write the sheet and its key."""
    if options.captions == "negclip":
        with (options.data / "negclip" / "valid_neg_clip.tsv").open(encoding="utf-8") as file:
            every = [" ".join(row["title"].split()) for row in csv.DictReader(file, delimiter="\t")]
    else:
        every = list(karpathy(options.data, held_out=True))
    every = list(dict.fromkeys(every))
    random.Random(0).shuffle(every)
    seen: set[str] = set()
    for path in options.unlike:
        lines = path.read_text(encoding="utf-8").splitlines()
        seen.update(line.split("\t")[3] for line in lines[1:])
    fresh = [text for text in every if text not in seen][options.skip :]
    names = options.rewrites.split(",") if options.rewrites else [*rewrite_names()]
    names += [] if options.rewrites else pair_rewrite_names()
    named = (name.partition(":") for name in names if name not in LEFT_OUT)
    texts = {name: int(number or options.texts) for name, _, number in named}
    rows = rows_of(parse_many(fresh), texts, options.seed)
    mixed = options.texts if options.mixed is None else options.mixed
    rows += official(options.data, mixed, options.seed)
    rng = random.Random(options.seed)
    rows += [Row(*rng.sample(fresh, 2), HUMAN) for _ in range(mixed)]
    order = list(dict.fromkeys(row.caption for row in rows))
    rng = random.Random(options.seed)
    rng.shuffle(order)
    rng.shuffle(rows)
    rows.sort(key=lambda row: order.index(row.caption))
    with options.output.open("w", encoding="utf-8") as sheet, options.key.open("w") as key:
        for number, row in enumerate(rows):
            same = number and rows[number - 1].caption == row.caption
            sheet.write(f"{number}\t{'' if same else row.caption}\t{row.text}\n")
            key.write(f"{number}\t{row.source}\n")
    print(f"{len(rows)} texts; " + ", ".join(f"{s} {n}" for s, n in counted(rows).items()))


def counted(rows: Sequence[Row]) -> Counter[str]:
    """How many texts there are of each source."""
    return Counter(row.source for row in rows)


def verdicts(path: Path) -> dict[int, set[str]]:
    """The letters of each row that has some."""
    found: dict[int, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        letters, _, numbers = line.partition(" ")
        for number in numbers.split():
            found.setdefault(int(number), set()).update(letters)
    return found


def share(part: int, whole: int) -> str:
    """A share in percent with its 95 % interval."""
    low, high = wilson(part, whole)
    return f"{100 * part / whole:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def tabulate(options: argparse.Namespace) -> None:
    """Print wrong and broken texts by source; write sheet, key and verdicts as one file."""
    said = verdicts(options.verdicts)
    keys = [line.split("\t")[1] for line in options.key.read_text().splitlines()]
    lines = options.sheet.read_text(encoding="utf-8").splitlines()
    wrong: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    folded = []
    for number, (line, source) in enumerate(zip(lines, keys, strict=True)):
        letters = said.get(number, set())
        positive = source in rewrite_names() and get_rewrite(source).keeps_meaning
        wrong[source] += ("S" not in letters) if positive else bool(letters & {"M", "S"})
        broken[source] += "B" in letters
        folded.append(f"{source}\t{''.join(sorted(letters)) or '-'}\t{line.partition(chr(9))[2]}\n")
    total = Counter(keys)
    body = [
        [source, str(n), share(wrong[source], n), share(broken[source], n)]
        for source, n in sorted(total.items())
    ]
    print(table(body, ["source", "texts", "not excluded, or meaning lost", "broken"]))
    if options.write:
        head = "source\tverdict\tcaption (empty: the one above)\ttext\n"
        options.write.write_text(head + "".join(folded), encoding="utf-8")


def main() -> int:
    """Draw or count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("data", type=Path)
    drawing.add_argument("-o", "--output", type=Path, required=True)
    drawing.add_argument("--key", type=Path, required=True)
    drawing.add_argument("--texts", type=int, default=60, help="of each rewrite")
    drawing.add_argument("--captions", choices=("karpathy", "negclip"), default="karpathy")
    drawing.add_argument("--skip", type=int, default=0, help="captions that were looked at before")
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--rewrites", default="", help="NAME or NAME:TEXTS, joined by commas")
    drawing.add_argument("--mixed", type=int, help="texts of each other source [default: --texts]")
    drawing.add_argument(
        "--unlike",
        type=Path,
        nargs="*",
        default=[],
        help="sheets with verdicts: not their captions",
    )
    written = commands.add_parser("counted")
    written.add_argument("data", type=Path)
    written.add_argument("-o", "--output", type=Path, required=True)
    counting = commands.add_parser("table")
    for name in ("sheet", "key", "verdicts"):
        counting.add_argument(name, type=Path)
    counting.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.command == "counted":
        write_counts(options.output, [*dict.fromkeys(karpathy(options.data, held_out=False))])
    else:
        {"draw": draw, "table": tabulate}[options.command](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
