"""A real model as evaluation sees it: bytes until the device, exact float32, the same however many
are encoded at once and whoever reads them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from build.photos import encode, noise, write_noise
from build.tables import write_parquet, write_tar, write_text, write_zip
from compoclip.benchmarks.case import Cases, ImageRef
from compoclip.benchmarks.registry import load_benchmark
from compoclip.data.decode import decode
from compoclip.errors import CompoclipError
from compoclip.evaluation.encode import EncodeOptions, encode_contents, read_images
from compoclip.evaluation.encoder import ImageReader, ModelEncoder, described
from compoclip.evaluation.run import Options, evaluate
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelConfig
from compoclip.models.preprocess import Preprocess
from evaluation_helpers import TINY, FakeEncoder, choice_benchmark, choices, photos

pytestmark = pytest.mark.usefixtures("warm_workers")

CUDA = torch.device("cuda")  # only its name is looked at


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return create_model(ModelConfig(TINY), seed=2)


@pytest.fixture
def refs(tmp_path: Path) -> list[ImageRef]:
    """Pictures of several sizes, crops and squashed ones among them."""
    images = []
    for k in range(7):
        path = tmp_path / f"{k}.{'png' if k % 2 else 'jpg'}"
        write_noise(path, k, (70 - 5 * k, 40 + k))
        box = (3.0, 4.0, 33.0, 39.0)
        images += [ImageRef(path), ImageRef(path, box), ImageRef(path, squash=True)]
    return images


@pytest.fixture
def switches() -> Iterator[None]:
    """All switches of precision as they were."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = False


def precisions() -> list[str]:
    backends: Any = torch.backends
    places = [backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul]
    return [p.fp32_precision for p in (*places, backends.mkldnn.conv, backends.mkldnn.matmul)]


@pytest.mark.parametrize("matmul", ["highest", "high", "medium"])
@pytest.mark.parametrize("conv", [True, False])
def test_full_float32_changes_no_other_switch_and_is_undone(
    loaded: LoadedModel, switches: None, matmul: str, conv: bool
) -> None:
    cudnn = torch.backends.cudnn
    torch.set_float32_matmul_precision(matmul)
    cudnn.allow_tf32 = conv
    cudnn.benchmark = cudnn.deterministic = True
    before = precisions()
    encoder = ModelEncoder(loaded)
    with encoder.evaluating(), encoder.evaluating():
        assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (True, True, True)
        assert (cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (False, False)
        assert torch.get_float32_matmul_precision() == "highest"
        assert {"tf32", "bf16"}.isdisjoint(precisions())
        assert torch.is_inference_mode_enabled()
    assert precisions() == before
    assert torch.get_float32_matmul_precision() == matmul
    assert (cudnn.allow_tf32, cudnn.enabled, cudnn.benchmark) == (conv, True, True)
    assert not torch.is_inference_mode_enabled()


def test_the_newer_switches_alone_are_pinned_and_restored(
    loaded: LoadedModel, switches: None
) -> None:
    backends: Any = torch.backends
    backends.cuda.matmul.fp32_precision = "tf32"  # which the older switches cannot say
    before = precisions()
    with ModelEncoder(loaded).evaluating():
        assert {"tf32", "bf16"}.isdisjoint(precisions())
    assert precisions() == before


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"interpolation": "bilinear", "size": (24, 32)},
        {"resize_mode": "longest", "fill_color": 7},
        {"resize_mode": "squash", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)},
    ],
)
def test_features_are_those_of_floats_made_image_by_image(
    loaded: LoadedModel, refs: list[ImageRef], changes: dict[str, Any]
) -> None:
    preprocess = replace(Preprocess(size=(32, 32)), **changes)
    model = replace(loaded, preprocess=preprocess)
    encoder = ModelEncoder(model)
    shown = [replace(preprocess, resize_mode="squash") if r.squash else preprocess for r in refs]
    floats = [each.evaluation(decode(r.path, box=r.box)) for r, each in zip(refs, shown)]
    read = [encoder.read_image(ref) for ref in refs]
    assert {each.dtype for each in read} == {np.dtype(np.uint8)}
    for _ in range(3):  # through both buffers, and again through the first
        assert torch.equal(encoder._pixels(read), torch.stack(floats))
    if preprocess.size != (32, 32):
        return
    with torch.inference_mode():
        pooled = model.encoder.eval().encode_images(torch.stack(floats)).pooled
    expected = torch.nn.functional.normalize(pooled, dim=-1).numpy()
    assert np.array_equal(encoder.encode_images(read), expected)


def test_a_buffer_serves_batches_of_any_number_and_size(loaded: LoadedModel) -> None:
    encoder, rng = ModelEncoder(loaded), np.random.default_rng(1)
    for shape in [(4, 8, 8), (2, 8, 8), (5, 8, 8), (1, 8, 8), (3, 6, 9), (4, 8, 8)]:
        batch = rng.integers(0, 255, (*shape, 3), dtype=np.uint8)
        assert np.array_equal(encoder.upload(list(batch)).numpy(), batch)
        first = encoder.upload(list(batch[::-1]))
        encoder.upload(list(batch))  # lies elsewhere: the first may still be on its way
        assert np.array_equal(first.numpy(), batch[::-1])
        assert encoder._pixels(list(batch)).is_contiguous()


def test_buffers_and_features_wait_for_their_own_copies_only(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    marks = (SimpleNamespace(synchronize=partial(waited.append, n)) for n in range(99))
    monkeypatch.setattr("compoclip.evaluation.encoder.mark", lambda device: next(marks))
    encoder, batch = ModelEncoder(loaded), [np.zeros((32, 32, 3), dtype=np.uint8)] * 2
    started = [encoder.start_images(batch) for _ in range(4)]  # marks: upload, features, upload...
    assert waited == [0, 2]  # the uploads before the third and the fourth
    started[0]()
    started[2]()
    assert waited == [0, 2, 1, 5]


def of(refs: list[ImageRef]) -> Cases:
    return choices(refs, tuple(f"a {'very ' * (k % 3)}red cube {k}" for k in range(9)))


def test_any_number_at_once_gives_the_same_features(
    loaded: LoadedModel, refs: list[ImageRef]
) -> None:
    plain = encode_contents(ModelEncoder(loaded), [of(refs)])
    for options in (EncodeOptions(1, 1), EncodeOptions(5, 3), EncodeOptions(99)):
        found = encode_contents(ModelEncoder(loaded), [of(refs)], options)
        assert found.image_rows == plain.image_rows
        assert found.text_rows == plain.text_rows
        assert found.images == pytest.approx(plain.images, abs=1e-6)
        assert found.texts == pytest.approx(plain.texts, abs=1e-6)


def test_processes_read_what_threads_read(loaded: LoadedModel, refs: list[ImageRef]) -> None:
    refs[3].path.write_bytes(b"no picture")
    encoder = ModelEncoder(loaded)
    many = refs * 3  # several tasks, in which archives and the reader are kept
    plain, *others = (
        list(read_images(encoder.read_image, many, 4, workers, processes))
        for workers, processes in ((1, False), (3, False), (2, True))
    )
    assert [damage for _, damage in plain].count(None) == 3 * 18
    assert "damaged" in str(plain[3][1]) or "not an image" in str(plain[3][1])
    for other in others:
        assert [damage for _, damage in other] == [damage for _, damage in plain]
        for (one, _), (two, _) in zip(plain, other):
            assert (one is None and two is None) or np.array_equal(one, two)


def test_a_run_enters_evaluation_once(
    loaded: LoadedModel, refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[bool] = []
    kind = type(loaded.encoder)
    plain = kind.train

    def train(model: Any, mode: bool = True) -> Any:
        modes.append(mode)
        return plain(model, mode)

    monkeypatch.setattr(kind, "train", train)
    loaded.encoder.train()
    encode_contents(ModelEncoder(loaded), [of(refs)], EncodeOptions(batch_size=2))
    assert modes == [True, False, True]


@pytest.mark.parametrize(
    ("options", "device", "expected"),
    [
        (EncodeOptions(), "cpu", (64, 64, 2)),
        (EncodeOptions(), "cuda", (512, 1024, 16)),
        (EncodeOptions(7, 3), "cpu", (7, 7, 3)),
        (EncodeOptions(7, 3), "cuda", (7, 7, 3)),
    ],
)
def test_batches_and_readers_go_by_device(
    options: EncodeOptions,
    device: str,
    expected: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("compoclip.evaluation.encode.own_cores", lambda: 16)
    place = torch.device(device)
    at_once = options.images_at_once(place), options.texts_at_once(place)
    assert (*at_once, options.readers(place)) == expected


@pytest.mark.parametrize(
    ("device", "allowed", "least", "workers", "expected"),
    [
        (CUDA, True, 6, 9, True),
        (CUDA, True, 7, 9, False),
        (CUDA, True, 0, 8, False),
        (CUDA, False, 0, 9, False),
        (torch.device("cpu"), True, 0, 9, False),
    ],
)
def test_processes_read_many_images_for_a_gpu_where_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device, allowed: bool,
    least: int, workers: int, expected: bool,
) -> None:  # fmt: skip
    asked: list[bool] = []

    def reading(encoder: FakeEncoder, refs: list[ImageRef], *sizes: int) -> Any:
        asked.append(bool(sizes[-1]))
        return ((ref, None) for ref in refs)

    monkeypatch.setattr("compoclip.evaluation.encode.read_images", reading)
    monkeypatch.setattr("compoclip.evaluation.encode.PROCESSES_FROM", least)
    encoder = FakeEncoder()
    encoder.device = device
    content = choice_benchmark(tmp_path, n=6).content
    encode_contents(encoder, [content], EncodeOptions(workers=workers, processes=allowed))
    assert asked == [expected]


class Late(FakeEncoder):
    """Features that a device computes: they are taken when they are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.device = CUDA
        self.order: list[str] = []

    def start_images(self, images: Any) -> Any:
        number = len(self.batches)
        self.order.append(f"start {number}")
        features = super().start_images(images)
        return lambda: self.order.append(f"take {number}") or features()


def test_a_gpu_gets_the_next_batch_before_features_are_taken(tmp_path: Path) -> None:
    content = choice_benchmark(tmp_path / "photos", n=10).content
    plain = encode_contents(FakeEncoder(), [content])
    encoder = Late()
    found = encode_contents(encoder, [content], EncodeOptions(batch_size=4))
    assert encoder.order == ["start 0", "start 1", "take 0", "start 2", "take 1", "take 2"]
    assert np.array_equal(found.images, plain.images)
    assert np.array_equal(found.texts, plain.texts)


def test_an_interrupted_gpu_run_keeps_the_batch_under_way(tmp_path: Path) -> None:
    content = choice_benchmark(tmp_path / "photos", n=10).content
    options = EncodeOptions(batch_size=4, cache=tmp_path / "cache")
    first, second = Late(), FakeEncoder()
    first.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        encode_contents(first, [content], options)
    encode_contents(second, [content], options)
    assert len(second.images_seen) == 2


def test_bf16_is_close_and_kept_apart(
    loaded: LoadedModel, refs: list[ImageRef], tmp_path: Path
) -> None:
    full, lower = ModelEncoder(loaded), ModelEncoder(loaded, "bf16")
    assert described(lower) == described(full) | {"precision": "bf16"}
    options = EncodeOptions(cache=tmp_path / "cache")
    plain, found, again = (
        encode_contents(encoder, [of(refs)], options) for encoder in (full, lower, full)
    )
    for kind in ("images", "texts"):
        ours, theirs = getattr(found, kind), getattr(plain, kind)
        assert ours == pytest.approx(theirs, abs=0.03)
        assert not np.array_equal(ours, theirs)
        assert np.array_equal(getattr(again, kind), theirs)
        assert ours.dtype == np.float32


def test_results_name_a_lower_precision_and_are_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = choice_benchmark(tmp_path / "photos", n=6)
    full, lower = FakeEncoder(), FakeEncoder()
    lower.precision = "bf16"
    identities, reused = [], []
    for encoder in (full, lower, lower):
        (result,) = evaluate("m", encoder, [benchmark], tmp_path, Options(resamples=20))
        identities.append(result.identity)
        reused.append("already measured" in capsys.readouterr().err)
    assert "precision" not in identities[0]
    assert identities[1:] == [{**identities[0], "precision": "bf16"}] * 2
    assert reused == [False, False, True]


def test_a_damaged_image_is_counted_once_whoever_reads(loaded: LoadedModel, tmp_path: Path) -> None:
    made = photos(tmp_path / "bad", ["a"])["a"]  # text, not a picture
    with pytest.raises(CompoclipError, match=r"a\.jpg: not an image .*--max-bad"):
        encode_contents(ModelEncoder(loaded), [of([made])])
    found = encode_contents(ModelEncoder(loaded), [of([made])], EncodeOptions(max_bad=1))
    assert list(found.bad) == [made]
    assert ImageReader(loaded.preprocess).__reduce__()[1] == (loaded.preprocess,)


@pytest.fixture(scope="module")
def encoder() -> ModelEncoder:
    return ModelEncoder(create_model(ModelConfig(TINY), seed=1))


def photo(k: int) -> bytes:
    return encode(noise(k, (44, 20)))


def test_a_photo_is_the_same_wherever_it_lies(tmp_path: Path, encoder: ModelEncoder) -> None:
    (tmp_path / "a.png").write_bytes(photo(0))
    write_zip(tmp_path / "a.zip", {"in/a.png": photo(0)})
    write_tar(tmp_path / "a.tar", [("a.png", photo(0))])
    write_parquet(tmp_path / "a.parquet", {"image": [photo(1), photo(0)]})
    box = (1.0, 2.0, 19.0, 12.0)
    plain = encoder.read_image(ImageRef(tmp_path / "a.png", box))
    for name, member in (("a.zip", "in/a.png"), ("a.tar", "a.png"), ("a.parquet", "image:1")):
        assert np.array_equal(encoder.read_image(ImageRef(tmp_path / name, box, member)), plain)
    with pytest.raises(CompoclipError, match=r"a\.zip@in/a\.png: box .* lies outside"):
        encoder.read_image(ImageRef(tmp_path / "a.zip", (90, 90, 99, 99), "in/a.png"))


def test_a_model_from_outside_opens_an_archive_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_zip(tmp_path / "a.zip", {"wide.png": photo(0), "other.png": photo(1)})
    opened = []
    zip_file = zipfile.ZipFile
    monkeypatch.setattr(zipfile, "ZipFile", lambda path: opened.append(path) or zip_file(path))
    read = ImageReader()
    assert read(ImageRef(archive, member="wide.png")).size == (44, 20)
    assert read(ImageRef(archive, member="other.png", squash=True)).size == (20, 20)
    assert opened == [archive]


def test_squashing_keeps_the_whole_picture(tmp_path: Path, encoder: ModelEncoder) -> None:
    pixels = np.zeros((8, 32, 3), dtype=np.uint8)
    pixels[:, :8] = 255  # lost to a centre crop
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    cropped = encoder.read_image(ImageRef(tmp_path / "wide.png"))
    squashed = encoder.read_image(ImageRef(tmp_path / "wide.png", squash=True))
    assert cropped.shape == squashed.shape == (32, 32, 3)
    assert cropped.std(axis=(0, 1)).max() < 1e-6
    assert squashed[:, :6].min() > squashed[:, 10:].max()


def test_an_elevater_set_with_its_cache(tmp_path: Path, encoder: ModelEncoder) -> None:
    folder = tmp_path / "elevater" / "kitti-distance"
    write_zip(folder / "test.zip", {f"{k}.png": photo(k) for k in range(8)})
    write_text(folder / "test.txt", "".join(f"test.zip@{k}.png {k % 4}\n" for k in range(8)))
    benchmark = load_benchmark("zero_shot:kitti-distance", tmp_path)
    options = Options(allow_partial=True, cache=tmp_path / "cache", resamples=20)
    (first,) = evaluate("m", encoder, [benchmark], tmp_path / "out", options)
    score = first.aggregates["accuracy"]
    assert (score.n, score.expected, first.partial) == (8, 711, True)
    (second,) = evaluate("m", encoder, [benchmark], tmp_path / "again", options)
    assert second.aggregates == first.aggregates
    assert list((tmp_path / "cache").rglob("*.safetensors"))
