"""Python as people guess it: lines that newcomers typed before they read the documentation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from PIL import Image

import compoclip
from compoclip.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photos, a suite, and the results of two models on it."""
    place = tmp_path_factory.mktemp("guesses")
    (place / "photos").mkdir()
    for name, colour in (("a", "red"), ("b", "green"), ("c", "blue")):
        Image.new("RGB", (64, 64), colour).save(place / "photos" / f"{name}.png")
    suite = ["world", "suite", f"--out={place / 'suite'}", "--items-per-task=5", "--size=64"]
    assert main([*suite, "--benchmarks", "sugarcrepe"]) == 0
    return place


@pytest.fixture(scope="module")
def model() -> compoclip.Model:
    return compoclip.load()


GUESSES: dict[str, tuple[Callable[[compoclip.Model], Any], Callable[[Any], Any]]] = {
    "load": (
        lambda model: compoclip.load("bundled"),
        lambda loaded: "6.4 M parameters" in repr(loaded),
    ),
    "score of a path and a text": (
        lambda model: model.score("photos/a.png", "a dog"),
        lambda scores: scores.shape == (1, 1),
    ),
    "score of lists": (
        lambda model: model.score([Path("photos/a.png"), "photos/b.png"], ["a dog", "a man"]),
        lambda scores: scores.shape == (2, 2),
    ),
    "encode_text": (
        lambda model: model.encode_text("a dog"),
        lambda features: features.shape == (1, 256),
    ),
    "encode_texts of one": (
        lambda model: model.encode_texts("a dog"),
        lambda features: features.shape == (1, 256),
    ),
    "encode_image": (
        lambda model: model.encode_image(Image.new("RGB", (64, 64))),
        lambda features: features.shape == (1, 256),
    ),
    "encode_images of a folder": (
        lambda model: model.encode_images("photos"),
        lambda features: features.shape == (3, 256),
    ),
    "similarity": (
        lambda model: model.similarity(["photos/a.png"], ["a"]),
        lambda scores: scores.shape == (1, 1),
    ),
    "rewrite": (
        lambda model: compoclip.rewrite("a red cup on a blue table"),
        lambda records: "a [blue] cup on a [red] table  (negative, " in repr(records),
    ),
    "rewrite of a list": (
        lambda model: compoclip.rewrite(["a red cup on a blue table", "two dogs"], ["negclip"]),
        lambda records: [record["id"] for record in records] == ["0", "1"] and repr(records),
    ),
    "list_methods": (
        lambda model: compoclip.list_methods(),
        lambda methods: "negclip" in methods,
    ),
    "methods": (
        lambda model: compoclip.methods(),  # type: ignore[operator]
        lambda methods: methods == compoclip.list_methods(),
    ),
    "benchmarks": (
        lambda model: compoclip.benchmarks(),  # type: ignore[operator]
        lambda benchmarks: benchmarks["sugarcrepe"].startswith("SugarCrepe"),
    ),
    "evaluate on a folder": (
        lambda model: compoclip.evaluate(model, "suite", out="first", resamples=50),
        lambda results: "bundled" in repr(results),
    ),
    "evaluate on a list": (
        lambda model: compoclip.evaluate(model, on=["suite"], out="first", resamples=50),
        lambda results: results[0].benchmark == "world-sugarcrepe",
    ),
    "compare what evaluate returned": (
        lambda model: compoclip.compare(both(model), resamples=50),
        lambda pairs: (pairs[0].base, pairs[0].other) == ("one", "two"),
    ),
    "compare folders": (
        lambda model: (both(model), compoclip.compare("both/one", "both/two", resamples=50))[1],
        lambda pairs: "two against one (base)" in repr(pairs),
    ),
    "compare a list of folders": (
        lambda model: (both(model), compoclip.compare(["both/one", "both/two"], resamples=50))[1],
        lambda pairs: "two against one (base)" in repr(pairs),
    ),
    "report of what evaluate returned": (
        lambda model: compoclip.report(both(model), resamples=50),
        lambda path: path.is_file(),
    ),
    "report of a folder": (
        lambda model: (both(model), compoclip.report("both", "other.html", resamples=50))[1],
        lambda path: path.read_text()[:15].lower() == "<!doctype html>",
    ),
    "index": (
        lambda model: compoclip.index("photos"),
        lambda index: repr(index).startswith("PhotoIndex(3 photos of "),
    ),
    "search": (
        lambda model: (compoclip.index("photos"), compoclip.search("photos.index", "red"))[1],
        lambda answers: answers._repr_html_().count('src="data:image/jpeg') == 3,
    ),
}
SHOWN = ("rewrite", "evaluate on a folder", "compare folders", "report of a folder", "search")


def both(model: compoclip.Model) -> Any:
    return compoclip.evaluate({"one": model, "two": model}, on="suite", out="both", resamples=50)


@pytest.mark.parametrize("guess", GUESSES)
def test_what_newcomers_type_works(
    guess: str, model: compoclip.Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    call, holds = GUESSES[guess]
    answer = call(model)
    assert holds(answer)
    if guess in SHOWN:  # in a notebook, without a call
        assert answer._repr_html_().startswith(("<pre>", "<a href=", "<style>"))


def test_tune_takes_the_words_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does with them is measured in test_tune."""
    with pytest.raises(compoclip.UsageError, match="name the model to begin from: --model"):
        compoclip.tune("captions.csv", images="photos", out=tmp_path / "tuned")
    called = MagicMock()
    monkeypatch.setattr("compoclip.programs.tune.tune", called)
    compoclip.tune("captions.csv", images="photos", model="bundled", out="tuned")
    (options,) = called.call_args.args
    assert (options.data, options.images, options.out) == (
        "captions.csv",
        Path("photos"),
        Path("tuned"),
    )


def test_results_of_one_model_are_not_compared_with_themselves(
    model: compoclip.Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    results = compoclip.evaluate(model, "suite", out="first", resamples=50)
    named: Any = {"base": "first", "other": "first"}
    with pytest.raises(compoclip.UsageError, match="the base first"):
        compoclip.compare(named)
    alone: tuple[Any, ...] = (results, [], "first")
    for one in alone:
        with pytest.raises(compoclip.UsageError, match=r"at least one other: compare\(BASE"):
            compoclip.compare(one)


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a model by its name": (lambda _: compoclip.Model("bundled"), r"compoclip\.load\('bundled'\)"),  # type: ignore[arg-type]
    "nothing to measure": (lambda model: compoclip.evaluate(model), "name what to measure"),
    "another word for on": (
        lambda model: compoclip.evaluate(model, benchmarks=["sugarcrepe"]),
        "name what to measure",
    ),
    "a number among captions": (lambda _: compoclip.rewrite(["a dog", 3]), r"caption\[1\]"),  # type: ignore[list-item]
    "a set of rewrites": (
        lambda _: compoclip.rewrite("a dog", {"negclip"}),  # type: ignore[arg-type]
        "rewrites must be",
    ),
    "no rewrites": (lambda _: compoclip.rewrite("a dog", []), "names none"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_guess_is_answered_by_the_right_one(mistake: str, model: compoclip.Model) -> None:
    call, line = MISTAKES[mistake]
    with pytest.raises(compoclip.UsageError, match=line):
        call(model)
