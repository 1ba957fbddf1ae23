"""Blocks run in few operations compute what they compute as they are written; texts in groups."""

from __future__ import annotations

import sys
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from compoclip.models import blocks, image_tower, text_tower
from compoclip.models.architecture import build_model
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.lora import Lora, attach_lora
from compoclip.models.text_plan import PackedTokens, TextPlanner, choose_buckets
from models_thin import END, START, config, pixels, shake, token_ids

LENGTHS = [7, 3, 20, 12, 7, 2, 9, 3, 15]
KINDS: dict[str, dict[str, Any]] = {
    "gelu": config(),
    "quick_gelu": config(quick_gelu=True),
    "layer_scale": config({"ls_init_value": 0.3}, {"ls_init_value": 0.2}, quick_gelu=True),
}


def shaken(cfg: dict[str, Any]) -> DualEncoder:
    """An encoder whose biases and norms are not all 0 and 1."""
    encoder = DualEncoder(build_model(cfg, 0)).train()
    shake(encoder, torch.Generator().manual_seed(1))
    return encoder


def outcome(encoder: DualEncoder, bf16: bool = False) -> dict[str, Tensor]:
    """Features of a few images and texts, local ones too, and all gradients."""
    encoder.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = encoder.features(pixels(count=3), token_ids(LENGTHS), local=True)
    features = {n: getattr(found, n) for n in ("image", "text", "patches", "tokens")}
    torch.stack([each.pow(3).sum() for each in features.values()]).sum().backward()
    gradients = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
    return features | gradients


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert found[name].dtype == wanted.dtype
        assert (found[name] - wanted).abs().max() <= tolerance * wanted.abs().max(), name


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under autocast, but for the type, which is that of the weights."""
    monkeypatch.setattr(blocks, "under_autocast", lambda device: True)
    monkeypatch.setattr(blocks, "computed_in", lambda x: x.dtype)


def turned_outcome(encoder: DualEncoder, request: pytest.FixtureRequest) -> dict[str, Tensor]:
    request.getfixturevalue("turned")
    calls = 0
    run = blocks.Halves.run

    def counted(*arguments: Any) -> Tensor:
        nonlocal calls
        calls += arguments[-1]
        return run(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks.Halves, "run", counted)
        found = outcome(encoder)
    assert calls == (10 if encoder.recomputes else 5)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recompute", [False, True])
def test_turned_weights_compute_the_same(
    kind: str, recompute: bool, request: pytest.FixtureRequest
) -> None:
    encoder = shaken(KINDS[kind])
    encoder.set_grad_checkpointing(recompute)
    expected = outcome(encoder)
    assert_close(turned_outcome(encoder, request), expected, 1e-5)


def test_what_is_frozen_or_adapted_is_turned_too(request: pytest.FixtureRequest) -> None:
    encoder = shaken(config(quick_gelu=True))
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_("mlp.c_fc" in name or "ln_1.weight" in name)
    attach_lora(encoder.model, Lora(init="xavier_ab"))
    expected = outcome(encoder)
    assert len([name for name in expected if name.endswith("ln_1.weight")]) == 5
    assert not [name for name in expected if name.endswith("ln_1.bias")]
    assert_close(turned_outcome(encoder, request), expected, 1e-5)


def test_half_precision_is_as_good_as_autocasts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = shaken(config(quick_gelu=True))
    exact, ours = outcome(encoder), outcome(encoder, bf16=True)
    for tower in (image_tower, text_tower):
        monkeypatch.setattr(tower, "is_plain", lambda block: False)
    theirs = outcome(encoder, bf16=True)
    assert ours.keys() == theirs.keys() == exact.keys()
    errors = [
        torch.stack([(each[name] - exact[name]).norm() / exact[name].norm() for name in exact])
        for each in (ours, theirs)
    ]
    assert 0 < errors[0].median() < 0.03
    assert errors[0].median() < 1.5 * errors[1].median()


def test_blocks_with_a_hook_or_other_layers_run_as_they_are_written() -> None:
    (block,) = build_model(config(text={"layers": 1})).transformer.resblocks
    assert blocks.is_plain(block)
    hook = block.mlp.c_fc.register_forward_hook(lambda *_: None)
    assert not blocks.is_plain(block)
    hook.remove()
    assert blocks.is_plain(block)
    block.mlp.append(torch.nn.Dropout(0.5))
    assert not blocks.is_plain(block)


def one_text_after_the_other(
    q: Tensor, k: Tensor, v: Tensor, begin: Tensor, begin_k: Tensor, longest: int, longest_k: int
) -> Tensor:
    """What torch promises of its attention on lists, with a loop."""
    assert begin is begin_k
    assert begin.dtype == torch.int32
    assert longest == longest_k == int(begin.diff().max())
    assert int(begin[-1]) == len(q)
    texts = []
    for start, stop in zip(begin[:-1].tolist(), begin[1:].tolist()):
        mine = slice(start, stop)
        scores = torch.einsum("ihd,jhd->hij", q[mine], k[mine]) * q.shape[-1] ** -0.5
        later = torch.ones(stop - start, stop - start).triu(1).bool()
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        texts.append(torch.einsum("hij,jhd->ihd", weights, v[mine]))
    return torch.cat(texts)


@pytest.mark.parametrize("cost", [0, 8, 10**9], ids=["many_buckets", "some", "one_bucket"])
def test_attention_on_the_list_is_that_in_buckets(
    cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(text_tower._BUCKET_COST, "cpu", cost)
    encoder = shaken(config())
    expected = outcome(encoder)
    monkeypatch.setattr(text_tower, "attends_to_lists", lambda *_: True)
    monkeypatch.setattr(blocks, "_varlen", lambda: one_text_after_the_other)
    monkeypatch.setattr(text_tower, "_by_segment", None)
    assert_close(outcome(encoder), expected, 1e-5)


def alike(encoder: DualEncoder, tokens: bool) -> dict[str, Tensor]:
    """Features of texts that begin alike, and the gradients of the text tower."""
    ids = token_ids([12, 12, 9, 20, 15, 5, 12], seed=1)
    ids[1, :6], ids[3, :4], ids[4, :8], ids[6] = ids[0, :6], ids[0, :4], ids[2, :8], ids[0]
    encoder.zero_grad(set_to_none=True)
    found = encoder.encode_texts(ids, tokens)
    features = {"pooled": found.pooled} | ({} if found.tokens is None else {"tokens": found.tokens})
    torch.stack([each.pow(3).sum() for each in features.values()]).sum().backward()
    gradients = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
    assert len(gradients) > 30
    return features | gradients


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("how", ["plain", "recompute", "hook", "list"])
def test_beginnings_that_texts_share_change_nothing(
    how: str, tokens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(text_tower._BUCKET_COST, "cpu", 8)
    encoder = shaken(config())
    with monkeypatch.context() as patch:
        patch.setattr("compoclip.models.text_plan._WORTH_SHARING", 0)
        patch.setattr(encoder.text_tower, "_run_packed", one_by_one(encoder))
        expected = alike(encoder, tokens)
    positions = []
    packed = text_tower.TextTower._run_packed

    def counted(self: Any, group: Any, places: Any) -> Tensor:
        positions.append((len(group.ids), len(group.place)))
        return packed(self, group, places)

    monkeypatch.setattr(text_tower.TextTower, "_run_packed", counted)
    encoder.set_grad_checkpointing(how == "recompute")
    if how == "hook":
        encoder.model.transformer.resblocks[1].register_forward_hook(lambda *_: None)
        encoder.model.transformer.resblocks[1].mlp.register_forward_hook(lambda *_: None)
    if how == "list":
        monkeypatch.setattr(text_tower, "attends_to_lists", lambda *_: True)
        monkeypatch.setattr(blocks, "_varlen", lambda: one_text_after_the_other)
    assert_close(alike(encoder, tokens), expected, 1e-5)
    assert positions == [(53, 73)]


def one_by_one(encoder: DualEncoder) -> Any:
    """The layers as they are written, on each text by itself."""

    def run(packed: Any, places: Tensor | None) -> Tensor:
        assert packed.shared is None
        layers = text_tower.TextLayers(encoder.model)
        starts = packed.starts.tolist()
        states = torch.cat(
            [
                layers.run(layers.embed(packed.ids[None, start:stop]), 0, layers.depth)[0]
                for start, stop in pairwise(starts)
            ]
        )
        return states if places is None else states[places]

    return run


def test_where_attention_works_on_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    half, cuda, varlen = torch.bfloat16, "cuda", blocks._varlen
    for device, dtype, width, capability, attention, works in (
        (cuda, half, 64, (9, 0), varlen, True),
        (cuda, torch.float16, 64, (8, 0), varlen, True),
        (cuda, half, 256, (9, 0), varlen, True),
        (cuda, half, 264, (9, 0), varlen, False),
        (cuda, torch.float32, 64, (9, 0), varlen, False),
        ("cpu", half, 64, (9, 0), varlen, False),
        (cuda, half, 12, (9, 0), varlen, False),
        (cuda, half, 64, (7, 5), varlen, False),
        (cuda, half, 64, (9, 0), lambda: None, False),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        monkeypatch.setattr(blocks, "_varlen", attention)
        assert blocks.attends_to_lists(torch.device(device), dtype, width) is works


def test_every_signature_of_torchs_attention_on_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(q: Tensor, *rest: Any, is_causal: bool = False) -> Any:
        return is_causal

    def late(q: Tensor, *rest: Any, window_size: tuple[int, int] = (-1, -1)) -> Any:
        return window_size

    place = "torch.nn.attention.varlen"
    for offered, expected in ((early, True), (late, (-1, 0))):
        monkeypatch.setitem(sys.modules, place, SimpleNamespace(varlen_attn=offered))
        assert blocks._varlen.__wrapped__()(torch.zeros(1)) == expected
    monkeypatch.setitem(sys.modules, place, None)
    assert blocks._varlen.__wrapped__() is None


# --- How texts are grouped by length: the cheapest split, and nothing lost. ---


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 12))
def test_buckets_are_the_cheapest_split(lengths: list[int], cost: int) -> None:
    lengths = sorted(lengths)
    n = len(lengths)
    buckets = choose_buckets(lengths, cost)
    assert [b.start for b in buckets] == [0, *(b.stop for b in buckets[:-1])]
    assert buckets[-1].stop == n
    assert all(b.length == lengths[b.stop - 1] for b in buckets)

    def price(cuts: tuple[int, ...]) -> int:
        edges = (0, *cuts, n)
        return sum(lengths[stop - 1] * (stop - start) + cost for start, stop in pairwise(edges))

    best = min(price(cuts) for k in range(n) for cuts in combinations(range(1, n), k))
    assert price(tuple(b.start for b in buckets[1:])) == best


def test_plan_keeps_every_text_and_drops_only_equal_ones() -> None:
    ids = token_ids(LENGTHS)
    ids = torch.cat([ids, ids[[2, 0, 2]]])  # repeated texts, out of order
    last = torch.tensor([row.index(END) for row in ids.tolist()])
    for deduplicate, rows in ((True, len(LENGTHS)), (False, len(ids))):
        inputs = TextPlanner(True, True, None, 0).inputs(ids, deduplicate)
        (packed,) = inputs.groups
        assert isinstance(packed, PackedTokens)
        laid_out = torch.zeros(rows * 20, dtype=ids.dtype).index_copy(0, packed.place, packed.ids)
        assert torch.equal(laid_out.view(rows, 20)[inputs.place], ids)
        assert torch.equal(inputs.last[inputs.place], last)
        assert inputs.last.tolist() == sorted(inputs.last.tolist())
    assert inputs.positions == sum(LENGTHS) + 20 + 7 + 20  # bucket cost 0: no padding at all


@given(
    st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=1, max_size=12),
    st.integers(0, 4),
    st.sampled_from([0, 8]),
)
def test_beginnings_that_texts_share_are_listed_once(
    texts: list[list[int]], limit: int, cost: int
) -> None:
    ids = torch.zeros(len(texts), 8, dtype=torch.int64)
    for row, text in zip(ids, texts):
        row[: len(text) + 2] = torch.tensor([START, *text, END])
    inputs = TextPlanner(True, True, None, cost, limit, shares=True).inputs(ids)
    begin = 0
    for packed in inputs.groups:
        assert isinstance(packed, PackedTokens)
        # A row of the group -> its tokens, as the list has them.
        of_texts = torch.arange(len(packed.ids)) if packed.shared is None else packed.shared[0]
        rows = [
            of_texts[start:stop].tolist()
            for start, stop in zip(packed.starts[:-1].tolist(), packed.starts[1:].tolist())
        ]
        tokens = [tuple(packed.ids[row].tolist()) for row in rows]
        for number, row in enumerate(tokens, begin):
            text = int((inputs.place == number).nonzero()[0])
            assert list(row) == [START, *texts[text], END]
        assert packed.ends.tolist() == [row[-1] for row in rows]
        assert all(packed.position[row].tolist() == [*range(len(row))] for row in rows)
        beginnings = {row[: k + 1] for row in tokens for k in range(len(row))}
        assert {place for row in rows for place in row} == set(range(len(packed.ids)))
        if packed.shared is None:
            assert len(beginnings) > 0.9 * sum(map(len, rows))
        else:
            assert len(packed.ids) == len(beginnings)
            assert torch.equal(of_texts[packed.shared.in_texts], torch.arange(len(packed.ids)))
        begin += len(rows)
