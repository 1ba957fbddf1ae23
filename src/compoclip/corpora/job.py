"""Jobs on captions, of a shard or of a file: rewriting, parsing, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from compoclip.captions.parser import parse, parse_records, provenance
from compoclip.captions.store import decode, encode
from compoclip.captions.tagger import DEFAULT_TAGGER, get_tagger
from compoclip.captions.types import Caption, SceneGraph, is_cut
from compoclip.data.columns import NEG_CAPTION, caption_id, row_captions
from compoclip.rewrites.base import get_rewrite
from compoclip.rewrites.records import Settings, record, records, tally

if TYPE_CHECKING:
    from compoclip.recordfile import Item, Record

PARSE = "parse"
#: The columns of texts and of their rules, of negatives and of positives.
TEXT_COLUMNS = ((NEG_CAPTION, "neg_rule"), ("positive", "positive_rule"))
Counts = dict[str, Any]
"""Whole numbers by name, nested."""
_TEXTS = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class CorpusRow:
    """One row or sample of a shard with its captions, stripped and not blank.

    id: seeds the rewrites, with a number for further captions. stored: the parses of an earlier
    job, if any.
    """

    id: str
    captions: tuple[str, ...]
    stored: Any = None


def row_of(id: str, texts: Iterable[Any], stored: Any, counts: Counts) -> CorpusRow:
    """Return a row; count its captions and values that are left out."""
    left_out: Counter[str] = Counter()
    captions = row_captions(texts, left_out)
    cut = sum(map(is_cut, captions))
    add_counts(counts, {"rows": 1, "captions": len(captions), "cut": cut, "left_out": left_out})
    return CorpusRow(id, captions, stored)


def new_counts() -> Counts:
    """Return the counts before the first row. cut: captions too long to be parsed whole."""
    return {"rows": 0, "captions": 0, "cut": 0, "left_out": {}}


def add_counts(total: Counts, more: Mapping[str, Any]) -> None:
    """Add `more` to `total`, name by name."""
    for name, value in more.items():
        if isinstance(value, Mapping):
            add_counts(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value


def graph_counts(attributes: Sequence[Sized], relations: Sized) -> dict[str, int]:
    """Count what a graph holds. attributes: those of each object."""
    return {
        "objects": len(attributes),
        "attributes": sum(map(len, attributes)),
        "relations": len(relations),
        "without_objects": not attributes,
    }


@dataclass(frozen=True)
class ParseJob:
    """Add "parse": {"parser": versions, "records": one compact record per caption}.

    `captions.records` defines the records; a rewrite job reads them instead of parsing.
    """

    tagger: str = DEFAULT_TAGGER
    per_caption = 1

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Return the column "parse"."""
        return (pa.field(PARSE, pa.struct([("parser", pa.string()), ("records", _TEXTS)])),)

    def settings(self) -> dict[str, Any]:
        """Return the versions of tagger and parser."""
        return {"job": "parse", **provenance(self.tagger)}

    def make(self, rows: Sequence[CorpusRow], counts: Counts) -> list[dict[str, Any]]:
        """Return the parses of every row."""
        tagger, version = get_tagger(self.tagger), parser_name(self.tagger)
        totals = dict.fromkeys(graph_counts((), ()), 0)
        values = []
        for row in rows:
            captions = [parse(text, tagger) for text in row.captions]
            for caption in captions:
                graph = caption.graph or SceneGraph()
                parse_counts = graph_counts(
                    [node.attributes for node in graph.objects], graph.relations
                )
                add_counts(totals, parse_counts)
            values.append({PARSE: {"parser": version, "records": list(map(encode, captions))}})
        add_counts(counts, {"parses": totals})
        return values

    def records(self, items: list[Item]) -> list[Record]:
        """Return the parses of captions as records."""
        return parse_records(items, self.tagger)

    def count(self, counts: Counts, record: Record) -> None:
        """Add a record to the counts."""
        attributes = [node["attributes"] for node in record["objects"]]
        add_counts(counts, {"parses": graph_counts(attributes, record["relations"])})


@dataclass(frozen=True)
class RewriteJob:
    """Add the negatives and positives of all captions of a row.

    `train` reads "neg_caption" as the data's negatives, and "positive" as written positives.
    "neg_rule" and "positive_rule" name the rewrite and rule of each text ("negclip swap:noun").
    """

    rewriting: Settings

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Return the columns of negatives, of positives, or of both, as the rewrites make them."""
        kinds = {get_rewrite(name).keeps_meaning for name in self.rewriting.rewrites}
        return tuple(pa.field(n, _TEXTS) for k in sorted(kinds) for n in TEXT_COLUMNS[k])

    def settings(self) -> dict[str, Any]:
        """Return rewrites, seed, epoch and versions."""
        return {"job": "rewrite", **self.rewriting.provenance()}

    def make(self, rows: Sequence[CorpusRow], counts: Counts) -> list[dict[str, Any]]:
        """Return the texts of every row."""
        tallies = {name: tally() for name in self.rewriting.rewrites}
        names = [field.name for field in self.fields]
        values = []
        for row in rows:
            value: dict[str, Any] = {name: [] for name in names}
            for number, caption in enumerate(self._parsed(row, counts)):
                id = caption_id(row.id, number)
                for name, tallied in tallies.items():
                    rewritten = record(id, caption, name, self.rewriting)
                    add_counts(tallied, tally(rewritten))
                    if rewritten["text"] is not None:
                        texts, rules = TEXT_COLUMNS[rewritten["keeps_meaning"]]
                        value[texts].append(rewritten["text"])
                        value[rules].append(f"{rewritten['rewrite']} {rewritten['rule']}")
            values.append(value)
        add_counts(counts, {"rewrites": tallies})
        return values

    @property
    def per_caption(self) -> int:
        """Return the number of records of a caption."""
        return len(self.rewriting.rewrites)

    def records(self, items: list[Item]) -> list[Record]:
        """Return the rewrites and refusals of captions as records."""
        return records(items, self.rewriting)

    def count(self, counts: Counts, record: Record) -> None:
        """Add a record to the counts."""
        if record["rewrite"] not in self._names:
            raise ValueError("a record of another rewrite")
        add_counts(counts, {"rewrites": {record["rewrite"]: tally(record)}})

    @cached_property
    def _names(self) -> set[str]:
        return {get_rewrite(name).name for name in self.rewriting.rewrites}

    def _parsed(self, row: CorpusRow, counts: Counts) -> list[Caption]:
        """The parses of a row: those stored in it, if they are of this parser and undamaged."""
        stored = row.stored if isinstance(row.stored, dict) else {}
        records = stored.get("records")
        if stored.get("parser") == parser_name(self.rewriting.tagger) and isinstance(records, list):
            try:
                captions = [decode(text, stored) for text, stored in zip(row.captions, records)]
            except (ValueError, TypeError):
                captions = []
            if len(captions) == len(row.captions) == len(records):
                add_counts(counts, {"parses_read": len(captions)})
                return captions
        tagger = get_tagger(self.rewriting.tagger)
        add_counts(counts, {"parsed": len(row.captions)})
        return [parse(text, tagger) for text in row.captions]


CorpusJob = ParseJob | RewriteJob
"""A job on captions; plain data, since it is sent to worker processes.

`settings()`: every input besides the captions, with versions (equal settings give equal bytes).
Of shards, `fields` are the added columns, and `make(rows, counts)` returns their values for every
row and adds to `counts`. Of a file, `records(items)` returns `per_caption` records for every
caption, and `count(counts, record)` adds one of them to the same counts; see `write_records`.
"""


@lru_cache(maxsize=8)
def parser_name(tagger: str) -> str:
    """Return the versions of parser and tagger in one word."""
    versions = provenance(tagger)
    return f"{versions['parser']}/{versions['tagger']}"
