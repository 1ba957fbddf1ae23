"""Heads: losses with parameters of their own, which learn beside the model and do not join it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from build.models import batch_for, take_step, trainable
from compoclip.errors import CompoclipError
from compoclip.losses import Features, HeadPlan, Layout, TowerSizes
from compoclip.methods.base import LossTerm, Method, Optim, Trains
from compoclip.methods.read_clip.decoders import (
    END,
    PAD,
    Reconstruction,
    ReconstructionHead,
    T5Decoder,
    decoder_record,
    load_decoder,
)
from compoclip.methods.registry import load_recipe
from compoclip.training.loop import freeze
from compoclip.training.optim import build_optimizer
from compoclip_world import decoder as world_decoder
from compoclip_world.decoder import GruDecoder
from losses_oracle import CAPTION, NEGATIVE, features_for
from models_thin import config, timm_config

CAPTIONS = [
    "a red cube on a blue mat",
    "a blue cube on a red mat",
    "two cats",
    "a dog beside a big red cat",
    "a cat",
]
DOUBLE = torch.float64
GRU = str(world_decoder.__file__)


# --- The head and its decoders. ---


def nll_by_hand(decoder: GruDecoder, h: Tensor, words: Sequence[int]) -> float:
    """Token by token, gate by gate."""
    w_i, w_h = decoder.gru.weight_ih_l0.double(), decoder.gru.weight_hh_l0.double()
    b_i, b_h = decoder.gru.bias_ih_l0.double(), decoder.gru.bias_hh_l0.double()
    state, total, said = h.double(), 0.0, PAD
    for word in words:
        x = decoder.embedding.weight[said].double()
        from_x, from_h = (w_i @ x + b_i).chunk(3), (w_h @ state + b_h).chunk(3)
        reset = torch.sigmoid(from_x[0] + from_h[0])
        update = torch.sigmoid(from_x[1] + from_h[1])
        new = torch.tanh(from_x[2] + reset * from_h[2])
        state = (1 - update) * new + update * state
        logits = decoder.output.weight.double() @ state + decoder.output.bias.double()
        total -= float(logits.log_softmax(0)[word])
        said = word
    return total


def layout_for(count: int) -> Layout:
    """Captions of `count` images, each behind a negative of another."""
    owner = torch.arange(count).repeat_interleave(2)
    role = torch.tensor([int(NEGATIVE), int(CAPTION)]).repeat(count)
    return Layout(owner, role, torch.where(role == int(CAPTION), -1, 0), count, ("a",))


def states_for(layout: Layout, width: int = 6) -> Features:
    features = features_for(layout)
    state = torch.randn(
        len(layout.owner), width, dtype=DOUBLE, generator=torch.Generator().manual_seed(2)
    )
    return replace(features, text_state=state.requires_grad_())


def test_reconstruction_against_a_loop() -> None:
    decoder, layout = GruDecoder(50, 8, seed=3).double(), layout_for(5)
    head = ReconstructionHead(decoder, 6).double()
    features = states_for(layout)
    targets = [CAPTIONS[0], "", CAPTIONS[2], CAPTIONS[3], ""]
    value = head.loss(features, layout, targets)
    assert features.text_state is not None
    total, tokens = 0.0, 0
    for image, text in enumerate(targets):
        if text:
            ids, mask = decoder.tokens([text])
            words = ids[0][mask[0]].tolist()
            assert words[-1] == END
            assert len(words) == len(text.split()) + 1
            h = head.a.detach() @ features.text_state[2 * image + 1].detach()
            total += nll_by_hand(decoder, h, words)
            tokens += len(words)
    assert value.item() == pytest.approx(total / tokens, abs=1e-5)
    # Only the captions' states and A are read; a target that is missing counts for nothing.
    value.backward()  # type: ignore[no-untyped-call]
    assert features.text_state.grad is not None
    rows = features.text_state.grad.abs().sum(1) > 0
    assert rows.tolist() == [False, True, False, False, False, True, False, True, False, False]
    assert head.a.grad is not None
    assert head.a.grad.any()
    assert all(p.grad is None for p in decoder.parameters())
    nothing = head.loss(features, layout, [""] * 5)
    assert nothing.item() == 0.0


class MeanState(HeadPlan):
    """The plan of a head that returns the mean of all text states."""

    lr_scale, weight_decay = 100.0, 0.0

    def build(self, sizes: TowerSizes, seed: int) -> nn.Module:
        return MeanHead(sizes.text)

    def record(self) -> dict[str, Any]:
        return {}


class MeanHead(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        # Equal gains would ask for the mean of a normalised state, whose gradient is rounding.
        self.gain = nn.Parameter(torch.linspace(-1, 1, width).repeat(2, 1))

    def loss(self, features: Features, layout: Layout, targets: Sequence[str]) -> Tensor:
        assert features.text_state is not None
        assert len(targets) == layout.images
        return (features.text_state * self.gain[0]).mean()


def with_head(plan: HeadPlan, cfg: dict[str, Any] | None = None) -> tuple[Any, Method]:
    """A model with the head of a plan, and the method of that head alone."""
    model = trainable(cfg)
    model.encoder.heads["head"] = plan.build(model.encoder.sizes, 0)
    method = replace(load_recipe("clip-ft")(), losses=(LossTerm("head", plan),))
    assert method.heads == {"head": plan}
    return model, method


@pytest.mark.parametrize("plan", [MeanState(), Reconstruction(GRU)])
def test_gradient_reaches_the_text_tower_but_not_its_projection(plan: HeadPlan) -> None:
    model, method = with_head(plan)
    take_step(model, method, replace(batch_for(model), targets=tuple(CAPTIONS)))
    having = {
        n for n, p in model.encoder.model.named_parameters() if p.grad is not None and p.grad.any()
    }
    assert "ln_final.weight" in having
    assert "token_embedding.weight" in having
    assert not any(n == "text_projection" or n.startswith("visual.") for n in having)
    assert all(p.grad is not None for p in model.encoder.heads.parameters())


@pytest.mark.parametrize(
    "cfg",
    [
        pytest.param(config(), id="packed"),
        pytest.param(config(text={"no_causal_mask": True}), id="both ways"),
        pytest.param(timm_config("test_vit"), id="custom"),
    ],
)
def test_states_are_what_the_projection_is_given(cfg: dict[str, Any]) -> None:
    model = trainable(cfg)
    batch = batch_for(model)
    ids = model.tokenizer(list(batch.texts))
    pixels = batch.normalised(torch.device("cpu"))
    plain = model.encoder.work(pixels, ids, True).all()
    for micro_batch in (0, 2):
        for local in (False, True):
            found = model.encoder.work(pixels, ids, local, micro_batch, state=True).all()
            assert found.text_state is not None
            pooled = model.encoder.text_tower.project(found.text_state)
            unit = nn.functional.normalize(pooled, dim=-1)
            torch.testing.assert_close(unit, plain.text, atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(found.text, plain.text, atol=1e-6, rtol=1e-5)
            if local:
                torch.testing.assert_close(found.tokens, plain.tokens, atol=1e-5, rtol=1e-5)
    assert plain.text_state is None


def test_a_head_has_a_group_of_its_own() -> None:
    model, method = with_head(MeanState())
    freeze(model.encoder.model, Trains())
    learner = model.encoder.learner
    assert learner is model.encoder
    optimizer = build_optimizer(
        learner.named_parameters(), Optim(weight_decay=0.3), heads=method.heads
    )
    own = model.encoder.heads["head"].gain
    (group,) = [g for g in optimizer.param_groups if any(p is own for p in g["params"])]
    assert (group["factor"], group["weight_decay"], len(group["params"])) == (100.0, 0.0, 1)
    others = [g for g in optimizer.param_groups if g is not group]
    assert {g["factor"] for g in others} == {1.0}
    assert {g["weight_decay"] for g in others} == {0.3, 0.0}
    assert trainable().encoder.learner is not None


# --- Decoders. ---


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "cannot be read"),
        ("[1]", "cannot be read"),
        ('{"model_type": "bert"}', "holds a bert, not a T5"),
    ],
)
def test_a_folder_without_a_decoder_is_one_clear_line(
    config: str | None, message: str, tmp_path: Path
) -> None:
    if config:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(CompoclipError, match=message) as raised:
        load_decoder(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_a_decoder_of_a_file_is_its_only_class() -> None:
    decoder = load_decoder(GRU)
    assert type(decoder).__name__ == "GruDecoder"
    assert not any(parameter.requires_grad for parameter in decoder.parameters())
    record = decoder_record(GRU)
    assert (record["name"], len(record["hash"])) == ("decoder.py", 16)


def test_long_captions_are_cut() -> None:
    ids, mask = GruDecoder().tokens(["a " * 500, "a"])
    assert ids.shape == (2, 64)
    assert mask.sum(1).tolist() == [64, 2]
    assert ids[0, -1] == END


def test_a_t5_takes_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')

    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("compoclip.errors.importlib.import_module", absent)
    with pytest.raises(
        CompoclipError, match=r"--reconstruction 0 .* pip install peft transformers"
    ):
        load_decoder(str(tmp_path))


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_a_tiny_t5_is_told_one_vector() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2}
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=100, num_heads=4, decoder_start_token_id=0, **sizes)
    ).eval()
    words = GruDecoder(100)
    ids, mask = words.tokens(CAPTIONS)
    h = torch.randn(5, 1, 32, requires_grad=True)
    labels = ids.masked_fill(~mask, -100)
    expected = t5(encoder_outputs=(h,), labels=labels).loss

    def tokenize(texts: list[str]) -> list[list[int]]:
        found, there = words.tokens(texts)
        return [row[keep].tolist() for row, keep in zip(found, there)]

    decoder = T5Decoder(t5, tokenize)
    assert torch.equal(decoder.tokens(CAPTIONS)[0], ids)
    value = decoder.nll(h, ids, mask) / mask.sum()
    torch.testing.assert_close(value, expected)
    (gradient,) = torch.autograd.grad(value, h)
    assert gradient.any()
    head = ReconstructionHead(decoder, 6)
    layout = layout_for(5)
    features = replace(states_for(layout), text_state=torch.randn(10, 6, requires_grad=True))
    head.loss(features, layout, CAPTIONS).backward()  # type: ignore[no-untyped-call]
    assert head.a.grad is not None
    assert all(p.grad is None for p in decoder.parameters())


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_a_folder_of_a_t5_is_read_with_its_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(vocab_size=20, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(CompoclipError, match="has no tokenizer") as raised:
        load_decoder(str(tmp_path))  # without a tokenizer
    assert "\n" not in str(raised.value)
    words = {"<pad>": PAD, "</s>": END, "<unk>": 2, "a": 3, "red": 4, "cat": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", END)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    decoder = load_decoder(str(tmp_path))
    ids, mask = decoder.tokens(["a red cat", "a dog"])
    assert ids.tolist() == [[3, 4, 5, END], [3, 2, END, PAD]]
    assert mask.tolist() == [[True] * 4, [True] * 3 + [False]]
    assert decoder.nll(torch.zeros(2, 1, 16), ids, mask) > 0
    record = decoder_record(str(tmp_path))
    assert record["name"] == tmp_path.name
    assert len(record["hash"]) == 16
