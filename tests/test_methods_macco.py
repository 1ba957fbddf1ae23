"""MACCO: the weighted sum of the paper, its values, its parts beside another method, its file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from compoclip.cli.main import main
from compoclip.losses.contract import Features, Layout
from compoclip.losses.contrastive import clip_loss
from compoclip.methods.compose import compose
from compoclip.methods.macco.heads import PatchPrediction, TokenPrediction
from compoclip.methods.macco.masks import MaskPlan
from compoclip.methods.registry import load_recipe
from compoclip.models.config import RECORD
from compoclip.training.log import read_log
from losses_oracle import CAPTION, layout_of
from method_data import arguments, write_world
from train_helpers import FEW


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"), merges=FEW)


def nothing_hidden() -> tuple[Features, Layout]:
    t = torch.tensor([[0.8, 0.6], [0.6, 0.8]], dtype=torch.float64)
    u, s = torch.eye(2, dtype=torch.float64), torch.tensor(10.0, dtype=torch.float64)
    layout = layout_of([(i, CAPTION, -1) for i in range(2)])
    return Features(u, t, s, masked_image=u, masked_text=t), layout


def test_it_is_the_weighted_sum_of_the_paper() -> None:
    method = load_recipe("macco")()
    weights = {term.name: term.weight for term in method.losses}
    assert weights == {"contrast": 1.0, "match": 0.1, "words": 20.0, "patches": 250.0}
    optim = method.optim
    assert (optim.lr, optim.weight_decay, optim.epochs, optim.batch_size) == (5e-7, 0.2, 5, 256)
    assert optim.warmup == 50
    for term, kind, layers in zip(method.losses[2:], (TokenPrediction, PatchPrediction), (2, 3)):
        assert isinstance(term.loss, kind)
        assert (term.loss.layers, term.loss.weight_decay) == (layers, 0.01)
        assert term.loss.factor(optim.lr) * optim.lr == pytest.approx(1e-3)
        assert term.loss.factor(0.0) == 1.0
    assert method.plan.texts == (MaskPlan(),)
    assert not method.plan.rewrites
    assert set(method.heads) == {"words", "patches", "masks"}
    half = load_recipe("macco")(hidden="words", word_weight=0.0)
    assert [term.name for term in half.losses] == ["contrast", "match"]
    assert not half.needs_patches
    assert set(load_recipe("macco")(word_weight=0.0, patch_weight=0.0).heads) == {"masks"}


def test_values_by_hand() -> None:
    features, layout = nothing_hidden()
    contrast, match = (term.loss for term in load_recipe("macco")().losses[:2])
    plain = clip_loss(features, layout).item()
    assert contrast(features, layout).item() == pytest.approx(math.log(2) + plain, abs=1e-5)
    assert match(features, layout).item() == pytest.approx(0.25653, abs=1e-5)


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
        rows.append(f"{row['caption'][0]}\t{row['image']}\t['a']\t[]\t[{{'x': [[0, 0, 8, 8]]}}]")
    table = world / "concepts.tsv"
    table.write_text("\n".join(rows) + "\n")
    command = arguments(world, "macco", tmp_path / "run", f"--concepts={table}", "--epochs=1")
    assert main([each.replace("plain.jsonl", "concepts.tsv") for each in command]) == 0
    record = json.loads((tmp_path / "run" / "model" / RECORD).read_text())["provenance"]
    made = record["run"]["rewrites"]["mask"]
    having = sum(" a " in f" {row.split(chr(9))[0].lower()} " for row in rows[1:])
    assert made["coverage"] == pytest.approx(having / 40)
    assert record["texts"]["masks"]["file"] == str(table)
    assert record["heads"]["words"]["layers"] == 2
