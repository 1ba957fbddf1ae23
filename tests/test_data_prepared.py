"""The texts of batches as numbers: what a device cuts up is what would be computed there."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from compoclip.data.batch import Batch, Numbers
from compoclip.data.prepared import Preparation
from compoclip.losses.contract import Features, HostLayout, IndexRequest, Layout, Role
from compoclip.methods.registry import load_recipe
from compoclip.models.text_plan import TextPlanner
from compoclip.models.tokenizer import Tokenizer, build_tokenizer
from test_data_loader import loader, pictures

CPU = torch.device("cpu")
BATCH = Batch(
    torch.zeros(3, 3, 1, 1),
    texts=("A cat.", "a dog", "a cat .", "a dog on the left of a cat", "a cat", "a bird"),
    owner=(0, 1, 1, 0, 2, 2),
    role=(*(Role.CAPTION,) * 2, *(Role.NEGATIVE,) * 2, Role.CAPTION, Role.POSITIVE),
    rewrite=("", "", "negclip", "swap", "", "synonym"),
    photos=("p", "q", "p"),
    pair=(-1, -1, 0),
)


def preparation(**planner: Any) -> Preparation:
    usual = {"causal": True, "pools_at_end": True, "end": None, "cost": 4}
    return Preparation(build_tokenizer({}), TextPlanner(**{**usual, **planner}))


@pytest.mark.parametrize("planner", [{}, {"causal": False}, {"limit": 1}, {"end": 49407}])
def test_the_tower_is_given_what_it_would_plan(planner: dict[str, Any]) -> None:
    prepare = preparation(**planner)
    texts, layout = prepare(BATCH).on(CPU)
    ids = prepare.tokenize(BATCH.texts)
    expected = prepare.planner.inputs(ids)
    ours: list[torch.Tensor] = []
    theirs: list[torch.Tensor] = []
    texts.mapped(lambda tensor: ours.append(tensor) or tensor)  # type: ignore[func-returns-value]
    expected.mapped(lambda tensor: theirs.append(tensor) or tensor)  # type: ignore[func-returns-value]
    assert all(map(torch.equal, ours, theirs))
    assert len(ours) == len(theirs)
    assert texts.longest == expected.longest
    assert all(type(a) is type(b) for a, b in zip(texts.groups, expected.groups, strict=True))
    assert layout is not None
    assert_same_layout(layout, BATCH.layout(ids=ids))


def assert_same_layout(layout: Layout, other: Layout) -> None:
    assert (layout.images, layout.kinds) == (other.images, other.kinds)
    for name in ("owner", "role", "rewrite", "text_id", "image_id", "side", "pair"):
        assert torch.equal(getattr(layout, name), getattr(other, name)), name
        assert np.array_equal(getattr(layout.host, name), getattr(other.host, name)), name


def features() -> Features:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 4), (6, 4), (3, 2, 4), (6, 3, 4))
    image, text, patches, tokens = (torch.randn(each, generator=generator) for each in shapes)
    mask = torch.ones(6, 3, dtype=torch.bool)
    return Features(image, text, torch.tensor(2.0), patches, tokens, mask)


@pytest.mark.parametrize("name", ["fsc-clip", "ce-clip", "dac", "negclip-original", "triplet-clip"])
def test_losses_find_the_indices_that_were_computed_beforehand(name: str) -> None:
    prepare, seen = preparation(), set[IndexRequest]()
    first, second = (load_recipe(name)() for _ in range(2))  # margins are of one run
    _, layout = prepare(BATCH).on(CPU)
    assert layout is not None
    layout.unforeseen = seen
    values = [term.loss(features(), layout) for term in first.losses]
    assert seen
    assert set(layout.answers) == seen
    again = pickle.loads(pickle.dumps(prepare(BATCH, seen)))  # noqa: S301
    _, layout = again.on(CPU)
    assert set(layout.answers) == seen
    more = set[IndexRequest]()
    layout.unforeseen = more
    assert [term.loss(features(), layout) for term in second.losses] == values
    assert not more


def far_away(host: HostLayout) -> tuple[Any, ...]:
    return (np.array([len(host.owner), 2**31]),)


def test_what_does_not_fit_is_computed_when_it_is_asked_for() -> None:
    _, layout = preparation()(BATCH, {IndexRequest(far_away)}).on(CPU)
    assert layout is not None
    assert not layout.answers
    assert layout.indices(far_away)[0].tolist() == [6, 2**31]


def test_keys_tell_texts_and_photos_apart_in_every_part() -> None:
    """What was hashed is the same where ids, or names of photos, are, also in another batch."""
    made = pickle.loads(pickle.dumps(preparation()(BATCH)))  # noqa: S301
    other = replace(BATCH, texts=BATCH.texts[::-1], photos=("r", "q", "p"))
    texts, photos = made.on(CPU)[1].host.keys
    others, other_photos = preparation()(other).on(CPU)[1].host.keys
    ids = build_tokenizer({})(BATCH.texts)
    same = [[bool((a == b).all()) for a in ids] for b in ids.flip(0)]
    assert (others[:, None] == texts).tolist() == same
    assert (other_photos[:, None] == photos).tolist() == [
        [False] * 3,
        [False, True, False],
        [True, False, True],
    ]
    assert texts.dtype == photos.dtype == np.int64
    kept = made.on(CPU)[1].host.only(("swap",))
    assert kept.keys[0].tolist() == texts[[0, 1, 3, 4]].tolist()


def test_an_empty_part_has_something_to_encode() -> None:
    nothing = Batch(torch.zeros(0, 3, 1, 1), (), (), (), ())
    made = preparation()(nothing)
    texts, layout = made.on(CPU)
    assert texts.place.tolist() == [0]
    assert (layout.images, len(layout.owner), len(layout.host.keys[0])) == (0, 0, 0)
    assert made.truncated == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_learns_what_losses_ask_for(workers: int) -> None:
    made = loader(pictures(40), workers=workers)
    made.prepare_with(preparation(), CPU)
    method = load_recipe("clip-ft")()
    known = []
    for batch in made.epoch(0):
        assert isinstance(batch.numbers, Numbers)
        texts, layout = batch.numbers.on(CPU)
        assert layout is not None
        assert len(texts.place) == len(batch.texts)
        known.append(len(layout.answers))
        layout.unforeseen = batch.unforeseen
        images, texts_ = batch.images, len(batch.texts)
        seen = Features(torch.ones(images, 2), torch.ones(texts_, 2), torch.tensor(1.0))
        method.losses[0].loss(seen, layout)
    assert known[0] == 0
    assert known[-1] == 1
    made.close()


class Words:
    """A tokenizer of words in the form that open_clip's for Hugging Face has: padded at the end."""

    context_length = 6
    tokenizer_mode = "words"
    words = ("<pad>", "a", "square", "not")

    @property
    def tokenizer(self) -> Any:
        return self

    def get_vocab(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    @staticmethod
    def clean_fn(text: str) -> str:
        return text.lower()

    def __call__(self, texts: Any, context_length: int = 0) -> Any:
        if isinstance(texts, str):
            return SimpleNamespace(input_ids=texts.split())
        ids = torch.zeros(len(texts), context_length, dtype=torch.int64)
        for row, text in zip(ids, texts):
            found = [self.get_vocab().get(word, 1) for word in self.clean_fn(text).split()]
            row[: len(found)] = torch.tensor(found[:context_length])
        return ids


def test_other_tokenizers_work_in_workers() -> None:
    tokenize = Tokenizer(Words(), Words.context_length)
    planner = TextPlanner(causal=False, pools_at_end=False, end=None, cost=1)
    made = loader(pictures(8))
    sent = pickle.loads(pickle.dumps(Preparation(tokenize, planner)))  # noqa: S301 our own object
    made.prepare_with(sent, CPU)
    for batch in made.epoch(0):
        assert batch.numbers is not None
        texts, _ = batch.numbers.on(CPU)
        assert torch.equal(texts.groups[0].ids, tokenize(batch.texts))
        assert batch.numbers.truncated == tokenize.truncated(batch.texts)
    made.close()
