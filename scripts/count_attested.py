"""Count which words the captions of COCO put together, for the rewrites' attested words.

    python scripts/count_attested.py COCO_KARPATHY_TEST.json src/compoclip/rewrites/data/attested.xz

Counts the captions of the Karpathy test split but those whose photo number leaves 3 when divided by
10: rewrites were judged by hand on these. The same captions give the same bytes.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from compoclip.captions.parser import parse_many
from compoclip.captions.types import Caption
from compoclip.rewrites.attested import act, classes, tie
from compoclip.rewrites.slots import slots, words_of

HELD_OUT = 3


def count_slots(captions: Iterable[Caption]) -> Counter[str]:
    """Count the slots of captions, by words and by classes.

    Keys are "kind left right"; class keys hold a "*" behind their kind.
    """
    counts: Counter[str] = Counter()
    for caption in captions:
        lemmas, ends = words_of(caption.tokens)
        for kind, left, right, at, by in slots(caption.tokens, ends):
            a, b = lemmas[left] if left >= 0 else "", lemmas[right]
            if kind == "tie":
                counts[tie(a, caption.tokens[left].pos, lemmas[at], b)] += 1
            elif kind == "act":
                counts[act(a, lemmas[at], lemmas[by] if by >= 0 else "", b)] += 1
            else:
                counts.update((f"{kind} {a} {b}", *classes(kind, a, b)))
    return counts


def main(source: Path, out: Path) -> None:
    """Count the captions of a file and write the table."""
    captions = []
    for row in json.loads(source.read_text(encoding="utf-8")):
        number = int(re.findall(r"(\d+)\.jpg", row["image"])[0])
        if number % 10 != HELD_OUT:
            captions += [" ".join(text.split()) for text in row["caption"]]
    counts = count_slots(parse_many(list(dict.fromkeys(captions))))
    rows = (f"{key}\t{count}" for key, count in sorted(counts.items()))
    text = "\n".join(("compoclip-attested-2\tcoco_karpathy_test.txt", *rows)) + "\n"
    out.write_bytes(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
