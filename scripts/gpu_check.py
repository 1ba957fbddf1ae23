"""Measure and check on a GPU what was built without one, in less than ten minutes.

    python scripts/gpu_check.py --out gpu-check [--only step loader] [--tiny]

Needs the installed package, the repository around this file, and nothing else: weights are random,
photos and captions are made. Writes page.md (for reports/performance.md), results.json, log.txt and
trace.json. A section that fails is named, and the others run; the exit code is 1 if one failed, or
a check did. --tiny does the same in small, also on a CPU, where it shows no more than that it runs.
"""

from __future__ import annotations

import argparse
import inspect
import json
import platform
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness import number_text, surroundings, timed
from bench.host import PARTS, StepTimes, cycled, train_steps
from bench.made import narrow_model, photo_files, world_captions, write_samples
from compoclip.benchmarks.case import ImageRef, Retrieval
from compoclip.cli.main import main as compoclip
from compoclip.data.loader import BatchLoader
from compoclip.data.options import PackSpec
from compoclip.data.pack import pack
from compoclip.data.plan import TextPlan, prepare_captions
from compoclip.data.prepared import Preparation
from compoclip.data.sources.open import Request, open_source
from compoclip.data.transform import ImageTransform, RandomCrop
from compoclip.evaluation.encode import EncodeOptions, encode_contents
from compoclip.evaluation.encoder import ModelEncoder, full_float32
from compoclip.losses.contract import Features, Layout
from compoclip.methods.base import LossTerm, Method, Optim
from compoclip.methods.registry import load_recipe, method_names
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.models.dual_encoder import attention_kernels
from compoclip.training import loop
from compoclip.training.run import run_training
from compoclip.training.settings import RunSettings
from method_data import arguments, write_world

PAPER_STEPS = 1950  # 100,000 images, 5 epochs, batch 256
TEXT_SHAPES = [(600 + 7 * k, 14 + k % 5) for k in range(8)]  # rows, positions: none like another
NOT_LOGGED = (12, 14)  # steps (from 0) that are looked at more closely


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    model: str = "random:ViT-B-32-quickgelu"
    batch: int = 256
    samples: int = 4096
    photos: int = 64
    steps: int = 40
    recipe_steps: int = 200
    workers: tuple[int, ...] = (8, 15)
    encoded: tuple[int, int] = (2048, 20_000)  # images, texts
    at_once: tuple[int, ...] = (64, 512)
    recipes: tuple[str, ...] = ()  # all
    repeats: int = 20
    bytes: int = 1 << 30


TINY = Size(
    model="",
    batch=8,
    samples=64,
    photos=4,
    steps=16,
    recipe_steps=6,
    workers=(1,),
    encoded=(6, 20),
    at_once=(2, 4),
    recipes=("fsc-clip",),
    repeats=2,
    bytes=1 << 16,
)


class Run:
    """What sections share, and what they found.

    figures: a section's rows of what, value, unit, and what was aimed at. failed: what did not
    hold, or the error that ended the section.
    """

    def __init__(self, device: torch.device, size: Size, folder: Path, out: Path, log: Any) -> None:
        self.device, self.size, self.folder, self.out, self.log = device, size, folder, out, log
        self.cuda = device.type == "cuda"
        self.figures: dict[str, list[dict[str, Any]]] = {}
        self.failed: dict[str, list[str]] = {}
        self.section, self.step_seconds = "", 0.0

    def figure(self, what: str, value: Any, unit: str = "", target: str = "") -> None:
        """Add a row, and say it."""
        row = {"what": what, "value": value, "unit": unit, "target": target}
        self.figures.setdefault(self.section, []).append(row)
        self.say(f"{self.section}: {what}: {number_text(value)} {unit}")

    def say(self, text: str) -> None:
        """Print, and keep in the log."""
        for file in (sys.stdout, self.log):
            print(text.rstrip(), file=file, flush=True)

    def fail(self, why: str) -> None:
        """The section fails, now within an error whose traceback goes to the log, or for a fact."""
        self.failed.setdefault(self.section, []).append(why)
        if sys.exc_info()[0]:
            self.say(traceback.format_exc())

    def require(self, what: str, holds: bool) -> None:
        """A fact that must hold."""
        self.figure(what, "yes" if holds else "NO")
        if not holds:
            self.fail(what)

    def wait(self) -> None:
        """Until the device is done."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def ms(self, work: Callable[[], object], repeats: int = 0) -> float:
        """Median milliseconds of some work, after one that is not counted (none for one repeat)."""
        repeats = repeats or self.size.repeats
        if repeats > 1:
            work()
        return median(1000 * timed(work, self.device)[0] for _ in range(repeats))

    def model(self) -> LoadedModel:
        """Random weights, on the CPU."""
        if not self.size.model:
            return narrow_model(32, 8, 2)
        return load_model(self.size.model, device=torch.device("cpu"))

    def method(self) -> Method:
        return load_recipe("fsc-clip")(optim=Optim(batch_size=self.size.batch))

    def train(self, times: StepTimes, **changes: Any) -> None:
        """Train FSC-CLIP on captioned photos, made once."""
        train_steps(self.model(), self.method(), self.data(), self.settings(**changes), times)

    def settings(self, **changes: Any) -> RunSettings:
        return RunSettings(out=Path(), device=str(self.device), precision="bf16", **changes)

    def data(self) -> str:
        folder = self.folder / "originals"
        if not folder.exists():
            write_samples(folder, world_captions(self.size.samples), self.size.photos)
        return str(folder / "samples.jsonl")


def env(run: Run) -> None:
    """The ceilings: how fast this machine copies and multiplies."""
    around = surroundings(run.device)
    run.figure("device", around["device"])
    run.figure("versions", ", ".join(f"{k} {v}" for k, v in around["versions"].items()))
    run.figure("CUDA, cuDNN", f"{torch.version.cuda}, {torch.backends.cudnn.version()}")
    source = torch.zeros(run.size.bytes, dtype=torch.uint8, device=run.device)
    target = torch.empty_like(source)
    taken = run.ms(lambda: target.copy_(source))
    run.figure("copy on the device", 2 * run.size.bytes / taken / 1e9, "TB/s")
    rows = 50 * run.size.batch
    for inner, outer in ((768, 3072), (3072, 768), (512, 2048)):
        a, b = (torch.randn(n, inner, device=run.device).bfloat16() for n in (rows, outer))
        rate = 2 * rows * inner * outer / run.ms(lambda a=a, b=b: a @ b.T) / 1e9
        run.figure(f"bf16 product, {rows} x {inner} x {outer}", rate, "TFLOP/s")
    pixels = torch.zeros(run.size.batch, 3, 224, 224, dtype=torch.uint8)
    run.figure("a batch to the device, pageable", run.ms(lambda: pixels.to(run.device)), "ms")
    if run.cuda:
        pinned = pixels.pin_memory()
        run.figure("the same, pinned", run.ms(lambda: pinned.to(run.device)), "ms")


def cudnn(run: Run) -> None:
    """Evaluation leaves cuDNN on, which convolutions need."""
    loaded = run.model()
    loaded.encoder.to(run.device)
    before = torch.backends.cudnn.enabled
    with ModelEncoder(loaded).evaluating():
        run.require("cuDNN as it was during evaluation", torch.backends.cudnn.enabled == before)
    weight = torch.randn(768, 3, 32, 32, device=run.device)
    pixels = torch.randn(run.size.at_once[0], 3, 224, 224, device=run.device)
    for on in (True, False):
        with torch.backends.cudnn.flags(enabled=on), torch.no_grad():
            taken = run.ms(lambda: functional.conv2d(pixels, weight, stride=32))
        words = "with" if on else "without"
        run.figure(f"patch embedding of {len(pixels)} images {words} cuDNN", taken, "ms")


def sdpa(run: Run) -> None:
    """Attention by a kernel that needs no plan for a shape."""
    heads, width = 8, 64

    def both_passes(shape: tuple[int, int]) -> None:
        q, k, v = torch.randn(
            3, shape[0], heads, shape[1], width, device=run.device, dtype=torch.bfloat16
        ).requires_grad_()
        functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    scale = run.size.batch / 256
    shapes = [(max(2, int(rows * scale)), length) for rows, length in TEXT_SHAPES]
    for name, around in (
        ("as torch chooses", nullcontext),
        ("as the towers run it", lambda: attention_kernels(run.device)),
    ):
        with around():
            both_passes((3, 5))
            fresh = [run.ms(lambda s=s: both_passes(s), 1) for s in shapes]
            run.figure(f"attention at a new shape, {name}", median(fresh), "ms")
            known = run.ms(lambda s=shapes[0]: both_passes(s))
            run.figure(f"attention at a known shape, {name}", known, "ms")
            with profile(activities=activities(run)) as seen:
                both_passes(shapes[1])
                run.wait()
        names = [e.key for e in seen.key_averages() if "att" in e.key or "flash" in e.key]
        names = list(dict.fromkeys(name.split("<")[0][:60] for name in names))
        run.figure(f"kernels, {name}", ", ".join(names[:4]))
        if run.cuda and around is not nullcontext:
            run.require("none of cuDNN's in the towers", not any("cudnn" in n for n in names))
        shapes = [(rows + 3, length) for rows, length in shapes]  # new ones again


def varlen(run: Run) -> None:
    """Attention on texts of any length without buckets."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        run.figure("varlen attention", f"not in torch {torch.__version__}")
        return
    if not run.cuda:
        run.figure("varlen attention", "needs a GPU")
        return
    heads, width = 8, 64
    lengths = torch.tensor([9 + (7 * k) % 21 for k in range(960)])
    ends = functional.pad(lengths.cumsum(0), (1, 0)).int().to(run.device)
    total, longest = int(lengths.sum()), int(lengths.max())
    named = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = (
        {"is_causal": True} if "is_causal" in named else {"window_size": (-1, 0)}
    )
    q, k, v = torch.randn(
        3, total, heads, width, device=run.device, dtype=torch.bfloat16
    ).requires_grad_()

    def attend() -> Tensor:
        with attention_kernels(run.device):
            out: Tensor = varlen_attn(q, k, v, ends, ends, longest, longest, **causal)
            return out

    found, parts = attend().float(), torch.split(torch.arange(total), lengths.tolist())
    worst = 0.0
    for part in parts[:64]:
        alone = [each[part].float().transpose(0, 1) for each in (q, k, v)]
        exact = functional.scaled_dot_product_attention(*alone, is_causal=True).transpose(0, 1)
        worst = max(worst, float((found[part] - exact).abs().max()))
    run.figure("largest error of varlen attention", worst)
    run.require("below 0.01", worst < 1e-2)
    run.figure("varlen attention of a layer", run.ms(lambda: attend().sum().backward()), "ms")


def step(run: Run) -> None:
    """A step of FSC-CLIP by part, with batches that are there: no loader."""
    size = run.size
    waits: Counter[str] = Counter()
    seen: list[profile] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            if run.cuda:
                torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                if run.cuda:
                    torch.cuda.set_sync_debug_mode("default")
        here = [w for w in found if "synchroniz" in str(w.message)]
        waits.update(f"{'/'.join(Path(w.filename).parts[-2:])}:{w.lineno}" for w in here)

    @contextmanager
    def kernels() -> Iterator[None]:
        with profile(activities=activities(run)) as found:
            yield
            run.wait()
        seen.append(found)

    if run.cuda:
        torch.cuda.reset_peak_memory_stats(run.device)
    free = StepTimes(time.perf_counter, around=dict(zip(NOT_LOGGED, (waiting, kernels))))
    drained = StepTimes(time.perf_counter, run.wait)
    for times in (free, drained):
        with cycled(6):
            run.train(times, stop_after=size.steps)
    host, device = free.median(8), drained.median(8)
    run.step_seconds = host["step"]
    run.figure("a step", 1000 * host["step"], "ms", "at most 65")
    run.figure("images a second, without a loader", size.batch / host["step"])
    for part in PARTS:
        both = f"{1000 * host[part]:.2f} free-running, {1000 * device[part]:.2f} drained"
        run.figure(f"of which {part}", both, "ms")
    if run.cuda:
        peak = torch.cuda.max_memory_allocated(run.device) / 1e9
        run.figure("memory at the peak", peak, "GB")
    run.figure("waits of a step, by line", ", ".join(f"{k} x{n}" for k, n in waits.items()) or "0")
    run.require("at most one wait a step", waits.total() <= 1)
    events = [e for e in seen[0].events() if not run.cuda or e.device_type.name == "CUDA"]
    run.figure("kernels a step" if run.cuda else "operations a step", len(events))
    if run.cuda:
        spent: Counter[str] = Counter()
        for event in events:
            spent[event.name] += event.self_device_time_total / 1000
        run.figure("kernels, sum", sum(spent.values()), "ms")
        for name, taken in spent.most_common(12):
            run.figure(f"kernel {name[:70]}", taken, "ms")
    seen[0].export_chrome_trace(str(run.out / "trace.json"))


def loader(run: Run) -> None:
    """Batches of FSC-CLIP a second, nothing trained."""
    loaded, method, size = run.model(), run.method(), run.size
    small = run.folder / "pack"
    few = world_captions(4 * size.batch)[: 2 * size.batch]
    packed = write_samples(run.folder / "few", few, size.photos)
    pack(Request(packed), small, PackSpec(256))
    for name, path in (("originals", run.data()), ("pack", str(small))):
        source = open_source(path)
        plan = TextPlan(method.plan, parsed=prepare_captions(source))
        for workers in size.workers:
            batches = BatchLoader(
                source,
                plan,
                ImageTransform(loaded.preprocess, RandomCrop()),
                batch_size=size.batch,
                workers=workers,
            )
            planner = loaded.encoder.text_planner()
            batches.prepare_with(Preparation(loaded.tokenizer, planner), run.device)
            warm = 2 * workers + 1  # what is ready when the clock starts
            count = 3 * warm + 2
            for k, _ in enumerate(batches.steps(0, count)):
                if k == warm:
                    start, main = time.perf_counter(), time.thread_time()
            rate = (count - warm - 1) / (time.perf_counter() - start)
            spent = 1000 * (time.thread_time() - main) / (count - warm - 1)
            batches.close()
            words = f"{name}, {workers} workers"
            run.figure(f"images a second from {words}", rate * size.batch, "", "at least 4,000")
            run.figure(f"main thread, a batch from {words}", spent, "ms")


def recipe(run: Run) -> None:
    """Training with its loader, and what that makes of the paper's run."""
    size = run.size
    steps = min(size.recipe_steps, max(20, int(60 / max(run.step_seconds, 1e-3))))  # a minute
    for workers in size.workers:
        last = workers == size.workers[-1]
        times = StepTimes(time.perf_counter)
        count = steps if last else max(6, steps // 4)
        start = time.perf_counter()
        run.train(times, stop_after=count, workers=workers)
        whole = time.perf_counter() - start
        taken = [each["step"] for each in times.steps[5:]]
        mean = sum(taken) / max(1, len(taken))
        run.figure(f"images a second with {workers} workers", size.batch / mean)
        both = f"{1000 * mean:.1f}, {1000 * median(taken):.1f}"
        run.figure("a step, mean and median", both, "ms")
        if last:
            words = f"{PAPER_STEPS} steps, extrapolated from {len(taken)}"
            run.figure(words, PAPER_STEPS * mean / 60, "minutes", "at most 2.5")
            run.figure(f"start, {count} steps and a state on disk", whole, "s")


def agrees(run: Run) -> None:
    """Every recipe: the loss and the gradients of its first step against a CPU's."""
    world = write_world(run.folder / "world")

    def first_step(name: str, device: str, precision: str) -> tuple[float, Tensor]:
        norm, take = loop.clip_gradients, loop.step_if_finite
        gradients: list[Tensor] = []
        losses: list[float] = []

        def keeping(parameters: Sequence[Any], *rest: Any) -> Tensor:
            gradients.extend(p.grad.flatten().cpu() for p in parameters if p.grad is not None)
            return norm(parameters, *rest)

        def taking(optimizer: Any, loss: Tensor, size: Tensor) -> Tensor:
            losses.append(float(loss))
            return take(optimizer, loss, size)

        out = Path(tempfile.mkdtemp(dir=run.folder)) / "run"
        words = arguments(world, name, out, "--set=stop_after=1")
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(loop, "clip_gradients", keeping))
            stack.enter_context(mock.patch.object(loop, "step_if_finite", taking))
            stack.enter_context(full_float32())
            if compoclip([*words, f"--device={device}", f"--precision={precision}"]):
                raise RuntimeError(f"{name} on {device} in {precision} ended with an error")
        return losses[0], torch.cat(gradients).double()

    for name in run.size.recipes or method_names():
        loss, gradient = first_step(name, "cpu", "fp32")
        for precision, close in (("fp32", 1e-3), ("bf16", 5e-2)):
            try:
                other, like = first_step(name, str(run.device), precision)
            except Exception as error:  # the other recipes are to be seen
                run.fail(f"{name}, {precision}: {type(error).__name__}: {error}")
                continue
            off = abs(other - loss) / max(1e-6, abs(loss))
            away = float((like - gradient).norm() / gradient.norm())
            # bfloat16 keeps 8 bits; on a CPU gradients are off by up to 0.1 then.
            holds = off < close and away < (close if precision == "fp32" else 0.2)
            run.figure(f"{name}, {precision}", f"loss off by {off:.1e}, gradient by {away:.1e}")
            run.require(f"{name}, {precision}, agrees", holds)


def evaluation(run: Run) -> None:
    """Images and texts a second, reading and byte-pair encoding included."""
    loaded, size = run.model(), run.size
    loaded.encoder.to(run.device)
    images = [ImageRef(p) for p in photo_files(run.folder, size.encoded[0], size.photos)]
    captions = world_captions(min(2000, size.encoded[1]))
    texts = [f"{captions[k % len(captions)]} {k}" for k in range(size.encoded[1])]
    for precision in ("fp32", "bf16"):
        encoder = ModelEncoder(loaded, precision)
        for batch in size.at_once:
            options = EncodeOptions(batch, max(1, size.workers[-1]))
            for what, content in (
                ("images", Retrieval(tuple(images), (), ())),
                ("texts", Retrieval((), tuple(texts), ())),
            ):
                start = time.perf_counter()
                encode_contents(encoder, [content], options)
                rate = size.encoded[what == "texts"] / (time.perf_counter() - start)
                run.figure(f"{what} a second, {batch} at once, {precision}", rate)


def nan_gradient(run: Run) -> None:
    """An infinite gradient under a finite loss reaches neither weights nor states."""
    calls: list[int] = []

    def spoilt(features: Features, layout: Layout) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            features.image.register_hook(lambda gradient: torch.full_like(gradient, torch.inf))
        return 1e-3 * (features.image.sum() + features.text.sum()) ** 2

    loaded = narrow_model(32, 8, 2)
    optim = Optim(batch_size=8, epochs=100, warmup=0)
    method = replace(load_recipe("clip-ft")(optim=optim), losses=(LossTerm("odd", spoilt),))
    settings = run.settings(stop_after=5, save_every=1, log_every=1)
    out = run.folder / "spoilt"
    summary = run_training(loaded, method, open_source(run.data()), replace(settings, out=out))
    run.require("the step is left out and counted", summary.skipped_steps == 1)
    saved = [load_file(path) for path in (out / "state").glob("*/tensors.safetensors")]
    finite = [bool(t.isfinite().all()) for state in saved for t in state.values()]
    run.require("weights and states stay finite", bool(finite) and all(finite))


def compiled(run: Run) -> None:
    """Seconds of compiling, and whether ragged batches make it compile again."""
    from torch._dynamo.utils import counters

    graphs: list[int] = []

    @contextmanager
    def counting() -> Iterator[None]:
        graphs.append(counters["stats"]["unique_graphs"])
        yield

    steps = run.size.steps
    times = StepTimes(time.perf_counter, around={4: counting, steps - 1: counting})
    eager = mock.patch.object(torch, "compile", lambda f, **more: real(f, backend="eager", **more))
    real = torch.compile
    with cycled(12), nullcontext() if run.size.model else eager:
        run.train(times, stop_after=steps, compile=True)
    run.figure("the first step", times.steps[0]["step"], "s", "at most 60")
    run.figure("a step, after four", 1000 * times.median(5)["step"], "ms")
    run.figure("graphs after four steps, and at the end", f"{graphs[0]}, {graphs[1]}")
    run.require("nothing is compiled again for ragged batches", graphs[0] == graphs[1])


SECTIONS: dict[str, Callable[[Run], None]] = {
    each.__name__: each
    for each in (
        *(env, cudnn, sdpa, varlen, step, nan_gradient, agrees),
        *(recipe, evaluation, loader, compiled),
    )
}


def activities(run: Run) -> list[ProfilerActivity]:
    """What a profile records."""
    return [ProfilerActivity.CUDA if run.cuda else ProfilerActivity.CPU]


def page(run: Run, seconds: dict[str, float]) -> str:
    """The figures as Markdown."""
    lines = ["## Measured on a GPU" if run.cuda else "## Measured on a CPU, in small", ""]
    lines += [f"By `python scripts/gpu_check.py`, {sum(seconds.values()):.0f} s.", ""]
    for name, rows in run.figures.items():
        about = (SECTIONS[name].__doc__ or "").splitlines()[0]
        lines += [f"**{name}**, {seconds[name]:.0f} s. {about}", "", "| what | | aimed at |"]
        lines.append("|---|---|---|")
        for row in rows:
            value = f"{number_text(row['value'])} {row['unit']}".strip().replace("|", "/")
            lines.append(f"| {row['what']} | {value} | {row['target']} |")
        lines.append("")
    for name, reasons in run.failed.items():
        lines += [f"- **{name} failed**: {'; '.join(reasons)}"]
    return "\n".join(lines).rstrip() + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Run the sections; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-check"))
    parser.add_argument("--tiny", action="store_true", help="in small: seconds, also on a CPU")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=9.5, help="start no section after these")
    asked = parser.parse_args(words)
    device = torch.device(asked.device)
    if device.type != "cuda" and not asked.tiny:
        parser.error("there is no GPU; --tiny runs in small on a CPU")
    asked.out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((asked.out / "log.txt").open("w", encoding="utf-8"))
        run = Run(device, TINY if asked.tiny else Size(), folder, asked.out, log)
        for name in asked.only:
            run.section, start = name, time.monotonic()
            try:
                if start - begun > 60 * asked.minutes:
                    raise TimeoutError(f"not reached within {asked.minutes:g} minutes")
                SECTIONS[name](run)
            except (Exception, SystemExit) as error:
                run.fail(f"{type(error).__name__}: {error}")
            seconds[name] = time.monotonic() - start
            record = {"python": platform.python_version(), "tiny": asked.tiny, "seconds": seconds}
            record |= {"figures": run.figures, "failed": run.failed}
            text = json.dumps(record, indent=1) + "\n"
            (asked.out / "results.json").write_text(text, encoding="utf-8")
            (asked.out / "page.md").write_text(page(run, seconds), encoding="utf-8")
        for name, reasons in run.failed.items():
            run.say(f"{name} FAILED: {'; '.join(reasons)}")
        run.say(f"{asked.out / 'page.md'}: {sum(seconds.values()):.0f} s")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
