"""Pairs of photos and texts, a text and its photo among others: official formats in, items out."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from hashlib import md5
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark_files import refuses, write_hard_positives, write_sugarcrepe
from build.photos import picture, write_photo
from build.tables import (
    write_arrow,
    write_csv,
    write_json,
    write_jsonl,
    write_parquet,
    write_rows,
    write_text,
    write_zip,
)
from compoclip.archives import Members
from compoclip.benchmarks.case import Case, Form, ImageRef, present
from compoclip.benchmarks.check import check
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import find_in, parse_targets
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.published.read import published_table
from compoclip.evaluation.results import Results
from evaluation_helpers import OfBytes, features_from, features_of, results_of, score_items

# --- SugarCrepe and Hard Positives. ---


@pytest.mark.parametrize("key", ["image_id", "false_caption"])
def test_hard_positives_refuse_misaligned_rows(tmp_path: Path, key: str) -> None:
    write_hard_positives(tmp_path, **{key: "other"})
    words = "row 0: not about the photos and false captions of"
    refuses(words, "swapped_data", "hard_positives", tmp_path)


def test_hard_positives_refuse_other_lengths_and_missing_boxes(tmp_path: Path) -> None:
    write_hard_positives(tmp_path)
    data, swapped = (tmp_path / "hard_positives" / name for name in ("data", "swapped_data"))
    write_json(swapped / "vl_checklist_relations.json", [])
    refuses("not about the photos and false captions of", "", "hard_positives:relation", tmp_path)
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


def test_colorswap_has_another_split(tmp_path: Path) -> None:
    row = {"id": "7", "caption_1": "a", "caption_2": "b", "image_1": "1.png", "image_2": "2.png"}
    write_json(tmp_path / "colorswap" / "train.json", [row])
    train = load_benchmark("colorswap", tmp_path, split="train")
    assert (train.name, train.content[0].id) == ("colorswap_train", "7")
    assert train.expected == {"colorswap": 700}
    with pytest.raises(UsageError, match="split must be one of test, train, found 'val'"):
        load_benchmark("colorswap", tmp_path, split="val")


def test_cola_photos_lie_in_either_folder(tmp_path: Path) -> None:
    pair = ["https://x/1.jpg", "a", "https://x/2.jpg", "b"]
    write_json(tmp_path / "cola" / "COLA_multiobjects_matching_benchmark.json", [pair])
    write_photo(tmp_path / "vg" / "VG_100K" / "2.jpg")
    write_photo(tmp_path / "vg" / "VG_100K_2" / "1.jpg")
    found = load_benchmark("cola", tmp_path)
    assert present(found) == (found.content, ())


FOLDERS = ("Orientation", "Presence", "State", "Quantity", "Spatial", "Color")
FOLDERS += ("Structural Character", "Text", "Camera Perspective")
HEADER = "Question ID,Type,Statement\n"


def write_mmvp(root: Path, *folders: str, pairs: int = 2) -> None:
    listed = [folder for folder in folders for _ in range(2 * pairs)]
    rows = [f'{n},{folder},"statement {n}, of it"\n' for n, folder in enumerate(listed, start=1)]
    write_text(root / "mmvp_vlm" / "Questions.csv", HEADER + "".join(rows))


def test_the_prompt_of_mmvp_goes_around_its_statements(tmp_path: Path) -> None:
    write_mmvp(tmp_path, *FOLDERS)
    found = load_benchmark("mmvp_vlm", tmp_path)
    assert found.content[0].texts[0] == "a photo of statement 1, of it"
    plain = load_benchmark("mmvp_vlm", tmp_path, prompt="{}")
    assert plain.content[0].texts[1] == "statement 2, of it"
    assert plain.data_hash != found.data_hash
    with pytest.raises(UsageError, match="has no"):
        load_benchmark("mmvp_vlm", tmp_path, prompt="a photo")


def test_mmvp_patterns_by_any_name_and_photos_of_any_kind(tmp_path: Path) -> None:
    def parts() -> list[str]:
        return [case.subtask for case in load_benchmark("mmvp_vlm", tmp_path).content]

    write_mmvp(tmp_path, *FOLDERS)
    by_folder = parts()
    assert by_folder == [part for part in meta("mmvp_vlm").parts for _ in range(2)]
    write_mmvp(tmp_path, *(f"p{k}" for k in range(9)))
    assert parts() == by_folder
    write_mmvp(tmp_path, "Quantity and Count", pairs=1)
    for k in (1, 2):
        photos = tmp_path / "mmvp_vlm" / "MLLM_VLM Images" / "Quantity and Count"
        write_photo(photos / f"{k}.png")
    one = load_benchmark("mmvp_vlm", tmp_path)
    assert present(one) == (one.content, ())
    assert one.content[0].subtask == "quantity"


# --- ImageCoDe and SVO-Probes. ---


STATIC = "open-images-2056_a4b3c2"
VIDEO = "MSR-VTT-videoTrainValVideo_video2044-shot1_0"


def write_set(root: Path, name: str, numbers: range, suffix: str = ".jpg") -> Path:
    folder = root / "imagecode" / "image-sets" / name
    for number in numbers:
        write_photo(folder / f"img{number}{suffix}")
    return folder


def test_imagecode_cases(tmp_path: Path) -> None:
    texts = {STATIC: {"5": "A deer head.", "0": "A fox."}, VIDEO: {"9": "No hand in view."}}
    write_json(tmp_path / "imagecode" / "valid_data.json", texts)
    folder = write_set(tmp_path, STATIC, range(10))
    write_set(tmp_path, VIDEO, range(3, 30, 3), ".png")
    found = load_benchmark("imagecode", tmp_path)
    assert [(c.id, c.truth, c.subtask) for c in found.content] == [
        (f"{STATIC}/5", 5, "static"),
        (f"{STATIC}/0", 0, "static"),
        (f"{VIDEO}/9", 9, "video"),
    ]
    photos = [folder / f"img{k}.jpg" for k in range(10)]
    assert [ref.path for ref in found.content[0].images] == photos
    used, missing = present(found)
    assert len(used) == 2  # nine frames are there: which one is absent cannot be told
    assert len(missing) == 7
    write_set(tmp_path, VIDEO, range(30, 31))
    frames = load_benchmark("imagecode:video", tmp_path).content[0].images
    assert [ref.path.stem for ref in frames] == [f"img{k}" for k in range(3, 31, 3)]
    write_set(tmp_path, VIDEO, range(40, 41))
    refuses("11 photos instead of 10", "", "imagecode", tmp_path)


def svo_row(*flags: str, k: int = 0, **changes: Any) -> dict[str, Any]:
    row = {
        "sentence": "A girl sits on the shore.",
        "pos_url": f"http://example.org/{k}.png",
        "neg_url": "http://example.org/b.jpg?size=2",
    }
    flagged = {f"{name}_neg": name in flags for name in meta("svo_probes").parts}
    return {**row, **flagged, **changes}


def test_svo_photos_are_named_by_their_addresses(tmp_path: Path) -> None:
    rows = [
        svo_row("subj"),
        svo_row("verb"),
        svo_row("obj", k=1),
        svo_row(),
        svo_row("verb", "obj"),
    ]
    write_csv(tmp_path / "svo_probes" / "svo_probes.csv", *rows)
    folder = tmp_path / "svo_probes" / "images"
    first, third, wrong = (
        md5(url.encode()).hexdigest()
        for url in (rows[0]["pos_url"], rows[2]["pos_url"], rows[0]["neg_url"])
    )
    write_photo(folder / f"{first}.png")
    write_photo(folder / f"{wrong}.jpg")
    found = load_benchmark("svo_probes", tmp_path)
    assert [case.id for case in found.content] == ["subj/0", "verb/1", "obj/2"]
    assert found.left_out == {"rows without a flag": 1, "rows with several flags": 1}
    photos = [ref.path.name for ref in found.content[0].images]
    assert photos == [f"{first}.png", f"{wrong}.jpg"]
    used, missing = present(found)
    assert len(used) == 2
    assert missing == (str(folder / f"{third}.jpg"),)


# --- EqBen: caps, and the JPEG edition. ---


def eqben_row(part: str = "sd", k: int = 0, **changes: Any) -> dict[str, Any]:
    known = {
        "image0": f"eqben{part}/{k}/a.png",
        "image1": f"eqben{part}/{k}/b.png",
        "caption0": "a man opens a door",
        "caption1": "a man closes a door",
    }
    return {**known, **changes}


def write_eqben(root: Path, *rows: Any) -> Path:
    return write_json(root / "eqben" / "annotation.json", list(rows))


def test_a_cap_keeps_the_same_items_and_is_stated(tmp_path: Path) -> None:
    parts = meta("eqben").parts
    write_eqben(tmp_path, *(eqben_row(part, k) for k in range(40) for part in parts))
    (target,) = parse_targets([f"eqben,cap=10,root={tmp_path}"], Path("x"))
    capped, full = target.load(), load_benchmark("eqben", tmp_path)
    assert capped.content.counts() == dict.fromkeys(parts, 10)
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
    with pytest.raises(UsageError, match="eqben: cap must be at least 1, found 0"):
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


# --- Malformed files of these benchmarks. ---


MMVP, IMAGECODE = "mmvp_vlm/Questions.csv", "imagecode/valid_data.json"
SVO, EQBEN = "svo_probes/svo_probes.csv", "eqben/annotation.json"
MALFORMED: list[tuple[str, Any, str]] = [
    (MMVP, HEADER + "1,Color,a\n", "row 1: the last pair has one row"),
    (MMVP, HEADER + f"{'1' * 5000},Color,a\n", "row 1: 'Question ID' must be a number"),
    (MMVP, HEADER + '1,"Col\nor",a\n3,Color,b\n', "unknown pattern 'Col"),
    (MMVP, HEADER + "1,Color,a\n3,Color,b\n", "number 3 .* is no pair"),
    (MMVP, HEADER + "2,Color,a\n3,Color,b\n", "number 3 .* is no pair"),
    (MMVP, HEADER + "1,Color,a\n2,State,b\n", "is no pair"),
    (MMVP, HEADER + "1,Colour,a\n2,Colour,b\n", "unknown pattern 'Colour'"),
    (IMAGECODE, {STATIC: ["a"]}, f": row '{STATIC}' must be an object, found"),
    (IMAGECODE, {STATIC: {"10": "a"}}, f": row '{STATIC}': '10' is no place among 10 photos"),
    (IMAGECODE, {STATIC: {"\u0661": "a"}}, "is no place among 10 photos"),
    (
        SVO,
        [svo_row("verb"), svo_row(verb_neg="maybe")],
        ": row 2: 'verb_neg' must be True or False, found 'maybe'",
    ),
    (
        EQBEN,
        [eqben_row(), {"image": "eqbensd/a.png", "caption": "a"}],
        ": row 1: this is the randomised annotation",
    ),
    (EQBEN, [eqben_row(), eqben_row("other")], ": row 1: 'eqbenother/0/a.png' belongs to no part"),
]


@pytest.mark.parametrize(("file", "content", "words"), MALFORMED)
def test_malformed_files_are_refused(tmp_path: Path, file: str, content: Any, words: str) -> None:
    path = tmp_path / file
    if isinstance(content, str):
        write_text(path, content)
    else:
        write_rows(path, content)
    told = refuses(words, str(path), file.partition("/")[0], tmp_path)
    assert told.startswith(str(path))


# --- VisMin-bench: tables with pictures, and the published means. ---


def measured(spec: str, root: Path) -> Results:
    return results_of(load_benchmark(spec, root), root / "out", OfBytes())


def row(k: int = 0, **changes: Any) -> dict[str, Any]:
    made = {
        "id": f"id{k}",
        "image_0": {"bytes": picture(k), "path": None},
        "text_0": f"a cup left of plate {k}",
        "image_1": {"bytes": picture(k + 1), "path": None},
        "text_1": f"a cup right of plate {k}",
        "text_question_0": "?",
        "category": "relation",
    }
    return {**made, **changes}


def test_vismin_shards_of_arrow(tmp_path: Path) -> None:
    folder = tmp_path / "vismin_bench"
    categories = ("object", "attribute", "relation", "counting", "relation")
    rows = [row(k, category=category) for k, category in enumerate(categories)]
    first = write_arrow(folder / "data-00000-of-00002.arrow", rows[:3])
    second = write_arrow(folder / "data-00001-of-00002.arrow", rows[3:], footer=True)
    found = load_benchmark("vismin_bench", tmp_path)
    # Photo 1 of row 0 is photo 0 of row 1: one photo, the first that was seen.
    refs = (ImageRef(first, member="image_0:0"), ImageRef(first, member="image_0:1"))
    texts = (rows[0]["text_0"], rows[0]["text_1"])
    assert found.content[0] == Case("object/0", Form.GROUP, refs, texts, "object")
    last = (ImageRef(second, member="image_0:1"), ImageRef(second, member="image_1:1"))
    assert (found.content[4].id, found.content[4].images) == ("relation/1", last)
    read = Members()
    stored = [[read(i.path, i.member) for i in case.images] for case in found.content]
    assert stored == [[picture(k), picture(k + 1)] for k in range(5)]
    assert [target.spec for target in find_in(tmp_path)] == ["vismin_bench"]
    state = check("vismin_bench", tmp_path, decoding=True)
    assert (state.damaged_count, state.missing_count) == (0, 0)
    with pytest.raises(CompoclipError, match="holds no image 'image_0:9'"):
        read(first, "image_0:9")


def test_vismin_is_the_same_in_any_table(tmp_path: Path) -> None:
    """Arrow shards, the hub's Parquet conversion, a folder `data`: one measurement."""
    rows = [row(k, category=part) for k, part in enumerate(meta("vismin_bench").parts)]
    write_arrow(tmp_path / "a" / "vismin_bench" / "data" / "data-00000-of-00001.arrow", rows)
    parquet = tmp_path / "p" / "vismin_bench" / "test-00000-of-00001.parquet"
    write_parquet(parquet, rows)
    one, two = (measured("vismin_bench", tmp_path / name) for name in "ap")
    assert one.aggregates == two.aggregates
    three = ("text", "image", "group")
    parts = [metrics[name].value for metrics in one.scores.values() for name in three]
    assert len(parts) == 12
    mean = one.aggregates["mean"]
    assert mean.value == pytest.approx(np.mean(parts))
    assert mean.chance == pytest.approx((1 / 4 + 1 / 4 + 1 / 6) / 3)
    assert len(load_benchmark("vismin_bench", tmp_path, annotations=parquet).content) == 4


def test_the_published_means_are_those_of_the_printed_parts() -> None:
    table = published_table("vismin")
    for each in table.rows:
        *parts, mean = each.values
        printed = [part for part in parts if part is not None]
        assert np.mean(printed) == pytest.approx(mean, abs=0.01)
    # Printed percentages are whole numbers of items.
    counts = meta("vismin_bench").expected
    for each in table.rows[:3]:
        for value, column in zip(each.values[:-1], table.columns):
            items = value * counts[column.terms[0][0].score] / 100
            assert abs(items - round(items)) < 0.04, (each.labels, column.id)
    for each in published_table("naturalbench").rows:
        for value in each.values:
            assert abs(value * 12.27 - round(value * 12.27)) < 0.07, each.labels


# --- NaturalBench-Retrieval. ---


def pair(k: int = 0, **changes: Any) -> dict[str, Any]:
    made = {
        "index": k,
        "image_0": f"{k}_0.jpg",
        "image_1": f"{k}_1.jpg",
        "caption_0": f"a man rides horse {k}",
        "caption_1": f"a man leads horse {k}",
    }
    return {**made, **changes}


def write_archive(root: Path, rows: Any, inner: str = "NaturalBench-Retrieval/") -> Path:
    """The published archive; the photos are those of the rows' indices, each another picture."""
    indices = dict.fromkeys(row["index"] for row in rows)
    photos = {
        f"{inner}images/{index}_{side}.jpg": picture(2 * number + side)
        for number, index in enumerate(indices)
        for side in range(2)
    }
    path = root / "naturalbench" / "NaturalBench-Retrieval.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_zip(path, {f"{inner}metadata.json": json.dumps(rows), **photos})


@pytest.mark.parametrize("inner", ["", "NaturalBench-Retrieval/"])
def test_naturalbench_as_published_in_an_archive(tmp_path: Path, inner: str) -> None:
    rows = [pair(k) for k in range(3)]
    path = write_archive(tmp_path, rows, inner)
    found = load_benchmark("naturalbench_retrieval", tmp_path)
    assert found.content[2].images[1] == ImageRef(path, member=f"{inner}images/2_1.jpg")
    assert present(found) == (found.content, ())
    named = load_benchmark("naturalbench_retrieval", tmp_path / "x", annotations=path)
    assert named.content == found.content
    folder = tmp_path / "unpacked" / "naturalbench"
    write_json(folder / "metadata.json", rows)
    (folder / "images").mkdir()
    for k in range(3):
        for side in range(2):
            (folder / "images" / f"{k}_{side}.jpg").write_bytes(picture(2 * k + side))
    packed, unpacked = (
        measured("naturalbench_retrieval", root) for root in (tmp_path, folder.parent)
    )
    assert packed.aggregates == unpacked.aggregates


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([pair(), pair()], "row 1: 'index': 0 occurs twice"),
        ([pair(image_0="../x.jpg")], "holds no file '../x.jpg'"),
        ([pair(image_0="9.jpg")], "the archive holds no file '9.jpg'"),
    ],
)
def test_malformed_naturalbench(tmp_path: Path, rows: Any, message: str) -> None:
    path = write_archive(tmp_path, rows)
    refuses(message, str(path), "naturalbench_retrieval", tmp_path)


def test_members_of_naturalbench_are_each_there_once(tmp_path: Path) -> None:
    path = write_archive(tmp_path, [pair()])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/images/0_0.jpg", b"of the system")
    assert load_benchmark("naturalbench_retrieval", tmp_path)
    for name, words in (("more/0_1.jpg", "holds two files '0_1.jpg'"), ("../x", "leads outside")):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, b"another")
        refuses(words, str(path), "naturalbench_retrieval", tmp_path)


def test_damaged_and_absent_naturalbench(tmp_path: Path) -> None:
    path = write_archive(tmp_path, [pair()])
    path.write_bytes(path.read_bytes()[:50])
    words = r"NaturalBench-Retrieval\.zip: cannot be unpacked"
    refuses(words, "", "naturalbench_retrieval", tmp_path)
    path.unlink()
    refuses(r"metadata\.json: no such file", "", "naturalbench_retrieval", tmp_path)


# --- BiVLC: exported rows, the hub's tables with their pictures, group scores. ---


def bivlc_row(**changes: Any) -> dict[str, Any]:
    row = {
        "image": "000000565045.jpg",
        "caption": "Blue bathroom with two white towels",
        "negative_caption": "White bathroom with two blue towels",
        "negative_image": "0_negative.jpg",
        "type": "swap",
        "subtype": "att",
    }
    return {**row, **changes}


def write_bivlc(root: Path, *rows: Any) -> Path:
    return write_jsonl(root / "bivlc" / "bivlc.jsonl", rows)


def test_bivlc_as_parquet(tmp_path: Path) -> None:
    write_bivlc(tmp_path, bivlc_row())
    lines = load_benchmark("bivlc", tmp_path)
    path = write_parquet(tmp_path / "bivlc" / "bivlc.parquet", [bivlc_row()])
    assert load_benchmark("bivlc", tmp_path).content == lines.content
    write_parquet(path, {"image": ["1.jpg"]})
    refuses("no column 'negative_image', only 'image'", "", "bivlc", tmp_path)
    for absent in (None, b""):
        held = [bivlc_row(image={"bytes": data, "path": "1.jpg"}) for data in (b"x", absent)]
        write_parquet(path, held)
        refuses("row 2: 'image' holds no picture", "", "bivlc", tmp_path)
    path.write_bytes(b"PAR1")
    refuses("not a whole Parquet file", str(path), "bivlc", tmp_path)


def clusters(cases: Sequence[Case]) -> int:
    features = features_of(cases, np.eye(16, dtype=np.float32), np.eye(16, dtype=np.float32))
    return len(set(score_items(cases, features).clusters))


def test_bivlc_as_the_hub_has_it(tmp_path: Path) -> None:
    """Pictures inside, in two tables; three questions about one photo stay one photo."""
    hub, exported = tmp_path / "hub", tmp_path / "exported"
    rows, lines = [], []
    for k in range(4):
        texts = {"caption": f"{k} towels", "negative_caption": f"no {k} towels"}
        line = bivlc_row(**texts, subtype=("obj", "att")[k % 2])
        numbers = {"image": k // 3, "negative_image": k + 2}
        names = {column: f"{column}_{number}.png" for column, number in numbers.items()}
        rows.append(
            {**line, **{c: {"bytes": picture(n), "path": None} for c, n in numbers.items()}}
        )
        lines.append({**line, **names})
        for column, number in numbers.items():
            path = exported / "bivlc" / "images" / names[column]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(number))
    write_bivlc(exported, *lines)
    shards = [hub / "bivlc" / "data" / f"test-0000{shard}-of-00002.parquet" for shard in (0, 1)]
    for shard, path in enumerate(shards):
        write_parquet(path, rows[2 * shard : 2 * shard + 2])

    inside, outside = (load_benchmark("bivlc:swap_*", root) for root in (hub, exported))
    assert [case.id for case in inside.content] == [case.id for case in outside.content]
    photos = [case.images[0].photo for case in inside.content[:3]]
    assert photos == [f"{shards[0]}@image:0"] * 3
    assert present(inside) == (inside.content, ())
    one, two = (measured("bivlc:swap_*", root) for root in (hub, exported))
    assert one.aggregates == two.aggregates
    assert clusters(inside.content) == clusters(outside.content) == 2
    assert {file.path: file.state for file in check("bivlc", hub).files} == {
        "bivlc/bivlc.jsonl": "archive"
    }
    assert "bivlc" in [target.spec for target in find_in(hub)]


BIVLC_OUTCOMES = """
TTFTTFF TTTTTTT TTTTTTT FTTTFTF FTTFFFF TTFTTFF TTFTTFF TTTFTFF TTFTTFF TTTTTTT FTTFFFF
TTTFTFF TTTTTTT TTTTTTT TTTTTTT TTTTTTT TTTFTFF TTFTTFF TTFTTFF FTFTFFF TTTTTTT FTTTFTF
TTTTTTT TTTTTTT TTFTTFF TTFTTFF FTTTFTF TTTTTTT TTTTTTT FTFTFFF TTTFTFF FTTFFFF TTTFTFF
FTFTFFF TTTTTTT TTTTTTT TTFTTFF TTTTTTT FTFTFFF TTFTTFF TTFTTFF TTTTTTT FTTFFFF TTTTTTT
"""
"""The first 44 items of CLIP ViT-B/32 as BiVLC's authors publish them (repository IMirandaM/BiVLC,
results/BiVLC_ViT-B-32.csv, MIT): text_score_i0, text_score_i1, image_score_c0, image_score_c1,
text_score, image_score, group_score."""


def scores_with(i0: bool, i1: bool, c0: bool, c1: bool) -> np.ndarray:
    """s(image, text), (2, 2), in which just these of the four comparisons come out right."""
    for order in permutations((0.1, 0.2, 0.3, 0.4)):
        (a, b), (c, d) = found = np.array(order, dtype=np.float32).reshape(2, 2)
        if (a > b, d > c, a > c, d > b) == (i0, i1, c0, c1):
            return found
    raise AssertionError("no scores give these outcomes")


def test_outcomes_of_the_publication() -> None:
    rows = [[letter == "T" for letter in outcome] for outcome in BIVLC_OUTCOMES.split()]
    cases, scores = [], {}
    for k, outcome in enumerate(rows):
        images, texts = ((f"{kind}{k}-0", f"{kind}{k}-1") for kind in "it")
        for image, values in zip(images, scores_with(*outcome[:4]).tolist()):
            scores[image] = dict(zip(texts, values))
        refs = tuple(ImageRef(Path(image)) for image in images)
        cases.append(Case(str(k), Form.GROUP, refs, texts, "add_obj"))
    items = score_items(cases, features_from(scores))
    for place, metric in enumerate(("text", "image", "group"), start=4):
        assert items.outcomes[metric].used.tolist() == [row[place] for row in rows], metric
    assert not any(items.to_arrow()["tie"].to_pylist())
