"""Sweeps over shares of tuned weights, the rule that picks one, and swapped towers."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmark_files import red_cubes, write_mini
from build.photos import write_noise
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
)
from compoclip.benchmarks.targets import parse_targets
from compoclip.cli.main import main
from compoclip.errors import UsageError
from compoclip.evaluation import encoder
from compoclip.evaluation.groups import COMPOSITION, RECOGNITION, RETRIEVAL
from compoclip.evaluation.numerals import with_interval
from compoclip.evaluation.results import Score, load_results
from compoclip.models.checkpoint import (
    LoadedModel,
    create_model,
    current_identity,
    load_model,
    save_model,
)
from compoclip.models.config import ModelConfig
from evaluation_helpers import TINY

Capture = pytest.CaptureFixture[str]

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
    for number, name in enumerate(("cube/a", "cube/b", "cube/c", "ball/a", "ball/b", "ball/c")):
        write_noise(root / f"elevater/shapes/{name}.png", 10 + number, (48, 40))
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


@pytest.fixture
def saved(base: LoadedModel, tuned: LoadedModel, tmp_path: Path) -> list[str]:
    for name, loaded in (("b", base), ("t", tuned)):
        save_model(loaded, tmp_path / name)
    return [str(tmp_path / "b"), str(tmp_path / "t")]


def test_a_sweep_encodes_each_tower_once_and_writes_the_picked_model(
    saved: list[str], data: Path, tmp_path: Path, seen: Counter[str], capsys: Capture
) -> None:
    out = tmp_path / "wise"
    command = ["wise-ft", *saved, "--sweep", "--steps=2", "--scope", "all", "image", "text"]
    command += ["--on", *ON, f"--data={data}", f"--out={out}", "--resamples=50"]
    command += ["--keep=zero-shot", "--max-loss=100"]
    (out / "results" / "all-0.3").mkdir(parents=True)
    assert main(command) == 0
    # three states of each tower: base, half, tuned; seven models
    assert seen == {"images": 3 * 12, "texts": 3 * (2 * 28 + len(zero_shot_texts(data)))}
    printed = capsys.readouterr()
    assert f"{COMPOSITION}: mean of sugarcrepe@mini" in printed.out
    assert f"{out / 'results'}: also holds all-0.3, not written now" in printed.err
    for ending in ("png", "svg"):
        assert (out / f"trajectory.{ending}").stat().st_size > 1000
    record = json.loads((out / "sweep.json").read_text())
    assert record["axes"] == {
        COMPOSITION: ["sugarcrepe@mini"],
        RECOGNITION: ["zero_shot_shapes@mini"],
    }
    assert {scope: [mix["name"] for mix in line] for scope, line in record["lines"].items()} == {
        "all": ["base", "all-0.5", "tuned"],
        "image": ["image-0", "image-0.5", "tuned"],
        "text": ["text-0", "text-0.5", "tuned"],
    }
    scores = {mix["name"]: mix["scores"] for line in record["lines"].values() for mix in line}
    results = load_results(out / "results")
    assert {result.model for result in results} == scores.keys()
    for result in results:
        axis = COMPOSITION if result.benchmark.startswith("sugar") else RECOGNITION
        assert scores[result.model][axis] == asdict(result.aggregates[result.headline])

    picked = record["picked"]["name"]
    composition = {name: values[COMPOSITION]["value"] for name, values in scores.items()}
    assert picked != "base"
    assert composition[picked] == max(composition.values())
    (result,) = load_results(out / "results" / picked / "sugarcrepe@mini.json")
    model = load_model(out / "model")
    assert model.identity.weights == result.identity["weights"]
    assert "at most 100 points of zero-shot" in model.provenance["picked"]

    seen.clear()
    assert main([*command, "--json"]) == 0  # nothing is left to measure or to write
    assert json.loads(capsys.readouterr().out) == record
    assert not seen
    shutil.rmtree(out / "model")
    save_model(load_model(saved[0]), out / "model")
    assert main(command) == 1
    assert "holds a model that was selected earlier" in capsys.readouterr().err


def test_a_study_of_towers_adds_up(
    saved: list[str], data: Path, tmp_path: Path, seen: Counter[str], capsys: Capture
) -> None:
    out = tmp_path / "towers"
    command = ["towers", *saved, "--on", *ON, f"--data={data}", f"--out={out}"]
    assert main([*command, "--resamples=200"]) == 0
    assert "beyond the sum" in capsys.readouterr().out
    assert seen["images"] == 2 * 12
    assert {path.name for path in (out / "results").iterdir()} == set(SWAPPED)
    groups = json.loads((out / "towers.json").read_text())["groups"]
    assert groups.keys() >= {COMPOSITION, RECOGNITION, "sugarcrepe@mini vl_compo"}
    for group in groups.values():
        value = {name: score["value"] for name, score in group["scores"].items()}
        assert value.keys() == set(SWAPPED)
        alone = sum(value[name] - value["base"] for name in ("tuned-image", "tuned-text"))
        more = group["interplay"]
        assert more["value"] == pytest.approx(value["tuned"] - value["base"] - alone)
        assert more["low"] <= more["value"] <= more["high"]
        for name, change in group["against_base"].items():
            assert change["difference"] == pytest.approx(value[name] - value["base"])
    assert with_interval(0.05, None, None, "+") == "+5.0 [-]"


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


MEASURED = Sweep(LINE[0], {"all": LINE}, {COMPOSITION: ("c",), RECOGNITION: ("z",)})


@pytest.mark.parametrize(
    ("max_loss", "picked"), [(0, "base"), (0.5, "all-0.25"), (1, "all-0.5"), (20, "tuned")]
)
def test_the_rule_picks_the_most_compositional_within_the_loss(
    max_loss: float, picked: str
) -> None:
    assert choose(MEASURED, Rule("zero-shot", max_loss)).mix.name == picked


def test_the_rule_needs_its_axes() -> None:
    needs = f"--keep retrieval needs a benchmark of {RETRIEVAL.lower()}"
    with pytest.raises(UsageError, match=needs):
        choose(MEASURED, Rule("retrieval", 1))
    with pytest.raises(UsageError, match="must not be negative"):
        choose(MEASURED, Rule("zero-shot", -1))


def test_shares_have_no_rounding_noise() -> None:
    assert shares(10) == (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--sweep"], "--on BENCHMARK"),
        (["--scope", "all", "image"], "several scopes go with --sweep"),
        (["--keep", "zero-shot"], "--keep goes with --sweep"),
        (["--sweep", "--on", "sugarcrepe", "--max-loss", "-1"], "--max-loss"),
        (["--sweep", "--on", "sugarcrepe", "--batch-size", "0"], "--batch-size"),
        (["--sweep", "--on", "sugarcrepe", "--steps", "0"], "--steps must be at least 1"),
    ],
)
def test_wrong_requests_are_refused_before_any_work(
    more: list[str], message: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["wise-ft", "bundled", "bundled", "--out", str(tmp_path / "o"), *more]) == 2
    assert message in capsys.readouterr().err
