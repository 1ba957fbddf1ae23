"""Draw how the work of a training step is shared out: processor time of a process, by their number.

    python scripts/scaling_ranks.py [--out docs/images] [--ranks 1 2 4 8]

Steps of a whole batch of 64 images with 4 texts each, through torchrun and gloo on one machine, one
thread a process: forward, exchange, backward and the mean of the gradients, the median of 5 steps,
the mean over the processes. Processor time is what a step would take where every process has a core
of its own, but for the time spent waiting for a network. NegCLIP gathers captions and negatives,
FSC-CLIP captions. The model is the narrow one of scaling.py, the images too; also writes the
numbers, scaling-ranks.json. What a process has to do, keep and exchange at many ranks is counted by
count_ranks.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import matplotlib as mpl
import torch
from scaling import Setting, batch_of, mark, model_of, timed

from bench.rows import machine
from compoclip.data.batch import Batch, TextBlock
from compoclip.methods.registry import load_recipe
from compoclip.ranks import Ranks, process_group
from compoclip.training.distributed import GlobalBatch, RankPeers
from compoclip.training.gradients import GradientMean
from compoclip.training.settings import RunSettings
from compoclip.training.step import step

mpl.use("Agg")
import matplotlib.pyplot as plt

WHOLE = Setting(batch=64, captions=4)
STEPS = 5
RECIPES = {"negclip": "#0b6e99", "fsc-clip": "#7a4fa3"}


def part(batch: Batch, ranks: Ranks) -> Batch:
    """What one process has of a batch: every world-th image and its texts."""
    images = range(ranks.rank, batch.block.images, ranks.world)
    number = {image: new for new, image in enumerate(images)}
    kept = [i for i, owner in enumerate(batch.block.owner) if owner in number]
    block = TextBlock(
        texts=tuple(batch.block.texts[i] for i in kept),
        owner=tuple(number[batch.block.owner[i]] for i in kept),
        role=tuple(batch.block.role[i] for i in kept),
        rewrite=tuple(batch.block.rewrite[i] for i in kept),
        images=len(images),
    )
    ids = tuple(batch.ids[i] for i in images)
    return replace(batch, pixels=batch.pixels[list(images)], block=block, ids=ids)


def seconds_of(recipe: str, ranks: Ranks) -> float:
    """Processor seconds of this process for a step of the whole batch."""
    model, method = model_of(WHOLE.layers), load_recipe(recipe)()
    batch = batch_of(WHOLE, model, method)
    own = part(batch, ranks)
    whole = GlobalBatch(peers=RankPeers(ranks))
    network = model.encoder.model
    settings = RunSettings(out=Path())
    with GradientMean(network.parameters(), ranks) as mean:

        def once() -> None:
            network.zero_grad(set_to_none=True)
            step(model.encoder, model.tokenizer, method, own, settings, whole, mean=mean)
            mean.finish()

        once()  # warms up
        return median(timed(once) for _ in range(STEPS))


def work(out: Path) -> None:
    """What each process of torchrun does."""
    torch.set_num_threads(1)
    with process_group(torch.device("cpu")) as ranks:
        found = {recipe: ranks.exchange(seconds_of(recipe, ranks)) for recipe in RECIPES}
        if ranks.first:
            out.write_text(json.dumps(found), encoding="utf-8")


def measured(world: int) -> dict[str, float]:
    """Mean processor seconds of a process, by recipe."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
        subprocess.run([*launch, __file__, "--work", str(out)], check=True)
        return {recipe: mean(seconds) for recipe, seconds in json.loads(out.read_text()).items()}


def draw(points: dict[int, dict[str, float]], out: Path) -> None:
    """How many times less a process has to do than one alone, and what would be ideal."""
    figure, axes = plt.subplots(figsize=(5.2, 3.6), dpi=130)
    worlds = sorted(points)
    axes.plot(worlds, worlds, ":", color="#888", lw=1.5, label="shared out without loss")
    for recipe, colour in RECIPES.items():
        y = [points[worlds[0]][recipe] / points[world][recipe] for world in worlds]
        axes.plot(worlds, y, "o-", color=colour, lw=2, ms=5, label=recipe)
    figure.legend(loc="upper center", ncols=3, frameon=False, fontsize=9)
    axes.set(xlabel="processes", ylabel="times less processor time a process")
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        mark(axis, worlds)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4")
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(out / "scaling-ranks.png", metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    """Measure every number of processes, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        work(given.work)
        return
    points = {world: measured(world) for world in given.ranks}
    given.out.mkdir(parents=True, exist_ok=True)
    draw(points, given.out)
    record = {"machine": machine(), "torch": torch.__version__, "seconds": points}
    text = json.dumps(record, indent=1) + "\n"
    (given.out / "scaling-ranks.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
