"""Scored items of one benchmark as columns: what the parquet file beside each result holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from compoclip.evaluation.outcomes import Outcomes, Values

POSITIVE_SCORE = "positive_score"
COLUMNS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "item": pa.string(),
        "form": pa.string(),
        "subtask": pa.string(),
        "labels": pa.map_(pa.string(), pa.string()),
        "truth": pa.int32(),
        "images": pa.list_(pa.string()),
        "texts": pa.list_(pa.string()),
        "scores": pa.list_(pa.float32()),
        "cluster": pa.string(),
        POSITIVE_SCORE: pa.float64(),
        "tie": pa.bool_(),
    }
)
"""The columns that every table of items has; only `POSITIVE_SCORE` may be null."""
POLICIES = ("used", "strict", "fractional")
"""Each metric has a column of numbers for each of them, "used.accuracy"; null where it does not
apply."""
MAIN = "main"
"""What rules call each item's own main metric, the first of its form that applies."""


@dataclass(frozen=True)
class Items:
    """n scored items (cases, retrieval queries or classified images), one list entry each.

    truth: index of the right candidate. images: keys (`names.image_key`). scores: cosines; for
    GROUP in the order s(0,0) s(0,1) s(1,0) s(1,1) with s(image, text), for TEXT_ONLY s(P1,P2)
    s(P1,N) s(P2,N); for retrieval and classification the right candidate, then its best rival; for
    classification by a curve ("auc", "ap11") the log odds that are ranked instead.
    clusters: items with the same value share a photo and are not independent.
    positive: mean cosine of the matching pairs, nan where none matches. extra: further columns,
    e.g. "rank".
    """

    ids: list[str]
    forms: list[str]
    subtasks: list[str]
    labels: list[Mapping[str, str]]
    truth: list[int]
    images: list[tuple[str, ...]]
    texts: list[tuple[str, ...]]
    scores: list[Sequence[float]]
    clusters: list[str]
    positive: Values
    outcomes: dict[str, Outcomes]
    extra: dict[str, list[int] | list[float] | list[str | None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def to_arrow(self) -> pa.Table:
        """The parquet layout: `COLUMNS`, three a metric (`POLICIES`), and `extra`."""
        values = {
            "item": self.ids,
            "form": self.forms,
            "subtask": self.subtasks,
            "labels": [list(each.items()) for each in self.labels],
            "truth": self.truth,
            "images": self.images,
            "texts": self.texts,
            "scores": self.scores,
            "cluster": self.clusters,
            POSITIVE_SCORE: [None if np.isnan(each) else each for each in self.positive],
            "tie": self.tied(),
        }
        columns = {name: pa.array(values[name], kind) for name, kind in COLUMNS.items()}
        for metric, outcomes in self.outcomes.items():
            for policy in POLICIES:
                each: Values = getattr(outcomes, policy)
                columns[f"{policy}.{metric}"] = pa.array(each, pa.float64(), mask=np.isnan(each))
        for name, extra in self.extra.items():
            columns[name] = pa.array(extra)
        return pa.table(columns)

    def tied(self) -> list[bool]:
        """Whether any metric of the item hangs on equal scores."""
        flags = np.zeros(len(self), dtype=bool)
        for outcomes in self.outcomes.values():
            flags |= outcomes.tied
        return [bool(flag) for flag in flags]
