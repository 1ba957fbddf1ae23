"""One matrix of a frozen model learns: the text projection, or a map behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from build.models import TEXTS, trainable
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.base import Trains
from compoclip.models.checkpoint import load_model
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.projection import attach_text_map, merge_text_map, text_matrix
from compoclip.training.caches import FrozenTexts
from compoclip.training.log import read_log
from compoclip.training.loop import freeze
from method_data import arguments
from models_thin import config
from train_helpers import weights

FROZEN = Trains(image_tower=False, text_tower=False)


def with_map(cfg: dict[str, Any] | None = None) -> Any:
    model = trainable(cfg)
    attach_text_map(model.encoder.model)
    return model


# Of a CustomTextCLIP the projection is in its text tower.
@pytest.mark.parametrize("custom", [False, True])
def test_merged_it_is_the_map_after_the_projection(custom: bool) -> None:
    plain = trainable(config(custom_text=custom))
    model = with_map(config(custom_text=custom))
    network = model.encoder.model
    matrix = text_matrix(network)
    with torch.no_grad():
        ids = model.tokenizer(TEXTS)
        base = plain.encoder.encode_texts(ids).pooled
        assert torch.equal(model.encoder.encode_texts(ids).pooled, base)  # the identity at first
        matrix.add_(torch.randn(matrix.shape, generator=torch.Generator().manual_seed(0)))
        expected = base @ matrix
        for _ in range(2):  # as a parametrization, then merged
            found = model.encoder.encode_texts(ids).pooled
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            merge_text_map(network)
    assert network.state_dict().keys() == plain.encoder.model.state_dict().keys()
    merge_text_map(network)  # nothing left to merge


def test_only_the_matrix_and_the_temperature_learn() -> None:
    for attached in (False, True):
        model = with_map() if attached else trainable()
        which: Any = "after" if attached else "projection"
        freeze(model.encoder.model, replace(FROZEN, matrix=which))
        learning = {n for n, p in model.encoder.model.named_parameters() if p.requires_grad}
        name = "parametrizations.text_projection.0.weight" if attached else "text_projection"
        assert learning == {name, "logit_scale"}


def test_a_tower_without_such_a_matrix_is_refused() -> None:
    network = torch.nn.Module()
    network.text = torch.nn.Module()  # type: ignore[assignment]
    network.text.text_projection = torch.nn.Linear(2, 2)  # with a bias
    with pytest.raises(CompoclipError, match="is not a single matrix without a bias"):
        attach_text_map(network)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"matrix": "both"}, "one of nothing, projection, after, found 'both'"),
        ({"matrix": "after", "text_tower": True}, "the text tower must be frozen"),
        ({"start_scale": 0.5}, "must be 0, or 1 to 100"),
    ],
)
def test_what_cannot_train_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(FROZEN, **values)


@pytest.mark.parametrize("cfg", [config(), config(text={"no_causal_mask": True})])
def test_remembered_texts_have_the_features_and_the_gradients(cfg: dict[str, Any]) -> None:
    model = with_map(cfg)
    freeze(model.encoder.model, replace(FROZEN, matrix="after"))
    ids, memory = model.tokenizer(TEXTS), FrozenTexts(model.tokenizer)
    plain = model.encoder.encode_texts(ids).pooled
    for found in (0, len(set(TEXTS))):
        before = memory.reused
        texts = memory.work(model.encoder, TEXTS, 0)
        again = texts.all().pooled
        torch.testing.assert_close(again, plain, atol=1e-6, rtol=1e-6)
        assert memory.reused - before == found
    expected, got = (
        torch.autograd.grad(each.square().sum(), text_matrix(model.encoder.model))[0]
        for each in (plain, again)
    )
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    none = FrozenTexts(model.tokenizer, max_bytes=0)
    none.work(model.encoder, TEXTS, 2).all()
    assert (none.bytes, none.reused) == (0, 0)
    assert memory.work(model.encoder, (), 0).all().pooled.shape[0] == 1


def test_cached_runs_are_the_run_and_encode_each_caption_once(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoded: list[int] = []
    states = DualEncoder.text_states

    def counted(self: DualEncoder, ids: Tensor, micro_batch: int = 0) -> Tensor:
        encoded.append(len(ids))
        return states(self, ids, micro_batch)

    monkeypatch.setattr(DualEncoder, "text_states", counted)
    base = load_model(world / "base").encoder.model.state_dict()
    more = {
        "plain": (),
        "cached": ("--cache-frozen",),
        "pieces": ("--cache-frozen", "--micro-batch=3"),
    }
    for name, options in more.items():
        run = arguments(world, "lab-clip", tmp_path / name, "--epochs=3", *options)
        assert main(run) == 0
    assert "texts encoded, the others cached" in capsys.readouterr().err
    logs = [[r["loss"] for r in read_log(tmp_path / name / "train.jsonl")] for name in more]
    assert logs[1] == pytest.approx(logs[0], abs=1e-5)
    assert logs[2] == pytest.approx(logs[0], abs=1e-5)
    texts = 3 * 40 * 2  # of three epochs, captions and negatives
    assert 0 < sum(encoded) < 2 * texts
    one, other = (weights(tmp_path / name / "model") for name in ("plain", "cached"))
    changed = {name for name in one if not torch.equal(one[name], base[name])}
    assert changed == {"text_projection"}  # not the temperature, which was the run's own
    torch.testing.assert_close(one["text_projection"], other["text_projection"], atol=1e-4, rtol=0)
    scales = [r["logit_scale"] for r in read_log(tmp_path / "plain" / "train.jsonl")]
    assert scales[0] == pytest.approx(1.0, abs=0.01)
