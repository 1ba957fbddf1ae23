"""Writes small benchmarks in the official formats, for the tests of the readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from build.photos import picture as picture
from build.photos import write_noise
from build.photos import write_photo as write_photo
from build.tables import write_csv as write_csv
from build.tables import write_json
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.targets import Target, read_suite
from compoclip.errors import CompoclipError


def examples(count: int) -> settings:
    """Settings of a property: so many examples, the same in every run."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


SUGARCREPE = ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att")
SUGARCREPE += ("add_obj", "add_att")


def sugarcrepe_row(**changes: Any) -> dict[str, Any]:
    row = {"filename": "1.jpg", "caption": "a red cup ", "negative_caption": "a blue cup"}
    return {**row, **changes}


def write_sugarcrepe(root: Path, **rows: Any) -> Path:
    """All seven files with two rows each; `rows` replaces whole files."""
    for name in SUGARCREPE:
        value = rows.get(name, {"0": sugarcrepe_row(), "7": sugarcrepe_row(filename="2.jpg")})
        write_json(root / "sugarcrepe" / f"{name}.json", value)
    return root


def red_cubes(photos: int) -> dict[str, dict[str, Any]]:
    """Four rows for each file of SugarCrepe, on so many photos: 0.png, 1.png, ..."""
    return {
        part: {
            str(k): sugarcrepe_row(
                filename=f"{(k + len(part)) % photos}.png",
                caption=f"a red cube {part} number {k}",
                negative_caption=f"a blue cube {part} number {k}",
            )
            for k in range(4)
        }
        for part in SUGARCREPE
    }


def write_mini(root: Path, photos: int, **rows: Any) -> Path:
    """SugarCrepe in miniature, an edition, with photos of noise."""
    for k in range(photos):
        write_noise(root / "coco" / "val2017" / f"{k}.png", k, (50 + k, 40))
    write_json(root / "edition.json", {"edition": "mini"})
    return write_sugarcrepe(root, **rows)


def write_sugarcrepe_pp(root: Path, **rows: Any) -> Path:
    for name in SUGARCREPE[:5]:
        value = rows.get(name, [{"id": 3, **sugarcrepe_row(caption2="a cup that is red")}])
        write_json(root / "sugarcrepe_pp" / f"{name}.json", value)
    return root


def vg_row(**changes: Any) -> dict[str, Any]:
    row = {
        "image_id": "5",
        "image_path": "5.jpg",
        "bbox_x": 1,
        "bbox_y": 2,
        "bbox_w": 3,
        "bbox_h": 4.5,
        "true_caption": "the horse is eating the grass",
        "false_caption": "the grass is eating the horse",
        "relation_name": "eating",
        "attributes": ["brown", "green"],
    }
    return {**row, **changes}


def write_hard_positives(root: Path, **changes: Any) -> Path:
    """Three aligned files in both folders; `changes` are put into the rows of swapped_data."""
    for name in ("vl_checklist_attributes", "vl_checklist_relations"):
        row = {
            "image_id": "24",
            "true_caption": "walking elephant",
            "false_caption": "jumping elephant",
            "image_path": "data/VG_100K_2/24.jpg",
        }
        twin = {**row, "true_caption": "strolling elephant", **changes}
        write_json(root / "hard_positives" / "data" / f"{name}.json", [row, row])
        write_json(root / "hard_positives" / "swapped_data" / f"{name}.json", [twin, twin])
    row, twin = vg_row(), vg_row(true_caption="the grass is eaten by the horse", **changes)
    write_json(root / "hard_positives" / "data" / "visual_genome_attribution.json", [row])
    write_json(root / "hard_positives" / "swapped_data" / "visual_genome_attribution.json", [twin])
    return root


_MADE: list[Path] = []


def made_suite(places: pytest.TempPathFactory) -> Path:
    """Every benchmark that has a writer, four items each, in its official layout; written once."""
    from compoclip_world.export.part import SuiteSpec
    from compoclip_world.export.suite import write_suite
    from compoclip_world.scene import WorldConfig
    from official import BUILDERS

    if not _MADE:
        _MADE.append(places.mktemp("world") / "suite")
        write_suite(_MADE[0], SuiteSpec(WorldConfig(size=32), 4), builders=BUILDERS)
    return _MADE[0]


def suite_targets(root: Path) -> dict[str, Target]:
    """The targets of a suite by spec, or by id where an earlier one has the same spec."""
    targets: dict[str, Target] = {}
    for target in read_suite(root / "suite.json"):
        name = str(target.id) if target.spec in targets else target.spec
        targets[name] = target
    return targets


def refuses(words: str, file: str, spec: str, root: Path, *places: Any, **options: Any) -> str:
    """Loading ends with a reason in these words, on one line that names the file; return it."""
    with pytest.raises(CompoclipError, match=words) as caught:
        load_benchmark(spec, root, *places, **options)
    expect_one_line(caught.value, file)
    return str(caught.value)


def expect_one_line(error: Exception, file: str) -> None:
    """A message that names the file, on one line that can be printed and read."""
    assert file in str(error)
    assert str(error).isprintable(), repr(str(error)[:300])
    assert len(str(error)) < 2000, str(error)[:300]
