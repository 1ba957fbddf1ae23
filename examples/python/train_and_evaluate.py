"""Fine-tune the bundled model and measure what it gained.

compoclip world train --out world/train --count 2000
compoclip world suite --out world/suite
python examples/python/train_and_evaluate.py world runs/fsc
"""

from __future__ import annotations

import sys
from pathlib import Path

import compoclip


def main(world: Path, out: Path, epochs: float = 1, batch_size: int = 32) -> dict[str, float]:
    """Points that every benchmark gained, by name."""
    base = compoclip.load("bundled")
    tuned = base.train(
        "fsc-clip",
        compoclip.TrainOptions(data=str(world / "train"), out=out),
        epochs=epochs,
        batch_size=batch_size,
        lr=5e-4,
        warmup=1,
    )
    measuring = compoclip.EvaluateOptions(
        on=(str(world / "suite"),), out=out / "results", device="cpu", resamples=200
    )
    before = base.evaluate(measuring, name="base")
    after = tuned.evaluate(measuring, name="tuned")
    return {
        old.benchmark: 100
        * (new.aggregates[new.headline].value - old.aggregates[old.headline].value)
        for old, new in zip(before, after)
    }


if __name__ == "__main__":
    for benchmark, points in main(Path(sys.argv[1]), Path(sys.argv[2])).items():
        print(f"{points:+6.1f}  {benchmark}")
