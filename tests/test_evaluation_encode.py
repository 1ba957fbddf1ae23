"""Encoding once, whatever the batch size, and resuming where a run was interrupted or killed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from compoclip.benchmarks.case import (
    Benchmark,
    Case,
    Cases,
    Classification,
    Form,
    ImageRef,
    Retrieval,
)
from compoclip.errors import CompoclipError
from compoclip.evaluation import encode, run
from compoclip.evaluation.encode import EncodeOptions, ahead, encode_contents
from compoclip.evaluation.results import Results, load_results
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import FakeEncoder, choice_benchmark, choices, photos
from ranks_helpers import SECONDS, warm_context


def test_each_distinct_image_and_token_sequence_is_encoded_once_over_all_benchmarks(tmp_path):
    refs = photos(tmp_path, ["a", "b"])
    boxed = ImageRef(refs["a"].path, (0, 0, 1, 1))
    cases = (
        Case("1", Form.CHOOSE_TEXT, (refs["a"],), ("A dog", "a cat"), "s"),
        Case("2", Form.CHOOSE_TEXT, (boxed,), ("a dog", "A CAT"), "s"),
    )
    retrieval = Retrieval((refs["b"], refs["a"]), ("a cat", "a cow"), ((0, 0), (1, 1)))
    classes = Classification((refs["b"],), (0,), ("dog",), (("a dog", "the dog"),))
    encoder = FakeEncoder()
    features = encode_contents(encoder, [Cases(cases), retrieval, classes])
    assert Counter(encoder.images_seen) == Counter(["a.jpg", "b.jpg", "a.jpg(0, 0, 1, 1)"])
    assert sorted(t.lower() for t in encoder.texts_seen) == ["a cat", "a cow", "a dog", "the dog"]
    assert features.text_rows["A dog"] == features.text_rows["a dog"]
    assert features.image_rows[refs["a"]] != features.image_rows[boxed]


@pytest.mark.parametrize("batch_size", [1, 3, 1000])
def test_batch_size_and_order_change_nothing(tmp_path, batch_size):
    content = choice_benchmark(tmp_path).content
    plain = encode_contents(FakeEncoder(), [content])
    other = encode_contents(
        FakeEncoder(), [Cases(reversed(content))], EncodeOptions(batch_size=batch_size, workers=3)
    )
    for ref, row in plain.image_rows.items():
        assert np.array_equal(plain.images[row], other.images[other.image_rows[ref]])
    for text, row in plain.text_rows.items():
        assert np.array_equal(plain.texts[row], other.texts[other.text_rows[text]])


def test_texts_go_in_order_of_length_and_truncated_ones_are_named(tmp_path):
    long = "one two three four five six"
    texts = ("one two three", long, "one", "one two", "four", "five six seven")
    encoder, content = FakeEncoder(), choices(photos(tmp_path, ["a"]).values(), texts)
    features = encode_contents(encoder, [content], EncodeOptions(2))
    lengths = [len(text.split()) for text in encoder.texts_seen]
    assert lengths == sorted(lengths)
    assert features.truncated == {long}


def test_damaged_images_stop_the_run_or_are_left_out(tmp_path):
    content = choice_benchmark(tmp_path, n=6).content
    encoder = FakeEncoder()
    encoder.broken = {"photo1_t1.jpg", "photo4_t4.jpg"}
    with pytest.raises(CompoclipError, match=r"photo1_t1\.jpg: damaged image.*--max-bad"):
        encode_contents(encoder, [content])
    with pytest.raises(CompoclipError, match=r"more than 1 damaged image; the next is .*photo4"):
        encode_contents(encoder, [content], EncodeOptions(max_bad=1))
    features = encode_contents(encoder, [content], EncodeOptions(max_bad=2, batch_size=4))
    assert {ref.path.name for ref in features.bad} == encoder.broken
    assert len(features.image_rows) == 4
    whole = encode_contents(FakeEncoder(), [content])
    for ref, row in features.image_rows.items():
        assert np.array_equal(features.images[row], whole.images[whole.image_rows[ref]])


def test_reading_ahead_that_is_given_up_does_not_wait_for_its_threads():
    begun, go = threading.Event(), threading.Event()
    late = threading.Timer(10, go.set)
    late.start()

    def read(waits):
        if waits:
            begun.set()
            go.wait()

    coming = ahead([False, True], read, workers=2, window=2)
    next(coming)
    begun.wait()
    coming.close()
    assert not go.is_set()
    late.cancel()
    go.set()


def test_features_that_are_not_finite_are_refused(tmp_path):
    content = choice_benchmark(tmp_path, n=2).content
    encoder = FakeEncoder()
    encoder.encode_texts = lambda texts: np.full((len(texts), 12), np.nan, dtype=np.float32)
    with pytest.raises(CompoclipError, match="not finite"):
        encode_contents(encoder, [content])


def cached(tmp_path) -> EncodeOptions:
    return EncodeOptions(batch_size=4, cache=tmp_path / "cache")


def test_the_cache_belongs_to_one_model_and_to_the_bytes_of_the_file(tmp_path):
    content = choice_benchmark(tmp_path / "photos", n=4).content
    one = FakeEncoder()
    encode_contents(one, [content], cached(tmp_path))
    other = FakeEncoder(weights="other")
    encode_contents(other, [content], cached(tmp_path))
    assert len(other.images_seen) == 4
    content[2].images[0].path.write_bytes(b"another photo")
    changed = FakeEncoder()
    encode_contents(changed, [content], cached(tmp_path))
    assert changed.images_seen == ["photo2_t2.jpg"]


@pytest.mark.parametrize("how", ["cut", "zeroed", "flipped"])
def test_a_damaged_cache_file_is_made_again(tmp_path, capsys, how):
    content = choice_benchmark(tmp_path / "photos", n=4).content
    first = encode_contents(FakeEncoder(), [content], cached(tmp_path))
    (path,) = (tmp_path / "cache").rglob("images/*.safetensors")
    data = bytearray(path.read_bytes())
    data[-8:] = {"cut": b"", "zeroed": bytes(8), "flipped": data[-8:-1] + b"\x77"}[how]
    path.write_bytes(data)
    encoder = FakeEncoder()
    again = encode_contents(encoder, [content], cached(tmp_path))
    assert len(encoder.images_seen) == 4
    assert np.array_equal(again.images, first.images)
    said = capsys.readouterr().err
    assert f"{path}: damaged" in said
    assert "made again" in said
    encode_contents(FakeEncoder(), [content], cached(tmp_path))
    assert capsys.readouterr().err == ""


def test_a_tower_that_two_models_share_is_encoded_once(tmp_path):
    content = choice_benchmark(tmp_path).content
    tuned = FakeEncoder("tuned")
    tuned.tower_weights = {"image": "w", "text": "tuned"}.__getitem__
    for encoder in (FakeEncoder("w"), tuned):
        encode_contents(encoder, [content], EncodeOptions(cache=tmp_path / "cache"))
    assert tuned.images_seen == []
    assert len(tuned.texts_seen) == 60


# --- Killed and run again. ---

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
