"""Measure the caption rewrites on NegCLIP's validation file.

    python scripts/measure_rewrites.py valid_neg_clip.tsv [--rows N] [--workers N] [--json]

For every rewrite: coverage, speed, results CLIP cannot tell from the caption, results that keep
the caption's words, refusal reasons. For the swap: how many official negatives are among the
enumerated candidates, and which rule forbids the others.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compoclip.captions.parser import parse_many
from compoclip.captions.types import Caption
from compoclip.console import table
from compoclip.rewrites.base import (
    Refused,
    get_rewrite,
    rewrite_names,
    rng_for,
    same_to_clip,
    token_key,
)
from compoclip.rewrites.legality import SAME_PARTS, same_parts
from compoclip.rewrites.negclip import considered, swapped
from compoclip.rewrites.reading import read
from compoclip.rewrites.records import HEADER, RewriteTally, edited_words, reason_lines, rows


def words_of(text: str) -> Counter[str]:
    """The multiset of a text's tokens with "a" and "an" as one."""
    return Counter("a" if piece == "an" else piece for piece in token_key(text))


def without_articles(text: str) -> tuple[str, ...]:
    """The tokens of a text with "a" and "an" as one, for comparing swaps."""
    return tuple("a" if piece == "an" else piece for piece in token_key(text))


def read_rows(path: Path, limit: int) -> list[tuple[str, list[str]]]:
    """(caption, official negatives) of the first `limit` rows (0: all)."""
    with path.open(encoding="utf-8", newline="") as file:
        found = [
            (row["title"].strip(), [str(n) for n in ast.literal_eval(row["neg_caption"])])
            for row in csv.DictReader(file, delimiter="\t")
        ]
    return found[: limit or len(found)]


def measure_rewrite(name: str, captions: Sequence[Caption]) -> tuple[RewriteTally, dict[str, Any]]:
    """Coverage of one rewrite with seed 0, and how many results break a promise."""
    rewrite, tally = get_rewrite(name), RewriteTally()
    same_tokens = same_words = 0
    start = time.process_time()
    results = [rewrite(c, rng_for(0, str(i), 0, name)) for i, c in enumerate(captions)]
    seconds = time.process_time() - start
    for caption, result in zip(captions, results):
        if isinstance(result, Refused):
            tally.add_refused(result.reason)
            continue
        spans = ((e.start, e.end) for e in result.edits)
        tally.add_made(result.rule, edited_words(caption.text, spans))
        same_tokens += same_to_clip(caption.text, result.text)
        same_words += words_of(caption.text) == words_of(result.text)
    return tally, {
        **tally.as_json(),
        "equal_after_tokenisation": same_tokens,
        "same_words": same_words,
        "captions_per_cpu_second": round(len(captions) / seconds),
    }


def agreement(captions: Sequence[Caption], official: Sequence[list[str]]) -> dict[str, Any]:
    """Where the official negatives stand among our pairs: legal, forbidden by a rule, no pair."""
    fate: Counter[str] = Counter()
    rows_with_one = pairs = 0
    for caption, negatives in zip(captions, official):
        reading = read(caption)
        ours: dict[tuple[str, ...], str] = {}
        for pair, refusal in considered(reading):
            if refusal is None and same_parts(reading, pair.a, pair.b):
                refusal = SAME_PARTS
            result = swapped(caption, pair)
            if isinstance(result, Refused):
                continue
            key = without_articles(result.text)
            pairs += refusal is None
            if refusal is None or key not in ours:
                ours[key] = refusal or "legal"
        fates = []
        for negative in negatives:
            same = same_to_clip(negative, caption.text)
            fates.append(
                "equals-caption" if same else ours.get(without_articles(negative), "no-such-pair")
            )
        fate.update(fates)
        rows_with_one += "legal" in fates
    total = fate.total()
    return {
        "official_negatives": total,
        "legal_pairs_a_caption": round(pairs / max(len(captions), 1), 2),
        "fate_of_official": {k: round(n / total, 4) for k, n in fate.most_common()},
        "rows_with_a_legal_official": round(rows_with_one / max(len(captions), 1), 4),
    }


def main() -> int:
    """Parse the file once, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tsv", type=Path)
    parser.add_argument("--rows", type=int, default=0, help="only the first N rows")
    parser.add_argument("--workers", type=int, default=1, help="processes for parsing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data = read_rows(options.tsv, options.rows)
    captions = parse_many([title for title, _ in data], workers=options.workers)
    measured = {name: measure_rewrite(name, captions) for name in rewrite_names()}
    swap = agreement(captions, [negatives for _, negatives in data])
    if options.json:
        json.dump({"rewrites": {n: m[1] for n, m in measured.items()}, "swap": swap}, sys.stdout)
        return 0
    tallies = {name: tally for name, (tally, _) in measured.items()}
    extra = ("equal_after_tokenisation", "same_words", "captions_per_cpu_second")
    lines = [[*row, *(str(measured[row[0]][1][k]) for k in extra)] for row in rows(tallies)]
    print(table(lines, [*HEADER, "equal tokens", "same words", "captions/CPU s"]))
    print("\n".join(reason_lines(tallies)))
    for name, tally in tallies.items():
        print(f"{name} rules: " + ", ".join(f"{r} {n}" for r, n in tally.rules.most_common()))
    print("\n".join(f"{key}: {value}" for key, value in swap.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
