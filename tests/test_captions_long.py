"""Parses: stored, bounded for long captions, which may be cut into sentences."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import sqlite3
import threading
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import compoclip.captions.store as store_module
from build.runs import TABLE, command
from build.tables import read_jsonl, write_jsonl, write_lines, write_text
from compoclip.captions import chunks
from compoclip.captions.chunks import sentences
from compoclip.captions.clip_text import fits_context
from compoclip.captions.parser import parse
from compoclip.captions.store import ParseStore, decode, encode
from compoclip.captions.tagger import HantaTagger
from compoclip.captions.types import MOST_CHARACTERS, MOST_TOKENS, Caption, beginning, is_cut
from compoclip.cli.main import main
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.images import Single
from compoclip.data.images.composed import FEW_SENTENCES, Composed
from compoclip.data.plan import TextPlan, prepare_captions
from compoclip.data.sources import Sample
from compoclip.data.sources.open import open_source
from compoclip.errors import CompoclipError
from compoclip.losses.contract import Role
from compoclip.models.checkpoint import load_model
from compoclip.rewrites.base import Refused, Rewritten, get_rewrite, rewrite_names, rng_for
from method_data import arguments
from rewrite_facts import PARTS

pytestmark = pytest.mark.usefixtures("warm_workers")


# --- The parse store: round trips, versions, damage, concurrency. ---


STORED = [
    "A red dog near a cat .",
    "Two men's hats",
    "",
    "😀 caf\u00e9\n\ud800",
    "A red dog near a cat .",
]


def test_parses_once_and_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new folder" / "parses.sqlite"
    store = ParseStore(path)
    assert store.get(STORED[0]) is None
    parsed = {text: store.get_or_parse(text) for text in STORED}
    assert parsed == {text: parse(text) for text in STORED}
    assert len(store) == 4
    monkeypatch.setattr(store_module, "parse_batch", _never)
    again = ParseStore(path)
    assert {text: again.get_or_parse(text) for text in STORED} == parsed
    for store in (again, pickle.loads(pickle.dumps(again))):  # noqa: S301 (our own object)
        assert all(store.get(text) == parse(text) for text in STORED)
        assert store.damaged == 0


def _never(tagger: str, texts: list[str]) -> list[Caption]:
    raise AssertionError(f"{texts} are stored")


def test_another_parser_version_does_not_see_the_parses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "parses.sqlite"
    ParseStore(path).fill(STORED)
    monkeypatch.setattr(store_module, "PARSER_VERSION", "other")
    newer = ParseStore(path)
    assert len(newer) == 0
    assert newer.get(STORED[0]) is None
    newer.get_or_parse(STORED[0])
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
    ParseStore(path).fill(STORED)
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE parses SET record = {spoilt}")
    store = ParseStore(path)
    assert store.get(STORED[0]) is None
    assert store.damaged == 1
    assert all(store.get_or_parse(text) == parse(text) for text in STORED)
    assert store.damaged == 5
    assert capsys.readouterr().err == f"{path}: damaged parses are made again\n"
    assert ParseStore(path).get(STORED[0]) == parse(STORED[0])


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
    store.get_or_parse(STORED[0])
    assert store.fill(STORED) == len(set(STORED)) - 1
    assert [store.get(text) for text in STORED] == [parse(text) for text in STORED]
    assert store.fill([]) == 0


def test_foreign_and_unreachable_files_are_one_line_errors(tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("these are no parses\n" * 100)
    for place, said in (
        (foreign, r"notes\.txt: not a parse store .* choose another"),
        (foreign / "below" / "parses.sqlite", "cannot be written"),
        (tmp_path, "cannot use the parse store"),
    ):
        with pytest.raises(CompoclipError, match=said) as caught:
            ParseStore(place)
        assert "\n" not in str(caught.value)
    assert foreign.read_text().startswith("these are no parses")


def test_a_damaged_file_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "parses.sqlite"
    for spoilt in (b"no database", b"SQLite format 3\0" + b"\xff" * 5000):
        path.write_bytes(spoilt)
        store = ParseStore(path)
        assert f"{path}: damaged (" in capsys.readouterr().err
        assert all(store.get_or_parse(text) == parse(text) for text in STORED)
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
    thread = threading.Thread(target=store.get, args=(STORED[0],))
    thread.start()
    thread.join()
    gc.collect()
    assert len(closed) == 1
    if hasattr(os, "fork"):
        child = os.fork()
        if not child:  # what it inherits is not its own to close
            store.get(STORED[0])
            store.close()
            os._exit(len(closed) - 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    del store
    gc.collect()
    assert closed == [os.getpid()] * 2


# --- Long captions: parsed up to a bound, or cut into sentences. ---


def table(folder: Path, captions: Sequence[object]) -> str:
    rows = [{"image": f"{i}.png", "caption": c} for i, c in enumerate(captions)]
    return str(write_jsonl(folder / "t.jsonl", rows))


LONG = " ".join(["A red cat on a mat next to a small dog."] * 1600)  # as long as readers take
SHORT = "a red star to the left of a large mug"


def test_the_beginning_ends_at_a_word_and_covers_what_a_model_reads() -> None:
    words = " ".join(f"word{i}" for i in range(400))
    assert beginning(words).split() == words.split()[:MOST_TOKENS]
    assert not fits_context(beginning("a cat " * 400))
    assert beginning(SHORT) == SHORT
    assert not is_cut(SHORT + " " * 5000)  # blanks are not parsed
    glued = "a cat " + "cat,dog." * 200
    assert beginning(glued) == "a cat"
    marks = "cat , " * 75 + "dog"
    assert beginning(marks) == marks.removesuffix(" dog")
    long_words = ("incomprehensibilities " * 200).strip()
    assert sum(map(len, beginning(long_words).split())) <= MOST_CHARACTERS
    assert beginning("x" * 5000) == "x" * MOST_CHARACTERS


def test_no_more_than_the_beginning_is_tagged(monkeypatch: pytest.MonkeyPatch) -> None:
    tagged: list[int] = []
    tag = HantaTagger.tag

    def counted(self: HantaTagger, text: str) -> object:
        found = tag(self, text)
        tagged.append(len(found))
        return found

    monkeypatch.setattr(HantaTagger, "tag", counted)
    caption = parse(LONG)
    assert len(LONG) == 63_999
    assert tagged == [MOST_TOKENS]
    assert caption.cut
    assert caption.text == beginning(LONG)
    assert caption == parse(LONG) != parse(caption.text)
    assert not parse(caption.text).cut


def test_possessors_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    phrase_end = chunks._phrase_end

    def counted(*arguments: object) -> int:
        nonlocal calls
        calls += 1
        assert calls < 500  # was doubled by every further possessor
        return phrase_end(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(chunks, "_phrase_end", counted)
    (chunk,) = parse(" ".join(["the man's"] + ["friend's"] * 40 + ["hat"])).chunks
    assert chunk.first == 0


def test_stores_and_records_know_the_whole_caption(tmp_path: Path) -> None:
    assert decode(LONG, encode(parse(LONG))) == parse(LONG)
    store = ParseStore(tmp_path / "parses.sqlite")
    for text in (LONG, SHORT, LONG, SHORT):
        assert store.get_or_parse(text) == parse(text)
    assert store.get(LONG) == parse(LONG)
    assert ParseStore(tmp_path / "other.sqlite").fill([LONG, SHORT, LONG]) == 2


def test_only_parts_of_a_cut_caption_are_rewritten() -> None:
    """An edit of the beginning would stand against a caption of which the model reads as much."""
    for name in rewrite_names():
        result = get_rewrite(name)(parse(LONG), rng_for(0, "x", 0, name))
        if name.startswith(PARTS):
            assert isinstance(result, Rewritten | Refused)
            assert isinstance(result, Refused) or fits_context(result.text)
        else:
            assert isinstance(result, Refused), name
    filled = parse(SHORT + " . . " * 100)  # fits into the context after the cut, and yet
    for name in ("negclip", "replace", "synonym", "bigram-shuffle", "crepe-negate"):
        result = get_rewrite(name)(filled, rng_for(0, "x", 0, name))
        assert result == Refused("too-long") or (name, result) == ("replace", Refused("unattested"))
    positive = get_rewrite("graph-positive")(parse(LONG), rng_for(0, "x", 0, "graph-positive"))
    assert isinstance(positive, Rewritten)


def test_training_shows_the_model_the_caption_and_counts_what_was_cut(tmp_path: Path) -> None:
    source = open_source(table(tmp_path, [LONG, SHORT, LONG]))
    captions = prepare_captions(source, ParseStore(tmp_path / "p.sqlite"), 1)
    assert captions.cut == 2
    assert captions[LONG] == parse(LONG)
    plan = TextPlan(CaptionPlan(("graph-positive", "negclip")), parsed=captions)
    texts, counts = plan.draw(Sample("1", b"", (LONG,)), 0)
    assert texts[0].text == LONG
    assert [text.role for text in texts[1:]] == [Role.POSITIVE]
    assert counts.refused == {("negclip", "too-long"): 1}


def test_a_run_says_and_records_what_was_cut(
    squares: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(squares / "cache"))
    data = squares / TABLE
    rows = data.read_text().splitlines()[:9]
    rows[1] = f"0.png\t{LONG}"
    write_text(data, "\n".join(rows) + "\n")
    assert main(command(squares, "run", "--batch-size=4", method="negclip")) == 0
    assert "1 caption cut before parsing: longer than any model reads" in capsys.readouterr().err
    record = load_model(squares / "run" / "model").provenance["run"]
    assert (record["cut"], record["truncated"]) == (1, 1)


@pytest.mark.parametrize("verb", ["parse", "rewrite"])
def test_texts_files_and_shards_say_how_many_captions_were_cut(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--rewrites", "negclip"] if verb == "rewrite" else []
    assert main([verb, LONG, *options]) == 0
    shown = capsys.readouterr()
    assert "1 caption cut to 150 words and marks" in shown.err
    assert len(shown.out) < len(LONG) / 2
    source = write_lines(tmp_path / "captions.txt", [LONG, SHORT, LONG])
    out = tmp_path / "out.jsonl"
    assert main([verb, str(source), "-o", str(out), *options]) == 0
    assert "2 captions cut to 150 words and marks" in capsys.readouterr().err
    again = str(tmp_path / "again.jsonl")
    assert main([verb, str(source), "-o", again, "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["captions_cut"] == 2
    assert [r["caption"] for r in read_jsonl(out)] == [beginning(LONG), SHORT, beginning(LONG)]
    shards = tmp_path / "in"
    write_jsonl(shards / "000.jsonl", ({"caption": text} for text in (LONG, SHORT, LONG)))
    assert main([verb, str(shards), "-o", str(tmp_path / "out"), *options]) == 0
    assert "2 captions cut" in capsys.readouterr().err
    assert main([verb, str(shards), "-o", str(tmp_path / "out"), "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["cut"] == 2
    first = json.loads((tmp_path / "out" / "000.jsonl").read_text().splitlines()[0])
    assert first["caption"] == LONG  # what is in a shard stays


# --- Sentences, and the source that yields them. ---


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        (
            "The image shows a red car on a road. Behind it stands an old barn. It rains.",
            ["A red car on a road.", "Behind it stands an old barn."],
        ),
        (
            "This image displays: a man in a hat. He looks at\nMt. Fuji from afar. The image also "
            "features two small dogs.",
            ["A man in a hat.", "He looks at Mt. Fuji from afar."],  # the last has three words
        ),
        (
            "This is a photo of J. Smith in a park. In the image, we can see a very tall tree. "
            "Dr. No (approx. Forty) is at home.",
            ["J. Smith in a park.", "A very tall tree.", "Dr. No (approx. Forty) is at home."],
        ),
        # No capital after it, no stop; the word before it is the pronoun.
        (
            "a dog vs. cats e.g. big ones. they all run",
            ["a dog vs. cats e.g. big ones. they all run"],
        ),
        (
            "So do she and I. They all run very fast.",
            ["So do she and I.", "They all run very fast."],
        ),
        # "image" within a sentence is part of it.
        ("On the wall the image shows a king.", ["On the wall the image shows a king."]),
        ("Too short here. Too short.", []),
        ("", []),
    ],
)
def test_sentences(caption: str, expected: list[str]) -> None:
    assert list(sentences(caption)) == expected


def test_only_sentences_of_4_to_34_words_are_kept() -> None:
    by_length = {n: " ".join(["Word", *["word"] * (n - 1)]) for n in (3, 4, 34, 35)}
    kept = sentences(". ".join(by_length.values()))
    assert [len(sentence.split()) for sentence in kept] == [4, 34]


DESCRIPTION = (
    "The image shows a red car on a road. Behind it stands an old barn. A cat sleeps in front."
)


def test_long_captions_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = open_source(
        table(tmp_path, ["a short one", DESCRIPTION, DESCRIPTION.replace("car", "bus"), ""])
    )
    cut = Composed().source(source)
    assert len(cut) == 2
    parts = ("A red bus on a road.", "Behind it stands an old barn.", "A cat sleeps in front.")
    assert cut[1].captions == parts
    assert cut[1].id == source[2].id
    assert list(cut.captions()) == [*cut[0].captions, *parts]
    assert cut.left_out[FEW_SENTENCES] == 1
    assert cut.left_out["sample without a caption"] == 1
    assert cut.describe().endswith(", cut into sentences")
    assert "long captions" in capsys.readouterr().err
    with pytest.raises(IndexError):
        cut[2]


def test_other_data_stay_as_they_are(tmp_path: Path) -> None:
    long = open_source(table(tmp_path, [DESCRIPTION]))
    assert Single().source(long) is long
    assert Composed(sentences="never").source(long) is long
    several = open_source(
        table(tmp_path, [[DESCRIPTION, DESCRIPTION], ["a cat", DESCRIPTION], DESCRIPTION])
    )
    assert Composed().source(several) is several
    half = open_source(table(tmp_path, [DESCRIPTION, "a cat on a mat"]))
    assert Composed().source(half) is half


def test_clic_trains_on_long_captions(world: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (world / "plain.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        row["caption"] = ". ".join(text.rstrip(".").capitalize() for text in row["caption"])
    rows[0]["caption"] = "Short."
    data = write_jsonl(tmp_path / "long.jsonl", rows)
    more = (f"--data={data}", f"--images={world}", "--max-steps=2")
    assert main(arguments(world, "clic", tmp_path / "run", *more)) == 0
    run = load_model(tmp_path / "run" / "model").provenance["run"]
    assert run["left_out"][FEW_SENTENCES] >= 1
    assert run["rewrites"]["clic-3"]["made"] > 0
