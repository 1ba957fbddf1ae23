"""Apply token-span changes to a caption, with the exact account of which characters changed.

Characters outside the changed spans stay as they are (docs/decisions.md, rule 2), apart from "a"
and "an" before a change (rule 3), which are listed as edits too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from compoclip.captions.clip_text import fits_context, same_to_clip
from compoclip.captions.lists import word_lists
from compoclip.captions.types import Caption, Token, is_address
from compoclip.rewrites.base import Edit

RULES = word_lists(__file__, "rules")  # which says what each list is for

# --- Whether a word takes "a" or "an". ---

_CONSONANT_SOUND = re.compile(
    r"(?:one(?![a-z])|ones|once|eu|ewe|u(?=[bcfhjkqrst][aeiou])|uni(?!m|n|dent))",
    re.IGNORECASE,
)
_VOWEL_SOUND = re.compile(r"(?:hour|honest|honou?r|heir|herb(?!i))", re.IGNORECASE)
# Acronyms read letter by letter although they could be spoken as a word.
_SPELT = frozenset(("SUV", "MRI", "LED", "FBI"))
_VOWEL_LETTER_NAMES = frozenset("AEFHILMNORSX")


def article_for(word: str) -> str:
    """ "a" or "an", by the first sound of `word`; "a" when it starts with no letter or digit."""
    if not word:
        return "a"
    if word[0].isdigit():
        return "an" if re.match(r"8|1[18](?!\d)", word) else "a"
    if word in _SPELT or (len(word) > 1 and word.isupper() and not re.search("[AEIOU]", word[1:])):
        return "an" if word[0] in _VOWEL_LETTER_NAMES else "a"
    if len(word) == 1 or (word[0].isupper() and word[1] == "-"):
        return "an" if word[0].upper() in _VOWEL_LETTER_NAMES else "a"
    if _VOWEL_SOUND.match(word):
        return "an"
    if word[0].lower() in "aeiou" and not _CONSONANT_SOUND.match(word):
        return "an"
    return "a"


# --- Apply token-span changes to a caption, with the exact account of which characters changed. ---

SENTENCE_ENDS = frozenset(".!?")
ARTICLES = frozenset(("a", "an"))
_APOSTROPHES = "'’"
_OPENING = frozenset(('"', "'", "“", "‘", "("))


class SpanChange(NamedTuple):
    """Tokens `first` (inclusive) to `stop` (exclusive) give way to `text`."""

    first: int
    stop: int
    text: str


def apply_changes(caption: Caption, changes: Iterable[SpanChange]) -> tuple[str, tuple[Edit, ...]]:
    """The edited text and its edits in order of place.

    Repairs "a"/"an" before each change. Raises ValueError when changes overlap or are empty spans.
    """
    ordered = sorted(changes)
    if any(change.first >= change.stop for change in ordered):
        raise ValueError("a change must cover at least one token")
    if any(a.stop > b.first for a, b in pairwise(ordered)):
        raise ValueError("changes overlap")
    articles = []
    for change in ordered:
        before = change.first - 1
        article = caption.tokens[before]
        if before < 0 or not change.text or article.text.lower() not in ARTICLES:
            continue
        taken = any(other.first <= before < other.stop for other in ordered)
        gap = caption.text[article.end : caption.tokens[change.first].start]
        new = article_for(change.text.split()[0])
        new = new.capitalize() if article.text[0].isupper() else new
        if not taken and gap.isspace() and new != article.text:
            articles.append(SpanChange(before, change.first, new))
    text, edits, end = "", [], 0
    for change in sorted([*ordered, *articles]):
        start, last = caption.tokens[change.first].start, caption.tokens[change.stop - 1].end
        text += caption.text[end:start]
        edits.append(Edit(start, last, len(text), len(text) + len(change.text)))
        text += change.text
        end = last
    return text + caption.text[end:], tuple(edits)


def starts_sentence(tokens: tuple[Token, ...], index: int) -> bool:
    """Return whether the token is the first word of a sentence."""
    while index > 0 and tokens[index - 1].text in _OPENING:
        index -= 1
    return index == 0 or tokens[index - 1].text in SENTENCE_ENDS


def exchanged(caption: Caption, a: tuple[int, int], b: tuple[int, int]) -> list[SpanChange]:
    """The two changes that exchange token spans `a` and `b`; a sentence capital stays in place."""
    return [SpanChange(*to, moved_text(caption, by, to[0])) for to, by in ((a, b), (b, a))]


def moved_text(caption: Caption, span: tuple[int, int], to: int) -> str:
    """The text of token `span` as it reads when it starts at the place of token `to`."""
    tokens = caption.tokens
    lead = tokens[span[0]]
    text = caption.text[lead.start : tokens[span[1] - 1].end]
    if is_address(lead.text):
        return text
    # The capital of names, "I", acronyms and mixed case belongs to the word itself.
    mixed = len(lead.text) > 1 and lead.text[1:] != lead.text[1:].lower()
    named = lead.pos == "PROPN" or lead.text == "I" or mixed
    if starts_sentence(tokens, span[0]) and not named:
        text = text[:1].lower() + text[1:]
    if starts_sentence(tokens, to) and tokens[to].text[:1].isupper():
        text = text[:1].upper() + text[1:]
    return text


def with_end(caption: Caption, start: int, text: str) -> tuple[str, tuple[Edit, ...]]:
    """The caption with another end, from a character on, and the edit."""
    whole = caption.text[:start] + text
    return whole, (Edit(start, len(caption.text), start, len(whole)),)


def cased_like(new: str, caption: Caption, index: int) -> str:
    """`new` with the case of token `index`: shouting stays shouting, a first capital moves."""
    old = caption.tokens[index].text
    if len(old) > 1 and old.isupper() and caption.text.isupper():
        return new.upper()
    if old[:1].isupper() and starts_sentence(caption.tokens, index):
        return new[:1].upper() + new[1:]
    return new


def on_word_boundaries(text: str, start: int, end: int) -> bool:
    """Return whether [start, end) cuts no word: "red" inside "covered", "do" of "don't"."""
    return not (_glued(text, start, before=True) or _glued(text, end, before=False))


def _glued(text: str, at: int, *, before: bool) -> bool:
    if at <= 0 or at >= len(text):
        return False
    left, right = text[at - 1], text[at]
    if left == " " or right == " ":
        return False
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


# --- The rules every rewritten text must pass (docs/decisions.md); each failure has a key. ---

#: Draws after which a rewrite gives up (rule 8).
MAX_DRAWS = 10

# Possessive, as a word cut short is followed by no blank.
_TWICE = re.compile(r"\b(\w++)(?=\s++\1\b)", re.IGNORECASE)

EMPTY = "empty-caption"
SAME_TOKENS = "same-after-tokenisation"
CUTS_WORD = "cuts-a-word"
TOO_LONG = "too-long"
DOUBLED = "doubled-word"


def doubles_a_word(text: str, caption: Caption) -> bool:
    """Return whether the text repeats a word ("tennis tennis") that the caption does not repeat."""
    twice = {word.lower() for word in _TWICE.findall(text)}
    return bool(twice) and not twice <= {word.lower() for word in _TWICE.findall(caption.text)}


def text_refusal(text: str, before: str, caption: Caption) -> str | None:
    """Why the text made of `before`, a part of the caption, is invalid, or None."""
    if same_to_clip(text, before):
        return SAME_TOKENS
    if doubles_a_word(text, caption):
        return DOUBLED
    return None if fits_context(text) else TOO_LONG


def check(caption: Caption, text: str, edits: Iterable[Edit]) -> str | None:
    """Why the rewritten text is invalid, or None: rules 1 (differs to CLIP), 2 (edits cut no word)
    and 10 (at most 77 tokens), and no doubled word."""
    if caption.cut:
        return TOO_LONG  # with any edit
    if not all(on_word_boundaries(caption.text, e.start, e.end) for e in edits):
        return CUTS_WORD
    return text_refusal(text, caption.text, caption)


#: Nouns for stuff, of which there are no two: they are no replacement for a plural.
MASS_NOUNS = RULES["mass nouns"]
