"""The parse store: round trips, versions, damage, concurrency."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import sqlite3
import threading
import zlib
from functools import partial
from pathlib import Path

import pytest

import compoclip.captions.store as store_module
from compoclip.captions.parser import parse
from compoclip.captions.store import ParseStore, decode
from compoclip.captions.types import Caption
from compoclip.errors import CompoclipError

pytestmark = pytest.mark.usefixtures("warm_workers")

TEXTS = [
    "A red dog near a cat .",
    "Two men's hats",
    "",
    "😀 caf\u00e9\n\ud800",
    "A red dog near a cat .",
]


def test_parses_once_and_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new folder" / "parses.sqlite"
    store = ParseStore(path)
    assert store.get(TEXTS[0]) is None
    parsed = {text: store.get_or_parse(text) for text in TEXTS}
    assert parsed == {text: parse(text) for text in TEXTS}
    assert len(store) == 4
    monkeypatch.setattr(store_module, "parse_batch", _never)
    again = ParseStore(path)
    assert {text: again.get_or_parse(text) for text in TEXTS} == parsed
    for store in (again, pickle.loads(pickle.dumps(again))):  # noqa: S301 (our own object)
        assert all(store.get(text) == parse(text) for text in TEXTS)
        assert store.damaged == 0


def _never(job: tuple[str, list[str]]) -> list[Caption]:
    raise AssertionError(f"{job} are stored")


def test_another_parser_version_does_not_see_the_parses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "parses.sqlite"
    ParseStore(path).fill(TEXTS)
    monkeypatch.setattr(store_module, "PARSER_VERSION", "other")
    newer = ParseStore(path)
    assert len(newer) == 0
    assert newer.get(TEXTS[0]) is None
    newer.get_or_parse(TEXTS[0])
    assert len(newer) == 1
    monkeypatch.undo()
    assert len(ParseStore(path)) == 4


@pytest.mark.parametrize(
    "spoilt", ["substr(record, 1, length(record) - 5)", "replace(record, 'NOUN', 'VERB') || ' '"]
)
def test_damaged_records_are_counted_and_parsed_anew(
    spoilt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "parses.sqlite"
    ParseStore(path).fill(TEXTS)
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE parses SET record = {spoilt}")
    store = ParseStore(path)
    assert store.get(TEXTS[0]) is None
    assert store.damaged == 1
    assert all(store.get_or_parse(text) == parse(text) for text in TEXTS)
    assert store.damaged == 5
    assert capsys.readouterr().err == f"{path}: damaged parses are made again\n"
    assert ParseStore(path).get(TEXTS[0]) == parse(TEXTS[0])


def _read(store: ParseStore, texts: list[str]) -> int:
    return sum(store.get(text) is not None for text in texts)


def test_readers_in_other_processes_while_one_writes(tmp_path: Path) -> None:
    store = ParseStore(tmp_path / "parses.sqlite")
    texts = [f"{n} cats" for n in range(50)]
    store.fill(texts)
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        pending = [pool.apply_async(_read, (store, texts)) for _ in range(4)]
        store.fill([f"{n} dogs" for n in range(50)])
        assert [job.get(timeout=60) for job in pending] == [50] * 4
    assert len(store) == 100


def test_the_file_is_the_same_for_any_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "POOL_FLOOR", 10)
    things = ("cat", "dog", "big bus", "man in a hat", "cup")
    texts = [f"a {thing} on a table {i}" for i in range(120) for thing in things] * 2
    files = []
    for workers in (1, 2):
        store = ParseStore(tmp_path / f"{workers}.sqlite")
        assert store.fill(iter(texts), workers) == 600
        assert store.fill(texts, workers) == 0
        assert store.get(texts[7]) == parse(texts[7])
        store.close()
        files.append(store.path.read_bytes())
    assert files[0] == files[1]


def test_filling_adds_what_is_missing(tmp_path: Path) -> None:
    store = ParseStore(tmp_path / "parses.sqlite")
    store.get_or_parse(TEXTS[0])
    assert store.fill(TEXTS) == len(set(TEXTS)) - 1
    assert [store.get(text) for text in TEXTS] == [parse(text) for text in TEXTS]
    assert store.fill([]) == 0


def test_foreign_and_unreachable_files_are_one_line_errors(tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("these are no parses\n" * 100)
    with pytest.raises(CompoclipError, match=r"notes\.txt: not a parse store .* choose another"):
        ParseStore(foreign)
    assert foreign.read_text().startswith("these are no parses")
    with pytest.raises(CompoclipError, match="cannot be written"):
        ParseStore(foreign / "below" / "parses.sqlite")
    with pytest.raises(CompoclipError, match="cannot use the parse store") as caught:
        ParseStore(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "parses.sqlite"
    for spoilt in (b"no database", b"SQLite format 3\0" + b"\xff" * 5000):
        path.write_bytes(spoilt)
        store = ParseStore(path)
        assert f"{path}: damaged (" in capsys.readouterr().err
        assert all(store.get_or_parse(text) == parse(text) for text in TEXTS)
        store.close()


@pytest.mark.parametrize(
    "record",
    ["", "[]", "{}", "null", '[[0],[9],["a"],"DET","DT",[],null]',
     '[[0],[1],["a"],"","DT",[],null]',
     '[[0],[1,2],["a"],"DET","DT",[],null]', '[["x"],[1],["a"],"DET","DT",[],null]',
     '[[0],[1],["a"],"DET","DT",[[1]],null]', '[[0],[1],["a"],"DET","DT",[],[1]]'],
)  # fmt: skip
def test_damaged_records_are_value_errors(record: str) -> None:
    with pytest.raises(ValueError, match="damaged record"):
        decode("a", f"{zlib.crc32(record.encode()):08x}{record}")


def test_connections_are_closed_with_the_store_and_with_their_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []

    class Watched(sqlite3.Connection):
        def close(self) -> None:
            closed.append(os.getpid())
            super().close()

    connect = partial(sqlite3.connect, factory=Watched)
    monkeypatch.setattr(store_module.sqlite3, "connect", connect)
    store = ParseStore(tmp_path / "parses.sqlite")
    thread = threading.Thread(target=store.get, args=(TEXTS[0],))
    thread.start()
    thread.join()
    gc.collect()
    assert len(closed) == 1
    if hasattr(os, "fork"):
        child = os.fork()
        if not child:  # what it inherits is not its own to close
            store.get(TEXTS[0])
            store.close()
            os._exit(len(closed) - 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    del store
    gc.collect()
    assert closed == [os.getpid()] * 2
