"""compoclip from Python: the same functions as the command line, and the examples."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import compoclip
from compoclip import api
from compoclip.cli.main import main
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.models.weights import weights_hash

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "python"


FEW: dict[str, Any] = {"epochs": 0.5, "batch_size": 8, "lr": 1e-3}


@pytest.fixture(scope="module")
def base(world: Path) -> compoclip.Model:
    return compoclip.load(world / "base")


@pytest.fixture(scope="module")
def tuned(
    base: compoclip.Model, world: Path, tmp_path_factory: pytest.TempPathFactory
) -> compoclip.Model:
    """The base after a few steps of NegCLIP, trained by the method of a model."""
    options = compoclip.TrainOptions(
        data=world / "plain.jsonl",  # type: ignore[arg-type]  # as notebooks write it
        out=tmp_path_factory.mktemp("tuned"),
        seed=1,
    )
    return base.train("negclip", options, **FEW)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("suites") / "suite"
    write_suite(folder, "--size=32", "--benchmarks", "sugarcrepe")
    return str(folder)


def test_every_name_is_there_and_documented() -> None:
    assert set(compoclip.__all__) <= set(dir(compoclip))
    for name in set(compoclip.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(compoclip, name))
    with pytest.raises(AttributeError, match="No compoclip attribute nonsense"):
        _ = compoclip.nonsense  # type: ignore[attr-defined]


def test_scores_are_cosines_of_the_models_own_features(base: compoclip.Model, world: Path) -> None:
    captions = [f"a red star {n}" for n in range(70)]  # more than one batch
    images = [world / "0.png", str(world / "1.png"), Image.open(world / "2.png")]
    scores = base.score(images, captions)
    assert scores.shape == (3, 70)
    assert scores.dtype == np.float32
    loaded = load_model(world / "base")
    with torch.no_grad():
        for row in range(3):
            pixels = loaded.preprocess.evaluation(Image.open(world / f"{row}.png").convert("RGB"))
            features = loaded.encoder.features(pixels[None], loaded.tokenizer(captions))
            expected = (features.image @ features.text.T)[0].numpy()
            np.testing.assert_allclose(scores[row], expected, atol=1e-5)


def test_encoding_hashes_no_weights_and_notices_changed_ones(
    base: compoclip.Model, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hash of all weights costs many times what a short text does."""
    hashed: list[int] = []

    def counted(state: Mapping[str, torch.Tensor]) -> str:
        hashed.append(len(state))
        return weights_hash(state)

    for module in ("evaluation.encoder", "models.checkpoint"):
        monkeypatch.setattr(f"compoclip.{module}.weights_hash", counted)
    model = compoclip.load(world / "base")
    before = model.identity
    hashed.clear()
    texts = ["a red star", "a blue mug"]
    first = model.encode_texts(texts)
    model.score([world / "0.png"], texts)
    assert np.array_equal(model.encode_texts(texts), first)
    assert hashed == []
    assert model.identity == before
    assert len(hashed) == 1  # when it is asked for
    # However weights are changed, features and identity are those of the new ones.
    with torch.no_grad():
        model.loaded.encoder.model.get_parameter("text_projection").data.mul_(-1)
    assert np.abs(model.encode_texts(texts) + first).max() < 1e-6
    assert model.identity.weights != before.weights
    assert model.identity.base == before.weights


@pytest.mark.parametrize(
    ("images", "captions", "message"),
    [
        ([], ["a"], "the list is empty"),
        ("photo.png", ["a"], "photo.png: image not found"),
        (["absent.png"], ["a"], "absent.png: image not found"),
        ([np.zeros((9, 9, 3), np.uint8)], ["a"], r"images\[0\]: .*ndarray.* PIL.Image.fromarray"),
        (["a.png", b"\x89PNG"], ["a"], r"images\[1\]: .*\(bytes\) is not a path or a PIL image"),
        ([" DATA:image/png;base64,iVBOR"], ["a"], "a data URI is not a path"),
        ([None], ["a"], r"images\[0\]: None \(NoneType\)"),
        (5, ["a"], r"images: 5 \(int\) is not a list"),
        ([Image.new("L", (9, 9))], ["a", 5], r"captions\[1\]: 5 \(int\) is not a text"),
        ([Image.new("L", (9, 9))], [b"a"], r"captions\[0\]: b'a' \(bytes\)"),
        ([Image.new("L", (9, 9))], None, r"captions: None \(NoneType\) is not a list"),
        ([Image.new("L", (9, 9))], [], "the list is empty"),
    ],
)
def test_wrong_input_is_said_in_one_line(
    base: compoclip.Model, images: Any, captions: Any, message: str
) -> None:
    with pytest.raises(compoclip.CompoclipError, match=message):
        base.score(images, captions)


def test_a_picture_that_turns_out_to_be_damaged(base: compoclip.Model, tmp_path: Path) -> None:
    Image.effect_noise((90, 90), 80).save(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:900])
    with pytest.raises(compoclip.CompoclipError, match=r"b\.jpg: damaged image"):
        base.encode_images([Image.open(tmp_path / "b.jpg")])


@pytest.mark.parametrize(
    ("options", "parameters", "message"),
    [
        ({}, {"epochs": "x"}, r"epochs must be a number"),
        ({}, {"batch_size": 2.5}, r"batch_size must be a whole number"),
        ({}, {"attention": "soft"}, "attention must be one of minmax.*found 'soft'"),
        ({}, {"gamma": True}, "gamma must be a number, found True"),
        ({"seed": "1"}, {}, "seed must be a whole number, found '1'"),
        ({"lora_rank": 2.0}, {}, "lora_rank must be a whole number or null, found 2.0"),
        ({"device": 0}, {}, "device must be a text, found 0"),
        ({"terms": 3}, {}, "terms must be a list of texts, found 3"),
        ({"track": ("mlflow",)}, {}, "track must be a list of one of tensorboard"),
        ({"data": None}, {}, "data must be a text, found None"),
    ],
)
def test_options_of_another_type_are_one_line(
    base: compoclip.Model,
    tmp_path: Path,
    options: dict[str, Any],
    parameters: dict[str, Any],
    message: str,
) -> None:
    wanted = compoclip.TrainOptions(**{"data": "x.tsv", "out": tmp_path / "run", **options})
    with pytest.raises(compoclip.UsageError, match=message) as caught:
        base.train("fsc-clip", wanted, **parameters)
    assert "\n" not in str(caught.value)


def test_arguments_of_another_type_are_one_line(base: compoclip.Model) -> None:
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: compoclip.load(None), "spec must be a text or a path"),  # type: ignore[arg-type]
        (lambda: compoclip.load("bundled", device=0), "device must be a text"),  # type: ignore[arg-type]
        (lambda: compoclip.rewrite(5), "caption must be a text"),  # type: ignore[arg-type]
        (lambda: compoclip.rewrite("a", 5), "rewrites must be a text"),  # type: ignore[arg-type]
        (lambda: compoclip.rewrite("a", seed="x"), "seed must be a whole number"),  # type: ignore[arg-type]
        (lambda: base.save(None), "folder must be a text or a path"),  # type: ignore[arg-type]
        (lambda: base.train(5, None), "options must be"),  # type: ignore[arg-type]
        (lambda: base.evaluate(5), "options must be"),  # type: ignore[arg-type]
        (
            lambda: base.evaluate(compoclip.EvaluateOptions(on=("x",), resamples="x")),  # type: ignore[arg-type]
            "resamples must be a whole number",
        ),
    ]
    for call, message in wrong:
        with pytest.raises(compoclip.UsageError, match=message):
            call()


def test_rewrite_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    caption = "a red star above a blue mug"
    assert main(["rewrite", caption, "--json"]) == 0
    assert compoclip.rewrite(caption) == json.loads(capsys.readouterr().out)
    (one,) = compoclip.rewrite(caption, "negclip", seed=3)
    assert (one["rewrite"], one["seed"]) == ("negclip", 3)
    with pytest.raises(compoclip.UsageError, match="nonsense"):
        compoclip.rewrite(caption, "nonsense")


def test_training_and_measuring_are_those_of_the_command(
    base: compoclip.Model,
    tuned: compoclip.Model,
    suite: str,
    world: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = (f"--model={world / 'base'}", f"--data={world / 'plain.jsonl'}")
    steps = ("--epochs=0.5", "--batch-size=8", "--lr=1e-3", "--seed=1")
    assert main(["train", "negclip", *places, f"--out={tmp_path / 'cli'}", *steps]) == 0
    assert tuned.identity == load_model(tmp_path / "cli" / "model").identity
    assert tuned.identity.base == base.identity.weights
    assert base.identity == load_model(world / "base").identity  # it stays as it was loaded

    wanted = compoclip.EvaluateOptions(
        on=[suite],  # type: ignore[arg-type]  # as notebooks write it
        out=str(tmp_path / "results"),  # type: ignore[arg-type]
        resamples=50,
    )
    capsys.readouterr()
    of_api = tuned.evaluate(wanted, name="tuned")
    assert capsys.readouterr().out == ""
    words = [f"--on={suite}", f"--out={tmp_path / 'again'}", "--resamples=50"]
    assert main(["evaluate", str(tmp_path / "cli" / "model"), *words, "--json"]) == 0
    of_cli = json.loads(capsys.readouterr().out)
    assert [r.benchmark for r in of_api] == [r["benchmark"] for r in of_cli]
    for ours, theirs in zip(of_api, of_cli):
        assert ours.aggregates[ours.headline].value == theirs["aggregates"][ours.headline]["value"]
    mean = of_cli[0]["grounded"]["mean"]
    assert f"[{100 * mean['low']:.1f}, {100 * mean['high']:.1f}]" in repr(of_api)
    assert (tmp_path / "results" / "tuned").is_dir()


def test_the_functions_do_what_the_methods_of_a_model_do(
    base: compoclip.Model, tuned: compoclip.Model, suite: str, world: Path, tmp_path: Path
) -> None:
    def options(out: str, **more: Any) -> compoclip.TrainOptions:
        data = str(world / "plain.jsonl")
        return compoclip.TrainOptions(data=data, out=tmp_path / out, seed=1, **more)

    named = compoclip.train("negclip", options("named", model=str(world / "base")), **FEW)
    assert named.identity == tuned.identity
    method = load_recipe("negclip")()
    method = replace(method, optim=replace(method.optim, **FEW))
    assert base.train(method, options("made")).identity == tuned.identity
    with pytest.raises(compoclip.UsageError, match="negclip is made already: leave gamma out"):
        base.train(method, options("twice"), gamma=1.0)

    def measuring(out: str, **more: Any) -> compoclip.EvaluateOptions:
        return compoclip.EvaluateOptions(on=(suite,), out=tmp_path / out, resamples=50, **more)

    loaded: dict[str, Any] = {"base": base, "tuned": tmp_path / "named" / "model"}
    found = compoclip.evaluate(measuring("loaded"), loaded)
    assert list(dict.fromkeys(each.model for each in found)) == ["base", "tuned"]
    models = (f"base={world / 'base'}", f"tuned={tmp_path / 'named' / 'model'}")
    again = compoclip.evaluate(measuring("named-results", models=models))
    assert [each.aggregates for each in again] == [each.aggregates for each in found]
    for wrong in (
        lambda: compoclip.evaluate(measuring("none")),
        lambda: compoclip.evaluate(measuring("both", models=models), loaded),
    ):
        with pytest.raises(compoclip.UsageError, match="name the models, either"):
            wrong()


def test_a_model_is_saved_and_loaded_again(base: compoclip.Model, tmp_path: Path) -> None:
    base.save(tmp_path / "copy")
    copy = compoclip.load(tmp_path / "copy")
    assert copy.identity == base.identity
    assert repr(copy).startswith(f"Model('{tmp_path / 'copy'}': {base.identity.architecture}, ")


def write_suite(folder: Path, *options: str) -> None:
    assert main(["world", "suite", f"--out={folder}", "--items-per-task=5", *options]) == 0


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_settings_beside_options_count() -> None:
    options = compoclip.EvaluateOptions(on=("x",), resamples=50)
    assert api._measuring(options, {"resamples": 20, "seed": 3}).resamples == 20
    with pytest.raises(compoclip.UsageError, match="no option 'sed'; did you mean seed"):
        api._measuring(options, {"sed": 3})


def test_the_example_that_scores() -> None:
    leads = example("score").main()
    assert leads
    assert all(abs(lead) <= 2 for lead in leads.values())


def test_the_example_that_trains_and_evaluates(tmp_path: Path) -> None:
    assert main(["world", "train", f"--out={tmp_path / 'train'}", "--count=16"]) == 0
    write_suite(tmp_path / "suite", "--benchmarks", "sugarcrepe", "zero_shot")
    gained = example("train_and_evaluate").main(tmp_path, tmp_path / "run", batch_size=8)
    assert "world-sugarcrepe" in gained
    assert all(-100 <= points <= 100 for points in gained.values())
