"""Published tables in the report: only where results on the official items fill a column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compoclip.benchmarks.case import Aggregate
from compoclip.evaluation.run import Options, evaluate
from compoclip.evaluation.statistics import Bootstrap
from compoclip.report.study import read_study
from compoclip.report.write import published_tradeoffs, write_report
from evaluation_helpers import FakeEncoder, choice_benchmark


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
