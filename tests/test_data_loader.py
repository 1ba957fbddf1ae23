"""Batches: the same for any worker count, replayable at any step, honest about bad images."""

from __future__ import annotations

import os
import pickle
import random
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torchvision.transforms import functional

from build.photos import noise
from compoclip.data import images
from compoclip.data.batch import Batch, Numbers
from compoclip.data.drawing import PlanCounts
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan
from compoclip.data.prepared import Preparation
from compoclip.data.transform import ImageTransform, RandomCrop, normalised
from compoclip.errors import CompoclipError
from compoclip.losses.contract import Features, HostLayout, IndexRequest, Layout, Role
from compoclip.methods.registry import load_recipe
from compoclip.models.preprocess import Preprocess, random_crop
from compoclip.models.text_plan import TextInputs, TextPlanner
from compoclip.models.tokenizer import Tokenizer, build_tokenizer
from compoclip.rewrites.base import rng_for
from data_samples import SIZE, Photos, equal, loader, pictures
from ranks_helpers import warm_context

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_a_batch_has_pixels_and_texts_of_its_samples() -> None:
    loading = loader(pictures(9))
    batches = list(loading.epoch(0))
    assert len(batches) == loading.steps_per_epoch == 2
    for batch in batches:
        assert batch.pixels.shape == (4, 3, 16, 16)
        assert batch.pixels.dtype == torch.uint8
        assert batch.images == 4
        captions = [i for i, role in enumerate(batch.role) if role is Role.CAPTION]
        assert [batch.owner[i] for i in captions] == [0, 1, 2, 3]
        for i, id in zip(captions, batch.ids):
            assert batch.texts[i].split()[1] == id.removeprefix("id-")
    counts = PlanCounts()
    for batch in batches:
        counts.add(batch.counts)
    assert counts.samples == 8
    assert counts.accepted["sometimes"] + counts.refused["sometimes", "third"] == 8
    assert 0 < counts.accepted["sometimes"] < 8


def test_an_epoch_is_a_permutation_that_changes_with_epoch_and_seed() -> None:
    def order(epoch: int, **options: object) -> list[str]:
        return [id for batch in loader(pictures(20), **options).epoch(epoch) for id in batch.ids]

    assert sorted(order(0)) == sorted(f"id-{i}" for i in range(20))
    assert order(0) == order(0)
    assert len({tuple(order(e, seed=s)) for e in (0, 1) for s in (0, 1)}) == 4


def test_batches_do_not_depend_on_the_number_of_workers() -> None:
    alone, many = loader(pictures(22)), loader(pictures(22), workers=3)
    for epoch in (0, 1):
        assert equal(alone.epoch(epoch), many.epoch(epoch))
    abandoned = many.epoch(2)
    next(abandoned)
    assert equal(alone.epoch(3, 2), many.epoch(3, 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_go_on_from_one_epoch_to_the_next_and_no_further(workers: int) -> None:
    photos = Photos()
    source = pictures(22, photos)  # 5 steps an epoch
    one = loader(pictures(22))
    expected = [*one.epoch(0, 3), *one.epoch(1), *list(one.epoch(2))[:2]]
    assert equal(iter(expected), loader(source, workers=workers).steps(3, 12))
    assert len(photos.touched) == (0 if workers else 9 * 4)


def test_workers_are_given_the_next_epoch_while_this_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    order = images.shuffled
    monkeypatch.setattr(images, "shuffled", lambda *by: [asked.append(by[-1]), order(*by)][1])
    batches = loader(pictures(22), workers=1).steps(0, 10)
    seen = [next(batches) for _ in range(4)]
    assert asked == [0, 1]  # step 4 of epoch 0 has not been taken
    assert equal(iter([*seen, *batches]), loader(pictures(22)).steps(0, 10))


def test_pixels_for_a_gpu_are_pinned_and_nothing_else_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: tensors.append(x) or x.clone())
    (batch,) = loader(pictures(4)).epoch(0)
    pinned = batch.pin_memory()
    assert tensors[0] is batch.pixels
    assert pinned.pixels is not batch.pixels
    assert equal(iter([batch]), iter([pinned]))


def test_workers_that_inherit_nothing_make_the_same_batches() -> None:
    warm_context()  # from which workers of a fork server are forked; spawned ones inherit no more
    served = loader(pictures(8), workers=1, start_method="forkserver")
    assert equal(loader(pictures(8)).epoch(1), served.epoch(1))


def test_workers_end_with_a_loader_that_nobody_closed() -> None:
    """At once: found by the garbage collector, each would be waited for."""
    loading = loader(pictures(80), workers=1)
    batches = loading.epoch(0)
    next(batches)
    workers = loading._workers._iterator._workers  # type: ignore[attr-defined]
    assert workers[0].is_alive()
    del loading, batches
    assert not workers[0].is_alive()


def test_resuming_gives_the_rest_of_the_epoch_and_decodes_nothing_before() -> None:
    whole = list(loader(pictures(22)).epoch(4))
    photos = Photos()
    source = pictures(22, photos)
    rest = list(loader(source).epoch(4, start_step=3))
    assert equal(iter(whole[3:]), iter(rest))
    assert len(photos.touched) == 2 * 4
    assert list(loader(pictures(22)).epoch(4, start_step=5)) == []


def test_parts_of_a_batch_join_to_the_whole() -> None:
    whole = loader(pictures(22)).epoch(0)
    parts = [loader(pictures(22), rank=rank, world=2).epoch(0) for rank in (0, 1)]
    for batch, first, second in zip(whole, *parts, strict=True):
        assert torch.equal(batch.pixels, torch.cat([first.pixels, second.pixels]))
        assert batch.ids == first.ids + second.ids
        assert batch.texts == first.texts + second.texts
    with pytest.raises(CompoclipError, match="cannot be split over 3"):
        loader(pictures(22), rank=0, world=3)
    with pytest.raises(CompoclipError, match="batch size 0"):
        loader(pictures(3), batch_size=0)
    assert loader(pictures(3)).steps_per_epoch == 0  # less than a batch


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_and_reported(
    workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    source = pictures(12, Photos(bad=frozenset({3, 7})))
    loading = loader(source, workers=workers, max_bad=2)
    batches = list(loading.epoch(0))
    assert sum(len(b.ids) for b in batches) == 10
    assert sorted(id for b in batches for id in b.skipped) == ["id-3", "id-7"]
    for batch in batches:
        assert len(batch.ids) + len(batch.skipped) == 4
        assert batch.pixels.shape[0] == batch.images == len(batch.ids)
    assert sorted(loading.bad) == ["id-3", "id-7"]
    assert capsys.readouterr().err.count("left out: id-") == 2
    list(loading.epoch(1))  # the same two again: no more than before
    assert capsys.readouterr().err == ""
    clean = {id: row for b in loader(pictures(12)).epoch(0) for id, row in zip(b.ids, b.pixels)}
    for batch in batches:
        assert all(torch.equal(clean[id], row) for id, row in zip(batch.ids, batch.pixels))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("photos", "allowed", "message"),
    [
        (Photos(bad=frozenset({5})), 0, "unreadable image, .*id-5: not an image"),
        (Photos(bad=frozenset({1, 5})), 1, "unreadable images, .*id-5: not an image"),
        (Photos(bad=frozenset(range(4))), 99, "no image of a batch could be read"),
        (Photos(broken=frozenset({2})), 0, "^shard of 2 is gone$"),
    ],
)
def test_images_that_end_the_run_are_named_in_one_line(
    workers: int, photos: Photos, allowed: int, message: str
) -> None:
    source = pictures(4 if allowed == 99 else 8, photos)
    with pytest.raises(CompoclipError, match=message) as raised:
        list(loader(source, workers=workers, max_bad=allowed).epoch(0))
    assert "\n" not in str(raised.value)


# --- Killed workers. ---


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch looks for dead workers every 5 seconds."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))


def kill_a_worker(loading: BatchLoader) -> Any:
    iterator: Any = loading._workers._iterator
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    return iterator


def test_a_killed_worker_is_one_line_and_the_rest_can_be_had(impatient: None) -> None:
    before = signal.getsignal(signal.SIGCHLD)
    loading = loader(pictures(80), workers=2)
    batches = loading.epoch(0)
    seen = [next(batches)]
    assert signal.getsignal(signal.SIGCHLD) == before
    iterator = kill_a_worker(loading)
    with pytest.raises(CompoclipError, match=r"^.*data was killed .*continue with --resume.*$"):
        seen.extend(batches)
    assert not any(worker.is_alive() for worker in iterator._workers)
    rest = loading.epoch(0, len(seen))  # new workers
    assert equal(iter([*seen, *rest]), loader(pictures(80)).epoch(0))


def test_a_worker_killed_between_epochs_is_one_line_too(impatient: None) -> None:
    loading = loader(pictures(8), workers=1)
    list(loading.epoch(0))
    kill_a_worker(loading)
    with pytest.raises(CompoclipError, match=r"reads data was killed"):
        next(loading.epoch(1))
    assert equal(loading.epoch(1), loader(pictures(8)).epoch(1))


# --- The transform. ---


def general(image: Image.Image, box: tuple[int, int, int, int], to: Preprocess) -> torch.Tensor:
    """The pixels of a crop (top, left, height, width) by torchvision's general functions."""
    mode = functional.InterpolationMode(to.interpolation)
    cropped = functional.resized_crop(image, *box, list(to.size), mode)
    return functional.normalize(functional.to_tensor(cropped), to.mean, to.std)


@pytest.mark.parametrize("size", [(40, 30), (16, 16), (9, 50)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_training_pixels_equal_the_general_transform(
    size: tuple[int, int], interpolation: str
) -> None:
    preprocess = Preprocess(size=(16, 16), interpolation=interpolation)
    image = noise(1, size)
    for seed in range(5):
        pixels = ImageTransform(preprocess)(image, random.Random(seed))
        assert pixels.dtype == torch.uint8
        box = random_crop(image.height, image.width, random.Random(seed))
        expected = general(image, box, preprocess)
        assert torch.equal(normalised(pixels, preprocess.mean, preprocess.std), expected)


def test_the_loader_crops_with_the_generator_of_sample_and_epoch() -> None:
    crop = RandomCrop(scale=(0.3, 0.6), ratio=(0.8, 1.25))
    transform = ImageTransform(SIZE, crop)
    batch = next(BatchLoader(pictures(4), TextPlan(), transform, batch_size=4, seed=11).epoch(2))
    for id, pixels in zip(batch.ids, batch.normalised(torch.device("cpu"))):
        image = noise(int(id[3:]))
        box = random_crop(20, 24, rng_for(11, id, 2, "crop"), (0.3, 0.6), (0.8, 1.25))
        assert torch.equal(pixels, general(image, box, SIZE))


# --- The texts of batches as numbers. ---


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


def tensors_of(inputs: TextInputs) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    inputs.mapped(lambda tensor: tensors.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return tensors


@pytest.mark.parametrize("planner", [{}, {"causal": False}, {"limit": 1}, {"end": 49407}])
def test_the_tower_is_given_what_it_would_plan(planner: dict[str, Any]) -> None:
    prepare = preparation(**planner)
    texts, layout = prepare(BATCH).on(CPU)
    ids = prepare.tokenize(BATCH.texts)
    expected = prepare.planner.inputs(ids)
    for ours, theirs in zip(tensors_of(texts), tensors_of(expected), strict=True):
        assert torch.equal(ours, theirs)
    assert texts.longest == expected.longest
    assert all(type(a) is type(b) for a, b in zip(texts.groups, expected.groups, strict=True))
    assert_same_layout(layout, BATCH.layout(ids=ids))


def assert_same_layout(layout: Layout, other: Layout) -> None:
    assert (layout.images, layout.kinds) == (other.images, other.kinds)
    for name in ("owner", "role", "rewrite", "text_id", "image_id", "side", "pair"):
        assert torch.equal(getattr(layout, name), getattr(other, name)), name
        assert np.array_equal(getattr(layout.host, name), getattr(other.host, name)), name


def features() -> Features:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 4), (6, 4), (3, 2, 4), (6, 3, 4))
    image, text, patches, tokens = (torch.randn(s, generator=generator) for s in shapes)
    mask = torch.ones(6, 3, dtype=torch.bool)
    return Features(image, text, torch.tensor(2.0), patches, tokens, mask)


@pytest.mark.parametrize("name", ["fsc-clip", "ce-clip", "dac", "negclip-original", "triplet-clip"])
def test_losses_find_the_indices_that_were_computed_beforehand(name: str) -> None:
    prepare, seen = preparation(), set[IndexRequest]()
    first, second = (load_recipe(name)() for _ in range(2))  # margins are of one run
    _, layout = prepare(BATCH).on(CPU)
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
    assert not layout.answers
    assert layout.indices(far_away)[0].tolist() == [6, 2**31]


def test_keys_tell_texts_and_photos_apart_in_every_part() -> None:
    numbers = pickle.loads(pickle.dumps(preparation()(BATCH)))  # noqa: S301
    other = replace(BATCH, texts=BATCH.texts[::-1], photos=("r", "q", "p"))
    texts, photos = numbers.on(CPU)[1].host.keys
    others, other_photos = preparation()(other).on(CPU)[1].host.keys
    ids = build_tokenizer({})(BATCH.texts)
    same = [[bool((a == b).all()) for a in ids] for b in ids.flip(0)]
    assert (others[:, None] == texts).tolist() == same
    shared = [[False, False, False], [False, True, False], [True, False, True]]
    assert (other_photos[:, None] == photos).tolist() == shared
    assert texts.dtype == photos.dtype == np.int64
    selected = numbers.on(CPU)[1].host.only(("swap",))
    assert selected.keys[0].tolist() == texts[[0, 1, 3, 4]].tolist()


def test_an_empty_part_has_something_to_encode() -> None:
    nothing = Batch(torch.zeros(0, 3, 1, 1), (), (), (), ())
    numbers = preparation()(nothing)
    texts, layout = numbers.on(CPU)
    assert texts.place.tolist() == [0]
    assert (layout.images, len(layout.owner), len(layout.host.keys[0])) == (0, 0, 0)
    assert numbers.truncated == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_learns_what_losses_ask_for(workers: int) -> None:
    loading = loader(pictures(40), workers=workers)
    loading.prepare_with(preparation(), CPU)
    (term,) = load_recipe("clip-ft")().losses
    answers = []
    for batch in loading.epoch(0):
        assert isinstance(batch.numbers, Numbers)
        texts, layout = batch.numbers.on(CPU)
        assert len(texts.place) == len(batch.texts)
        answers.append(len(layout.answers))
        layout.unforeseen = batch.unforeseen
        image, text = torch.ones(batch.images, 2), torch.ones(len(batch.texts), 2)
        term.loss(Features(image, text, torch.tensor(1.0)), layout)
    assert (answers[0], answers[-1]) == (0, 1)
    loading.close()


VOCABULARY = {"<pad>": 0, "a": 1, "square": 2, "not": 3}


class Words:
    """A tokenizer of words in the form that open_clip's for Hugging Face has: padded at the end."""

    context_length = 6
    tokenizer_mode = "words"

    @property
    def tokenizer(self) -> Any:
        return self

    def get_vocab(self) -> dict[str, int]:
        return VOCABULARY

    @staticmethod
    def clean_fn(text: str) -> str:
        return text.lower()

    def __call__(self, texts: Any, context_length: int = 0) -> Any:
        if isinstance(texts, str):
            return SimpleNamespace(input_ids=texts.split())
        ids = torch.zeros(len(texts), context_length, dtype=torch.int64)
        for row, text in zip(ids, texts):
            known = [VOCABULARY.get(word, 1) for word in self.clean_fn(text).split()]
            row[: len(known)] = torch.tensor(known[:context_length])
        return ids


def test_other_tokenizers_work_in_workers() -> None:
    tokenize = Tokenizer(Words(), Words.context_length)
    planner = TextPlanner(causal=False, pools_at_end=False, end=None, cost=1)
    loading = loader(pictures(8))
    sent = pickle.loads(pickle.dumps(Preparation(tokenize, planner)))  # noqa: S301 our own object
    loading.prepare_with(sent, CPU)
    for batch in loading.epoch(0):
        texts, _ = batch.numbers.on(CPU)
        assert torch.equal(texts.groups[0].ids, tokenize(batch.texts))
        assert batch.numbers.truncated == tokenize.truncated(batch.texts)
    loading.close()
