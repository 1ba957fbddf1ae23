"""Draw how a training step grows: with batch, captions per image, caption length, text tower depth.

    python scripts/scaling.py [--out docs/images]

Processor seconds of one step (NegCLIP's loss, forward and backward) on one thread, the better of
two, by this program and with open_clip's own towers, which take every text at the full context of
77. A model of ViT-B/32's form, narrower: 256 wide, a text tower of 6 layers. Also writes the
numbers, scaling.json.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from torch import Tensor
from torch.nn.functional import normalize

from bench.rows import machine
from compoclip.data.batch import Batch, TextBlock
from compoclip.losses.contract import Features, Role
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelConfig
from compoclip.training.settings import RunSettings
from compoclip.training.step import step, weighted_loss

mpl.use("Agg")
import matplotlib.pyplot as plt

WORDS = ("cat", "dog", "red", "blue", "on", "the", "a", "table", "man", "woman", "street", "near")
COLOURS = {"ours": "#0b6e99", "plain": "#c2552d"}


@dataclass(frozen=True)
class Setting:
    """One point. captions: texts an image, all but the first negatives. words: of a caption."""

    batch: int = 16
    captions: int = 2
    words: int = 10
    layers: int = 6


CURVES: dict[str, tuple[str, tuple[int, ...]]] = {
    "batch": ("images in a batch", (2, 4, 8, 16, 32)),
    "captions": ("texts an image", (1, 2, 3, 4, 6, 8)),
    "words": ("words of a caption", (4, 8, 16, 32, 48, 70)),
    "layers": ("layers of the text tower", (1, 2, 4, 8, 12)),
}


def model_of(layers: int) -> LoadedModel:
    """A narrow CLIP."""
    vision = {"image_size": 96, "patch_size": 32, "width": 256, "layers": 4, "head_width": 64}
    text = {"context_length": 77, "vocab_size": 49408, "width": 256, "heads": 4, "layers": layers}
    config = {"embed_dim": 256, "vision_cfg": vision, "text_cfg": text}
    return create_model(ModelConfig(config, {"size": 96}), seed=0)


def batch_of(setting: Setting, model: LoadedModel, method: Method) -> Batch:
    """Noise with captions of about so many words, half as many to half as many more."""
    rng = random.Random(0)
    count = setting.batch * setting.captions
    lengths = [min(74, max(1, round(setting.words * rng.uniform(0.5, 1.5)))) for _ in range(count)]
    role = (Role.CAPTION, *[Role.NEGATIVE] * (setting.captions - 1)) * setting.batch
    block = TextBlock(
        texts=tuple(" ".join(rng.choices(WORDS, k=length)) for length in lengths),
        owner=tuple(i // setting.captions for i in range(count)),
        role=role,
        rewrite=tuple("" if r is Role.CAPTION else method.kinds[0] for r in role),
        images=setting.batch,
    )
    generator = torch.Generator().manual_seed(0)
    size = (setting.batch, 3, *model.preprocess.size)
    pixels = torch.randint(256, size, dtype=torch.uint8, generator=generator)
    ids = tuple(map(str, range(setting.batch)))
    return Batch(pixels, block, ids, mean=model.preprocess.mean, std=model.preprocess.std)


def seconds_of(setting: Setting) -> dict[str, float]:
    """Processor seconds of a step both ways."""
    model, method = model_of(setting.layers), load_recipe("negclip")()
    batch = batch_of(setting, model, method)
    tower, tokenize = model.encoder.model, model.tokenizer

    def ours() -> None:
        step(model.encoder, tokenize, method, batch, RunSettings(out=Path()))

    def plain() -> None:
        ids = tokenize(list(batch.block.texts))
        layout = batch.block.layout(torch.device("cpu"), ids)
        image: Tensor = tower.encode_image(batch.normalised(torch.device("cpu")))
        text: Tensor = tower.encode_text(ids)
        features = Features(
            normalize(image, dim=-1), normalize(text, dim=-1), tower.logit_scale.exp()
        )
        weighted_loss(method.losses, features, layout)[1].backward()

    return {
        name: min(timed(way) for _ in range(2)) for name, way in (("plain", plain), ("ours", ours))
    }


def timed(way: Callable[[], None]) -> float:
    """Processor seconds."""
    start = time.process_time()
    way()
    return time.process_time() - start


def draw(name: str, points: list[dict[str, float]], out: Path) -> None:
    """One curve with its ratio."""
    label, _ = CURVES[name]
    x = [point["x"] for point in points]
    figure, axes = plt.subplots(figsize=(5.2, 3.6), dpi=130)
    for way, shown in (("plain", "open_clip's towers, 77 positions"), ("ours", "compoclip")):
        y = [1000 * point[way] for point in points]
        axes.plot(x, y, "o-", color=COLOURS[way], lw=2, ms=5, label=shown)
    for point in points:
        ratio, place = point["plain"] / point["ours"], (point["x"], 1000 * point["ours"])
        style = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "color": "#444"}
        axes.annotate(f"{ratio:.1f}x", place, (0, -14), **style)
    figure.legend(loc="upper center", ncols=2, frameon=False, fontsize=9)
    axes.set(xlabel=label, ylabel="ms of processor time a step")
    axes.set(xscale="log", yscale="log")
    axes.set_ylim(axes.get_ylim()[0] / 1.35)
    mark(axes.xaxis, x)
    mark(axes.yaxis, [t for t in (100, 200, 500, 1000, 2000, 5000) if t < axes.get_ylim()[1]])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4")
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(out / f"scaling-{name}.png", metadata={"Software": None})
    plt.close(figure)


def mark(axis: Axis, places: Sequence[float]) -> None:
    """Plain numbers at these places of an axis, whatever its scale."""
    axis.set_major_locator(FixedLocator(places))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def main() -> None:
    """Measure all points, draw all curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    seconds_of(Setting(batch=2))  # warms up
    curves = {}
    for name, (_, values) in CURVES.items():
        curves[name] = [
            {"x": value, **seconds_of(replace(Setting(), **{name: value}))} for value in values
        ]
        draw(name, curves[name], out)
    record = {"machine": machine(), "torch": torch.__version__, "curves": curves}
    (out / "scaling.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
