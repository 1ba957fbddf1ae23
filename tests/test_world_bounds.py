"""What bounds a suite: the oracle, the text alone, the untrained model."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compoclip.benchmarks.case import ImageRef
from compoclip.errors import CompoclipError
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options
from compoclip.models.checkpoint import load_model
from compoclip.programs.run import Measuring
from compoclip_world.bounds import (
    BOUNDS,
    ORACLE,
    TEXT_ONLY,
    UNTRAINED,
    OracleEncoder,
    measure_bound,
)
from compoclip_world.export.part import SuiteSpec
from compoclip_world.export.suite import SCENES, read_scenes, write_suite
from compoclip_world.render import render
from compoclip_world.scene import WorldConfig

KINDS = ("star", "ball", "ring", "house", "tree", "box")
SPEC = SuiteSpec(WorldConfig(size=32, kinds=KINDS), items=4)
CAPTIONS = ("a red star left of a ball", "a blue ring", "a ball and a red star")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bounds") / "suite"
    write_suite(folder, SPEC, benchmarks=("aro", "hard_positives", "sugarcrepe", "zero_shot"))
    return folder


@pytest.fixture(scope="module")
def found(suite: Path) -> dict[str, dict[str, Results]]:
    measuring = Measuring(on=(str(suite),), device="cpu")
    benchmarks = measuring.benchmarks()
    options = Options(resamples=50)
    model = load_model("bundled")
    out = suite.parent / "results"
    return {
        name: {
            each.benchmark: each
            for each in measure_bound(name, suite, benchmarks, CAPTIONS, model, out, options)
        }
        for name in BOUNDS
    }


def test_a_suite_keeps_the_scenes_behind_its_pictures(suite: Path) -> None:
    scenes = read_scenes(suite)
    pictures = {path.relative_to(suite).as_posix() for path in suite.rglob("*.png")}
    assert scenes.keys() == pictures
    encoder = OracleEncoder(suite)
    for name in sorted(pictures)[:5]:
        assert encoder.read_image(ImageRef(suite / name)) == scenes[name]
    from PIL import Image

    name = min(pictures)
    assert np.array_equal(np.asarray(Image.open(suite / name)), render(scenes[name], 32))
    with pytest.raises(CompoclipError, match="no picture of"):
        encoder.read_image(ImageRef(suite / "nothing.png"))


def test_a_suite_without_good_scenes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=r"missing or damaged.*write the suite anew"):
        read_scenes(tmp_path)
    for content in (b"no gzip", b"\x1f\x8b\x08"):
        (tmp_path / SCENES).write_bytes(content)
        with pytest.raises(CompoclipError, match="missing or damaged"):
            read_scenes(tmp_path)


THING = ["star", "red", "small", "plain", 0.5, 0.5, 0.1, 0, 0]


@pytest.mark.parametrize(
    ("thing", "backdrop", "said"),
    [
        (["zebra", *THING[1:]], ["white", "plain"], "unknown kind"),
        ([*THING[:4], "x", *THING[5:]], ["white", "plain"], "x must be a number, found 'x'"),
        ([*THING[:4], 1e400, *THING[5:]], ["white", "plain"], "x must be a number, found inf"),
        ([*THING, 1], ["white", "plain"], "more than the 9 fields of a Thing"),
        (THING[:5], ["white", "plain"], "no field 'y'"),
        ("abcdefghi", ["white", "plain"], "x must be a number, found 'e'"),
        (THING, "ab", "unknown colour"),
        (THING, ["white", "zz", 0], "unknown texture"),
    ],
)
def test_scenes_are_in_the_words_of_the_world(
    thing: Any, backdrop: Any, said: str, tmp_path: Path
) -> None:
    rows = json.dumps({"a.png": [[thing], backdrop]})
    (tmp_path / SCENES).write_bytes(gzip.compress(rows.encode()))
    with pytest.raises(CompoclipError, match=f"{SCENES}: .*{said}.*; write the suite anew"):
        read_scenes(tmp_path)


def test_a_bomb_of_scenes_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compoclip_world.export.suite.MAX_MEMBER_BYTES", 100)
    for content, said in ((b" " * 101, "unpacks to more than 100 bytes"), (b"[" * 100, "")):
        (tmp_path / SCENES).write_bytes(gzip.compress(content))
        with pytest.raises(CompoclipError, match=f"missing or damaged .*{said}.*suite anew"):
            read_scenes(tmp_path)


def test_the_oracle_makes_no_fault(found: dict[str, dict[str, Results]]) -> None:
    results = found[ORACLE]
    assert {"world-aro", "world-sugarcrepe", "world-hard-positives"} <= results.keys()
    assert not any("zero-shot" in name for name in results)  # 100 by construction, see below
    for each in results.values():
        for part, metrics in each.scores.items():
            for metric, score in metrics.items():
                perfect = 0.0 if metric in ("brittleness", "both_below") else 1.0
                assert score.value == perfect, (each.benchmark, part, metric)


def test_the_text_alone_sees_no_picture(found: dict[str, dict[str, Results]]) -> None:
    kinds = found[TEXT_ONLY]["world-zero-shot-kinds"].scores["zero_shot"]["accuracy"]
    assert kinds.value <= 1 / 2  # the same class for every picture
    scores = found[TEXT_ONLY]["world-sugarcrepe"].scores
    assert scores["add_obj"]["accuracy"].value == 1.0  # a longer caption is the false one
    assert found[UNTRAINED].keys() == found[TEXT_ONLY].keys()
    identities = {name: each["world-aro"].identity for name, each in found.items()}
    assert identities[UNTRAINED]["weights"] != load_model("bundled").identity.weights
    assert len({str(each["weights"]) for each in identities.values()}) == len(BOUNDS)
