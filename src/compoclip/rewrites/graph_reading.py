"""A caption's scene graph with what the rewrites of it need to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compoclip.captions.lemmas import lemma_of
from compoclip.captions.subgraphs import (
    SubGraph,
    decompose,
    phrase,
    pieces,
    relation_words,
    tokens_in,
    worded,
)
from compoclip.captions.types import Caption, SceneGraph, Span, Token
from compoclip.rewrites.scope import unasserted
from compoclip.rewrites.tokenkey import token_key

_PLURAL_TAGS = frozenset(("NNS", "NNPS"))


@dataclass(frozen=True)
class Reading:
    """The graph of a caption in the caption's words.

    subgraphs: all of them, those that the caption does not assert included. said: the token keys
    of their texts and of the caption. lemmas, plural: of each object. links: the words of all
    relations from one object to another. words: every word of the caption as written and as lemma,
    in lower case. doubtful: the tokens that the caption does not assert ("not", "or", "might").
    """

    caption: Caption
    graph: SceneGraph
    subgraphs: tuple[SubGraph, ...]
    said: frozenset[tuple[str, ...]]
    lemmas: tuple[str, ...]
    plural: tuple[bool, ...]
    links: Mapping[tuple[int, int], Sequence[str]]
    words: frozenset[str]
    doubtful: tuple[Span, ...]

    def holds(self, word: str) -> bool:
        """Whether the word or phrase occurs in the caption, in the singular or the plural."""
        low = word.lower()
        if " " in low:
            return f" {low} " in f" {self.caption.text.lower()} " or low in self.lemmas
        return low in self.words or lemma_of(low, "NOUN", "NNS") in self.words

    def asserts(self, subgraph: SubGraph) -> bool:
        """Whether the caption claims every part of the sub-graph."""
        return not any(
            span.start < doubt.end and doubt.start < span.end
            for _, span in pieces(subgraph)
            for doubt in self.doubtful
        )

    def tag(self, span: Span) -> str:
        """Penn tag of the first token in the span, "" when there is none."""
        tokens = tokens_in(self.caption, span)
        return tokens[0].tag if tokens else ""


def read_graph(caption: Caption) -> Reading | None:
    """The reading of a caption; None when it was not parsed into a graph."""
    if caption.graph is None:
        return None
    tokens = caption.tokens
    doubts = sorted(unasserted(tokens))
    last = [_last(tokens_in(caption, node.span)) for node in caption.graph.objects]
    graph = worded(caption)
    subgraphs = decompose(graph)
    links: dict[tuple[int, int], list[str]] = {}
    for relation in graph.relations:
        ends = (relation.subject, relation.object)
        links.setdefault(ends, []).append(relation_words(relation))
    return Reading(
        caption,
        graph,
        subgraphs,
        frozenset(map(token_key, (caption.text, *map(phrase, subgraphs)))),
        tuple(node.name.lower() for node in caption.graph.objects),
        tuple(token is not None and token.tag in _PLURAL_TAGS for token in last),
        links,
        frozenset(w.lower() for t in tokens for w in (t.text, t.lemma)),
        tuple(Span(tokens[i].start, tokens[i].end) for i in doubts),
    )


def _last(tokens: tuple[Token, ...]) -> Token | None:
    return tokens[-1] if tokens else None
