"""Evaluations that are killed and run again, and what counts as the same image or the same run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from compoclip.benchmarks.case import Benchmark, ImageRef
from compoclip.evaluation import encode, run
from compoclip.evaluation.encode import EncodeOptions, encode_contents
from compoclip.evaluation.results import Results, load_results
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import FakeEncoder, choice_benchmark, choices
from ranks_helpers import SECONDS, warm_context

QUICK = Options(resamples=50)


def measured_and_killed(folder: Path, where: str) -> None:
    """An evaluation of two benchmarks that ends at one of its calls, as SIGKILL ends it."""
    encode.CHUNK = 8
    encoder = FakeEncoder()
    left = {"images": 6, "texts": 9, "save": 2}

    def dying(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            left[name] -= name == where
            if left[name] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given)

        return call

    encoder.encode_images = dying("images", encoder.encode_images)  # type: ignore[method-assign]
    encoder.encode_texts = dying("texts", encoder.encode_texts)  # type: ignore[method-assign]
    run.save_results = dying("save", run.save_results)
    options = Options(resamples=50, batch_size=4, cache=folder / "cache")
    evaluate("m", encoder, two_benchmarks(folder), folder / "out", options)


def two_benchmarks(folder: Path) -> list[Benchmark]:
    sizes = {"a": 40, "b": 20}
    return [choice_benchmark(folder / "photos", n, name=name) for name, n in sizes.items()]


def numbers(results: list[Results]) -> list[Results]:
    return [replace(each, seconds=0.0, items="") for each in results]


@pytest.mark.parametrize(
    ("where", "images_left", "texts_left"),
    [("images", 40 - 16, 80), ("texts", 0, 80 - 32), ("save", 0, 0)],
)
def test_a_killed_run_goes_on_where_it_stopped(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    where: str,
    images_left: int,
    texts_left: int,
) -> None:
    process = warm_context().Process(target=measured_and_killed, args=(tmp_path, where))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL
    benchmarks = two_benchmarks(tmp_path)
    encoder = FakeEncoder()
    again = evaluate(
        "m", encoder, benchmarks, tmp_path / "out", replace(QUICK, cache=tmp_path / "cache")
    )
    assert len(encoder.images_seen) == images_left
    assert len(encoder.texts_seen) == texts_left
    told = capsys.readouterr().err
    assert ("a: already measured" in told) == (where == "save")
    assert "b: already measured" not in told
    whole = evaluate("m", FakeEncoder(), benchmarks, tmp_path / "whole", QUICK)
    assert numbers(again) == numbers(whole)
    for one, two in zip(again, whole):
        assert pq.read_table(one.items).equals(pq.read_table(two.items))
    assert numbers(load_results(tmp_path / "out" / "m")) == numbers(whole)


def test_what_is_encoded_is_written_down_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "SAVE_SECONDS", 0.0)
    encoder = FakeEncoder()
    encoder.stop_after = 3
    options = replace(QUICK, batch_size=4, cache=tmp_path / "cache")
    data = choice_benchmark(tmp_path / "p", n=30)
    with pytest.raises(KeyboardInterrupt):
        evaluate("m", encoder, [data], tmp_path / "out", options)
    assert len(list((tmp_path / "cache").rglob("images/*.safetensors"))) == 3


def test_copies_of_a_photo_are_encoded_once_or_all_left_out(tmp_path: Path) -> None:
    refs = [ImageRef(tmp_path / name) for name in ("a.jpg", "copy.jpg", "b.jpg")]
    for ref, data in zip(refs, (b"one photo", b"one photo", b"another")):
        ref.path.write_bytes(data)
    every = [*refs, replace(refs[1], box=(0.0, 0.0, 1.0, 1.0)), replace(refs[1], squash=True)]
    encoder = FakeEncoder()
    features = encode_contents(encoder, [choices(every)])
    rows = features.image_index(every).tolist()
    assert rows[0] == rows[1]
    assert len(set(rows)) == len(features.images) == len(encoder.images_seen) == 4
    encoder.broken = {"a.jpg"}
    features = encode_contents(encoder, [choices(refs)], EncodeOptions(max_bad=2))
    assert set(features.bad) == {refs[0], refs[1]}
    assert np.any(features.images[features.image_index(refs[2:])])


def test_results_are_of_the_images_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = choice_benchmark(tmp_path / "p", n=4)
    (first,) = evaluate("m", FakeEncoder(), [data], tmp_path / "out", QUICK)
    photo = tmp_path / "p" / "photo2_t2.jpg"
    photo.write_bytes(b"photo2_x2")
    capsys.readouterr()
    (second,) = evaluate("m", FakeEncoder(), [data], tmp_path / "out", QUICK)
    assert "was made with other weights, data or draws, and is replaced" in capsys.readouterr().err
    assert first.images != second.images
