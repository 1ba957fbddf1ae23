"""Results that people edited or mixed up: one line that names the file and what to do."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.evaluation.results import load_results
from report_study import make_study

Capture = pytest.CaptureFixture[str]
SCORE = ["metric", "value", "n", "low", "high", "chance", "photos", "ties", "expected"]
PLACES = [
    *[
        "model",
        "benchmark",
        "protocol",
        "data_hash",
        "headline",
        "items",
        "known_as",
        "score",
        "partial",
        "seconds",
        "pairs_per_second",
        "seed",
    ],
    *["identity", "identity.weights", "identity.base", "identity.image_size"],
    *["scores", "scores.object", "scores.object.accuracy", "aggregates", "skills", "skills.object"],
    *(f"scores.object.accuracy.{field}" for field in SCORE),
    *(f"aggregates.micro.{field}" for field in SCORE),
    *[
        "rules",
        "rules.micro",
        "rules.micro.parts",
        "rules.micro.exclude",
        "tie_policy",
        "resamples",
    ],
    *["left_out", "missing", "missing_count", "truncated_texts", "versions", "versions.numpy"],
]
WRONG: tuple[Any, ...] = (True, -1.5, [[None]], {"a": {"b": 1}}, "\ud800", math.nan, 10**400)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    return make_study(folder, photos=16, models=("base", "fsc-clip"), resamples=10)


@pytest.fixture(scope="module")
def good(made: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((made / "base" / "foils@world.json").read_text())
    return content


@pytest.fixture
def results(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "results"))


def refused(results: Path, capsys: Capture, *words: str) -> None:
    """Both verbs that read results end with one line of these words."""
    models = [str(results / name) for name in ("base", "fsc-clip")]
    page = f"--out={results / 'r.html'}"
    for argv in (["compare", *models], ["report", str(results), page]):
        capsys.readouterr()
        assert main([*argv, "--resamples=5"]) == 1
        error = capsys.readouterr().err.strip()
        assert error.count("\n") == 0
        assert "not foreseen" not in error
        for word in words:
            assert word in error


def edited(data: Any, place: str, value: Any) -> Any:
    data = copy.deepcopy(data)
    *outer, last = place.split(".")
    inner = data
    for key in outer:
        inner = inner[key]
    inner[last] = value
    return data


@pytest.mark.parametrize("place", PLACES)
def test_a_number_or_name_of_another_kind(good: dict[str, Any], tmp_path: Path, place: str) -> None:
    path = tmp_path / "foils@world.json"
    right = {"partial": True, "identity": {"a": {"b": 1}}}
    for value in (each for each in WRONG if place not in right or each != right[place]):
        path.write_text(json.dumps(edited(good, place, value)))
        with pytest.raises(CompoclipError, match="evaluate again") as caught:
            load_results(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


CONTRADICTIONS: tuple[tuple[str, Any, str], ...] = (
    ("model", True, "evaluate again"),
    ("scores.object.accuracy.n", 7, "7 items of 16, 15 photos"),
    ("scores.object.accuracy.value", 0.99, "the accuracy of 'object' is another"),
    ("scores.object.accuracy.photos", 3, "the photos of 'object' are others"),
    ("scores.object.accuracy.photos", 0, "0 photos"),
    ("scores.object.accuracy.high", None, "an interval from"),
    ("scores.object.accuracy.chance", 1.5, "outside of 0 to 1"),
    ("scores.object", {}, "a sub-task without scores"),
    ("extra", 1, "extra"),
    ("seconds", -0.1, "seconds must not be negative"),
    ("pairs_per_second", -3.0, "pairs_per_second must not be negative"),
    ("identity.context_length", -77, "identity.context_length must not be negative"),
    ("identity.image_size", [-224, 224], "identity.image_size[0] must not be negative"),
    ("rules.micro.min_group", -1, "rules.micro.min_group must not be negative"),
    ("left_out", {"no caption": -1}, "left_out.no caption must not be negative"),
    ("missing", ["a.jpg"], "0 images missing, and 1 name"),
    ("identity", {}, "come from 2 different checkpoints"),
    ("headline", "none", "no aggregate 'none'"),
    ("rules.micro.weighting", "heavy", "weighting must be one of macro, micro"),
)


@pytest.mark.parametrize(("place", "value", "words"), CONTRADICTIONS)
def test_contradictions(
    good: dict[str, Any], results: Path, capsys: Capture, place: str, value: Any, words: str
) -> None:
    path = results / "base" / "foils@world.json"
    path.write_text(json.dumps(edited(good, place, value)))
    refused(results, capsys, str(path.with_suffix("")), words, "evaluate")


def column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


TABLES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "doubled": (lambda t: pa.concat_tables([t, t]), "some are there twice"),
    "one row twice": (lambda t: pa.concat_tables([t, t.slice(3, 1)]), "some are there twice"),
    "one row less": (lambda t: t.slice(1), "not as scored"),
    "half": (lambda t: t.slice(t.num_rows // 2), "its sub-tasks are"),
    "empty": (lambda t: t.slice(0, 0), "its sub-tasks are"),
    "no item": (lambda t: t.drop(["item"]), "0 columns 'item', not one"),
    "two clusters": (lambda t: t.append_column("cluster", t["cluster"]), "cluster"),
    "no outcomes": (lambda t: t.drop(["used.accuracy"]), "0 columns 'used.accuracy'"),
    "numbers": (lambda t: column(t, "subtask", pa.array(range(t.num_rows))), "holds int64, not"),
    "nulls": (
        lambda t: column(t, "form", pa.nulls(t.num_rows, pa.string())),
        "'form' is empty in",
    ),
    "empty entries": (
        lambda t: column(t, "texts", pa.array([[None, "x"]] * t.num_rows, pa.list_(pa.string()))),
        "'texts' holds empty entries",
    ),
    "points": (
        lambda t: column(t, "used.accuracy", pc.multiply(t["used.accuracy"], 100.0)),
        "outside of 0 to 1",
    ),
    "no number": (
        lambda t: column(t, "used.accuracy", pa.array([math.nan, *t["used.accuracy"][1:]])),
        "'used.accuracy' holds values outside of 0 to 1",
    ),
    "no scores": (
        lambda t: column(t, "scores", pa.array([[math.nan] * 2] * t.num_rows, t["scores"].type)),
        "'scores' holds what is not a number",
    ),
    "other outcomes": (
        lambda t: column(t, "used.accuracy", pc.subtract(1.0, t["used.accuracy"])),
        "is another than that scored",
    ),
    "one photo": (
        lambda t: column(t, "cluster", pa.array(["x"] * t.num_rows)),
        "are others than those scored",
    ),
    "truth": (
        lambda t: column(t, "truth", pa.array([9] * t.num_rows, pa.int32())),
        "do not make a choose-text item",
    ),
    "form": (
        lambda t: column(t, "form", pa.array(["group"] * t.num_rows)),
        "do not make a group item",
    ),
    "another name": (
        lambda t: column(t, "item", pa.array(["renamed", *t["item"].to_pylist()[1:]])),
        "both complete, but their items differ, e.g. 'object/0'; evaluate base and fsc-clip again",
    ),
    "other names": (
        lambda t: column(t, "item", pa.array([f"n{k}" for k in range(t.num_rows)])),
        "foils@world",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_are_not_those_of_the_scores(results: Path, capsys: Capture, name: str) -> None:
    path = results / "fsc-clip" / "foils@world.parquet"
    change, words = TABLES[name]
    pq.write_table(change(pq.read_table(path)), path)
    refused(results, capsys, str(path), words, "evaluate")
