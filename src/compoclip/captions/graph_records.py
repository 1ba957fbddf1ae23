"""Parsed captions as readable JSON records, for people and other programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from compoclip.captions.parse import PARSER_VERSION, parse
from compoclip.captions.tagger import DEFAULT_TAGGER, get_tagger, tagger_version
from compoclip.captions.types import Caption, SceneGraph


def provenance(tagger: str = DEFAULT_TAGGER) -> dict[str, str]:
    """What a parse depends on besides the caption: versions of tagger and parser."""
    return {"tagger": tagger_version(tagger), "parser": PARSER_VERSION}


def parse_records(
    items: Iterable[tuple[str, str]], tagger: str = DEFAULT_TAGGER
) -> list[dict[str, Any]]:
    """The records of (id, caption) pairs in order."""
    own = get_tagger(tagger)
    versions = provenance(tagger)
    return [{"id": i, **caption_record(parse(text, own)), **versions} for i, text in items]


def caption_record(caption: Caption) -> dict[str, Any]:
    """The caption with its tokens and graph; starts and ends are character positions.

    Relations name their subject and object by position in "objects", from 0.
    """
    graph = caption.graph or SceneGraph()
    return {
        "caption": caption.text,
        "tokens": [
            {
                "text": t.text,
                "lemma": t.lemma,
                "pos": t.pos,
                "tag": t.tag,
                "start": t.start,
                "end": t.end,
            }
            for t in caption.tokens
        ],
        "objects": [
            {
                "name": o.name,
                "start": o.span.start,
                "end": o.span.end,
                "attributes": [
                    {"name": a.name, "kind": a.kind, "start": a.span.start, "end": a.span.end}
                    for a in o.attributes
                ],
            }
            for o in graph.objects
        ],
        "relations": [
            {
                "subject": r.subject,
                "name": r.name,
                "object": r.object,
                "words": r.words,
                "kind": r.kind,
                "start": r.span.start,
                "end": r.span.end,
            }
            for r in graph.relations
        ],
    }
