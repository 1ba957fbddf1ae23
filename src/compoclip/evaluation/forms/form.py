"""The interface of a form of item: how items are scored, judged and shown on a card.

A form is one object in `FORMS` (`evaluation.forms`). Code asks the object about its items; nothing
depends on its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from compoclip.benchmarks.case import Aggregate, Benchmark, Content, Form, TiePolicy
from compoclip.evaluation.items import EncodedFeatures, Flags, Indices, Items

C = TypeVar("C", bound=Content)
Record = Mapping[str, Any]
"""A row of a table of items (`items.COLUMNS`)."""


ShownItem = tuple[
    Sequence[tuple[str, str]],
    Sequence[tuple[str, str, bool | None]],
    Sequence[tuple[str, int]],
]
"""The contents of an item's card: images as (label, key); texts as (label, text, whether it is true
of the image, None if undefined); columns as (heading, index of the item's score)."""


class ItemForm(ABC, Generic[C]):
    """One form of items, and how a benchmark's content of that form becomes scored items.

    name: as in cases and stored items. metrics: the main one first; means of a 0/1 outcome per
    item, except curves (`aggregate.RANKED`). ties: default tie policy. in_pairs: a matching head
    can score the items, pair by pair. together: the items are judged against each other, so that
    the content can hold no other form. one_gallery: they are ranked in one gallery, so that ranks
    in different galleries do not compare.
    """

    name: Form
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

    @abstractmethod
    def rules(self, content: C, subtasks: Sequence[str]) -> tuple[dict[str, Aggregate], str]:
        """Return the aggregates over `subtasks` of such content, and the one to quote."""

    def fits(self, images: Indices, texts: Indices, scores: Indices, truth: Indices) -> Flags:
        """Return which stored items have this form's numbers of images, texts and scores.

        By default items of a gallery: the right candidate, and its best rival if there is one.
        """
        some = (images >= 1) & (texts >= 1) & (scores >= 1) & (scores <= 2)
        fitting: Flags = some & (truth >= 0) & (truth < 2)
        return fitting

    def shown(self, row: Record, wrong: Record) -> ShownItem:
        """Return the contents of the card of a row of the base model's table of items.

        By default the right candidate and the rival that beat it. wrong: the item in the table of a
        model that gets it wrong, if any.
        """
        columns = [("right one", 0), ("best rival", 1)]
        if len(row["texts"]) == 1 and len(wrong["images"]) > 1:  # found the wrong photo
            pair = [("Right photo", row["images"][0]), ("Wrong photo", wrong["images"][1])]
            return pair, [("Text", row["texts"][0], None)], columns
        named: list[tuple[str, str, bool | None]] = [("Right", row["texts"][0], True)]
        named += [("Chosen", text, False) for text in wrong["texts"][1:2]]
        return [("Photo", row["images"][0])], named, columns


def first_wins(subtasks: Iterable[str], ties: Mapping[str, TiePolicy], default: TiePolicy) -> Flags:
    """Return for each item's sub-task whether a tie goes to the first candidate, or is wrong.

    ties: sub-task -> policy, "" for all others.
    """
    policy = ties.get("", default)
    return np.array([ties.get(each, policy) is TiePolicy.FIRST for each in subtasks], dtype=bool)
