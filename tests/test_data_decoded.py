"""The decoded cache: pixels near those of the direct path, all else equal; damage is one line."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from compoclip.captions.parser import parse
from compoclip.captions.types import Caption
from compoclip.cli.main import main
from compoclip.data.batch import Batch
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.decode import decode, raw_image, raw_photo, raw_pixels
from compoclip.data.fingerprint import FILE
from compoclip.data.images import ImagePlan, NegativeImages, Single, photo_key
from compoclip.data.images.composed import Composed
from compoclip.data.images.neighbours import Neighbours
from compoclip.data.loader import BatchLoader
from compoclip.data.pack import RECORD, PackSpec, Request, pack
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Source
from compoclip.data.sources.decoded import DecodedImages, decoded_spec, make_decoded
from compoclip.data.sources.open import open_source
from compoclip.data.transform import DeviceTransform, ImageTransform, RandomCrop, Resize
from compoclip.errors import CompoclipError, UsageError
from compoclip.models.config import RECORD as CHECKPOINT
from compoclip.models.preprocess import Preprocess
from method_data import arguments, write_world
from test_data_pack import bytes_of, write_rows
from test_data_transform import encoded, photo
from test_train_resume import weights

SIZE = Preprocess(size=(16, 16))
SPEC = PackSpec(20, shard_size=3, decoded=True)
DEVICE = torch.device("cpu")


class Parses:
    def __getitem__(self, text: str) -> Caption:
        return parse(text)


def cached(table: Path, folder: Path, spec: PackSpec = SPEC, bad: int = 0) -> DecodedImages:
    source = open_source(str(table))
    make_decoded(Request(str(table)), len(source), folder, spec, bad=bad)
    return DecodedImages(source, folder, spec)


def epoch(
    source: Source, plan: ImagePlan, folder: Path, crop: bool, workers: int = 0
) -> list[Batch]:
    transform = DeviceTransform if source.decoded else ImageTransform
    loader = BatchLoader(
        source,
        TextPlan(CaptionPlan(rewrites=("given",)), seed=3, parsed=Parses()),
        transform(SIZE, RandomCrop() if crop else None, draft=False),
        batch_size=4,
        seed=3,
        workers=workers,
        max_bad=9,
        images=plan,
        companions=plan.prepare(source, lambda x: x.flatten(1), SIZE, folder, resume=False),
    )
    batches = list(loader.epoch(0))
    loader.close()
    return batches


# --- Files of pixels. ---


def test_a_file_of_pixels_is_one_that_any_program_reads() -> None:
    image = photo(23, 31)
    data = raw_image(image, "0123456789abcdef" * 2)
    assert np.array_equal(np.asarray(decode(data)), np.asarray(image))
    pixels = raw_pixels(data)
    assert pixels is not None
    assert np.array_equal(pixels, np.asarray(image))
    assert photo_key(data) == raw_photo(data) == "0123456789abcdef" * 2
    assert raw_photo(encoded(image)) is None
    for other in (encoded(image), data[:-1], data + b"x", data.replace(b"23 31", b"0 31")):
        assert raw_pixels(other) is None
    with pytest.raises(CompoclipError, match="damaged image"):
        decode(data[:-1])


# --- Resizing on the device. ---


def several(sizes: Sequence[tuple[int, int]], preprocess: Preprocess) -> list[torch.Tensor]:
    return [
        DeviceTransform(preprocess).read(
            raw_image(photo(*size), "0" * 32), random.Random(number), "image"
        )
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(16, 16), (40, 24)])
def test_it_is_pillows_resizing_for_images_of_any_size(
    interpolation: str, size: tuple[int, int]
) -> None:
    preprocess = Preprocess(size=size, interpolation=interpolation)
    sizes = [(341, 256), (60, 80), (33, 33), (200, 50), (7, 5), (1, 1), (24, 40)]
    images = several(sizes, preprocess)
    assert len({image.shape for image in images}) > 4
    pixels, resize = DeviceTransform(preprocess).together(images)
    assert isinstance(resize, Resize)
    assert pixels.shape == (sum(image[0].numel() for image in images), 3)
    by_bytes, by_matrices = resize(pixels).float(), resize.by_matrices(pixels)
    assert by_matrices.dtype == torch.float32
    for number, (width, height) in enumerate(sizes):
        expected = ImageTransform(preprocess)(photo(width, height), random.Random(number)).float()
        for found in (by_bytes[number], by_matrices[number]):
            assert found.shape == (3, *size)
            difference = (found - expected).abs()
            assert difference.mean() < 0.5
            # Overshoot is cut off after each direction there, at the end here.
            assert difference.quantile(0.99) <= 2.5


def test_resizing_many_is_resizing_each() -> None:
    images = several([(20 + i % 7, 30 - i % 5) for i in range(150)], SIZE)
    transform = DeviceTransform(SIZE)
    pixels, resize = transform.together(images)
    assert resize is not None
    whole = resize.by_matrices(pixels)
    for number in (0, 63, 64, 149):
        alone, one = transform.together(images[number : number + 1])
        assert one is not None
        assert torch.allclose(one.by_matrices(alone)[0], whole[number], atol=1e-3)
    nothing, none = transform.together([])
    assert none is not None
    assert none(nothing).shape == none.by_matrices(nothing).shape == (0, 3, 16, 16)


def test_a_device_is_not_waited_for() -> None:
    transform = DeviceTransform(SIZE)
    pixels, resize = transform.together(several([(20, 30), (40, 18)], SIZE))
    assert resize is not None
    made = resize(pixels.to("meta"))  # where anything that reads a value fails
    assert (made.shape, made.dtype, made.device.type) == ((2, 3, 16, 16), torch.float32, "meta")


def test_what_has_the_size_already_stays_as_it_is() -> None:
    images = [torch.from_numpy(np.array(photo(16, 16))).permute(2, 0, 1)] * 2
    pixels, resize = DeviceTransform(SIZE).together(images)
    assert resize is not None
    assert torch.equal(resize(pixels), torch.stack(images))
    assert torch.allclose(resize.by_matrices(pixels), torch.stack(images).float(), atol=1e-3)


# --- The same samples, and nearly the same pixels. ---


def test_all_but_the_images_is_that_of_the_source(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in")
    for spec in (str(table), str(tmp_path / "pack")):
        if not Path(spec).exists():
            pack(Request(str(table)), tmp_path / "pack", PackSpec(64))
        source = open_source(spec)
        found = cached(Path(spec), tmp_path / f"cache-{Path(spec).name}")
        assert len(found) == len(source) == 8
        assert found.ids() == source.ids()
        assert list(found.captions()) == list(source.captions())
        assert list(found.caption_lists()) == list(source.caption_lists())
        assert found.brings() == source.brings()
        assert found.groups() == source.groups()
        assert found.image_scores() == source.image_scores()
        assert found.left_out == source.left_out
        for i in range(8):
            one, two, bare = source[i], found[i], found.bare(i)
            assert isinstance(two.image, bytes)
            assert min(decode(two.image).size) == 20
            same = replace(two, image=one.image, negative_image=one.negative_image)
            assert same == one == replace(bare, image=one.image, negative_image=one.negative_image)
            assert (two.negative_image is None) == (one.negative_image is None)
            assert (bare.negative_image is None) == (one.negative_image is None)
            key = photo_key(one.image.read_bytes() if isinstance(one.image, Path) else one.image)
            assert photo_key(two.image) == key
        with pytest.raises(IndexError):
            found[8]


@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize(
    "plan", [Single(), Neighbours(1), NegativeImages(), Composed(sentences="never")], ids=str
)
def test_batches_are_those_of_the_direct_path(plan: ImagePlan, crop: bool, tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in", bad=(5,))
    if isinstance(plan, Neighbours | Composed):
        lines = [json.loads(line) for line in table.read_text().splitlines()]
        for line in lines:
            line["neg_image"] = [(int(line["image"][0]) + 3) % 8]
        table.write_text("\n".join(map(json.dumps, lines)))
    # Stored as large as they are, pixels are the same but for rounding; scaled down, nearly.
    for spec, most in ((replace(SPEC, size=64), 0.5), (replace(SPEC, size=32), 4.0)):
        found = cached(table, tmp_path / f"{spec.size}", spec, bad=2)
        direct = epoch(open_source(str(table)), plan, tmp_path, crop)
        for one, two in zip(direct, epoch(found, plan, tmp_path, crop), strict=True):
            assert one.resize is None
            assert two.resize is not None
            assert (one.ids, one.skipped, one.kind) == (two.ids, two.skipped, two.kind)
            same = replace(two.block, photos=one.block.photos)
            assert same == one.block
            level = 255 * 0.26  # a level of 255, normalised, is about 1 / (255 x 0.26)
            difference = (one.normalised(DEVICE) - two.normalised(DEVICE)).abs() * level
            assert difference.mean() < most
            if spec.size == 64:
                assert difference.max() <= 2.5
            if not crop and spec.size == 64:
                assert torch.equal(one.normalised(DEVICE), two.normalised(DEVICE))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("plan", [Single(), Composed(sentences="never")], ids=str)
def test_batches_do_not_depend_on_workers(plan: ImagePlan, tmp_path: Path) -> None:
    found = cached(write_rows(tmp_path / "in"), tmp_path / "cache")
    none, two = (epoch(found, plan, tmp_path, crop=True, workers=count) for count in (0, 2))
    for one, other in zip(none, two, strict=True):
        assert torch.equal(one.pixels, other.pixels)
        assert one.resize is not None
        assert other.resize is not None
        assert torch.equal(one.resize.shapes, other.resize.shapes)
        assert (one.block, one.ids) == (other.block, other.ids)
        assert torch.equal(one.normalised(DEVICE), other.normalised(DEVICE))


def test_the_shorter_side_follows_the_model() -> None:
    sides = {224: 256, 336: 384, 64: 74}
    for size, side in sides.items():
        assert decoded_spec(Preprocess(size=(size, size))) == PackSpec(side, decoded=True)


# --- A cache that is damaged, half made, or of something else. ---


def test_a_cache_that_is_half_made_is_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_rows(tmp_path / "in")
    whole, part = tmp_path / "whole", tmp_path / "part"
    cached(table, whole)
    assert "decoding 8 images once into" in capsys.readouterr().err

    def dying(work, tasks):  # type: ignore[no-untyped-def]
        yield work(tasks[1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_decoded(Request(str(table)), 8, part, SPEC, dying)
    assert sorted(bytes_of(part)) == [FILE, "pack-000001.json", "pack-000001.tar", RECORD]
    cached(table, part)
    assert "going on: 1 of 3 shards are there" in capsys.readouterr().err
    assert bytes_of(whole) == bytes_of(part)
    cached(table, part)
    assert capsys.readouterr().err == ""  # nothing to decode, nothing to say


def test_damage_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in")
    folder = tmp_path / "cache"
    cached(table, folder)
    remedy = "delete the folder, it is made again"
    shard = folder / "pack-000001.tar"
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2])
    with pytest.raises(CompoclipError, match=rf"damaged \(.*pack-000001\.tar.*\); {remedy}"):
        cached(table, folder)
    shard.write_bytes(b"x" * 2048)
    with pytest.raises(CompoclipError, match=rf"damaged \(.*pack-000001\.tar.*\); {remedy}"):
        cached(table, folder)
    shard.unlink()
    with pytest.raises(CompoclipError, match=rf"damaged \(.*pack-000001\.tar.*\); {remedy}"):
        cached(table, folder)
    shutil.copy(folder / "pack-000002.tar", shard)  # a whole one, with fewer images
    with pytest.raises(CompoclipError, match=rf"damaged \(7 images of 8\); {remedy}"):
        cached(table, folder)
    (folder / RECORD).write_text("{")
    with pytest.raises(CompoclipError, match="not valid JSON"):
        cached(table, folder)
    shutil.rmtree(folder)
    assert len(cached(table, folder)) == 8


def test_what_is_of_something_else_is_refused(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in")
    folder = tmp_path / "cache"
    cached(table, folder)
    other = "choose another --decoded-cache"
    with pytest.raises(UsageError, match=rf"another pack: spec.size was 20, is 24; {other}"):
        cached(table, folder, replace(SPEC, size=24))
    with pytest.raises(UsageError, match=rf"pack: source was .*; samples was 8, is 9; .*; {other}"):
        cached(write_rows(tmp_path / "more", 9), folder)
    with pytest.raises(UsageError, match=rf"is no pack; {other}"):
        cached(table, tmp_path / "in")
    shutil.copytree(tmp_path / "in", tmp_path / "other")
    with pytest.raises(UsageError, match=rf"images folder was .*/in, is .*/other; {other}"):
        make_decoded(Request(str(table), tmp_path / "other"), 8, folder, SPEC)
    (tmp_path / "in" / "7.jpg").write_bytes(encoded(photo(60, 60)))
    with pytest.raises(UsageError, match=rf"images of 1 of 8 rows changed; .*; {other}"):
        cached(table, folder)
    pack(Request(str(table)), tmp_path / "pack", replace(SPEC, decoded=False))
    with pytest.raises(UsageError, match=rf"pack: spec.decoded was none, is True; {other}"):
        cached(table, tmp_path / "pack")


@pytest.mark.xfail(strict=True, reason="the cache of decoded images is to be removed")
def test_pixels_that_are_damaged_are_not_trained_on(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    source = cached(write_rows(tmp_path / "in"), folder)
    whole = [source[index].image for index in range(len(source))]
    shard = folder / "pack-000001.tar"
    data = bytearray(shard.read_bytes())
    data[1024:3072] = bytes(2048)
    shard.write_bytes(data)
    again = cached(tmp_path / "in" / "rows.jsonl", folder)
    assert [again[index].image for index in range(len(again))] == whole


def test_a_full_disk_and_damaged_images_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_rows(tmp_path / "in", bad=(3,))
    with pytest.raises(CompoclipError, match=r"unreadable images?, 0 allowed: .*--max-bad"):
        cached(table, tmp_path / "cache")
    found = cached(table, tmp_path / "cache", bad=2)
    assert "3.jpg: not an image of a known format" in capsys.readouterr().err
    assert found[3].image == tmp_path / "in" / "3.jpg"  # whose reader says what is wrong
    assert found[2].negative_image == tmp_path / "in" / "3.jpg"
    assert isinstance(found[2].image, bytes)

    def full(self: object, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tarfile.TarFile.addfile", full)
    with pytest.raises(CompoclipError, match=r"cannot be written \(No space left"):
        cached(table, tmp_path / "full", bad=2)
    assert sorted(bytes_of(tmp_path / "full")) == [FILE, RECORD]


# --- Training. ---


@pytest.mark.slow
def test_a_run_from_the_cache_is_a_run_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = write_world(tmp_path / "world")
    cache = f"--set=decoded_cache={tmp_path / 'cache'}"

    def train(out: str, *more: str, cache: str = cache) -> int:
        return main(
            [*arguments(world, "fsc-clip", tmp_path / out, "--set=save_every=2"), cache, *more]
        )

    assert train("whole") == 0
    record = json.loads((tmp_path / "whole" / "model" / CHECKPOINT).read_text())["provenance"]
    assert record["data"].endswith("plain.jsonl (columns image, caption), decoded at 37 pixels")

    # Other workers, and a stop with the cache moved: the same weights to the last bit.
    assert train("workers", "--workers=2") == 0
    assert weights(tmp_path / "workers") == weights(tmp_path / "whole")
    assert train("stopped", "--set=stop_after=7") == 0
    (tmp_path / "cache").rename(tmp_path / "moved")
    capsys.readouterr()
    moved = f"--set=decoded_cache={tmp_path / 'moved'}"
    assert main([*arguments(world, "fsc-clip", tmp_path / "stopped", "--resume")]) == 1
    assert "other settings" in capsys.readouterr().err
    assert train("stopped", "--resume", cache=moved) == 0
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("method", ["clic", "triplet-clip", "negclip-original", "gnm-clip", "dac"])
def test_methods_with_images_of_their_own_train_from_it(method: str, tmp_path: Path) -> None:
    world = write_world(tmp_path / "world")
    command = arguments(world, method, tmp_path / "run", "--set=stop_after=2")
    assert main([*command, f"--set=decoded_cache={tmp_path / 'cache'}"]) == 0
