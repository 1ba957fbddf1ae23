"""Batches for training: replayable order, any number of workers, damaged images accounted for."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from compoclip.console import counted, note
from compoclip.data.decode import decode
from compoclip.data.plan import Drawn, PlanCounts, TextPlan
from compoclip.data.sample import Batch, Sample, Source
from compoclip.data.textblock import TextBlock
from compoclip.data.transform import ImageTransform
from compoclip.errors import CompoclipError
from compoclip.rewrites.base import rng_for


@dataclass(frozen=True)
class _Task:
    """The samples of one batch, by their index in the source."""

    epoch: int
    indices: tuple[int, ...]


@dataclass
class _Made:
    """A finished batch with what there is to count about it, or the error that prevented it."""

    batch: Batch | None = None
    counts: PlanCounts = field(default_factory=PlanCounts)
    bad: tuple[tuple[str, str], ...] = ()
    error: str = ""


class _Assembler:
    """Task -> batch; runs in the workers. A map-style dataset whose items are whole batches."""

    def __init__(
        self, source: Source, plan: TextPlan, transform: ImageTransform, seed: int
    ) -> None:
        self._source, self._plan, self._transform, self._seed = source, plan, transform, seed

    def __getitem__(self, task: _Task) -> _Made:
        try:
            return self._make(task)
        except CompoclipError as error:  # a raised one would arrive as a many-line traceback
            return _Made(error=str(error))

    def _make(self, task: _Task) -> _Made:
        pixels: list[torch.Tensor] = []
        bad: list[tuple[str, str]] = []
        ids: list[str] = []
        drawn: list[list[Drawn]] = []
        counts = PlanCounts()
        for index in task.indices:
            sample = self._source[index]
            try:
                pixels.append(self._pixels(sample, task.epoch))
            except CompoclipError as error:
                bad.append((sample.id, str(error)))
                continue
            texts, count = self._plan.draw(sample, task.epoch)
            drawn.append(texts)
            counts.add(count)
            ids.append(sample.id)
        height, width = self._transform.preprocess.size
        batch = Batch(
            pixels=torch.stack(pixels) if pixels else torch.zeros(0, 3, height, width),
            block=_block(drawn),
            ids=tuple(ids),
            skipped=tuple(id for id, _ in bad),
        )
        return _Made(batch, counts, tuple(bad))

    def _pixels(self, sample: Sample, epoch: int) -> torch.Tensor:
        name = sample.id if isinstance(sample.image, bytes) else ""
        rng = rng_for(self._seed, sample.id, epoch, "crop")
        return self._transform(decode(sample.image, name=name), rng)


class BatchLoader:
    """Batches of a source in an order that depends on seed and epoch alone.

    Every epoch is a fresh permutation of all samples, cut into batches; the last incomplete one
    is dropped. Captions, rewrites and crops are seeded by sample and epoch, so batches are the
    same for any number of workers, and an epoch can be entered at any step without decoding
    what came before.

    A sample whose image cannot be read is left out of its batch, which is then smaller; it is
    reported once and listed in `Batch.skipped`. After more than `max_bad` such samples the loader
    gives up.

    counts: what the caption plan made since the loader was built. bad: sample id -> reason.
    """

    def __init__(
        self,
        source: Source,
        plan: TextPlan,
        transform: ImageTransform,
        *,
        batch_size: int,
        seed: int = 0,
        workers: int = 0,
        max_bad: int = 0,
        rank: int = 0,
        world: int = 1,
        start_method: str | None = None,
    ) -> None:
        """batch_size: over all processes. workers: 0 works in this process.

        rank, world: this process makes the rank-th of `world` equal parts of every batch.
        start_method: of the workers ("fork", "spawn", "forkserver"); None is the platform's.
        Raises CompoclipError when the batch cannot be split evenly.
        """
        if batch_size < 1 or batch_size % world:
            raise CompoclipError(
                f"batch size {batch_size} cannot be split over {world} processes; change it"
            )
        self.batch_size = batch_size
        self.counts = PlanCounts()
        self.bad: dict[str, str] = {}
        self._samples = len(source)
        self._seed, self._max_bad = seed, max_bad
        self._rank, self._world = rank, world
        self._assembler = _Assembler(source, plan, transform, seed)
        self._tasks: list[_Task] = []  # of the epoch under way; what the workers' sampler reads
        self._worker_count, self._start_method = workers, start_method
        self._workers: DataLoader[Any] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in the source."""
        return self._samples // self.batch_size

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from `start_step` on.

        Only one epoch can be under way at a time. Raises CompoclipError when more than `max_bad`
        images could not be read, when a batch has no readable image, or when the source fails.
        """
        self._tasks[:] = self._schedule(epoch, start_step)
        try:
            for result in self._results():
                yield self._account(result)
        except CompoclipError:
            self.close()
            raise

    def close(self) -> None:
        """End the workers; a later epoch starts new ones."""
        self._workers = None  # the last reference: the workers are told to end at once

    def _results(self) -> Iterator[_Made]:
        if self._worker_count == 0:
            return (self._assembler[task] for task in self._tasks)
        if self._workers is None:
            self._workers = DataLoader(
                self._assembler,  # type: ignore[arg-type]
                batch_size=None,
                sampler=_Sampler(self._tasks),
                num_workers=self._worker_count,
                collate_fn=_as_it_is,
                worker_init_fn=_init_worker,
                persistent_workers=True,
                # Not the global one: seeds drawn from it would change dropout, with workers only.
                generator=torch.Generator(),
                multiprocessing_context=self._start_method,
            )
        return iter(self._workers)

    def _schedule(self, epoch: int, start_step: int) -> list[_Task]:
        bits = rng_for(self._seed, "", epoch, "order").getrandbits(64)
        order = np.random.Generator(np.random.PCG64(bits)).permutation(self._samples)
        part = self.batch_size // self._world
        tasks = []
        for step in range(start_step, self.steps_per_epoch):
            first = step * self.batch_size + self._rank * part
            tasks.append(_Task(epoch, tuple(order[first : first + part].tolist())))
        return tasks

    def _account(self, made: _Made) -> Batch:
        fresh = {id: reason for id, reason in made.bad if id not in self.bad}
        self.bad.update(fresh)
        if len(self.bad) > self._max_bad:
            first = "; ".join(list(dict.fromkeys(self.bad.values()))[:3])
            raise CompoclipError(
                f"{counted(len(self.bad), 'unreadable image')}, {self._max_bad} allowed: {first}; "
                "mend the data or raise --max-bad"
            )
        for reason in fresh.values():
            note(f"left out: {reason}")
        if made.batch is None:
            raise CompoclipError(made.error)
        if not made.batch.ids:
            raise CompoclipError(
                f"no image of a batch could be read ({made.bad[0][1]}); mend the data"
            )
        self.counts.add(made.counts)
        return made.batch


class _Sampler:
    """Yields what is in the list at the time: workers outlive the epoch, the tasks do not."""

    def __init__(self, tasks: list[_Task]) -> None:
        self._tasks = tasks

    def __iter__(self) -> Iterator[_Task]:
        return iter(list(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)


def _block(drawn: list[list[Drawn]]) -> TextBlock:
    flat = [(owner, text) for owner, texts in enumerate(drawn) for text in texts]
    return TextBlock(
        texts=tuple(text.text for _, text in flat),
        owner=tuple(owner for owner, _ in flat),
        role=tuple(text.role for _, text in flat),
        rewrite=tuple(text.rewrite for _, text in flat),
        images=len(drawn),
    )


def _as_it_is(made: Any) -> Any:
    return made


def _init_worker(worker: int) -> None:
    """One thread a worker; Ctrl-C is for the main process, which ends the workers."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
