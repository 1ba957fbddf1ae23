"""Batches for training: replayable order, any number of workers, damaged images accounted for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from multiprocessing import get_start_method
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from compoclip.console import note
from compoclip.data.batch import Batch
from compoclip.data.cached import CachedFeatures
from compoclip.data.decode import require_readable
from compoclip.data.images import (
    SINGLE,
    BatchBuilder,
    Companions,
    ImagePlan,
    UnreadableError,
)
from compoclip.data.plan import TextPlan
from compoclip.data.prepared import Preparation
from compoclip.data.sources import Source
from compoclip.data.transform import ImageTransform
from compoclip.errors import CompoclipError
from compoclip.losses.contract import IndexRequest
from compoclip.plugins import fence
from compoclip.process import require_main_guard

Item = tuple[int, str, Sequence[int], frozenset[IndexRequest]]
"""Epoch, kind and samples of a batch, and the indices that losses have requested so far."""


@dataclass(frozen=True)
class Assembler:
    """Item -> batch, by an image plan. A map-style dataset whose items are whole batches."""

    empty: BatchBuilder
    images: ImagePlan
    prepare: Preparation | None = None

    def __getitem__(self, item: Item) -> Batch | str:
        """The batch, or an error message: a raised error would arrive as a traceback."""
        epoch, kind, indices, requests = item
        building = replace(self.empty, epoch=epoch, kind=kind)
        source = building.source
        try:
            with fence():
                for number in indices:
                    # A mixture may draw a sample again in one epoch (`WeightedMix.order`).
                    repeat, index = divmod(number, len(source))
                    sample = source[index]
                    if repeat:
                        sample = replace(sample, key=f"{sample.drawn_by}\x1f{repeat}")
                    try:
                        self.images.add_to_batch(building, index, sample)
                    except UnreadableError as error:
                        building.bad.append((error.args[0], error.args[1]))
                        building.skipped.append(sample.id)
                by = self.images.mean_and_std(building.transform.preprocess, kind)
                batch = building.batch(by)
                if self.prepare is None:
                    return batch
                return replace(batch, numbers=self.prepare(batch, requests))
        except CompoclipError as error:
            return str(error)


class BatchLoader:
    """Batches of a source in an order that depends on seed and epoch alone.

    Every epoch is a permutation of all samples, cut into full batches (groups: see
    `ImagePlan.schedule`). Captions, rewrites and crops are seeded by sample and epoch, so that
    batches are the same for any number of workers, and an epoch can start at any step.

    A sample with an unreadable image is left out of its batch, reported once and listed in
    `Batch.skipped`; after more than `max_bad` of them the loader raises. The part of a batch that
    one of several processes makes may be empty.

    bad: sample id -> reason.
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
        images: ImagePlan = SINGLE,
        companions: Companions | None = None,
        cached: CachedFeatures | None = None,
    ) -> None:
        """Make a loader; workers start with the first epoch.

        batch_size: samples per batch, over all processes; this one makes the `rank`-th of `world`
        equal parts of each. workers: reading processes; 0 reads in this one. max_bad: most
        unreadable images. start_method: of the workers ("fork", "spawn", "forkserver"); None is the
        platform's. companions: the image plan's index over the source (`ImagePlan.prepare`).
        cached: features to use instead of photos. Raises CompoclipError when the batch cannot be
        split evenly.
        """
        if batch_size < 1 or batch_size % world:
            raise CompoclipError(
                f"batch size {batch_size} cannot be split over {world} processes; change it"
            )
        steps, order = images.schedule(source, batch_size, seed, world)
        self.steps_per_epoch, self.batch_size = steps, batch_size
        self.bad: dict[str, str] = {}
        self._max_bad = max_bad
        self._may_be_empty = world > 1
        empty = BatchBuilder(
            source, plan, transform, seed, companions or Companions(), cached=cached
        )
        self._assembler = Assembler(empty, images)
        # Indices that losses have requested so far. They do not depend on the batch, so workers
        # compute the requests of the first batches for all later ones.
        self._requests: set[IndexRequest] = set()
        part = batch_size // world
        place = slice(rank * part, (rank + 1) * part)
        self._items = _Items(steps, batch_size, order, images.kind, place, self._requests)
        self._pin = False
        self._epoch_counts: list[dict[str, int]] = []  # of a mixture, in each whole epoch
        self._worker_count, self._start_method = workers, start_method
        self._workers: DataLoader[Any] | None = None

    def prepare_with(self, preparation: Preparation, device: torch.device) -> None:
        """Let workers tokenise the texts of batches, and pin batches for a CUDA device."""
        self.close()  # running workers have the old assembler
        self._assembler = replace(self._assembler, prepare=preparation)
        self._pin = device.type == "cuda"

    @property
    def samples(self) -> int:
        """Return the number of samples of the source."""
        return len(self._assembler.empty.source)

    def samples_by_source(self, steps: int) -> dict[str, int]:
        """Return the samples per data set in the first steps of a mixture; {} for other data."""
        mix = self._assembler.empty.source.mix
        if mix is None:
            return {}
        epochs, rest = divmod(steps, self.steps_per_epoch)
        for epoch in range(len(self._epoch_counts), epochs):
            samples = self.steps_per_epoch * self.batch_size
            self._epoch_counts.append(
                mix.samples_by_source(self._assembler.empty.seed, epoch, samples)
            )
        now = mix.samples_by_source(self._assembler.empty.seed, epochs, rest * self.batch_size)
        return {
            name: sum(counts[name] for counts in self._epoch_counts[:epochs]) + now[name]
            for name in now
        }

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from `start_step` on; see `steps`."""
        first = epoch * self.steps_per_epoch
        return self.steps(first + start_step, first + self.steps_per_epoch)

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of the steps from `start` until before `stop`, over all epochs.

        Workers start the next epoch while this one ends, and read nothing beyond `stop`. Only
        one iteration can be active at a time. Raises CompoclipError when more than `max_bad`
        images could not be read, when a batch has no readable image, or when the source fails.
        """
        self._items.start, self._items.stop = start, stop
        try:
            for result in self._results():
                if isinstance(result, str):
                    raise CompoclipError(result)
                self.report_bad(dict(result.bad))
                if not result.ids and not self._may_be_empty:
                    raise CompoclipError(
                        f"no image of a batch could be read ({result.bad[0][1]}); fix the data"
                    )
                yield replace(result, unforeseen=self._requests)
        except CompoclipError:
            self.close()
            raise

    def close(self) -> None:
        """Stop the workers; a later epoch starts new ones."""
        iterator = getattr(self._workers, "_iterator", None)
        self._workers = None
        if iterator is not None:  # a stored error would keep it, and the workers, alive
            iterator._shutdown_workers()

    def report_bad(self, bad: Mapping[str, str]) -> None:
        """Count samples with unreadable images, of this process or another: id -> reason.

        Raises CompoclipError when their number exceeds `max_bad`.
        """
        fresh = {id: reason for id, reason in bad.items() if id not in self.bad}
        self.bad.update(fresh)
        require_readable(self.bad, self._max_bad, "allow more with --set max_bad=N")
        for reason in fresh.values():
            note(f"left out: {reason}")

    def _results(self) -> Iterator[Batch | str]:
        """Yield the results of the tasks; a killed worker is an error of one line.

        Torch notices it while waiting for or fetching a batch. The messages of errors within a
        worker begin with "Caught".
        """
        if self._worker_count == 0:
            for result in map(self._assembler.__getitem__, self._items):
                yield result.pin_memory() if self._pin and isinstance(result, Batch) else result
            return
        if self._workers is None:
            require_main_guard(self._start_method or get_start_method())
            self._workers = DataLoader(
                self._assembler,  # type: ignore[arg-type]
                batch_size=None,
                sampler=self._items,
                num_workers=self._worker_count,
                worker_init_fn=_init_worker,
                persistent_workers=True,
                pin_memory=self._pin,
                # Seeds from the global generator would change dropout, with workers only.
                generator=torch.Generator(),
                multiprocessing_context=self._start_method,
            )
        # Torch's handler of SIGCHLD raises anywhere, perhaps while weights change, when a worker
        # dies. Waiting for a batch notices it as well.
        before = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
        try:
            results = iter(self._workers)
            if before is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGCHLD, before)
            yield from results
        except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            gone = not isinstance(error, RuntimeError) or reason.startswith(
                "DataLoader worker (pid"
            )
            if not gone or (reason.startswith("Caught ") and "pin memory thread" not in reason):
                raise
            raise CompoclipError(
                f"a process that reads data was killed ({reason}), probably because memory ran "
                "out; continue with --resume, and with fewer --workers if it happens again"
            ) from None


@dataclass
class _Items:
    """The items of the steps from `start` until before `stop`, each of this process's part.

    A reference to the loader would make a cycle: the workers of a loader that is not closed would
    then be waited for, 5 seconds each.
    """

    per_epoch: int
    batch_size: int
    order: Callable[[int], NDArray[np.int64]]
    kind: Callable[[int], str]
    part: slice
    requests: Set[IndexRequest]
    start: int = 0
    stop: int = 0

    def __iter__(self) -> Iterator[Item]:
        current = -1
        for step in range(self.start, self.stop):
            epoch, place = divmod(step, self.per_epoch)
            if epoch != current:
                current, order = epoch, self.order(epoch)
            indices = order[place * self.batch_size :][: self.batch_size][self.part].tolist()
            yield epoch, self.kind(step), indices, frozenset(self.requests)


def _init_worker(worker: int) -> None:
    """One thread per worker; Ctrl-C is for the main process, which ends the workers."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
