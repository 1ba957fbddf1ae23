"""Which samples make which batch of an epoch, by seed and epoch alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from compoclip.console import note
from compoclip.data.plans import Composed, Groups, ImagePlan
from compoclip.data.sample import Source
from compoclip.errors import CompoclipError, UsageError
from compoclip.rewrites.base import rng_for

T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """The samples of one batch, by their index in the source; kind: see `Batch`."""

    epoch: int
    indices: tuple[int, ...]
    kind: str = "single"


@dataclass(frozen=True)
class Share:
    """This process makes the `rank`-th of `world` equal parts of every batch of `batch_size`."""

    batch_size: int
    rank: int = 0
    world: int = 1


class Schedule(Protocol):
    """The batches of every epoch."""

    @property
    def steps_per_epoch(self) -> int: ...

    def tasks(self, epoch: int, start_step: int = 0) -> list[Task]:
        """The batches of an epoch from `start_step` on, this process's part of each."""
        ...


def schedule_of(source: Source, images: ImagePlan, share: Share, seed: int) -> Schedule:
    """The schedule that an image plan asks for.

    Raises CompoclipError when the batch cannot be split evenly, UsageError when it cannot be made
    of whole groups.
    """
    if share.batch_size < 1 or share.batch_size % share.world:
        raise CompoclipError(
            f"batch size {share.batch_size} cannot be split over {share.world} processes; change it"
        )
    if isinstance(images, Groups):
        return GroupedSchedule(source, images, share, seed)
    alternate = isinstance(images, Composed) and images.alternate
    kind = "composed" if isinstance(images, Composed) else "single"
    return ShuffledSchedule(len(source), share, seed, kind, alternate)


@dataclass(frozen=True)
class ShuffledSchedule:
    """A fresh permutation of all samples every epoch; the last incomplete batch is dropped.

    alternate: every other step, counted over all epochs, is "single".
    """

    samples: int
    share: Share
    seed: int
    kind: str = "single"
    alternate: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in the source."""
        return self.samples // self.share.batch_size

    def tasks(self, epoch: int, start_step: int = 0) -> list[Task]:
        """The batches of an epoch from `start_step` on."""
        bits = rng_for(self.seed, "", epoch, "order").getrandbits(64)
        order = np.random.Generator(np.random.PCG64(bits)).permutation(self.samples)
        part = self.share.batch_size // self.share.world
        tasks = []
        for step in range(start_step, self.steps_per_epoch):
            first = step * self.share.batch_size + self.share.rank * part
            odd = (epoch * self.steps_per_epoch + step) % 2
            kind = "single" if self.alternate and odd else self.kind
            tasks.append(Task(epoch, tuple(order[first : first + part].tolist()), kind))
        return tasks


class GroupedSchedule:
    """Groups of variations of one object among ordinary pairs (see `Groups`).

    An epoch goes once through the ordinary pairs, or, when groups hold none, through the groups.
    Every step has groups of its own, in shuffled order, over and over. The variations of a group
    are drawn without replacement, with probability proportional to score - least score of the group
    + 0.5. Groups that are too small are left out.
    """

    def __init__(self, source: Source, plan: Groups, share: Share, seed: int) -> None:
        slots = plan.variations + plan.pairs
        if share.batch_size % (slots * share.world):
            raise UsageError(
                f"--batch-size {share.batch_size}: must be a multiple of {slots * share.world}, "
                f"{plan.variations} variations and {plan.pairs} pairs a group"
            )
        read: Callable[[], tuple[list[str], list[float]]] | None = getattr(source, "groups", None)
        names, self._scores = read() if read else ([], [])
        members: dict[str, list[int]] = {}
        for index, name in enumerate(names):
            members.setdefault(name, []).append(index)
        self._pairs = members.pop("", [])
        self._groups = [group for group in members.values() if len(group) >= plan.variations]
        self._plan, self._share, self._seed = plan, share, seed
        self._per_step = share.batch_size // slots
        if len(members) > len(self._groups):
            small = len(members) - len(self._groups)
            note(f"left out: {small} groups of fewer than {plan.variations} variations")
        if len(self._groups) < self._per_step:
            raise UsageError(
                f"{source.describe()}: {len(self._groups)} usable groups, and a batch takes "
                f"{self._per_step}; lower --batch-size or supply more"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in an epoch."""
        if not self._plan.pairs:
            return len(self._groups) // self._per_step
        return len(self._pairs) // (self._per_step * self._plan.pairs)

    def tasks(self, epoch: int, start_step: int = 0) -> list[Task]:
        """The batches of an epoch from `start_step` on."""
        pairs = _shuffled(self._pairs, rng_for(self._seed, "", epoch, "order"))
        groups: list[list[int]] = []
        rng = rng_for(self._seed, "", epoch, "groups")
        whole = len(self._groups) // self._per_step * self._per_step
        while len(groups) < self.steps_per_epoch * self._per_step:
            groups += _shuffled(self._groups, rng)[:whole]
        tasks = []
        part = self._per_step // self._share.world
        for step in range(start_step, self.steps_per_epoch):
            first = step * self._per_step + self._share.rank * part
            indices: list[int] = []
            for slot in range(first, first + part):
                rng = rng_for(self._seed, str(slot), epoch, "variations")
                indices += self._variations(groups[slot], rng)
                indices += pairs[slot * self._plan.pairs : (slot + 1) * self._plan.pairs]
            tasks.append(Task(epoch, tuple(indices)))
        return tasks

    def _variations(self, group: Sequence[int], rng: random.Random) -> list[int]:
        least = min(self._scores[index] for index in group)
        left = {index: self._scores[index] - least + 0.5 for index in group}
        drawn = []
        for _ in range(self._plan.variations):
            (index,) = rng.choices(list(left), list(left.values()))
            del left[index]
            drawn.append(index)
        return drawn


def _shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    return rng.sample(list(items), len(items))
