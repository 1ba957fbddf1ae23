"""Facts of rewrites, texts that they make, and tables of cases.

What holds of one rewrite and not of all is recorded beside its digest, so that a new rewrite
changes no test of the others.

`golden/rewrites/NAME.json` may have "excused" (why more than 2 % of its texts may be wrong in the
world), "judged" (how many of 600 texts the oracle must be able to judge; 50 if not said) and
"drawn": false (one text for each caption that is asked about, whatever the seed).
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from compoclip.captions.parser import parse
from compoclip.captions.types import Caption, Chunk, Token
from compoclip.rewrites.base import Rewrite, Rewritten

#: Beginnings of the names of rewrites that give a part of the caption, in words of their own.
PARTS = ("graph-", "noun-phrase", "unit")
GOLDEN = Path(__file__).with_name("golden") / "rewrites"


def facts_of(name: str) -> dict[str, Any]:
    """What is recorded of the rewrite or of `parser`; nothing where there is no record."""
    path = GOLDEN / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def tagged(text: str, *tags: tuple[str, str], chunks: tuple[Chunk, ...] = ()) -> Caption:
    """A caption of words between blanks, tagged by hand as (pos, tag); without tags as nouns."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    tokens = tuple(
        Token(text[start:end], text[start:end].lower(), *tag, start, end)
        for (start, end), tag in zip(spans, tags or [("NOUN", "NN")] * len(spans), strict=True)
    )
    return Caption(text, tokens, chunks)


def results(rewrite: Rewrite, caption: str, count: int = 150) -> list[Rewritten]:
    """Return what the first `count` seeds give, without refusals."""
    parsed = parse(caption)
    drawn = (rewrite(parsed, random.Random(seed)) for seed in range(count))
    return [result for result in drawn if isinstance(result, Rewritten)]


def texts(rewrite: Rewrite, caption: str, count: int = 150) -> set[str]:
    """Return the distinct texts of `results`."""
    return {result.text for result in results(rewrite, caption, count)}


def rows(table: str) -> list[list[str]]:
    """Return the columns of rows, split at "|"; indented lines continue a row, # is a comment."""
    lines = re.sub(" #.*", "", table.strip("\n")).replace("\n  ", " ").splitlines()
    return [[column.strip() for column in line.split("|")] for line in lines]
