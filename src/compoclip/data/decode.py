"""Encoded image -> RGB pixels, the same for training and evaluation."""

from __future__ import annotations

import base64
import io
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from compoclip.bounds import (
    MAX_ASPECT,
    MAX_HEADER_READS,
    MAX_IMAGE_BYTES,
    MAX_PIXELS,
    MAX_SCANS,
    MAX_WORK,
    MIN_READ_BYTES,
)
from compoclip.console import counted
from compoclip.data.image_names import ENDINGS, FORMATS, HAS_HEIF, heif_remedy
from compoclip.errors import CompoclipError, printable
from compoclip.files import bytes_hash, open_regular, reading, reason
from compoclip.patterns import has_ending

ARRAY = ".npy"
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")
# Pillow's slow decoders -> cost per pixel and per byte, in pixels of a scan of a JPEG (10 ns): the
# first three run in Python.
_COSTS = {
    "ppm": (1000, 0),
    "ppm_plain": (1000, 0),
    "bmp_rle": (1000, 130),
    "jpeg2k": (5, 20),
    "hevc": (5, 20),
}
_COMMENT_COST = 10_000  # of a comment in a plain PPM: all that is read so far is copied
_BITS, _PHOTOMETRIC, _STRIPS, _TILES = 258, 262, 273, 324  # TIFF tags


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A picture that is shown with left and right exchanged, before anything else is done to it."""

    image: Path | bytes

    def __str__(self) -> str:
        return f"{_label(self.image)} (mirrored)"


Picture = Path | bytes | Mirrored
"""A picture: a file, encoded bytes, or either of them mirrored."""


def mirrored(image: Picture) -> Picture:
    """Return the picture with left and right exchanged; mirrored twice it is the picture itself."""
    return image.image if isinstance(image, Mirrored) else Mirrored(image)


def name_of(id: str, image: Picture) -> str:
    """Return what messages call the image of a sample: its id unless a file has it, else ""."""
    return id if isinstance(unmirrored(image), bytes) else ""


def unmirrored(image: Picture) -> Path | bytes:
    """Return the stored picture of an image, before mirroring."""
    return image.image if isinstance(image, Mirrored) else image


@dataclass(frozen=True)
class OpenedImage:
    """An image whose header is read and whose pixels are not, as Pillow opens it.

    turn: how its pixels are turned to stand upright. mirror: left and right are exchanged, after.
    reduced: 2, 4 or 8 for a JPEG that is read at that part of its size, because it has too many
    pixels. file_bytes: size of the file.
    """

    stored: Image.Image
    turn: Image.Transpose | None = None
    mirror: bool = False
    reduced: int = 1
    file_bytes: int = 0

    @cached_property
    def size(self) -> tuple[int, int]:
        """Return the (width, height) of the pixels that `rgb` returns."""
        width, height = self._sides(self.stored.size)
        return -(-width // self.reduced), -(-height // self.reduced)

    @property
    def ending(self) -> str:
        """Return the usual ending of files of its format; "" for an array."""
        name = "JPEG" if _is_jpeg(self.stored) else self.stored.format
        return ENDINGS.get(name or "", ("",))[0]

    @property
    def rotated(self) -> bool:
        """Return whether the EXIF orientation asks for a rotation."""
        return _turn(self.stored) is not None

    @cached_property
    def scans(self) -> int:
        """Return how often a JPEG paints its pixels, also one in a TIFF; 1 for other formats."""
        if self.decoder and self.stored.info.get("compression") == "jpeg":
            tags: Any = self.stored.tag_v2  # type: ignore[attr-defined]
            strips = tags.get(_STRIPS) or tags.get(_TILES) or (0,)
            return max(1, self._data().count(bytes((0xFF, _SCAN))) // len(strips))
        if not self.decoder or not _is_jpeg(self.stored):
            return 1
        file: IO[bytes] = self.stored.fp  # type: ignore[attr-defined]
        place = file.tell()  # behind the head of the first scan
        layers: int = self.stored.layers  # type: ignore[attr-defined]
        file.seek(place - 2 * layers - 8)
        head = file.read(2 * layers + 8)
        complete = head.rfind(b"\xff\xda") == 0 and head[4] == layers
        if complete and not self.stored.info.get("progressive"):
            return 1  # the decoder stops behind it
        data = self._data()
        scans, place = 0, 2  # without thumbnails and bytes behind the end
        while scans <= MAX_SCANS and (marker := _MARKER.search(data, place)):
            if marker[1][0] == _END:
                break
            scans += marker[1][0] == _SCAN
            place = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2])
        return max(1, scans)

    @cached_property
    def work(self) -> int:
        """Return the cost of decoding, in pixels of one scan of a JPEG."""
        per_pixel, per_byte = _COSTS.get(self.decoder, (1, 0))
        comments = self._data().count(b"#") if self.decoder == "ppm_plain" else 0
        decoding = math.prod(self.stored.size) * self.scans * per_pixel
        return decoding + self.file_bytes * per_byte + comments * _COMMENT_COST

    @property
    def decoder(self) -> str:
        """Return the name of Pillow's decoder, or hevc; "" for what is decoded already."""
        if self.stored.format == "HEIF":
            return "hevc"
        tiles = getattr(self.stored, "tile", ())
        return str(tiles[0][0]) if tiles else ""

    def rgb(self, min_size: tuple[int, int] | None = None) -> Image.Image:
        """Decode the pixels to RGB as described for `decode`.

        min_size: (width, height); a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if it is then at
        least so large. The decoder skips the fine frequencies of each block of 8 x 8 pixels; this
        is fast, and the pixels differ from the scaled whole image. Raises CompoclipError for too
        much work, and for a depth without a scale.
        """
        again = "save it again as an ordinary JPEG or PNG"
        if self.work > MAX_WORK and self.decoder in _COSTS:
            raise _RefusedError(f"takes too long to decode ({self.decoder}); {again}")
        if self.scans > MAX_SCANS or self.work > MAX_WORK:
            raise _RefusedError(f"has too many scans for its size; {again}")
        if min_size is not None or self.reduced > 1:
            full = [side // self.reduced for side in self.stored.size]
            width, height = map(min, self._sides(min_size) if min_size else full, full)
            self.stored.draft(None, (width, height))
        rgb = _to_rgb(self.stored)
        if self.turn is not None:
            rgb = rgb.transpose(self.turn)
            for key in _STATE_TURNS:  # else who gets the image would turn it again
                rgb.info.pop(key, None)
        return ImageOps.mirror(rgb) if self.mirror else rgb

    def _data(self) -> bytes:
        """The encoded image, read beside the decoder, which goes on where it was."""
        file: IO[bytes] = self.stored.fp  # type: ignore[attr-defined]
        place = file.tell()
        file.seek(0)
        data = file.read()
        file.seek(place)
        return data

    def _sides(self, size: tuple[int, int]) -> tuple[int, int]:
        return size[::-1] if self.turn in _ON_ITS_SIDE else size


def decode(
    image: Picture | Image.Image,
    *,
    box: tuple[float, float, float, float] | None = None,
    name: str = "",
    min_size: tuple[int, int] | None = None,
    upright: bool = False,
) -> Image.Image:
    """Return the image as RGB, cropped to `box` (left, upper, right, lower) when given.

    Pixels are read as stored, as in open_clip and the published benchmark scores, whose boxes refer
    to them; `upright` applies the EXIF orientation before the crop. (The decoders always apply it
    to TIFF and HEIC files.) Transparency is laid over white, 12 and 16 bits per channel are scaled
    to 8, palette, grey and CMYK images become RGB, and the first frame of an animation is read.
    32-bit and signed grey (TIFF, PFM) has no defined black and white and is refused. A box beyond
    the image is filled with black there, as in the benchmarks' own code. A path that ends in .npy
    is a numpy array (height, width, 3) of bytes with blue first, as OpenCV reads frames (the
    YouCook2 part of EqBen); arrays of Python objects are never loaded.

    name: for error messages, by default the path. min_size: see `OpenedImage.rgb`; not with a box.
    Raises CompoclipError for a missing, damaged or truncated image, one beyond the limits of this
    module or without a scale, and a box that is empty, outside the image or above MAX_PIXELS.
    """
    with opened(image, name, upright=upright) as file:
        rgb = file.rgb(min_size)
        if box is None:
            return rgb
        if file.reduced > 1:
            raise _RefusedError("too many pixels for a box; cut it out of the image beforehand")
        left, upper, right, lower = (round(edge) for edge in box)
        outside = left >= rgb.width or upper >= rgb.height or right <= 0 or lower <= 0
        problem = ""
        if right <= left or lower <= upper:
            problem = "is empty"
        elif outside:
            problem = f"lies outside the {rgb.width} x {rgb.height} image"
        elif (right - left) * (lower - upper) > MAX_PIXELS:
            problem = "is too large"
        if problem:
            raise _RefusedError(f"box {box} {problem}; correct the annotation")
        return rgb.crop((left, upper, right, lower))


@contextmanager
def opened(
    image: Picture | Image.Image, name: str = "", *, upright: bool = False
) -> Iterator[OpenedImage]:
    """Open an image without decoding it.

    The only place where compoclip opens image files: formats are recognised by content, and limits
    are checked in the header. Raises as `decode`, also for errors within the block.
    """
    label = printable(name or _label(image), 255)  # longer ones are not names but base64
    mirror = isinstance(image, Mirrored)
    image = image.image if isinstance(image, Mirrored) else image
    array = isinstance(image, Path) and has_ending(image, ARRAY)
    try:
        if isinstance(image, Image.Image):
            _check_size(*image.size)
            yield OpenedImage(image, _turn(image) if upright else None, mirror)
        elif isinstance(image, Path) and array:
            yield OpenedImage(_from_array(image), mirror=mirror)
        else:
            source = io.BytesIO(image) if isinstance(image, bytes) else open_regular(image)
            size = source.seek(0, io.SEEK_END)
            if size > MAX_IMAGE_BYTES:
                raise _RefusedError(f"{size:,} bytes are more than the {MAX_IMAGE_BYTES:,} allowed")
            with _CountedReader(source) as reader, _open_stored(reader) as file:
                turn = _turn(file) if upright else None
                picture = OpenedImage(file, turn, mirror, _reduction(file), size)
                _check_size(*picture.size)
                counted = picture.decoder not in _COSTS  # whose cost is bounded by `work`
                reader.left = MAX_HEADER_READS + size // MIN_READ_BYTES if counted else math.inf
                yield picture
        return
    except _RefusedError as error:
        problem = str(error)
    except CompoclipError:
        raise
    except FileNotFoundError:
        more = " and the backslashes: folders are separated by / here" if "\\" in label else ""
        problem = f"image not found; check the images folder (--images){more}"
    except (Image.DecompressionBombError, MemoryError):
        problem = "too many pixels; scale the image down"
    except UnidentifiedImageError:
        problem = f"not an image of a known format ({', '.join(FORMATS)}); replace or remove it"
    except Exception as error:  # decoders fail on damaged files with errors of every kind
        kind = "array" if array else "image"
        problem = f"damaged {kind} ({reason(error)}); replace or remove it"
    raise CompoclipError(f"{label}: {problem}")


class _CountedReader(io.BufferedReader):
    """A file that is read in a bounded number of pieces: Pillow joins them in Python."""

    left: float = MAX_HEADER_READS

    def read(self, size: int | None = -1, /) -> bytes:
        """Read some bytes."""
        self.left -= 1
        if self.left < 0:
            raise _RefusedError("is in too many parts; save it again without metadata")
        return super().read(size)


def _open_stored(reader: _CountedReader) -> ImageFile.ImageFile:
    """Open an image as Image.open does, without its limit of pixels: large JPEGs are read smaller.

    Raises UnidentifiedImageError.
    """
    Image.init()
    if HAS_HEIF and "HEIF" not in Image.OPEN:
        import pillow_heif  # within a worker, and not in a command that reads no image

        pillow_heif.register_heif_opener(
            thumbnails=False, depth_images=False, aux_images=False, decode_threads=1
        )
    reader.seek(0)
    start = reader.read(16)
    for name in FORMATS:
        plugin, accepts = Image.OPEN[name]
        if accepts is None or accepts(start) is True:
            reader.seek(0)
            with suppress(SyntaxError, IndexError, TypeError, struct.error):
                return plugin(reader, "")
    if not HAS_HEIF and start[4:8] == b"ftyp" and start[8:12] in _HEIF_BRANDS:
        raise _RefusedError(f"HEIC needs pillow_heif: {heif_remedy()}")
    raise UnidentifiedImageError


def _is_jpeg(image: Image.Image) -> bool:
    return image.format in ("JPEG", "MPO")  # several JPEGs in a row


def _reduction(file: Image.Image) -> int:
    """The part of its size at which an image is read: 2, 4 or 8 for a JPEG of too many pixels.

    The coefficients of a JPEG in several scans would lie in memory as a whole.
    """
    pixels = math.prod(file.size)
    if not MAX_PIXELS < pixels <= MAX_WORK or not _is_jpeg(file) or OpenedImage(file).scans > 1:
        return 1
    return next((part for part in (2, 4, 8) if pixels <= part**2 * MAX_PIXELS), 1)


def _check_size(width: int, height: int) -> None:
    size = f"{width} x {height} pixels"
    if width * height > MAX_PIXELS:
        raise _RefusedError(f"{size} is more than the {MAX_PIXELS:,} allowed; scale the image down")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise _RefusedError(
            f"{size}: one side is more than {MAX_ASPECT} times the other; replace or remove the "
            "image"
        )


# --- The orientation of an image, and the scans of a JPEG. ---

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_ITS_SIDE = {_TURNS[number] for number in (5, 6, 7, 8)}
_STATE_TURNS = {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"}


def _turn(image: Image.Image) -> Image.Transpose | None:
    """The rotation that makes an image upright, or None."""
    if _STATE_TURNS.isdisjoint(image.info):
        return None
    with suppress(Exception):  # a damaged header of a camera is no damage to the pixels
        return _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    return None


_SCAN, _END = 0xDA, 0xD9  # the second bytes of markers
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")  # followed by a length


def _label(image: Picture | Image.Image) -> str:
    if isinstance(image, Image.Image):
        return getattr(image, "filename", "") or "image"
    return "image" if isinstance(image, bytes) else str(image)


def _from_array(path: Path) -> Image.Image:
    """RGB from a .npy file with blue first; its header is checked before any pixel is read."""
    open_regular(path).close()
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.memmap):  # an archive of arrays under another name
        array.close()
        raise _RefusedError("not a single numpy array; replace or remove it")
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise _RefusedError(
            f"an array of {array.dtype} {array.shape} is no image; expected uint8 (height, width, "
            "3)"
        )
    _check_size(array.shape[1], array.shape[0])
    return Image.fromarray(np.ascontiguousarray(array[:, :, ::-1]))


def _to_rgb(image: Image.Image) -> Image.Image:
    """The pixels as RGB; transparency is laid over white, and 16-bit grey scaled to 8 bits."""
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image.copy() if image.readonly else image
    if image.mode == "L" and "transparency" not in image.info:
        return image.convert("RGB")
    if image.mode == "F" or image.mode.startswith("I"):
        # Plain conversion would clip to white. Pillow calls grey of 16 bits I;16, of some formats
        # I, as it does grey of 32 bits.
        deep = image.mode.startswith("I;16") or image.format in ("PNG", "PPM")
        if not deep or image.mode == "F":
            raise _RefusedError(
                f"grey of 32 bits or with negative values (mode {image.mode}) has no scale from "
                "black to white; convert the image to 8 or 16 bits"
            )
        tags = getattr(image, "tag_v2", {})
        deepest = (1 << min(tags.get(_BITS, (16,)))) - 1
        values = np.minimum(np.asarray(image).astype(np.uint32), deepest)
        if tags.get(_PHOTOMETRIC) == 0:  # 0 is white
            values = deepest - values
        return Image.fromarray((values * 255 // deepest).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def stored_bytes(image: Path | bytes) -> bytes:
    """Return the bytes of the file of an image. Raises CompoclipError for one that is missing, or
    no regular file."""
    if isinstance(image, bytes):
        return image
    with reading(image, "check the images folder"), open_regular(image) as file:
        size = os.fstat(file.fileno()).st_size  # as much memory is taken as is asked for
        return file.read(min(size, MAX_IMAGE_BYTES))


def photo_hash(image: Path | bytes) -> str:
    """Return a hash of the bytes of a photo; that of "unreadable" for a file that is no photo."""
    try:
        data = stored_bytes(image)
    except CompoclipError:  # reading it for the model says why
        data = b"unreadable"
    return bytes_hash(data)


def require_readable(bad: Mapping[str, str], max_bad: int, remedy: str) -> None:
    """Raise CompoclipError for more than `max_bad` unreadable images: id of a sample -> reason."""
    if len(bad) > max_bad:
        first = "; ".join(list(dict.fromkeys(bad.values()))[:3])
        raise CompoclipError(
            f"{counted(len(bad), 'unreadable image')}, {max_bad} allowed: {first}; fix the data, "
            f"or {remedy}"
        )


def data_uri(image: Image.Image, kind: str, **options: Any) -> str:
    """Encode an image as a data URI. kind: "jpeg" or "png"; options: of Pillow's encoder."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


class _RefusedError(CompoclipError):
    """Why an image is not decoded; `opened` adds which one it is."""
