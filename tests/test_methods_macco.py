"""MACCO: the weighted sum of the paper, its values, its parts beside another method, its file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from compoclip.cli.main import main
from compoclip.methods.compose import compose
from compoclip.methods.macco.masks import MaskPlan
from compoclip.methods.registry import load_recipe
from compoclip.models.config import RECORD
from compoclip.training.log import read_log
from method_data import arguments


def test_its_terms_go_with_another_method(world: Path, tmp_path: Path) -> None:
    made = compose(load_recipe("fsc-clip")(), terms=["+macco.contrast", "+degla.distill"])
    assert made.plan.texts == (MaskPlan(),)
    assert set(made.heads) == {"masks"}
    words = compose(made, settings=["texts.masks.images=false"])
    assert words.plan.texts == (MaskPlan(images=False),)
    more = (
        "--terms",
        "+macco",
        "+degla.distill",
        "--micro-batch=3",
        "--lora",
        "--set=stop_after=2",
    )
    assert main(arguments(world, "fsc-clip", tmp_path / "run", *more)) == 0
    for record in read_log(tmp_path / "run" / "train.jsonl"):
        assert {"loss/contrast", "loss/words", "loss/distill"} <= record.keys()
        assert math.isfinite(record["loss"])


def test_words_and_boxes_of_a_file(world: Path, tmp_path: Path) -> None:
    rows = ["title\tfilepath\trelation_list\tattribute_list\trelation_attribute_phrase_bbox_list"]
    for line in (world / "plain.jsonl").read_text().splitlines():
        row = json.loads(line)
        photo, boxes = world / row["image"], [{"x": [[0, 0, 8, 8]]}]
        rows.append(f"{row['caption'][0]}\t{photo}\t['a']\t[]\t{boxes}")
    table = tmp_path / "concepts.tsv"
    table.write_text("\n".join(rows) + "\n")
    files = (f"--concepts={table}", f"--data={table}")
    assert main(arguments(world, "macco", tmp_path / "run", *files, "--epochs=1")) == 0
    record = json.loads((tmp_path / "run" / "model" / RECORD).read_text())["provenance"]
    made = record["run"]["rewrites"]["mask"]
    having = sum(" a " in f" {row.split(chr(9))[0].lower()} " for row in rows[1:])
    assert made["coverage"] == pytest.approx(having / 40)
    assert record["texts"]["masks"]["file"] == str(table)
    assert record["heads"]["words"]["layers"] == 2
