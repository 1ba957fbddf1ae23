"""Tables as files, fronts of trade-offs, published points, coverage, models to look into."""

from __future__ import annotations

import csv
import re

import pytest

from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.evaluation.groups import RECOGNITION
from compoclip.evaluation.statistics import Bootstrap
from compoclip.models.checkpoint import load_model
from compoclip.report.looks import require_measured
from compoclip.report.plotting import tradeoff
from compoclip.report.study import read_study
from compoclip.report.write import coverage, write_tables
from report_study import make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    results = make_study(tmp_path_factory.mktemp("study"), photos=24, resamples=30)
    return read_study([results], None, Bootstrap(30))


def test_tables_in_every_layout(study, tmp_path):
    paths = write_tables(study, tmp_path)
    names = {path.stem for path in paths}
    assert {"overall", "skills", "benchmarks", "subtasks", "compare-negclip"} <= names
    assert {path.suffix for path in paths if path.stem == "skills"} == {".md", ".tex", ".csv"}
    with (tmp_path / "skills.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header[0] == "model"
    assert [row[0] for row in rows[::2]] == [*study.models, "chance"]
    for name, value in zip(header[1:], rows[0][1:], strict=True):
        assert value == f"{100 * study.skills.scores['base'][name].value:.1f}"
    markdown = (tmp_path / "skills.md").read_text()
    best = max(study.skills.scores[m]["negation"].value for m in study.models)
    assert f"**{100 * best:.1f}**" in markdown
    latex = (tmp_path / "overall.tex").read_text()
    assert latex.count("\\begin{tabular}") == latex.count("\\end{tabular}") == 1
    assert "\\textbf{" in latex
    assert all(line.count(" & ") == latex.splitlines()[4].count(" & ")
               for line in latex.splitlines() if line.endswith("\\\\"))  # fmt: skip


def test_brittleness_is_best_when_low(study, tmp_path):
    write_tables(study, tmp_path)
    with (tmp_path / "overall.csv").open() as file:
        header, *rows = csv.reader(file)
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
    with pytest.raises(CompoclipError, match=r"no results of that model; there are base"):
        require_measured({"nobody": model}, study)
    with pytest.raises(CompoclipError, match="name the checkpoint that was measured"):
        require_measured({"base": model}, study)


def test_command_line(study, tmp_path, capsys):
    results = str(study.results["base"]["sugarcrepe"].items).rsplit("/", 2)[0]
    argv = ["report", results, "-o", str(tmp_path / "r.html"), "--resamples", "20"]
    assert main([*argv, "--tables", str(tmp_path / "tables")]) == 0
    assert (tmp_path / "tables" / "subtasks.tex").is_file()
    capsys.readouterr()
    assert main([*argv, "--maps", "base=bundled"]) == 1
    assert re.search(r"--maps base: bundled has weights \w+", capsys.readouterr().err)
