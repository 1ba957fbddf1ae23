"""Parsed captions on disk: each distinct caption is parsed once for all runs."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import astuple, fields
from functools import partial
from itertools import chain, islice
from os import getpid
from pathlib import Path
from typing import Any, TypeVar

from compoclip.captions.parser import BATCH, PARSER_VERSION, POOL_FLOOR, parse_batch
from compoclip.captions.tagger import DEFAULT_TAGGER, tagger_version
from compoclip.captions.types import (
    Caption,
    Chunk,
    GraphAttribute,
    GraphObject,
    GraphRelation,
    SceneGraph,
    Span,
    Token,
    beginning,
)
from compoclip.console import note
from compoclip.errors import CompoclipError
from compoclip.files import writing
from compoclip.patterns import has_ending
from compoclip.workers import Workers

# --- Parsed captions as plain JSON text and back. The caption's own text is not stored. ---


def encode(caption: Caption) -> str:
    """Return a checksum and an ASCII JSON array of starts, ends, lemmas, tags, chunks and graph."""
    tokens, graph = caption.tokens, caption.graph
    record = [
        [t.start for t in tokens],
        [t.end for t in tokens],
        [t.lemma for t in tokens],
        " ".join(t.pos for t in tokens),
        " ".join(t.tag for t in tokens),
        [astuple(chunk) for chunk in caption.chunks],
        graph and [list(map(_row, graph.objects)), list(map(_row, graph.relations))],
    ]
    text = json.dumps(record, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}{text}"


def _row(node: Any) -> list[Any]:
    """The fields of a node in order: a span as two numbers, nodes as rows, a truth value as 0/1."""
    row: list[Any] = []
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, Span):
            row += [value.start, value.end]
        elif isinstance(value, tuple):
            row.append(list(map(_row, value)))
        else:
            row.append(int(value) if isinstance(value, bool) else value)
    return row


def decode(text: str, record: str) -> Caption:
    """Return the caption `text` with its stored parse. Raises ValueError for a damaged record."""
    head = beginning(text)
    try:
        checksum, record = record[:8], record[8:]
        if checksum != f"{zlib.crc32(record.encode()):08x}":
            raise ValueError("its checksum differs")
        starts, ends, lemmas, pos, tags, chunks, graph = json.loads(record)
        words = [head[start:end] for start, end in zip(starts, ends, strict=True)]
        tokens = tuple(map(Token, words, lemmas, pos.split(), tags.split(), starts, ends))
        if not len(tokens) == len(words) == len(lemmas):
            raise ValueError("columns of different length")
        if ends and ends[-1] > len(head):
            raise ValueError("spans beyond the text")
        decoded = None if graph is None else _decode_graph(*graph)
        return Caption(
            head, tokens, tuple(Chunk(*chunk) for chunk in chunks), decoded, len(head) < len(text)
        )
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"damaged record: {error}") from error


def _decode_graph(objects: list[Any], relations: list[Any]) -> SceneGraph:
    def attribute(name: str, start: int, end: int, kind: Any, sure: int) -> GraphAttribute:
        return GraphAttribute(name, Span(start, end), kind, bool(sure))

    nodes = tuple(
        GraphObject(name, Span(start, end), tuple(attribute(*fields) for fields in attributes))
        for name, start, end, attributes in objects
    )
    links = tuple(
        GraphRelation(subject, name, target, Span(start, end), words, kind, bool(sure))
        for subject, name, target, start, end, words, kind, sure in relations
    )
    return SceneGraph(nodes, links)


# --- Parsed captions on disk: each distinct caption is parsed once. ---

_Result = TypeVar("_Result")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS parses
(key BLOB PRIMARY KEY, parser TEXT NOT NULL, record TEXT NOT NULL) WITHOUT ROWID
"""
#: Captions per transaction; an interruption loses at most these.
SLICE = 20_000
_ALONE = 1000  # texts per transaction of a single process
_QUERY = 500
_LAYOUT = "crc32"  # of records: each begins with its checksum
_BUSY_SECONDS = 60.0


class ParseStore:
    """A SQLite file of parses, keyed by caption text, parser version and tagger version.

    Any number of processes may read while one writes (write-ahead log); writers wait for each
    other. A process that dies while writing loses its open transaction only. Damaged records count
    as missing: `get_or_parse` parses the caption again and counts it in `damaged`. Objects can
    be pickled; each process opens the file itself, made with its folder when absent.

    Raises:
        CompoclipError: When the file cannot be opened, read or written.
    """

    def __init__(self, path: Path | str, tagger_name: str = DEFAULT_TAGGER) -> None:
        self.path = Path(path)
        self.tagger_name = tagger_name
        self.parser = f"{PARSER_VERSION}/{tagger_version(tagger_name)}/{_LAYOUT}"
        self.damaged = 0
        self._local = threading.local()
        with writing(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._guarded(lambda db: db.execute("SELECT 1 FROM parses LIMIT 1").fetchone())

    def __reduce__(self) -> tuple[type[ParseStore], tuple[Path, str]]:
        return ParseStore, (self.path, self.tagger_name)

    def __len__(self) -> int:
        """Stored parses of this parser and tagger version."""
        query = "SELECT count(*) FROM parses WHERE parser = ?"
        return int(self._guarded(lambda db: db.execute(query, (self.parser,)).fetchone()[0]))

    def get(self, text: str) -> Caption | None:
        """Return the stored parse of a caption by this parser and tagger version, or None."""
        query, key = "SELECT record FROM parses WHERE key = ?", self._key(text)
        row = self._guarded(lambda db: db.execute(query, (key,)).fetchone())
        try:
            return None if row is None else decode(text, row[0])
        except ValueError:
            if not self.damaged:
                note(f"{self.path}: damaged parses are made again")
            self.damaged += 1
            return None

    def get_or_parse(self, text: str) -> Caption:
        """Return the stored parse of a caption; parse and store one that is missing or damaged."""
        caption = self.get(text)
        if caption is None:
            (caption,) = parse_batch(self.tagger_name, [text])
            self._insert([(self._key(text), self.parser, encode(caption))])
        return caption

    def fill(self, texts: Iterable[str], workers: int = 1) -> int:
        """Parse and store every missing caption.

        The file has the same bytes for any number of workers. Memory: one slice of the captions.
        Return the number of captions stored.
        """
        stored = 0
        remaining = iter(texts)
        size = SLICE if workers > 1 else _ALONE
        with Workers(workers) as pool:
            while part := list(dict.fromkeys(islice(remaining, size))):
                stored_keys = self._stored(part)
                missing = [text for text in part if self._key(text) not in stored_keys]
                batches = [missing[at : at + BATCH] for at in range(0, len(missing), BATCH)]
                apply = pool.map if workers > 1 and len(missing) >= POOL_FLOOR else map
                records = chain.from_iterable(apply(partial(_encoded, self.tagger_name), batches))
                self._insert(
                    [(self._key(t), self.parser, record) for t, record in zip(missing, records)]
                )
                stored += len(missing)
        return stored

    def close(self) -> None:
        """Close this thread's connection and merge the log into the file; later calls reopen it."""
        opened: _Opened | None = getattr(self._local, "opened", None)
        if opened and opened.owner == getpid():
            opened.close()
            self._local.opened = None

    def _stored(self, texts: list[str]) -> set[bytes]:
        """Return the keys of those texts that are stored."""
        stored: set[bytes] = set()
        for at in range(0, len(texts), _QUERY):
            keys = [self._key(text) for text in texts[at : at + _QUERY]]
            query = f"SELECT key FROM parses WHERE key IN ({','.join('?' * len(keys))})"
            rows = self._guarded(lambda db: db.execute(query, keys).fetchall())  # noqa: B023
            stored.update(key for (key,) in rows)
        return stored

    def _insert(self, rows: list[tuple[bytes, str, str]]) -> None:
        def insert(db: sqlite3.Connection) -> None:
            with db:
                db.executemany("INSERT OR REPLACE INTO parses VALUES (?, ?, ?)", rows)

        self._guarded(insert)

    def _key(self, text: str) -> bytes:
        full = f"{self.parser}\x1f{text}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(full, digest_size=16).digest()

    def _guarded(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run `work` on this thread's connection; make database errors readable."""
        try:
            return work(self._connection())
        except sqlite3.OperationalError as error:
            raise CompoclipError(
                f"{self.path}: cannot use the parse store ({error}); "
                "check that its folder is writable and its disk not full"
            ) from error
        except sqlite3.DatabaseError as error:
            if not has_ending(self.path, ".sqlite"):
                raise CompoclipError(
                    f"{self.path}: not a parse store ({error}); choose another file"
                ) from error
            note(f"{self.path}: damaged ({error}); made again")
            self.close()
            for end in ("", "-wal", "-shm"):
                self.path.with_name(f"{self.path.name}{end}").unlink(missing_ok=True)
            return work(self._connection())

    def _connection(self) -> sqlite3.Connection:
        # A connection must cross neither a fork nor a thread.
        opened: _Opened | None = getattr(self._local, "opened", None)
        if opened and opened.owner != getpid():
            _inherited.append(opened)
        if opened is None or opened.owner != getpid():
            # Used by this thread alone, but another one may close it with the store.
            db = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, check_same_thread=False)
            db.text_factory = partial(str, encoding="utf-8", errors="replace")  # checksums decide
            opened = _Opened(db)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute(_SCHEMA)
            self._local.opened = opened
        return opened.db


class _Opened:
    """A connection of the process `owner`, closed when its store or its thread is gone."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.owner = getpid()

    def close(self) -> None:
        if self.owner == getpid():
            self.owner = 0
            self.db.close()

    def __del__(self) -> None:
        self.close()


_inherited: list[_Opened] = []
"""Connections inherited across a fork; only the parent process may close them."""


def _encoded(tagger: str, texts: list[str]) -> list[str]:
    return list(map(encode, parse_batch(tagger, texts)))
