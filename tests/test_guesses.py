"""Python as people guess it: lines that newcomers typed before they read the documentation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from PIL import Image

import compoclip
from build.photos import write_photo
from compoclip.cli.main import main


@pytest.fixture(scope="module")
def model() -> compoclip.Model:
    return compoclip.load()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, model: compoclip.Model) -> Any:
    """The results of two models, in a folder with three photos and a suite."""
    folder = tmp_path_factory.mktemp("guesses")
    for name, colour in (("a", "red"), ("b", "green"), ("c", "blue")):
        write_photo(folder / "photos" / f"{name}.png", colour=colour, size=(64, 64))
    with contextlib.chdir(folder):
        suite = ["world", "suite", "--out=suite", "--items-per-task=5", "--size=64"]
        assert main([*suite, "--benchmarks", "sugarcrepe"]) == 0
        models = {"one": model, "two": model}
        yield compoclip.evaluate(models, on="suite", out="both", resamples=50)


def shown(answer: Any) -> str:
    """Return what a notebook shows of what is typed there last."""
    page = answer._repr_html_()
    assert page.startswith(("<pre>", "<a href=", "<style>"))
    return page


def test_models_score_and_encode(measured: Any, model: compoclip.Model) -> None:
    image = Image.new("RGB", (64, 64))
    paths = [Path("photos/a.png"), "photos/b.png"]
    assert "6.4 M parameters" in repr(compoclip.load("bundled"))
    assert model.score("photos/a.png", "a dog").shape == (1, 1)
    assert model.score(paths, ["a dog", "a man"]).shape == (2, 2)
    one = model.similarity([Path("photos/a.png")], ["a dog"])
    assert np.array_equal(one, model.score("photos/a.png", "a dog"))
    assert model.encode_text("a dog").shape == model.encode_texts("a dog").shape == (1, 256)
    assert model.encode_image(image).shape == (1, 256)
    assert model.encode_images("photos").shape == (3, 256)


def test_captions_are_rewritten() -> None:
    caption = "a red cup on a blue table"
    records = compoclip.rewrite(caption)
    assert "a [blue] cup on a [red] table  (negative, " in repr(records)
    assert shown(records)
    records = compoclip.rewrite([caption, "two dogs"], ["negclip"])
    assert [record["id"] for record in records] == ["0", "1"]
    assert repr(records)


def test_modules_are_called_for_their_lists() -> None:
    modules: Any = compoclip
    assert "negclip" in compoclip.list_methods()
    assert modules.methods() == compoclip.list_methods()
    assert modules.benchmarks()["sugarcrepe"].startswith("SugarCrepe")


def test_models_are_evaluated_and_compared(measured: Any, model: compoclip.Model) -> None:
    results = compoclip.evaluate(model, "suite", out="first", resamples=50)
    assert "bundled" in repr(results)
    assert shown(results)
    listed = compoclip.evaluate(model, on=["suite"], out="first", resamples=50)
    assert listed[0].benchmark == "world-sugarcrepe"
    again = model.evaluate(on=["suite"], name="again", resamples=50)
    assert again[0].scores == results[0].scores
    assert compoclip.compare(results, again, resamples=50)[0].base == "bundled"
    (pair, *_) = compoclip.compare(measured, resamples=50)
    assert (pair.base, pair.other) == ("one", "two")
    for folders in (("both/one", "both/two"), (["both/one", "both/two"],)):
        pairs = compoclip.compare(*folders, resamples=50)
        assert "two against one (base)" in repr(pairs)
        assert shown(pairs)


def test_results_are_reported(measured: Any) -> None:
    assert compoclip.report(measured, resamples=50) == Path("report.html")
    path = compoclip.report("both", "other.html", resamples=50)
    assert path.read_text()[:15].lower() == "<!doctype html>"
    assert shown(path)


def test_photos_are_indexed_and_searched(measured: Any) -> None:
    index = compoclip.index("photos")
    assert repr(index).startswith("PhotoIndex(3 photos of ")
    answers = compoclip.search("photos.index", "red")
    assert shown(answers).count('src="data:image/jpeg') == 3
    assert answers[0].hits[0].photo in index.names
    assert "rank" in repr(answers)


def test_tune_takes_the_words_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does with them is measured in test_tune."""
    with pytest.raises(compoclip.UsageError, match=r"from: --model .* only seen drawn scenes"):
        compoclip.tune("captions.csv", images="photos", out=tmp_path / "tuned")
    called = MagicMock()
    monkeypatch.setattr("compoclip.programs.tune.tune", called)
    compoclip.tune("captions.csv", images="photos", model="bundled", out="tuned")
    (options,) = called.call_args.args
    assert (options.data, options.out) == ("captions.csv", Path("tuned"))
    assert options.images == Path("photos")


def test_results_of_one_model_are_not_compared_with_themselves(
    measured: Any, model: compoclip.Model
) -> None:
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
    "an option nearly": (
        lambda model: compoclip.evaluate(model, "x", resample=20),
        "no option 'resample'; did you mean resamples",
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
