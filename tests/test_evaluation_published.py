"""Published tables: what is printed adds up, and our results stand in the right columns."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compoclip.benchmarks.case import Aggregate
from compoclip.benchmarks.names import SUITES
from compoclip.cli.main import main
from compoclip.config import package_yaml, parsed_yaml
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.published import read
from compoclip.evaluation.published.measured import STANDS_IN, entries_of, fill_table, table_text
from compoclip.evaluation.published.mteb_files import write_mteb_files
from compoclip.evaluation.published.read import (
    PublishedTable,
    published_table,
    published_tables,
)
from compoclip.evaluation.results import Results
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import FakeEncoder, choice_benchmark

RULES = {
    "vl_compo": Aggregate(("even", "odd")),
    "replace": Aggregate(("even",)),
    "replace_original": Aggregate(("odd",)),
    "vg_relation": Aggregate(("even",)),
    "vg_attribution": Aggregate(("odd",)),
    "order": Aggregate(("even", "odd"), "micro"),
}
ELEVEN = ("aro", "crepe", "eqben", "imagecode", "sugarcrepe", "svo", "valse", "vlc", "whatsup")
ELEVEN += ("winoground", "spec")


def cells(table: PublishedTable, row: Any) -> dict[str, Any]:
    return {column.id: cell for column, cell in zip(table.columns, row.cells)}


def printed(table: PublishedTable) -> dict[tuple[str, ...], dict[str, float | None]]:
    """Labels of a row -> its numbers by column."""
    names = [column.id for column in table.columns]
    return {row.labels: dict(zip(names, row.values)) for row in table.rows}


def terms(table: PublishedTable, name: str) -> list[Any]:
    """The numbers that a column is made of."""
    (column,) = (column for column in table.columns if column.id == name)
    return [source for source, _ in column.terms]


def measured(
    folder: Path, names: list[str], model: str = "ours", **changes: object
) -> list[Results]:
    fields = {"aggregates": RULES, "headline": "vl_compo", **changes}
    benchmarks = [
        replace(choice_benchmark(folder / "p", n=24, shared=12, name=name), **fields)
        for name in names
    ]
    options = Options(resamples=60, allow_partial=True)
    return evaluate(model, FakeEncoder(model), benchmarks, folder / "out", options)


def test_derived_columns_follow_from_the_others_within_rounding() -> None:
    checked: dict[str, int] = {}
    for name in published_tables():
        table = published_table(name)
        place = {c.terms[0][0]: k for k, c in enumerate(table.columns) if not c.derived}
        for k, each in enumerate(table.columns):
            if not each.derived or not all(source in place for source, _ in each.terms):
                continue
            for row in table.rows:
                parts = [row.values[place[source]] for source, _ in each.terms]
                value = row.values[k]
                if value is None or None in parts:
                    continue
                total = sum(p * weight for p, (_, weight) in zip(parts, each.terms))
                # every printed number is off by half of its last digit at most
                slack = 0.006 if each.id == "meta" else 0.1
                assert abs(total - value) <= slack + (0.05 if each.difference else 0), (name, row)
                checked[f"{name} {each.id}"] = checked.get(f"{name} {each.id}", 0) + 1
    assert checked == {
        "fsc-clip-retrieval i2t": 10,
        "fsc-clip-retrieval t2i": 10,
        "fsc-clip-table1 comp": 18,
        "fsc-clip-zero-shot zs": 5,
        "hard-positives replace_delta": 3,
        "hard-positives swap_delta": 3,
        "hard-positives-shares replace_delta": 2,
        "hard-positives-transfer replace_delta": 2,
        "hard-positives-transfer swap_delta": 2,
        "mosaiclip-table1 meta": 5,
        "mosaiclip-table5 average": 4,
        "mosaiclip-table8 meta": 3,
    }


def test_columns_are_made_of_the_suites_of_the_literature() -> None:
    table = published_table("fsc-clip-table1")
    for name, suite in (("comp", "comp"), ("zs", "elevater"), ("i2t", "retrieval_3")):
        sources = [source.benchmark for source in terms(table, name)]
        assert sorted(sources) == sorted(spec.replace(":", "_") for spec in SUITES[suite])
    meta = published_table("mosaiclip-table1").columns[-1]
    assert len(meta.terms) == 19
    nine = {c.id: c for c in published_table("mosaiclip-table9").columns}
    assert len(nine["zs"].terms) == 63
    assert set(nine["meta"].terms) == set(meta.terms)


def test_known_numbers_of_the_papers() -> None:
    fsc = published_table("fsc-clip-table1")
    rows = printed(fsc)
    assert rows["COCO", "NegCLIP", ""]["sugarcrepe"] == 83.7
    assert rows["LAION-COCO 100K", "FSC-CLIP", "yes"]["comp"] == 54.2
    assert [row.note for row in fsc.rows if row.labels[1] == "MosaiCLIP"] == [
        "quoted by FSC-CLIP from the MosaiCLIP paper"
    ] * 2
    mosaic = published_table("mosaiclip-table1")
    assert any("rotated" in note for note in mosaic.notes)
    assert [*printed(mosaic).values()][-1]["coco_vlc"] == 81.4
    assert [*printed(published_table("hard-positives")).values()][2]["replace_brittleness"] == 16.9
    clic = published_table("clic")
    assert clic.rows[1].marks == {"coco_i2t": "in-domain", "coco_t2i": "in-domain"}


def test_the_bar_tells_its_sources_apart() -> None:
    bar = published_table("newer-2026")
    rows = printed(bar)
    assert len(rows) == len(bar.rows)  # one row a method and source
    letters = set(re.findall(r"\b([A-Z]): ", bar.notes[0]))
    assert {source for _, source in rows} == letters
    best = {
        "aro": (90.0, ("READ-CLIP", "C")),
        "sugarcrepe": (93.4, ("TROHN-Text", "B")),
        "itt": (70.3, ("CLIC (RedCaps)", "C")),
        "valse": (77.3, ("DeGLA", "C")),
        "vlc": (84.7, ("DAC-SAM (CC3M)", "F")),
        "whatsup": (43.9, ("READ-CLIP", "R")),
        "half_truth": (69.3, ("CS-CLIP", "H")),
        "bivlc": (69.3, ("TROHN-Img", "B")),
        "negbench": (57.9, ("NegCLIP + NegFull", "N")),
        "coco_i2t": (62.9, ("CS-CLIP without foils", "C")),
    }
    for name, (value, labels) in best.items():
        found = max((v[name], k) for k, v in rows.items() if v[name] is not None)
        assert found == (value, labels), name
    assert any("GELU" in note and "LAION-400M" in note for note in bar.notes)
    assert rows["DeGLA", "C"]["vismin"] is None
    (note,) = (row.note for row in bar.rows if row.labels == ("DeGLA", "C"))
    assert "lacks counting" in note
    text = table_text(bar, [])
    assert "compare rows of one letter" in text
    columns = [source for each in bar.columns for source, _ in each.terms]
    assert len(columns) == len(set(columns)) + 1  # ImageNet, alone and among the 21 sets


def test_the_rows_of_mieb_are_those_of_its_result_files() -> None:
    table = published_table("mieb")
    rows = {row.labels[0]: row.values for row in table.rows}
    assert len(rows) == len(table.rows) == 49
    clip = rows["openai/clip-vit-base-patch32"]
    assert clip == (51.76, 61.4, 46.37, 56.6, 76.61, 31.25, 11.25, 9.0, 13.21)
    best = {k: max(v[k] for v in rows.values() if v[k] is not None) for k in (0, 4, 7)}
    assert best == {0: 59.2, 4: 91.35, 7: 15.0}  # VG-Relation, SugarCrepe, Winoground group
    assert sum(values[4] is None for values in rows.values()) == 7
    text = table_text(table, [])
    assert re.search(r"^published +openai/clip-vit-base-patch32 .* 76\.6 ", text, re.MULTILINE)
    for words in ("One prompt per model", "a tie counts as right", "is a defect", "in-domain"):
        assert words in text.replace("\n", " ")
    # every figure is a whole number of the official items
    items = (23937, 28748, 25010, 5000, 7511, 400, 400, 400, 2302)
    for values in rows.values():
        for value, n in zip(values, items):
            if value is not None:
                assert abs(round(value * n / 100) * 100 / n - value) <= 0.0056  # rounded twice


def test_mieb_against_the_published_file(shared_data: Path) -> None:
    path = shared_data / "annotations" / "mieb_results" / "mieb_compositional.jsonl"
    table = published_table("mieb")
    rows = {row.labels[0]: row.values for row in table.rows}
    aro = ("AROVisualRelation", "AROVisualAttribution", "AROCocoOrder", "AROFlickrOrder")
    columns = {task: {"text_acc": k} for k, task in enumerate((*aro, "SugarCrepe"))}
    columns["Winoground"] = {"text_acc": 5, "image_acc": 6, "accuracy": 7}
    seen = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["task"] == "ImageCoDe":
            wanted = {8: row.get("accuracy") or row["image_acc"]}
        else:
            wanted = {k: row[field] for field, k in columns[row["task"]].items()}
        for k, value in wanted.items():
            assert rows[row["model"]][k] == round(100 * value, 2)
            seen += 1
    assert seen == sum(v is not None for values in rows.values() for v in values) == 49 * 9 - 7


@pytest.mark.parametrize("name", published_tables())
def test_rows_and_columns_of_a_table_fit(name: str) -> None:
    table = published_table(name)
    columns = {column.id for column in table.columns}
    assert len(columns) == len(table.columns)
    assert all(
        source.block in (table.blocks or [""]) for c in table.columns for source, _ in c.terms
    )
    for row in table.rows:
        assert (len(row.labels), len(row.values)) == (len(table.row_labels), len(columns))
        assert row.marks.keys() <= columns


def test_papers_are_read_as_files_of_options_are() -> None:
    for path in Path(read.__file__).with_name("papers").glob("*.yaml"):
        assert package_yaml(path) == parsed_yaml(path.read_text(), path, "paper")
    with pytest.raises(UsageError, match="no published table 'x'; known: clic"):
        published_table("x")


def test_a_derived_column_waits_for_all_its_parts(tmp_path: Path) -> None:
    table = published_table("fsc-clip-table1")
    names = [terms(table, name)[0].benchmark for name in ELEVEN]
    results = measured(tmp_path, [name for name in names if name != "winoground"])
    (row,) = fill_table(table, entries_of(results))
    assert cells(table, row)["comp"] is None
    assert row.missing["comp"] == ("winoground group",)
    assert row.covered == 10
    (loose,) = fill_table(table, entries_of(results), allow_partial=True)
    cell = cells(table, loose)["comp"]
    assert (cell.have, cell.of, cell.marks) == (10, 11, ("10 of 11 parts",))
    assert cell.value == pytest.approx(np.mean([r.aggregates["vl_compo"].value for r in results]))
    results += measured(tmp_path, ["winoground"], aggregates={"group": RULES["vl_compo"]})
    (full,) = fill_table(table, entries_of(results))
    cell = cells(table, full)["comp"]
    assert (cell.have, cell.marks, cell.chance) == (11, (), pytest.approx(0.5))
    assert (cell.low, cell.high) == (None, None)


def test_a_column_from_a_part_of_the_items_is_marked(tmp_path: Path) -> None:
    results = measured(tmp_path, ["sugarcrepe"], expected={"even": 12, "odd": 20})
    table = published_table("fsc-clip-table1")
    (row,) = fill_table(table, entries_of(results))
    cell = cells(table, row)["sugarcrepe"]
    assert (cell.n, cell.expected, cell.marks) == (24, 32, ("partial",))
    text = table_text(table, [row])
    assert f"{100 * cell.value:.1f}*" in text
    assert "* only a part of the benchmark's items was measured" in text
    assert "ours: 1 of 15 columns; not or not wholly measured: aro vl_compo" in text


def test_a_difference_has_neither_chance_nor_interval(tmp_path: Path) -> None:
    results = measured(tmp_path, ["hard_positives"])
    table = published_table("hard-positives")
    (row,) = fill_table(table, entries_of(results))
    row_cells = cells(table, row)
    aug, orig = (results[0].aggregates[name] for name in ("replace", "replace_original"))
    change = row_cells["replace_delta"]
    assert change.value == pytest.approx(aug.value - orig.value)
    assert (change.chance, change.low, change.high) == (None, None, None)
    parts = [row_cells["replace_aug"], row_cells["replace_orig"]]
    assert [(p.value, p.low) for p in parts] == [(aug.value, aug.low), (orig.value, orig.low)]


def test_blocks_take_the_models_that_are_named_for_them(tmp_path: Path) -> None:
    names = ["aro", "vl_checklist", "svo_probes"]
    table = published_table("mosaiclip-table1")
    blocks = {block: measured(tmp_path, names, f"tuned-{block}") for block in ("coco", "cc")}
    (row,) = fill_table(table, [("ours", blocks)])
    row_cells = cells(table, row)
    for block, results in blocks.items():
        assert row_cells[f"{block}_rel"].value == results[0].aggregates["vg_relation"].value
    assert (row_cells["yfcc_rel"], row_cells["cc_cu"]) == (None, None)
    assert "aro vg_relation (YFCC-FT)" in row.missing["meta"]
    (everywhere,) = fill_table(table, entries_of(blocks["coco"]))
    values = [cells(table, everywhere)[f"{block}_rel"] for block in table.blocks]
    assert values[0] == values[1] == values[2] is not None


def test_other_editions_are_never_taken_for_the_official(tmp_path: Path) -> None:
    table = published_table("fsc-clip-table1")
    official, world = measured(tmp_path, ["sugarcrepe", "world-valse"])
    world = replace(world, known_as="valse@world")
    rows = fill_table(table, entries_of([official, world]))
    assert [(row.edition, row.covered) for row in rows] == [("", 1), ("world", 1)]
    text = table_text(table, rows)
    assert "ours [world items]" in text
    assert "not comparable with the published rows" in text
    with pytest.raises(CompoclipError, match="world-valse and world-valse are both results of"):
        fill_table(table, [("ours", {"": [world, world]})])
    foils = [replace(world, known_as="foils@world", benchmark=name) for name in "ab"]
    rows = fill_table(table, [("ours", {"": [official, world, *foils]})])
    assert [row.covered for row in rows if row.edition] == [1]  # no column is about foils


def test_other_captions_are_never_taken_for_the_official(tmp_path: Path) -> None:
    clic = published_table("clic")
    (raw,) = measured(tmp_path, ["retrieval_coco"])
    ways = {way: {"r5": raw.aggregates["micro"]} for way in ("i2t", "t2i")}
    for known_as, marks in (("", (STANDS_IN,)), ("retrieval_coco_pre30", ())):
        result = replace(raw, scores=ways, known_as=known_as or raw.known_as)
        (row,) = fill_table(clic, entries_of([result]))
        assert cells(clic, row)["coco_i2t"].marks == marks


def test_every_format_of_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = measured(tmp_path, ["sugarcrepe", "aro"], "a_b")

    def compared(*options: str) -> str:
        out = str(tmp_path / "out")
        command = ["compare", out, "--against=fsc-clip-table1", *options]
        assert main(command) == 0
        return capsys.readouterr().out

    exact = results[0].aggregates["vl_compo"].value
    value = f"{100 * exact:.1f}"
    text = compared()
    assert re.search(r"^published +COCO +NegCLIP +80\.9", text, re.MULTILINE)
    assert value in next(line for line in text.splitlines() if line.startswith("measured"))
    assert "95 % interval" in text
    markdown = compared("--format=markdown")
    assert "| *published* | *COCO* | *NegCLIP* |" in markdown
    assert f"| {value} |" in markdown
    latex = compared("--format=latex")
    assert "\\textcolor{gray}{NegCLIP}" in latex
    assert "a\\_b" in latex
    rows = csv.DictReader(io.StringIO(compared("--format=csv")))
    assert [row["SugarCrepe"] for row in rows if row["source"] == "measured"] == [value]
    data = json.loads(compared("--json"))
    assert data["published"][1]["percent"]["aro"] == 80.9
    (ours,) = data["measured"]
    assert ours["cells"]["sugarcrepe"]["value"] == pytest.approx(exact)
    assert ours["cells"]["comp"] is None


def test_blocks_and_mistakes_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        measured(tmp_path, ["aro"], name)
    one, two = (str(tmp_path / "out" / name) for name in ("one", "two"))
    against = ["--against=mosaiclip-table1", "--json"]
    assert main(["compare", f"coco={one}", f"cc={two}", f"coco={two}", *against]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [each["model"] for each in data["measured"]] == ["one + two", "two"]
    for arguments, code, words in (
        ([f"imagenet={one}", *against], 2, "its blocks: coco, cc, yfcc"),
        ([one, "--against=table1"], 2, ""),
        ([one, two, "--allow-partial"], 2, ""),
        (["--against=clic"], 2, ""),
        ([one, "--against=clic"], 0, "no result fits a column"),
    ):
        assert main(["compare", *arguments]) == code
        assert words in capsys.readouterr().err
    assert main(["compare", one, two, "--format=csv", "--resamples=20"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0][1:3] == ["one", "two"]


# --- Files of mteb. ---

WHOLE = {**RULES, "paper": Aggregate(("even", "odd"), "micro")}
WHOLE |= {"text": Aggregate(("even",)), "image": Aggregate(("odd",)), "group": Aggregate(("even",))}


def mteb_files(folder: Path, model: str) -> tuple[list[Results], list[str]]:
    table = published_table("mieb")
    results = measured(folder, ["sugarcrepe", "winoground"], model, aggregates=WHOLE)
    rows = entries_of(results)
    return results, write_mteb_files(table, rows, fill_table(table, rows), folder / "mteb")


def test_files_of_mteb_hold_the_columns_of_mieb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, files = mteb_files(tmp_path, "my model")
    lines = capsys.readouterr().err.splitlines()
    assert {re.sub("left out: my model (.*), not measured", r"\1", line) for line in lines} == {
        *("AROVisualRelation", "AROVisualAttribution", "AROCocoOrder", "AROFlickrOrder"),
        "ImageCoDe",
    }
    for result, place in zip(results, files):
        content = json.loads((tmp_path / "mteb" / place).read_text())
        weights = result.identity["weights"]
        assert place == f"results/compoclip__my_model/{weights}/{content['task_name']}.json"
        assert content["dataset_revision"] == f"compoclip-{result.data_hash}"
        (scores,) = content["scores"]["test"]
        values = {name: score.value for name, score in result.aggregates.items()}
        if content["task_name"] == "SugarCrepe":
            expected = {"text_acc": values["paper"], "main_score": values["paper"]}
        else:
            expected = {"text_acc": values["text"], "image_acc": values["image"]}
            expected |= {"accuracy": values["group"], "main_score": values["group"]}
        about = {"hf_subset": "default", "languages": ["eng-Latn"]}
        assert scores == {**{k: round(v, 6) for k, v in expected.items()}, **about}


@pytest.mark.usefixtures("restored_environment")
def test_mteb_reads_its_files(tmp_path: Path) -> None:
    mteb = pytest.importorskip("mteb", reason="needs pip install mteb")
    results, files = mteb_files(tmp_path, "ours")
    single = mteb.TaskResult.from_disk(tmp_path / "mteb" / files[0])
    assert single.task_name == "SugarCrepe"
    assert single.modalities == ["text", "image"]
    value = results[0].aggregates["paper"].value
    for result in (single, single.validate_and_filter_scores()):  # as mteb's own task has it
        assert result.get_score() == pytest.approx(value, abs=1e-6)
    cache = mteb.ResultCache(tmp_path / "mteb")
    (model,) = cache.load_results(require_model_meta=False, include_remote=False).model_results
    assert model.model_name == "compoclip/ours"
    assert {each.task_name for each in model.task_results} == {"SugarCrepe", "Winoground"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mteb=files"], "--mteb goes with --against"),
        (["--against=fsc-clip-table1", "--mteb=files"], "no tasks of mteb; write --against mieb"),
        (["--against=mieb", "--mteb=out"], "out"),
        (["--against=mieb", "--mteb=files"], "ours SugarCrepe: measured on a part of the items"),
    ],
)
def test_files_of_mteb_that_cannot_be_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    measured(tmp_path, ["sugarcrepe"], aggregates=WHOLE, expected={"even": 100, "odd": 12})
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "out/ours", *options]) in (1, 2)
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "files").exists()
