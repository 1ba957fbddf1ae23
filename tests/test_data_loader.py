"""Batches: the same for any worker count, replayable at any step, honest about bad images."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional

from compoclip.captions.types import Caption
from compoclip.data import images
from compoclip.data.batch import Batch
from compoclip.data.drawing import PlanCounts
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan
from compoclip.data.sources import ImageColumn, Source
from compoclip.data.sources.table import RowBuilder
from compoclip.data.transform import ImageTransform, RandomCrop, normalised
from compoclip.errors import CompoclipError
from compoclip.losses.contract import Role
from compoclip.models.preprocess import Preprocess, random_crop
from compoclip.rewrites.base import Refused, Rewrite, Rewritten, rng_for
from data_samples import Unparsed, encode

SIZE = Preprocess(size=(16, 16))


def png(number: int) -> bytes:
    values = np.random.default_rng(number).integers(0, 255, (20, 24, 3), dtype=np.uint8)
    return encode(Image.fromarray(values))


@dataclass
class Photos:
    """Small pictures by number; those in `bad` are damaged, those in `broken` cannot be fetched."""

    bad: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()
    touched: list[int] = field(default_factory=list)

    def __call__(self, image: str) -> bytes:
        index = int(image)
        self.touched.append(index)
        if index in self.broken:
            raise CompoclipError(f"shard of {index} is gone")
        return b"junk" if index in self.bad else png(index)


def pictures(count: int, photos: Photos | None = None) -> Source:
    builder = RowBuilder("pictures", Path(), ImageColumn("photo", photos or Photos()))
    for i in range(count):
        builder.add(f"id-{i}", str(i), (f"picture {i}", f"image {i}"), place=1)
    return builder.build("pictures")


@dataclass(frozen=True)
class Sometimes:
    """A rewrite that refuses about every third caption."""

    name: str = "sometimes"
    version: str = "1"
    keeps_meaning: bool = False

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        number = rng.randrange(999)
        if number % 3 == 0:
            return Refused("third")
        return Rewritten(f"{caption.text} not {number}", self.name, False, "fake", ())


def resolve(name: str) -> Rewrite:
    return Sometimes(name)


def loader(source: Source, **options: object) -> BatchLoader:
    plan = TextPlan(["sometimes"], seed=5, parsed=Unparsed(), resolve=resolve)
    defaults: dict[str, object] = {"batch_size": 4, "seed": 5}
    return BatchLoader(source, plan, ImageTransform(SIZE), **{**defaults, **options})  # type: ignore[arg-type]


def beside_tensors(batch: Batch) -> dict[str, Any]:
    fields = vars(batch).items()
    return {k: v for k, v in fields if k not in ("pixels", "numbers", "unforeseen")}


def equal(a: Iterator[Batch], b: Iterator[Batch]) -> bool:
    left, right = list(a), list(b)
    return len(left) == len(right) and all(
        torch.equal(x.pixels, y.pixels) and beside_tensors(x) == beside_tensors(y)
        for x, y in zip(left, right)
    )


def test_shapes_and_layout() -> None:
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


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [1, 3])
def test_batches_do_not_depend_on_the_number_of_workers(workers: int) -> None:
    alone, many = loader(pictures(22)), loader(pictures(22), workers=workers)
    for epoch in (0, 1):
        assert equal(alone.epoch(epoch), many.epoch(epoch))
    abandoned = many.epoch(2)
    next(abandoned)
    assert equal(alone.epoch(3, 2), many.epoch(3, 2))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
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
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x.clone())
    (batch,) = loader(pictures(4)).epoch(0)
    made = batch.pin_memory()
    assert pinned[0] is batch.pixels
    assert made.pixels is not batch.pixels
    assert equal(iter([batch]), iter([made]))


@pytest.mark.slow
def test_spawned_workers_make_the_same_batches() -> None:
    spawned = loader(pictures(8), workers=1, start_method="spawn")
    assert equal(loader(pictures(8)).epoch(1), spawned.epoch(1))


def test_workers_end_with_a_loader_that_nobody_closed() -> None:
    """At once: found by the garbage collector, each would be waited for."""
    loading = loader(pictures(80), workers=1)
    batches = loading.epoch(0)
    next(batches)
    assert loading._workers is not None
    assert loading._workers._iterator is not None
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


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_bad_images_end_the_run_with_their_names(workers: int) -> None:
    for bad, allowed in ((frozenset({5}), 0), (frozenset({1, 5}), 1)):
        source = pictures(8, Photos(bad))
        with pytest.raises(
            CompoclipError, match=r"unreadable images?, .*id-5: not an image"
        ) as raised:
            list(loader(source, workers=workers, max_bad=allowed).epoch(0))
        assert "\n" not in str(raised.value)
    with pytest.raises(CompoclipError, match="no image of a batch could be read"):
        list(loader(pictures(4, Photos(frozenset(range(4)))), workers=workers, max_bad=99).epoch(0))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_source_arrives_as_one_line(workers: int) -> None:
    loading = loader(pictures(8, Photos(broken=frozenset({2}))), workers=workers)
    with pytest.raises(CompoclipError, match=r"^shard of 2 is gone$"):
        list(loading.epoch(0))


# The transform


def general(image: Image.Image, box: tuple[int, int, int, int], to: Preprocess) -> torch.Tensor:
    """The pixels of a crop (top, left, height, width) by torchvision's general functions."""
    mode = functional.InterpolationMode(to.interpolation)
    cropped = functional.resized_crop(image, *box, list(to.size), mode)
    return functional.normalize(functional.to_tensor(cropped), to.mean, to.std)


def numbers(pixels: torch.Tensor, to: Preprocess) -> torch.Tensor:
    assert pixels.dtype == torch.uint8
    return normalised(pixels, to.mean, to.std)


def photo(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize("size", [(40, 30), (16, 16), (9, 50)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_training_pixels_equal_the_general_transform(
    size: tuple[int, int], interpolation: str
) -> None:
    preprocess = Preprocess(size=(16, 16), interpolation=interpolation)
    image = photo(*size)
    for seed in range(5):
        got = numbers(ImageTransform(preprocess)(image, random.Random(seed)), preprocess)
        box = random_crop(image.height, image.width, random.Random(seed))
        assert torch.equal(got, general(image, box, preprocess))


def test_the_loader_crops_with_the_generator_of_sample_and_epoch() -> None:
    crop = RandomCrop(scale=(0.3, 0.6), ratio=(0.8, 1.25))
    loading = BatchLoader(
        pictures(4), TextPlan(), ImageTransform(SIZE, crop), batch_size=4, seed=11
    )
    batch = next(loading.epoch(2))
    for id, pixels in zip(batch.ids, batch.normalised(torch.device("cpu"))):
        image = Image.open(io.BytesIO(png(int(id[3:]))))
        box = random_crop(20, 24, rng_for(11, id, 2, "crop"), (0.3, 0.6), (0.8, 1.25))
        assert torch.equal(pixels, general(image, box, SIZE))
