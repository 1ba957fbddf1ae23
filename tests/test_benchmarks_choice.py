"""SugarCrepe, SugarCrepe++, Hard Positives, Winoground: official formats in, cases out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark_files import (
    refuses,
    sugarcrepe_row,
    write_hard_positives,
    write_json,
    write_sugarcrepe,
)
from compoclip.benchmarks.registry import load_benchmark


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


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = write_sugarcrepe(tmp_path) / "sugarcrepe" / "swap_obj.json"
    refuses(r"swap_obj\.json/replace_obj\.json", "", "sugarcrepe", tmp_path, annotations=path)
