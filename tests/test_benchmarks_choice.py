"""SugarCrepe, SugarCrepe++, Hard Positives, Winoground: official formats in, cases out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmark_files import (
    refuses,
    sugarcrepe_row,
    winoground_row,
    write_hard_positives,
    write_json,
    write_sugarcrepe,
    write_sugarcrepe_pp,
    write_winoground,
)
from compoclip.benchmarks.case import Aggregate, Form, ImageRef, present
from compoclip.benchmarks.files import file_hash
from compoclip.benchmarks.registry import load_benchmark, meta


def mean_tree(rule: Aggregate | str, scores: dict[str, float], counts: dict[str, int]) -> float:
    """An aggregate over sub-task means, as a plain loop (without macro_by)."""
    if isinstance(rule, str):
        return scores[rule]
    values = [mean_tree(part, scores, counts) for part in rule.parts]
    if rule.weighting == "macro":
        return sum(values) / len(values)
    weights = [counts[part] for part in rule.parts if isinstance(part, str)]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def test_sugarcrepe_official_files(shared_data: Path) -> None:
    photos = shared_data / "photos" / "sugarcrepe_coco" / "images"
    found = load_benchmark("sugarcrepe", shared_data / "annotations", photos)
    assert Counter(case.subtask for case in found.content) == meta("sugarcrepe").expected
    assert len(found.content) == 7511
    assert found.expected == meta("sugarcrepe").expected
    assert len({case.images[0].path for case in found.content}) == 1560
    assert len({case.texts[0] for case in found.content}) == 4345
    ids = {case.id for case in found.content}
    assert len(ids) == 7511
    assert "swap_obj/245" in ids
    assert "swap_obj/108" not in ids
    used, missing = present(found)
    assert len(used) == 295
    assert len(missing) == 1500
    for name, known in meta("sugarcrepe").hashes.items():
        assert file_hash(shared_data / "annotations" / name) == known


def test_sugarcrepe_aggregates_return_the_published_numbers_of_clip(tmp_path: Path) -> None:
    scores = dict(zip(meta("sugarcrepe").parts, (90.92, 80.08, 69.20, 61.22, 63.96, 77.21, 68.79)))
    rules = load_benchmark("sugarcrepe", write_sugarcrepe(tmp_path)).aggregates
    expected = {"vl_compo": 73.03, "macro": 73.05, "micro": 76.55, "paper": 76.55}
    expected |= {"replace": 80.07, "swap": 62.59, "add": 73.00}
    for name, value in expected.items():
        got = mean_tree(rules[name], scores, dict(meta("sugarcrepe").expected))
        assert got == pytest.approx(value, abs=0.011), name


def test_sub_tasks_need_only_their_files_and_drop_undefined_aggregates(tmp_path: Path) -> None:
    write_json(tmp_path / "sugarcrepe" / "swap_obj.json", {"0": sugarcrepe_row()})
    write_json(tmp_path / "sugarcrepe" / "swap_att.json", {"0": sugarcrepe_row()})
    found = load_benchmark("sugarcrepe:swap_*", tmp_path)
    assert [case.subtask for case in found.content] == ["swap_obj", "swap_att"]
    assert set(found.aggregates) == {"micro", "macro", "swap"}
    assert found.headline == "micro"
    assert found.expected == {"swap_obj": 245, "swap_att": 666}
    assert set(found.skills) == {"swap_obj", "swap_att"}
    refuses(r"replace_obj\.json: no such file", "", "sugarcrepe", tmp_path)


def test_sugarcrepe_pp_official_files(shared_data: Path) -> None:
    photos = shared_data / "photos" / "sugarcrepe_coco" / "images"
    root = shared_data / "annotations"
    itt = load_benchmark("sugarcrepe_pp", root, photos)
    tot = load_benchmark("sugarcrepe_pp_tot", root)
    for found in (itt, tot):
        assert Counter(case.subtask for case in found.content) == meta("sugarcrepe_pp").expected
    assert len(present(itt)[0]) == 194
    assert present(tot) == (tot.content, ())
    assert {case.form for case in itt.content} == {Form.TRIPLE}
    assert {case.form for case in tot.content} == {Form.TEXT_ONLY}
    assert [case.texts for case in itt.content] == [case.texts for case in tot.content]
    same = [c.id for c in itt.content if c.subtask == "swap_obj" and c.texts[0] == c.texts[2]]
    assert same == ["swap_obj/2", "swap_obj/8"]
    for name, known in meta("sugarcrepe_pp").hashes.items():
        assert file_hash(root / name) == known


def test_sugarcrepe_pp_headline_is_the_mean_of_clics_two_columns(tmp_path: Path) -> None:
    found = load_benchmark("sugarcrepe_pp", write_sugarcrepe_pp(tmp_path))
    scores = dict(zip(meta("sugarcrepe_pp").parts, (0.9, 0.6, 0.3, 0.5, 0.1)))
    values = {name: mean_tree(found.aggregates[name], scores, {}) for name in ("replace", "swap")}
    assert values == pytest.approx({"replace": 0.6, "swap": 0.3})
    assert mean_tree(found.aggregates[found.headline], scores, {}) == pytest.approx(0.45)
    assert found.content[0].texts == ("a red cup ", "a cup that is red", "a blue cup")


def test_hard_positives_join_by_position(tmp_path: Path) -> None:
    found = load_benchmark("hard_positives", write_hard_positives(tmp_path))
    first, last = found.content[0], found.content[-1]
    assert Counter(case.subtask for case in found.content) == {
        "attribute": 2,
        "relation": 2,
        "swap": 1,
    }
    assert first.form is Form.TRIPLE
    assert first.texts == ("walking elephant", "strolling elephant", "jumping elephant")
    assert first.images == (ImageRef(tmp_path / "vg" / "VG_100K_2" / "24.jpg"),)
    assert last.images == (ImageRef(tmp_path / "aro" / "images" / "5.jpg", (1, 2, 4, 6.5)),)
    assert found.headline == "replace"
    assert found.aggregates["replace"] == Aggregate(("attribute", "relation"))
    assert found.aggregates["replace_brittleness"].metric == "brittleness"


@pytest.mark.parametrize("key", ["image_id", "false_caption"])
def test_hard_positives_refuse_misaligned_rows(tmp_path: Path, key: str) -> None:
    write_hard_positives(tmp_path, **{key: "other"})
    refuses(f"row 0: {key} 'other' differs", "swapped_data", "hard_positives", tmp_path)


def test_hard_positives_refuse_other_lengths_and_missing_boxes(tmp_path: Path) -> None:
    write_hard_positives(tmp_path)
    swapped = tmp_path / "hard_positives" / "swapped_data"
    data = tmp_path / "hard_positives" / "data"
    write_json(swapped / "vl_checklist_relations.json", [])
    refuses(r"0 rows, but .* has 2", "", "hard_positives:relation", tmp_path)
    row = dict.fromkeys(("image_id", "image_path", "true_caption", "false_caption"), "1")
    for folder in (data, swapped):
        write_json(folder / "visual_genome_attribution.json", [row])
    refuses("no key 'bbox_x'", "", "hard_positives:swap", tmp_path)
    (data / "visual_genome_attribution.json").unlink()
    refuses(r"copy ARO's visual_genome_attribution\.json", "", "hard_positives:swap", tmp_path)
    assert len(load_benchmark("hard_positives:attribute", tmp_path).content) == 2


def test_winoground(tmp_path: Path) -> None:
    rows = [
        winoground_row(),
        winoground_row(id=1, image_0="a.jpg", collapsed_tag="Relation", secondary_tag="Series"),
        winoground_row(id=2, collapsed_tag="Relation"),
    ]
    found = load_benchmark("winoground", write_winoground(tmp_path, *rows))
    folder = tmp_path / "winoground" / "images"
    assert [case.form for case in found.content] == [Form.GROUP] * 3
    assert found.content[0].images == (
        ImageRef(folder / "ex_0_img_0.png"),
        ImageRef(folder / "ex_0_img_1.png"),
    )
    assert found.content[1].images[0].path == folder / "a.jpg"
    assert found.content[1].labels["secondary_tag"] == "Series"
    assert found.headline == "group"
    assert found.aggregates["image"].metric == "image"
    assert found.aggregates["group_relation"].exclude == {"Object"}
    assert found.expected == {"winoground": 400}


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = write_sugarcrepe(tmp_path) / "sugarcrepe" / "swap_obj.json"
    refuses(r"swap_obj\.json/replace_obj\.json", "", "sugarcrepe", tmp_path, annotations=path)
