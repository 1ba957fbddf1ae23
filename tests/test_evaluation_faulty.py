"""Scores without faulty items, against plain loops over the stored outcomes of all items."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmark_files import SUGARCREPE, sugarcrepe_row, write_mini
from compoclip.benchmarks.audit import Audit, Defect, Kind, audit
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Retrieval
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.evaluation.forms.cases import with_joint
from compoclip.evaluation.items import Items
from compoclip.evaluation.results import load_items, load_results
from compoclip.evaluation.run import _without
from compoclip.evaluation.statistics import Bootstrap
from compoclip.evaluation.summary import summarise
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import read_config
from compoclip.report.write import write_report
from evaluation_helpers import features_from, features_of, ref, score_items
from train_helpers import write_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faulty")
    save_model(create_model(read_config(write_config(folder / "c.json")), seed=3), folder / "tiny")
    return folder / "tiny"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """SugarCrepe in miniature with four faulty items of swap_obj."""
    rows = [
        sugarcrepe_row(
            filename=f"{k % 4}.png",
            caption=f"a red cup number {k}",
            negative_caption=f"a blue cup number {k}",
        )
        for k in range(6)
    ]
    bad = [
        {**rows[0], "negative_caption": "A red cup, number 0"},
        {**rows[1], "negative_caption": "a red  cup number 1"},
        dict(rows[2]),
        {**rows[3], "caption": "a big cup number 3", "negative_caption": "a large cup number 3"},
    ]
    files = {name: dict(enumerate(rows)) for name in SUGARCREPE}
    files["swap_obj"] = {str(k): row for k, row in enumerate([*rows, *bad])}
    return write_mini(tmp_path / "root", 4, **files)


def test_faulty_items_are_left_out_and_named(
    model: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", f"tiny={model}", "--on", "sugarcrepe", "--data", str(root)]
    arguments += ["--out", str(tmp_path / "out"), "--resamples", "50"]
    assert main(arguments) == 0
    (everything,) = load_results(tmp_path / "out")
    assert (everything.partial, everything.left_out) == (False, {})
    (file,) = (tmp_path / "out" / "tiny").glob("*.json")
    earlier = json.loads(file.read_text()) | {"clean": {"faulty": 4}}
    file.write_text(json.dumps(earlier))
    assert load_results(tmp_path / "out") == [everything]
    gone = {f"swap_obj/{k}" for k in (6, 7, 8, 9)}
    parts: dict[str, list[float]] = {name: [] for name in SUGARCREPE}
    for row in load_items(everything).to_pylist():
        if row["item"] not in gone:
            parts[row["subtask"]].append(row["used.accuracy"])
    means = {name: sum(values) / len(values) for name, values in parts.items()}
    capsys.readouterr()

    assert main([*arguments, "--exclude-faulty", "--details"]) == 0
    printed = capsys.readouterr()
    assert "already measured" not in printed.err
    assert "left out, faulty item (negative-equals-caption): 2" in printed.out
    assert "PARTIAL" in printed.out
    (result,) = load_results(tmp_path / "out")
    assert result.partial
    assert result.left_out == {
        "faulty item (negative-equals-caption)": 2,
        "faulty item (negative-is-synonym)": 1,
        "faulty item (duplicate)": 1,
    }
    macro = result.aggregates["macro"]
    assert (macro.n, macro.expected) == (42, 46)
    assert macro.value == pytest.approx(sum(means.values()) / 7)
    assert result.scores["swap_obj"]["accuracy"].value == pytest.approx(means["swap_obj"])
    assert gone.isdisjoint(row["item"] for row in load_items(result).to_pylist())
    page = write_report([tmp_path / "out"], tmp_path / "r.html", bootstrap=Bootstrap(20)).read_text(
        "utf-8"
    )
    assert "faulty item (duplicate)" in page

    assert main([*arguments, "--exclude-faulty", "--details"]) == 0
    assert "already measured" in capsys.readouterr().err
    assert main(arguments) == 0  # the whole benchmark is another result
    assert "already measured" not in capsys.readouterr().err


def test_broken_groups_have_no_joint_outcome() -> None:
    table = {name: {"x": 1.0, "y": 0.0} for name in "abcd"}
    groups = {"a": "1", "b": "1", "c": "2", "d": "2"}
    cases = tuple(
        Case(name, Form.CHOOSE_TEXT, (ref(name),), ("x", "y"), "s", labels={"g": group})
        for name, group in groups.items()
    )
    benchmark = Benchmark("made", cases, "0", joint={"pair": "g"}, expected={"s": 4})
    items = with_joint(score_items(cases, features_from(table), ties=benchmark.ties), benchmark)
    rules = {
        "micro": Aggregate(("s",), "micro"),
        "pair": Aggregate(("s",), metric="pair"),
        "group_2": Aggregate(("s",), macro_by="g", exclude=("1",)),
    }

    def without(*names: str) -> Items:
        bad = tuple(Defect("made", "s", name, Kind.DUPLICATE) for name in names)
        return _without(items, Audit("made", {"s": 4}, bad).faulty, benchmark)

    _, scores = summarise(without("c"), rules, {"s": 4, "s/pair": 2}, Bootstrap(20))
    assert {name: (each.n, each.expected) for name, each in scores.items()} == {
        "micro": (3, 4),
        "pair": (1, 2),
        "group_2": (1, 2),
        "positive_score": (3, 4),
    }
    with pytest.raises(CompoclipError, match="every item is faulty"):
        without(*table)


def test_repeated_captions_are_named_as_in_results(tmp_path: Path) -> None:
    photos = tuple(ImageRef(tmp_path / "p" / f"{k}.jpg") for k in range(3))
    texts, pairs = ("a dog", "a cat", "A dog", "a hat"), ((0, 0), (1, 1), (1, 2), (2, 3))
    content = Retrieval(photos, texts, pairs)
    benchmark = Benchmark("made", content, "0")
    eye = np.eye(4, dtype=np.float32)
    items = score_items(content, features_of(content, eye[:3], eye[[0, 1, 0, 2]]))
    faulty = audit(benchmark).faulty
    assert faulty == {("t2i", "p/1.jpg text 1")}
    kept = _without(items, faulty, benchmark)
    assert set(items.ids) - set(kept.ids) == {"p/1.jpg text 1"}
    assert kept.outcomes["r1"].used[np.array(kept.subtasks) == "t2i"].tolist() == [1.0] * 3
