"""Train an image tower to know what is in a picture of the world, before it has seen a caption.

    python scripts/pretrain_image_tower.py --model recipes/base/model.json \
        --world recipes/base/world.json --steps 6000 --out WORK/tower

The pooled embedding, at unit length as CLIP has it, is asked questions by linear heads: which
kinds, colours, sizes and patterns there are, which of them belong to one thing, where kinds and
colours are, what is related to something, how many things there are, and the background. So the
embedding carries how things are composed, whatever a text tower learns to ask of it afterwards.

Every step draws new scenes: scene i of split "train" is a function of the seed and i. A run that
was stopped goes on from OUT/state.pt and ends with the same weights. OUT/tower.safetensors is for
`compoclip train --from-scratch --image-weights`; OUT/log.jsonl holds losses and held-out accuracy.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from compoclip.console import end_with
from compoclip.data.transform import normalised
from compoclip.files import replacing
from compoclip.models.checkpoint import create_model
from compoclip.models.config import read_config
from compoclip.models.preprocess import Preprocess
from compoclip.workers import mapper
from compoclip_world.dataset import read_world_config
from compoclip_world.geometry import related
from compoclip_world.render import render
from compoclip_world.sampling import scene_for
from compoclip_world.scene import Scene, Thing, WorldConfig
from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    BACKDROP_TEXTURES,
    COLOURS,
    KINDS,
    PATTERNS,
    SIZES,
)

KIND, COLOUR, SIZE, PATTERN = (list(words) for words in (KINDS, COLOURS, SIZES, PATTERNS))
BACKDROP, TEXTURE = list(BACKDROP_COLOURS), list(BACKDROP_TEXTURES)
HELD_OUT = 2000  # scenes of split "val" that a saved state is asked about
SIDES = ("left", "right", "top", "bottom")
RELATIONS = ("left", "right", "above", "below", "inside", "around", "front", "behind")
_EDGE = 0.08  # a thing is on a side when its centre is at least this far from the middle
_SHARP = 60.0  # the embedding's length before the heads, at the start
_SPREAD = 0.005  # of the heads' first weights: answers begin undecided

Answers = NDArray[np.uint8]


@dataclass(frozen=True)
class Question:
    """What the embedding is asked. weight: of its loss. one: exactly one answer is right."""

    answers: int
    weight: float = 1.0
    one: bool = False


QUESTIONS = {
    "kind": Question(len(KIND), 4),
    "colour": Question(len(COLOUR), 2),
    "size": Question(len(SIZE)),
    "pattern": Question(len(PATTERN)),
    "colour of kind": Question(len(COLOUR) * len(KIND), 4),
    "size of kind": Question(len(SIZE) * len(KIND), 2),
    "pattern of kind": Question(len(PATTERN) * len(KIND), 2),
    "side of kind": Question(len(SIDES) * len(KIND), 3),
    "side of colour": Question(len(SIDES) * len(COLOUR), 2),
    "relation of kind": Question(len(RELATIONS) * len(KIND), 2),
    "several of kind": Question(3 * len(KIND), 2),
    "several of colour": Question(3 * len(COLOUR)),
    "count": Question(4, one=True),
    "backdrop": Question(len(BACKDROP), one=True),
    "texture": Question(len(TEXTURE), one=True),
}


def on_side(thing: Thing, side: str) -> bool:
    """Whether the thing's centre is clearly on that side of the picture's middle."""
    along = thing.x if side in ("left", "right") else thing.y
    sign = -1 if side in ("left", "top") else 1
    return sign * (along - 0.5) >= _EDGE


def answers_of(scene: Scene) -> dict[str, list[int]]:
    """Question -> the answers that are right of the scene."""
    things, kinds = scene.things, len(KIND)
    found: dict[str, list[int]] = {name: [] for name in QUESTIONS}
    for thing in things:
        kind, colour = KIND.index(thing.kind), COLOUR.index(thing.colour)
        found["kind"].append(kind)
        for name, words in (("colour", COLOUR), ("size", SIZE), ("pattern", PATTERN)):
            value = words.index(getattr(thing, name))
            found[name].append(value)
            found[f"{name} of kind"].append(value * kinds + kind)
        for place, side in enumerate(SIDES):
            if on_side(thing, side):
                found["side of kind"].append(place * kinds + kind)
                found["side of colour"].append(place * len(COLOUR) + colour)
        for place, name in enumerate(RELATIONS):
            if any(other is not thing and related(name, thing, other) for other in things):
                found["relation of kind"].append(place * kinds + kind)
        for name, value, words in (("kind", kind, KIND), ("colour", colour, COLOUR)):
            alike = sum(getattr(other, name) == getattr(thing, name) for other in things)
            if alike > 1:
                found[f"several of {name}"].append((alike - 2) * len(words) + value)
    found["count"].append(len(things) - 1)
    found["backdrop"].append(BACKDROP.index(scene.backdrop.colour))
    found["texture"].append(TEXTURE.index(scene.backdrop.texture))
    return found


def draw(
    config: WorldConfig, seed: int, split: str, start: int, count: int
) -> tuple[NDArray[np.uint8], dict[str, Answers]]:
    """Pixels (count, size, size, 3) of scenes `start` on, and 0 or 1 for every answer."""
    scenes = [scene_for(config, seed, split, start + i) for i in range(count)]
    answers = {
        name: np.zeros((count, question.answers), np.uint8) for name, question in QUESTIONS.items()
    }
    for i, scene in enumerate(scenes):
        for name, right in answers_of(scene).items():
            answers[name][i, right] = 1
    return np.stack([render(scene, config.size) for scene in scenes]), answers


class Quiz(nn.Module):
    """A tower with a linear head for every question on its unit-length embedding."""

    def __init__(self, tower: nn.Module, width: int) -> None:
        super().__init__()
        self.tower = tower
        self.heads = nn.ModuleDict(
            {name: nn.Linear(width, question.answers) for name, question in QUESTIONS.items()}
        )
        for head in self.heads.values():
            nn.init.normal_(head.weight, std=_SPREAD)
        self.sharpness = nn.Parameter(torch.tensor(math.log(_SHARP)))

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised pixels -> question -> (B, answers) logits."""
        with torch.autocast(pixels.device.type, torch.bfloat16):
            pooled = self.tower(pixels)
        pooled = pooled[0] if isinstance(pooled, tuple) else pooled
        embedding = self.sharpness.exp() * F.normalize(pooled.float(), dim=-1)
        return {name: head(embedding) for name, head in self.heads.items()}


def loss_of(logits: dict[str, Tensor], answers: dict[str, Tensor]) -> Tensor:
    """The weighted sum over questions: cross-entropy, binary where several answers may be right."""
    total = torch.zeros(())
    for name, question in QUESTIONS.items():
        scores, right = logits[name], answers[name]
        if question.one:
            each = F.cross_entropy(scores, right.argmax(1))
        else:
            each = F.binary_cross_entropy_with_logits(scores, right.float(), reduction="none")
            each = each.sum(1).mean()
        total = total + question.weight * each
    return total


@torch.no_grad()
def accuracy(quiz: Quiz, batches: list[tuple[Tensor, dict[str, Tensor]]]) -> dict[str, float]:
    """Question -> share of held-out scenes of which every answer is right."""
    quiz.eval()
    right: dict[str, list[Tensor]] = {name: [] for name in QUESTIONS}
    for pixels, answers in batches:
        for name, scores in quiz(pixels).items():
            one = QUESTIONS[name].one
            said = F.one_hot(scores.argmax(1), scores.shape[1]) if one else scores > 0
            right[name].append((said.bool() == answers[name].bool()).all(1))
    quiz.train()
    return {name: round(torch.cat(each).float().mean().item(), 4) for name, each in right.items()}


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up, then cosine to zero."""
    return peak * min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)))


def inputs(pixels: NDArray[np.uint8], preprocess: Preprocess) -> Tensor:
    """Return (B, H, W, 3) pixels as a tower takes them: normalised, (B, 3, H, W)."""
    planes = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    planes = normalised(planes, preprocess.mean, preprocess.std)
    return planes.contiguous(memory_format=torch.channels_last)


def optimiser_of(network: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices alone."""
    groups = [
        {"params": [p for p in network.parameters() if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in network.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), eps=1e-6)


def read_options(
    about: str | None, numbers: Iterable[tuple[str, float, str]], argv: list[str] | None = None
) -> argparse.Namespace:
    """Parse the options of a program that trains on scenes. numbers: name, default, help."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    for name, meaning in (
        ("model", "open_clip configuration"),
        ("world", "what scenes are drawn from"),
        ("out", "folder to write"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=meaning)
    for name, default, meaning in (
        *numbers,
        ("batch-size", 128, "scenes a step"),
        ("lr", 1e-3, "peak learning rate"),
        ("workers", 2, "processes that draw scenes"),
    ):
        parser.add_argument(f"--{name}", type=type(default), default=default, help=meaning)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Train, or go on; write the tower."""
    numbers = (
        ("steps", 6000, "steps in all"),
        ("warmup", 200, "steps"),
        ("weight-decay", 0.05, "of matrices"),
        ("seed", 0, "of weights and scenes"),
        ("save-every", 250, "steps"),
        ("stop-after", 0, "stop here, to go on later"),
    )
    train(read_options(__doc__, numbers, argv))
    return 0


def train(options: argparse.Namespace) -> None:
    """Run `options.steps` steps, from the last saved state where there is one."""
    torch.manual_seed(options.seed)
    loaded = create_model(read_config(options.model), seed=options.seed)
    tower: Any = loaded.encoder.model.visual
    config = replace(read_world_config(options.world), size=loaded.preprocess.size[0])
    quiz = Quiz(tower, loaded.encoder.model.text_projection.shape[1])
    quiz.to(memory_format=torch.channels_last)
    optimiser = optimiser_of(quiz, options.lr, options.weight_decay)

    def tensors(
        pixels: NDArray[np.uint8], answers: dict[str, Answers]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        right = {name: torch.from_numpy(values) for name, values in answers.items()}
        return inputs(pixels, loaded.preprocess), right

    options.out.mkdir(parents=True, exist_ok=True)
    state, log = options.out / "state.pt", options.out / "log.jsonl"
    first = 0
    if state.exists():
        saved = torch.load(state, weights_only=True)
        quiz.load_state_dict(saved["quiz"])
        optimiser.load_state_dict(saved["optimiser"])
        first = saved["step"]
    last = min(options.steps, options.stop_after or options.steps)
    starts = range(0, HELD_OUT, 250)
    held_out = [
        tensors(*draw(config, options.seed, "val", at, min(250, HELD_OUT - at))) for at in starts
    ]
    quiz.train()
    began = time.monotonic()
    with mapper(options.workers) as each:
        size = options.batch_size
        starts = range(first * size, last * size, size)
        batches = each(
            draw, repeat(config), repeat(options.seed), repeat("train"), starts, repeat(size)
        )
        for step, drawn in enumerate(batches, first):
            pixels, answers = tensors(*drawn)
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, options.steps, options.lr, options.warmup)
            loss = loss_of(quiz(pixels), answers)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(quiz.parameters(), 5.0)
            optimiser.step()
            done = step + 1
            saving = done % options.save_every == 0 or done == last
            if done % 50 == 0 or saving:
                record: dict[str, Any] = {"step": done, "loss": round(loss.item(), 4)}
                speed = (done - first) * options.batch_size / (time.monotonic() - began)
                record["images_per_s"] = round(speed, 1)
                if saving:
                    record["held_out"] = accuracy(quiz, held_out)
                    parts = {"quiz": quiz.state_dict(), "optimiser": optimiser.state_dict()}
                    with replacing(state) as file:
                        torch.save({**parts, "step": done}, file)
                with log.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(record) + "\n")
                print(json.dumps(record), flush=True)
    if last == options.steps:
        weights = {key: value.contiguous() for key, value in tower.state_dict().items()}
        save_file(weights, options.out / "tower.safetensors")


if __name__ == "__main__":
    end_with(main, "pretrain_image_tower")
