"""CREPE: lists and sets written as Python, crops, whatever complexities there are, stated sets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses, write_csv
from compoclip.benchmarks.hooks import published_total
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import find_in, parse_targets
from compoclip.errors import UsageError
from evaluation_helpers import flat, rule_value

NEGATIVES = [f"computer inside floor {k}" for k in "edcba"]


def row(**changes: Any) -> dict[str, Any]:
    known = {
        "image_id": 13,
        "caption": "computer on floor. floor under computer.",
        "n": 4,
        "hard_negs": str(NEGATIVES),
        "x": 237.0,
        "y": -1.0,
        "width": 402.0,
        "height": 208.0,
    }
    return {**known, **changes}


def prod(root: Path, name: str, level: int) -> Path:
    file = f"prod_vg_hard_negs_{name}_complexity_{level}.csv"
    return root / "crepe" / "prod_hard_negatives" / name / file


def write_prod(root: Path, levels: tuple[int, ...] = (4, 12), **rows: Any) -> Path:
    for name in meta("crepe_prod").parts:
        for level in levels:
            write_csv(prod(root, name, level), *rows.get(name, [row(), row(image_id=14)]))
    return root


def test_photos_in_neither_folder_are_asked_for_in_the_first(tmp_path: Path) -> None:
    found = load_benchmark("crepe_prod:swap", write_prod(tmp_path))
    assert found.content[0].images[0].path == tmp_path / "vg" / "VG_100K" / "13.jpg"


def test_set_literals_are_read_in_sorted_order(tmp_path: Path) -> None:
    cell = "{" + ", ".join(map(repr, NEGATIVES)) + "}"
    write_prod(tmp_path, (4,), atom=[row(hard_negs=cell)])
    case = load_benchmark("crepe_prod:atom", tmp_path).content[0]
    assert case.texts[1:] == tuple(sorted(NEGATIVES))


def test_published_scores_of_clip_and_the_curve(tmp_path: Path) -> None:
    rules = load_benchmark("crepe_prod", write_prod(tmp_path)).aggregates
    table = flat({"atom": 18.96, "swap": 17.26, "negate": 34.90})
    assert rule_value(rules["vl_compo"], table) == pytest.approx(23.71, abs=0.01)
    curve = {
        "atom": [(0.9, {"complexity": "4"}), (0.5, {"complexity": "12"})],
        "swap": [(0.3, {"complexity": "4"}), (0.1, {"complexity": "12"})],
        "negate": [(0.0, {"complexity": "4"}), (0.2, {"complexity": "12"})],
    }
    assert rule_value(rules["complexity_4"], curve) == pytest.approx(0.6)
    assert rule_value(rules["complexity_12"], curve) == pytest.approx(0.3)
    assert rule_value(rules["negate_complexity_12"], curve) == pytest.approx(0.2)
    assert "complexity_5" not in rules
    some = load_benchmark("crepe_prod:negate", tmp_path).aggregates
    assert {"negate_complexity_4", "micro"} <= set(some)
    assert not {"complexity_4", "vl_compo"} & set(some)


def test_either_published_total_is_complete() -> None:
    for here, expected in ((12, 16727), (16727, 16727), (16728, 17698), (17698, 17698)):
        assert published_total("atom", here) == expected
    assert published_total("atom", 20000) == 20000


def test_absent_and_damaged_productivity_files(tmp_path: Path) -> None:
    refuses(r"no prod_vg_hard_negs_atom_complexity_\*\.csv", "", "crepe_prod", tmp_path)
    write_prod(tmp_path)
    path = prod(tmp_path, "negate", 12)
    short = row()
    del short["hard_negs"]
    write_csv(path, short)
    refuses(r"complexity_12\.csv: no column 'hard_negs'", "", "crepe_prod", tmp_path)
    path.write_text('image_id,caption,hard_negs,x,y,width,height\n1,"a', encoding="utf-8")
    refuses("line 2", "", "crepe_prod", tmp_path)
    path.write_text("image_id,caption,caption,hard_negs,x,y,width,height\n", encoding="utf-8")
    refuses("two columns are called 'caption'; keep one", "", "crepe_prod", tmp_path)
    path.unlink()
    write_csv(path.parent / "more" / path.name, row())
    write_csv(path, row())
    refuses("has the same name", "", "crepe_prod", tmp_path)


def syst_row(**changes: Any) -> dict[str, Any]:
    lists = {
        "valid_hard_negs_atom": str(NEGATIVES[:4]),
        "valid_hard_negs_comp": str([*NEGATIVES, "f"]),
        "valid_hard_negs_combined": str([*NEGATIVES, "f", "g"]),
    }
    return {**row(), **lists, **changes}


def syst(root: Path, seen: str, name: str = "cc12m") -> Path:
    folder = root / "crepe" / "syst_hard_negatives"
    return folder / f"syst_vg_hard_negs_{seen}_compounds_in_{name}.csv"


def test_systematicity_needs_the_pre_training_set(tmp_path: Path) -> None:
    write_csv(syst(tmp_path, "seen"), syst_row())
    write_csv(syst(tmp_path, "unseen"), syst_row(), syst_row(valid_hard_negs_atom="[]"))
    with pytest.raises(UsageError, match="crepe_syst,pretrained=SET"):
        load_benchmark("crepe_syst", tmp_path)
    with pytest.raises(UsageError, match="no pre-training set 'cc12'; did you mean cc12m"):
        load_benchmark("crepe_syst", tmp_path, pretrained="cc12")
    refuses(
        r"seen_compounds_in_yfcc\.csv: no such file", "", "crepe_syst", tmp_path, pretrained="yfcc"
    )
    (target,) = parse_targets([f"crepe_syst,pretrained=cc12m,root={tmp_path}"], Path("x"))
    found = target.load()
    assert found.name == "crepe_syst_cc12m"
    assert Counter(c.subtask for c in found.content) == {
        "comp_seen": 1, "comp_unseen": 2, "atom_seen": 1, "atom_unseen": 1,
    }  # fmt: skip
    assert {(c.subtask[:4], len(c.texts)) for c in found.content} == {("comp", 7), ("atom", 5)}
    assert found.left_out == {"rows without atom negatives": 1}
    assert found.headline == "unseen"
    scores = {"comp_seen": 48.3, "comp_unseen": 45.1, "atom_seen": 39.2, "atom_unseen": 35.0}
    assert rule_value(found.aggregates["unseen"], flat(scores)) == pytest.approx(40.05)
    only = load_benchmark("crepe_syst:comp_unseen", tmp_path, pretrained="cc12m")
    assert [c.subtask for c in only.content] == ["comp_unseen"] * 2
    assert only.data_hash != found.data_hash


def test_combined_negatives_are_measured_where_asked_for(tmp_path: Path) -> None:
    """The files hold them; no published table and no rule of the published ones does."""
    write_csv(syst(tmp_path, "seen"), syst_row(), syst_row(valid_hard_negs_combined="{'a'}"))
    write_csv(syst(tmp_path, "unseen"), syst_row(valid_hard_negs_combined="[]"), syst_row())
    found = load_benchmark("crepe_syst:combined_*", tmp_path, pretrained="cc12m")
    assert [(c.subtask, len(c.texts)) for c in found.content] == [
        ("combined_seen", 8), ("combined_seen", 2), ("combined_unseen", 8),
    ]  # fmt: skip
    assert found.content[0].texts[1:] == (*NEGATIVES, "f", "g")
    assert found.left_out == {"rows without combined negatives": 1}
    assert found.headline == "micro"
    assert set(found.aggregates) == {"micro", "macro", "combined"}
    published = load_benchmark("crepe_syst", tmp_path, pretrained="cc12m")
    assert {c.subtask for c in published.content} == {
        "comp_seen", "comp_unseen", "atom_seen", "atom_unseen",
    }  # fmt: skip
    assert "combined" not in published.aggregates


def test_a_data_root_offers_what_needs_no_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_prod(tmp_path)
    write_csv(syst(tmp_path, "seen"), syst_row())
    assert [target.spec for target in find_in(tmp_path)] == ["crepe_prod"]
    assert "crepe_syst: left out, it needs pretrained=" in capsys.readouterr().err
