"""Half-truths: the form by hand, the official tables, items made of captions, malformed files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmark_files import picture, refuses
from compoclip.archives import Members
from compoclip.benchmarks.case import Case, Form, ImageRef, TiePolicy
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.evaluation.run import Options, evaluate
from evaluation_helpers import OfBytes, features_from, ref, score_items

TEXTS = ("a dog", "a dog and a blue chair", "a dog and a red chair")


def judged(a: float, f: float, h: float, ties: TiePolicy) -> dict[str, tuple[float, ...]]:
    case = Case("x", Form.HALF_TRUTH, (ref("i"),), TEXTS, "s")
    features = features_from({"i": dict(zip(TEXTS, (a, f, h)))})
    items = score_items([case], features, ties={"": ties})
    return {
        name: (each.used[0], each.strict[0], each.fractional[0], each.chance[0])
        for name, each in items.outcomes.items()
    }


@pytest.mark.parametrize(
    ("a", "f", "h", "ht", "cor", "full"),
    [
        (0.5, 0.6, 0.4, 1, 1, 1),
        (0.5, 0.4, 0.3, 1, 0, 0),  # dislikes length
        (0.5, 0.7, 0.6, 0, 0, 1),  # likes length, and knows the right chair
        (0.5, 0.6, 0.7, 0, 0, 1),
        (0.5, 0.3, 0.4, 1, 0, 0),
        (0.5, 0.4, 0.6, 0, 0, 0),
    ],
)
def test_the_form_by_hand(a: float, f: float, h: float, ht: int, cor: int, full: int) -> None:
    found = judged(a, f, h, TiePolicy.STRICT)
    assert list(found) == ["ht", "cor", "full"]
    chance = {"ht": 1 / 2, "cor": 1 / 6, "full": 1 / 2}
    for name, value in (("ht", ht), ("cor", cor), ("full", full)):
        assert found[name] == (value, value, value, pytest.approx(chance[name]))


@pytest.mark.parametrize(
    ("a", "f", "h", "fractional"),
    [
        (0.5, 0.5, 0.5, {"ht": 1 / 2, "cor": 1 / 6, "full": 1 / 2}),
        (0.5, 0.5, 0.4, {"ht": 1.0, "cor": 1 / 2, "full": 1 / 2}),
        (0.5, 0.6, 0.5, {"ht": 1 / 2, "cor": 1 / 2, "full": 1.0}),
        (0.5, 0.4, 0.4, {"ht": 1.0, "cor": 0.0, "full": 0.0}),
    ],
)
def test_ties_are_wrong_right_or_shared(
    a: float, f: float, h: float, fractional: dict[str, float]
) -> None:
    strict, first = judged(a, f, h, TiePolicy.STRICT), judged(a, f, h, TiePolicy.FIRST)
    for name, value in fractional.items():
        assert strict[name][0] == (1.0 if value == 1 else 0.0)
        assert first[name][0] == (1.0 if value > 0 else 0.0)
        assert strict[name][2] == pytest.approx(value)


# --- The official tables. ---


def row(k: int = 0, **changes: Any) -> dict[str, Any]:
    made = {
        "id": k,
        "image": {"bytes": picture(k), "path": f"{k}.jpg"},
        "anchor": TEXTS[0],
        "half_truth": TEXTS[2],
        "full_truth": TEXTS[1],
        "triplet_type": "entity",
    }
    return {**made, **changes}


def write_table(root: Path, part: str, rows: list[dict[str, Any]], folder: str = "data") -> Path:
    path = root / "half_truths" / folder / f"{part}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_official_tables(tmp_path: Path) -> None:
    for part in meta("half_truths").parts:
        path = write_table(tmp_path, part, [row(0), row(1, triplet_type="relation")])
    found = load_benchmark("half_truths", tmp_path)
    shared = ImageRef(tmp_path / "half_truths/data/coco_qwen.parquet", member="image:0")
    assert found.content[0] == Case(
        "coco_qwen/0",
        Form.HALF_TRUTH,
        (shared,),
        TEXTS,
        "coco_qwen",
        labels={"triplet_type": "entity"},
    )
    assert found.content[2].images == (shared,)  # the same photo in another table
    assert Members()(shared.path, shared.member) == picture(0)
    assert (found.headline, found.ties) == ("ht", {"": TiePolicy.STRICT})
    assert found.expected == {"coco_qwen": 509, "coco_mistral": 454, "cc3m_qwen": 474}
    assert sum(found.expected.values()) == 1437
    assert {"ht", "cor", "full", "entity", "relation"} <= set(found.aggregates)
    options = Options(allow_partial=True, resamples=20)
    (result,) = evaluate("m", OfBytes(), [found], tmp_path / "out", options)
    assert result.aggregates["cor"].chance == pytest.approx(1 / 6)
    assert result.aggregates["entity"].n == 3
    some = load_benchmark("half_truths:coco_*", tmp_path)
    assert Counter(case.subtask for case in some.content) == {"coco_qwen": 2, "coco_mistral": 2}
    assert some.headline == "ht"
    path.rename(tmp_path / "half_truths" / path.name)  # out of the folder data
    assert load_benchmark("half_truths", tmp_path).content.counts()["cc3m_qwen"] == 2


def test_paths_instead_of_pictures_are_refused(tmp_path: Path) -> None:
    write_table(tmp_path, "coco_qwen", [row(0, image="1.jpg")])
    refuses("'image' holds no encoded pictures", "", "half_truths:coco_qwen", tmp_path)
