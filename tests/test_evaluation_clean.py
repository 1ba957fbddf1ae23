"""Scores without faulty items, against plain loops over the stored outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmark_files import SUGARCREPE, write_json, write_sugarcrepe, write_sugarcrepe_pp
from compoclip.benchmarks.audit import (
    Audit,
    Defect,
    Kind,
    audit,
)
from compoclip.benchmarks.case import (
    Aggregate,
    Benchmark,
    Case,
    Form,
    ImageRef,
    Retrieval,
    TiePolicy,
)
from compoclip.benchmarks.registry import load_benchmark
from compoclip.cli.main import main
from compoclip.evaluation.forms.cases import group_sizes, with_joint
from compoclip.evaluation.items import EncodedFeatures
from compoclip.evaluation.results import Clean, Results, Score, load_items, load_results
from compoclip.evaluation.summary import clean_scores, same_faults
from compoclip.evaluation.tables import clean_cell, data_notes
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import read_config
from compoclip.report.write import write_report
from evaluation_helpers import features_from, ref, score_items
from train_helpers import write_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    save_model(create_model(read_config(write_config(folder / "c.json")), seed=3), folder / "tiny")
    return folder / "tiny"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """SugarCrepe and SugarCrepe++ in miniature with four faulty items of swap_obj."""
    rng = np.random.default_rng(0)
    root = tmp_path / "root"
    (root / "coco" / "val2017").mkdir(parents=True)
    for k in range(4):
        pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "coco" / "val2017" / f"{k}.png")
    rows = [
        {
            "filename": f"{k % 4}.png",
            "caption": f"a red cup number {k}",
            "negative_caption": f"a blue cup number {k}",
        }
        for k in range(6)
    ]
    bad = [
        {**rows[0], "negative_caption": "A red cup, number 0"},
        {**rows[1], "negative_caption": "a red  cup number 1"},
        dict(rows[2]),
        {**rows[3], "caption": "a big cup number 3", "negative_caption": "a large cup number 3"},
    ]
    write_sugarcrepe(root, **{n: dict(enumerate(rows)) for n in SUGARCREPE})
    everything = {str(k): row for k, row in enumerate([*rows, *bad])}
    write_json(root / "sugarcrepe" / "swap_obj.json", everything)
    write_sugarcrepe_pp(root)
    (root / "edition.json").write_text('{"edition": "mini"}')
    return root


def test_both_numbers_from_the_command_line(
    model: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["evaluate", f"tiny={model}", "--on", "sugarcrepe", "--data", str(root)]
    arguments += ["--out", str(out), "--resamples", "50"]
    assert main(arguments) == 0
    assert "clean" not in capsys.readouterr().out
    page = write_report([out], tmp_path / "plain.html", resamples=20).read_text(encoding="utf-8")
    assert "Clean" not in page
    assert load_results(out)[0].clean is None

    assert main([*arguments, "--exclude-faulty"]) == 0
    printed = capsys.readouterr().out
    (head,) = [line for line in printed.splitlines() if line.startswith("part ")]
    assert head.split()[-2:] == ["ties", "clean"]
    assert "clean: without 4 faulty items (negative-equals-caption 2" in printed
    (result,) = load_results(out)
    clean = result.clean
    assert clean is not None
    assert (clean.faulty, clean.left_out) == (4, 4)
    assert clean.faults == {
        "negative-equals-caption": 2,
        "negative-is-synonym": 1,
        "duplicate": 1,
    }
    table = load_items(result).to_pylist()
    gone = {f"swap_obj/{k}" for k in (6, 7, 8, 9)}
    parts: dict[str, list[float]] = {name: [] for name in SUGARCREPE}
    for row in table:
        if row["item"] not in gone:
            parts[row["subtask"]].append(row["strict.accuracy"])
    means = {name: sum(values) / len(values) for name, values in parts.items()}
    assert result.aggregates["macro"].n == 46
    assert clean.aggregates["macro"].n == clean.aggregates["macro"].expected == 42
    assert clean.aggregates["macro"].value == pytest.approx(sum(means.values()) / 7)
    assert clean.scores["swap_obj"]["accuracy"].value == pytest.approx(means["swap_obj"])
    assert set(clean.aggregates) == set(result.aggregates)
    for name, scores in (("= macro", clean.aggregates), ("swap_obj", clean.scores["swap_obj"])):
        (line,) = [each for each in printed.splitlines() if each.startswith(f"{name} ")]
        score = scores["macro" if name == "= macro" else "accuracy"]
        assert clean_cell(score) in line
        assert f"{100 * score.value:.1f} (" in clean_cell(score)
        assert clean_cell(score).endswith(f" of {score.n}")
    page = write_report([out], tmp_path / "r.html", resamples=20).read_text(encoding="utf-8")
    assert "Clean: without the items that an audit finds faulty" in page
    assert page.count('<th scope="col" class="num">Clean</th>') == 2
    assert "42 items" in page

    assert main([*arguments, "--exclude-faulty", "--json"]) == 0
    captured = capsys.readouterr()
    assert "already measured" in captured.err
    assert json.loads(captured.out)[0]["clean"]["left_out"] == 4
    assert main(arguments) == 0  # plain runs keep what is there
    assert "already measured" in capsys.readouterr().err


def test_nothing_faulty_says_so(
    model: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", f"tiny={model}", "--on", "sugarcrepe_pp", "--data", str(root)]
    for name in ("1.jpg", "2.jpg"):
        Image.new("RGB", (9, 9)).save(root / "coco" / "val2017" / name)
    assert main([*arguments, "--out", str(tmp_path / "o"), "--exclude-faulty"]) == 0
    assert "an audit found no faulty item" in capsys.readouterr().out


def test_ties_are_wrong_and_broken_groups_go() -> None:
    table = {
        "a": {"x": 1.0, "y": 0.0},
        "b": {"x": 0.5, "y": 0.5},  # a tie: right under the policy FIRST, wrong when clean
        "c": {"x": 1.0, "y": 0.0},
        "d": {"x": 1.0, "y": 0.0},
        "e": {"x": 1.0, "y": 0.0},
        "f": {"x": 1.0, "y": 0.0},
    }
    groups = {"a": "1", "b": "1", "c": "2", "d": "2", "e": "3", "f": "3"}
    cases = tuple(
        Case(name, Form.CHOOSE_TEXT, (ref(name),), ("x", "y"), "s", labels={"g": groups[name]})
        for name in table
    )
    benchmark = Benchmark(
        "made", cases, "0", ties={"": TiePolicy.FIRST}, joint={"pair": "g"}, expected={"s": 6}
    )
    items = score_items(cases, features_from(table), ties=benchmark.ties)
    items = with_joint(items, benchmark.joint, group_sizes(cases, benchmark.joint))
    rules = {
        "micro": Aggregate(("s",), "micro"),
        "pair": Aggregate(("s",), metric="pair"),
        "group_3": Aggregate(("s",), macro_by="g", exclude=frozenset("12")),
    }
    bad = tuple(Defect("made", "s", name, Kind.DUPLICATE) for name in ("d", "e", "f"))
    clean = clean_scores(items, Audit("made", {"s": 6}, bad), benchmark, rules, {"s": 6}, 20)
    assert (clean.faulty, clean.left_out) == (3, 3)
    assert items.outcomes["accuracy"].used.tolist() == [1.0] * 6
    assert clean.aggregates["micro"].value == pytest.approx(2 / 3)
    assert clean.aggregates["micro"].n == clean.aggregates["micro"].expected == 3
    pair = clean.aggregates["pair"]  # group 1 alone is whole, and b is wrong
    assert (pair.value, pair.n, pair.expected) == (0.0, 1, 1)
    assert "group_3" not in clean.aggregates

    nothing = clean_scores(
        items,
        Audit("made", {"s": 6}, tuple(Defect("made", "s", n, Kind.DUPLICATE) for n in table)),
        benchmark,
        rules,
        {"s": 6},
    )
    assert nothing.aggregates == nothing.scores == {}
    assert clean_cell(nothing.aggregates.get("micro")) == "-"
    assert nothing.left_out == 6


def test_repeated_captions_are_named_as_in_results(tmp_path: Path) -> None:
    photos = tuple(ImageRef(tmp_path / "p" / f"{k}.jpg") for k in range(3))
    content = Retrieval(
        photos, ("a dog", "a cat", "A dog", "a hat"), ((0, 0), (1, 1), (1, 2), (2, 3))
    )
    benchmark = Benchmark("made", content, "0")
    eye = np.eye(4, dtype=np.float32)
    features = EncodedFeatures(
        images=eye[:3],
        image_rows={photo: k for k, photo in enumerate(photos)},
        texts=eye[[0, 1, 0, 2]],
        text_rows={text: k for k, text in enumerate(content.texts)},
        bad={},
        truncated=frozenset(),
    )
    found = audit(benchmark)
    assert found.faulty == {("t2i", "p/1.jpg text 1")}
    items = score_items(content, features)
    rules = {"r1": Aggregate(("i2t", "t2i"), metric="r1")}
    clean = clean_scores(items, found, benchmark, rules, {"i2t": 3, "t2i": 4}, 20)
    assert clean.left_out == 1
    assert clean.scores["t2i"]["r1"].n == 3
    assert clean.scores["t2i"]["r1"].value == 1.0


def test_when_clean_scores_must_be_measured_again(tmp_path: Path, root: Path) -> None:
    found = audit(load_benchmark("sugarcrepe", root))
    other = audit(load_benchmark("sugarcrepe:swap_att", root))
    clean = Clean(len(found.faulty), 4, found.faults, {}, {})
    assert same_faults(None, None)
    assert same_faults(clean, None)
    assert same_faults(clean, found)
    assert not same_faults(None, found)
    assert not same_faults(clean, other)


def test_the_note_tells_the_part_from_the_whole() -> None:
    def score(value: float) -> Score:
        return Score("accuracy", value, 9, 20, value - 0.1, value + 0.1, "wilson", 0.5, 100)

    clean = Clean(4, 1, {"duplicate": 4}, {}, {"micro": score(0.7)})
    result = Results(
        "m", "b", 1, {}, "0", {}, {}, {"micro": score(0.8)}, "micro", {}, "b.parquet", clean=clean
    )
    assert data_notes(result) == [
        "clean: without 1 faulty item (of 4 in all: duplicate 4) and with ties wrong micro is 70.0 "
        "(60.0 to 80.0) instead of 80.0"
    ]
