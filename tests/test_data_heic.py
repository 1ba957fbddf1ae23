"""HEIC photos: read with the extra heic, within the limits of every image, and named without it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compoclip.data import decode
from compoclip.data.decode import opened
from compoclip.data.sources.open import Request
from compoclip.errors import CompoclipError

needs_heic = pytest.mark.skipif(find_spec("pillow_heif") is None, reason="needs the extra heic")


def write_heic(path: Path, size: tuple[int, int] = (96, 64), **options: object) -> Path:
    """A photo that is red at the top left, green elsewhere."""
    import pillow_heif

    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[..., 1] = 200
    pixels[: size[1] // 2, : size[0] // 2] = (200, 0, 0)
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(path, quality=95, **options)
    return path


def near(pixel: object, colour: tuple[int, int, int]) -> bool:
    return bool(np.abs(np.subtract(pixel, colour)).max() < 40)  # type: ignore[call-overload]


@needs_heic
def test_photos_are_read_as_other_photos_are(tmp_path: Path) -> None:
    path = write_heic(tmp_path / "a.heic")
    image = decode.decode(path)
    assert (image.mode, image.size) == ("RGB", (96, 64))
    assert near(image.getpixel((10, 10)), (200, 0, 0))
    assert near(image.getpixel((80, 50)), (0, 200, 0))
    assert decode.decode(path.read_bytes()).tobytes() == image.tobytes()
    assert decode.decode(path, min_size=(8, 8)).size == (96, 64)
    with opened(path) as file:
        assert (file.ending, file.size, file.scans) == ("heic", (96, 64), 1)
        assert file.work == 5 * 96 * 64 + 20 * path.stat().st_size
    assert decode.is_read("A.HEIC")
    assert decode.why_unread("A.HEIC") == ""


@needs_heic
def test_the_decoder_turns_photos_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter to the right
    path = write_heic(tmp_path / "a.heic", exif=exif.tobytes())
    for upright in (False, True):
        image = decode.decode(path, upright=upright)
        assert image.size == (64, 96)
        assert near(image.getpixel((50, 10)), (200, 0, 0))


@needs_heic
@pytest.mark.parametrize("size", [40, 300, -20])
def test_truncated_photos_end_in_one_line(size: int, tmp_path: Path) -> None:
    path = write_heic(tmp_path / "a.heic")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CompoclipError, match=r"damaged image|not an image of a known") as caught:
        decode.decode(path)
    assert "\n" not in str(caught.value)


@needs_heic
def test_photos_have_the_limits_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_heic(tmp_path / "a.heic")
    monkeypatch.setattr(decode, "MAX_WORK", 96 * 64)
    with pytest.raises(CompoclipError, match=r"takes too long to decode \(hevc\)"):
        decode.decode(path)
    monkeypatch.setattr(decode, "MAX_PIXELS", 96 * 64 - 1)
    with pytest.raises(CompoclipError, match="96 x 64 pixels is more than"):
        decode.decode(path)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_HEIF", False)
    monkeypatch.setattr(decode, "UNREAD", decode.UNREAD | {"heic"})
    monkeypatch.setattr(decode, "FORMATS", [name for name in decode.FORMATS if name != "HEIF"])
    path = tmp_path / "a.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    with pytest.raises(CompoclipError, match=r"a\.heic: HEIC needs pillow_heif: pip install"):
        decode.decode(path)
    assert decode.why_unread("a.heic").startswith("image of a kind that is not read (.heic: pip")
    (tmp_path / "a.txt").write_text("a red square")
    with pytest.raises(CompoclipError, match=r"left out: .*\(\.heic: pip install .*\): 1"):
        Request(str(tmp_path)).open()
