"""Text encoding: equal to open_clip's, trimmed or not, with gradients and token features."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from compoclip.errors import CompoclipError
from compoclip.models import blocks, text_tower
from compoclip.models.architecture import build_model
from compoclip.models.dual_encoder import DualEncoder
from models_thin import END, config, shake, token_ids

LENGTHS = [7, 3, 20, 12, 7, 2, 9, 3, 15]

CAUSAL: dict[str, dict[str, Any]] = {
    "plain": config(),
    "quick_gelu": config(quick_gelu=True),
    "custom_text": config(custom_text=True),
    "projection_bias": config(text={"proj_bias": True}, custom_text=True),
    "no_projection": config(text={"proj_type": "none", "width": 24}),
    "layer_scale": config(text={"ls_init_value": 0.3}),
    "eos_pool": config(text={"pool_type": "eos", "eos_id": END}),
    "qk_norm": config(text={"qk_norm": True}),
    "sub_norms": config(
        text={"scale_attn": True, "scale_fc": True, "scale_heads": True, "scale_attn_inner": True}
    ),
}
UNUSUAL = ("qk_norm", "sub_norms")  # kinds whose blocks run their own forward
FULL: dict[str, dict[str, Any]] = {
    "bidirectional": config(text={"no_causal_mask": True}),
    "bidirectional_last": config(text={"no_causal_mask": True, "pool_type": "last"}),
    "last": config(text={"pool_type": "last"}, custom_text=True),
    "first": config(text={"pool_type": "first"}),
    "class_token": config(text={"embed_cls": True}, custom_text=True),
}


def encoder_of(cfg: dict[str, Any]) -> DualEncoder:
    encoder = DualEncoder(build_model(cfg))
    shake(encoder, torch.Generator().manual_seed(1))
    return encoder


@pytest.fixture(autouse=True, params=[0, 10**9], ids=["many_buckets", "one_bucket"])
def bucket_cost(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Small batches are not worth splitting, so without this nothing here would be trimmed."""
    cost = int(request.param)
    monkeypatch.setitem(text_tower._BUCKET_COST, "cpu", cost)
    return cost


def some_ids() -> torch.Tensor:
    ids = token_ids(LENGTHS)
    return torch.cat([ids, ids[[2, 0, 2]]])  # repeated texts, out of order


@pytest.mark.parametrize("kind", CAUSAL)
def test_blocks_see_texts_cut_to_their_length(
    kind: str, bucket_cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of(CAUSAL[kind])
    shapes = []
    run = blocks.Halves.run

    def seen(halves: blocks.Halves, block: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        shapes.append(tuple(x.shape[:2]))
        return run(halves, block, x, *rest)

    if kind not in UNUSUAL:  # no padding, whatever the buckets
        monkeypatch.setattr(blocks.Halves, "run", seen)
        encoder.encode_texts(some_ids())
        starts = len(LENGTHS) - 1  # of all texts but one: they begin alike
        assert {shape[0] for shape in shapes} == {sum(LENGTHS) - starts}
        return
    tower = getattr(encoder.model, "text", encoder.model)
    tower.transformer.resblocks[0].ln_1.register_forward_hook(
        lambda _, __, out: shapes.append(tuple(out.shape[:2]))
    )
    encoder.encode_texts(some_ids())
    many = [(1, 2), (2, 3), (2, 7), (1, 9), (1, 12), (1, 15), (1, 20)]
    assert shapes == (many if bucket_cost == 0 else [(9, 20)])
    shapes.clear()
    encoder.encode_texts(token_ids([4, 9, 6]))
    assert shapes == ([(1, 4), (1, 6), (1, 9)] if bucket_cost == 0 else [(3, 9)])


@pytest.mark.parametrize("kind", [*CAUSAL, *FULL])
def test_pooled_equals_open_clip(kind: str) -> None:
    encoder = encoder_of({**CAUSAL, **FULL}[kind])
    ids = some_ids()
    for texts in (ids, ids[ids[:, -1] == 0]):  # with and without one of full length
        expected = encoder.model.encode_text(texts)
        for deduplicate in (True, False):
            got = encoder.encode_texts(texts, deduplicate=deduplicate).pooled
            assert (got - expected).abs().max() <= 1e-5
            unit = F.normalize(got, dim=-1) - F.normalize(expected, dim=-1)
            assert unit.abs().max() <= 1e-5
    assert encoder.text_planner().causal is (kind in CAUSAL)


@pytest.mark.parametrize("kind", [*CAUSAL, "bidirectional"])
def test_tokens_equal_the_padded_towers(kind: str) -> None:
    encoder = encoder_of({**CAUSAL, **FULL}[kind])
    ids = some_ids()
    got = encoder.encode_texts(ids, tokens=True)
    tower = getattr(encoder.model, "text", None)
    out = (
        encoder.model.forward_intermediates(
            text=ids, text_indices=1, normalize=False, normalize_intermediates=True
        )
        if tower is None
        else tower.forward_intermediates(
            ids, indices=1, normalize_intermediates=True, output_fmt="NLC"
        )
    )
    states = out["text_intermediates"][-1]
    projection = (tower or encoder.model).text_projection
    if isinstance(projection, torch.nn.Module):
        states = projection(states)
    elif projection is not None:
        states = states @ projection
    length = got.tokens.shape[1]
    for t, row in enumerate(ids.tolist()):
        eot = row.index(END)
        for position in range(length):
            valid = 1 <= position <= eot
            assert bool(got.token_mask[t, position]) == valid
            expected = states[t, position] if valid else torch.zeros(24)
            assert (got.tokens[t, position] - expected).abs().max() <= (1e-5 if valid else 0)
        assert torch.allclose(got.tokens[t, eot], got.pooled[t], atol=1e-6)
    assert torch.allclose(got.pooled, encoder.model.encode_text(ids), atol=1e-5, rtol=0)


def test_tokens_are_as_long_as_the_longest_text() -> None:
    got = encoder_of(config()).encode_texts(token_ids([4, 9, 6]), tokens=True)
    assert got.tokens.shape == (3, 9, 24)


@pytest.mark.parametrize("kind", ["plain", "custom_text", "qk_norm", "layer_scale"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_equal_open_clips(kind: str, checkpointing: bool) -> None:
    ids = some_ids()
    weight = torch.randn(len(ids), 24, generator=torch.Generator().manual_seed(5))
    reference, encoder = encoder_of(CAUSAL[kind]), encoder_of(CAUSAL[kind])
    encoder.set_grad_checkpointing(checkpointing)
    (reference.model.encode_text(ids) * weight).sum().backward()
    (encoder.encode_texts(ids).pooled * weight).sum().backward()
    for (name, theirs), ours in zip(reference.named_parameters(), encoder.parameters()):
        assert (ours.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            scale = theirs.grad.abs().max().clamp(min=1.0)
            assert (ours.grad - theirs.grad).abs().max() / scale <= 1e-5, name


def test_checkpointing_recomputes_blocks_only_in_training() -> None:
    encoder = encoder_of(config())
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    encoder.model.transformer.resblocks[0].mlp.register_forward_pre_hook(count)
    ids = token_ids([5, 5])
    encoder.set_grad_checkpointing(True)
    encoder.encode_texts(ids).pooled.sum().backward()
    assert calls == 2
    with torch.no_grad():
        encoder.encode_texts(ids)
    assert calls == 3


def test_hooked_attention_runs_its_own_forward() -> None:
    encoder = encoder_of(config())
    seen = []
    attention = encoder.model.transformer.resblocks[1].attn
    attention.register_forward_hook(lambda *_: seen.append(1))
    ids = some_ids()
    assert torch.allclose(
        encoder.encode_texts(ids).pooled, encoder.model.encode_text(ids), atol=1e-5, rtol=0
    )
    assert seen


@pytest.mark.parametrize("kind", ["bidirectional_last", "last", "first", "class_token"])
def test_towers_without_end_of_text_refuse_tokens(kind: str) -> None:
    encoder = encoder_of(FULL[kind])
    with pytest.raises(CompoclipError, match="pools at the end-of-text"):
        encoder.encode_texts(some_ids(), tokens=True)
    with pytest.raises(CompoclipError, match="pools at the end-of-text"):
        encoder.require_local()
    assert not encoder.text_planner().causal


@pytest.mark.parametrize(
    "ids", [torch.zeros(2, 20), torch.zeros(20, dtype=torch.int64), token_ids([3])[:0]]
)
def test_ids_of_the_wrong_form_are_refused(ids: torch.Tensor) -> None:
    with pytest.raises(CompoclipError, match="text ids must be"):
        encoder_of(config()).encode_texts(ids)


def test_autocast_is_finite_and_close() -> None:
    encoder = encoder_of(config())
    ids = some_ids()
    with torch.autocast("cpu", torch.bfloat16):
        got = encoder.encode_texts(ids, tokens=True)
        features = encoder.features(torch.randn(2, 3, 32, 32), ids, local=True)
    assert got.pooled.isfinite().all()
    assert got.tokens.isfinite().all()
    expected = encoder.model.encode_text(ids)
    assert F.cosine_similarity(got.pooled.float(), expected).min() > 0.99
    assert features.text.dtype == features.image.dtype == features.patches.dtype == torch.float32
