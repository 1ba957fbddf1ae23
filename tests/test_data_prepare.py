"""Captions are parsed once before training; workers look the parses up."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from compoclip.captions.parser import parse
from compoclip.captions.store import ParseStore
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan, prepare_captions
from compoclip.data.sources import Sample
from compoclip.data.sources.published import open_flickr8k
from compoclip.data.sources.tables import open_table
from compoclip.data.transform import ImageTransform
from compoclip.models.preprocess import Preprocess
from data_samples import Few

TEXTS = ["A red cat sits.", "Two dogs run.", "A red cat sits."]


def table(folder: Path) -> Path:
    rows = [{"image": f"{i}.jpg", "caption": text} for i, text in enumerate(TEXTS)]
    path = folder / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_every_distinct_caption_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ParseStore(tmp_path / "parses.sqlite")
    source = open_table([table(tmp_path)])
    captions = prepare_captions(source, store, workers=1)
    assert len(store) == 2
    assert captions[TEXTS[0]] == parse(TEXTS[0])
    monkeypatch.setattr("compoclip.captions.store.parse_many", None)
    again = prepare_captions(source, ParseStore(tmp_path / "parses.sqlite"), workers=1)
    for handle in (again, pickle.loads(pickle.dumps(again))):  # noqa: S301 our own object
        assert handle[TEXTS[1]] == parse(TEXTS[1])


def test_a_caption_that_is_not_stored_is_parsed_when_asked_for(tmp_path: Path) -> None:
    store = ParseStore(tmp_path / "parses.sqlite")
    captions = prepare_captions(open_table([table(tmp_path)]), store, workers=1)
    assert captions["An owl."] == parse("An owl.")


def test_a_source_that_only_has_samples(tmp_path: Path) -> None:
    store = ParseStore(tmp_path / "parses.sqlite")
    few = Few([Sample(str(i), b"", (text,)) for i, text in enumerate(TEXTS)])
    prepare_captions(few, store, workers=1)
    assert len(store) == 2


@pytest.mark.parametrize("extras", [{}, {"neg_caption": "no owl"}, {"neg_image": [0]}])
def test_what_every_source_answers_is_what_its_samples_say(
    extras: dict[str, object], tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [
        {"file_name": "a.png", "text": ["an owl", "a bird"], "group": "owl"},
        {"file_name": "b.png", "text": "a cat", **extras},
        {"file_name": "c.png", "text": "a dog"},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(lines)
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(b"")
    source = open_table([tmp_path / "rows.jsonl"])
    bare = Few([*source])
    assert list(bare.column("id")) == list(source.column("id"))
    assert list(bare.captions()) == list(source.captions())
    assert list(bare.column("captions")) == list(source.column("captions"))
    assert bare.brings() == source.brings() != frozenset()
    assert list(bare.column("group")) == list(source.column("group"))
    assert list(bare.column("image_score")) == list(source.column("image_score"))
    assert dict(bare.left_out) == {}


def test_the_default_store_lies_in_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prepare_captions(open_table([table(tmp_path)]), workers=1)
    assert (tmp_path / "cache" / "compoclip" / "parses.sqlite").is_file()


def test_real_photos_with_real_rewrites_whatever_the_workers(
    shared_data: Path, tmp_path: Path
) -> None:
    names = ("negclip", "replace", "bigram-shuffle")
    source = open_flickr8k(shared_data / "photos/flickr8k/Flickr8k.token.txt", split="test")
    few = tmp_path / "few.txt"
    few.write_text("\n".join(source[i].id for i in range(24)))
    source = open_flickr8k(shared_data / "photos/flickr8k/Flickr8k.token.txt", split=str(few))
    parsed = prepare_captions(source, ParseStore(tmp_path / "parses.sqlite"), workers=1)
    epochs = []
    for workers in (0, 2):
        loader = BatchLoader(
            source,
            TextPlan(names, parsed=parsed),
            ImageTransform(Preprocess(size=(32, 32))),
            batch_size=8,
            workers=workers,
        )
        epochs.append([(b.ids, b.block) for b in loader.epoch(0)])
        assert loader.counts.samples == 24
        assert all(loader.counts.coverage(name) > 0.5 for name in names)
        loader.close()
    assert epochs[0] == epochs[1]
