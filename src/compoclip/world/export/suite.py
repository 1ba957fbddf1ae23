"""Writes all benchmarks of the world as one suite: a list, data files, and each image once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from compoclip import __version__
from compoclip.console import track
from compoclip.files import new_folder
from compoclip.world.dataset import png_bytes
from compoclip.world.export import aro, hard_positives, pairs, retrieval, sugarcrepe, zero_shot
from compoclip.world.export.part import Part, SuiteSpec
from compoclip.world.scene import Scene

EDITION = "world"
BUILDERS: tuple[Callable[[SuiteSpec], list[Part]], ...] = (
    sugarcrepe.build,
    retrieval.build,
    pairs.build,
    hard_positives.build,
    aro.build,
    zero_shot.build,
)
"""All exporters, the slowest first."""
_CHUNK = 100
Chunk = list[tuple[str, Scene]]


def write_suite(out: Path, spec: SuiteSpec, workers: int = 1) -> list[Part]:
    """Write the suite below the new folder `out`; returns its parts as listed in `suite.json`.

    The bytes depend on `spec` alone, not on `workers`. `out` appears when everything is written,
    or not at all. Raises CompoclipError when it exists and is not empty, when it cannot be
    written, or when the config leaves too few items.
    """
    with new_folder(out) as folder, _mapper(workers) as each:
        parts: list[Part] = []
        for made in track(each(_build, BUILDERS, repeat(spec)), "making items", len(BUILDERS)):
            parts += made
        parts.sort(key=lambda part: part.id)
        for path, value in _files(parts, spec).items():
            _write(folder / path, _encode(path, value))
        chunks = _chunks(parts)
        jobs = each(_draw, repeat(folder), chunks, repeat(spec.config.size))
        for _ in track(jobs, "drawing images", len(chunks), f"times {_CHUNK}"):
            pass
    return parts


def _build(builder: Callable[[SuiteSpec], list[Part]], spec: SuiteSpec) -> list[Part]:
    return builder(spec)


def _files(parts: Sequence[Part], spec: SuiteSpec) -> dict[str, Any]:
    """All data files: those of the parts, the suite's list and the edition mark."""
    files: dict[str, Any] = {}
    for part in parts:
        files |= part.files
    suite = {
        "name": EDITION,
        "made_by": {"compoclip": __version__, **asdict(spec)},
        "benchmarks": [
            {"name": part.spec, "id": part.id, "root": ".", "options": dict(part.options)}
            for part in parts
        ],
    }
    return {**files, "suite.json": suite, "edition.json": {"edition": EDITION}}


def _encode(path: str, value: Any) -> bytes:
    if path.endswith(".jsonl"):
        return "".join(json.dumps(row) + "\n" for row in value).encode()
    return (json.dumps(value, indent=1) + "\n").encode()


def _chunks(parts: Sequence[Part]) -> list[Chunk]:
    """All distinct images in runs of a hundred."""
    images: dict[str, Scene] = {}
    for part in parts:
        images |= part.images
    ordered = sorted(images.items())
    return [ordered[i : i + _CHUNK] for i in range(0, len(ordered), _CHUNK)]


def _draw(folder: Path, chunk: Chunk, size: int) -> None:
    for path, scene in chunk:
        _write(folder / path, png_bytes(scene, size))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@contextmanager
def _mapper(workers: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """`map`, in this process or over several."""
    if workers < 2:
        yield map
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield pool.map
