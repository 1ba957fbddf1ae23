"""BiVLC: exported rows, the hub's tables with their pictures, group scores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmark_files import picture, refuses
from compoclip.benchmarks.case import Case, Form, ImageRef, present
from compoclip.benchmarks.check import check
from compoclip.benchmarks.registry import load_benchmark
from compoclip.benchmarks.targets import find_in
from compoclip.evaluation.run import Options, evaluate
from data_samples import write_jsonl
from evaluation_helpers import OfBytes, features_from, features_of, score_items


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
    path = root / "bivlc" / "bivlc.jsonl"
    return write_jsonl(path, rows)


def test_bivlc_as_parquet(tmp_path: Path) -> None:
    write_bivlc(tmp_path, bivlc_row())
    lines = load_benchmark("bivlc", tmp_path)
    path = tmp_path / "bivlc" / "bivlc.parquet"
    pq.write_table(pa.Table.from_pylist([bivlc_row()]), path)
    assert load_benchmark("bivlc", tmp_path).content == lines.content
    pq.write_table(pa.table({"image": ["1.jpg"]}), path)
    refuses("no column 'negative_image', only 'image'", "", "bivlc", tmp_path)
    held = [bivlc_row(image={"bytes": data, "path": "1.jpg"}) for data in (b"x", None)]
    pq.write_table(pa.Table.from_pylist(held), path)
    refuses("row 2: 'image' holds no picture", "", "bivlc", tmp_path)
    path.write_bytes(b"PAR1")
    refuses("not a whole Parquet file", str(path), "bivlc", tmp_path)


def clusters(cases: Sequence[Case]) -> int:
    features = features_of(cases, np.eye(16, dtype=np.float32), np.eye(16, dtype=np.float32))
    return len(set(score_items(cases, features).clusters))


def test_bivlc_as_the_hub_has_it(tmp_path: Path) -> None:
    """Pictures inside, in two tables; three questions about one photo stay one photo."""
    hub, exported = tmp_path / "hub", tmp_path / "exported"
    words = [(f"{k} towels", f"no {k} towels", ("obj", "att")[k % 2]) for k in range(4)]
    rows = [
        {
            **bivlc_row(caption=caption, negative_caption=negative, subtype=subtype),
            "image": {"bytes": picture(k // 3), "path": f"{k}.png"},
            "negative_image": {"bytes": picture(k + 2), "path": None},
        }
        for k, (caption, negative, subtype) in enumerate(words)
    ]
    folder = hub / "bivlc" / "data"
    folder.mkdir(parents=True)
    for shard in (0, 1):
        table = pa.Table.from_pylist(rows[2 * shard : 2 * shard + 2])
        pq.write_table(table, folder / f"test-0000{shard}-of-00002.parquet")
    names = [(f"{k // 3}.png", f"negative_{k}.png") for k in range(4)]
    for k, pair in enumerate(names):
        for name, number in zip(pair, (k // 3, k + 2)):
            path = exported / "bivlc" / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(number))
    lines = [
        {**row, "image": image, "negative_image": negative}
        for row, (image, negative) in zip(rows, names)
    ]
    write_bivlc(exported, *lines)

    inside, outside = (load_benchmark("bivlc:swap_*", root) for root in (hub, exported))
    assert [c.id for c in inside.content] == [c.id for c in outside.content]
    first = folder / "test-00000-of-00002.parquet"
    assert [c.images[0].photo for c in inside.content[:3]] == [f"{first}@image:0"] * 3
    assert present(inside) == (inside.content, ())
    options = Options(allow_partial=True, resamples=50)
    results = [
        evaluate("m", OfBytes(), [found], tmp_path / name, options)[0]
        for name, found in (("inside", inside), ("outside", outside))
    ]
    assert results[0].aggregates == results[1].aggregates
    assert clusters(inside.content) == clusters(outside.content) == 2
    states = {each.path: each.state for each in check("bivlc", hub).files}
    assert states == {"bivlc/bivlc.jsonl": "archive"}
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
    names = [[f"{kind}{k}-{side}" for side in (0, 1)] for k in range(len(rows)) for kind in "it"]
    scores = {
        names[2 * k][i]: dict(zip(names[2 * k + 1], each))
        for k, row in enumerate(rows)
        for i, each in enumerate(scores_with(*row[:4]).tolist())
    }
    cases = [
        Case(
            str(k),
            Form.GROUP,
            tuple(ImageRef(Path(name)) for name in names[2 * k]),
            tuple(names[2 * k + 1]),
            "add_obj",
        )
        for k in range(len(rows))
    ]
    items = score_items(cases, features_from(scores))
    for place, metric in enumerate(("text", "image", "group"), start=4):
        assert items.outcomes[metric].used.tolist() == [row[place] for row in rows], metric
    assert not any(items.to_arrow()["tie"].to_pylist())
