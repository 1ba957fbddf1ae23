"""Suites by name, and the means over them that publications quote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from compoclip.benchmarks.case import Benchmark, Classification, ImageRef, Retrieval
from compoclip.benchmarks.parts import classification_rules
from compoclip.benchmarks.suites import SUITES
from compoclip.errors import UsageError
from compoclip.evaluation.overall import overall_groups, overall_scores, overall_text
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.targets import parse_targets
from compoclip.report.pictures import Album
from evaluation_helpers import FakeEncoder


def test_a_suite_is_a_list_of_targets() -> None:
    found = parse_targets(["elevater,root=/data", "sugarcrepe"], Path("here"))
    assert [each.spec for each in found] == [*SUITES["elevater"], "sugarcrepe"]
    assert {each.root for each in found[:-1]} == {Path("/data")}
    assert len(parse_targets(["comp"], Path())) == 11
    assert [t.spec for t in parse_targets(["retrieval_3,pre_caption_words=30"], Path())] == [
        "retrieval:coco",
        "retrieval:flickr30k",
        "retrieval:coco_cf",
    ]
    for text in ("elevater,id=x", "elevater,images=/x"):
        with pytest.raises(UsageError, match="neither images= nor id="):
            parse_targets([text], Path())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    """A tiny set under the name of each of the 21 and of the three retrieval sets."""
    root = tmp_path_factory.mktemp("sets")
    refs = []
    for k in range(6):
        refs.append(ImageRef(root / f"{k}_{'cat' if k % 2 else 'dog'}.png"))
        refs[-1].path.write_bytes(bytes([k]))
    zero = Classification(
        tuple(refs), tuple(k % 2 for k in range(6)), ("dog", "cat"), (("a_dog",), ("a_cat",))
    )
    benchmarks = []
    for number, spec in enumerate(SUITES["elevater"]):
        labels = tuple((k + (k < number % 3)) % 2 for k in range(6))
        content = replace(zero, labels=labels)
        rules = classification_rules(content)
        benchmarks.append(
            Benchmark(spec.replace(":", "_"), content, "d", aggregates=rules, headline="accuracy")
        )
    texts = tuple(f"{k} {'cat' if k % 2 else 'dog'}" for k in range(6))
    pairs = tuple((k, k) for k in range(6))
    benchmarks += [
        Benchmark(spec.replace(":", "_"), Retrieval(tuple(refs), texts, pairs), "d")
        for spec in SUITES["retrieval_3"]
    ]
    return evaluate("m", FakeEncoder(quality=2.0), benchmarks, root / "out", Options(resamples=50))


def test_means_over_complete_suites_only(results: list[Results]) -> None:
    found = overall_scores(results, resamples=50)
    assert set(found) == {"ZS (21)", "ZS (20)", "I2T Ret", "T2I Ret"}
    zero = {
        each.benchmark: each.aggregates["accuracy"].value
        for each in results
        if each.benchmark.startswith("zero_shot")
    }
    assert found["ZS (21)"].value == pytest.approx(sum(zero.values()) / 21)
    without = [value for name, value in zero.items() if name != "zero_shot_imagenet-1k"]
    assert found["ZS (20)"].value == pytest.approx(sum(without) / 20)
    assert found["ZS (21)"].n == 21 * 6
    ranks = [each.scores["i2t"]["r1"].value for each in results if "i2t" in each.scores]
    assert found["I2T Ret"].value == pytest.approx(sum(ranks) / 3)
    text = overall_text("m", found)
    assert "ZS (21)" in text
    assert text.startswith("m over whole suites")
    some = [each for each in results if each.benchmark != "zero_shot_mnist"]
    assert set(overall_groups(some)) == {"I2T Ret", "T2I Ret"}
    assert overall_scores(results[:3]) == {}
    assert overall_text("m", {}) == ""


def test_pictures_inside_archives_can_be_shown(tmp_path: Path) -> None:
    import zipfile

    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.write(tmp_path / "a.png", "in/a b.png")
    album = Album()
    shown = album.add(f"{tmp_path / 'photos.zip'}@in/a b.png")
    cropped = album.add(f"{tmp_path / 'photos.zip'}@in/a b.png#0,0,4,4")
    assert shown.uri.startswith("data:image/")
    assert cropped.uri.startswith("data:image/")
    assert album.add(f"{tmp_path / 'photos.zip'}@gone.png").uri == ""
    assert album.unreadable == 1
