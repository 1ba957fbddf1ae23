"""One door for images: every reader has the same limits, and turns or leaves what it reads."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import compoclip
from compoclip.benchmarks.audit import Kind, audit
from compoclip.benchmarks.case import ImageRef, image_key
from compoclip.benchmarks.registry import load_benchmark
from compoclip.bounds import MAX_SCANS
from compoclip.data import decode as door
from compoclip.data.decode import decode, opened
from compoclip.data.images.composed import LANDSCAPE, PORTRAIT, UNREADABLE, orientations
from compoclip.data.pack import PackSpec, packed_image
from compoclip.data.sources.open import open_source
from compoclip.data.transform import ImageTransform
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import ImageReader
from compoclip.models.preprocess import Preprocess
from compoclip.report.looks import Album
from compoclip.web import images as serve_images
from compoclip.web.images import RequestImages
from compoclip.web.playground import image_of
from data_samples import encode
from test_data_transform import photo

SMALL = Preprocess(size=(32, 32))


def turned(orientation: int, format: str = "JPEG", size: tuple[int, int] = (80, 60)) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(photo(*size), format, exif=exif)


def repeated_scans(scans: int, size: tuple[int, int] = (64, 64)) -> bytes:
    """A progressive JPEG whose last scan comes so many times."""
    data = encode(photo(*size), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + data[-2:]


def empty(width: int, height: int) -> bytes:
    """A PNG whose header alone is right."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def model() -> compoclip.Model:
    return compoclip.load("bundled")


# --- The same limits for every reader. ---

DOORS: dict[str, Callable[[Path, compoclip.Model], Any]] = {
    "decode": lambda path, _: decode(path),
    "train": lambda path, _: ImageTransform(SMALL).read(path, random.Random(0)),
    "evaluate": lambda path, _: ImageReader(SMALL)(ImageRef(path)),
    "pack": lambda path, _: packed_image(path, PackSpec()),
    "API with a file": lambda path, model: model.encode_images([path]),
    "API with an opened image": lambda path, model: model.encode_images([Image.open(path)]),
    "serve": lambda path, _: RequestImages().read(in_base64(path.read_bytes())),
    "play": lambda path, _: image_of({"image": in_base64(path.read_bytes())}),
}
REFUSED: dict[str, tuple[bytes, str]] = {
    "scans": (repeated_scans(MAX_SCANS + 1), "too many scans"),
    "wide": (empty(20_000, 2), "one side is more than 50 times"),
    "tall": (empty(2, 20_000), "one side is more than 50 times"),
    "pixels": (empty(9500, 9500), "pixels"),
    "page": (b"<html>", "not an image of a known format"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("bad", REFUSED)
@pytest.mark.parametrize("reader", DOORS)
def test_every_reader_refuses_the_same_images(
    reader: str, bad: str, tmp_path: Path, model: compoclip.Model
) -> None:
    if bad == "page" and reader == "API with an opened image":
        pytest.skip("Pillow opens it before the package does")
    data, expected = REFUSED[bad]
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    with pytest.raises(CompoclipError, match=expected) as raised:
        DOORS[reader](path, model)
    assert "\n" not in str(raised.value)


def test_scans_are_counted_where_they_are_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    thumbnails = b"".join(  # segments of a camera's maker that hold the bytes of markers
        b"\xff\xe5" + struct.pack(">H", 1002) + b"\xff\xda" * 500 for _ in range(4)
    )
    plain, progressive = (encode(photo(64, 64), "JPEG", progressive=p) for p in (False, True))
    for data, scans in (
        (plain, 1),
        (progressive, progressive.count(b"\xff\xda")),
        (plain[:2] + thumbnails + plain[2:], 1),
        (plain + progressive * 100, 1),  # a film behind the photo
        (repeated_scans(40), 40 + progressive.count(b"\xff\xda") - 1),
        (encode(photo(64, 64)) + progressive, 1),
        (b"P3 64 64 255\n" + b"1 " * 3 * 64 * 64, MAX_SCANS),  # as slow as that
    ):
        with opened(data) as file:
            assert file.scans == scans
            assert file.rgb().size == (64, 64)
    single = b"\xff\xda\0\x08\x01\x01\0\0\x3f\0"  # the head of a scan of one component
    comment = b"\xff\xfe\0\x06\xff\xda\0\x0c"  # as that of a scan of all components begins
    scan = plain.index(b"\xff\xda")
    for more, scans in ((comment + single * 3, 3), (plain[scan:-2] * 3, 1)):
        with opened(plain[:scan] + more + plain[-2:]) as file:
            assert file.scans == scans  # after a scan of all the decoder stops
    monkeypatch.setattr(door, "MAX_WORK", 64 * 64 * 20)
    with pytest.raises(CompoclipError, match="too many scans"):
        decode(repeated_scans(40))
    assert decode(progressive).size == (64, 64)


def test_the_images_of_a_request_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    data = in_base64(encode(photo(64, 64), "JPEG"))
    monkeypatch.setattr(serve_images, "MAX_WORK", 64 * 64 * 2)
    images = RequestImages()
    assert images.read(data).size == images.read(data).size == (64, 64)
    with pytest.raises(UsageError, match="too many pixels together"):
        images.read(data)


@pytest.mark.parametrize(
    ("mode", "size", "expected"),
    [("shortest", (1, 4000), "too elongated"), ("longest", (1, 4000), "cannot be resized")],
)
def test_what_cannot_be_framed_is_refused_before_it_takes_memory(
    mode: str, size: tuple[int, int], expected: str
) -> None:
    """A box may cut out what no file has."""
    preprocess = Preprocess(size=(224, 224), resize_mode=mode)
    for shape in (size, size[::-1]):
        with pytest.raises(CompoclipError, match=expected):
            preprocess.evaluation(Image.new("RGB", shape))


# --- Upright or as stored. ---


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_orientations(format: str, orientation: int) -> None:
    data = turned(orientation, format)
    stored = Image.open(io.BytesIO(data))
    with opened(data, upright=True) as file:
        size, upright = file.size, file.rgb()
        assert file.rotated is (2 <= orientation <= 8)
    assert size == upright.size
    assert np.array_equal(upright, ImageOps.exif_transpose(stored))
    assert np.array_equal(decode(data), stored)
    damaged = data.replace(b"Exif\0\0MM", b"Exif\0\0XX")
    if damaged != data:
        assert np.array_equal(decode(damaged, upright=True), stored)


@pytest.mark.parametrize("draft", [True, False])
def test_training_turns_before_it_crops(draft: bool) -> None:
    data = turned(6, size=(640, 480))
    upright, stored = (
        ImageTransform(Preprocess(size=(64, 48)), None, draft, u) for u in (True, False)
    )
    shown = upright.read(data, random.Random(0)).float()
    exact = upright(decode(data, upright=True), random.Random(0)).float()
    assert (shown - exact).abs().mean() < (2 if draft else 1e-9)
    assert (stored.read(data, random.Random(0)).float() - exact).abs().mean() > 5


PERSONAL: dict[str, Callable[[bytes, compoclip.Model], Any]] = {
    "API with an opened image": lambda data, model: model.encode_images(
        [Image.open(io.BytesIO(data))]
    ),
    "serve": lambda data, model: model.encode_images([RequestImages().read(in_base64(data))]),
    "play": lambda data, model: model.encode_images([image_of({"image": in_base64(data)})]),
}


@pytest.mark.parametrize("reader", PERSONAL)
def test_readers_of_a_users_photos_turn_them(
    reader: str, tmp_path: Path, model: compoclip.Model
) -> None:
    data = turned(6)
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    upright = model.encode_images([decode(data, upright=True)])
    assert np.array_equal(PERSONAL[reader](data, model), upright)
    assert np.array_equal(model.encode_images([path]), upright)
    stored = Image.fromarray(np.asarray(decode(data)))
    assert not np.array_equal(model.encode_images([stored]), upright)


def test_a_users_data_are_upright_and_published_data_as_stored(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(turned(6))
    rows = [{"image": name, "caption": "a star"} for name in ("a.jpg", "b.jpg")]
    own, published = tmp_path / "own.jsonl", tmp_path / "captions.json"
    own.write_text("\n".join(map(json.dumps, rows)))
    published.write_text(json.dumps(rows))
    for spec, choice, expected in (
        (str(own), None, "upright"),
        (str(own), "stored", "stored"),
        (str(published), None, "stored"),
        (str(published), "upright", "upright"),
        (f"{own}=0.5 {published}=0.5", None, "upright"),
        (f"{own}=0.5 {published}=0.5", "stored", "stored"),
    ):
        source = open_source(spec, orientation=choice)
        assert source.orientation == expected
        kind = PORTRAIT if source.upright else LANDSCAPE
        assert set(orientations(source).tolist()) == {kind}
    (tmp_path / "a.jpg").write_bytes(b"")
    assert orientations(open_source(str(own))).tolist() == [UNREADABLE, PORTRAIT]


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("spec", [PackSpec(32), PackSpec(256), PackSpec(keep=True)])
def test_a_pack_read_upright_shows_what_its_source_shows(upright: bool, spec: PackSpec) -> None:
    data = turned(6)
    _, made = packed_image(data, spec, upright=upright)
    shown = decode(made or data, upright=True)
    expected = decode(data, upright=upright).resize(shown.size)
    assert (shown.width < shown.height) is upright
    assert np.abs(np.asarray(shown, float) - np.asarray(expected, float)).mean() < 8
    plain = encode(photo(80, 60), "JPEG")
    assert packed_image(plain, spec, upright=True) == packed_image(plain, spec, upright=False)


def test_a_header_is_read_in_a_bounded_number_of_pieces() -> None:
    data = encode(photo(64, 64), "JPEG")
    for many in (b"\xff" * 50_000, b"\xff\xe5\x00\x02" * 20_000):
        with pytest.raises(CompoclipError, match="header of too many parts"):
            decode(data[:2] + many + data[2:])
    comments = b"".join(b"\xff\xfe\x03\xea" + b"a" * 1000 for _ in range(1000))
    assert np.array_equal(decode(data[:2] + comments + data[2:]), decode(data))


def test_a_users_benchmark_is_read_upright_and_rotated_files_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(turned(6))
    row = {"image": "a.jpg", "caption": "a star", "negative_caption": "a mug"}
    (tmp_path / "foils.jsonl").write_text(json.dumps(row))
    found = load_benchmark("foils", tmp_path, tmp_path, annotations=tmp_path / "foils.jsonl")
    (image,) = found.content[0].images
    assert image_key(image).endswith("a.jpg#upright")
    reader = ImageReader(SMALL)
    assert np.array_equal(reader(image), reader.pixels(decode(path, upright=True)))
    assert np.array_equal(reader(ImageRef(path)), reader.pixels(decode(path)))
    shown = Album().photo(image_key(image))
    assert shown is not None
    assert shown.size == (60, 80)
    assert audit(found, decoding=True).counts == {Kind.ROTATED: {"": 1}}
    assert audit(found).counts == {}
