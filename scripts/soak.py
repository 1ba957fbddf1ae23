"""Train through damaged images, a killed data worker, a killed trainer and a full disk.

Two runs on the same world data, some of its images damaged at random: one is left alone, the other
is stopped three times and resumed each time. It must say in one line what happened each time, and
end with the same weights and the same counts to the last bit.

    python scripts/soak.py --folder soak --steps 2000

The full disk is a limit on the size of files (RLIMIT_FSIZE), under which the kernel refuses to
write the training state as it does on a disk without space.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from safetensors.torch import load_file

from compoclip.cli.options import parse
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.training.state import latest_state
from compoclip_world.captions import captions_for
from compoclip_world.dataset import png_bytes
from compoclip_world.sampling import scene_for
from compoclip_world.scene import WorldConfig

WORLD = WorldConfig(size=32)
LARGEST = 1 << 20  # bytes of a file on the "full disk": logs fit, the state does not
PATIENCE = 1800  # seconds without a new step
TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}


@dataclass(frozen=True)
class Soak:
    """How long, how much, how damaged."""

    folder: Path
    """where everything goes; must be new"""
    steps: int = 2000
    """optimiser steps of each run"""
    scenes: int = 800
    """images; a share of them is damaged"""
    damaged: float = 0.05
    """share of images that are cut off, overwritten or missing"""
    batch_size: int = 16
    workers: int = 2
    method: str = "fsc-clip"
    seed: int = 0


@dataclass
class Outcome:
    """What the disturbed run said each time, and whether it ended as the other did."""

    steps: int = 0
    damaged: int = 0
    stops: dict[str, str] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    skipped: tuple[int, int] = (0, 0)
    equal_weights: bool = False
    equal_counts: bool = False
    seconds: float = 0.0


def soak(options: Soak) -> Outcome:
    """Both runs. Raises CompoclipError when one does not behave."""
    start = time.monotonic()
    options.folder.mkdir(parents=True)
    found = Outcome(steps=options.steps, damaged=write_data(options))
    calm, rough = options.folder / "calm", options.folder / "rough"
    one = finished(command(options, calm), environment(options))

    part = options.steps // 4
    train = subprocess.Popen(command(options, rough), **PIPES, env=environment(options))
    wait_for_step(train, rough, part)
    os.kill(children(train.pid)[0], signal.SIGKILL)
    found.stops["data worker killed"] = last_line(train, 1)
    found.at["data worker killed"] = saved(rough)

    train = subprocess.Popen(command(options, rough, "--resume"), **PIPES, env=environment(options))
    wait_for_step(train, rough, 2 * part)
    train.kill()
    train.communicate()
    found.stops["trainer killed"] = "(nothing can be said)"
    found.at["trainer killed"] = saved(rough)

    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (LARGEST, LARGEST))
    train = subprocess.Popen(
        command(options, rough, "--resume"), **PIPES, env=environment(options), preexec_fn=limit
    )
    found.stops["disk full"] = last_line(train, 1)
    found.at["disk full"] = saved(rough)

    two = finished(command(options, rough, "--resume"), environment(options))
    weights = [load_file(run / "model" / "open_clip_model.safetensors") for run in (calm, rough)]
    same = weights[0].keys() == weights[1].keys()
    found.equal_weights = same and all(weights[0][k].equal(weights[1][k]) for k in weights[0])
    counts = ("steps", "images", "texts", "skipped", "truncated")
    found.equal_counts = all(one[name] == two[name] for name in counts)
    found.skipped = (one["skipped"], two["skipped"])
    found.seconds = round(time.monotonic() - start, 1)
    return found


PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def write_data(options: Soak) -> int:
    """Images, captions and a tiny model in the folder; how many images are damaged."""
    rng = random.Random(options.seed)
    rows, damaged = [], 0
    for i in range(options.scenes):
        scene = scene_for(WORLD, options.seed, "train", i)
        captions = [c.text for c in captions_for(scene, WORLD, options.seed, i, 3)]
        data = png_bytes(scene, WORLD.size)
        kind = rng.choice(("cut off", "overwritten", "missing"))
        if rng.random() < options.damaged:
            damaged += 1
            data = data[: len(data) // 2] if kind == "cut off" else rng.randbytes(len(data))
        else:
            kind = ""
        if kind != "missing":
            (options.folder / f"{i}.png").write_bytes(data)
        rows.append(json.dumps({"image": f"{i}.png", "caption": captions}))
    (options.folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    config = ModelConfig(TINY, {"size": 32})
    save_model(create_model(config, seed=1), options.folder / "base", provenance={})
    return damaged


def command(options: Soak, out: Path, *more: str) -> list[str]:
    """The command line of a run."""
    epochs = options.steps / (options.scenes // options.batch_size)
    return [
        *(sys.executable, "-m", "compoclip", "train", options.method, "--json"),
        *("--model", str(options.folder / "base"), "--data", str(options.folder / "rows.jsonl")),
        *("--out", str(out), "--device=cpu", f"--workers={options.workers}", "--lr=1e-3"),
        *(f"--batch-size={options.batch_size}", f"--epochs={epochs}", "--warmup=10"),
        *("--set", f"save_every={max(1, options.steps // 20)}", "log_every=5"),
        *(f"max_bad={options.scenes}", *more),
    ]


def environment(options: Soak) -> dict[str, str]:
    """Caches stay in the folder; one thread each, so that runs do not wait for one another."""
    cache = {"XDG_CACHE_HOME": str(options.folder / "cache"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **cache}


def finished(asked: list[str], env: dict[str, str]) -> dict[str, int]:
    """The summary of a run that comes to its end."""
    done = subprocess.run(asked, capture_output=True, text=True, env=env)
    if done.returncode:
        raise CompoclipError(f"a run failed: {done.stderr.strip().splitlines()[-1]}")
    summary: dict[str, int] = json.loads(done.stdout)
    return summary


def wait_for_step(train: subprocess.Popen[str], out: Path, step: int) -> None:
    """Until the log of a run has come to `step`."""
    waited, size = time.monotonic(), -1
    log = out / "train.jsonl"
    while train.poll() is None and time.monotonic() - waited < PATIENCE:
        if log.is_file() and log.stat().st_size != size:
            waited, size = time.monotonic(), log.stat().st_size
            lines = log.read_text().splitlines()
            if lines and lines[-1].endswith("}") and json.loads(lines[-1])["step"] >= step:
                return
        time.sleep(0.05)
    train.kill()
    raise CompoclipError(f"the run did not come to step {step}: {train.communicate()[1][-500:]}")


def children(process: int) -> list[int]:
    """The direct child processes of a process."""
    listed = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in listed.split()]


def last_line(train: subprocess.Popen[str], code: int) -> str:
    """What a run says last before it ends with this exit code, in one line and no traceback."""
    _, said = train.communicate(timeout=PATIENCE)
    if train.returncode != code or "Traceback" in said:
        raise CompoclipError(f"exit code {train.returncode}, not {code}: {said[-2000:]}")
    return said.strip().splitlines()[-1]


def saved(out: Path) -> int:
    """The step that the state of a run has come to."""
    state = latest_state(out / "state")
    return int(state.name.removeprefix("step-")) if state else 0


if __name__ == "__main__":
    outcome = soak(parse(Soak, "soak", sys.argv[1:], "scripts"))
    print(json.dumps(asdict(outcome), indent=1))
    sys.exit(0 if outcome.equal_weights and outcome.equal_counts else 1)
