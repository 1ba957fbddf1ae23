"""Writes all benchmarks of the world as one suite: a list, data files, and each image once."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from itertools import repeat
from operator import call
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np

from compoclip.benchmarks.targets import SUITE, read_suite
from compoclip.bounds import MAX_MEMBER_BYTES
from compoclip.console import track
from compoclip.errors import CompoclipError, require
from compoclip.files import new_folder, parse_json, read_json_object, reason
from compoclip.typed import build
from compoclip.version import __version__
from compoclip.workers import mapper
from compoclip_world.dataset import png_bytes, require_whole
from compoclip_world.export import EXPORTERS, require_made
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.render import render
from compoclip_world.scene import Backdrop, Scene, Thing
from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    BACKDROP_TEXTURES,
    COLOURS,
    KINDS,
    PATTERNS,
    SIZES,
)

T = TypeVar("T")

EDITION = "world"
SCENES = "scenes.json.gz"
"""The scene behind every picture of a suite, by path; what the bounds ask (`world.bounds`)."""
Builder = Callable[[SuiteSpec], list[Part]]


BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {name: resolve_name(f"{__package__}.{place}") for name, place in EXPORTERS.items()}
)
"""Benchmark -> the exporter that makes it."""
AGAIN = "write the suite anew"
_WORDS: Mapping[type, Mapping[str, Collection[str]]] = {
    Thing: {"kind": KINDS, "colour": COLOURS, "size": SIZES, "pattern": PATTERNS},
    Backdrop: {"colour": BACKDROP_COLOURS, "texture": BACKDROP_TEXTURES},
}
"""Of the rows of scenes: field -> what it may be."""
_CHUNK = 100
Chunk = list[tuple[str, Scene]]


def write_suite(
    out: Path,
    spec: SuiteSpec,
    workers: int = 1,
    benchmarks: Sequence[str] = (),
    builders: Mapping[str, Builder] = BUILDERS,
) -> list[Part]:
    """Write benchmarks of the world below a new folder; return the parts as `suite.json` has them.

    The bytes depend on `spec` and `benchmarks` alone, not on `workers`. The folder appears when
    everything is written, or not at all. benchmarks: which of `builders` to make, all when empty;
    those that share an exporter come together. Raises UsageError for an unknown benchmark,
    CompoclipError when `out` exists and is not empty, when it cannot be written, or when the config
    leaves too few items.
    """
    require_made(benchmarks, builders)
    wanted = dict.fromkeys(
        builders[name] for name in builders if name in benchmarks or not benchmarks
    )
    with new_folder(out) as folder, mapper(workers) as run:
        parts: list[Part] = []
        for exported in track(run(call, wanted, repeat(spec)), "making items", len(wanted)):
            parts += exported
        parts.sort(key=lambda part: part.id)
        shown = {path: scene for part in parts for path, scene in part.images.items()}
        images = sorted(shown.items())
        listed = [
            {"name": part.spec, "id": part.id, "root": ".", "options": dict(part.options)}
            for part in parts
        ]
        made_by = {"compoclip": __version__, **asdict(spec)}
        files = {path: value for part in parts for path, value in part.files.items()} | {
            SUITE: {"name": EDITION, "made_by": made_by, "benchmarks": listed},
            "edition.json": {"edition": EDITION},
            SCENES: {path: astuple(scene) for path, scene in images},
        }
        for path, value in files.items():
            _write(folder / path, _encode(path, value))
        chunks = [images[i : i + _CHUNK] for i in range(0, len(images), _CHUNK)]
        jobs = run(_draw, repeat(folder), chunks, repeat(spec.config.size))
        for _ in track(jobs, "drawing images", len(chunks), f"times {_CHUNK}"):
            pass
    return parts


def has_suite(out: Path, spec: SuiteSpec) -> bool:
    """Return whether a folder has the suite. Raises as `dataset.require_whole`."""
    there = (out / SUITE).is_file()
    if there:
        read_suite(out / SUITE)  # which refuses unknown fields
        recorded = dict(read_json_object(out / SUITE, damaged=AGAIN).get("made_by") or {})
        recorded.pop("compoclip", None)
        require_whole(out, recorded, spec, read_scenes(out))
    return there


def read_scenes(suite: Path) -> dict[str, Scene]:
    """The scenes behind a suite's pictures, by the path of the picture below the folder.

    Raises CompoclipError when the file of scenes is missing or damaged.
    """
    path = suite / SCENES
    try:
        with gzip.open(path) as file:
            content = file.read(MAX_MEMBER_BYTES + 1)
        if len(content) > MAX_MEMBER_BYTES:
            raise ValueError(f"unpacks to more than {MAX_MEMBER_BYTES:,} bytes")
        return {
            name: Scene(
                tuple(_of_row(Thing, thing, path) for thing in things),
                _of_row(Backdrop, backdrop, path),
            )
            for name, (things, backdrop) in parse_json(content.decode()).items()
        }
    except (OSError, EOFError, ValueError, TypeError, AttributeError, zlib.error) as error:
        raise CompoclipError(f"{path}: missing or damaged ({reason(error)}); {AGAIN}") from error


def _of_row(kind: type[T], row: list[Any], path: Path) -> T:
    """Return a thing or a backdrop of a list of its fields, in the words of the world."""
    values = dict(zip((field.name for field in fields(cast(Any, kind))), row))
    if len(values) < len(row):
        raise ValueError(f"more than the {len(values)} fields of a {kind.__name__}")
    part: T = build(kind, values, str(path), AGAIN)
    for name, words in _WORDS[kind].items():
        require(getattr(part, name) in words, path, f"unknown {name}; {AGAIN}")
    return part


def _encode(path: str, value: Any) -> bytes:
    if path.endswith(".gz"):
        return gzip.compress(json.dumps(value, separators=(",", ":")).encode(), mtime=0)
    if path.endswith(".jsonl"):
        return "".join(json.dumps(row) + "\n" for row in value).encode()
    if path.endswith(".txt"):
        return "".join(f"{line}\n" for line in value).encode()
    if path.endswith(".csv"):
        text = io.StringIO()
        table = csv.DictWriter(text, list(value[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(value)
        return text.getvalue().encode()
    return (json.dumps(value, indent=1) + "\n").encode()


def _draw(folder: Path, chunk: Chunk, size: int) -> None:
    """Write PNGs, or for .npy arrays with blue first, as EqBen stores video frames."""
    for path, scene in chunk:
        data = png_bytes(scene, size)
        if path.endswith(".npy"):
            buffer = io.BytesIO()
            np.save(buffer, np.ascontiguousarray(render(scene, size)[:, :, ::-1]))
            data = buffer.getvalue()
        _write(folder / path, data)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
