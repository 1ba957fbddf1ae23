"""`python -m bench train` and `bench memory`: the straightforward step, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.__main__ import main
from bench.cost import count_operations
from bench.memory import SavedBytes, count_step_memory
from bench.train import (
    caption_batch,
    measure_step_speed,
    plain_step,
    released_step,
    separate_forwards,
)
from compoclip.errors import UsageError
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, create_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.training.loop import freeze
from compoclip.training.settings import RunSettings
from compoclip.training.step import step
from models_thin import config

CAPTIONS = [
    "a red cat on a small mat",
    "dogs",  # nothing to swap
    "a man beside a black horse under a tree",
    "a red cat on a small mat",
    "two blue birds and a white dog",
]


def model() -> LoadedModel:
    cfg = config(text={"vocab_size": 49408, "context_length": 32})
    return create_model(ModelConfig(cfg), seed=1)


def test_the_straightforward_step_computes_the_same() -> None:
    loaded, method = model(), load_recipe("fsc-clip")()
    batch = caption_batch(loaded, method, CAPTIONS, seed=0)
    assert len(batch.block.texts) < 4 * len(CAPTIONS)  # something is lacking
    freeze(loaded.encoder.model, method.trains)
    found = []
    for way in (step, plain_step):
        loaded.encoder.zero_grad(set_to_none=True)
        result = way(
            loaded.encoder,
            loaded.tokenizer,
            method,
            batch,
            RunSettings(out=Path(), mask_duplicates=False),
        )
        found.append((result, [p.grad for p in loaded.encoder.parameters()]))
    assert found[0][0].loss == pytest.approx(found[1][0].loss, abs=1e-5)
    for ours, plain in zip(found[0][1], found[1][1]):
        assert (ours - plain).abs().max() <= 1e-4 * max(1.0, plain.abs().max())


def test_a_step_in_the_released_form_has_the_released_loss() -> None:
    """Scores of 0 in the place of negatives that do not exist."""
    loaded, method = model(), load_recipe("fsc-clip")(missing_hn="zero")
    batch = caption_batch(loaded, method, CAPTIONS, seed=0)
    freeze(loaded.encoder.model, method.trains)
    found = []
    for way in (step, released_step):
        loaded.encoder.zero_grad(set_to_none=True)
        result = way(
            loaded.encoder,
            loaded.tokenizer,
            method,
            batch,
            RunSettings(out=Path(), mask_duplicates=False),
        )
        found.append((result, [p.grad for p in loaded.encoder.parameters()]))
    for name, value in found[0][0].values.items():
        assert found[1][0].values[name] == pytest.approx(value, abs=1e-5), name
    for ours, released in zip(found[0][1], found[1][1]):
        assert (ours - released).abs().max() <= 1e-4 * max(1.0, released.abs().max())


def test_the_straightforward_step_encodes_stand_ins() -> None:
    loaded, method = model(), load_recipe("fsc-clip")()
    batch = caption_batch(loaded, method, CAPTIONS, seed=0)
    forwards, row = separate_forwards(batch, method.kinds)
    assert list(map(len, forwards)) == [5, 5, 5, 5]
    assert forwards[0] == CAPTIONS
    flat = [text for each in forwards for text in each]
    assert [flat[i] for i in row] == list(batch.block.texts)
    swaps = [i for kind, i in zip(batch.block.rewrite, batch.block.owner) if kind == "negclip"]
    assert 1 not in swaps
    assert forwards[1][1] == "dogs"


def test_speed_counts_positions_and_operations() -> None:
    loaded, method = model(), load_recipe("fsc-clip")()
    batch = caption_batch(loaded, method, CAPTIONS, seed=0)
    speed = measure_step_speed(
        loaded, method, batch, 1, RunSettings(out=Path(), mask_duplicates=False)
    )
    assert (speed.images, speed.texts) == (5, len(batch.block.texts))
    assert speed.lacking == 20 - speed.texts
    assert speed.plain.positions == 20 * 32
    assert speed.released.positions == speed.texts * 32
    assert speed.ours.operations < speed.released.operations < speed.plain.operations
    assert speed.released_ratio > 0
    assert speed.ours.positions < speed.tokens  # the repeated caption is encoded once
    assert speed.tokens < speed.plain.positions
    assert speed.ours.operations < speed.plain.operations
    assert speed.loss_difference < 1e-5
    assert speed.gradient_difference < 1e-4
    assert speed.bound > 0
    assert speed.shared > 0


def test_what_operations_keep_is_counted_once() -> None:
    x = torch.randn(10, 4, requires_grad=True)
    weight = torch.randn(4, 4, requires_grad=True)
    known = {x.untyped_storage().data_ptr(), weight.untyped_storage().data_ptr()}
    with SavedBytes(known) as saved:
        y = x @ weight  # keeps x and weight, which are known
        z = y.exp()  # keeps its result
        out = z * z  # keeps z again
    assert saved.bytes == 4 * 40
    with SavedBytes() as all_of_it:
        again = x @ weight
    assert all_of_it.bytes == 4 * (40 + 16)
    del out, again


@pytest.mark.parametrize("recompute", [False, True])
def test_memory_is_that_of_a_micro_batch(recompute: bool) -> None:
    loaded, method = model(), load_recipe("fsc-clip")()
    if recompute:
        loaded.encoder.set_grad_checkpointing()
    batch = caption_batch(loaded, method, CAPTIONS * 4, seed=0)
    sizes = [2, 4, 0]
    counted = [
        count_step_memory(loaded, method, batch, RunSettings(out=Path(), micro_batch=size))
        for size in sizes
    ]
    two, four, everything = counted
    numbers = sum(p.numel() for p in loaded.encoder.parameters())
    assert two.gradients == 4 * numbers
    assert two.moments == 8 * numbers
    assert two.batch == 5 * batch.pixels.numel()
    assert 1.9 < four.image / two.image < 2.1
    assert two.text < four.text < everything.text
    assert two.peak < everything.peak == everything.whole
    assert two.whole == pytest.approx(everything.whole, rel=0.1)
    assert loaded.encoder.recomputes is recompute


def test_recomputing_keeps_less() -> None:
    loaded, method = model(), load_recipe("fsc-clip")()
    batch = caption_batch(loaded, method, CAPTIONS * 4, seed=0)
    kept = count_step_memory(loaded, method, batch, RunSettings(out=Path(), micro_batch=4))
    loaded.encoder.set_grad_checkpointing()
    less = count_step_memory(loaded, method, batch, RunSettings(out=Path(), micro_batch=4))
    assert less.image < kept.image
    assert less.text < kept.text


def test_the_verbs_print_tables_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(model(), tmp_path / "model")
    (tmp_path / "c.txt").write_text("\n".join(CAPTIONS * 2))
    asked = [f"--captions={tmp_path / 'c.txt'}", f"--model={tmp_path / 'model'}"]
    train = ["train", *asked, "--batch-size=5", "--repeats=1", "--device=cpu"]
    assert main(train) == 0
    shown = capsys.readouterr().out
    assert "times the straightforward step" in shown
    assert "no saving on texts could reach more than" in shown
    assert main([*train, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["images"] == 5
    memory = ["memory", *asked, "--batch-size=8", "--micro-batch=2"]
    assert main(memory) == 0
    assert "GB at the peak" in capsys.readouterr().out
    assert main([*memory, "--grad-checkpointing", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["in_pieces"]
    assert result["peak"] < result["whole"]
    assert main(["train", *asked, "--batch-size=11"]) == 2
    assert "10 captions, fewer than the 11 asked for" in capsys.readouterr().err
    assert main(["train", *asked, "--repeats=0"]) == 2
    assert main(["memory", *asked, "--micro-batch=-1"]) == 2


def test_operations_of_a_step_are_counted_with_the_teachers() -> None:
    plain, negatives, own = (
        count_operations(model(), load_recipe(name)(), CAPTIONS)
        for name in ("clip-ft", "negclip", "compo")
    )
    assert plain.texts == 1.0
    assert negatives.texts > 1.0
    assert own.texts > negatives.texts
    assert negatives.operations > plain.operations
    # The same step, but for what holds the text tower: only the teacher is gone.
    free = count_operations(model(), load_recipe("compo")(distill_weight=0.0), CAPTIONS)
    assert free.texts == own.texts
    assert free.operations < own.operations
    whole = count_operations(model(), load_recipe("compo")(image_tower=True), CAPTIONS)
    assert whole.operations > own.operations  # the image tower is passed through backwards, too


def test_operations_of_composed_images_are_not_counted() -> None:
    with pytest.raises(UsageError, match="composes images"):
        count_operations(model(), load_recipe("clic")(), CAPTIONS)


def test_the_table_of_costs_begins_with_fsc_clip(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    save_model(model(), tmp_path / "model")
    arguments = ["cost", "compo", "--model", str(tmp_path / "model"), "--batch-size", "2", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)["costs"]
    assert [each["recipe"] for each in found] == ["fsc-clip", "compo"]
    assert found[0]["ratio"] == 1.0
    assert found[1]["ratio"] == found[1]["operations"] / found[0]["operations"]
