"""What a text that a person or a language model wrote must be like (METHODS 6, 8, 9)."""

from __future__ import annotations

from compoclip.captions.types import Caption
from compoclip.rewrites.meaning import (
    conflicting_attributes,
    content_words,
    difference,
    exclude_each_other,
    links_contradict,
    links_may_agree,
    may_both_hold,
    may_mean_the_same,
    same_statement,
)
from compoclip.rewrites.tokenkey import fits_context, same_to_clip
from compoclip.rewrites.validity import EMPTY, SAME_TOKENS, TOO_LONG

#: A rewrite has at most so many times the words of its caption.
MOST_WORDS = 1.5
#: A paraphrase keeps at least this share of the content words, or has words that can mean the same.
LEAST_KEPT = 0.5
TOO_MANY_WORDS = "too-many-words"
#: Neither the same content words in another order, nor exactly one exchanged for another.
OTHER_WORDS = "not-one-content-word-changed"
#: The same words tied in another way: "a black cat and a white dog" of "a white cat and ...".
OTHER_STATEMENT = "states-other-things"
CONTRADICTS = "contradicts-the-caption"
KEEPS_MEANING = "keeps-the-meaning"
ONLY_ADDS, ONLY_DROPS = "only-adds-words", "only-drops-words"
LOSES_CONTENT = "loses-content"


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

    Content words are nouns, verbs, adjectives, adverbs and numbers outside phrasal prepositions.
    Their multiset is the same (words exchanged, stating the same), or exactly one of them
    is another word (a word replaced) that does not exclude the old one. Neither text denies what
    the other says.
    """
    change = difference(caption, written)
    if len(change.lost) != len(change.gained) or len(change.lost) > 1:
        return OTHER_WORDS
    if not change.lost and change.moved and not same_statement(caption, written):
        return OTHER_STATEMENT
    wrong = change.negated or links_contradict(change.lost_links, change.gained_links)
    wrong |= any(exclude_each_other(a, b) for a, b in zip(change.lost, change.gained))
    return CONTRADICTS if wrong else None


def negative_objection(caption: Caption, written: Caption) -> str | None:
    """Why a written negative may still be true of the image, or None when it says something else.

    It denies what the caption does not; or it has a content word that cannot hold together with one
    it lost ("crimson" with "red", "small" with "red" can); or a preposition that does not fit the
    scene of the one it lost; or the same words in an order that states other things. Texts that
    only add or drop words are refused: both may be true.
    """
    change = difference(caption, written)
    if change.negated:
        return None
    if change.lost or change.gained:
        if not change.gained:
            return ONLY_DROPS
        if not change.lost:
            return ONLY_ADDS
        foreign = [
            new for new in change.gained if not any(may_both_hold(old, new) for old in change.lost)
        ]
        return None if foreign else KEEPS_MEANING
    if change.lost_links and not links_may_agree(change.lost_links, change.gained_links):
        return None
    if not change.moved or same_statement(caption, written):
        return KEEPS_MEANING
    return None


def paraphrase_objection(caption: Caption, written: Caption) -> str | None:
    """Why a text in other words does not say the same, or None when it may.

    Half of the content words are kept, or there are words that can mean the same; no word excludes
    one that went, and nothing is denied.
    """
    change = difference(caption, written)
    gone = [old for old in change.lost if not any(may_mean_the_same(old, n) for n in change.gained)]
    new = [new for new in change.gained if not any(may_mean_the_same(o, new) for o in change.lost)]
    wrong = change.negated or links_contradict(change.lost_links, change.gained_links)
    wrong |= any(exclude_each_other(a, b) for a in gone for b in new)
    if wrong or conflicting_attributes(caption, written):
        return CONTRADICTS
    total = len(content_words(caption))
    return None if total - len(gone) >= LEAST_KEPT * total else LOSES_CONTENT
