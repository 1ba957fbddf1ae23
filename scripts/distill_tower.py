"""Distil the image tower of the bundled base into a ViT with 4 x 4 patches, on scenes drawn for it.

    python scripts/distill_tower.py --model recipes/base/vit.json \
        --world recipes/base/world.json --steps 8000 --out WORK/vit

The ViT learns the unit-length embedding of the convolutional tower, and for each patch what the
tower's attention pool gives of that place alone: its last stage is read before it halves the
picture, which takes no further training. The text tower is the base's, so that OUT/model is whole.
A stopped run goes on from OUT/state.pt. OUT/log.jsonl has the mean cosines to the targets.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pretrain_image_tower import inputs, learning_rate, optimiser_of, read_options
from torch import Tensor, nn

import compoclip
from compoclip.console import end_with
from compoclip.files import replacing
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import read_config
from compoclip.models.image_tower import ImageTower
from compoclip.workers import mapper
from compoclip_world.dataset import read_world_config
from compoclip_world.render import render
from compoclip_world.sampling import scene_for
from compoclip_world.scene import WorldConfig

HELD_OUT, PART = 1000, 250  # scenes of split "val"; scenes that a process draws at a time
SEED = 1  # of scenes: not those that the base's text tower has learnt from
Pixels = NDArray[np.uint8]


def draw(config: WorldConfig, split: str, start: int) -> Pixels:
    """(PART, size, size, 3) pixels."""
    scenes = (scene_for(config, SEED, split, start + i) for i in range(PART))
    return np.stack([render(scene, config.size) for scene in scenes])


def draw_all(config: WorldConfig, split: str, count: int, workers: int) -> Pixels:
    """The first `count` scenes of a split."""
    with mapper(workers) as each:
        parts = each(draw, repeat(config), repeat(split), range(0, count, PART))
        return np.concatenate(list(parts))


@torch.no_grad()
def targets(tower: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Unit-length (B, D) embeddings and (B, 16, D) embeddings of places, of a ModifiedResNet."""
    x = tower.layer3(tower.layer2(tower.layer1(tower.stem(pixels))))
    pooled = tower.attnpool(tower.layer4(x))
    (block,) = tower.layer4  # without its two poolings, which halve the picture
    fine = block.act2(block.bn2(block.conv2(block.act1(block.bn1(block.conv1(x))))))
    fine = block.act3(block.bn3(block.conv3(fine)) + block.downsample[1:](x))
    pool = tower.attnpool
    places = pool.positional_embedding[1:].T.unflatten(1, (2, 2))
    fine = fine + F.interpolate(places[None], fine.shape[2:], mode="nearest")
    rows = pool.c_proj(pool.v_proj(fine.flatten(2).transpose(1, 2).contiguous()))
    return F.normalize(pooled, dim=-1), F.normalize(rows, dim=-1)


def sines(side: int, width: int) -> Tensor:
    """(1 + side^2, width): zeros for the class token, sines and cosines of both coordinates."""
    rate = 0.01 ** (torch.arange(width // 4) * 4 / width)
    y, x = torch.meshgrid(*[torch.arange(side).float()] * 2, indexing="ij")
    waves = [f(c.flatten()[:, None] * rate) for c in (x, y) for f in (torch.sin, torch.cos)]
    return torch.cat([torch.zeros(1, width), torch.cat(waves, 1)])


def main(argv: list[str] | None = None) -> int:
    """Train, or go on; write the model."""
    numbers = (
        ("steps", 8000, "steps in all"),
        ("warmup", 300, "steps"),
        ("scenes", 96_000, "scenes, each also mirrored"),
        ("save-every", 500, "steps"),
    )
    distil(read_options(__doc__, numbers, argv))
    return 0


def distil(options: argparse.Namespace) -> None:
    """Run `options.steps` steps, from the last saved state where there is one."""
    base = compoclip.load("bundled").loaded
    config = replace(read_world_config(options.world), size=base.preprocess.size[0])
    made = create_model(read_config(options.model), seed=0)
    network: Any = made.encoder.model
    teacher: Any = base.encoder.model.visual
    student, view = network.visual, ImageTower(network)
    with torch.no_grad():
        student.positional_embedding.copy_(0.5 * sines(4, student.positional_embedding.shape[1]))
    teacher.eval().to(memory_format=torch.channels_last)

    def cosines(pixels: Pixels) -> tuple[Tensor, Tensor]:
        """Mean cosine of embeddings to their targets, and of patches to theirs."""
        planes = inputs(pixels, base.preprocess)
        with torch.autocast("cpu", torch.bfloat16):
            taught = targets(teacher, planes)
            learnt = view.work(planes, patches=True).all()
        assert learnt.patches is not None
        embeddings = F.cosine_similarity(learnt.pooled.float(), taught[0].float(), dim=-1)
        patches = F.cosine_similarity(learnt.patches.float(), taught[1].float(), dim=-1)
        return embeddings.mean(), patches.mean()

    optimiser = optimiser_of(student, options.lr, 0.05)
    options.out.mkdir(parents=True, exist_ok=True)
    state, log = options.out / "state.pt", options.out / "log.jsonl"
    first = 0
    if state.exists():
        saved = torch.load(state, weights_only=True)
        student.load_state_dict(saved["student"])
        optimiser.load_state_dict(saved["optimiser"])
        first = saved["step"]
    scenes = draw_all(config, "train", options.scenes, options.workers)
    held_out = draw_all(config, "val", HELD_OUT, options.workers)
    student.train()
    for step in range(first, options.steps):
        rng = np.random.default_rng([0, step])
        batch = scenes[rng.integers(0, len(scenes), options.batch_size)]
        mirrored = rng.random(len(batch)) < 0.5
        batch[mirrored] = batch[mirrored][:, :, ::-1]
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, options.steps, options.lr, options.warmup)
        pooled, patches = cosines(batch)
        optimiser.zero_grad()
        loss: Any = 2 - pooled - patches
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimiser.step()
        done = step + 1
        if done % options.save_every == 0 or done == options.steps:
            with torch.no_grad():
                parts = [cosines(part) for part in np.split(held_out, HELD_OUT // PART)]
            mean_of = [round(float(torch.stack(each).mean()), 4) for each in zip(*parts)]
            record = {"step": done, "embeddings": mean_of[0], "patches": mean_of[1]}
            kept = {"student": student.state_dict(), "optimiser": optimiser.state_dict()}
            with replacing(state) as file:
                torch.save({**kept, "step": done}, file)
            with log.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)
    known = base.encoder.model.state_dict()
    texts = {name: value for name, value in known.items() if not name.startswith("visual.")}
    network.load_state_dict(network.state_dict() | texts)
    save_model(made, options.out / "model")


if __name__ == "__main__":
    end_with(main, "distill_tower")
