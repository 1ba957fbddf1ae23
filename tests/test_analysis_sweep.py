"""Sweeps over shares of tuned weights, the rule that picks one, and swapped towers."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark_files import red_cubes, write_mini
from compoclip.analysis.interpolation import (
    BASE,
    SWAPPED,
    TUNED,
    BaseAndTuned,
    Mix,
    Point,
    Rule,
    Sweep,
    choose,
    shares,
    study_towers,
    sweep,
)
from compoclip.benchmarks.targets import parse_targets
from compoclip.cli.main import main
from compoclip.errors import UsageError
from compoclip.evaluation import encoder
from compoclip.evaluation.groups import COMPOSITION, RECOGNITION, RETRIEVAL
from compoclip.evaluation.numerals import with_interval
from compoclip.evaluation.results import Score, load_results
from compoclip.evaluation.run import Options
from compoclip.models.checkpoint import (
    LoadedModel,
    create_model,
    current_identity,
    load_model,
    save_model,
)
from compoclip.models.config import ModelConfig
from evaluation_helpers import TINY

CONFIG = {**TINY, "text_cfg": {**TINY["text_cfg"], "layers": 2}}
ON = ("sugarcrepe", "zero_shot:shapes")


@pytest.fixture(scope="module")
def base() -> LoadedModel:
    return create_model(ModelConfig(CONFIG), seed=3)


@pytest.fixture(scope="module")
def tuned(base: LoadedModel) -> LoadedModel:
    """Another draw of all weights, said to be trained from the base."""
    made = create_model(ModelConfig(CONFIG), seed=4)
    return replace(made, identity=replace(current_identity(made), base=base.identity.weights))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SugarCrepe in miniature over 6 photos, and 2 classes of 3 photos."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(1)
    for name in ("cube/a", "cube/b", "cube/c", "ball/a", "ball/b", "ball/c"):
        place = root / f"elevater/shapes/{name}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, size=(40, 48, 3), dtype=np.uint8)).save(place)
    return write_mini(root, 6, **red_cubes(6))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many images and texts were encoded."""
    counts: Counter[str] = Counter()
    for kind in ("images", "texts"):
        name = f"start_{kind}"
        plain = getattr(encoder.ModelEncoder, name)

        def counted(self, batch, plain=plain, kind=kind):  # type: ignore[no-untyped-def]
            counts[kind] += len(batch)
            return plain(self, batch)

        monkeypatch.setattr(encoder.ModelEncoder, name, counted)
    return counts


CPU = torch.device("cpu")


def measure(base: LoadedModel, tuned: LoadedModel, data: Path, out: Path) -> Sweep:
    benchmarks = [target.load() for target in parse_targets(ON, data)]
    options = Options(cache=out / ".features", resamples=50)
    return sweep(
        BaseAndTuned(base, tuned),
        ("all", "image", "text"),
        shares(2),
        benchmarks,
        out / "r",
        options,
        CPU,
    )


def test_a_sweep_encodes_each_tower_once_and_goes_on_where_it_stopped(
    base: LoadedModel, tuned: LoadedModel, data: Path, tmp_path: Path, seen: Counter[str]
) -> None:
    found = measure(base, tuned, data, tmp_path)
    distinct_images, distinct_texts = 12, 2 * 28 + len(zero_shot_texts(data))
    # three states of each tower: base, half, tuned; seven models
    assert seen == {"images": 3 * distinct_images, "texts": 3 * distinct_texts}
    assert [point.mix.name for point in found.points] == [
        "base", "all-0.5", "tuned", "image-0", "image-0.5", "text-0", "text-0.5",
    ]  # fmt: skip
    assert found.axes == {
        COMPOSITION: ("sugarcrepe@mini",),
        RECOGNITION: ("zero_shot_shapes@mini",),
    }
    written = load_results(tmp_path / "r")
    assert {each.model for each in written} == {point.mix.name for point in found.points}
    seen.clear()
    assert measure(base, tuned, data, tmp_path) == found
    assert not seen

    values = {each.mix.name: each.scores for each in found.points}
    for result in written:
        axis = COMPOSITION if result.benchmark.startswith("sugar") else RECOGNITION
        assert values[result.model][axis] == result.aggregates[result.headline]


def zero_shot_texts(data: Path) -> set[str]:
    (benchmark,) = (target.load() for target in parse_targets([ON[1]], data))
    return {text for prompts in benchmark.content.prompts for text in prompts}


def test_swapped_towers_are_those_of_the_models(base: LoadedModel, tuned: LoadedModel) -> None:
    pair = BaseAndTuned(base, tuned)
    for name, (image, text) in {
        BASE: (base, base), "tuned-image": (tuned, base), "tuned-text": (base, tuned),
        TUNED: (tuned, tuned),
    }.items():  # fmt: skip
        for key, value in pair.mixed(SWAPPED[name]).encoder.model.state_dict().items():
            wanted = image if key.startswith("visual.") else text
            if key != "logit_scale":
                assert torch.equal(value, wanted.encoder.model.state_dict()[key]), (name, key)


def test_a_tower_study_adds_up(
    base: LoadedModel, tuned: LoadedModel, data: Path, tmp_path: Path, seen: Counter[str]
) -> None:
    benchmarks = [target.load() for target in parse_targets(ON, data)]
    options = Options(cache=tmp_path / "c", resamples=200)
    study = study_towers(BaseAndTuned(base, tuned), benchmarks, tmp_path / "r", options, CPU)
    assert seen["images"] == 2 * 12
    for group in (COMPOSITION, RECOGNITION, "sugarcrepe@mini vl_compo"):
        value = {name: found[group].value for name, found in study.scores.items()}
        alone = sum(value[name] - value["base"] for name in ("tuned-image", "tuned-text"))
        more = study.interplay[group]
        assert more.value == pytest.approx(value["tuned"] - value["base"] - alone)
        assert more.low <= more.value <= more.high
        for name, found in study.differences.items():
            assert found[group].difference == pytest.approx(value[name] - value["base"])
    assert with_interval(0.05, None, None, "+") == "+5.0 [-]"


def point(name: str, comp: float, zero_shot: float) -> Point:
    def score(value: float) -> Score:
        return Score("text", value, 100, 100, value - 0.1, value + 0.1, "wilson", 0.5, 100)

    scope, _, alpha = name.rpartition("-")
    mix = Mix(scope or "all", float(alpha or 0))  # type: ignore[arg-type]
    return Point(mix, {COMPOSITION: score(comp), RECOGNITION: score(zero_shot)}, {})


LINE = (
    point("all-0", 0.50, 0.800),
    point("all-0.25", 0.55, 0.795),
    point("all-0.5", 0.58, 0.790),
    point("all-0.75", 0.58, 0.790),
    point("all-1", 0.70, 0.600),
)


@pytest.mark.parametrize(
    ("max_loss", "picked"), [(0, "base"), (0.5, "all-0.25"), (1, "all-0.5"), (20, "tuned")]
)
def test_the_rule_picks_the_most_compositional_within_the_loss(
    max_loss: float, picked: str
) -> None:
    measured = Sweep(LINE[0], {"all": LINE}, {COMPOSITION: ("c",), RECOGNITION: ("z",)})
    assert choose(measured, Rule("zero-shot", max_loss)).mix.name == picked


def test_the_rule_needs_its_axes() -> None:
    measured = Sweep(LINE[0], {"all": LINE}, {COMPOSITION: ("c",), RECOGNITION: ("z",)})
    with pytest.raises(
        UsageError, match=f"--keep retrieval needs a benchmark of {RETRIEVAL.lower()}"
    ):
        choose(measured, Rule("retrieval", 1))
    with pytest.raises(UsageError, match="must not be negative"):
        choose(measured, Rule("zero-shot", -1))


def test_shares() -> None:
    assert shares(10) == (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)


@pytest.fixture
def saved(base: LoadedModel, tuned: LoadedModel, tmp_path: Path) -> list[str]:
    for name, loaded in (("b", base), ("t", tuned)):
        save_model(loaded, tmp_path / name)
    return [str(tmp_path / "b"), str(tmp_path / "t")]


def test_the_command_writes_numbers_plot_and_the_picked_model(
    saved: list[str], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "wise"
    command = ["wise-ft", *saved, "--sweep", "--steps", "2", "--on", *ON, "--data", str(data)]
    command += ["--out", str(out), "--resamples", "50", "--scope", "all", "image"]
    keep = ["--keep", "zero-shot", "--max-loss", "100"]
    assert main([*command, *keep]) == 0
    shown = capsys.readouterr().out
    record = json.loads((out / "sweep.json").read_text())
    assert [each["name"] for each in record["lines"]["image"]] == ["image-0", "image-0.5", "tuned"]
    assert f"{COMPOSITION}: mean of sugarcrepe@mini" in shown
    for ending in ("png", "svg"):
        assert (out / f"trajectory.{ending}").stat().st_size > 1000
    best = max(
        (each for line in record["lines"].values() for each in line),
        key=lambda each: each["scores"][COMPOSITION]["value"],
    )
    picked = record["picked"]
    assert best["scores"][COMPOSITION]["value"] == next(
        each["scores"][COMPOSITION]["value"]
        for line in record["lines"].values()
        for each in line
        if each["name"] == picked["name"]
    )
    assert picked["name"] != "base"
    (result,) = load_results(out / "results" / picked["name"] / "sugarcrepe@mini.json")
    model = load_model(out / "model")
    assert model.identity.weights == result.identity["weights"]
    assert "at most 100 points of zero-shot" in model.provenance["picked"]
    assert main([*command, *keep, "--json"]) == 0  # again: nothing to measure, nothing to write
    assert json.loads(capsys.readouterr().out) == record
    save_model(load_model(saved[0]), tmp_path / "other")
    shutil.rmtree(out / "model")
    (tmp_path / "other").rename(out / "model")
    assert main([*command, *keep]) == 1
    assert "holds a model that was selected earlier" in capsys.readouterr().err


def test_the_towers_command(
    saved: list[str], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "towers"
    command = ["towers", *saved, "--on", *ON, "--data", str(data), "--out", str(out)]
    assert main([*command, "--resamples", "50"]) == 0
    shown = capsys.readouterr().out
    assert "beyond the sum" in shown
    record = json.loads((out / "towers.json").read_text())
    assert set(record["groups"][COMPOSITION]["scores"]) == set(SWAPPED)
    assert {path.name for path in (out / "results").iterdir()} == set(SWAPPED)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--sweep"], "--on BENCHMARK"),
        (["--scope", "all", "image"], "need --sweep; add it"),
        (["--keep", "zero-shot"], "need --sweep; add it"),
        (["--sweep", "--on", "sugarcrepe", "--max-loss", "-1"], "--max-loss"),
        (["--sweep", "--on", "sugarcrepe", "--batch-size", "0"], "--batch-size"),
        (["--sweep", "--on", "sugarcrepe", "--steps", "0"], "--steps must be at least 1"),
    ],
)
def test_wrong_requests_are_refused_before_any_work(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wise-ft", "bundled", "bundled", "--out", str(tmp_path / "o"), *more]) == 2
    assert message in capsys.readouterr().err
