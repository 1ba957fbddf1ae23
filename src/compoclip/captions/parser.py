"""From a caption's text to its tokens, noun chunks and scene graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any

from compoclip.captions.chunks import noun_chunks
from compoclip.captions.graph import parse_graph
from compoclip.captions.tagger import DEFAULT_TAGGER, Tagger, get_tagger, tagger_version
from compoclip.captions.types import Caption, SceneGraph, beginning

#: Raise it whenever words, tags, lemmas, chunks or graphs may come out differently.
PARSER_VERSION = "7"
#: Fewer texts than this are parsed here: starting processes would take longer.
POOL_FLOOR = 2000
#: Texts that a process parses at once.
BATCH = 500


def parse(text: str, tagger: Tagger | None = None) -> Caption:
    """Tag, chunk and parse a caption. Never raises on odd text.

    The graph takes a quarter of the time of the tags and is always made.

    Args:
        text: The caption. If it is longer than any model reads, its `beginning` is parsed.
        tagger: `get_tagger()` by default.

    Returns:
        The caption with tokens, noun chunks and scene graph.
    """
    head = beginning(text)
    tokens = (tagger or get_tagger()).tag(head)
    bare = Caption(head, tokens, noun_chunks(tokens), cut=len(head) < len(text))
    return replace(bare, graph=parse_graph(bare))


def parse_many(
    texts: Iterable[str], tagger: str = DEFAULT_TAGGER, workers: int = 1
) -> list[Caption]:
    """Parse captions, in several processes if there are many.

    Args:
        texts: Captions.
        tagger: A name for `get_tagger`, so that each process can load its own.
        workers: Number of processes; the result does not depend on it.
    """
    from compoclip.workers import in_batches  # with multiprocessing: slow to import

    todo = list(texts)
    processes = workers if len(todo) >= POOL_FLOOR else 1
    return list(
        chain.from_iterable(in_batches(partial(parse_batch, tagger), todo, BATCH, processes))
    )


def parse_batch(tagger: str, texts: list[str]) -> list[Caption]:
    """Parse captions in this process, with the tagger of a name."""
    model = get_tagger(tagger)
    return [parse(text, model) for text in texts]


# --- Parsed captions as readable JSON records, for people and other programs. ---


def provenance(tagger: str = DEFAULT_TAGGER) -> dict[str, str]:
    """Return the versions of tagger and parser, on which parses depend."""
    return {"tagger": tagger_version(tagger), "parser": PARSER_VERSION}


def parse_records(
    items: Iterable[tuple[str, str]], tagger: str = DEFAULT_TAGGER
) -> list[dict[str, Any]]:
    """Return the records of (id, caption) pairs in order."""
    model, versions = get_tagger(tagger), provenance(tagger)
    return [{"id": i, **caption_record(parse(text, model)), **versions} for i, text in items]


def caption_record(caption: Caption) -> dict[str, Any]:
    """Return a parsed caption as plain JSON data, for people and other programs.

    Relations name subject and object by their position in "objects"; starts and ends are
    characters.
    """
    graph = caption.graph or SceneGraph()

    def fields(node: Any, *names: str) -> dict[str, Any]:
        record = {name: getattr(node, name) for name in names}
        return {**record, "start": node.span.start, "end": node.span.end}

    return {
        "caption": caption.text,
        "tokens": list(map(asdict, caption.tokens)),
        "objects": [
            {
                **fields(node, "name"),
                "attributes": [fields(a, "name", "kind") for a in node.attributes],
            }
            for node in graph.objects
        ],
        "relations": [
            fields(r, "subject", "name", "object", "words", "kind") for r in graph.relations
        ],
    }
