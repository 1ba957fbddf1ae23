"""Evaluation shared by several processes gives what one process gives, each input encoded once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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


def damaged(ranks: Ranks, content: Content, *runs: tuple[tuple[str, ...], int]) -> list[Any]:
    """For broken photos and how many of them are borne: what is bad or left, or the error."""
    answers: list[Any] = []
    for broken, max_bad in runs:
        encoder = FakeEncoder()
        encoder.broken |= {*broken}
        try:
            features = encode_contents(
                encoder, [content], EncodeOptions(4, 1, max_bad, None, ranks)
            )
        except CompoclipError as error:
            answers.append(str(error))
        else:
            names = [
                {ref.path.name for ref in refs} for refs in (features.bad, features.image_rows)
            ]
            answers.append(names)
    return answers


"""Cache, broken photos, and how many of them are borne."""


def test_damaged_images_are_counted_over_all_processes(tmp_path: Path) -> None:
    content = choice_benchmark(tmp_path / "photos").content
    names = tuple(f"photo{k}_t{k}.jpg" for k in (1, 5))  # one in the batch of each of two processes
    runs = ((names, 2), (names, 1), (names[:1], 0))
    two, one, none = zip(*in_ranks(2, damaged, content, *runs))
    for bad, left in two:
        assert bad == {*names}
        assert left.isdisjoint(names)
    assert all("more than 1 damaged image;" in error for error in one)
    assert none[0] == none[1]
    assert names[0] in none[0]


def measuring(ranks: Ranks, benchmarks: list[Benchmark], folder: Path) -> tuple[list[Any], Any]:
    """The results of a run, which a second one reuses, and what the first one encoded."""
    options = Options(batch_size=4, resamples=50, ranks=ranks, cache=folder / f"cache{ranks.world}")
    out, encoder = folder / f"out{ranks.world}", FakeEncoder(quality=0.5)
    results = evaluate("m", encoder, benchmarks, out, options)
    again = FakeEncoder(quality=0.5)
    assert evaluate("m", again, benchmarks, out, options) == results
    evaluate("m", again, benchmarks, folder / f"fresh{ranks.world}", options)
    assert (again.images_seen, again.texts_seen) == ([], [])  # all of it is in the cache
    plain = [{**each.__dict__, "seconds": 0, "items": ""} for each in results]
    return plain, [*encoder.images_seen, *(text.lower() for text in encoder.texts_seen)]


def test_results_are_those_of_one_process_and_everything_is_encoded_once(tmp_path: Path) -> None:
    benchmarks = [choice_benchmark(tmp_path / name, name=name) for name in ("one", "two")]
    alone, names = measuring(SINGLE, benchmarks, tmp_path)
    (first, *others), encoded = zip(*in_ranks(4, measuring, benchmarks, tmp_path))
    assert first == alone
    assert others == [[]] * 3
    assert sorted(name for rank in encoded for name in rank) == sorted(names)
    sizes = [len(rank) for rank in encoded]
    assert max(sizes) - min(sizes) <= 2 * 4


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
