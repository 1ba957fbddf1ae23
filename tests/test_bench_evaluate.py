"""`python -m bench evaluate`: encodings counted against a plain loop over the items."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.evaluate import economies, encoding_seconds
from compoclip.benchmarks.case import Benchmark, Case, Classification, Form, Retrieval
from compoclip.evaluation.encode import EncodeOptions
from evaluation_helpers import FakeEncoder, photos


def test_counts_are_those_of_a_loop(tmp_path: Path) -> None:
    refs = photos(tmp_path, ["a", "b", "c"])
    (tmp_path / "c.jpg").write_bytes((tmp_path / "a.jpg").read_bytes())  # a copy
    cases = (
        Case("1", Form.CHOOSE_TEXT, (refs["a"],), ("x", "X"), "s"),
        Case("2", Form.CHOOSE_TEXT, (refs["a"],), ("x", "y"), "s"),
        Case("3", Form.GROUP, (refs["b"], refs["c"]), ("y", "z"), "s"),
    )
    pairs = Retrieval((refs["a"], refs["b"]), ("x", "w"), ((0, 0), (1, 1)))
    classes = Classification((refs["b"],), (0,), ("k", "l"), (("w", "v"), ("u", "x")))
    made = [
        Benchmark(name, content, "d")
        for name, content in (("cases", cases), ("pairs", pairs), ("classes", classes))
    ]
    (one, two, three), together = economies(made, FakeEncoder().text_keys)
    assert (one.items, one.naive_images, one.naive_texts) == (3, 4, 6)
    assert (one.once_images, one.once_texts) == (2, 3)
    assert one.ratio == 10 / 5
    assert one.text_ratio == 2
    assert (two.naive_images, two.naive_texts, two.once_images, two.once_texts) == (2, 2, 2, 2)
    assert (three.items, three.naive_texts, three.once_texts) == (1, 4, 4)
    assert (together.naive_images, together.naive_texts) == (7, 12)
    assert (together.once_images, together.once_texts) == (2, 6)


@pytest.mark.slow
def test_real_captions_need_no_photos(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = shared_data / "annotations"
    asked = [f"{name},annotations={place / name}" for name in ("sugarcrepe", "sugarcrepe_pp")]
    assert main(["evaluate", "--on", *asked, "--json"]) == 0
    one, two, together = json.loads(capsys.readouterr().out)
    assert (one["items"], one["naive_texts"], one["once_images"]) == (7511, 15022, 1560)
    assert (two["items"], two["naive_texts"]) == (4757, 14271)
    assert together["once_images"] == 1560
    assert together["once_texts"] < one["once_texts"] + two["once_texts"]
    assert together["ratio"] > max(one["ratio"], two["ratio"])


def test_the_verb_prints_a_table_and_refuses_nonsense(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = shared_data / "annotations" / "sugarcrepe"
    assert main(["evaluate", "--on", f"sugarcrepe:swap_obj,annotations={place}"]) == 0
    assert "all together" in capsys.readouterr().out
    assert main(["evaluate", "--on", "sugarcrepe", "--workers", "0"]) == 2
    assert main(["evaluate", "--on", "no-such-thing"]) == 2


def test_encoding_seconds_encode_each_once_or_every_items(tmp_path: Path) -> None:
    refs = photos(tmp_path, ["a", "b"])
    cases = tuple(Case(str(i), Form.CHOOSE_TEXT, (refs["a"],), ("x", "y"), "s") for i in range(5))
    encoder = FakeEncoder()
    naive, once = encoding_seconds(encoder, [Benchmark("c", cases, "d")], EncodeOptions())
    assert naive > 0 < once
    assert len(encoder.images_seen) == 5 + 1
    assert len(encoder.texts_seen) == 10 + 2
