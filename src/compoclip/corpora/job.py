"""Jobs on the captions of a shard: rewriting, parsing, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa

from compoclip.captions.parser import parse, provenance
from compoclip.captions.store import decode, encode
from compoclip.captions.tagger import DEFAULT_TAGGER, get_tagger
from compoclip.captions.types import Caption, SceneGraph, is_cut
from compoclip.data.columns import EMPTY_CAPTION, NEG_CAPTION, NO_CAPTION, usable_texts
from compoclip.rewrites.base import Refused, get_rewrite
from compoclip.rewrites.records import RewriteTally, Settings, drawn, edited_words

PARSE = "parse"
NEG_RULE, POSITIVE, POSITIVE_RULE = "neg_rule", "positive", "positive_rule"
Counts = dict[str, Any]
"""Whole numbers by name, nested."""

_TEXTS = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class CorpusRow:
    """One row or sample of a shard: its captions, stripped and none of them blank.

    id: with a number for further captions, what the draw of a rewrite depends on. stored: what an
    earlier parse wrote into the row, if any.
    """

    id: str
    captions: tuple[str, ...]
    stored: Any = None


def row_of(id: str, texts: Iterable[Any], stored: Any, counts: Counts) -> CorpusRow:
    """A row, with what is left out of it counted."""
    left_out: Counter[str] = Counter()
    captions = tuple(usable_texts(texts, EMPTY_CAPTION, left_out))
    counts["rows"] += 1
    counts["captions"] += len(captions)
    counts["cut"] += sum(map(is_cut, captions))
    left_out[NO_CAPTION] += not captions
    for reason, number in left_out.items():
        leave_out(counts, reason, number)
    return CorpusRow(id, captions, stored)


def leave_out(counts: Counts, reason: str, number: int = 1) -> None:
    """Count what is left out."""
    if not number:
        return
    counts["left_out"][reason] = counts["left_out"].get(reason, 0) + number


def new_counts() -> Counts:
    """The counts of a shard before its first row. cut: captions too long to be parsed whole."""
    return {"rows": 0, "captions": 0, "cut": 0, "left_out": {}}


def add_counts(total: Counts, more: Mapping[str, Any]) -> None:
    """Add `more` to `total`, name by name."""
    for name, value in more.items():
        if isinstance(value, Mapping):
            add_counts(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value


class CorpusJob(Protocol):
    """A job on rows of captions; plain data, since it is sent to worker processes."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns that are added."""
        ...

    def settings(self) -> dict[str, Any]:
        """Every input besides the shards, with versions: the same settings, the same bytes."""
        ...

    def make(self, rows: Sequence[CorpusRow], counts: Counts) -> list[dict[str, Any]]:
        """The values of `fields` for every row; what was made is added to `counts`."""
        ...


@dataclass(frozen=True)
class ParseJob:
    """Adds "parse": {"parser": versions, "records": one compact record a caption}.

    The records are those of `captions.records`; a rewrite job reads them instead of parsing.
    """

    tagger: str = DEFAULT_TAGGER

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The column "parse"."""
        return (pa.field(PARSE, pa.struct([("parser", pa.string()), ("records", _TEXTS)])),)

    def settings(self) -> dict[str, Any]:
        """Versions of tagger and parser."""
        return {"job": "parse", **provenance(self.tagger)}

    def make(self, rows: Sequence[CorpusRow], counts: Counts) -> list[dict[str, Any]]:
        """The parses of every row."""
        tagger, version = get_tagger(self.tagger), parser_name(self.tagger)
        made = counts.setdefault(
            "parses", dict.fromkeys(("objects", "attributes", "relations", "without_objects"), 0)
        )
        values = []
        for row in rows:
            captions = [parse(text, tagger) for text in row.captions]
            for caption in captions:
                graph = caption.graph or SceneGraph()
                made["objects"] += len(graph.objects)
                made["attributes"] += sum(len(node.attributes) for node in graph.objects)
                made["relations"] += len(graph.relations)
                made["without_objects"] += not graph.objects
            records = [encode(caption) for caption in captions]
            values.append({PARSE: {"parser": version, "records": records}})
        return values


@dataclass(frozen=True)
class RewriteJob:
    """Adds the negatives and positives of all captions of a row.

    "neg_caption" is what `train` reads as the negatives that came with the data, "positive" is what
    it reads from a file of written positives. "neg_rule" and "positive_rule" say of each text which
    rewrite and rule made it ("negclip swap:noun").
    """

    rewriting: Settings

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns of negatives, of positives, or of both, as the rewrites make them."""
        kinds = {get_rewrite(name).keeps_meaning for name in self.rewriting.rewrites}
        names = ((NEG_CAPTION, NEG_RULE), (POSITIVE, POSITIVE_RULE))
        return tuple(pa.field(n, _TEXTS) for k in (False, True) if k in kinds for n in names[k])

    def settings(self) -> dict[str, Any]:
        """Rewrites, seed, epoch and versions."""
        return {"job": "rewrite", **self.rewriting.provenance()}

    def make(self, rows: Sequence[CorpusRow], counts: Counts) -> list[dict[str, Any]]:
        """The texts of every row."""
        tallies = {name: RewriteTally() for name in self.rewriting.rewrites}
        names = [field.name for field in self.fields]
        values = []
        for row in rows:
            value: dict[str, Any] = {name: [] for name in names}
            for number, caption in enumerate(self._parsed(row, counts)):
                self._add(f"{row.id}#{number}" if number else row.id, caption, tallies, value)
            values.append(value)
        made = {name: tally.as_counts() for name, tally in tallies.items()}
        add_counts(counts, {"rewrites": made})
        return values

    def _add(
        self, id: str, caption: Caption, tallies: Mapping[str, RewriteTally], value: dict[str, Any]
    ) -> None:
        for name, tally in tallies.items():
            result = drawn(id, caption, name, self.rewriting)
            if isinstance(result, Refused):
                tally.add_refused(result.reason)
                continue
            spans = ((edit.start, edit.end) for edit in result.edits)
            tally.add_made(result.rule, edited_words(caption.text, spans))
            text, rule = (NEG_CAPTION, NEG_RULE)
            if result.keeps_meaning:
                text, rule = (POSITIVE, POSITIVE_RULE)
            value[text].append(result.text)
            value[rule].append(f"{get_rewrite(name).name} {result.rule}")

    def _parsed(self, row: CorpusRow, counts: Counts) -> list[Caption]:
        """The parses of a row: those stored in it, if they are of this parser and undamaged."""
        stored = row.stored if isinstance(row.stored, dict) else {}
        records = stored.get("records")
        if stored.get("parser") == parser_name(self.rewriting.tagger) and isinstance(records, list):
            try:
                found = [decode(text, record) for text, record in zip(row.captions, records)]
            except (ValueError, TypeError):
                found = []
            if len(found) == len(row.captions) == len(records):
                add_counts(counts, {"parses_read": len(found)})
                return found
        tagger = get_tagger(self.rewriting.tagger)
        add_counts(counts, {"parsed": len(row.captions)})
        return [parse(text, tagger) for text in row.captions]


@lru_cache(maxsize=8)
def parser_name(tagger: str) -> str:
    """Versions of parser and tagger in one word."""
    versions = provenance(tagger)
    return f"{versions['parser']}/{versions['tagger']}"
