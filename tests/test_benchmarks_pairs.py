"""Pairs of photos and texts, a text and its photo among others: official formats in, items out."""

from __future__ import annotations

from collections import Counter
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses, write_hard_positives, write_sugarcrepe
from build.photos import write_photo
from build.tables import write_csv, write_json
from compoclip.benchmarks.case import Form, ImageRef, TiePolicy, present
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import parse_targets
from compoclip.errors import UsageError

# --- SugarCrepe and Hard Positives. ---


@pytest.mark.parametrize("key", ["image_id", "false_caption"])
def test_hard_positives_refuse_misaligned_rows(tmp_path: Path, key: str) -> None:
    write_hard_positives(tmp_path, **{key: "other"})
    refuses(
        "row 0: not about the photos and false captions of",
        "swapped_data",
        "hard_positives",
        tmp_path,
    )


def test_hard_positives_refuse_other_lengths_and_missing_boxes(tmp_path: Path) -> None:
    write_hard_positives(tmp_path)
    swapped = tmp_path / "hard_positives" / "swapped_data"
    data = tmp_path / "hard_positives" / "data"
    write_json(swapped / "vl_checklist_relations.json", [])
    refuses(r"not about the photos and false captions of", "", "hard_positives:relation", tmp_path)
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


# --- ColorSwap, COLA and MMVP-VLM. ---


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
    assert found.headline == "image"


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


def test_mmvp_cases(tmp_path: Path) -> None:
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


# --- ImageCoDe and SVO-Probes. ---


STATIC = "open-images-2056_a4b3c2"
VIDEO = "MSR-VTT-videoTrainValVideo_video2044-shot1_0"


def write_imagecode(root: Path, value: Any) -> Path:
    write_json(root / "imagecode" / "valid_data.json", value)
    return root


def write_set(root: Path, name: str, numbers: range, suffix: str = ".jpg") -> Path:
    folder = root / "imagecode" / "image-sets" / name
    for number in numbers:
        write_photo(folder / f"img{number}{suffix}")
    return folder


def test_imagecode_cases(tmp_path: Path) -> None:
    texts = {STATIC: {"5": "A deer head.", "0": "A fox."}, VIDEO: {"9": "No hand in view."}}
    write_imagecode(tmp_path, texts)
    folder = write_set(tmp_path, STATIC, range(10))
    write_set(tmp_path, VIDEO, range(3, 30, 3), ".png")
    found = load_benchmark("imagecode", tmp_path)
    first = found.content[0]
    assert [(c.id, c.truth, c.subtask) for c in found.content] == [
        (f"{STATIC}/5", 5, "static"),
        (f"{STATIC}/0", 0, "static"),
        (f"{VIDEO}/9", 9, "video"),
    ]
    assert first.form is Form.CHOOSE_IMAGE
    assert [ref.path for ref in first.images] == [folder / f"img{k}.jpg" for k in range(10)]
    assert found.expected == {"static": 430, "video": 1872}
    assert found.ties == {"": TiePolicy.STRICT}
    used, missing = present(found)
    assert len(used) == 2  # nine frames are there: which one is absent cannot be told
    assert len(missing) == 7
    write_set(tmp_path, VIDEO, range(30, 31))
    frames = load_benchmark("imagecode:video", tmp_path).content[0].images
    assert [ref.path.stem for ref in frames] == [f"img{k}" for k in range(3, 31, 3)]
    write_set(tmp_path, VIDEO, range(40, 41))
    refuses("11 photos instead of 10", "", "imagecode", tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({STATIC: ["a"]}, f"row '{STATIC}' must be an object, found"),
        ({STATIC: {"10": "a"}}, f"row '{STATIC}': '10' is no place among 10 photos"),
        ({STATIC: {"\u0661": "a"}}, "is no place among 10 photos"),
    ],
)
def test_malformed_imagecode(tmp_path: Path, value: Any, message: str) -> None:
    told = refuses(message, "", "imagecode", write_imagecode(tmp_path, value))
    assert told.startswith(str(tmp_path / "imagecode" / "valid_data.json"))


def svo_row(task: str = "verb", k: int = 0, **changes: Any) -> dict[str, Any]:
    known = {
        "sentence": "A girl sits on the shore.",
        "pos_triplet": "girl,sit,shore",
        "neg_triplet": "girl,run,shore",
        "pos_url": f"http://example.org/{k}.png",
        "neg_url": "http://example.org/b.jpg?size=2",
        "pos_image_id": k,
        "neg_image_id": 99,
    }
    return {
        **known,
        **{f"{name}_neg": name == task for name in meta("svo_probes").parts},
        **changes,
    }


def write_svo(root: Path, *rows: dict[str, Any]) -> Path:
    path = root / "svo_probes" / "svo_probes.csv"
    write_csv(path, *rows)
    return root


def test_svo_cases_and_their_photos(tmp_path: Path) -> None:
    rows = [svo_row("subj"), svo_row(), svo_row("obj", 1), svo_row("none"), svo_row(obj_neg=True)]
    write_svo(tmp_path, *rows)
    folder = tmp_path / "svo_probes" / "images"
    names = {row["pos_url"]: md5(row["pos_url"].encode()).hexdigest() for row in rows}
    other = md5(rows[0]["neg_url"].encode()).hexdigest()
    write_photo(folder / f"{names['http://example.org/0.png']}.png")
    write_photo(folder / f"{other}.jpg")
    found = load_benchmark("svo_probes", tmp_path)
    assert Counter(case.subtask for case in found.content) == {"subj": 1, "verb": 1, "obj": 1}
    assert found.left_out == {"rows without a flag": 1, "rows with several flags": 1}
    first = found.content[0]
    assert (first.id, first.form, first.truth) == ("subj/0", Form.CHOOSE_IMAGE, 0)
    assert first.texts == ("A girl sits on the shore.",)
    assert [ref.path.name for ref in first.images] == [
        f"{names['http://example.org/0.png']}.png", f"{other}.jpg",
    ]  # fmt: skip
    used, missing = present(found)
    assert len(used) == 2
    assert missing == (str(folder / f"{names['http://example.org/1.png']}.jpg"),)
    assert load_benchmark("svo_probes:obj", tmp_path).content == found.content[2:]


def test_malformed_svo(tmp_path: Path) -> None:
    write_svo(tmp_path, svo_row(), svo_row(verb_neg="maybe"))
    told = refuses("'verb_neg' must be True or False, found 'maybe'", "", "svo_probes", tmp_path)
    assert told.startswith(f"{tmp_path / 'svo_probes' / 'svo_probes.csv'}: row 2: ")


# --- EqBen: caps, and the JPEG edition. ---


def eqben_row(part: str = "sd", k: int = 0, **changes: Any) -> dict[str, Any]:
    known = {
        "image0": f"eqben{part}/{k}/a.png",
        "image1": f"eqben{part}/{k}/b.png",
        "caption0": "a man opens a door",
        "caption1": "a man closes a door",
        "private_info": {"dataset": part},
    }
    return {**known, **changes}


def write_eqben(root: Path, *rows: Any) -> Path:
    write_json(root / "eqben" / "annotation.json", list(rows))
    return root


def everything(count: int = 3) -> list[dict[str, Any]]:
    return [eqben_row(part, k) for k in range(count) for part in meta("eqben").parts]


def test_a_cap_keeps_the_same_items_and_is_stated(tmp_path: Path) -> None:
    write_eqben(tmp_path, *everything(40))
    (target,) = parse_targets([f"eqben,cap=10,root={tmp_path}"], Path("x"))
    capped, full = target.load(), load_benchmark("eqben", tmp_path)
    assert set(Counter(case.subtask for case in capped.content).values()) == {10}
    assert capped.left_out == {"items beyond the cap of 10 a sub-task": 7 * 30}
    assert set(capped.expected.values()) == {10}
    assert capped.data_hash != full.data_hash
    assert all(case in full.content for case in capped.content)
    ids = [case.id for case in capped.content if case.subtask == "sd"]
    # written down once: another choice would make capped results of two versions differ
    assert ids == SMALLEST
    five = load_benchmark("eqben:sd", tmp_path, cap=5)
    assert {case.id for case in five.content} < set(ids)
    assert load_benchmark("eqben", tmp_path, cap=40).left_out == {}
    with pytest.raises(UsageError, match="at least 1, or none, not 0"):
        load_benchmark("eqben", tmp_path, cap=0)


SMALLEST = ["sd/1", "sd/4", "sd/5", "sd/6", "sd/8", "sd/16", "sd/17", "sd/21", "sd/32", "sd/37"]


def test_the_jpeg_edition_must_be_named(tmp_path: Path) -> None:
    write_eqben(tmp_path, eqben_row(), eqben_row("youcook2", image0="eqbenyoucook2/1.npy"))
    write_photo(tmp_path / "eqben" / "images" / "eqbensd" / "0" / "a.jpg")
    with pytest.raises(UsageError, match="say eqben,jpg=true"):
        load_benchmark("eqben:sd", tmp_path)
    found = load_benchmark("eqben", tmp_path, jpg=True)
    names = [ref.path.name for case in found.content for ref in case.images]
    assert names == ["1.npy", "b.jpg", "a.jpg", "b.jpg"]
    write_photo(tmp_path / "eqben" / "images" / "eqbensd" / "0" / "a.png")
    assert load_benchmark("eqben:sd", tmp_path).data_hash != found.data_hash


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"image": "eqbensd/a.png", "caption": "a"}, "row 1: this is the randomised annotation"),
        (eqben_row("other"), "row 1: 'eqbenother/0/a.png' belongs to no part"),
    ],
)
def test_malformed_rows(tmp_path: Path, bad: Any, message: str) -> None:
    told = refuses(message, "", "eqben", write_eqben(tmp_path, eqben_row(), bad))
    assert told.startswith(f"{tmp_path / 'eqben' / 'annotation.json'}: {message}")
