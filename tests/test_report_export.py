"""Exports of the report, and its published tables."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Cases, Form
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.groups import RECOGNITION
from compoclip.evaluation.results import load_items
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap
from compoclip.models.checkpoint import load_model
from compoclip.report.looks import require_measured
from compoclip.report.plotting import levels as plots_by_level
from compoclip.report.plotting import tradeoff
from compoclip.report.study import curves_of, read_study
from compoclip.report.write import coverage, published_tradeoffs, write_report, write_tables
from evaluation_helpers import FakeEncoder, choice_benchmark
from report_study import AbleEncoder, draw, foil, make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    results = make_study(tmp_path_factory.mktemp("study"), photos=24, resamples=30)
    return read_study([results], None, Bootstrap(30))


def csv_rows(path: Path) -> list[list[str]]:
    with path.open() as file:
        return list(csv.reader(file))


def test_tables_that_are_not_written_again_are_named(study, tmp_path, capsys):
    for name in ("compare-gone.md", "levels-old.csv", "notes.txt"):
        (tmp_path / name).write_text("of an earlier report")
    write_tables(study, tmp_path)
    said = f"{tmp_path}: also holds compare-gone.md, levels-old.csv, not written now"
    assert said in capsys.readouterr().err
    for name in ("compare-gone.md", "levels-old.csv"):
        (tmp_path / name).unlink()
    write_tables(study, tmp_path)
    assert not capsys.readouterr().err


def test_tables_of_models_of_one_file_name_are_refused(study, tmp_path):
    comparison = next(iter(study.comparisons.values()))
    twins = dataclasses.replace(study, comparisons={"a/b": comparison, "a:b": comparison})
    with pytest.raises(UsageError, match="'a/b' and 'a:b' have one file name, a_b; rename one"):
        write_tables(twins, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_tables_in_every_layout(study, tmp_path):
    paths = write_tables(study, tmp_path)
    names = {path.stem for path in paths}
    assert {"overall", "skills", "benchmarks", "subtasks", "compare-negclip"} <= names
    assert {path.suffix for path in paths if path.stem == "skills"} == {".md", ".tex", ".csv"}
    header, *rows = csv_rows(tmp_path / "skills.csv")
    assert header[0] == "model"
    assert [row[0] for row in rows[::2]] == [*study.models, "chance"]
    for name, value in zip(header[1:], rows[0][1:], strict=True):
        assert value == f"{100 * study.skills.scores['base'][name].value:.1f}"
    best = max(study.skills.scores[m]["negation"].value for m in study.models)
    assert f"**{100 * best:.1f}**" in (tmp_path / "skills.md").read_text()
    compared = (tmp_path / "compare-negclip.md").read_text()
    assert f"all benchmarks, or all sub-tasks, of {len(study.others)} models;" in compared
    latex = (tmp_path / "overall.tex").read_text()
    assert latex.count("\\begin{tabular}") == latex.count("\\end{tabular}") == 1
    assert "\\textbf{" in latex
    lines = latex.splitlines()
    columns = {line.count(" & ") for line in lines if line.endswith("\\\\")}
    assert columns == {lines[4].count(" & ")}
    # brittleness is best when it is low
    header, *rows = csv_rows(tmp_path / "overall.csv")
    place = header.index("Brittleness")
    lowest = min(float(row[place]) for row in rows[:-1:2])
    lines = (tmp_path / "overall.md").read_text().splitlines()
    cells = [line.split("|")[1 + place].strip() for line in lines if line.startswith("|")]
    assert {cell for cell in cells if cell.startswith("**")} == {f"**{lowest:.1f}**"}


def test_trade_offs_are_against_what_falls(study):
    table = study.skills
    lowest = {
        name: min(table.differences[m][name].difference for m in study.others)
        for name in table.groups
        if name == RECOGNITION or " R@1, " in name
    }
    assert len(lowest) == 3
    plots = tradeoff(study)
    assert [plot.title for plot in plots] == sorted(lowest, key=lambda name: lowest[name])[:2]
    assert "against mean grounded gain, points" in plots[0].alt


def test_coverage_says_what_is_missing(study):
    rows = coverage(study)
    assert rows["sugarcrepe"][0].endswith(" of 30")
    assert rows["foils@world"][1] == "100 %"


def test_only_the_measured_model_is_looked_into(study):
    model = load_model("bundled")
    for name, words in (
        ("nobody", "no results of that model; there are base"),
        ("base", "name the checkpoint that was measured"),
    ):
        with pytest.raises(CompoclipError, match=words):
            require_measured({name: model}, study)


def test_command_line(study, tmp_path, capsys):
    folder = Path(study.results["base"]["sugarcrepe"].items).parent
    argv = ["report", str(folder), "-o", str(tmp_path / "r.html"), "--resamples=20"]
    assert main([*argv, f"--tables={tmp_path / 'tables'}"]) == 0
    assert (tmp_path / "tables" / "subtasks.tex").is_file()
    capsys.readouterr()
    assert main([*argv, "--maps=base=bundled"]) == 1
    assert re.search(r"--maps base: bundled has weights \w+", capsys.readouterr().err)


LEVELS = ("4", "5", "12")


def measured_by_level(folder: Path) -> Path:
    """Measure two models on two sub-tasks whose items have a number."""
    photos = draw(folder / "photos", 24)
    cases = [
        Case(
            f"{part}/{k}",
            Form.CHOOSE_TEXT,
            (photo.ref,),
            (photo.caption, foil(photo, skill)),
            part,
            labels={"complexity": LEVELS[k % 3], "half": str(k % 2)},
        )
        for part, skill in (("atom", "object"), ("swap", "binding"))
        for k, photo in enumerate(photos)
    ]

    def only(part: str, label: str, value: str, values: Sequence[str]) -> Aggregate:
        return Aggregate((part,), macro_by=label, exclude=tuple({*values} - {value}))

    rules = {f"half_{value}": only("atom", "half", value, "01") for value in "01"}
    for level in LEVELS:
        parts = {part: only(part, "complexity", level, LEVELS) for part in ("atom", "swap")}
        rules |= {f"{part}_complexity_{level}": rule for part, rule in parts.items()}
        rules[f"complexity_{level}"] = Aggregate(tuple(parts.values()))
    benchmark = Benchmark(
        "crepe_prod@world", Cases(cases), "c0" * 8, aggregates=rules, headline="micro"
    )
    for name in ("base", "negclip"):
        encoder = AbleEncoder(name, photos, "")
        evaluate(name, encoder, [benchmark], folder / "results", Options(resamples=20))
    return folder / "results"


def test_the_curve_over_a_number_that_items_have(tmp_path: Path) -> None:
    study = read_study([measured_by_level(tmp_path)], None, Bootstrap(20))
    curves = curves_of(study, "crepe_prod@world")
    assert list(curves) == ["atom_complexity", "swap_complexity", "complexity"]  # half has two
    for curve, levels in curves.items():
        assert list(levels) == [4, 5, 12]
        assert all(list(scores) == ["base", "negclip"] for scores in levels.values()), curve
    # By plain means over the items.
    items = load_items(study.results["base"]["crepe_prod@world"]).to_pylist()
    for k, level in enumerate((4, 5, 12)):
        rows = [row for row in items if int(row["item"].rpartition("/")[2]) % 3 == k]
        means = [
            np.mean([row["used.accuracy"] for row in rows if row["subtask"] == part])
            for part in ("atom", "swap")
        ]
        assert curves["atom_complexity"][level]["base"].value == pytest.approx(means[0])
        assert curves["complexity"][level]["base"].value == pytest.approx(np.mean(means))
    plots = plots_by_level(study)["crepe_prod@world"]
    assert [plot.title for plot in plots] == list(curves)
    value = curves["complexity"][12]["base"].value
    assert f"12: base {100 * value:.1f}" in plots[2].alt
    page, tables = tmp_path / "report.html", tmp_path / "tables"
    write_report([tmp_path / "results"], page, tables=tables, bootstrap=Bootstrap(20))
    assert page.read_text().count("by atom_complexity, with 95 % intervals") == 1
    header, *rows = csv_rows(tables / "levels-crepe_prod@world.csv")
    assert header == ["curve", "level", "base", "negclip", "chance"]
    assert [row[:2] for row in rows[6:9]] == [["complexity", level] for level in LEVELS]
    assert rows[8][2].startswith(f"{100 * value:.1f} [")


# --- Published tables ---


@pytest.mark.parametrize(("known_as", "shown"), [("sugarcrepe", True), ("sugarcrepe@world", False)])
def test_a_table_is_shown_when_a_column_is_measured(
    tmp_path: Path, known_as: str, shown: bool
) -> None:
    rules = {"vl_compo": Aggregate(("even", "odd"))}
    made = choice_benchmark(
        tmp_path / "p", 12, name="mine", aggregates=rules, headline="vl_compo", known_as=known_as
    )
    (ours,) = evaluate("<ours>", FakeEncoder(), [made], tmp_path / "out", Options(resamples=20))
    page = write_report([tmp_path / "out"], tmp_path / "r.html", bootstrap=Bootstrap(20))
    text = page.read_text(encoding="utf-8")
    assert ('<details class="block" id="published">' in text) == shown
    if not shown:
        return
    assert "FSC-CLIP, Table 1" in text
    assert "MosaiCLIP, Table 1" not in text
    row = next(r for r in re.findall(r"<tr>.*?</tr>", text) if ">measured<" in r)
    assert "&lt;ours&gt;" in row
    cells = re.findall(r"<td>(.*?)</td>", row)
    assert cells[4] == f"{100 * ours.aggregates['vl_compo'].value:.1f}"
    assert cells.count("-") == len(cells) - 1 == 14
    muted = re.findall(r'<tr class="muted"><th scope="row">published</th>', text)
    assert len(muted) == 58


def test_models_of_mieb_are_grey_points_where_both_axes_are_measured(tmp_path: Path) -> None:
    for name, rule in (("sugarcrepe", "paper"), ("winoground", "group")):
        rules = {rule: Aggregate(("even", "odd"), "micro")}
        made = choice_benchmark(tmp_path / "p", 24, name=name, aggregates=rules, headline=rule)
        evaluate("ours", FakeEncoder(), [made], tmp_path / "out", Options(resamples=20))
    study = read_study([tmp_path / "out"], None, Bootstrap(20))
    (mieb,) = (each for each in published_tradeoffs(study) if each[0].id == "mieb")
    _, (group,) = mieb  # ARO is not measured
    x, y = (100 * study.results["ours"][name].headline_score.value for name in study.benchmarks)
    assert f"ours: {x:.1f} across, {y:.1f} up" in group.alt
    assert "openai/clip-vit-base-patch32 as published: 76.6, 9.0" in group.alt
    assert group.alt.count(" as published: ") == 42  # seven models have no SugarCrepe
