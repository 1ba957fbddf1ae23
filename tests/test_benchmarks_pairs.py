"""ColorSwap, COLA and MMVP-VLM: pairs of photos and texts from official formats."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses, write_json, write_photo
from compoclip.benchmarks.case import ImageRef, present
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.errors import UsageError
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import FakeEncoder, flat, rule_value


def colorswap_row(**changes: Any) -> dict[str, Any]:
    row = {
        "id": 0,
        "caption_1": "someone holding a yellow umbrella wearing a white dress",
        "caption_2": "someone holding a white umbrella wearing a yellow dress",
        "image_1": "images/img_0_1.png",
        "image_2": "images/img_0_2.png",
        "image_source": "midjourney",
        "caption_source": "human",
    }
    return {**row, **changes}


def test_colorswap_has_another_split(tmp_path: Path) -> None:
    write_json(tmp_path / "colorswap" / "train.json", [colorswap_row(id="7")])
    train = load_benchmark("colorswap", tmp_path, split="train")
    assert (train.name, train.content[0].id) == ("colorswap_train", "7")
    with pytest.raises(UsageError, match="no split 'val'"):
        load_benchmark("colorswap", tmp_path, split="val")


def test_cola_photos_lie_in_either_folder(tmp_path: Path) -> None:
    pair = ["https://x/1.jpg", "a", "https://x/2.jpg", "b"]
    write_json(tmp_path / "cola" / "COLA_multiobjects_matching_benchmark.json", [pair])
    write_photo(tmp_path / "vg" / "VG_100K" / "2.jpg")
    write_photo(tmp_path / "vg" / "VG_100K_2" / "1.jpg")
    found = load_benchmark("cola", tmp_path)
    assert present(found) == (found.content, ())
    (result,) = evaluate(
        "m", FakeEncoder(), [found], tmp_path / "out", Options(allow_partial=True, resamples=20)
    )
    assert result.headline == "image"
    assert result.aggregates["image"].chance == 1 / 4


FOLDERS = ("Orientation", "Presence", "State", "Quantity", "Spatial", "Color")
FOLDERS += ("Structural Character", "Text", "Camera Perspective")


def write_mmvp(
    root: Path, folders: tuple[str, ...] = FOLDERS, pairs: int = 2, text: str = ""
) -> Path:
    path = root / "mmvp_vlm" / "Questions.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ["Question ID,Type,Statement"]
    for k, folder in enumerate(folders):
        for number in range(2 * pairs * k + 1, 2 * pairs * (k + 1) + 1):
            rows.append(f'{number},{folder},"statement {number}, of {folder}"')
    path.write_text(text or "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_mmvp_cases_and_the_published_number_of_clip(tmp_path: Path) -> None:
    write_mmvp(tmp_path)
    found = load_benchmark("mmvp_vlm", tmp_path)
    assert Counter(case.subtask for case in found.content) == dict.fromkeys(
        meta("mmvp_vlm").parts, 2
    )
    first = found.content[0]
    folder = tmp_path / "mmvp_vlm" / "MLLM_VLM Images" / "Orientation"
    assert first.images == (ImageRef(folder / "1.jpg"), ImageRef(folder / "2.jpg"))
    assert first.texts[0] == "a photo of statement 1, of Orientation"
    assert found.headline == "vl_compo"
    clip = dict(zip(meta("mmvp_vlm").parts, (0, 0, 13.333, 0, 0, 13.333, 13.333, 6.667, 13.333)))
    for name in ("vl_compo", "image"):
        got = rule_value(found.aggregates[name], flat(clip))
        assert got == pytest.approx(6.67, abs=0.01)
    plain = load_benchmark("mmvp_vlm", tmp_path, prompt="{}")
    assert plain.content[0].texts[1] == "statement 2, of Orientation"
    assert plain.data_hash != found.data_hash
    some = load_benchmark("mmvp_vlm:color,state", tmp_path)
    assert {case.subtask for case in some.content} == {"color", "state"}
    assert sum(found.expected.values()) == 135
    with pytest.raises(UsageError, match="has no"):
        load_benchmark("mmvp_vlm", tmp_path, prompt="a photo")


def test_mmvp_patterns_by_any_name_and_photos_of_any_kind(tmp_path: Path) -> None:
    write_mmvp(tmp_path)
    by_folder = load_benchmark("mmvp_vlm", tmp_path)
    write_mmvp(tmp_path, tuple(f"p{k}" for k in range(9)))
    by_order = load_benchmark("mmvp_vlm", tmp_path)
    assert [c.subtask for c in by_order.content] == [c.subtask for c in by_folder.content]
    write_mmvp(tmp_path, ("Quantity and Count",), pairs=1)
    for k in (1, 2):
        photos = tmp_path / "mmvp_vlm" / "MLLM_VLM Images" / "Quantity and Count"
        write_photo(photos / f"{k}.png")
    one = load_benchmark("mmvp_vlm", tmp_path)
    assert present(one) == (one.content, ())
    assert one.content[0].subtask == "quantity"


HEADER = "Question ID,Type,Statement\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "1,Color,a\n", "row 1: the last pair has one row"),
        (HEADER + f"{'1' * 5000},Color,a\n", "row 1: 'Question ID' must be a number"),
        (HEADER + '1,"Col\nor",a\n3,Color,b\n', "unknown pattern 'Col"),
        (HEADER + "1,Color,a\n3,Color,b\n", "number 3 .* is no pair"),
        (HEADER + "2,Color,a\n3,Color,b\n", "number 3 .* is no pair"),
        (HEADER + "1,Color,a\n2,State,b\n", "is no pair"),
        (HEADER + "1,Colour,a\n2,Colour,b\n", "unknown pattern 'Colour'"),
    ],
)
def test_malformed_mmvp(tmp_path: Path, text: str, message: str) -> None:
    path = write_mmvp(tmp_path, text=text)
    refuses(message, str(path), "mmvp_vlm", tmp_path)
