"""Which samples make which batch of an epoch, by seed and epoch alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from compoclip.console import counted, note
from compoclip.data.plans import Composed, Groups, ImagePlan
from compoclip.data.sample import Source
from compoclip.errors import CompoclipError, UsageError
from compoclip.rewrites.base import rng_for

T = TypeVar("T")
_Scores = list[float | None]


@dataclass(frozen=True)
class BatchTask:
    """The samples of one batch, by their index in the source; kind: see `Batch`."""

    epoch: int
    indices: tuple[int, ...]
    kind: str = "single"


@dataclass(frozen=True)
class RankShare:
    """This process makes the `rank`-th of `world` equal parts of every batch of `batch_size`."""

    batch_size: int
    rank: int = 0
    world: int = 1


class Schedule(Protocol):
    """The batches of every epoch."""

    @property
    def steps_per_epoch(self) -> int: ...

    def tasks(self, epoch: int, start_step: int = 0) -> list[BatchTask]:
        """The batches of an epoch from `start_step` on, this process's part of each."""
        ...


def schedule_of(source: Source, images: ImagePlan, share: RankShare, seed: int) -> Schedule:
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
    share: RankShare
    seed: int
    kind: str = "single"
    alternate: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in the source."""
        return self.samples // self.share.batch_size

    def tasks(self, epoch: int, start_step: int = 0) -> list[BatchTask]:
        """The batches of an epoch from `start_step` on."""
        bits = rng_for(self.seed, "", epoch, "order").getrandbits(64)
        order = np.random.Generator(np.random.PCG64(bits)).permutation(self.samples)
        part = self.share.batch_size // self.share.world
        tasks = []
        for step in range(start_step, self.steps_per_epoch):
            first = step * self.share.batch_size + self.share.rank * part
            odd = (epoch * self.steps_per_epoch + step) % 2
            kind = "single" if self.alternate and odd else self.kind
            tasks.append(BatchTask(epoch, tuple(order[first : first + part].tolist()), kind))
        return tasks


class GroupedSchedule:
    """Groups of variations of one object among ordinary pairs (see `Groups`).

    An epoch goes once through the ordinary pairs, or, when groups hold none, through the groups.
    Every step has groups of its own, in shuffled order, over and over. The variations of a group
    are drawn without replacement, with probability proportional to score - least score of the group
    + 0.5; one without a score counts as the least. Variations of low scores, and groups that are
    then too small, are left out.
    """

    def __init__(self, source: Source, plan: Groups, share: RankShare, seed: int) -> None:
        slots = plan.variations + plan.pairs
        if share.batch_size % (slots * share.world):
            raise UsageError(
                f"--batch-size {share.batch_size}: must be a multiple of {slots * share.world}, "
                f"{plan.variations} variations and {plan.pairs} pairs a group"
            )
        self._pairs, members = self._members(source, plan)
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

    def _members(self, source: Source, plan: Groups) -> tuple[list[int], dict[str, list[int]]]:
        """The ordinary pairs, and the variations that are good enough by group."""
        read: Callable[[], tuple[list[str], _Scores]] | None = getattr(source, "groups", None)
        names, self._scores = read() if read else ([], [])
        more: Callable[[], _Scores] | None = getattr(source, "image_scores", None)
        images: _Scores = more() if more else [None] * len(names)
        members: dict[str, list[int]] = {}
        low = 0
        for index, (name, score, image) in enumerate(zip(names, self._scores, images)):
            poor = score is not None and score <= plan.least_score
            poor |= image is not None and image <= plan.least_image_score
            if name and poor:
                low += 1
                continue
            members.setdefault(name, []).append(index)
        if low:
            note(f"left out: {counted(low, 'variation')} with a low score")
        return members.pop("", []), members

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in an epoch."""
        if not self._plan.pairs:
            return len(self._groups) // self._per_step
        return len(self._pairs) // (self._per_step * self._plan.pairs)

    def tasks(self, epoch: int, start_step: int = 0) -> list[BatchTask]:
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
            tasks.append(BatchTask(epoch, tuple(indices)))
        return tasks

    def _variations(self, group: Sequence[int], rng: random.Random) -> list[int]:
        known = {index: score for index in group if (score := self._scores[index]) is not None}
        least = min(known.values(), default=0.0)
        left = {index: known.get(index, least) - least + 0.5 for index in group}
        drawn = []
        for _ in range(self._plan.variations):
            (index,) = rng.choices(list(left), list(left.values()))
            del left[index]
            drawn.append(index)
        return drawn


def _shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    return rng.sample(list(items), len(items))
