"""The rules every rewritten text must pass (METHODS 17.1); each failure has a stable key."""

from __future__ import annotations

import re
from collections.abc import Iterable

from compoclip.captions.types import Caption
from compoclip.rewrites.base import Edit, Refused, Rewritten
from compoclip.rewrites.edit import Change, apply_changes, on_word_boundaries
from compoclip.rewrites.tokenkey import fits_context, same_to_clip

#: Draws after which a rewrite gives up (rule 8).
MAX_DRAWS = 10

_TWICE = re.compile(r"\b(\w+)(?=\s+\1\b)", re.IGNORECASE)

EMPTY = "empty-caption"
SAME_TOKENS = "same-after-tokenisation"
CUTS_WORD = "cuts-a-word"
TOO_LONG = "too-long"
DOUBLED = "doubled-word"


def doubles_a_word(text: str, caption: Caption) -> bool:
    """Whether the text has a word twice in a row ("tennis tennis") that the caption has not so."""
    twice = {word.lower() for word in _TWICE.findall(text)}
    return bool(twice) and not twice <= {word.lower() for word in _TWICE.findall(caption.text)}


def check(caption: Caption, text: str, edits: Iterable[Edit]) -> str | None:
    """Why the rewritten text is invalid, or None when it is valid.

    Rules 1 (differs to CLIP), 2 (edits cut no word) and 10 (at most 77 tokens), and no doubled
    word. A caption that was cut for being too long is too long with any edit.
    """
    if caption.cut:
        return TOO_LONG
    if any(not on_word_boundaries(caption.text, e.start, e.end) for e in edits):
        return CUTS_WORD
    if same_to_clip(text, caption.text):
        return SAME_TOKENS
    if doubles_a_word(text, caption):
        return DOUBLED
    if not fits_context(text):
        return TOO_LONG
    return None


def edited(
    caption: Caption, changes: Iterable[Change], *, rewrite: str, keeps_meaning: bool, rule: str
) -> Rewritten | Refused:
    """The caption with the changes applied, or the rule it then breaks."""
    text, edits = apply_changes(caption, changes)
    reason = check(caption, text, edits)
    if reason is not None:
        return Refused(reason)
    return Rewritten(text, rewrite, keeps_meaning, rule, edits)
