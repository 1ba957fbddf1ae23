"""CREPE, VALSE and VL-CheckList: lists in cells, archives, many files, published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmark_files import refuses
from build.tables import write_csv, write_json, write_zip
from compoclip.benchmarks.hooks import published_total
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.targets import find_in, parse_targets
from compoclip.errors import UsageError
from evaluation_helpers import flat, rule_value
from official.vl_checklist import LAYOUT

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


def prod(root: Path, name: str) -> Path:
    folder = root / "crepe" / "prod_hard_negatives" / name
    return folder / f"prod_vg_hard_negs_{name}_complexity_12.csv"


def write_prod(root: Path) -> Path:
    for name in meta("crepe_prod").parts:
        write_csv(prod(root, name), row(), row(image_id=14))
    return root


def test_photos_in_neither_folder_are_asked_for_in_the_first(tmp_path: Path) -> None:
    found = load_benchmark("crepe_prod:swap", write_prod(tmp_path))
    assert found.content[0].images[0].path == tmp_path / "vg" / "VG_100K" / "13.jpg"


def test_either_published_total_is_complete() -> None:
    for here, expected in ((12, 16727), (16727, 16727), (16728, 17698), (17698, 17698)):
        assert published_total("atom", here) == expected
    assert published_total("atom", 20000) == 20000


def test_absent_and_damaged_productivity_files(tmp_path: Path) -> None:
    refuses(r"no prod_vg_hard_negs_atom_complexity_\*\.csv", "", "crepe_prod", tmp_path)
    write_prod(tmp_path)
    path = prod(tmp_path, "negate")
    head = "image_id,caption,hard_negs,x,y,width,height\n"
    for text, words in (
        (head.replace(",hard_negs", ""), r"complexity_12\.csv: no column 'hard_negs'"),
        (f'{head}1,"a', "line 2"),
        (head.replace(",caption", ",caption,caption"), "two columns are called 'caption'"),
    ):
        path.write_text(text, encoding="utf-8")
        refuses(words, path.name, "crepe_prod", tmp_path)
    write_csv(path, row())
    write_csv(path.parent / "more" / path.name, row())
    refuses("has the same name", path.name, "crepe_prod", tmp_path)


def syst_row(**changes: Any) -> dict[str, Any]:
    lists = {
        "valid_hard_negs_atom": str(NEGATIVES[:4]),
        "valid_hard_negs_comp": str([*NEGATIVES, "f"]),
        "valid_hard_negs_combined": str([*NEGATIVES, "f", "g"]),
    }
    return {**row(), **lists, **changes}


def syst(root: Path, seen: str) -> Path:
    folder = root / "crepe" / "syst_hard_negatives"
    return folder / f"syst_vg_hard_negs_{seen}_compounds_in_cc12m.csv"


def test_systematicity_needs_the_pre_training_set(tmp_path: Path) -> None:
    write_csv(syst(tmp_path, "seen"), syst_row())
    write_csv(syst(tmp_path, "unseen"), syst_row(), syst_row(valid_hard_negs_atom="[]"))
    with pytest.raises(UsageError, match="crepe_syst,pretrained=SET"):
        load_benchmark("crepe_syst", tmp_path)
    with pytest.raises(UsageError, match="no pre-training set 'cc12'; did you mean cc12m"):
        load_benchmark("crepe_syst", tmp_path, pretrained="cc12")
    absent = r"seen_compounds_in_yfcc\.csv: no such file"
    refuses(absent, "", "crepe_syst", tmp_path, pretrained="yfcc")
    (target,) = parse_targets([f"crepe_syst,pretrained=cc12m,root={tmp_path}"], Path("x"))
    found = target.load()
    assert found.name == "crepe_syst_cc12m"
    parts = ["comp_seen", "comp_unseen", "comp_unseen", "atom_seen", "atom_unseen"]
    assert [case.subtask for case in found.content] == parts
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
    sizes = [("combined_seen", 8), ("combined_seen", 2), ("combined_unseen", 8)]
    assert [(c.subtask, len(c.texts)) for c in found.content] == sizes
    assert found.content[0].texts[1:] == (*NEGATIVES, "f", "g")
    assert found.left_out == {"rows without combined negatives": 1}
    assert (found.headline, set(found.aggregates)) == ("micro", {"micro", "macro", "combined"})
    published = load_benchmark("crepe_syst", tmp_path, pretrained="cc12m")
    assert {c.subtask[:5] for c in published.content} == {"comp_", "atom_"}
    assert "combined" not in published.aggregates


def test_a_data_root_offers_what_needs_no_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_prod(tmp_path)
    write_csv(syst(tmp_path, "seen"), syst_row())
    assert [target.spec for target in find_in(tmp_path)] == ["crepe_prod"]
    assert "crepe_syst: left out, it needs pretrained=" in capsys.readouterr().err


# --- VALSE: the official files, packed or not, their votes and photos. ---


def valse_row(votes: int = 3, **changes: Any) -> dict[str, Any]:
    known = {
        "dataset": "visual7w",
        "image_file": "v7w_1.jpg",
        "caption": "There are no people.",
        "foil": "There are people.",
        "mturk": {"foil": 0, "caption": votes, "other": 0},
    }
    return {**known, **changes}


def write_valse(root: Path, **rows: Any) -> Path:
    for name in meta("valse").parts:
        value = rows.get(name.replace("-", "_"), {"a": valse_row(), "b": valse_row(1)})
        write_json(root / "valse" / f"{name}.json", value)
    return root


def pack_valse(root: Path, prefix: str = "") -> Path:
    """The unpacked files as an archive in their own folder."""
    files = sorted((root / "valse").glob("*.json"))
    path = write_zip(
        root / "valse" / "valse_json.zip", {prefix + file.name: file.read_bytes() for file in files}
    )
    for file in files:
        file.unlink()
    return path


PHOTOS = {
    "coco": ("coco_2017", "000000000001.jpg", "coco/val2017"),
    "swig": ("SWiG", "running_1.jpg", "swig"),
    "dialog": ("VisDial_v1.0", "VisualDialog_val2018_000000000001.jpg", "visdial/val2018"),
    "train": ("VisDial_v1.0", "COCO_train2014_000000000001.jpg", "coco/train2014"),
    "foil": ("FOIL dataset", "COCO_val2014_000000000001.jpg", "coco/val2014"),
}
"""Row -> data set, photo and the folder where it lies."""


def test_photos_by_source_and_places_of_ones_own(tmp_path: Path) -> None:
    rows = {
        key: valse_row(dataset=source, image_file=photo)
        for key, (source, photo, _) in PHOTOS.items()
    }
    write_valse(tmp_path, existence=rows)

    def folders(images: Path | None = None, **options: Path) -> list[Path]:
        found = load_benchmark("valse:existence", tmp_path, images, **options)
        return [case.images[0].path.parent for case in found.content]

    assert folders() == [tmp_path / folder for _, _, folder in PHOTOS.values()]
    moved = folders(coco_images=tmp_path / "c", swig_images=tmp_path / "s")
    assert (moved[3], moved[1]) == (tmp_path / "c" / "train2014", tmp_path / "s")
    assert {*folders(tmp_path / "all")} == {tmp_path / "all"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": valse_row(0)}, "no valid rows"),
        ({"w": valse_row(), "x": valse_row(mturk={"foil": 1})}, "row 'x': 'mturk': no key"),
        (
            {"w": valse_row(), "x": valse_row(dataset="unknown")},
            "row 'x': photo 'v7w_1.jpg' of data set 'unknown' is of no known source",
        ),
    ],
)
def test_malformed_rows(tmp_path: Path, rows: Any, message: str) -> None:
    write_valse(tmp_path, plurals=rows)
    refuses(f"plurals.json: {message}", "plurals.json", "valse:plurals", tmp_path)


def test_an_archive_stands_for_the_files(tmp_path: Path) -> None:
    expected = load_benchmark("valse", write_valse(tmp_path))
    path = pack_valse(tmp_path, "VALSE/data/")
    assert load_benchmark("valse", tmp_path) == expected
    assert load_benchmark("valse", Path("x"), annotations=path).data_hash == expected.data_hash
    assert [target.spec for target in find_in(tmp_path)] == ["valse"]


WHOLE = {f"{name}.json": "{}" for name in meta("valse").parts}


@pytest.mark.parametrize(
    ("members", "part", "words"),
    [
        ({"../existence.json": "{}"}, ":existence", r"'\.\./existence\.json' leads outside"),
        ({"more/plurals.json": "{}", **WHOLE}, ":plurals", r"two files plurals\.json"),
        ({"plurals.json": "{"}, ":plurals", r"zip: plurals\.json: not valid JSON"),
        ({"plurals.json": "{"}, "", r"holds no existence\.json"),
        ({"plurals.json": "{", "": ""}, ":plurals", r"'' has no proper name"),
    ],
)
def test_malformed_archives(tmp_path: Path, members: dict[str, str], part: str, words: str) -> None:
    path = write_zip(tmp_path / "valse" / "valse_json.zip", members)
    refuses(words, str(path), f"valse{part}", tmp_path)
    assert not (tmp_path / "existence.json").exists()


def test_damaged_archives_and_two_of_them(tmp_path: Path) -> None:
    path = pack_valse(write_valse(tmp_path))
    path.write_bytes(path.read_bytes()[:300])
    refuses("cannot be unpacked", "", "valse", tmp_path)
    (path.parent / "other.zip").write_bytes(b"")
    refuses("holds 2 archives", "", "valse", tmp_path)


# --- VL-CheckList: 56 files, the first listed items, means of means. ---


FOLDER = Path("vl_checklist") / "data"
CLIP = {
    "object_location_center": 87.42, "object_location_mid": 84.43, "object_location_margin": 74.95,
    "object_size_large": 87.21, "object_size_medium": 81.57, "object_size_small": 74.10,
    "attribute_action": 70.60, "attribute_color": 69.55, "attribute_material": 69.75,
    "attribute_size": 61.10, "attribute_state": 67.30, "relation_action": 72.07,
    "relation_spatial": 54.00,
}  # fmt: skip
"""Published scores of CLIP."""


def write_checklist(root: Path) -> Path:
    """Three items in every file."""
    texts = {"POS": ["brown knob", "knob"], "NEG": ["teal knob"]}
    for files in LAYOUT.values():
        for file in files:
            write_json(root / FOLDER / file, [[f"{k}.jpg", texts] for k in "012"])
    return root


def test_the_first_items_of_a_file(tmp_path: Path) -> None:
    write_checklist(tmp_path)
    limited, every = (
        parse_targets([f"vl_checklist,limit={limit},root={tmp_path}"], Path("x"))[0].load()
        for limit in (2, "none")
    )
    assert (len(limited.content), len(every.content)) == (2 * 56, 3 * 56)
    assert limited.left_out == {"items beyond the first 2 of their file": 56}
    assert every.left_out == {}
    assert every.data_hash != limited.data_hash
    assert limited.content[0].texts == ("brown knob", "teal knob")
    vaw = next(case for case in limited.content if case.labels["source"] == "vaw")
    assert vaw.images[0].path == tmp_path / "vg" / "0.jpg"
    assert load_benchmark("vl_checklist:attribute_*", tmp_path).headline == "micro"
    with pytest.raises(UsageError, match="at least 1"):
        load_benchmark("vl_checklist", tmp_path, limit=0)


def test_published_scores_of_clip(tmp_path: Path) -> None:
    rules = load_benchmark("vl_checklist", write_checklist(tmp_path)).aggregates
    scores = {
        name: [(CLIP[name], {"file": file.removesuffix(".json")}) for file in files]
        for name, files in LAYOUT.items()
    }
    published = {"vl_compo": 70.77, "object": 81.61, "attribute": 67.66, "relation": 63.03}
    for name, value in {**published, **CLIP}.items():
        assert rule_value(rules[name], scores) == pytest.approx(value, abs=0.011), name
