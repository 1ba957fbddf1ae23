"""Batches of variations of one object among ordinary pairs (GNM-CLIP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compoclip.console import counted, note
from compoclip.data.images import ImagePlan, Schedule
from compoclip.data.sources import GROUP, Source
from compoclip.errors import UsageError
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
        if self.variations < 1 or self.pairs < 0:
            raise UsageError("a group needs at least 1 variation and at least 0 pairs")

    def require(self, source: Source) -> None:
        """Raise UsageError unless the data have variations."""
        source.require(
            GROUP,
            "variations; it needs a column group that variations of one object share (empty for "
            "ordinary pairs) and may have a column score",
        )

    def schedule(self, source: Source, batch_size: int, seed: int, world: int = 1) -> Schedule:
        """Return batches of whole groups. Raises UsageError when they cannot fill a batch.

        An epoch shows each ordinary pair once or, without ordinary pairs, each group once. Every
        step takes other groups, in shuffled order, again and again. The variations of a group are
        sampled without replacement, with probability proportional to score - least score of the
        group + 0.5; a missing score counts as the least. Groups with too few good variations are
        left out.
        """
        slots, source_name = self.variations + self.pairs, source.describe()
        if source.mix is not None:
            raise UsageError(
                f"{source_name}: a mixture with weights cannot be trained in groups of variations; "
                "train on one data set, or put all rows into one"
            )
        if batch_size % (slots * world):
            raise UsageError(
                f"--batch-size {batch_size}: must be a multiple of {slots * world}, "
                f"{counted(self.variations, 'variation')} and {counted(self.pairs, 'pair')} "
                "per group"
            )
        scores = list(source.column("score"))
        members: dict[str, list[int]] = {}  # the variations that are good enough
        low = 0
        columns = source.column(GROUP), scores, source.column("image_score")
        for index, (name, score, image) in enumerate(zip(*columns)):
            poor = score is not None and score <= self.least_score
            poor |= image is not None and image <= self.least_image_score
            if name and poor:
                low += 1
            else:
                members.setdefault(name, []).append(index)
        if low:
            note(f"left out: {counted(low, 'variation')} with a low score")
        pairs = members.pop("", [])
        groups = [group for group in members.values() if len(group) >= self.variations]
        if small := len(members) - len(groups):
            note(f"left out: {counted(small, 'group')} of fewer than {self.variations} variations")
        per_step = batch_size // slots  # groups in a step
        if len(groups) < per_step:
            raise UsageError(
                f"{source_name}: {counted(len(groups), 'usable group')}, and a batch takes "
                f"{per_step}; lower --batch-size or supply more"
            )
        steps = len(pairs) // (per_step * self.pairs) if self.pairs else len(groups) // per_step
        return steps, partial(self._order, groups, pairs, scores, seed, steps * per_step, per_step)

    def _order(
        self,
        groups: Sequence[Sequence[int]],
        pairs: Sequence[int],
        scores: Sequence[float | None],
        seed: int,
        count: int,
        per_step: int,
        epoch: int,
    ) -> NDArray[np.int64]:
        """The samples of an epoch of `count` groups, `per_step` a step."""
        ordered = rng_for(seed, "", epoch, "order").sample(pairs, len(pairs))
        rng = rng_for(seed, "", epoch, "groups")
        whole = len(groups) // per_step * per_step
        chosen: list[Sequence[int]] = []
        while len(chosen) < count:
            chosen += rng.sample(groups, len(groups))[:whole]
        indices: list[int] = []
        for slot, group in enumerate(chosen[:count]):
            rng = rng_for(seed, str(slot), epoch, "variations")
            group_scores = [scores[i] for i in group]
            lowest = min((score for score in group_scores if score is not None), default=0.0)
            left = {
                i: (lowest if score is None else score) - lowest + 0.5
                for i, score in zip(group, group_scores)
            }
            for _ in range(self.variations):
                (index,) = rng.choices(list(left), list(left.values()))
                del left[index]
                indices.append(index)
            indices += ordered[slot * self.pairs : (slot + 1) * self.pairs]
        return np.array(indices, np.int64)
