"""Data types of a parsed caption: tokens, noun chunks and scene graph.

Every node keeps its character span in the original text, so that rewrites edit spans and never
substrings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from compoclip.captions.lists import WORDS

NOUNS = frozenset({"NOUN", "PROPN"})
"""Parts of speech of nouns."""
PLURALS = frozenset({"NNS", "NNPS"})
"""Penn tags of nouns in the plural."""
RelationKind = Literal["preposition", "verb", "passive", "possession"]


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of characters of the caption."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Token:
    """One word or punctuation mark of a caption; `text == caption.text[start:end]` always holds.

    `lemma` is its dictionary form, `tag` its Penn Treebank tag (NN, NNS, VBG, ...), `pos` its
    universal part of speech: NOUN, PROPN, VERB, AUX, ADJ, ADV, ADP, DET, PRON, NUM, PART, CCONJ,
    SCONJ, INTJ, PUNCT, SYM or X.
    """

    text: str
    lemma: str
    pos: str
    tag: str
    start: int
    end: int

    @property
    def low(self) -> str:
        """Return the text in lower case."""
        return self.text.lower()

    @property
    def span(self) -> Span:
        """Return its characters."""
        return Span(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A base noun phrase: tokens `first` to `stop`, and the token of its head noun."""

    first: int
    stop: int
    head: int


@dataclass(frozen=True, slots=True)
class GraphObject:
    """An object of a scene graph, where the caption names it, with its properties in order.

    Its name is the lemma of the head noun, with its compound words ("fire hydrant").
    """

    name: str
    span: Span
    attributes: tuple[GraphAttribute, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphAttribute:
    """A property of one object, such as "red", "two" or "sleeping".

    Attributes:
        name: As written, in lower case.
        kind: Quality ("red", "wooden", "dark blue"), number ("two", "group of"), or action or place
            without an object ("smiling", "outside"). Some uses count only qualities.
        sure: Whether the caption has no other reading, see `GraphRelation`.
    """

    name: str
    span: Span
    kind: Literal["quality", "number", "action"] = "quality"
    sure: bool = True


@dataclass(frozen=True, slots=True)
class GraphRelation:
    """A directed relation between two objects.

    Attributes:
        subject, object: Indexes in the graph's objects.
        name: Lemmas ("sit on", "surround by"). A possessor is the object of a relation "of" in
            every wording ("the man's hat": hat of man).
        words: As written, without auxiliaries ("sitting on"), so that "subject words object" is
            English.
        sure: Whether the words allow no other reading. In "a man on a horse with a hat", the hat
            may belong to either; the graph holds the likelier relation and marks it as not sure.
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
    """The objects of a caption with attributes, and the relations between them, in caption order.

    Relations refer to objects by index.
    """

    objects: tuple[GraphObject, ...] = ()
    relations: tuple[GraphRelation, ...] = ()


@dataclass(frozen=True, slots=True)
class Caption:
    """A parsed caption.

    Attributes:
        text: The parsed text; the `beginning` of a very long caption.
        chunks: Base noun phrases in order.
        graph: None when no parser was run.
        cut: Whether the caption is longer than `text`.
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
# Addresses and names of files, which no rewrite changes.
_ADDRESS = re.compile(
    r"(?<![\w@.])(?:"
    r"(?:[a-z][a-z\d+.-]*://|www\.)[^\s<>\"]*"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?:[\w-]+\.)+(?:com|org|net|edu|gov|info|io|uk|de|fr|nl|ru|cn|jp|eu|tv)(?![\w-])"
    r"(?:[:/?#][^\s<>\"]*)?"
    r"|[\w./\\-]*[\w-]\.(?:jpe?g|png|gif|webp|bmp|tiff?|svg|pdf|docx?|txt|csv|json|xml|html?|php"
    r"|zip|gz|mp[34]|avi|wav)(?![\w-])(?:[?#][^\s<>\"]*)?"
    r")(?<![.,;:!?'\"’”)\]}])",
    re.IGNORECASE,
)
_MAYBE_ADDRESS = re.compile(r"\w[.@]\w|://")
#: A caption is parsed up to so many words and punctuation marks, of so many characters together.
#: More than any model of CLIP's kind reads: its 77 tokens are 75 words at the most, and no entry of
#: its vocabulary is a word of more than 24 letters.
MOST_TOKENS, MOST_CHARACTERS = 150, 2000


def beginning(text: str) -> str:
    """Return the part of a caption that is parsed: at most `MOST_TOKENS` words and marks of at most
    `MOST_CHARACTERS` characters without blanks, up to the end of a word."""
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
    """Return whether only the beginning of a caption is parsed."""
    return len(beginning(text)) < len(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of every word and punctuation mark, in order."""
    spans: list[tuple[int, int]] = []
    start = 0
    for address in addresses(text):
        spans += [*_words_in(text, start, address[0]), address]
        start = address[1]
    return spans + _words_in(text, start, len(text))


def addresses(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of every URL, e-mail address and name of a file."""
    return [m.span() for m in _ADDRESS.finditer(text)] if _MAYBE_ADDRESS.search(text) else []


def is_address(word: str) -> bool:
    """Return whether a token is one of `addresses`."""
    return addresses(word) == [(0, len(word))]


def _words_in(text: str, start: int, end: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text, start, end):
        start, end = match.span()
        low = text[start:end].lower()
        if low.endswith(("'s", "’s")) and len(low) > 2 and low[:-2] not in WORDS["before is"]:
            spans += [(start, end - 2), (end - 2, end)]
        else:
            spans.append((start, end))
    return spans
