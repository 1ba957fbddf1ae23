"""Batches of variations of one object among ordinary pairs (GNM-CLIP)."""

from __future__ import annotations

from dataclasses import dataclass

from compoclip.console import counted, note
from compoclip.data.images import BatchTask, ImagePlan, RankShare
from compoclip.data.sources import GROUP, Source
from compoclip.errors import refuse
from compoclip.rewrites.base import rng_for


@dataclass(frozen=True)
class Groups(ImagePlan):
    """Batches of variations of one object among ordinary pairs (GNM-CLIP).

    Variations without a score are always used.

    Args:
        variations: Samples of one `group` per group of the batch.
        pairs: Samples without a `group` per group of the batch.
        least_score: Variations need a `score` above this.
        least_image_score: Variations need an `image_score` above this.
    """

    variations: int = 2
    pairs: int = 8
    least_score: float = 0.0
    least_image_score: float = 14.0

    def __post_init__(self) -> None:
        bad = self.variations < 1 or self.pairs < 0
        refuse({"a group needs at least 1 variation and no fewer than 0 pairs": bad})

    def require(self, source: Source) -> None:
        """Raise UsageError unless the data have variations."""
        needed = "variations; it needs a column group that variations of one object share (empty "
        source.require(GROUP, f"{needed}for ordinary pairs) and may have a column score")

    def schedule(self, source: Source, share: RankShare, seed: int) -> GroupedSchedule:
        """Return batches of whole groups. Raises UsageError when they cannot fill a batch."""
        wrong = (
            f"{source.describe()}: groups of variations have an order of their own, which "
            "weights say nothing about; train on one data set, or put all rows into one"
        )
        refuse({wrong: source.mix is not None})
        return GroupedSchedule(source, self, share, seed)


class GroupedSchedule:
    """Groups of variations of one object among ordinary pairs (see `Groups`).

    An epoch shows each ordinary pair once or, without ordinary pairs, each group once. Every step
    takes other groups, in shuffled order, again and again. The variations of a group are sampled
    without replacement, with probability proportional to score - least score of the group + 0.5;
    a missing score counts as the least. Groups with too few good variations are left out.
    """

    def __init__(self, source: Source, plan: Groups, share: RankShare, seed: int) -> None:
        slots = plan.variations + plan.pairs
        wrong = (
            f"--batch-size {share.batch_size}: must be a multiple of {slots * share.world}, "
            f"{plan.variations} variations and {plan.pairs} pairs a group"
        )
        refuse({wrong: share.batch_size % (slots * share.world)})
        self._scores = list(source.column("score"))
        columns = source.column(GROUP), self._scores, source.column("image_score")
        members: dict[str, list[int]] = {}  # the variations that are good enough
        low = 0
        for index, (name, score, image) in enumerate(zip(*columns)):
            poor = score is not None and score <= plan.least_score
            poor |= image is not None and image <= plan.least_image_score
            if name and poor:
                low += 1
            else:
                members.setdefault(name, []).append(index)
        if low:
            note(f"left out: {counted(low, 'variation')} with a low score")
        self._pairs = members.pop("", [])
        self._groups = [group for group in members.values() if len(group) >= plan.variations]
        self._plan, self._share, self._seed = plan, share, seed
        self._per_step = share.batch_size // slots
        if len(members) > len(self._groups):
            small = len(members) - len(self._groups)
            note(f"left out: {counted(small, 'group')} of fewer than {plan.variations} variations")
        wrong = (
            f"{source.describe()}: {len(self._groups)} usable groups, and a batch takes "
            f"{self._per_step}; lower --batch-size or supply more"
        )
        refuse({wrong: len(self._groups) < self._per_step})

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of full batches in an epoch."""
        if not self._plan.pairs:
            return len(self._groups) // self._per_step
        return len(self._pairs) // (self._per_step * self._plan.pairs)

    def tasks(self, epoch: int, start_step: int = 0) -> list[BatchTask]:
        """Return the batches of an epoch from `start_step` on."""
        order = rng_for(self._seed, "", epoch, "order")
        pairs = order.sample(self._pairs, len(self._pairs))
        groups: list[list[int]] = []
        rng = rng_for(self._seed, "", epoch, "groups")
        whole = len(self._groups) // self._per_step * self._per_step
        while len(groups) < self.steps_per_epoch * self._per_step:
            groups += rng.sample(self._groups, len(self._groups))[:whole]
        tasks = []
        part = self._per_step // self._share.world
        for step in range(start_step, self.steps_per_epoch):
            first = step * self._per_step + self._share.rank * part
            indices: list[int] = []
            for slot in range(first, first + part):
                rng = rng_for(self._seed, str(slot), epoch, "variations")
                scores = {index: self._scores[index] for index in groups[slot]}
                known = [score for score in scores.values() if score is not None]
                least = min(known, default=0.0)
                left = {i: (least if s is None else s) - least + 0.5 for i, s in scores.items()}
                for _ in range(self._plan.variations):
                    (index,) = rng.choices(list(left), list(left.values()))
                    del left[index]
                    indices.append(index)
                indices += pairs[slot * self._plan.pairs : (slot + 1) * self._plan.pairs]
            tasks.append(BatchTask(epoch, tuple(indices)))
        return tasks
