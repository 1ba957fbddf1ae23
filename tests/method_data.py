"""World data in the forms that the recipes read, a tiny model, and how each recipe is run on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from compoclip.losses.rows import OnlyKinds
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe, method_names
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import read_config
from compoclip_world.captions import captions_for
from compoclip_world.dataset import png_bytes
from compoclip_world.sampling import scene_for
from compoclip_world.scene import WorldConfig
from train_helpers import write_config

SCENES = 40
STEPS = 30
WORLD = WorldConfig(size=32)

PLAIN = "plain.jsonl"
RUNS = Path(__file__).with_name("method_runs")


def run_of(method: str) -> dict[str, Any]:
    """How a recipe is run where it needs data or options of its own: method_runs/METHOD.json.

    "world": its file of `write_world`, and options without which it cannot train on so little.
    "photos": options in the place of columns that captioned photos do not have, null where nothing
    can be; "photos_name": what the run is called then. "kept": options without which its images
    cannot be cached as features.
    """
    path = RUNS / f"{method}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return {"world": [PLAIN], "photos": [], "photos_name": method, "kept": [], **found}


@cache
def differing() -> tuple[str, ...]:
    """Recipes that together have every part that any recipe has, for tests of what is the same for
    all: losses and their settings, plans of images and texts, passes, heads, what trains."""
    return _covering(lambda method: _image_parts(method) | _text_parts(method))


@cache
def differing_in_images() -> tuple[str, ...]:
    """Recipes that together use images in every way that any recipe does."""
    return _covering(_image_parts)


def _covering(parts_of: Callable[[Method], set[str]]) -> tuple[str, ...]:
    """A few recipes that together have all parts."""
    left = {name: parts_of(load_recipe(name)()) for name in method_names()}
    chosen: list[str] = []
    while any(left.values()):
        chosen.append(max(left, key=lambda name: len(left[name])))
        covered = left[chosen[-1]]
        left = {name: parts - covered for name, parts in left.items()}
    return tuple(chosen)


def _image_parts(method: Method) -> set[str]:
    parts = {type(part).__name__ for part in (method.images, *method.passes)}
    for name in ("lora", "teacher", "heads"):
        parts.add(f"{name} {bool(getattr(method, name))}")
    parts.add(f"local {any(term.needs_local for term in method.losses)}")
    return parts | {f"matrix {method.trains.matrix}"}


def _text_parts(method: Method) -> set[str]:
    parts = {type(text).__name__ for text in method.plan.texts}
    for term in method.losses:
        loss: Any = term.loss
        while isinstance(loss, partial | OnlyKinds):
            parts.update(loss.keywords if isinstance(loss, partial) else [type(loss).__name__])
            loss = loss.func if isinstance(loss, partial) else loss.loss
        parts.add(getattr(loss, "__name__", type(loss).__name__))
    return parts


def write_world(folder: Path, merges: int | None = None) -> Path:
    """Images and tables of `SCENES` scenes, bags, and a tiny checkpoint `base`; returns `folder`.

    plain.jsonl: three captions an image. pairs.jsonl: with a caption of the next scene, and an
    image of it that no sample has, as negatives. mirrored.jsonl: the same captions, and the image
    itself mirrored. near.tsv: NegCLIP's columns. groups.jsonl: 8 groups of 2 and 24 ordinary pairs.

    merges: of the checkpoint's tokenizer (`write_config`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    scenes = [scene_for(WORLD, 0, "train", i) for i in range(SCENES)]
    captions = [
        [caption.text for caption in captions_for(scene, WORLD, 0, i, 3)]
        for i, scene in enumerate(scenes)
    ]
    tables: dict[str, list[str]] = {PLAIN: [], "pairs.jsonl": [], "mirrored.jsonl": []}
    tables["groups.jsonl"] = []
    near = ["\ttitle\tfilepath\tneg_caption\tneg_image"]
    bags = []
    for i, (scene, texts) in enumerate(zip(scenes, captions)):
        name, after = f"{i}.png", (i + 1) % SCENES
        (folder / name).write_bytes(png_bytes(scene, WORLD.size))
        (folder / f"wrong-{i}.png").write_bytes(png_bytes(scenes[after], WORLD.size))
        row = {"image": name, "caption": texts}
        wrong = {"neg_caption": captions[after][0], "neg_image": f"wrong-{i}.png"}
        group = {"group": f"object {i // 2}" if i < 16 else "", "score": float(i % 3 + 1)}
        tables[PLAIN].append(json.dumps(row))
        tables["pairs.jsonl"].append(json.dumps({**row, **wrong}))
        turned = {"neg_caption": captions[after][0], "mirror": True}
        tables["mirrored.jsonl"].append(json.dumps({**row, **turned}))
        tables["groups.jsonl"].append(json.dumps({**row, **group}))
        rows = [after, (i + 2) % SCENES, (i + 3) % SCENES]
        near.append(f"{i}\t{texts[0]}\t{name}\t{[captions[after][1]]!r}\t{rows}")
        if i % 4:  # some images have no bag
            bags.append(json.dumps({"id": name, "sentences": [*texts, f"there is {texts[0]}"]}))
    for name, lines in {**tables, "near.tsv": near, "bags.jsonl": bags}.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    config = read_config(write_config(folder / "config.json", merges=merges))
    save_model(create_model(config, seed=1), folder / "base", provenance={})
    return folder


def arguments(folder: Path, method: str, out: Path, *more: str) -> list[str]:
    """The command line that trains a recipe for 30 steps on world data.

    Whether it finds negatives is not tried first: that rewrites more captions than a short run.
    """
    data, *special = run_of(method)["world"]
    special = [option.replace("bags.jsonl", str(folder / "bags.jsonl")) for option in special]
    return [
        "train",
        method,
        f"--model={folder / 'base'}",
        f"--data={folder / data}",
        f"--out={out}",
        "--batch-size=8",
        "--epochs=6",
        "--lr=1e-3",
        "--warmup=3",
        "--set=log_every=1",
        "--set=save_every=0",
        "--set=allow_no_negatives=true",
        "--device=cpu",
        *special,
        *more,
    ]
