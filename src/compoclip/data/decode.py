"""Encoded image -> RGB pixels, the same for training and evaluation."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError, features

from compoclip.errors import CompoclipError

_AVIF = "avif" in features.modules and features.check_module("avif")  # newer Pillows only
# Formats read by Pillow's own decoders. EPS and others that start a helper program stay out.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000") + ("AVIF",) * _AVIF
#: What files of these formats are called, in small letters.
EXTENSIONS = frozenset(("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff"))
EXTENSIONS |= {"ppm", "pgm", "pbm", "pnm", "jp2", "j2k", "jpx", "jpf", "j2c"}
EXTENSIONS |= {"avif"} if _AVIF else set()

ARRAY = ".npy"
_BITS, _PHOTOMETRIC = 258, 262  # TIFF tags
MAX_PIXELS = 89_478_485  # a quarter of a gigabyte as RGB: Pillow's own threshold for a bomb


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A picture that is shown with left and right exchanged, before anything else is done to it.

    Args:
        image: The file, or the encoded bytes.
    """

    image: Path | bytes

    def __str__(self) -> str:
        return f"{_label(self.image)} (mirrored)"


Picture = Path | bytes | Mirrored
"""What names a picture: a file, encoded bytes, or one of them to be mirrored."""


def mirrored(image: Picture) -> Picture:
    """The picture with left and right exchanged; what is mirrored twice is the picture itself."""
    return image.image if isinstance(image, Mirrored) else Mirrored(image)


def unmirrored(image: Picture) -> Path | bytes:
    """What a picture is stored as: a mirrored one not yet mirrored."""
    return image.image if isinstance(image, Mirrored) else image


def as_shown(image: Picture, rgb: Image.Image) -> Image.Image:
    """The decoded pixels of what a picture is stored as, mirrored where it asks for that."""
    return ImageOps.mirror(rgb) if isinstance(image, Mirrored) else rgb


def decode(
    image: Picture,
    *,
    box: tuple[float, float, float, float] | None = None,
    name: str = "",
    least: tuple[int, int] | None = None,
) -> Image.Image:
    """The image as RGB, cropped to `box` (left, upper, right, lower, in pixels) when given.

    EXIF orientation is not applied: neither open_clip nor the published benchmark scores do, and
    boxes refer to the stored pixels. Transparency is laid over white, 12 and 16 bits a channel are
    scaled to 8, palette, grey and CMYK images become RGB, and of an animation the first frame is
    read. 32-bit and signed grey (TIFF, PFM) is refused: nothing says which values are black and
    white. A box that reaches beyond the image is filled with black there, as the benchmarks' own
    code does.
    A path that ends in .npy is a numpy array (height, width, 3) of bytes with blue first, as OpenCV
    reads frames (the YouCook2 part of EqBen); arrays that hold Python objects are never loaded.

    `name` is what errors call the image; a path names itself. least: see `reduce`; not with a box.
    Raises CompoclipError when the file is missing, not an image, truncated, larger than MAX_PIXELS,
    of a depth without a scale, or when the box is empty, lies outside the image or is itself larger
    than MAX_PIXELS.
    """
    with opened(image, name) as file:
        if least is not None:
            reduce(file, least)
        rgb = as_shown(image, to_rgb(file))
    return rgb if box is None else _crop(rgb, box, name or _label(image))


@contextmanager
def opened(image: Picture, name: str = "") -> Iterator[Image.Image]:
    """The image as it is stored, with its size known and its pixels not yet decoded (`to_rgb` does
    that, `as_shown` mirrors them where the picture asks for it).

    Raises what `decode` does, also for errors within the block.
    """
    label = name or _label(image)
    image = unmirrored(image)
    try:
        if isinstance(image, Path) and image.suffix.lower() == ARRAY:
            yield _from_array(image, label)
            return
        source = io.BytesIO(image) if isinstance(image, bytes) else image
        with Image.open(source, formats=FORMATS) as file:
            if file.width * file.height > MAX_PIXELS:
                raise CompoclipError(
                    f"{label}: {file.width} x {file.height} pixels is more than the "
                    f"{MAX_PIXELS:,} allowed; scale the image down"
                )
            yield file
    except _NoScaleError as error:
        raise CompoclipError(f"{label}: {error}") from None
    except CompoclipError:
        raise
    except FileNotFoundError:
        raise _not_found(label) from None
    except (Image.DecompressionBombError, MemoryError):
        raise CompoclipError(f"{label}: image too large; scale it down") from None
    except UnidentifiedImageError:
        raise CompoclipError(
            f"{label}: not an image of a known format ({', '.join(FORMATS)}); replace or remove it"
        ) from None
    except Exception as error:  # decoders fail on damaged files with errors of every kind
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CompoclipError(f"{label}: damaged image ({reason}); replace or remove it") from error


def _not_found(label: str) -> CompoclipError:
    more = " and the backslashes: folders are separated by / here" if "\\" in label else ""
    return CompoclipError(f"{label}: image not found; check the images folder{more}")


def reduce(image: Image.Image, least: tuple[int, int]) -> None:
    """Have an opened JPEG decoded at 1/2, 1/4 or 1/8 of its size, if it is then at least `least`
    (width, height) large; other formats stay as they are.

    The decoder leaves out the fine frequencies of each block of 8 x 8 pixels, which costs less than
    to decode them and scale them away. The pixels are not those of scaling the whole image down.
    """
    image.draft(None, least)


# --- Images that are decoded already: PPM files that any program reads, naming their photo. ---

_RAW = re.compile(rb"P6\n# photo ([0-9a-f]{32})\n(\d{1,5}) (\d{1,5})\n255\n")


def raw_image(image: Image.Image, photo: str) -> bytes:
    """An RGB image as a file that holds its pixels as they are.

    Args:
        image: The image.
        photo: The name of what it was made of, 32 hexadecimal digits.

    Returns:
        The file.
    """
    header = f"P6\n# photo {photo}\n{image.width} {image.height}\n255\n"
    return header.encode() + image.tobytes()


def raw_photo(image: bytes) -> str | None:
    """The photo that a file of `raw_image` names; None for any other file."""
    found = _RAW.match(image)
    return None if found is None else found[1].decode()


def raw_pixels(image: bytes) -> NDArray[np.uint8] | None:
    """(height, width, 3) view of the pixels in a file of `raw_image`; None for any other file, and
    for one that is cut off."""
    found = _RAW.match(image)
    if found is None:
        return None
    width, height = int(found[2]), int(found[3])
    if not width * height or len(image) != found.end() + 3 * width * height:
        return None
    return np.frombuffer(image, np.uint8, offset=found.end()).reshape(height, width, 3)


def _label(image: Picture) -> str:
    return "image" if isinstance(image, bytes) else str(image)


def _from_array(path: Path, label: str) -> Image.Image:
    """RGB from a .npy file with blue first; its header is checked before any pixel is read."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise _not_found(label) from None
    except Exception as error:  # a damaged header fails in many ways
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CompoclipError(f"{label}: damaged array ({reason}); replace or remove it") from error
    if not isinstance(array, np.memmap):  # an archive of arrays under another name
        array.close()
        raise CompoclipError(f"{label}: not a single numpy array; replace or remove it")
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise CompoclipError(
            f"{label}: an array of {array.dtype} {array.shape} is no image; expected uint8 "
            "(height, width, 3)"
        )
    if array.shape[0] * array.shape[1] > MAX_PIXELS:
        raise CompoclipError(
            f"{label}: {array.shape[1]} x {array.shape[0]} pixels is more than the "
            f"{MAX_PIXELS:,} allowed; scale the image down"
        )
    return Image.fromarray(np.ascontiguousarray(array[:, :, ::-1]))


def to_rgb(image: Image.Image) -> Image.Image:
    """An opened image as RGB, in the way that `decode` describes.

    Raises CompoclipError for a depth without a scale.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image.copy() if image.readonly else image
    if image.mode == "L" and "transparency" not in image.info:
        return image.convert("RGB")
    if image.mode == "F" or image.mode.startswith("I"):
        return _from_deep_grey(image)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


class _NoScaleError(CompoclipError):
    """Pixels of which nothing says what is black and what is white."""


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """16-bit grey to 8 bits; plain conversion would clip it to white.

    Pillow calls it I;16, of some formats I, as it does grey of 32 bits.
    """
    if not (image.mode.startswith("I;16") or image.format in ("PNG", "PPM")) or image.mode == "F":
        raise _NoScaleError(
            f"grey of 32 bits or with negative values (mode {image.mode}) has no scale from black "
            "to white; convert the image to 8 or 16 bits"
        )
    tags = getattr(image, "tag_v2", {})
    deepest = (1 << min(tags.get(_BITS, (16,)))) - 1
    values = np.minimum(np.asarray(image).astype(np.uint32), deepest)
    if tags.get(_PHOTOMETRIC) == 0:  # 0 is white
        values = deepest - values
    return Image.fromarray((values * 255 // deepest).astype(np.uint8)).convert("RGB")


def _crop(image: Image.Image, box: tuple[float, float, float, float], label: str) -> Image.Image:
    left, upper, right, lower = (round(edge) for edge in box)
    if right <= left or lower <= upper:
        raise CompoclipError(f"{label}: box {box} is empty; correct the annotation")
    if left >= image.width or upper >= image.height or right <= 0 or lower <= 0:
        raise CompoclipError(
            f"{label}: box {box} lies outside the {image.width} x {image.height} image; "
            "correct the annotation"
        )
    if (right - left) * (lower - upper) > MAX_PIXELS:
        raise CompoclipError(f"{label}: box {box} is too large; correct the annotation")
    return image.crop((left, upper, right, lower))
