"""Half-truths of custom captions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses, write_json
from build.tables import write_jsonl, write_text
from compoclip.benchmarks.audit import audit
from compoclip.benchmarks.case import Form, present
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.solvability import rules_of_thumb
from compoclip.errors import UsageError
from evaluation_helpers import results_of

FILE = Path(__file__).parents[1] / "lab" / "own_captions.py"
HALF = f"{FILE}:half_truth_own"
CAPTIONS = {
    "1.jpg": ["A black dog sits under a wooden chair.", "A dog on a floor."],
    "2.jpg": ["Two women ride brown horses near a red barn."],
    "3.jpg": ["A boy holds a large umbrella in the rain."],
    "4.jpg": ["hello"],
}


def photo(*captions: Any, image: str = "1.jpg") -> dict[str, Any]:
    return {"image": image, "caption": captions}


def write_own(root: Path, rows: Any = None) -> Path:
    rows = (
        [photo(*texts, image=image) for image, texts in CAPTIONS.items()] if rows is None else rows
    )
    return write_json(root / "half_truth_own" / "captions.json", rows)


def test_half_truths_are_made_of_captions(tmp_path: Path) -> None:
    write_own(tmp_path)
    benchmark = load_benchmark(HALF, tmp_path)
    assert benchmark.content.counts() == {"entity": 3, "relation": 3}
    assert benchmark.left_out == {
        "photos without an item of kind entity": 1,
        "photos without an item of kind relation": 1,
    }
    for case in benchmark.content:
        assert case.form is Form.HALF_TRUTH
        short, full, half = case.texts
        assert len({short, full, half}) == 3
        assert full.startswith(short)
        if case.subtask == "entity":
            assert half.startswith(f"{short} and ")
        # No caption of its photo names what the half-truth puts in.
        captions = " ".join(CAPTIONS[case.images[0].path.name]).lower().replace(".", "")
        new = set(half.split()) - set(full.split())
        assert new.isdisjoint(captions.split())
        assert new or case.labels["foil"] == "swap"
    assert benchmark.content[0].images[0].path.parent == tmp_path / "half_truth_own" / "images"
    assert {"ht", "cor", "full"} <= set(benchmark.aggregates)
    assert benchmark.headline == "ht"
    assert all(rule.value == 1.0 and rule.longer > 1 for rule in rules_of_thumb(benchmark))
    assert not audit(benchmark).faulty


def test_half_truths_follow_from_the_seed_alone(tmp_path: Path) -> None:
    write_own(tmp_path)
    first, again = (load_benchmark(HALF, tmp_path) for _ in range(2))
    assert first == again
    assert load_benchmark(HALF, tmp_path, seed=1).data_hash != first.data_hash
    one = load_benchmark(f"{HALF}:relation", tmp_path, most=1)
    assert one.content.counts() == {"relation": 1}
    assert one.left_out["photos beyond the first 1 with an item of kind relation"] >= 2


def test_every_format_of_captions_gives_the_same_items(tmp_path: Path) -> None:
    write_own(tmp_path)
    images = tmp_path / "photos"
    benchmark = load_benchmark(HALF, tmp_path, images)
    texts = [(name, k, text) for name, of in CAPTIONS.items() for k, text in enumerate(of)]
    lines = write_jsonl(tmp_path / "own.jsonl", [{"image": i, "caption": t} for i, _, t in texts])
    tokens = "".join(f"{name}#{k}\t{text}\n" for name, k, text in texts)
    karpathy = [
        {"filename": name, "split": "test", "sentences": [{"raw": text} for text in of]}
        for name, of in CAPTIONS.items()
    ]
    for options in (
        {"annotations": lines},
        {"annotations": write_json(tmp_path / "karpathy.json", {"images": karpathy})},
        {
            "annotations": write_text(tmp_path / "tokens.txt", tokens),
            "split_file": write_text(tmp_path / "names.txt", "\n".join(CAPTIONS)),
        },
    ):
        assert load_benchmark(HALF, tmp_path, images, **options).content == benchmark.content


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": 1}, "no key 'images'"),
        ([], "no photos"),
        ([photo()], "photo '1.jpg' has no caption"),
        ([photo(3)], "caption 0 must be a text"),
        ([photo("A small dog near a red chair.", image="../1.jpg")], "leads outside"),
        ([photo("hello")], "no photo gives an item of entity, relation"),
    ],
)
def test_malformed_captions(tmp_path: Path, rows: Any, message: str) -> None:
    refuses(message, str(write_own(tmp_path, rows)), HALF, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"annotations": Path("x.csv")}, r"expected captions in \.json or \.jsonl"),
        ({"most": 0}, "most must be at least 1"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_own(tmp_path)
    with pytest.raises(UsageError, match=message):
        load_benchmark(HALF, tmp_path, **options)


def test_real_photos(shared_data: Path, tmp_path: Path) -> None:
    """Items of a part of Flickr8k's test, all of whose photos are there, scored."""
    folder = shared_data / "photos" / "flickr8k"
    names = (folder / "Flickr_8k.testImages.txt").read_text().split()[:30]
    split = write_text(tmp_path / "names.txt", "\n".join(names))
    options = {"annotations": folder / "Flickr8k.token.txt", "split_file": split}
    benchmark = load_benchmark(HALF, tmp_path, folder / "images", **options)
    assert min(benchmark.content.counts().values()) >= 25
    assert present(benchmark)[1] == ()
    assert len({case.id for case in benchmark.content}) == len(benchmark.content)
    assert not audit(benchmark, decoding=True).faulty
    result = results_of(benchmark, tmp_path / "out", allow_partial=False)
    assert not result.partial
    assert result.aggregates["ht"].n == sum(benchmark.content.counts().values())
