"""`python -m bench host`: what a training step costs the main process, before any arithmetic."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import compoclip.training.step as step_module
from bench.harness import Row, Sampled
from bench.made import drawn_captions, narrow_model, write_samples
from compoclip.data.batch import Batch, Numbers
from compoclip.data.loader import BatchLoader
from compoclip.data.sources.open import open_source
from compoclip.errors import UsageError
from compoclip.methods.base import Method, Optim
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.text_plan import TextPlanner
from compoclip.models.work import Work
from compoclip.training import loop
from compoclip.training.optim import learning_rate
from compoclip.training.run import run_training
from compoclip.training.settings import RunSettings

# The parts of a step, in the order in which they come.
_MEANING = {
    "texts": "copy the buffer of texts, cut it into views",
    "pixels": "normalise pixels",
    "images": "image tower, forward",
    "captions": "text tower, forward",
    "join": "features of both",
    "losses": "losses",
    "backward": "backward",
    "take": "take the next batch from its worker",
    "clip": "norm of the gradients",
    "optimiser": "AdamW",
    "rest": "the loop itself, with a line of the log",
}
PARTS = tuple(_MEANING)
PREAMBLE = ("take", "texts")
COUNTED = (2, 3, 4)  # steps whose operations are counted, and which are not timed


class StepTimes:
    """Times the parts of every training step inside the block, by the functions the loop calls.

    What is timed is `run_training` as it is. With a `drain` every part waits for the device before
    and after it, and then says what the device takes; without one, what the host takes.

    Args:
        clock: Gives seconds.
        drain: Waits for the device.
        around: By the number of a step from 0, a block that the whole step runs in; such a step is
            not timed.

    Attributes:
        steps: By step, the seconds of each part, and of the whole as "step".
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.thread_time,
        drain: Callable[[], None] | None = None,
        around: Mapping[int, Callable[[], AbstractContextManager[Any]]] | None = None,
    ) -> None:
        self._clock, self._drain, self._around = clock, drain or (lambda: None), around or {}
        self.steps: list[dict[str, float]] = []
        self._began = 0.0
        self._patches, self._block = ExitStack(), ExitStack()

    def median(self, warm_up: int = 2) -> dict[str, float]:
        """The median of every part over the steps after the first ones, and of the whole step."""
        timed = [
            step for k, step in enumerate(self.steps) if k >= warm_up and k not in self._around
        ]
        for step in timed:
            step["rest"] = step["step"] - sum(step[part] for part in PARTS if part != "rest")
        return {part: statistics.median(step[part] for step in timed) for part in (*PARTS, "step")}

    def __enter__(self) -> StepTimes:
        places: tuple[tuple[Any, str, str], ...] = (
            (loop.TrainingLoop, "take", "take"),
            (Batch, "normalised", "pixels"),
            (Numbers, "on", "texts"),
            (step_module, "weighted_loss", "losses"),
            (Tensor, "backward", "backward"),
            (loop, "clip_gradients", "clip"),
            (loop, "step_if_finite", "optimiser"),
        )
        for owner, name, part in places:
            self._patch(owner, name, self._timed(part, getattr(owner, name)))
        rate = learning_rate

        def begun(*arguments: Any) -> float:  # the first that a step asks for
            self._begin()
            return rate(*arguments)

        for name, part in (("image_work", "images"), ("text_work", "captions"), ("work", "join")):
            self._patch(DualEncoder, name, self._in_parts(part, getattr(DualEncoder, name)))
        self._patch(loop, "learning_rate", begun)
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._patches.close()

    def _patch(self, owner: Any, name: str, instead: Any) -> None:
        self._patches.enter_context(mock.patch.object(owner, name, instead))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **more: Any) -> Any:
            self._drain()
            start = self._clock()
            try:
                return function(*arguments, **more)
            finally:
                self._drain()
                if self.steps:
                    self.steps[-1][part] += self._clock() - start

        return timed

    def _in_parts(self, part: str, work: Callable[..., Work[Any]]) -> Callable[..., Work[Any]]:
        """Return a method that gives the same work with its micro-batches or its join timed."""

        def timed(*arguments: Any, **more: Any) -> Work[Any]:
            untimed = work(*arguments, **more)
            if part == "join":
                return replace(untimed, join=self._timed(part, untimed.join))
            encodes = tuple(self._timed(part, encode) for encode in untimed.micro_batches)
            return replace(untimed, micro_batches=encodes)

        return timed

    def _begin(self) -> None:
        self._end()
        if enter := self._around.get(len(self.steps)):
            self._block.enter_context(enter())
        self.steps.append(defaultdict(float))
        self._began = self._clock()

    def _end(self) -> None:
        if self.steps:
            self._drain()
            self.steps[-1].setdefault("step", self._clock() - self._began)
        self._block.close()


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations inside the block, those of the backward pass too, without views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()

    @property
    def casts(self) -> int:
        """Conversions to another type."""
        return self.found["aten::_to_copy"]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.found[function._schema.name] += not function.is_view
        return function(*args, **(kwargs or {}))


@contextmanager
def cycled(count: int) -> Iterator[None]:
    """Train on few batches again and again, made before they are needed a second time.

    The first is not among them: losses have not said yet which indices they want.
    """
    steps = BatchLoader.steps

    def again(batches: BatchLoader, start: int, stop: int) -> Iterator[Any]:
        kept = []
        for k, batch in enumerate(steps(batches, start, min(stop, start + count + 1))):
            yield batch
            if k:
                kept.append(batch)
        for k in range(stop - start - count - 1):
            yield kept[k % count]

    with mock.patch.object(BatchLoader, "steps", again):
        yield


def train_steps(
    loaded: LoadedModel, method: Method, data: str, settings: RunSettings, times: StepTimes
) -> None:
    """Train for `settings.stop_after` steps inside `times`, in a run folder that is deleted."""
    optim = replace(method.optim, epochs=10_000, warmup=0)
    with tempfile.TemporaryDirectory() as folder, times:
        settings = replace(settings, out=Path(folder) / "run", save_every=0)
        run_training(loaded, replace(method, optim=optim), open_source(data), settings)


@contextmanager
def _bucket_cost(cost: int) -> Iterator[None]:
    planner = DualEncoder.text_planner

    def other(*arguments: Any, **more: Any) -> TextPlanner:
        return replace(planner(*arguments, **more), cost=max(1, cost))

    with mock.patch.object(DualEncoder, "text_planner", other):
        yield


def _cast_seconds(count: int) -> float:
    """Processor seconds of so many conversions between float32 and bfloat16, half in backward."""
    seconds = []
    for _ in range(5):
        x = start = torch.ones(8, requires_grad=True)
        before = time.thread_time()
        for k in range(count // 2):
            x = x.to(torch.bfloat16 if k % 2 == 0 else torch.float32)
        x.sum().backward()  # type: ignore[no-untyped-call]
        seconds.append(time.thread_time() - before)
        del start
    return statistics.median(seconds)


_TARGETS = {"batches brought": 15.0, "steps started": 45.0}  # milliseconds
QUICK = ("--batch-size=64", "--steps=20")


@dataclass(frozen=True)
class Options(Sampled):
    """Processor milliseconds of a training step of FSC-CLIP in the main process, by part: what a
    GPU waits for when it has nothing left to do. Measured on a CPU, in the loop that trains, with
    a model of ViT-B/32's depth and next to no width; taking a batch and copying its texts with the
    whole batch, all else with a few images, so that what is timed is starting operations and not
    what they compute.

    Args:
        batch_size: Images of the whole batch.
        few: Images for all but taking and copying.
        steps: Timed steps with few images; a fifth of that with the whole batch.
    """

    batch_size: int = 256
    few: int = 16
    steps: int = 60


def measure(options: Options, folder: Path) -> list[Row]:
    """Time the steps of two runs of FSC-CLIP on a CPU, with one worker that reads.

    With the whole batch counts what does not depend on how much there is to compute: taking a
    batch and copying its texts. Everything else is timed with so few images that operations on
    them take no longer than telling a GPU to do them. Texts are put into about as many buckets
    both times: what a bucket costs is in proportion to the batch.
    """
    batch, few = options.batch_size, options.few
    if few > batch:
        raise UsageError("--few must be at most --batch-size")
    drawn = drawn_captions(options.captions, max(batch, 512), options.seed, "--batch-size")
    data, method = write_samples(folder, drawn), load_recipe("fsc-clip")()
    models = {batch: narrow_model(224), few: narrow_model(64)}

    def run(images: int, count: int, precision: Any = "fp32") -> tuple[StepTimes, Operations]:
        seen = Operations()
        times = StepTimes(around={k: lambda: seen for k in COUNTED})
        sized = replace(method, optim=Optim(batch_size=images))
        settings = RunSettings(
            out=Path(), workers=1, precision=precision, stop_after=count, log_every=1
        )
        with _bucket_cost(2048 * images // batch):
            train_steps(models[images], sized, data, settings, times)
        return times, seen

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole, counted = run(batch, max(8, options.steps // 5))
        small, fewer = run(few, options.steps)
        _, lower = run(few, COUNTED[-1] + 2, "bf16")
    finally:
        torch.set_num_threads(threads)
    parts = small.median()
    parts |= {part: whole.median()[part] for part in PREAMBLE}
    spent = {_MEANING[part]: 1000 * parts[part] for part in PARTS}
    slowest = max(spent, key=spent.__getitem__)
    spent["conversions to bfloat16 and back"] = 1000 * _cast_seconds(
        (lower.casts - fewer.casts) // len(COUNTED)
    )
    wholes = {
        "batches brought": sum(spent[_MEANING[part]] for part in PREAMBLE),
        "steps started": sum(spent.values()),
    }
    operations = {f"{batch} images": counted, f"{few} images": fewer, "these in bfloat16": lower}
    return [
        *(
            Row(
                what=f"{what} of {batch} images a CPU second",
                ours=1000 / taken,
                target=1000 / _TARGETS[what],
                of="ours",
                limit=f"{spent[slowest]:.1f} ms of a step: {slowest}",
            )
            for what, taken in wholes.items()
        ),
        *(Row(f"{part}, ms", taken) for part, taken in spent.items()),
        *(
            Row(
                f"operations of a step, without views, with {what}", n.found.total() // len(COUNTED)
            )
            for what, n in operations.items()
        ),
    ]
