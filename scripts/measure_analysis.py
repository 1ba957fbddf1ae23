"""Measure what docs/analysis.md tells, on the bundled base and the demo's checkpoints.

    python scripts/measure_analysis.py demo-out analysis-out

Reads what `compoclip demo --out demo-out` wrote; needs some minutes. Writes the four tables to
analysis-out/{sweep,towers,trees,maps}.txt and the trade-off plot to analysis-out/wise; a second
call goes on where the first one stopped.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from pathlib import Path

from compoclip.cli.main import main
from compoclip.models.checkpoint import create_model, load_model, save_model

BENCHMARKS = ("sugarcrepe", "aro,coco_captions={suite}/aro/coco_order.json", "zero_shot:kinds",
              "zero_shot:novel-compounds", "retrieval:coco")  # fmt: skip


def measure(demo: Path, out: Path) -> None:
    """Run the four commands, each into its file."""
    suite, runs = demo / "suite", demo / "runs"
    tuned = str(runs / "fsc-clip" / "model")
    names = [name for name in ("clip-ft", "negclip", "fsc-clip") if (runs / name).is_dir()]
    models = ["base=bundled", *(f"{name}={runs / name / 'model'}" for name in names)]
    on = ["--data", str(suite), "--on", *(each.format(suite=suite) for each in BENCHMARKS)]
    wise = str(out / "wise")
    plain = out / "random"
    if not plain.is_dir():  # the same towers before any training: a reference for tree scores
        config = load_model("bundled").config
        save_model(create_model(config, seed=0), plain)
    out.mkdir(parents=True, exist_ok=True)
    for name, command in {
        "maps": ["world", "pointing", *models, f"untrained={plain}"],
        "trees": ["tree-score", *models, f"untrained={plain}", "--captions",
                  str(suite / "sugarcrepe"), "--out", str(out / "trees")],
        "sweep": ["wise-ft", "bundled", tuned, "--sweep", "--scope", "all", "image", "text",
                  "--out", wise, "--keep", "zero-shot", "--max-loss", "3", *on],
        "towers": ["towers", "bundled", tuned, "--out", wise, *on],
    }.items():  # fmt: skip
        started = time.process_time()
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            code = main(command)
        if code:
            sys.exit(code)
        spent = f"\n{time.process_time() - started:.0f} s of processor time\n"
        (out / f"{name}.txt").write_text(text.getvalue() + spent, encoding="utf-8")
        print(f"{out / name}.txt")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    measure(Path(sys.argv[1]), Path(sys.argv[2]))
