"""One door for images: every reader has the same limits, and turns or leaves what it reads."""

from __future__ import annotations

import base64
import io
import os
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
from build.photos import encode, smooth, stored_in
from build.tables import write_json, write_jsonl
from compoclip.benchmarks.audit import Kind, audit
from compoclip.benchmarks.case import ImageRef, image_key
from compoclip.benchmarks.registry import load_benchmark
from compoclip.bounds import MAX_SCANS
from compoclip.data import decode as door
from compoclip.data.decode import decode, opened
from compoclip.data.images.composed import LANDSCAPE, PORTRAIT, UNREADABLE, orientations
from compoclip.data.options import PackSpec
from compoclip.data.pack import packed_image
from compoclip.data.sources.open import open_source
from compoclip.data.transform import ImageTransform
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import ImageReader
from compoclip.models.preprocess import Preprocess
from compoclip.report.looks import Album
from compoclip.web import images as serve_images
from compoclip.web.images import RequestImages
from compoclip.web.playground import image_of

SMALL = Preprocess(size=(32, 32))


def turned(orientation: int, format: str = "JPEG", size: tuple[int, int] = (80, 60)) -> bytes:
    return encode(smooth(*size), format, exif=stored_in(orientation))


def repeated_scans(scans: int) -> bytes:
    """A progressive JPEG whose last scan comes so many times."""
    data = encode(smooth(64, 64), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + data[-2:]


def empty(width: int, height: int) -> bytes:
    """A PNG whose header alone is right."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        part = kind + data
        return struct.pack(">I", len(data)) + part + struct.pack(">I", zlib.crc32(part))

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
    # Segments of a camera's maker that hold the bytes of markers.
    thumbnails = (b"\xff\xe5" + struct.pack(">H", 1002) + b"\xff\xda" * 500) * 4
    plain, progressive = (encode(smooth(64, 64), "JPEG", progressive=p) for p in (False, True))
    for data, scans in (
        (plain, 1),
        (progressive, progressive.count(b"\xff\xda")),
        (plain[:2] + thumbnails + plain[2:], 1),
        (plain + progressive * 100, 1),  # a film behind the photo
        (repeated_scans(40), 40 + progressive.count(b"\xff\xda") - 1),
        (encode(smooth(64, 64)) + progressive, 1),
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


def in_a_tiff(jpeg: bytes, side: int) -> bytes:
    """A TIFF whose only strip is a JPEG."""
    entries = [(256, side), (257, side), (258, 134), (259, 7), (262, 6), (273, 140), (277, 3)]
    entries += [(278, side), (279, len(jpeg)), (530, 2 | 2 << 16)]
    counts = {258: 3, 530: 2}
    kinds = {256: 4, 257: 4, 273: 4, 278: 4, 279: 4}
    head = b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries))
    for tag, value in entries:
        head += struct.pack("<HHII", tag, kinds.get(tag, 3), counts.get(tag, 1), value)
    return head + bytes(4) + struct.pack("<HHH", 8, 8, 8) + jpeg


def bmp_of_runs(side: int, pixels: bytes) -> bytes:
    about = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(pixels), 0, 0, 256, 0)
    size = 14 + len(about) + 1024
    head = struct.pack("<IHHI", size + len(pixels), 0, 0, size)
    return b"BM" + head + about + bytes(1024) + pixels


def png_of_parts(parts: int) -> bytes:
    """A PNG of 8 x 8 pixels with so many empty parts before its pixels."""
    data = encode(smooth(8, 8), "PNG")
    place = data.index(b"IDAT") - 4
    nothing = bytes(4) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    return data[:place] + nothing * parts + data[place:]


ONCE = "save it again as an ordinary JPEG or PNG"
SLOW = {  # what decodes in Python, or the same pixels again and again: at most a second a million
    "grey of 254": (b"P5 1000 1000 254\n" + bytes(10**6), f"long to decode .ppm.; {ONCE}"),
    "colours of 65535": (b"P6 1000 1000 65535\n" + bytes(6 * 10**6), "long to decode .ppm."),
    "numbers in letters": (b"P3 1000 1000 255\n" + b"7 " * 3 * 10**6, "to decode .ppm_plain."),
    "comments between": (b"P2 9 9 255\n" + b"#\n" * 10**5 + b"7 " * 81, "to decode .ppm_plain."),
    "runs": (bmp_of_runs(1000, (b"\x01\x07" * 1000 + bytes(2)) * 1000), "to decode .bmp_rle."),
    "runs of nothing": (bmp_of_runs(4, b"\0\x02\0\0" * 2 * 10**6), "to decode .bmp_rle."),
    "scans in a TIFF": (in_a_tiff(repeated_scans(600), 64), "too many scans"),
    "parts of a PNG": (png_of_parts(50_000), "in too many parts"),
    "bytes of a JPEG2000": (encode(smooth(64, 64), "JPEG2000") + bytes(50 * 10**6), "jpeg2k"),
}


@pytest.mark.parametrize("slow", SLOW)
def test_what_decodes_slowly_is_refused_unless_it_is_small(slow: str) -> None:
    data, expected = SLOW[slow]
    with pytest.raises(CompoclipError, match=expected):
        decode(data)


def test_small_images_of_slow_decoders_are_read() -> None:
    for data in (
        b"P5 64 64 254\n" + bytes(64 * 64),
        b"P2 64 64 255\n# by hand\n" + b"7 " * 64 * 64,
        bmp_of_runs(64, (b"\x40\x07" + bytes(2)) * 64),
        in_a_tiff(repeated_scans(20), 64),
        png_of_parts(100),
        encode(smooth(64, 64), "JPEG2000"),
    ):
        assert min(decode(data).size) >= 8


@pytest.mark.filterwarnings("error")
def test_a_large_jpeg_is_read_smaller_and_other_large_images_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "MAX_PIXELS", 1500)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    plain = encode(smooth(81, 60), "JPEG")
    for least, expected in ((None, (41, 30)), ((20, 15), (21, 15)), ((80, 60), (41, 30))):
        with opened(plain, upright=True) as file:
            assert file.size == (41, 30)
            assert file.rgb(least).size == expected
    with opened(turned(6, size=(81, 60)), upright=True) as file:
        assert file.size == file.rgb().size == (30, 41)
    cases = {
        "for a box": lambda: decode(plain, box=(0, 0, 9, 9)),
        "81 x 60 pixels is more than": lambda: decode(encode(smooth(81, 60), "PNG")),
        "82 x 60 pixels is more": lambda: decode(encode(smooth(82, 60), "JPEG", progressive=True)),
        "pixels is more": lambda: decode(encode(smooth(400, 400), "JPEG")),  # 1/8 is too large
    }
    for words, read in cases.items():
        with pytest.raises(CompoclipError, match=words):
            read()


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    for name in ("pipe.jpg", "pipe.npy", "zero.jpg"):
        for read in (decode, door.stored_bytes):
            with pytest.raises(CompoclipError, match=f"{name}.*pipe, socket, device or folder"):
                read(tmp_path / name)


def test_the_images_of_a_request_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    data = in_base64(encode(smooth(64, 64), "JPEG"))
    monkeypatch.setattr(serve_images, "MAX_WORK", 64 * 64 * 2)
    images = RequestImages()
    assert images.read(data).size == images.read(data).size == (64, 64)
    with pytest.raises(UsageError, match="too many pixels together"):
        images.read(data)


@pytest.mark.parametrize("shape", [(1, 4000), (4000, 1)])
def test_what_cannot_be_framed_is_refused_before_it_takes_memory(shape: tuple[int, int]) -> None:
    for mode, expected in (("shortest", "too elongated"), ("longest", "cannot be resized")):
        with pytest.raises(CompoclipError, match=expected):
            Preprocess(size=(224, 224), resize_mode=mode).evaluation(Image.new("RGB", shape))


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
    size = Preprocess(size=(64, 48))
    upright, stored = (ImageTransform(size, None, draft, turns) for turns in (True, False))
    shown = upright.read(data, random.Random(0)).float()
    exact = upright(decode(data, upright=True), random.Random(0)).float()
    assert (shown - exact).abs().mean() < (2 if draft else 1e-9)
    assert (stored.read(data, random.Random(0)).float() - exact).abs().mean() > 5


def test_readers_of_a_users_photos_turn_them(tmp_path: Path, model: compoclip.Model) -> None:
    data = turned(6)
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    upright = model.encode_images([decode(data, upright=True)])
    for image in (
        path,
        Image.open(path),
        RequestImages().read(in_base64(data)),
        image_of({"image": in_base64(data)}),
    ):
        assert np.array_equal(model.encode_images([image]), upright)
    stored = Image.fromarray(np.asarray(decode(data)))
    assert not np.array_equal(model.encode_images([stored]), upright)


def test_a_users_data_are_upright_and_published_data_as_stored(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(turned(6))
    rows = [{"image": name, "caption": "a star"} for name in ("a.jpg", "b.jpg")]
    own = write_jsonl(tmp_path / "own.jsonl", rows)
    ids = [{**row, "image_id": row["image"]} for row in rows]
    published = write_json(tmp_path / "captions.json", ids)
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
    plain = encode(smooth(80, 60), "JPEG")
    assert packed_image(plain, spec, upright=True) == packed_image(plain, spec, upright=False)


def test_a_header_is_read_in_a_bounded_number_of_pieces() -> None:
    data = encode(smooth(64, 64), "JPEG")
    for many in (b"\xff" * 50_000, b"\xff\xe5\x00\x02" * 20_000):
        with pytest.raises(CompoclipError, match="in too many parts"):
            decode(data[:2] + many + data[2:])
    comments = b"".join(b"\xff\xfe\x03\xea" + b"a" * 1000 for _ in range(1000))
    assert np.array_equal(decode(data[:2] + comments + data[2:]), decode(data))


def test_a_users_benchmark_is_read_upright_and_rotated_files_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(turned(6))
    row = {"image": "a.jpg", "caption": "a star", "negative_caption": "a mug"}
    write_json(tmp_path / "foils.jsonl", row)
    benchmark = load_benchmark("foils", tmp_path, tmp_path, annotations=tmp_path / "foils.jsonl")
    (image,) = benchmark.content[0].images
    assert image_key(image).endswith("a.jpg#upright")
    reader = ImageReader(SMALL)
    assert np.array_equal(reader(image), reader.pixels(decode(path, upright=True)))
    assert np.array_equal(reader(ImageRef(path)), reader.pixels(decode(path)))
    assert Album().photo(image_key(image)).size == (60, 80)
    assert audit(benchmark, decoding=True).counts == {Kind.ROTATED: {"": 1}}
    assert audit(benchmark).counts == {}
