"""Time and memory that a run of `reproduce` takes, from a short measurement of this machine."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any

from compoclip.benchmarks.names import benchmark_names, without_suites
from compoclip.benchmarks.registry import meta
from compoclip.console import counted, note
from compoclip.errors import CompoclipError, interruption_said
from compoclip.evaluation.published.protocols import work
from compoclip.files import write_text
from compoclip.models.names import HUB, LOCAL, RANDOM
from compoclip.programs.request import TrainRequest
from compoclip.programs.run import train
from compoclip.ranks import silent

if TYPE_CHECKING:
    import torch

INTERRUPTED = "interrupted while measuring for the estimate; repeat the command"
_SAVE = 600
"""Seconds of training between states, at most."""


@dataclass(frozen=True)
class MachineSpeed:
    """Speed and memory on this machine, see `measure`.

    Seconds: step per step beside its images, image per image of a step, photo and text per one
    that is encoded for evaluation; again is the factor on training of gradient caching. Bytes:
    fixed beside the images, per_image per image encoded at once. parameters: of the model.
    """

    step: float
    image: float
    fixed: float
    per_image: float
    again: float
    photo: float
    text: float
    parameters: int


def measure(
    recipe: str,
    model: str,
    settings: Mapping[str, Any],
    sentences: int,
    max_batch: int,
    device: torch.device,
    precision: str,
) -> MachineSpeed:
    """Train a few steps on made photos with random weights, encode photos and texts, and time it.

    Two batch sizes give the costs per step and per image, in time and memory. sentences: in every
    caption.
    """
    import torch

    from compoclip.benchmarks.case import ImageRef
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.models.checkpoint import load_model

    few, steps = (64, 9) if device.type == "cuda" else (2, 4)
    few = max(1, min(few, max_batch // 2))
    model = without_weights(model)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        photos, texts = _make_photos(folder, 4 * few, sentences)

        def step(batch: int, micro: int = 0, steps: int = steps) -> tuple[float, float]:
            """Return the seconds of a step, and the peak of memory."""
            out = folder / f"{batch}-{micro}"
            shutil.rmtree(out, ignore_errors=True)
            values = {
                **settings,
                "data": str(folder / "made.jsonl"),
                "images": folder,
                "model": model,
                "out": out,
                "device": str(device),
                "precision": precision,
                "batch_size": batch,
                "micro_batch": micro,
                "epochs": 1000.0,
                "max_steps": steps,
                "log_every": 1,
            }
            request = TrainRequest.of(recipe, values)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            _, ends = pilot(request)
            ends.pop()  # the last step, whose time is that of saving, too
            seconds = median(b - a for a, b in pairwise(ends))
            note(f"  a step of {counted(batch, 'photo')} takes {seconds:.1f} s here")
            return seconds, _peak(device)

        step(few, steps=3)  # what only the first run loads
        (one, low), (two, high) = step(few), step(2 * few)
        again = step(2 * few, few)[0] / two
        loaded = load_model(model, device=device)
        encoder = ModelEncoder(loaded)
        with encoder.evaluating():

            def timed(encode: Callable[[], object]) -> float:
                encode()
                begin = monotonic()
                encode()
                return (monotonic() - begin) / len(photos)

            refs = [ImageRef(path) for path in photos]
            photo = timed(lambda: encoder.start_images([encoder.read_image(ref) for ref in refs])())
            text = timed(lambda: encoder.start_texts(texts)())
    per_image, image = max(0.0, high - low) / few, max(0.0, two - one) / few
    return MachineSpeed(
        step=max(0.0, one - few * image),
        image=image or two / (2 * few),
        fixed=max(0.0, high - 2 * few * per_image),
        per_image=per_image,
        again=max(1.0, again),
        photo=photo,
        text=text,
        parameters=sum(parameter.numel() for parameter in loaded.encoder.model.parameters()),
    )


def without_weights(model: str) -> str:
    """Return ARCHITECTURE:TAG with random weights, which need no download; other models stay."""
    name, colon, _ = model.partition(":")
    published = colon and f"{name}:" not in (HUB, LOCAL, RANDOM)
    return f"{RANDOM}{name}" if published else model


def pilot(request: TrainRequest) -> tuple[int, list[float]]:
    """Train and print nothing; return the steps of a whole run, and the seconds at each step's end.

    The log must have every step.
    """
    from compoclip.training.log import LOG, read_log

    with silent(), interruption_said(INTERRUPTED):
        _, summary = train(request.options, request.composed())
    log = read_log(request.options.out / LOG)
    return summary.total_steps, [record["seconds"] for record in log if "loss" in record]


def step_seconds(speed: MachineSpeed, batch: int, micro: int) -> float:
    """Return the seconds of a training step. micro: images encoded at a time; 0 for the batch."""
    once = speed.step + batch * speed.image
    return speed.again * once if micro else once


def steps_between_states(step: float) -> int:
    """Return after how many steps training saves its state; step: seconds of one."""
    return min(500, max(1, round(_SAVE / step)))


def measuring_seconds(speed: MachineSpeed, specs: Sequence[str]) -> float:
    """Return the seconds of measuring one model on benchmarks."""
    counts = [_encoded_work(spec) for spec in without_suites(specs)]
    return sum(photos * speed.photo + texts * speed.text for photos, texts in counts)


def _encoded_work(spec: str) -> tuple[int, int]:
    """Return photos and texts to encode: as counted, of a part by its items; else two per item."""
    plain = spec.partition(",")[0]
    counted = work(plain)
    if counted:
        return counted
    name, _, part = plain.partition(":")
    if name not in benchmark_names():  # a folder, or a file of the user's
        return 5000, 10_000
    items = meta(name).items or 5000
    photos, texts = work(name) or (items, 2 * items)
    expected = meta(name).expected.get(part, items)
    return min(photos, expected), round(texts * expected / items)


def usual_precision(device: torch.device, small: bool) -> str:
    """Return the precision of training on a device; small: of a smaller protocol, for old GPUs."""
    import torch

    if device.type == "cpu":
        return "fp32"
    bf16 = device.type != "cuda" or torch.cuda.get_device_capability(device)[0] >= 8
    return "fp16" if small or not bf16 else "bf16"


def _make_photos(folder: Path, number: int, sentences: int) -> tuple[list[Path], list[str]]:
    """Write photos of COCO's size with captions of its length, and made.jsonl that names them."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    words = (("red", "blue", "small", "old"), ("dog", "cat", "man", "boat", "truck"))
    verbs = ("sitting next to", "standing behind", "looking at", "in front of")
    photos, texts, rows = [], [], []

    def thing() -> str:
        return " ".join(str(rng.choice(choices)) for choices in words)

    for k in range(number):
        coarse = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC)
        photos.append(folder / f"{k}.jpg")
        picture.save(photos[-1], quality=90)
        said = [f"A {thing()} {rng.choice(verbs)} a {thing()}." for _ in range(sentences)]
        texts.append(said[0])
        rows.append(json.dumps({"image": photos[-1].name, "caption": " ".join(said)}))
    write_text(folder / "made.jsonl", "\n".join(rows) + "\n")
    return photos, texts


def _peak(device: torch.device) -> float:
    """Return the most bytes held so far: of the GPU, or of this process."""
    import torch

    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def micro_batch(speed: MachineSpeed, batch: int, device: torch.device) -> tuple[int, float]:
    """Return images at a time (0: the whole batch), and bytes of memory."""
    free = 0.9 * _memory(device)

    def needed(images: int) -> float:
        return speed.fixed + images * speed.per_image

    if needed(batch) <= free:
        return 0, needed(batch)
    fit = [2**k for k in range(12) if 2**k < batch and needed(2**k) <= free]
    if not fit:
        raise CompoclipError(f"{free / 1e9:.1f} GB of memory are free, one image needs more")
    return fit[-1], needed(fit[-1])


def _memory(device: torch.device) -> float:
    """Return the bytes of memory that a run may take."""
    import torch

    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
    with suppress(OSError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        if match := re.search(r"MemAvailable:\s+(\d+) kB", text):
            return 1024.0 * int(match[1]) + _peak(device)
    return 8e9
