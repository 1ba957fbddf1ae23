"""What is known about a caption: its tokens, noun chunks and scene graph.

Every node keeps its character span in the original text, so that rewrites edit spans and never
substrings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from compoclip.captions.lists import BEFORE_IS

RelationKind = Literal["preposition", "verb", "passive", "possession"]


@dataclass(frozen=True, slots=True)
class Token:
    """One word or punctuation mark of a caption.

    `pos` is the coarse universal part of speech (NOUN, PROPN, VERB, AUX, ADJ, ADV, ADP, DET, PRON,
    NUM, PART, CCONJ, SCONJ, INTJ, PUNCT, SYM, X); `tag` is the fine Penn Treebank tag (NN, NNS,
    VBG, ...). `text == caption.text[start:end]` always holds.
    """

    text: str
    lemma: str
    pos: str
    tag: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A base noun phrase: tokens `first` (inclusive) to `stop` (exclusive), and its head token."""

    first: int
    stop: int
    head: int


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open character range of the caption text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GraphObject:
    """An object of a scene graph: `name` is the head lemma with its compound words."""

    name: str
    span: Span
    attributes: tuple[GraphAttribute, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphAttribute:
    """A property of one object, such as "red", "two" or "sleeping".

    `kind` tells apart what not every use counts as an attribute: qualities ("red", "wooden", "dark
    blue"), numbers ("two", "group of") and actions without an object ("smiling"). `sure`: see
    `GraphRelation`.
    """

    name: str
    span: Span
    kind: Literal["quality", "number", "action"] = "quality"
    sure: bool = True


@dataclass(frozen=True, slots=True)
class GraphRelation:
    """A directed relation between two objects, given by their index in the graph.

    `name` holds lemmas ("sit on", "surround by"), `words` the words as the caption has them,
    without auxiliaries ("sitting on", "surrounded by"), so that "subject words object" reads well.
    A possessor is the object of a relation "of", however it is put ("the man's hat": hat of man).

    `sure`: its words allow no other reading. "A man on a horse with a hat" makes the hat the
    horse's or the man's; the graph holds the likelier, and marks it.
    """

    subject: int
    name: str
    object: int
    span: Span
    words: str = ""
    kind: RelationKind = "preposition"
    sure: bool = True


@dataclass(frozen=True, slots=True)
class SceneGraph:
    """Objects with attributes, and the relations between them."""

    objects: tuple[GraphObject, ...] = ()
    relations: tuple[GraphRelation, ...] = ()


@dataclass(frozen=True, slots=True)
class Caption:
    """A parsed caption. `graph` is None when no scene-graph parser was run.

    cut: the caption goes on behind `text`, longer than any model reads (`beginning`).
    """

    text: str
    tokens: tuple[Token, ...]
    chunks: tuple[Chunk, ...] = ()
    graph: SceneGraph | None = None
    cut: bool = False


# --- Cutting a caption into words with exact character spans. ---

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
#: A caption is parsed up to so many words and punctuation marks, of so many characters together.
#: More than any model of CLIP's kind reads: its 77 tokens are 75 words at the most, and no entry of
#: its vocabulary is a word of more than 24 letters.
MOST_TOKENS, MOST_CHARACTERS = 150, 2000


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
        if low.endswith(("'s", "’s")) and len(low) > 2 and low[:-2] not in BEFORE_IS:
            spans += [(start, end - 2), (end - 2, end)]
        else:
            spans.append((start, end))
    return spans
