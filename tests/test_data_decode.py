"""From a file to training pixels: every mode to RGB, HEIC, drafts, mirrored photos, framing."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from build.photos import encode, noise, smooth, snapshot, stored_in
from build.tables import write_jsonl
from compoclip.data import decode as module
from compoclip.data import image_names
from compoclip.data import transform as transform_module
from compoclip.data.columns import read_extras
from compoclip.data.decode import Mirrored, OpenedImage, decode, mirrored, opened, unmirrored
from compoclip.data.images import photo_key
from compoclip.data.options import PackSpec
from compoclip.data.pack import pack
from compoclip.data.sources import Source
from compoclip.data.sources.open import Request, open_source
from compoclip.data.transform import ImageTransform, RandomCrop, normalised, pixels_of
from compoclip.errors import CompoclipError
from compoclip.models.preprocess import Preprocess, random_crop


def test_only_workers_stack_pixels_in_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = ImageTransform(Preprocess(size=(8, 6)))
    images = [torch.full((3, 8, 6), value, dtype=torch.uint8) for value in (1, 2)]
    for worker in (None, True):
        monkeypatch.setattr(transform_module, "get_worker_info", MagicMock(return_value=worker))
        for some in ([], images):
            stacked = transform.together(some)
            assert stacked.is_shared() is bool(worker and some)
            assert [int(pixels.max()) for pixels in stacked] == [1, 2][: len(some)]


def gradient(width: int = 8, height: int = 6) -> Image.Image:
    values = np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)
    return Image.fromarray(values)


def test_rgb_is_unchanged_from_bytes_and_from_a_file(tmp_path: Path) -> None:
    image = gradient()
    path = tmp_path / "a.png"
    path.write_bytes(encode(image))
    for source in (path, path.read_bytes()):
        assert (decode(source).mode, decode(source).tobytes()) == ("RGB", image.tobytes())


def tiff(values: np.ndarray, bits: int, kind: int = 1, photometric: int = 1) -> bytes:
    """An uncompressed TIFF of one row of four pixels; kind: 1 unsigned, 2 signed, 3 float."""
    channels = 1 if values.ndim == 1 else values.shape[1]
    triples = struct.pack("<6H", *[bits] * 3, *[kind] * 3)  # where one number does not suffice
    places = (bits, kind) if channels == 1 else (200, 206)
    entries = {256: 4, 257: 1, 258: places[0], 259: 1, 262: photometric, 273: 256}
    entries |= {277: channels, 278: 1, 279: values.nbytes, 339: places[1]}
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    for tag, value in entries.items():
        head += struct.pack("<HHII", tag, 3, channels if tag in (258, 339) else 1, value)
    return (head.ljust(200, b"\0") + triples).ljust(256, b"\0") + values.tobytes()


GREY = np.array([0, 257, 25_700, 65_535], np.uint16)
TWELVE = np.array([0x00, 0x0F, 0xFF, 0x80, 0x00, 0x00], np.uint8)  # 000 FFF 800 000


COLOURS = np.stack([GREY, GREY[::-1], GREY], axis=1)


def row(mode: str, *pixels: Any, palette: Sequence[int] = ()) -> Image.Image:
    image = Image.new(mode, (len(pixels), 1))
    if palette:
        image.putpalette(palette)
    image.putdata(pixels)
    return image


ROWS: dict[str, tuple[bytes, list[Any]]] = {
    # A file of one row, and its pixels: three values, or one that all three channels have.
    "grey": (encode(row("L", 77, 78)), [77, 78]),
    "transparency lies over white": (
        encode(row("RGBA", (10, 20, 30, 255), (10, 20, 30, 0), (0, 0, 0, 128))),
        [[10, 20, 30], 255, 127],
    ),
    "a transparent colour of a palette": (
        encode(row("P", 0, 1, palette=[200, 0, 0, 0, 200, 0]), transparency=0),
        [255, [0, 200, 0]],
    ),
    "16 bits in a PNG": (encode(Image.fromarray(GREY[None])), [0, 1, 100, 255]),
    "16 bits in a TIFF": (tiff(GREY, 16), [0, 1, 100, 255]),
    "16 bits of which 0 is white": (tiff(GREY, 16, photometric=0), [255, 254, 155, 0]),
    "colours of 16 bits": (tiff(COLOURS, 16, photometric=2), (COLOURS // 257).tolist()),
    "12 bits": (tiff(TWELVE, 12), [0, 255, 127, 0]),
    "dark grey of 16 bits": (b"P5 2 1 65535\n" + np.array([0, 255], ">u2").tobytes(), [0, 0]),
    "the first frame of an animation": (
        encode(row("RGB", (255, 0, 0)), "GIF", save_all=True, append_images=[row("RGB", 0)]),
        [[255, 0, 0]],
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_every_mode_becomes_rgb(case: str) -> None:
    data, pixels = ROWS[case]
    expected = [pixel if isinstance(pixel, list) else [pixel] * 3 for pixel in pixels]
    assert np.asarray(decode(data))[0].tolist() == expected


@pytest.mark.parametrize(
    "data",
    [
        tiff(np.linspace(0, 1, 4, dtype=np.float32), 32, 3),
        tiff(np.array([0, 300, 1e5, 7e6], np.float32), 32, 3),
        tiff(np.array([0, 200, 70_000, 1 << 30], np.int32), 32, 2),
        tiff(np.array([0, 200, 70_000, 1 << 30], np.uint32), 32, 1),
        tiff(np.array([0, -5, 100, 32_767], np.int16), 16, 2),
        b"Pf\n2 1\n-1.0\n" + np.array([0.25, 0.75], "<f4").tobytes(),
    ],
    ids=["floats", "large floats", "signed", "unsigned", "negative", "float map"],
)
def test_depths_without_a_scale_are_refused(data: bytes) -> None:
    with pytest.raises(CompoclipError, match=r"scan 7: grey of 32 bits .*no scale.*convert"):
        decode(data, name="scan 7")


def test_cmyk_jpeg() -> None:
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    r, g, b = np.asarray(decode(encode(image, "JPEG", quality=95)))[8, 8].tolist()
    assert r > 200
    assert max(g, b) < 60


def test_box_cuts_out_pixels_and_pads_with_black() -> None:
    image = gradient(8, 6)
    data = encode(image)
    got = np.asarray(decode(data, box=(2.2, 1, 5, 4.4)))
    assert np.array_equal(got, np.asarray(image)[1:4, 2:5])
    over = np.asarray(decode(data, box=(6, 4, 10, 8)))
    assert np.array_equal(over[:2, :2], np.asarray(image)[4:, 6:])
    assert not over[2:].any()
    assert not over[:, 2:].any()


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ((3, 3, 3, 5), "empty"),
        ((5, 3, 2, 5), "empty"),
        ((8, 0, 9, 2), "outside"),
        ((-5, 0, 0, 2), "outside"),
        ((0, 0, 1e6, 1e6), "too large"),
    ],
)
def test_bad_box(box: tuple[float, float, float, float], reason: str) -> None:
    with pytest.raises(CompoclipError, match=f"photo-1: box .*{reason}"):
        decode(encode(gradient(8, 6)), box=box, name="photo-1")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "PPM"])
def test_every_prefix_of_an_image_is_read_or_refused_in_one_line(format: str) -> None:
    data = encode(gradient(12, 12), format)
    messages = []
    for length in range(0, len(data), 7):
        try:
            assert decode(data[:length]).mode == "RGB"
        except CompoclipError as error:
            messages.append(str(error))
    assert messages
    assert not any("\n" in message for message in messages)


def test_missing_not_an_image_and_folder(tmp_path: Path) -> None:
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(encode(gradient(64, 64), "JPEG")[:-200])
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    for image, message in (
        (tmp_path / "gone.jpg", r"gone\.jpg: image not found"),
        (b"<html>not found</html>", "sample 7: not an image"),
        (tmp_path, r"damaged image .*folder, not a file"),
        (program, "not an image of a known format"),
        (cut, r"cut\.jpg: damaged image"),
    ):
        with pytest.raises(CompoclipError, match=message) as raised:
            decode(image, name="sample 7" if isinstance(image, bytes) else "")
        assert "\n" not in str(raised.value)


def saved(path: Path, array: np.ndarray, **options: object) -> Path:
    np.save(path, array, **options)
    return path


def test_an_array_file_has_blue_first(tmp_path: Path) -> None:
    image = gradient()
    path = saved(tmp_path / "frame.npy", np.asarray(image)[:, :, ::-1])
    assert (decode(path).mode, decode(path).tobytes()) == ("RGB", image.tobytes())
    assert decode(path, box=(1, 2, 4, 6)).size == (3, 4)
    turned = saved(tmp_path / "f.npy", np.asfortranarray(np.asarray(image)[:, :, ::-1]))
    assert decode(turned).tobytes() == image.tobytes()


def test_bad_array_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rgb = np.zeros((4, 5, 3), dtype=np.uint8)
    objects = saved(tmp_path / "o.npy", np.array([[[{}] * 3]], dtype=object), allow_pickle=True)
    lie, text, archive = (tmp_path / name for name in ("lie.npy", "text.npy", "archive.npy"))
    lie.write_bytes(saved(tmp_path / "a.npy", rgb).read_bytes().replace(b"(4, 5, 3)", b"(9, 9, 3)"))
    text.write_bytes(b"no array")
    with archive.open("wb") as file:
        np.savez(file, rgb)
    for path, message in (
        (tmp_path / "none.npy", "image not found"),
        (objects, "damaged array"),
        (lie, "damaged array"),
        (text, "damaged array"),
        (archive, "not a single numpy array"),
        (saved(tmp_path / "deep.npy", rgb.astype(np.float32)), "float32 .* is no image"),
        (saved(tmp_path / "grey.npy", rgb[:, :, 0]), r"\(4, 5\) is no image"),
        (saved(tmp_path / "none2.npy", rgb[:0]), "is no image"),
    ):
        with pytest.raises(CompoclipError, match=message) as caught:
            decode(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(module, "MAX_PIXELS", 19)
    with pytest.raises(CompoclipError, match="5 x 4 pixels is more than"):
        decode(tmp_path / "a.npy")


# --- HEIC: read with the extra heic, within the limits of every image, and named without it. ---


needs_heic = pytest.mark.skipif(find_spec("pillow_heif") is None, reason="needs the extra heic")


def write_heic(path: Path, **options: object) -> Path:
    """A photo that is red at the top left, green elsewhere."""
    import pillow_heif

    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[..., 1] = 200
    pixels[:32, :48] = (200, 0, 0)
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(path, quality=95, **options)
    return path


def near(pixel: object, colour: tuple[int, int, int]) -> bool:
    return bool(np.abs(np.subtract(pixel, colour)).max() < 40)  # type: ignore[call-overload]


@needs_heic
def test_photos_are_read_as_other_photos_are(tmp_path: Path) -> None:
    path = write_heic(tmp_path / "a.heic")
    image = decode(path)
    assert (image.mode, image.size) == ("RGB", (96, 64))
    assert near(image.getpixel((10, 10)), (200, 0, 0))
    assert near(image.getpixel((80, 50)), (0, 200, 0))
    assert decode(path.read_bytes()).tobytes() == image.tobytes()
    assert decode(path, min_size=(8, 8)).size == (96, 64)
    with opened(path) as file:
        assert (file.ending, file.size, file.scans) == ("heic", (96, 64), 1)
        assert file.work == 5 * 96 * 64 + 20 * path.stat().st_size
    assert image_names.is_read("A.HEIC")
    assert image_names.why_unread("A.HEIC") == ""


@needs_heic
def test_the_decoder_turns_photos_upright(tmp_path: Path) -> None:
    path = write_heic(tmp_path / "a.heic", exif=stored_in(6).tobytes())
    for upright in (False, True):
        image = decode(path, upright=upright)
        assert image.size == (64, 96)
        assert near(image.getpixel((50, 10)), (200, 0, 0))


@needs_heic
@pytest.mark.parametrize("size", [40, 300, -20])
def test_truncated_photos_end_in_one_line(size: int, tmp_path: Path) -> None:
    path = write_heic(tmp_path / "a.heic")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CompoclipError, match=r"damaged image|not an image of a known") as caught:
        decode(path)
    assert "\n" not in str(caught.value)


@needs_heic
def test_photos_have_the_limits_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_heic(tmp_path / "a.heic")
    monkeypatch.setattr(module, "MAX_WORK", 96 * 64)
    with pytest.raises(CompoclipError, match=r"takes too long to decode \(hevc\)"):
        decode(path)
    monkeypatch.setattr(module, "MAX_PIXELS", 96 * 64 - 1)
    with pytest.raises(CompoclipError, match="96 x 64 pixels is more than"):
        decode(path)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HAS_HEIF", False)
    monkeypatch.setattr(image_names, "UNREAD", image_names.UNREAD | {"heic"})
    monkeypatch.setattr(module, "FORMATS", [name for name in module.FORMATS if name != "HEIF"])
    path = tmp_path / "a.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    with pytest.raises(CompoclipError, match=r"a\.heic: HEIC needs pillow_heif: pip install"):
        decode(path)
    reason = image_names.why_unread("a.heic")
    assert reason.startswith("image of a kind that is not read (.heic: pip")
    (tmp_path / "a.txt").write_text("a red square")
    with pytest.raises(CompoclipError, match=r"left out: 1 x .*\(\.heic: pip install .*\)"):
        Request(str(tmp_path)).open()


# --- The transform of training. ---


@pytest.mark.parametrize(
    ("stored", "least", "expected"),
    [
        ((640, 480), (224, 224), (320, 240)),
        ((640, 480), (321, 1), (640, 480)),
        ((643, 481), (80, 60), (81, 61)),
        ((640, 480), (1, 1), (80, 60)),
        ((100, 90), (224, 224), (100, 90)),
    ],
)
def test_a_jpeg_is_decoded_no_smaller_than_asked(
    stored: tuple[int, int], least: tuple[int, int], expected: tuple[int, int]
) -> None:
    data = snapshot(*stored)
    assert decode(data, min_size=least).size == expected
    assert decode(data).size == stored
    assert decode(snapshot(*stored, "PNG"), min_size=least).size == stored


def test_kinds_of_jpeg_and_grey_ones(tmp_path: Path) -> None:
    grey, cmyk = smooth(64, 64).convert("L"), smooth(64, 64).convert("CMYK")
    for image in (grey, cmyk):
        small = decode(encode(image, "JPEG"), min_size=(8, 8))
        assert (small.mode, small.size) == ("RGB", (8, 8))
    np.save(tmp_path / "a.npy", np.zeros((64, 64, 3), np.uint8))
    assert decode(tmp_path / "a.npy", min_size=(8, 8)).size == (64, 64)


@pytest.mark.parametrize("size", [(640, 480), (333, 1000), (224, 224), (150, 90), (2000, 300)])
@pytest.mark.parametrize("crop", [RandomCrop(), RandomCrop((0.2, 1.0)), None])
def test_what_is_shown_is_never_enlarged_by_the_draft(
    size: tuple[int, int], crop: RandomCrop | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Image.Image] = []
    whole = OpenedImage.rgb
    monkeypatch.setattr(
        OpenedImage, "rgb", lambda file, least: seen.append(whole(file, least)) or seen[-1]
    )
    data = snapshot(*size)
    transform = ImageTransform(Preprocess(size=(64, 48)), crop)
    for seed in range(8):
        transform.read(data, random.Random(seed))
        decoded = seen[-1]
        shown = size
        if crop is not None:
            _, _, h, w = random_crop(size[1], size[0], random.Random(seed), crop.scale, crop.ratio)
            shown = w, h
        for side, target in ((0, 48), (1, 64)):
            kept = shown[side] * decoded.size[side] / size[side]
            assert kept >= min(target, shown[side])
    assert size[0] < 600 or any(image.size != size for image in seen)


@pytest.mark.parametrize("crop", [RandomCrop(), None])
def test_a_draft_shows_the_same_part_of_the_image(crop: RandomCrop | None) -> None:
    data = snapshot(640, 480)
    fast, exact = (
        ImageTransform(Preprocess(size=(96, 96)), crop, draft) for draft in (True, False)
    )
    for seed in range(5):
        one, two = (transform.read(data, random.Random(seed)) for transform in (fast, exact))
        assert torch.equal(one, fast.read(data, random.Random(seed)))
        assert not torch.equal(one, two)
        assert (one.float() - two.float()).abs().mean() < 2  # of 255; a shift of a pixel gives more
        assert torch.equal(two, exact(decode(data), random.Random(seed)))


def test_pixels_stay_bytes_and_are_normalised_as_evaluation_does() -> None:
    preprocess = Preprocess(size=(32, 32))
    image = smooth(32, 32)
    pixels = ImageTransform(preprocess)(image, random.Random(0))
    assert pixels.dtype == torch.uint8
    whole = normalised(pixels_of(image), preprocess.mean, preprocess.std)
    assert torch.equal(whole, preprocess.evaluation(image))
    several = normalised(torch.stack([pixels] * 2), preprocess.mean, preprocess.std)
    assert torch.equal(several[1], normalised(pixels, preprocess.mean, preprocess.std))


@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("size", [(50, 40), (20, 90), (32, 24)])
def test_the_frame_is_what_evaluation_sees(mode: str, size: tuple[int, int]) -> None:
    preprocess = Preprocess(size=(24, 32), resize_mode=mode, fill_color=7)
    framed = preprocess.framed(smooth(*size))
    assert framed.size == (32, 24)
    pixels = normalised(pixels_of(framed), preprocess.mean, preprocess.std)
    assert torch.equal(pixels, preprocess.evaluation(smooth(*size)))


# --- Mirrored photos: as references, in rows and packs. ---


def test_mirrored_twice_is_the_picture_itself() -> None:
    for image in (encode(noise(0)), Path("a.png")):
        once = mirrored(image)
        assert once == Mirrored(image)
        assert mirrored(once) is image
        assert unmirrored(once) is image
        assert photo_key(once) != photo_key(image)
    shown = decode(mirrored(encode(noise(0))))
    assert np.array_equal(shown, ImageOps.mirror(noise(0)))
    with pytest.raises(CompoclipError, match=r"none\.png \(mirrored\): image not found"):
        decode(mirrored(Path("none.png")))


def test_it_is_mirrored_before_the_transform() -> None:
    """With any crop: the crop of the mirrored picture, not the mirrored crop."""
    data, turned = encode(noise(0)), encode(ImageOps.mirror(noise(0)))
    for crop in (None, RandomCrop((0.3, 0.6))):
        transform = ImageTransform(Preprocess(size=(8, 8)), crop)
        shown = transform.read(mirrored(data), random.Random(3))
        assert torch.equal(shown, transform.read(turned, random.Random(3)))
        assert crop is None or not torch.equal(shown, transform.read(data, random.Random(3)))


def write_rows(folder: Path) -> Path:
    """A mirrored image of the row, a mirrored other one, an ordinary negative, and none."""
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.png").write_bytes(encode(noise(ord(name))))
    rows: list[dict[str, Any]] = [
        {"image": "a.png", "caption": "a", "neg_caption": "x", "mirror": True},
        {"image": "b.png", "caption": "b", "neg_caption": "y", "neg_image": "c.png", "mirror": 1},
        {"image": "b.png", "caption": "b", "neg_caption": "y", "neg_image": "c.png"},
        {"image": "c.png", "caption": "c", "mirror": False, "pos_caption": ["one c", "see"]},
    ]
    return write_jsonl(folder / "rows.jsonl", rows)


def negatives_of(source: Source) -> list[bytes | None]:
    """Return the pixels of the negative images."""
    images = [sample.negative_image for sample in source]
    return [None if image is None else decode(image).tobytes() for image in images]


def test_rows_and_packs_show_the_same(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in")
    source = open_source(str(table))
    a, c = noise(ord("a")), noise(ord("c"))
    shown = [ImageOps.mirror(a).tobytes(), ImageOps.mirror(c).tobytes(), c.tobytes(), None]
    assert negatives_of(source) == shown
    assert source.brings() == {"negatives", "negative_image", "positives"}
    assert source[3].positives == ("one c", "see")
    assert source[0].negative_image == Mirrored(tmp_path / "in" / "a.png")
    summary = pack(Request(str(table)), tmp_path / "pack", PackSpec(keep=True))
    assert summary.as_they_were == 6  # four images, c.png twice, a.png not again
    packed = open_source(str(tmp_path / "pack"))
    assert negatives_of(packed) == shown
    assert packed.brings() == source.brings()
    assert packed[3].positives == ("one c", "see")


def no_path(cell: object, origin: str) -> str:
    raise AssertionError(f"{origin}: {cell!r} is no image")


def test_a_bad_flag_is_one_clear_line() -> None:
    message = r"x, row 1: mirror 'perhaps' .* is neither true nor false"
    with pytest.raises(CompoclipError, match=message):
        read_extras({"mirror": "perhaps"}, "x, row 1", no_path)
    for cell, flag in (("yes", True), ("0", False), (True, True), ("", False), (None, False)):
        assert read_extras({"mirror": cell}, "x", no_path).get("mirror", False) is flag
