"""Names of images: which are read, and what is no name. Pillow is not imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec

from compoclip.errors import pip_install

_AVIF = find_spec("PIL._avif") is not None  # newer Pillows only
_HEIF_ENDINGS = ("heic", "heif", "hif")
HAS_HEIF = find_spec("pillow_heif") is not None  # the extra heic
#: Format, as Pillow names it -> endings of its files in small letters, that of new files first. All
#: are read by Pillow's own decoders; EPS and others that start a helper program stay out.
ENDINGS: Mapping[str, tuple[str, ...]] = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif", "mpo"),
    "PNG": ("png", "apng"),
    "WEBP": ("webp",),
    "BMP": ("bmp", "dib"),
    "GIF": ("gif",),
    "TIFF": ("tif", "tiff"),
    "PPM": ("ppm", "pgm", "pbm", "pnm"),
    "JPEG2000": ("jp2", "j2k", "jpx", "jpf", "j2c", "jpc"),
    **({"AVIF": ("avif", "avifs")} if _AVIF else {}),
    **({"HEIF": _HEIF_ENDINGS} if HAS_HEIF else {}),
}
FORMATS = tuple(ENDINGS)
#: Endings of images that are read, in small letters.
EXTENSIONS = frozenset(ending for endings in ENDINGS.values() for ending in endings)
#: Endings of images that are not read: there is no decoder, it starts another program, or grey
#: values have no black and white.
UNREAD = (
    frozenset((*_HEIF_ENDINGS, "avif", "avifs", "jxl", "bpg", "jxr", "wdp", "qoi"))
    | frozenset(("eps", "svg", "psd", "psb", "tga", "ico", "pcx", "xcf", "djvu", "exr", "hdr"))
    | frozenset(("dds", "icns", "sgi", "ras", "xbm", "xpm", "wmf", "emf", "fits"))
    | frozenset(("pfm", "dng", "cr2", "cr3", "nef", "arw", "orf", "raf", "rw2"))
) - EXTENSIONS


def is_read(name: str) -> bool:
    """Return whether a file of this name is an image that is read, by its ending."""
    return _ending(name) in EXTENSIONS


def why_unread(name: str) -> str:
    """Return why a file of this name is left out, if it is an image that is not read; else ""."""
    ending = _ending(name)
    return kind_unread(ending) if ending in UNREAD else ""


def kind_unread(ending: str) -> str:
    """Return the reason for leaving out an image of a kind that is not read, with its remedy."""
    remedy = f": {heif_remedy()}" if ending in _HEIF_ENDINGS else ""
    return f"image of a kind that is not read (.{ending}{remedy})"


@cache
def heif_remedy() -> str:
    """Return how to install what reads HEIC."""
    return pip_install("heic")


def _ending(name: str) -> str:
    stem, _, ending = name.rpartition("/")[2].rpartition(".")
    return ending.lower() if stem.strip(".") else ""


IMAGE_URI = re.compile(r"[\s\u200b-\u200d\u2060\ufeff]*data:image/[\w.+-]+;base64,", re.IGNORECASE)
"""The start of a data URI that holds an image in base64; a copied text may begin with blanks."""
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{100,}={0,2}\s*")  # a path has an ending


def is_encoded(text: str) -> bool:
    """Return whether a text is an image file in base64, rather than the path of one."""
    return bool(IMAGE_URI.match(text) or _BASE64.fullmatch(text))
