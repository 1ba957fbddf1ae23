"""Long captions cut into sentences, and the source that yields them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compoclip.captions.chunks import sentences
from compoclip.cli.main import main
from compoclip.data.images import Single
from compoclip.data.images.composed import FEW_SENTENCES, Composed
from compoclip.data.sources.open import open_source
from compoclip.models.checkpoint import load_model
from data_samples import write_jsonl
from method_data import arguments, write_world
from train_helpers import FEW


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


def table(folder: Path, captions: list[object]) -> str:
    rows = [{"image": f"{i}.png", "caption": c} for i, c in enumerate(captions)]
    return str(write_jsonl(folder / "t.jsonl", rows))


LONG = "The image shows a red car on a road. Behind it stands an old barn. A cat sleeps in front."


def test_long_captions_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = open_source(table(tmp_path, ["a short one", LONG, LONG.replace("car", "bus"), ""]))
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
    long = open_source(table(tmp_path, [LONG]))
    assert Single().source(long) is long
    assert Composed(sentences="never").source(long) is long
    several = open_source(table(tmp_path, [[LONG, LONG], ["a cat", LONG], LONG]))
    assert Composed().source(several) is several
    half = open_source(table(tmp_path, [LONG, "a cat on a mat"]))
    assert Composed().source(half) is half


def test_clic_trains_on_long_captions(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world", merges=FEW)
    rows = [json.loads(line) for line in (world / "plain.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        row["caption"] = ". ".join(text.rstrip(".").capitalize() for text in row["caption"])
    rows[0]["caption"] = "Short."
    write_jsonl(world / "plain.jsonl", rows)
    assert main(arguments(world, "clic", tmp_path / "run", "--epochs=1")) == 0
    run = load_model(tmp_path / "run" / "model").provenance["run"]
    assert run["left_out"][FEW_SENTENCES] >= 1
    assert run["rewrites"]["clic-3"]["made"] > 0
