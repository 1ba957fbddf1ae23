"""Training sets of the world: webdataset shards with an image and its captions a sample."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, get_type_hints

from compoclip.console import counted, track
from compoclip.differences import differences_of, require_same
from compoclip.errors import CompoclipError
from compoclip.files import new_folder, read_json
from compoclip.models.config import sound
from compoclip.typed import read_fields, require_kind
from compoclip.workers import mapper
from compoclip_world.captions import CAPTION_TYPES, captions_for, weights_of
from compoclip_world.sampling import require_words, scene_for
from compoclip_world.scene import Scene, WorldConfig
from compoclip_world.vocabulary import frozen

RECORD = "world.json"
"""The file with the parameters of a training set."""
BASE = Path(__file__).parent / "base"
"""The bundled base model: an open_clip folder, and the world it was trained on."""


@dataclass(frozen=True)
class TrainingSet:
    """A training set to write: scenes 0 .. count-1 of a split, each with so many captions, in
    shards of so many samples.

    joined: the captions of a scene are the sentences of one long caption.
    """

    config: WorldConfig
    count: int
    seed: int = 0
    split: str = "train"
    captions: int = 5
    shard_size: int = 5000
    joined: bool = False


def write_training_set(out: Path, spec: TrainingSet, workers: int = 1) -> list[Path]:
    """Write `out`/SPLIT-000000.tar, ... and `out`/world.json (the parameters).

    A sample is KEY.png and KEY.json with {"caption": [...]}. The bytes depend on `spec` alone, not
    on `workers`. `out` appears when everything is written, or not at all. Returns the shards.
    Raises CompoclipError when `out` exists and is not empty, when it cannot be written, or when the
    config leaves too few scenes or captions.
    """
    starts, names = range(0, spec.count, spec.shard_size), _shards(spec)
    with new_folder(out) as folder:
        (folder / RECORD).write_text(json.dumps(asdict(spec), indent=1), encoding="utf-8")
        shards = [folder / name for name in names]
        with mapper(workers) as draw:
            jobs = draw(_write_shard, shards, starts, repeat(spec))
            for _ in track(jobs, "writing scenes", len(shards), "shards"):
                pass
    return [out / name for name in names]


def _shards(spec: TrainingSet) -> list[str]:
    return [f"{spec.split}-{i:06d}.tar" for i in range(-(-spec.count // spec.shard_size))]


def has_training_set(out: Path, spec: TrainingSet) -> bool:
    """Return whether a folder has the training set. Raises as `require_whole`."""
    there = (out / RECORD).is_file()
    if there:
        require_whole(out, read_json(out / RECORD), spec, _shards(spec))
    return there


def require_whole(out: Path, recorded: Any, spec: Any, names: Iterable[str]) -> None:
    """Raise UsageError for a folder of other parameters, CompoclipError where a file is missing.

    recorded: the parameters in the folder. spec: those that are wanted, a dataclass. names: files.
    """
    again, now = "remove the folder, and it is written again", asdict(spec)
    read_fields(recorded, dict.fromkeys(now, Any), str(out), again, others=False)
    require_same(out, differences_of(recorded, now), "is of other parameters", again)
    missing = [name for name in names if not (out / name).is_file()]
    if missing:
        files = counted(len(missing), "file")
        raise CompoclipError(f"{out}: {files} missing, such as {missing[0]}; {again}")


def png_bytes(scene: Scene, size: int) -> bytes:
    """The picture of a scene as a PNG file."""
    from PIL import Image  # with numpy, which a wrong configuration need not wait for

    from compoclip_world.render import render

    buffer = io.BytesIO()
    Image.fromarray(render(scene, size)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _write_shard(path: Path, start: int, spec: TrainingSet) -> None:
    from compoclip.archives import add_member

    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(start, min(start + spec.shard_size, spec.count)):
            scene = scene_for(spec.config, spec.seed, spec.split, index)
            captions = captions_for(scene, spec.config, spec.seed, index, spec.captions)
            texts = [caption.text for caption in captions]
            if spec.joined:
                texts = [" ".join(map(_sentence, texts))]
            add_member(tar, f"{index:08d}.png", png_bytes(scene, spec.config.size))
            add_member(tar, f"{index:08d}.json", json.dumps({"caption": texts}).encode())


def _sentence(text: str) -> str:
    """Return a caption with a capital and a full stop."""
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


# --- World configurations in JSON files: any fields of `WorldConfig`, the others at their
# default. ---

_CONFUSABLE = {
    "conjunction": 0.75,
    "relation": 0.1,
    "object": 0.05,
    "position": 0.05,
    "background": 0.05,
}


def bundled_world() -> WorldConfig:
    """The configuration that the bundled base model was trained on."""
    return read_world_config(BASE / "world.json")


def crowded(config: WorldConfig) -> WorldConfig:
    """Return the world that models are fine-tuned on, which differs from the base's as COCO does.

    Most scenes have two unlike things or more, and most captions name them together, each with its
    colour or another attribute; the rest are about relations, places and backgrounds. A
    kind with a rare name has that name in 60 % of its mentions.
    """
    weights = {**dict.fromkeys(CAPTION_TYPES, 0.0), **_CONFUSABLE}
    return replace(
        config,
        objects=(0.05, 0.75, 0.15, 0.05),
        unlike=True,
        repeat=0.0,
        same_colour=0.0,
        synonyms=0.0,
        rare=0.6,
        attributes=(0.0, 0.8, 0.2, 0.0),
        caption_weights=tuple(sorted(weights.items())),
    )


def examples(size: int) -> list[tuple[str, bytes]]:
    """Return captions with the pictures (PNG) of six scenes that models often mistake."""
    world = replace(crowded(bundled_world()), rare=0.0)
    order = (5, 0, 1, 2, 3, 4)  # first one of two objects whose colours can be exchanged
    scenes = [scene_for(world, 0, "test", index) for index in order]
    captions = [captions_for(scene, world, 0, i, 1)[0].text for i, scene in zip(order, scenes)]
    return [(text, png_bytes(scene, size)) for scene, text in zip(scenes, captions)]


def read_world_config(path: Path) -> WorldConfig:
    """The world that a JSON file describes, see `world_of`. Raises CompoclipError without it."""
    return world_of(read_json(path, damaged="fix the file"), str(path))


def world_of(data: Any, where: str) -> WorldConfig:
    """The world that a JSON object describes: any fields of `WorldConfig`, the others by default.

    Raises CompoclipError when it is malformed or names an unknown field, UsageError for a value out
    of range and for an unknown word.
    """
    kinds = get_type_hints(WorldConfig)
    if not isinstance(data, dict) or (unknown := sorted(set(data) - set(kinds))):
        named = f"unknown field '{unknown[0]}'" if isinstance(data, dict) else "not an object"
        raise CompoclipError(f"{where}: {named}; a world configuration has: {', '.join(kinds)}")
    values = {name: frozen(value) for name, value in data.items()}
    for name, value in values.items():
        if name != "caption_weights":  # pairs, which `WorldConfig` checks
            require_kind(f"{where}: '{name}'", value, kinds[name], "fix the file")
    with sound(where):
        config = WorldConfig(**values)
        require_words(config)
        weights_of(config)
    return config
