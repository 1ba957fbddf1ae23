"""Half-truths of own captions: by hand, malformed, the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import expect_one_line, write_json
from compoclip.benchmarks.audit import audit
from compoclip.benchmarks.case import Form, present
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.solvability import rules_of_thumb
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import FakeEncoder

FILE = Path(__file__).parents[1] / "lab" / "own_captions.py"
HALF = f"{FILE}:half_truth_own"
CAPTIONS = [
    {"image": "1.jpg", "caption": ["A black dog sits under a wooden chair.", "A dog on a floor."]},
    {"image": "2.jpg", "caption": ["Two women ride brown horses near a red barn."]},
    {"image": "3.jpg", "caption": ["A boy holds a large umbrella in the rain."]},
    {"image": "4.jpg", "caption": ["hello"]},
]


def write_own(root: Path, rows: Any = CAPTIONS) -> Path:
    return write_json(root / "half_truth_own" / "captions.json", rows)


def test_half_truths_are_made_of_captions(tmp_path: Path) -> None:
    write_own(tmp_path)
    found = load_benchmark(HALF, tmp_path)
    assert found.content.counts() == {"entity": 3, "relation": 3}
    assert found.left_out == {
        "photos without an item of kind entity": 1,
        "photos without an item of kind relation": 1,
    }
    for case in found.content:
        assert case.form is Form.HALF_TRUTH
        short, full, half = case.texts
        assert len({short, full, half}) == 3
        assert full.startswith(short)
        if case.subtask == "entity":
            assert half.startswith(f"{short} and ")
        # what the half-truth puts in, no caption of its photo names
        (captions,) = (
            each["caption"] for each in CAPTIONS if each["image"] == case.images[0].path.name
        )
        told = set(" ".join(captions).lower().replace(".", "").split())
        new = set(half.split()) - set(full.split())
        assert not new & told
        assert new or case.labels["foil"] == "swap"
    assert found.content[0].images[0].path.parent == tmp_path / "half_truth_own" / "images"
    assert {"ht", "cor", "full"} <= set(found.aggregates)
    assert found.headline == "ht"
    assert all(rule.value == 1.0 and rule.longer > 1 for rule in rules_of_thumb(found))
    assert not audit(found).faulty


def test_the_half_truths_follow_from_the_seed_alone(tmp_path: Path) -> None:
    write_own(tmp_path)
    first, again = (load_benchmark(HALF, tmp_path) for _ in range(2))
    assert first == again
    other = load_benchmark(HALF, tmp_path, seed=1)
    assert other.data_hash != first.data_hash
    one = load_benchmark(f"{HALF}:relation", tmp_path, most=1)
    assert one.content.counts() == {"relation": 1}
    assert one.left_out["photos beyond the first 1 with an item of kind relation"] >= 2


def test_the_same_items_on_every_call_and_from_every_format(tmp_path: Path) -> None:
    rows = json.loads(write_own(tmp_path).read_text())
    images = tmp_path / "photos"
    known, again = (load_benchmark(HALF, tmp_path, images) for _ in range(2))
    assert known == again
    lines = tmp_path / "own.jsonl"
    split = [{**row, "caption": text} for row in rows for text in row["caption"]]
    lines.write_text("".join(f"{json.dumps(each)}\n" for each in split))
    tokens, names = tmp_path / "tokens.txt", tmp_path / "names.txt"
    tokens.write_text(
        "".join(
            f"{row['image']}#{k}\t{text}\n" for row in rows for k, text in enumerate(row["caption"])
        )
    )
    names.write_text("".join(f"{row['image']}\n" for row in rows))
    karpathy = [
        {
            "filename": row["image"],
            "split": "test",
            "sentences": [{"raw": c} for c in row["caption"]],
        }
        for row in rows
    ]
    path = write_json(tmp_path / "karpathy.json", {"images": karpathy})
    for options in (
        {"annotations": lines},
        {"annotations": path},
        {"annotations": tokens, "split_file": names},
    ):
        assert load_benchmark(HALF, tmp_path, images, **options).content == known.content


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": 1}, "no key 'images'"),
        ([], "no photos"),
        ([{"image": "1.jpg", "caption": []}], "photo '1.jpg' has no caption"),
        ([{"image": "1.jpg", "caption": [3]}], "caption 0 must be a text"),
        ([{"image": "../1.jpg", "caption": ["A small dog near a red chair."]}], "leads outside"),
        ([{"image": "1.jpg", "caption": ["hello"]}], "no photo gives an item of entity, relation"),
    ],
)
def test_malformed_captions(tmp_path: Path, rows: Any, message: str) -> None:
    path = write_own(tmp_path, rows)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_benchmark(HALF, tmp_path)
    expect_one_line(caught.value, str(path))
    with pytest.raises(UsageError, match=r"expected captions in \.json or \.jsonl"):
        load_benchmark(HALF, tmp_path, annotations=tmp_path / "x.csv")
    with pytest.raises(UsageError, match="most must be at least 1"):
        load_benchmark(HALF, tmp_path, most=0)


def test_real_photos(shared_data: Path, tmp_path: Path) -> None:
    """Items of a part of Flickr8k's test, all of whose photos are there, scored."""
    folder = shared_data / "photos" / "flickr8k"
    names = (folder / "Flickr_8k.testImages.txt").read_text().split()[:30]
    split = tmp_path / "names.txt"
    split.write_text("\n".join(names))
    options = {"annotations": folder / "Flickr8k.token.txt", "split_file": split}
    half = load_benchmark(HALF, tmp_path, folder / "images", **options)
    assert min(half.content.counts().values()) >= 25
    assert present(half)[1] == ()
    assert len({case.id for case in half.content}) == len(half.content)
    assert not audit(half, decoding=True).faulty
    (result,) = evaluate("m", FakeEncoder(), [half], tmp_path / "out", Options(resamples=20))
    assert not result.partial
    assert result.aggregates["ht"].n == sum(half.content.counts().values())
