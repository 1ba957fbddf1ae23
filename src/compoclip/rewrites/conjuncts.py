"""What an "and" joins, when that is clear: adjectives, verb phrases of one subject, noun phrases.

[D-rw-and]: the smallest like phrases on both sides. An exchange must be its own inverse, so what is
refused in one order is refused in the other. Doubtful scope is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from compoclip.captions.types import Token
from compoclip.captions.words import word_set
from compoclip.rewrites.categories import families, names_people
from compoclip.rewrites.edit import SENTENCE_ENDS
from compoclip.rewrites.elements import names_together
from compoclip.rewrites.exchange import NOT_ASSERTED, head_lemma
from compoclip.rewrites.structure import Mention, Structure

CLAUSE = "clause"
LIST = "list-of-three"
SCOPE = "scope-unclear"
PRONOUN = "pronoun"
UNLIKE = "unlike-parts"
KINDS = ("noun-phrase", "verb-phrase", "adjective")

_LISTING = frozenset((",", "and", "or", "but", "&"))
_PICTURES = word_set("picture photo photograph image drawing painting view shot scene close-up")
_CLOSING = frozenset(("with", "of", "between"))
_FINITE = frozenset(("VBZ", "VBP", "VBD", "MD"))
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Conjuncts:
    """Two token spans joined by "and"; kind: one of `KINDS`."""

    kind: str
    a: Span
    b: Span


def conjuncts(s: Structure, at: int) -> Conjuncts | str:
    """The phrases that the "and" at token `at` joins, or the reason why they stay in place."""
    tokens = s.caption.tokens
    if at == 0 or at + 1 >= len(tokens):
        return UNLIKE
    if not (s.asserted(at - 1) and s.asserted(at + 1)):
        return NOT_ASSERTED
    start, end = _sentence(tokens, at)
    if tokens[at - 1].pos == "ADJ" and tokens[at + 1].pos in ("ADJ", "ADV"):
        return _adjectives(s, at)
    if tokens[at + 1].pos in ("VERB", "AUX") and s.owner[at + 1] < 0:
        return _verb_phrases(s, at, start, end)
    x = next((n for n, m in enumerate(s.mentions) if m.stop == at), -1)
    if x < 0 or x + 1 >= len(s.mentions) or s.mentions[x + 1].first != at + 1:
        return UNLIKE
    return _noun_phrases(s, x, start, end)


def _sentence(tokens: tuple[Token, ...], at: int) -> Span:
    """The sentence around token `at`, without its final punctuation."""
    marks = [i for i, t in enumerate(tokens) if t.text[0] in SENTENCE_ENDS or t.text == ";"]
    start = max((i + 1 for i in marks if i < at), default=0)
    return start, min((i for i in marks if i > at), default=len(tokens))


def _listed(tokens: tuple[Token, ...], a: Span, b: Span) -> bool:
    """Whether a comma or coordinator stands right before the first or after the second span."""
    before = a[0] > 0 and tokens[a[0] - 1].text.lower() in _LISTING
    return before or (b[1] < len(tokens) and tokens[b[1]].text.lower() in _LISTING)


def _adjectives(s: Structure, at: int) -> Conjuncts | str:
    tokens = s.caption.tokens
    first, last = at - 1, at + 1
    if first > 0 and tokens[first - 1].pos == "ADV":
        first -= 1
    if tokens[last].pos == "ADV":
        last += 1
    if last >= len(tokens) or tokens[last].pos != "ADJ" or names_together(tokens, last):
        return UNLIKE
    if tokens[at - 1].tag != tokens[last].tag or s.owner[at - 1] != s.owner[last]:
        return UNLIKE
    a, b = (first, at), (at + 1, last + 1)
    if _listed(tokens, a, b):
        return LIST
    follows = last + 1 < len(tokens) and tokens[last + 1].pos != "PUNCT"
    if (b[1] - b[0] > 1) != (a[1] - a[0] > 1) or (s.owner[last] < 0 and follows):
        return SCOPE
    return Conjuncts("adjective", a, b)


def _verb_phrases(s: Structure, at: int, start: int, end: int) -> Conjuncts | str:
    """ "sitting on a bench" and "reading a book": up to the "and", and up to the end."""
    tokens = s.caption.tokens
    tag = tokens[at + 1].tag
    verbs = [i for i in range(start, at) if tokens[i].tag == tag and s.owner[i] < 0]
    if not verbs:
        return UNLIKE
    a, b = (verbs[-1], at), (at + 1, end)
    inside = [t for span in (a, b) for t in tokens[slice(*span)]]
    if any(t.text.lower() in _LISTING for t in inside) or _listed(tokens, a, b):
        return LIST
    if any(t.pos == "PRON" and t.tag != "PRP$" for t in inside):
        return PRONOUN
    if any(t.tag in _FINITE or t.pos == "SCONJ" for t in inside[1:] if t.tag != tag):
        return CLAUSE
    repeated = sum(t.tag == tag for t in inside) > 2 or len(verbs) > 1
    if repeated or (a[1] - a[0] > 1) != (b[1] - b[0] > 1) or any(t.pos == "PUNCT" for t in inside):
        return SCOPE
    return Conjuncts("verb-phrase", a, b)


def _noun_phrases(s: Structure, x: int, start: int, end: int) -> Conjuncts | str:
    tokens = s.caption.tokens
    left, right = s.mentions[x], s.mentions[x + 1]
    if any(tokens[m.head].pos == "PRON" for m in (left, right)):
        return PRONOUN
    if tokens[left.first].tag != tokens[right.first].tag and _own(tokens, right, left):
        return PRONOUN
    first, stop = left.first, right.stop
    if _follows(tokens, stop, end) == "of" and _determined(s, x + 2) != _determined(s, x):
        stop = s.mentions[x + 2].stop
    elif _of_before(s, x, start) and _determined(s, x + 1) != _determined(s, x):
        first = s.mentions[x - 1].first
    if _listed(tokens, (first, left.stop), (right.first, stop)):
        return LIST
    governor = _governor(s, first, start)
    if governor and any(t.text == "," for t in tokens[start:first]):
        return LIST
    if governor == "of" and _determined(s, x if first == left.first else x - 1):
        return SCOPE  # "a cat in the corner of the picture and a dog"
    after = tokens[stop] if stop < end else None
    if after is None:
        if governor in ("", "verb", *_CLOSING) and not _changes_subject(s, x, governor):
            return _exchange(s, x, (first, left.stop), (right.first, stop))
        return SCOPE
    if governor == "":
        return _shared(s, x, (first, left.stop), (right.first, stop), after, start)
    return _whole(s, x, start, end)


def _own(tokens: tuple[Token, ...], *mentions: Mention) -> bool:
    return any(tokens[m.first].tag == "PRP$" for m in mentions)


def _follows(tokens: tuple[Token, ...], stop: int, end: int) -> str:
    return tokens[stop].text.lower() if stop < end else ""


def _determined(s: Structure, place: int) -> bool:
    """Whether the mention starts with a determiner, a possessive or a number."""
    if not 0 <= place < len(s.mentions):
        return False
    token = s.caption.tokens[s.mentions[place].first]
    return token.pos in ("DET", "NUM") or token.tag == "PRP$"


def _of_before(s: Structure, x: int, start: int) -> bool:
    """Whether "of" ties the mention to the one right before it, which is no mere picture."""
    before = s.mentions[x].first - 1
    if before <= start or s.caption.tokens[before].text.lower() != "of" or x == 0:
        return False
    return s.mentions[x - 1].stop == before and head_lemma(s, x - 1) not in _PICTURES


def _governor(s: Structure, first: int, start: int) -> str:
    """What governs the phrase at `first`: "" at the top, "verb", or the word before it."""
    tokens = s.caption.tokens
    if first == start:
        return ""
    before = tokens[first - 1]
    low = before.text.lower()
    if before.pos == "AUX":
        alone = all(t.pos in ("PRON", "DET", "AUX") for t in tokens[start:first])
        return "" if alone else low
    if low == "of" and first >= 2 and tokens[first - 2].lemma.lower() in _PICTURES:
        return ""
    return "verb" if before.pos == "VERB" else low


def _changes_subject(s: Structure, x: int, governor: str) -> bool:
    """Whether the second phrase may be a subject beside the first one's: "(a man with a hat) and
    (a woman)".
    """
    if governor == "":
        return False
    animals = [("animals" in _kinds(s, place)) for place in (x, x + 1)]
    return animals[0] != animals[1] or _person(s, x) != _person(s, x + 1)


def _person(s: Structure, place: int) -> bool:
    return names_people(head_lemma(s, place))


def _kinds(s: Structure, place: int) -> frozenset[str]:
    return families(head_lemma(s, place), "NOUN")


def _shared(s: Structure, x: int, a: Span, b: Span, after: Token, start: int) -> Conjuncts | str:
    """Both phrases with something behind the second: legal when it is said of both."""
    tokens = s.caption.tokens
    if after.pos == "AUX" or after.tag in _FINITE:
        return _exchange(s, x, a, b) if a[0] == start else CLAUSE
    if after.pos != "VERB":
        return SCOPE
    stop = b[1] + 1
    transitive = stop < len(tokens) and s.owner[stop] >= 0
    if transitive and not (_person(s, x) and _person(s, x + 1)):
        return SCOPE
    return _exchange(s, x, a, b)


def _exchange(s: Structure, x: int, a: Span, b: Span) -> Conjuncts | str:
    """The noun phrases, when it is clear which determiner and modifiers belong to which."""
    tokens = s.caption.tokens
    mine, theirs = _determined(s, x), _determined(s, x + 1)
    if a[0] != s.mentions[x].first:
        mine = _determined(s, x - 1)
    if theirs:
        return Conjuncts("noun-phrase", a, b) if mine else SCOPE
    skipped = a[0] + (1 if mine else 0)
    plain = a[1] - skipped == 1 and b[1] - b[0] == 1 and tokens[a[0]].pos != "NUM"
    if not plain or (mine and tokens[skipped].tag != tokens[b[0]].tag):
        return SCOPE  # "a red car and bus", "a car and trucks"
    return Conjuncts("noun-phrase", (skipped, a[1]), b)


def _whole(s: Structure, x: int, start: int, end: int) -> Conjuncts | str:
    """Both sides entire: "a man in a hat and a woman in a dress"."""
    tokens = s.caption.tokens
    top = next((n for n, m in enumerate(s.mentions) if _is_top(s, n, m, start)), -1)
    if top < 0:
        return SCOPE
    a, b = (s.mentions[top].first, s.mentions[x].stop), (s.mentions[x + 1].first, end)
    inside = [t for span in (a, b) for t in tokens[slice(*span)]]
    if any(t.text.lower() in _LISTING for t in inside):
        return LIST
    if any(t.pos == "PRON" for t in inside):
        return PRONOUN
    if any(t.tag in _FINITE or t.pos in ("AUX", "SCONJ") for t in inside):
        return CLAUSE
    alike, inner = _kinds(s, top) & _kinds(s, x + 1), _kinds(s, x) & _kinds(s, x + 1)
    if not alike or inner or not (_determined(s, top) and _determined(s, x + 1)):
        return SCOPE
    return Conjuncts("noun-phrase", a, b)


def _is_top(s: Structure, place: int, mention: Mention, start: int) -> bool:
    """Whether the mention begins what the sentence is about, not the frame around it."""
    if mention.first < start or s.caption.tokens[mention.head].pos == "PRON":
        return False
    return head_lemma(s, place) not in _PICTURES and _governor(s, mention.first, start) == ""
