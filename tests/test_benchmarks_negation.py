"""NegBench, NegRefCOCOg and CC-Neg: official layouts, ties, rules of thumb, malformed files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark_files import refuses
from build.photos import write_photo
from build.tables import write_csv, write_json, write_rows
from compoclip.benchmarks import negation
from compoclip.benchmarks.case import Case, Form, ImageRef, Retrieval, TiePolicy
from compoclip.benchmarks.entries import entries, rule_of
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.benchmarks.solvability import LARGER, SHORTER, rules_of_thumb
from compoclip.cli.main import main
from compoclip.errors import UsageError
from compoclip.evaluation.groups import kind, profile_groups
from compoclip.evaluation.published.read import published_table
from evaluation_helpers import flat, results_of, rule_value

MCQ = {
    "coco": "COCO_val_mcq_llama3.1_rephrased.csv",
    "voc": "VOC2007_mcq_llama3.1_rephrased.csv",
}
PLAIN = "COCO_val_retrieval.csv"
NEGATED = "COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv"


def mcq_row(**changes: Any) -> dict[str, Any]:
    row = {
        "image_path": "data/coco/images/val2017/000000000139.jpg",
        "caption_0": "A chair is in the room, but no bicycle.",
        "caption_1": "A bicycle is in the room, but no chair.",
        "caption_2": "A bicycle is in the room.",
        "caption_3": "There is no chair in the room.",
        "correct_answer": 0,
        "correct_answer_template": "hybrid",
    }
    return {**row, **changes}


def test_negbench_choice(tmp_path: Path) -> None:
    rows = [mcq_row(), mcq_row(correct_answer=2, correct_answer_template="positive")]
    voc = mcq_row(image_path="/home/x/VOC2007/JPEGImages/000001.jpg")
    write_csv(tmp_path / "negbench" / MCQ["coco"], *rows)
    refuses(r"VOC2007.*: no such file; .*negbench:coco", "", "negbench", tmp_path)
    write_csv(tmp_path / "negbench" / MCQ["voc"], voc)
    found = load_benchmark("negbench", tmp_path)
    assert found.content[0] == Case(
        "coco_hybrid/1",
        Form.CHOOSE_TEXT,
        (ImageRef(tmp_path / "coco" / "val2017" / "000000000139.jpg"),),
        tuple(mcq_row()[f"caption_{k}"] for k in range(4)),
        "coco_hybrid",
    )
    assert (found.content[1].id, found.content[1].truth) == ("coco_positive/2", 2)
    assert found.content[2].images == (ImageRef(tmp_path / "voc2007/JPEGImages/000001.jpg"),)
    assert (found.headline, found.ties) == ("mean", {"": TiePolicy.FIRST})


def test_printed_parts_give_the_printed_totals_of_clip() -> None:
    known, table = meta("negbench").expected, published_table("negbench")
    (row,) = (row for row in table.rows if row.labels == ("CLIP (OpenAI)",))
    at = {column.id: row.values[k] for k, column in enumerate(table.columns)}
    values = flat({part: at[part] for part in known}, known)
    written = entries()["negbench"]["rules"]
    totals = {"coco": 39.30, "voc": 38.72, "mean": (39.30 + 38.72) / 2}
    for name, total in totals.items():
        assert rule_value(rule_of(written[name], {}), values) == pytest.approx(total, abs=0.01)


def test_negbench_retrieval(tmp_path: Path) -> None:
    rows = [
        {"filepath": f"images/val2017/{k}.jpg", "captions": repr([f"it's {k}", f'"{k}", no cup'])}
        for k in range(3)
    ]
    write_csv(tmp_path / "negbench" / PLAIN, *rows)
    write_csv(tmp_path / "negbench" / NEGATED, *rows[:1])
    content = load_benchmark("negbench_retrieval", tmp_path).content
    assert isinstance(content, Retrieval)
    assert content.texts[:2] == ("it's 0", '"0", no cup')
    assert content.pairs == ((0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5))
    assert content.images[2] == ImageRef(tmp_path / "coco" / "val2017" / "2.jpg")
    negated = load_benchmark("negbench_retrieval_negated", tmp_path)
    assert (negated.name, len(negated.content.images)) == ("negbench_retrieval_negated", 1)
    with pytest.raises(UsageError, match="has no sub-tasks"):
        load_benchmark("negbench_retrieval:coco", tmp_path)


# --- NegRefCOCOg. ---


REGIONS = "negrefcocog/NegRefCOCOg.json"


def region_row(**changes: Any) -> dict[str, Any]:
    row = {
        "image": "COCO_train2014_000000000036.jpg",
        "phrase": "an umbrella with nobody under it",
        "ref_bbox": [1, 2, 10, 20],
        "bbox_list": [[1, 2, 10, 20], [0, 0, 50.5, 60]],
    }
    return {**row, **changes}


def test_negrefcocog_and_the_larger_box(tmp_path: Path) -> None:
    write_json(tmp_path / REGIONS, [region_row(), region_row(ref_bbox=[0, 0, 50.5, 60])])
    found = load_benchmark("negrefcocog", tmp_path)
    photo = tmp_path / "coco" / "train2014" / "COCO_train2014_000000000036.jpg"
    boxes = (ImageRef(photo, (1, 2, 11, 22)), ImageRef(photo, (0, 0, 50.5, 60)))
    assert found.content == tuple(
        Case(str(k), Form.CHOOSE_IMAGE, boxes, (region_row()["phrase"],), "negrefcocog", k)
        for k in (0, 1)
    )
    (rule,) = rules_of_thumb(found)
    assert (rule.rule, rule.value, rule.chance, rule.longer) == (LARGER, 0.5, 0.5, None)


GALLERY = f"negbench/{PLAIN}"
MALFORMED = [
    (GALLERY, [{"filepath": "1.jpg", "captions": "a cup"}], "row 1: 'captions' must be a Python"),
    (GALLERY, [{"filepath": "1.jpg", "captions": "[]"}], "photo '1.jpg' has no caption"),
    (GALLERY, [{"filepath": "1.jpg", "captions": "['a']"}] * 2, "photo '1.jpg' is listed twice"),
    (REGIONS, [region_row(bbox_list=[[1, 2, 10, 20]])], "row 0: 'bbox_list' must hold other boxes"),
    (REGIONS, [region_row(ref_bbox=[9, 9, 9, 9])], "'ref_bbox' once"),
    (
        REGIONS,
        [region_row(ref_bbox=[1, 2, 10])],
        r"'ref_bbox': expected \[x, y, width, height\], found",
    ),
]


@pytest.mark.parametrize(("file", "rows", "message"), MALFORMED)
def test_malformed_rows_are_refused(tmp_path: Path, file: str, rows: Any, message: str) -> None:
    path = write_rows(tmp_path / file, rows)
    spec = "negbench_retrieval" if file == GALLERY else "negrefcocog"
    refuses(message, str(path), spec, tmp_path)


# --- CC-Neg. ---


def cc_neg(n: int = 3, **changes: Any) -> dict[str, Any]:
    rows = [
        {
            "json": {"caption": f"a cup {k}", "url": "http://x"},
            "sop_data": {"negative-prompt": f"a table, and not a cup {k}"},
        }
        for k in range(n)
    ]
    paths = [f"/data/cc3m/0000{k}/00{k}.jpg" for k in range(n)]
    return {"image_paths": paths, "annotations": rows, **changes}


def write_cc_neg(root: Path, value: Any, new: bool = True) -> Path:
    """As torch.save writes it; new: since 1.6, as a zip."""
    path = root / "cc_neg" / "ccneg_preprocessed.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        torch.save(value, path, _use_new_zipfile_serialization=new)
    return path


@pytest.mark.parametrize("new", [True, False])
def test_cc_neg_however_it_was_saved(
    tmp_path: Path, new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(negation, "TEST_ROWS", 2)
    write_cc_neg(tmp_path, cc_neg(), new)
    found = load_benchmark("cc_neg", tmp_path)
    assert found.content[0] == Case(
        "1",
        Form.CHOOSE_TEXT,
        (ImageRef(tmp_path / "cc3m" / "00001" / "001.jpg"),),
        ("a cup 1", "a table and not a cup 1"),
        "cc_neg",
    )
    assert (len(found.content), sum(found.left_out.values())) == (2, 1)


class Hostile:
    """Writes a file when it is unpickled by a careless reader."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("new", [True, False])
def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path, new: bool) -> None:
    trap = tmp_path / "trap"
    path = write_cc_neg(tmp_path, cc_neg(extra=Hostile(trap)), new)
    refuses("no code in it is run", str(path), "cc_neg", tmp_path)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "is not plain data"),
        (b"\x80\x04nonsense", "is not plain data"),
        ([1], "must be an object, found"),
        ({"image_paths": []}, "no key 'annotations'"),
        (cc_neg(image_paths=["a"]), "1 image path and 3 annotations"),
        (cc_neg(annotations=[{}, {}, {}]), "row 0: no key 'json'"),
        (cc_neg(image_paths=["a", 3, "b"]), "row 1: image path must be a text"),
        (cc_neg(0), "no rows"),
    ],
)
def test_malformed_cc_neg(tmp_path: Path, value: Any, message: str) -> None:
    path = write_cc_neg(tmp_path, value)
    refuses(message, str(path), "cc_neg", tmp_path)
    path.unlink()
    refuses("no such file", "", "cc_neg", tmp_path)


def test_cc_neg_is_solved_by_the_shorter_text_and_counts_in_no_mean(tmp_path: Path) -> None:
    write_cc_neg(tmp_path, cc_neg())
    found = load_benchmark("cc_neg", tmp_path)
    (rule,) = rules_of_thumb(found)
    assert (rule.rule, rule.value, rule.chance, rule.longer) == (SHORTER, 1.0, 0.5, 4.0)
    assert found.skills == {}
    for case in found.content:
        write_photo(case.images[0].path)
    result = results_of(found, tmp_path / "out")
    assert kind(result) == "sanity"
    assert profile_groups([result]) == {}


def test_the_audit_says_how_far_a_rule_of_thumb_gets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / REGIONS, [region_row()])
    write_cc_neg(tmp_path, cc_neg())
    told = ["data", "audit", "negrefcocog", "cc_neg", "--data", str(tmp_path), "--text-only"]
    assert main(told) == 0
    printed = capsys.readouterr().out
    boxes, texts = (
        next(line.split() for line in printed.splitlines() if f"{rule} " in line)
        for rule in (LARGER, SHORTER)
    )
    assert boxes == ["negrefcocog", *LARGER.split(), "0.0", "50.0", "1"]
    assert texts == ["cc_neg", *SHORTER.split(), "100.0", "50.0", "+4.0", "3"]
    assert main([*told, "--json"]) == 0
    audits = json.loads(capsys.readouterr().out)["audits"]
    assert [each["rules_of_thumb"][0]["value"] for each in audits] == [0.0, 1.0]
