"""Training sets of the world: webdataset shards with an image and its captions a sample."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

from PIL import Image

from compoclip.console import track
from compoclip.files import new_folder
from compoclip.world.captions import captions_for
from compoclip.world.processes import mapper
from compoclip.world.render import render
from compoclip.world.sampling import scene_for
from compoclip.world.scene import Scene, WorldConfig


@dataclass(frozen=True)
class TrainingSet:
    """What to write: scenes 0 .. count-1 of a split, each with `captions` captions."""

    config: WorldConfig
    count: int
    seed: int = 0
    split: str = "train"
    captions: int = 5
    shard_size: int = 5000


def write_training_set(out: Path, spec: TrainingSet, workers: int = 1) -> list[Path]:
    """Write `out`/SPLIT-000000.tar, ... and `out`/world.json (the parameters); returns the shards.

    A sample is KEY.png and KEY.json with {"caption": [...]}. The bytes depend on `spec` alone, not
    on `workers`. `out` appears when everything is written, or not at all. Raises CompoclipError
    when it exists and is not empty, when it cannot be written, or when the config leaves too few
    scenes or captions.
    """
    starts = range(0, spec.count, spec.shard_size)
    names = [f"{spec.split}-{i:06d}.tar" for i in range(len(starts))]
    record = {
        "config": asdict(spec.config),
        **{k: v for k, v in asdict(spec).items() if k != "config"},
    }
    with new_folder(out) as folder:
        (folder / "world.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
        shards = [folder / name for name in names]
        with mapper(workers) as draw:
            jobs = draw(_write_shard, shards, starts, repeat(spec))
            for _ in track(jobs, "writing scenes", len(shards), "shards"):
                pass
    return [out / name for name in names]


def png_bytes(scene: Scene, size: int) -> bytes:
    """The image of a scene as PNG, `size` pixels a side."""
    buffer = io.BytesIO()
    Image.fromarray(render(scene, size)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _write_shard(path: Path, start: int, spec: TrainingSet) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(start, min(start + spec.shard_size, spec.count)):
            scene = scene_for(spec.config, spec.seed, spec.split, index)
            captions = captions_for(scene, spec.config, spec.seed, index, spec.captions)
            texts = json.dumps({"caption": [c.text for c in captions]}).encode()
            key = f"{index:08d}"
            image = png_bytes(scene, spec.config.size)
            for name, data in ((f"{key}.png", image), (f"{key}.json", texts)):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    path.write_bytes(buffer.getvalue())
