"""The interface of a form of item: how items are scored and judged, and named on a card.

A form is one object in `FORMS` (`evaluation.forms`). Code asks the object about its items; nothing
depends on its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import numpy as np

from compoclip.benchmarks.case import Aggregate, Benchmark, Content, Form, TiePolicy
from compoclip.evaluation.items import EncodedFeatures, Flags, Indices, Items

C = TypeVar("C", bound=Content)


class ItemForm(ABC, Generic[C]):
    """One form of items, and how a benchmark's content of that form becomes scored items.

    name: as in cases and stored items. metrics: the main one first; means of a 0/1 outcome per
    item, except curves (`aggregate.RANKED`). ties: default tie policy. in_pairs: a matching head
    can score the items, pair by pair. together: the items are judged against each other, so that
    the content can hold no other form. one_gallery: they are ranked in one gallery, so that ranks
    in different galleries do not compare. called, headings: names on a card of the texts and of the
    scores, by default of the right candidate and its best rival. alone: by truth, name of the text
    of an item with a single photo and text, and whether it is true. comparisons: as of `CaseForm`.
    """

    name: Form
    called: tuple[str, ...] = ("Right", "Chosen")
    headings: tuple[str, ...] = ("right one", "best rival")
    alone: ClassVar[tuple[tuple[str, bool | None], ...]] = (("False", False), ("True", True))
    true: tuple[bool | None, ...] = ()
    comparisons: Mapping[str, str] = {}
    metrics: tuple[str, ...]
    in_pairs: bool = False
    ties: ClassVar[TiePolicy] = TiePolicy.FIRST
    together: ClassVar[bool] = True
    one_gallery: ClassVar[bool] = False

    @abstractmethod
    def items(self, content: C, features: EncodedFeatures, benchmark: Benchmark) -> Items:
        """Score and judge the items of `content`, a benchmark's content without absent images.

        Raises CompoclipError when an item does not fit its form, or the items cannot be judged.
        """

    def rules(self, content: C, subtasks: Sequence[str]) -> tuple[dict[str, Aggregate], str]:
        """Return the aggregates over `subtasks` of such content, and the one to quote: by default
        the mean over all items, and that over the sub-tasks."""
        parts = tuple(subtasks)
        return {"micro": Aggregate(parts, "micro"), "macro": Aggregate(parts)}, "micro"

    def fits(self, images: Indices, texts: Indices, scores: Indices, truth: Indices) -> Flags:
        """Return which stored items have this form's numbers of images, texts and scores.

        By default items of a gallery: the right candidate, and its best rival if there is one.
        """
        some = (images >= 1) & (texts >= 1) & (scores >= 1) & (scores <= 2)
        fitting: Flags = some & (truth >= 0) & (truth < 2)
        return fitting


def first_wins(subtasks: Iterable[str], ties: Mapping[str, TiePolicy], default: TiePolicy) -> Flags:
    """Return for each item's sub-task whether a tie goes to the first candidate, or is wrong.

    ties: sub-task -> policy, "" for all others.
    """
    policy = ties.get("", default)
    return np.array([ties.get(part, policy) is TiePolicy.FIRST for part in subtasks], dtype=bool)
