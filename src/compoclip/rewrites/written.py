"""What a rewrite that a person or a language model wrote must be like (METHODS 6)."""

from __future__ import annotations

from collections import Counter

from compoclip.captions.types import Caption
from compoclip.rewrites.tokenkey import fits_context, same_to_clip
from compoclip.rewrites.validity import EMPTY, SAME_TOKENS, TOO_LONG

#: A rewrite has at most so many times the words of its caption.
MOST_WORDS = 1.5
TOO_MANY_WORDS = "too-many-words"
#: Neither the same content words in another order, nor exactly one exchanged for another.
OTHER_WORDS = "not-one-content-word-changed"

_CONTENT = frozenset(("NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM"))


def form_objection(caption: str, written: str) -> str | None:
    """Why a written positive or negative cannot be used, judged by its form, or None.

    It must hold words, differ from the caption to CLIP's tokenizer, fit into the context and have
    at most 1.5 times as many words.
    """
    if not written.strip():
        return EMPTY
    if same_to_clip(written, caption):
        return SAME_TOKENS
    if len(written.split()) > MOST_WORDS * len(caption.split()):
        return TOO_MANY_WORDS
    return None if fits_context(written) else TOO_LONG


def positive_objection(caption: Caption, written: Caption) -> str | None:
    """Why a written positive does not keep the meaning, or None when it may.

    Content words are nouns, verbs, adjectives, adverbs and numbers. Their multiset is the same
    (words exchanged), or exactly one of them is another word (a word replaced).
    """
    before, after = _words(caption), _words(written)
    # Words in both are no change, even where the tagger takes them for something else.
    lost, gained = _content(caption, before - after), _content(written, after - before)
    return None if lost == gained and lost <= 1 else OTHER_WORDS


def _words(caption: Caption) -> Counter[str]:
    return Counter(token.text.lower() for token in caption.tokens)


def _content(caption: Caption, words: Counter[str]) -> int:
    """How many of these words of the caption are content words."""
    tags = {token.text.lower(): token.pos for token in caption.tokens}
    return sum(count for word, count in words.items() if tags[word] in _CONTENT)
