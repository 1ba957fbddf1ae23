"""Evaluation shared by several processes gives what one process gives, each input encoded once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compoclip.benchmarks.case import Benchmark, Content
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.evaluation.encode import EncodeOptions, encode_contents
from compoclip.evaluation.results import load_items, load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.ranks import SINGLE, Ranks
from evaluation_helpers import FakeEncoder, choice_benchmark
from ranks_helpers import commanded, in_ranks


def encoding(
    ranks: Ranks, content: Content, cache: Path, broken: tuple[str, ...] = (), max_bad: int = 0
) -> dict[str, Any]:
    encoder = FakeEncoder()
    encoder.broken |= set(broken)
    options = EncodeOptions(4, 1, max_bad, cache, ranks)
    try:
        features = encode_contents(encoder, [content], options)
    except CompoclipError as error:
        return {"error": str(error)}
    return {
        "images": features.images.tolist(),
        "texts": features.texts.tolist(),
        "rows": {ref.path.name: row for ref, row in features.image_rows.items()},
        "bad": sorted(ref.path.name for ref in features.bad),
        "seen": [*encoder.images_seen, *(text.lower() for text in encoder.texts_seen)],
    }


Run = tuple[Path, tuple[str, ...], int]
"""Cache, broken photos, and how many of them are borne."""


def encodings(ranks: Ranks, content: Content, *runs: Run) -> list[dict[str, Any]]:
    """`encoding` of several runs, one after the other."""
    return [encoding(ranks, content, *run) for run in runs]


def test_everything_is_encoded_once_and_reaches_the_first(tmp_path: Path) -> None:
    content = choice_benchmark(tmp_path / "photos").content
    plain = encode_contents(FakeEncoder(), [content], EncodeOptions(4, 1))
    run = (tmp_path / "cache", (), 0)
    once, again = zip(*in_ranks(4, encodings, content, run, run))
    first, *others = once
    assert np.array_equal(np.float32(first["images"]), plain.images)
    assert np.array_equal(np.float32(first["texts"]), plain.texts)
    assert all(rank["rows"] == first["rows"] for rank in others)
    seen = Counter(name for rank in once for name in rank["seen"])
    assert set(seen.values()) == {1}
    assert len(seen) == len(plain.images) + len(plain.texts)
    sizes = [len(rank["seen"]) for rank in once]
    assert max(sizes) - min(sizes) <= 2 * 4
    assert [rank["seen"] for rank in again] == [[]] * 4  # all of it is in the cache
    assert again[0]["images"] == first["images"]


def test_damaged_images_are_counted_over_all_processes(tmp_path: Path) -> None:
    content = choice_benchmark(tmp_path / "photos").content
    names = tuple(f"photo{k}_t{k}.jpg" for k in (1, 5))  # one in the batch of each of two processes
    runs = [(tmp_path / "two", names, 2), (tmp_path / "one", names, 1)]
    runs.append((tmp_path / "none", names[:1], 0))
    two, one, none = zip(*in_ranks(2, encodings, content, *runs))
    assert [rank["bad"] for rank in two] == [sorted(names)] * 2
    assert two[0]["rows"].keys().isdisjoint(names)
    assert all("more than 1 damaged images" in rank["error"] for rank in one)
    assert none[0] == none[1]
    assert names[0] in none[0]["error"]


def measuring(ranks: Ranks, benchmarks: list[Benchmark], folder: Path) -> list[Any]:
    options = Options(batch_size=4, resamples=50, ranks=ranks, cache=folder / f"cache{ranks.world}")
    out = folder / f"out{ranks.world}"
    results = evaluate("m", FakeEncoder(quality=0.5), benchmarks, out, options)
    again = evaluate("m", FakeEncoder(quality=0.5), benchmarks, out, options)
    assert again == results
    return [{**each.__dict__, "seconds": 0, "items": ""} for each in results]


def test_results_are_those_of_one_process(tmp_path: Path) -> None:
    benchmarks = [choice_benchmark(tmp_path / name, name=name) for name in ("one", "two")]
    alone = measuring(SINGLE, benchmarks, tmp_path)
    first, *others = in_ranks(4, measuring, benchmarks, tmp_path)
    assert first == alone
    assert others == [[]] * 3


def test_the_command_in_two_processes(tmp_path: Path) -> None:
    """Two processes print and write what one does; real features agree to rounding."""
    suite = tmp_path / "suite"
    forms = ["--benchmarks", "sugarcrepe", "retrieval", "zero_shot"]
    assert main(["world", "suite", f"--out={suite}", "--items-per-task=6", *forms]) == 0
    arguments = ["evaluate", "bundled", "--on", str(suite), "--resamples", "100"]
    assert main([*arguments, "--out", str(tmp_path / "one")]) == 0
    first, second = commanded(2, [*arguments, "--out", str(tmp_path / "two")])
    assert (first[0], second[0]) == (0, 0), first
    one, two = (load_results(tmp_path / each / "bundled") for each in ("one", "two"))
    assert [each.benchmark for each in one] == [each.benchmark for each in two]
    for alone, shared in zip(one, two):
        assert shared.scores == alone.scores
        rows, others = (load_items(each).to_pylist() for each in (alone, shared))
        for row, other in zip(rows, others):
            assert other["scores"] == pytest.approx(row["scores"], abs=1e-6)
    printed = first[1] + second[1]
    _, saturated, _ = re.split(
        r"at least 99.5 for every model:|mean grounded gain:", printed, maxsplit=2
    )
    names = [each.benchmark.removeprefix("world-") for each in one]  # the header has the prefix
    assert all(f"world-{name}" in saturated or f"\n{name} " in printed for name in names)
    assert printed.count("bundled: compositionality") == 1  # rank 0 alone prints


def test_an_error_is_said_once(tmp_path: Path) -> None:
    first, second = commanded(2, ["evaluate", "bundled", "--on", str(tmp_path / "nothing")])
    assert first[0] == second[0] != 0
    assert first[2].startswith("compoclip evaluate: ")
    assert second[2] == ""
