"""Count which words captions put side by side, for rewrites that read like captions.

    python scripts/count_captions.py captions.txt [...] -o counts.xz --source "..., CC BY 4.0"
    python scripts/count_captions.py coco_karpathy_test.json -o attested.xz

The second command makes the file in `rewrites/data`. Captions of the Karpathy test split
whose photo number leaves 3 when divided by 10 are left out: the rewrites were judged on them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from compoclip.captions.parser import parse_many
from compoclip.cli.caption_input import read_captions
from compoclip.rewrites.attested import count_slots, write_counts

HELD_OUT = 3
SOURCE = "COCO captions of the Karpathy test split (COCO Consortium, CC BY 4.0)"


def karpathy(path: Path, *, held_out: bool = False) -> Iterator[tuple[int, str]]:
    """(photo number, caption) of Karpathy's test split: those counted, or those held out."""
    for row in json.loads(path.read_text(encoding="utf-8")):
        number = int(re.findall(r"(\d+)\.jpg", row["image"])[0])
        if (number % 10 == HELD_OUT) == held_out:
            yield from ((number, " ".join(text.split())) for text in row["caption"])


def main() -> int:
    """Parse, count, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("captions", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--source", default=SOURCE)
    parser.add_argument("--least", type=int, default=1, help="drop what was met less often")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    texts: list[str] = []
    for path in options.captions:
        if path.name == "coco_karpathy_test.json":
            texts += [text for _, text in karpathy(path)]
        else:
            texts += read_captions(path)
    counts = count_slots(parse_many(list(dict.fromkeys(texts)), workers=options.workers))
    kept = {key: count for key, count in counts.items() if count >= options.least}
    write_counts(options.output, kept, options.source)
    print(f"{len(texts)} captions, {len(kept)} slots, {options.output.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
