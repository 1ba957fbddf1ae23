"""Parsed captions as plain JSON text and back. The caption's own text is not stored."""

from __future__ import annotations

import json
from typing import Any

from compoclip.captions.types import (
    Caption,
    Chunk,
    GraphAttribute,
    GraphObject,
    GraphRelation,
    SceneGraph,
    Span,
    Token,
)
from compoclip.captions.words import beginning


def encode(caption: Caption) -> str:
    """One ASCII JSON array: starts, ends, lemmas, universal and Penn tags, chunks, graph."""
    tokens = caption.tokens
    graph = caption.graph
    record = [
        [t.start for t in tokens],
        [t.end for t in tokens],
        [t.lemma for t in tokens],
        " ".join(t.pos for t in tokens),
        " ".join(t.tag for t in tokens),
        [[c.first, c.stop, c.head] for c in caption.chunks],
        None if graph is None else _encode_graph(graph),
    ]
    return json.dumps(record, separators=(",", ":"))


def decode(text: str, record: str) -> Caption:
    """The caption `text` with its stored parse; raises ValueError when the record is damaged."""
    head = beginning(text)
    try:
        starts, ends, lemmas, pos, tags, chunks, graph = json.loads(record)
        words = [head[start:end] for start, end in zip(starts, ends, strict=True)]
        tokens = tuple(map(Token, words, lemmas, pos.split(), tags.split(), starts, ends))
        if not len(tokens) == len(words) == len(lemmas):
            raise ValueError("columns of different length")
        if ends and ends[-1] > len(head):
            raise ValueError("spans beyond the text")
        return Caption(
            head,
            tokens,
            tuple(Chunk(*chunk) for chunk in chunks),
            None if graph is None else _decode_graph(graph),
            len(head) < len(text),
        )
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"damaged record: {error}") from error


def _encode_graph(graph: SceneGraph) -> list[Any]:
    objects = [
        [
            o.name,
            *_ends(o.span),
            [[a.name, *_ends(a.span), a.kind, int(a.sure)] for a in o.attributes],
        ]
        for o in graph.objects
    ]
    relations = [
        [r.subject, r.name, r.object, *_ends(r.span), r.words, r.kind, int(r.sure)]
        for r in graph.relations
    ]
    return [objects, relations]


def _decode_graph(graph: list[Any]) -> SceneGraph:
    objects, relations = graph
    return SceneGraph(
        tuple(
            GraphObject(
                name,
                Span(start, end),
                tuple(
                    GraphAttribute(a, Span(first, last), kind, bool(sure))
                    for a, first, last, kind, sure in attributes
                ),
            )
            for name, start, end, attributes in objects
        ),
        tuple(
            GraphRelation(subject, name, target, Span(start, end), words, kind, bool(sure))
            for subject, name, target, start, end, words, kind, sure in relations
        ),
    )


def _ends(span: Span) -> tuple[int, int]:
    return span.start, span.end
