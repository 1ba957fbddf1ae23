"""Apply token-span changes to a caption, with the exact account of which characters changed.

Characters outside the changed spans stay as they are (METHODS 17.1, rule 2), apart from "a" and
"an" before a change (rule 3), which are listed as edits too.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from compoclip.captions.types import Caption, Token
from compoclip.rewrites.articles import repaired
from compoclip.rewrites.base import Edit

SENTENCE_ENDS = frozenset(".!?")
ARTICLES = frozenset(("a", "an"))
_APOSTROPHES = "'’"
_OPENING = frozenset(('"', "'", "“", "‘", "("))


class Change(NamedTuple):
    """Tokens `first` (inclusive) to `stop` (exclusive) give way to `text`."""

    first: int
    stop: int
    text: str


def apply_changes(caption: Caption, changes: Iterable[Change]) -> tuple[str, tuple[Edit, ...]]:
    """The edited text and its edits in order of place.

    Repairs "a"/"an" before each change. Raises ValueError when changes overlap or are empty spans.
    """
    ordered = sorted(changes, key=lambda change: change.first)
    if any(change.first >= change.stop for change in ordered):
        raise ValueError("a change must cover at least one token")
    if any(a.stop > b.first for a, b in pairwise(ordered)):
        raise ValueError("changes overlap")
    articles = _article_changes(caption, ordered)
    if articles:
        ordered = sorted([*ordered, *articles], key=lambda change: change.first)
    parts: list[str] = []
    edits: list[Edit] = []
    old_end = length = 0
    for change in ordered:
        start, end = caption.tokens[change.first].start, caption.tokens[change.stop - 1].end
        kept = caption.text[old_end:start]
        length += len(kept)
        edits.append(Edit(start, end, length, length + len(change.text)))
        parts += [kept, change.text]
        length += len(change.text)
        old_end = end
    parts.append(caption.text[old_end:])
    return "".join(parts), tuple(edits)


def _article_changes(caption: Caption, changes: list[Change]) -> list[Change]:
    taken = {i for change in changes for i in range(change.first, change.stop)}
    found = []
    for change in changes:
        before = change.first - 1
        if before < 0 or before in taken or not change.text:
            continue
        article = caption.tokens[before]
        gap = caption.text[article.end : caption.tokens[change.first].start]
        if article.text.lower() in ARTICLES and gap.isspace():
            new = repaired(article.text, change.text.split()[0])
            if new != article.text:
                found.append(Change(before, before + 1, new))
    return found


def starts_sentence(tokens: tuple[Token, ...], index: int) -> bool:
    """Whether the token is the first word of a sentence."""
    while index > 0 and tokens[index - 1].text in _OPENING:
        index -= 1
    return index == 0 or tokens[index - 1].text in SENTENCE_ENDS


def _is_name(token: Token) -> bool:
    """Whether the capital belongs to the word itself: names, "I", acronyms, mixed case."""
    text = token.text
    return token.pos == "PROPN" or text == "I" or (len(text) > 1 and text[1:] != text[1:].lower())


def exchanged(caption: Caption, a: tuple[int, int], b: tuple[int, int]) -> list[Change]:
    """The two changes that exchange token spans `a` and `b`; a sentence capital stays in place."""
    return [
        Change(*a, moved_text(caption, b, a[0])),
        Change(*b, moved_text(caption, a, b[0])),
    ]


def moved_text(caption: Caption, span: tuple[int, int], to: int) -> str:
    """The text of token `span` as it reads when it starts at the place of token `to`."""
    tokens = caption.tokens
    lead = tokens[span[0]]
    text = caption.text[lead.start : tokens[span[1] - 1].end]
    if starts_sentence(tokens, span[0]) and not _is_name(lead):
        text = text[:1].lower() + text[1:]
    if starts_sentence(tokens, to) and tokens[to].text[:1].isupper():
        text = text[:1].upper() + text[1:]
    return text


def cased_like(new: str, caption: Caption, index: int) -> str:
    """`new` with the case of token `index`: shouting stays shouting, a first capital moves."""
    old = caption.tokens[index].text
    if len(old) > 1 and old.isupper() and caption.text.isupper():
        return new.upper()
    if old[:1].isupper() and starts_sentence(caption.tokens, index):
        return new[:1].upper() + new[1:]
    return new


def on_word_boundaries(text: str, start: int, end: int) -> bool:
    """Whether [start, end) cuts no word: "red" inside "covered", "do" of "don't", "well-known".

    The possessive ending may be cut off ("dog" of "dog's").
    """
    return not (_glued(text, start, before=True) or _glued(text, end, before=False))


def _glued(text: str, at: int, *, before: bool) -> bool:
    if at <= 0 or at >= len(text):
        return False
    left, right = text[at - 1], text[at]
    if left.isalnum() and right.isalnum():
        return True
    outer = text[max(at - 2, 0) : at][::-1] if before else text[at : at + 2]
    inner = right if before else left
    if len(outer) < 2 or not (inner.isalnum() and outer[1].isalnum()):
        return False
    if outer[0] in _APOSTROPHES:
        possessive = text[at + 1 : at + 2] in ("s", "S") and not text[at + 2 : at + 3].isalnum()
        return before or not possessive
    return outer[0] == "-"
