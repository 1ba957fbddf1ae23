"""Writes all benchmarks of the world as one suite: a list, data files, and each image once."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from itertools import repeat
from operator import call
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from compoclip.console import track
from compoclip.errors import CompoclipError, UsageError, closest
from compoclip.files import new_folder, reason
from compoclip.version import __version__
from compoclip.workers import mapper
from compoclip_world.dataset import png_bytes
from compoclip_world.export import aro, confusable, pairs, retrieval, sugarcrepe
from compoclip_world.export.part import Part, Photos, SuiteSpec
from compoclip_world.render import render
from compoclip_world.sampling import NOVEL_ATTRIBUTE, generator, held_out_attributes
from compoclip_world.scene import Backdrop, Scene, Thing
from compoclip_world.vocabulary import PATTERNS, can_show, with_article

# --- The zero-shot sets. ---

_FIRST_SLOT = 10
_TEMPLATES = ("{}", "there is {}", "a picture of {}", "an image of {}", "a drawing of {}")


def zero_shot(spec: SuiteSpec) -> list[Part]:
    """The world's zero-shot sets: one thing a picture, to be told by kind, by colour, or by both.

    Sets `kinds`, `colours`, `compounds` (seen in training), `novel-compounds` (not seen) and
    `looks` (by kind, colour and pattern, at most two classes per wanted item).

    The two compound sets have equally many classes. The classes of a set share half the wanted
    number of items, since every item is a picture of its own.
    """
    kinds = spec.config.known_kinds
    colours = spec.config.known_colours
    held = sorted(
        (c, k) for c, k in held_out_attributes(spec.config) if c in colours and k in kinds
    )
    seen = [(c, k) for c in colours for k in kinds if (c, k) not in set(held)]
    generator("zero-shot", spec.seed).shuffle(seen)
    parts = []
    for slot, (name, values, templates) in enumerate(
        (("kinds", kinds, _TEMPLATES), ("colours", colours, [f"the {k} is {{}}" for k in kinds]))
    ):
        shapes: dict[str, dict[str, Any]] = {each: {name: (each,)} for each in values}
        names = {each: with_article(each) if name == "kinds" else each for each in values}
        what = "kinds of thing" if name == "kinds" else name
        about = f"which of {len(values)} {what}"
        parts.append(_classes(spec, name, slot, shapes, names, templates, about))
    for slot, name, compounds, seenness in (
        (2, "compounds", sorted(seen[: len(held) or None]), "seen in training"),
        (3, "novel-compounds", held, "never seen in training"),
    ):
        if compounds:
            about = f"which of {len(compounds)} colours with kinds {seenness}"
            novel = NOVEL_ATTRIBUTE if name.startswith("novel") else ""
            shapes = {f"{c}_{k}": _only(c, k) for c, k in compounds}
            names = {f"{c}_{k}": with_article(f"{c} {k}") for c, k in compounds}
            parts.append(_classes(spec, name, slot, shapes, names, _TEMPLATES, about, novel))
    looks = [
        (pattern, *each)
        for pattern in PATTERNS
        for each in seen
        if pattern != "plain" and can_show(each[1], "large")
    ]
    generator("looks", spec.seed).shuffle(looks)
    looks = sorted(looks[: 2 * spec.items])
    shapes = {"_".join(each): _only(each[1], each[2], patterned=1.0) for each in looks}
    names = {"_".join(each): with_article(" ".join(each)) for each in looks}
    about = f"which of {len(looks)} patterns, colours and kinds"
    part = _classes(spec, "looks", 4, shapes, names, _TEMPLATES, about)
    images = {
        path: _patterned(scene, Path(path).parent.name.split("_")[0])
        for path, scene in part.images.items()
    }
    return [*parts, replace(part, images=images)]


def _only(colour: str, kind: str, **others: Any) -> dict[str, Any]:
    return {"colours": (colour,), "kinds": (kind,), **others}


def _patterned(scene: Scene, pattern: str) -> Scene:
    return replace(scene, things=(replace(scene.things[0], pattern=pattern),))


def _classes(
    spec: SuiteSpec,
    name: str,
    slot: int,
    shapes: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    templates: Sequence[str],
    about: str,
    split: str = "",
) -> Part:
    """One folder of classes. shapes: class directory -> what its scenes are limited to."""
    folder = f"elevater/{name}"
    images: dict[str, Scene] = {}
    first = 0
    for k, (directory, shape) in enumerate(shapes.items()):
        share = max(1, (spec.items // 2 + k) // len(shapes))
        single: dict[str, Any] = {"objects": (1.0,), **shape}
        pool = Photos(spec, f"{folder}/{directory}", _FIRST_SLOT + slot, single, split)
        images |= pool.chosen(range(first, first + share))
        first += share
    return Part(
        f"zero_shot:{name}",
        f"world-zero-shot-{name}",
        {f"{folder}/index.json": dict(names), f"{folder}/templates.json": list(templates)},
        images,
        {"zero_shot": len(images)},
        {"zero_shot": about},
    )


# --- The suite. ---

EDITION = "world"
SCENES = "scenes.json.gz"
"""The scene behind every picture of a suite, by path; what the bounds ask (`world.bounds`)."""
Builder = Callable[[SuiteSpec], list[Part]]
BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "sugarcrepe": sugarcrepe.build,
        "sugarcrepe_pp": sugarcrepe.build,
        "sugarcrepe_pp_tot": sugarcrepe.build,
        "retrieval": retrieval.build,
        "confusable": confusable.build,
        "winoground": pairs.build,
        "foils": pairs.build,
        "hard_positives": aro.hard_positives_build,
        "aro": aro.build,
        "zero_shot": zero_shot,
    }
)
"""Benchmark -> the exporter that makes it, the slowest first. Every skill is tested by one: what no
official format asks for is in `foils`, one file of captions and foils a task."""
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
    for name in benchmarks:
        if name not in builders:
            raise UsageError(
                f"world: no benchmark {name!r} is made here; {closest(name, builders)}"
            )
    wanted = dict.fromkeys(
        builders[name] for name in builders if name in benchmarks or not benchmarks
    )
    with new_folder(out) as folder, mapper(workers) as each:
        parts: list[Part] = []
        for made in track(each(call, wanted, repeat(spec)), "making items", len(wanted)):
            parts += made
        parts.sort(key=lambda part: part.id)
        shown = {path: scene for part in parts for path, scene in part.images.items()}
        images = sorted(shown.items())
        listed = [
            {"name": part.spec, "id": part.id, "root": ".", "options": dict(part.options)}
            for part in parts
        ]
        made_by = {"compoclip": __version__, **asdict(spec)}
        files = {path: value for part in parts for path, value in part.files.items()} | {
            "suite.json": {"name": EDITION, "made_by": made_by, "benchmarks": listed},
            "edition.json": {"edition": EDITION},
            SCENES: {path: astuple(scene) for path, scene in images},
        }
        for path, value in files.items():
            _write(folder / path, _encode(path, value))
        chunks = [images[i : i + _CHUNK] for i in range(0, len(images), _CHUNK)]
        jobs = each(_draw, repeat(folder), chunks, repeat(spec.config.size))
        for _ in track(jobs, "drawing images", len(chunks), f"times {_CHUNK}"):
            pass
    return parts


def read_scenes(suite: Path) -> dict[str, Scene]:
    """The scenes behind a suite's pictures, by the path of the picture below the folder.

    Raises CompoclipError when the file of scenes is missing or damaged.
    """
    path = suite / SCENES
    try:
        rows = json.loads(gzip.decompress(path.read_bytes()))
        return {
            name: Scene(tuple(Thing(*thing) for thing in things), Backdrop(*backdrop))
            for name, (things, backdrop) in rows.items()
        }
    except (OSError, EOFError, ValueError, TypeError, AttributeError, zlib.error) as error:
        raise CompoclipError(
            f"{path}: missing or damaged ({reason(error)}); write the suite anew"
        ) from error


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
