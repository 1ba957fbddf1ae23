"""Cutting a caption into words with exact character spans."""

from __future__ import annotations

import re

# A word: letters and digits with their combining marks, joined by single inner apostrophes or
# hyphens ("doesn't", "black-and-white", "t-shirt"). Numbers keep inner separators ("3.5", "10:30"),
# abbreviations their stops ("U.S."). A possessive ending that a tokeniser cut off ("man 's") stays
# whole. Anything else that is not a blank stands alone, a run of one sign being one token ("...").
_WORD = re.compile(
    r"\d+(?:[.,:/]\d+)+(?![^\W_])"
    r"|(?:[^\W\d_]\.){2,}"
    r"|(?:[^\W_][\u0300-\u036f]*)+(?:['’‐‑-](?:[^\W_][\u0300-\u036f]*)+)*"
    r"|(?<=\s)['’]s(?![^\W_])"
    r"|([^\w\s]|_)\1*"
)
# After these words "'s" is short for "is" or "has" and stays; after others it is cut off.
_KEEPS_S = frozenset(
    {
        "it", "he", "she", "that", "this", "there", "here", "what", "who", "where", "when", "how",
        "why", "let", "everything", "something",
    }
)  # fmt: skip


#: A caption is parsed up to so many words and punctuation marks, of so many characters together.
#: More than any model of CLIP's kind reads: its 77 tokens are 75 words at the most, and no entry of
#: its vocabulary is a word of more than 24 letters.
MOST_TOKENS, MOST_CHARACTERS = 150, 2000


def word_set(text: str) -> frozenset[str]:
    """The words of a text as a set: word lists stay readable in the source."""
    return frozenset(text.split())


def beginning(text: str) -> str:
    """The part of a caption that is parsed: all of it, or as much as `MOST_TOKENS` words and marks
    of `MOST_CHARACTERS` characters, blanks not counted, up to the end of a word.

    A single word that is longer than that is cut inside.
    """
    if len(text) <= MOST_TOKENS:
        return text
    end = characters = 0
    for number, match in enumerate(_WORD.finditer(text)):
        characters += match.end() - match.start()
        if number == MOST_TOKENS or characters > MOST_CHARACTERS:
            break
        end = match.end()
    else:
        return text
    if end == 0:
        return text[: match.start() + MOST_CHARACTERS]
    head = text[:end]
    whole = head.rsplit(None, 1)
    return whole[0] if len(whole) > 1 and not text[end].isspace() else head


def is_cut(text: str) -> bool:
    """Whether a caption is longer than what is parsed of it."""
    return len(beginning(text)) < len(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of every word and punctuation mark, in order, blanks left out.

    Contractions ("isn't", "it's") and hyphenated words are one token; the possessive ending of a
    noun ("man's", "dogs'") is a token of its own, right behind its noun. Never raises.
    """
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        start, end = match.span()
        low = text[start:end].lower()
        if low.endswith(("'s", "’s")) and len(low) > 2 and low[:-2] not in _KEEPS_S:
            spans += [(start, end - 2), (end - 2, end)]
        else:
            spans.append((start, end))
    return spans
