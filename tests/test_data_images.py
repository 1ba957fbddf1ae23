"""Image plans: composites, neighbours, negative images, groups; and the columns they need."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip.constants import IMAGENET_MEAN, IMAGENET_STD
from PIL import Image

from build.photos import encode, noise, plain
from build.tables import write_jsonl
from compoclip.data.batch import Batch
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.drawing import Drawn, PlanCounts
from compoclip.data.images import (
    BatchBuilder,
    Companions,
    ImagePlan,
    NegativeImages,
    Single,
    photo_key,
)
from compoclip.data.images.composed import Composed, join_images, partner, stopped
from compoclip.data.images.groups import Groups
from compoclip.data.images.neighbours import Neighbours, mine, nearest_others
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample, Source
from compoclip.data.sources.open import open_source
from compoclip.data.texts import TargetPlan
from compoclip.data.transform import ImageTransform, RandomCrop, normalised
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Role
from compoclip.methods.registry import load_recipe
from compoclip.models.preprocess import Preprocess
from data_samples import Parses, beside_tensors, few

Capture = pytest.CaptureFixture[str]

SIZE = Preprocess(size=(16, 16))
MAIN = CaptionPlan(main=True)


def png(value: int, size: tuple[int, int]) -> bytes:
    return plain((value,) * 3, size)


def shapes(count: int, bad: int = -1) -> Source:
    """Landscape images of grey level 10 i at even i, portrait ones at odd i; three captions."""

    def sample(i: int) -> Sample:
        image = png(10 * i, (24, 16) if i % 2 == 0 else (16, 24))
        what = f"{('red', 'blue', 'green')[i % 3]} {('cat', 'dog', 'cup', 'bus', 'bird')[i % 5]}"
        texts = (f"a {what} {i} on a mat", f"extra {i} one", f"extra {i} two")
        return Sample(f"id-{i}", b"junk" if i == bad else image, texts)

    return few([*map(sample, range(count))])


def identity(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.flatten(1)


def loader(
    source: Source,
    images: ImagePlan,
    folder: Path,
    plan: CaptionPlan = MAIN,
    crop: RandomCrop | None = None,
    **options: object,
) -> BatchLoader:
    companions = images.prepare(source, identity, SIZE, folder, resume=False)
    return BatchLoader(
        source,
        TextPlan(plan, seed=3, parsed=Parses()),
        ImageTransform(SIZE, crop),
        seed=3,
        images=images,
        companions=companions,
        **{"batch_size": 4, **options},  # type: ignore[arg-type]
    )


def test_joining_gives_each_image_its_half() -> None:
    one, two = (Image.new("RGB", (30, 20), (value,) * 3) for value in (50, 200))
    stacked = np.asarray(join_images(one, two, (8, 8), landscape=True))
    assert (stacked[:4] == 50).all()
    assert (stacked[4:] == 200).all()
    beside = np.asarray(join_images(one, two, (8, 8), landscape=False))
    assert (beside[:, :4] == 50).all()
    assert (beside[:, 4:] == 200).all()
    boxed = np.asarray(join_images(one, two, (8, 12), landscape=False, layout="letterbox", fill=7))
    assert (boxed[2:6, :6] == 50).all()  # 30 x 20 keeps its shape in 6 x 8: 6 x 4
    assert (boxed[:2] == 7).all()
    assert (boxed[6:] == 7).all()
    with pytest.raises(CompoclipError, match="use an even size"):
        join_images(one, two, (7, 8), landscape=True)


def test_composites_hold_two_images_of_one_orientation_and_texts_of_both(tmp_path: Path) -> None:
    source = shapes(12)
    batches = [b for e in (0, 1) for b in loader(source, Composed(), tmp_path).epoch(e)]
    assert [batch.kind for batch in batches] == ["composed", "single"] * 3
    with_negatives = 0
    for batch in batches[::2]:
        for place, index in enumerate(int(id[3:]) for id in batch.ids):
            texts = [t for t, owner in zip(batch.texts, batch.owner) if owner == place]
            roles = [r for r, owner in zip(batch.role, batch.owner) if owner == place]
            assert roles[:4] == [Role.CAPTION, Role.POSITIVE, Role.POSITIVE, Role.POSITIVE]
            caption = source[index].captions[0]
            assert texts[0].startswith(f"{caption}. ")
            other = texts[0].removeprefix(f"{caption}. ")
            partner = int(other.split()[3])
            assert partner != index
            assert partner % 2 == index % 2
            assert texts[1] == f"{other} {caption}."
            assert all(f"extra {i} " in texts[2] for i in (index, partner))
            assert texts[2] != texts[3]
            assert set(texts[4:]).isdisjoint(texts[:4])
            with_negatives += len(texts) > 4
            halves = batch.pixels[place, 0].split(8, dim=index % 2)  # landscapes are stacked
            assert all((half == half.flatten()[0]).all() for half in halves)
            assert {int(half.flatten()[0]) for half in halves} == {10 * index, 10 * partner}
    assert with_negatives
    for batch in batches[1::2]:
        assert set(batch.role) == {Role.CAPTION}
        assert batch.texts == tuple(source[int(id[3:])].captions[0] for id in batch.ids)


def test_targets_of_heads_are_beside_the_texts_of_a_batch(tmp_path: Path) -> None:
    plan = replace(MAIN, texts=(TargetPlan("other"),))
    for batch in loader(shapes(12), Single(), tmp_path, plan).epoch(0):
        numbers = [int(id[3:]) for id in batch.ids]
        assert all(f" {number} on a mat" in t for number, t in zip(numbers, batch.texts))
        assert len(batch.texts) == len(batch.targets) == 4
        wanted = [(f"extra {number} one", f"extra {number} two") for number in numbers]
        assert all(target in texts for target, texts in zip(batch.targets, wanted))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("images", [Composed(), Neighbours(2, mined=True)])
def test_batches_do_not_depend_on_workers(images: ImagePlan, tmp_path: Path) -> None:
    def batches(workers: int) -> list[Batch]:
        return list(loader(shapes(12), images, tmp_path, workers=workers).epoch(1, 1))

    for one, two in zip(batches(0), batches(2), strict=True):
        assert torch.equal(one.pixels, two.pixels)
        assert beside_tensors(one) == beside_tensors(two)


def test_composites_may_be_normalised_as_released(tmp_path: Path) -> None:
    own, released = (
        loader(shapes(12), Composed(normalisation=how), tmp_path) for how in ("model", "imagenet")
    )
    for step, (one, two) in enumerate(zip(own.epoch(0), released.epoch(0))):
        assert torch.equal(one.pixels, two.pixels)
        assert (one.mean, one.std) == (SIZE.mean, SIZE.std)
        composed = step % 2 == 0  # single images always go by the model's own
        assert (two.mean == IMAGENET_MEAN, two.std == IMAGENET_STD) == (composed, composed)
        expected = normalised(two.pixels, two.mean, two.std)
        assert torch.equal(two.normalised(torch.device("cpu")), expected)
        assert one.normalised(torch.device("cpu")).equal(expected) is not composed


def test_an_image_without_a_partner_and_an_unreadable_one(tmp_path: Path, capsys: Capture) -> None:
    # Two landscapes, one portrait.
    batch = next(loader(shapes(3), Composed(), tmp_path, batch_size=3).epoch(0))
    assert sorted(batch.ids) == ["id-0", "id-2"]
    assert batch.skipped == ("id-1",)
    assert "the only portrait image has no partner" in capsys.readouterr().err
    loading = loader(shapes(8, bad=2), Composed(), tmp_path, batch_size=8, max_bad=1)
    batch = next(loading.epoch(0))
    assert "id-2" not in batch.ids
    assert list(loading.bad) == ["id-2"]
    assert batch.images == len(batch.ids) == 7


def test_partners_are_uniform_and_never_the_image_itself() -> None:
    assert [stopped(t) for t in ("a cat ", "Why?", "yes.")] == ["a cat.", "Why?", "yes."]
    companions = Companions(np.array([1, 0, 1, 1, 0, -1]))
    rng = random.Random(0)
    drawn = [partner(companions, 2, rng) for _ in range(400)]
    assert set(drawn) == {0, 3}
    assert 150 < drawn.count(0) < 250
    assert partner(companions, 1, rng) == 4
    assert partner(companions, 5, rng) is None


def test_nearest_equals_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.nn.functional.normalize(torch.randn(50, 6, generator=generator), dim=1)
    photo = torch.arange(50) // 2
    photo[7] = -1
    nearest = nearest_others(features.numpy(), photo.numpy(), 4)
    for i in range(50):
        others = [j for j in range(50) if photo[j] != photo[i] and photo[j] != -1]
        others.sort(key=lambda j: -float(features[i] @ features[j]))
        assert nearest[i].tolist() == ([-1] * 4 if photo[i] == -1 else others[:4])
    few = nearest_others(features[:3].numpy(), np.array([0, 0, 1]), 3)
    assert few[:2].tolist() == [[2, -1, -1]] * 2
    assert sorted(few[2].tolist()) == [-1, 0, 1]


def test_mined_neighbours_are_kept_for_a_resumed_run(tmp_path: Path) -> None:
    images = Neighbours(1, mined=True)
    found = images.prepare(shapes(6, bad=3), identity, SIZE, tmp_path, resume=False)
    assert found.values.shape == (6, 3)
    assert found.values[3].tolist() == [-1, -1, -1]
    assert 3 not in found.values

    def never(pixels: torch.Tensor) -> torch.Tensor:
        raise AssertionError("mined again")

    again = images.prepare(shapes(6, bad=3), never, SIZE, tmp_path, resume=True)
    assert (again.values == found.values).all()
    other = images.prepare(shapes(5), identity, SIZE, tmp_path, resume=True)
    assert len(other.values) == 5  # of other data: mined again
    assert (mine(shapes(6, bad=3), identity, SIZE, 3) == found.values).all()


def table(folder: Path, rows: list[dict[str, object]]) -> Source:
    for i in range(10):
        (folder / f"{i}.png").write_bytes(png(10 * i, (16, 16)))
    return open_source(str(write_jsonl(folder / "t.jsonl", rows)))


def test_neighbours_bring_captions_and_negatives(tmp_path: Path) -> None:
    rows = [
        {
            "image": f"{i}.png",
            "caption": f"a cat {i}" if i != 2 else " ",
            "neg_caption": f"no cat {i}",
            "neg_image": [(i + 1) % 6, 2, 99],
        }
        for i in range(6)
    ]
    source = table(tmp_path, rows)
    assert source[2].id == "3.png#3"
    assert source[0].neighbours == (1,)  # row 2 has no caption, row 99 is not there
    assert source[4].neighbours == (0,)
    plan, images = CaptionPlan(rewrites=("given",)), Neighbours(1)
    plan.require(source)
    images.require(source)
    batch = next(loader(source, images, tmp_path, plan, batch_size=5).epoch(0))
    assert len(batch.ids) == 5
    assert batch.images == len(batch.pixels) > 5
    assert batch.photos[0] == str(tmp_path / batch.ids[0].partition("#")[0])
    for place in range(batch.images):
        caption, negative = (t for t, owner in zip(batch.texts, batch.owner) if owner == place)
        number = caption.split()[-1]
        assert negative == f"no cat {number}"
        assert (batch.pixels[place] == 10 * int(number)).all()


def test_negative_images_have_the_negative_for_a_caption(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"image": "1.png", "caption": "a cat", "neg_caption": "a dog", "neg_image": "2.png"},
        {"image": "3.png", "caption": "a cup", "neg_caption": ["a jug", "a can"]},
    ]
    source = table(tmp_path, rows)
    plan = CaptionPlan(rewrites=("given",))
    plan.require(source)
    NegativeImages().require(source)
    batch = next(loader(source, NegativeImages(), tmp_path, plan, batch_size=2).epoch(0))
    layout = batch.layout()
    assert layout.images == 3
    assert layout.side.tolist() == [0, 0, 1]
    cat = batch.ids.index("1.png#0")
    assert layout.pair.tolist() == [0, 1, cat]
    assert [t for t, o in zip(batch.texts, batch.owner) if o == 2] == ["a dog"]


def test_groups_of_variations_among_pairs(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"image": f"{i}.png", "caption": f"a cat {i}", "group": "abc"[i // 2] if i < 5 else ""}
        for i in range(10)
    ]
    source = table(tmp_path, rows)
    images = Groups(variations=2, pairs=1)
    loading = loader(source, images, tmp_path, batch_size=6)
    assert loading.steps_per_epoch == 2  # 5 pairs, 2 a step
    for epoch in range(3):
        ids = [id for batch in loading.epoch(epoch) for id in batch.ids]
        assert len(set(ids[2::3])) == 4
        assert all(int(id[0]) >= 5 for id in ids[2::3])
        for step in (ids[:6], ids[6:]):
            groups = sorted(sorted(id[0] for id in step[at : at + 2]) for at in (0, 3))
            assert groups == [["0", "1"], ["2", "3"]]  # group c has one member only
    with pytest.raises(UsageError, match="must be a multiple of 3"):
        loader(source, images, tmp_path, batch_size=4)
    with pytest.raises(UsageError, match="2 usable groups, and a batch takes 3"):
        loader(source, images, tmp_path, batch_size=9)


def test_variations_are_drawn_by_score_and_poor_ones_left_out(
    tmp_path: Path, capsys: Capture
) -> None:
    scores: list[dict[str, object]] = [
        {"score": 1.0, "image_score": 15},
        {"score": 3.5},
        {},  # without a score it counts as the least of its group
        {"score": 0.0},
        {"score": 9.0, "image_score": 14},
    ]
    rows = [
        {"image": f"{i}.png", "caption": f"a cat {i}", "group": "a", **score}
        for i, score in enumerate(scores)
    ]
    pairs: list[dict[str, object]] = [
        {"image": f"{i}.png", "caption": f"a cat {i}", "score": -1.0} for i in range(5, 9)
    ]
    source = table(tmp_path, [*rows, *pairs])
    assert source.brings() == {"group"}
    steps, order = Groups(variations=1, pairs=1).schedule(source, 2, seed=0)
    assert steps == 4
    drawn = Counter(index for epoch in range(500) for index in order(epoch)[:8:2].tolist())
    shares = {index: count / drawn.total() for index, count in drawn.items()}
    # Weights score - 1 + 0.5: 0.5, 3, 0.5.
    assert shares == pytest.approx({0: 0.125, 1: 0.75, 2: 0.125}, abs=0.03)
    assert "left out: 2 variations with a low score" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (CaptionPlan(rewrites=("given",)), "neg_caption"),
        (Neighbours(1), "neg_image with lists of row numbers"),
        (Groups(), "a column group"),
    ],
)
def test_missing_columns_are_named(
    plan: CaptionPlan | ImagePlan, message: str, tmp_path: Path
) -> None:
    source = table(tmp_path, [{"image": "1.png", "caption": "x"}])
    with pytest.raises(UsageError, match=message):
        plan.require(source)
    CaptionPlan().require(source)
    Single().require(source)
    NegativeImages().require(source)
    Neighbours(1, mined=True).require(source)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"neg_image": "[1, 'x']"}, "neither a list of row numbers"),
        ({"neg_image": [True]}, "neither a list of row numbers"),
        ({"neg_image": "../x.png"}, "lies outside"),
        ({"neg_caption": 3}, "not a list of texts"),
        ({"score": "high"}, r"score 'high' \(str\) is not a number"),
        ({"image_score": "inf"}, r"image_score 'inf' \(str\) is not a number"),
    ],
)
def test_malformed_extra_columns(cells: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=message):
        table(tmp_path, [{"image": "1.png", "caption": "x", **cells}])


@dataclass(frozen=True)
class Mirrored(ImagePlan):
    """A plan of one's own: each image once more, mirrored, if the sample has an even number."""

    times: int = 1

    def add_to_batch(self, batch: BatchBuilder, index: int, sample: Sample) -> None:
        batch.add(sample)
        if index % 2 == 0:
            for _ in range(self.times):
                mirrored = batch.training_pixels(sample.id, sample.image, sample.id).flip(-1)
                texts = [Drawn(sample.captions[0], Role.CAPTION)]
                batch.put(mirrored, texts, PlanCounts(), f"{sample.id} mirrored")


def test_a_plan_of_one_s_own_needs_no_other_place(tmp_path: Path) -> None:
    images = Mirrored(times=2)
    batch = next(loader(shapes(8), images, tmp_path, batch_size=8).epoch(0))
    assert len(batch.ids) == 8
    assert batch.images == len(batch.pixels) == 8 + 2 * 4
    even = [place for place, id in enumerate(batch.ids) if int(id[3:]) % 2 == 0]
    assert torch.equal(batch.pixels[8::2], batch.pixels[even].flip(-1))
    method = replace(load_recipe("clip-ft")(), images=images)
    assert method.record()["images"] == {"plan": "mirrored", "times": 2}
    assert method.for_data(frozenset()) is method
    assert not method.needs_parsing


# Photos of noise, some of them the same, with one given negative and a photo made from it.
NOISE = few(
    [
        Sample(
            f"id-{i}",
            encode(noise(i // 2)),
            (f"a cat {i}",),
            negatives=(f"no {i}",),
            neighbours=((i + 1) % 8, (i + 3) % 8),
            negative_image=encode(noise(9 - i)),
        )
        for i in range(8)
    ]
)


@pytest.mark.parametrize("crop", [None, RandomCrop((0.2, 1.0), fixed=2)])
@pytest.mark.parametrize("images", [Single(), Neighbours(1), NegativeImages(), Composed()], ids=str)
def test_photos_are_shown_whole_or_as_one_of_their_fixed_crops(
    images: ImagePlan, crop: RandomCrop | None, tmp_path: Path
) -> None:
    plan = CaptionPlan(main=True, rewrites=() if isinstance(images, Composed) else ("given",))
    loading = loader(NOISE, images, tmp_path, plan, crop)
    shown: dict[tuple[str, int], bytes] = {}
    count = 0
    for epoch in (*range(6), 0):
        number = epoch % crop.fixed if crop else 0
        for batch in loading.epoch(epoch):
            if batch.kind == "composed":
                continue
            for photo, pixels in zip(batch.photos, batch.pixels, strict=True):
                seen = pixels.numpy().tobytes()
                assert shown.setdefault((photo, number), seen) == seen
                count += 1
    named = {photo_key(image) for sample in NOISE for image in images.shows(sample)}
    assert {photo for photo, _ in shown} <= named
    assert len(shown) < count  # some were met again
    assert len(set(shown.values())) > len(shown) // 2
