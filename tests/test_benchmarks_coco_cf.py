"""COCO-Counterfactuals: which pairs are taken, both members in the gallery, malformed rows."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses, write_photo
from compoclip.benchmarks.case import Benchmark, Retrieval, present
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import find_in
from data_samples import write_jsonl


def row(k: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": k,
        "image_0": f"{k}_0",
        "image_1": f"{k}_1",
        "caption_0": f"caption {k}",
        "caption_1": f"other {k}",
        **changes,
    }


def write(root: Path, rows: list[dict[str, Any]]) -> Path:
    path = root / "coco_counterfactuals" / "examples.jsonl"
    return write_jsonl(path, rows)


def content_of(found: Benchmark) -> Retrieval:
    assert isinstance(found.content, Retrieval)
    return found.content


def test_pairs_with_the_smallest_hashes_in_file_order(tmp_path: Path) -> None:
    write(tmp_path, [row(k) for k in range(30)])
    found = load_benchmark("retrieval:coco_cf", tmp_path, pairs=4)
    content = content_of(found)

    def digest(k: int) -> str:
        return hashlib.blake2b(str(k).encode(), digest_size=16).hexdigest()

    chosen = sorted(sorted(range(30), key=digest)[:4])
    assert content.texts == tuple(t for k in chosen for t in (f"caption {k}", f"other {k}"))
    assert [ref.path.name for ref in content.images[:2]] == [f"{chosen[0]}_{j}.jpg" for j in (0, 1)]
    assert content.pairs == tuple((k, k) for k in range(8))
    assert found.name == "retrieval_coco_cf"
    assert found.expected == {"i2t": 8, "t2i": 8}
    assert found.left_out == {"pairs beyond the 4 with the smallest hashes of their ids": 26}
    every = load_benchmark("retrieval:coco_cf", tmp_path, pairs=None)
    assert len(content_of(every).images) == 60
    assert (every.expected["i2t"], every.left_out) == (2 * 17410, {})
    assert every.data_hash != found.data_hash
    assert load_benchmark("retrieval:coco_cf", tmp_path).expected["t2i"] == 2 * 5223
    again = write(tmp_path, [row(k) for k in reversed(range(30))])
    other = content_of(load_benchmark("retrieval:coco_cf", tmp_path, pairs=4))
    assert set(other.texts) == set(content.texts)
    assert again.is_file()


def test_names_without_a_suffix_find_their_photo(tmp_path: Path) -> None:
    write(tmp_path, [row(1), row(2, image_1="b.JPEG")])
    folder = tmp_path / "coco_counterfactuals" / "images"
    write_photo(folder / "1_0.png")
    found = load_benchmark("retrieval:coco_cf", tmp_path)
    names = [ref.path.name for ref in content_of(found).images]
    assert names == ["1_0.png", "1_1.jpg", "2_0.jpg", "b.JPEG"]
    used, missing = present(found)
    assert isinstance(used, Retrieval)
    assert used.texts == ("caption 1",)
    assert len(missing) == 3


def test_found_in_a_data_root_under_its_own_folder(tmp_path: Path) -> None:
    write(tmp_path, [row(1)])
    assert [target.spec for target in find_in(tmp_path)] == ["retrieval:coco_cf"]
    about = meta("retrieval")
    files = about.of_set("coco_cf", about.files)
    assert files == ("coco_counterfactuals/examples.jsonl",)
    assert about.of_set("coco", about.files) == ("coco/coco_karpathy_test.json",)
    several = meta("zero_shot")
    assert several.of_set("dtd", several.images) == ("elevater/dtd",)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no pairs"),
        ([row(1), row(1, image_0="x", image_1="y")], "line 2: 'id': 1 occurs twice"),
        ([row(1, image_1="1_0")], "line 1: image '1_0' is listed twice"),
    ],
)
def test_malformed_pairs(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    write(tmp_path, rows)
    refuses(message, "examples.jsonl", "retrieval:coco_cf", tmp_path)
