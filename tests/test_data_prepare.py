"""Captions are parsed once before training; workers look the parses up."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from compoclip.captions.parser import parse
from compoclip.captions.store import ParseStore
from compoclip.data.plan import prepare_captions
from compoclip.data.sources import Sample
from compoclip.data.sources.open import open_source
from data_samples import few, write_jsonl

TEXTS = ["A red cat sits.", "Two dogs run.", "A red cat sits."]


def table(folder: Path) -> Path:
    rows = [{"image": f"{i}.jpg", "caption": text} for i, text in enumerate(TEXTS)]
    return write_jsonl(folder / "t.jsonl", rows)


def test_every_distinct_caption_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "compoclip" / "parses.sqlite"  # by default
    source = open_source(str(table(tmp_path)))
    captions = prepare_captions(source, workers=1)
    store = ParseStore(path)
    assert len(store) == 2
    assert captions[TEXTS[0]] == parse(TEXTS[0])
    more = few([Sample(str(i), b"", (text,)) for i, text in enumerate((*TEXTS, "Four cups."))])
    prepare_captions(more, store, workers=1)
    assert len(store) == 3
    assert captions["An owl."] == parse("An owl.")  # is parsed when it is asked for
    monkeypatch.setattr("compoclip.captions.store._encoded", None)
    again = prepare_captions(source, ParseStore(path), workers=1)
    for handle in (again, pickle.loads(pickle.dumps(again))):  # noqa: S301 our own object
        assert handle[TEXTS[1]] == parse(TEXTS[1])


@pytest.mark.parametrize("extras", [{}, {"neg_caption": "no owl"}, {"neg_image": [0]}])
def test_what_every_source_answers_is_what_its_samples_say(
    extras: dict[str, object], tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [
        {"file_name": "a.png", "text": ["an owl", "a bird"], "group": "owl"},
        {"file_name": "b.png", "text": "a cat", **extras},
        {"file_name": "c.png", "text": "a dog"},
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(b"")
    source = open_source(str(tmp_path / "rows.jsonl"))
    bare = few([*source])
    assert list(bare.column("id")) == list(source.column("id"))
    assert list(bare.captions()) == list(source.captions())
    assert list(bare.column("captions")) == list(source.column("captions"))
    assert bare.brings() == source.brings() != frozenset()
    assert list(bare.column("group")) == list(source.column("group"))
    assert list(bare.column("image_score")) == list(source.column("image_score"))
    assert dict(bare.left_out) == {}
