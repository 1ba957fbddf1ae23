"""Patterns of English that have to be read twice stay out of the pages for users."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# docs/literature.md is made from the summaries of recipes.
WRITTEN = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.stem != "literature"]
PAGES = [ROOT / "README.md", *WRITTEN]
THINGS = "texts?|captions?|items?|images?|rows?|negatives?|positives?|files?|steps?|pairs?|rates?"
UNITS = "image|caption|photo|text|step|row|sub-task|sample|task|batch|layer|model|second"
PATTERNS = {  # pattern: what to write
    rf"\b(one|two|three|four|ten|\d+) (\w+ )?({THINGS}) an? ({UNITS})\b": "per, not a",
    r"\b(those|that) of\b": "the name of the thing",
    r"\bthere (is|are) none\b|\b(is|are) none\b": "what there is, or that there is no X",
    r"\bthat there (is|are) not\b": "unknown X",
    r"\bin the place of\b": "instead of",
    r"\bshown absent\b": "equivalent within the margin",
    r"\bwhat is (kept|learnt|held|told)\b": "the name of the thing",
    r"\blearnt\b": "learned, or gains",
    r"\bgo(es|ing) on\b": "resumes, continues",
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pages_are_plain(pattern: str) -> None:
    found = [
        f"{page.relative_to(ROOT)}: {match[0]!r} (write {PATTERNS[pattern]})"
        for page in PAGES
        for match in re.finditer(pattern, page.read_text(encoding="utf-8"))
    ]
    assert found == []
