"""Scored items of one benchmark as columns: the content of the parquet file of each result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compoclip.benchmarks.case import Case, Cases, Form, ImageRef, image_key
from compoclip.errors import CompoclipError

Scores: TypeAlias = npt.NDArray[np.float32]
Values: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.int64]
Columns: TypeAlias = dict[str, list[int] | list[float]]


class Outcomes(NamedTuple):
    """One metric on n cases, each array (n,) in [0, 1].

    used: outcome under the official policy. strict: a tie is wrong. fractional: probability of
    being right when ties are broken at random. chance: probability of being right with random
    scores or, under a threshold, with the better constant answer, which beats them. nan: the
    metric does not apply to the case.
    """

    used: Values
    strict: Values
    fractional: Values
    chance: Values

    @property
    def tied(self) -> Flags:
        """Return (n,) which outcomes depend on equal scores."""
        flags: Flags = (self.fractional != self.strict) & ~np.isnan(self.strict)
        return flags

    @classmethod
    def nowhere(cls, n: int) -> Outcomes:
        """Return the outcomes of a metric that applies to no case."""
        return cls(*(np.full(n, np.nan) for _ in cls._fields))

    @classmethod
    def stacked(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """Return the cases of all parts, one after the other."""
        return cls(*map(np.concatenate, zip(*parts)))


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
apply. The first three fields of `Outcomes`."""
MAIN = "main"
"""Name, in rules, of each item's main metric: the first of its form that applies."""
BOTH_IMAGES = "both images"
"""Name, in rules, of the outcome of two choices between the same two texts on two images."""


@dataclass(frozen=True)
class Items:
    """n scored items (cases, retrieval queries or classified images), as columns, first those of
    `COLUMNS` in their order.

    truth: index of the right candidate. images: keys (`case.image_key`). scores: cosines; for
    GROUP in the order s(0,0) s(0,1) s(1,0) s(1,1) with s(image, text), for TEXT_ONLY s(P1,P2)
    s(P1,N) s(P2,N); for retrieval and classification the right candidate, then its best rival; for
    classification by a curve ("auc", "ap11") the log odds that are ranked instead.
    clusters: items with the same value are not independent (`case_clusters`).
    positive: mean cosine of the matching pairs, nan without any. extra: further columns, e.g.
    "rank".
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
    extra: Columns = field(default_factory=dict)

    @classmethod
    def of_cases(
        cls,
        cases: Sequence[Case],
        scores: list[Sequence[float]],
        positive: Values,
        outcomes: dict[str, Outcomes],
        extra: Columns | None = None,
    ) -> Items:
        """Return one item per case, with its scores and outcomes."""
        return cls(
            ids=[case.id for case in cases],
            forms=[case.form.value for case in cases],
            subtasks=[case.subtask for case in cases],
            labels=[case.labels for case in cases],
            truth=[case.truth for case in cases],
            images=[tuple(image_key(ref) for ref in case.images) for case in cases],
            texts=[case.texts for case in cases],
            scores=scores,
            clusters=case_clusters(cases),
            positive=positive,
            outcomes=outcomes,
            extra=extra or {},
        )

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def photos(self) -> Indices:
        """Return the number of each item's cluster, in the order of their names."""
        # An array of texts would hold each at the length of the longest.
        numbers = {name: number for number, name in enumerate(sorted(set(self.clusters)))}
        return np.fromiter((numbers[name] for name in self.clusters), np.int64, len(self))

    @cached_property
    def judged(self) -> dict[str, Outcomes]:
        """Return metric -> outcomes, and under `MAIN` each item's main ones."""
        main = Outcomes.nowhere(len(self))
        for outcome in self.outcomes.values():
            main = Outcomes(*(np.where(np.isnan(a), b, a) for a, b in zip(main, outcome)))
        return {**self.outcomes, MAIN: main}

    @cached_property
    def applies(self) -> dict[str, Flags]:
        """Return metric, `MAIN` and `POSITIVE_SCORE` -> (n,), whether the item has it."""
        used = {name: outcome.used for name, outcome in self.judged.items()}
        used[POSITIVE_SCORE] = self.positive
        return {name: ~np.isnan(values) for name, values in used.items()}

    @cached_property
    def both_images(self) -> Values:
        """Return the outcomes `BOTH_IMAGES`; (n,).

        A model that prefers one of two texts whatever the image shows is right on exactly one of
        two choices between them with exchanged answers. The outcome, whether both are right, stands
        at the earlier item of a pair; nan elsewhere. Items with equal texts and answers find their
        partners in order, as in `case_clusters`.
        """
        right = self.judged[MAIN].used
        outcomes = np.full(len(self), np.nan)
        waiting: dict[tuple[str, str, str], list[int]] = {}
        for row, texts in enumerate(self.texts):
            if self.forms[row] != Form.CHOOSE_TEXT or len(texts) != 2:
                continue
            answer, rival = texts[self.truth[row]], texts[1 - self.truth[row]]
            partners = waiting.get((self.subtasks[row], rival, answer), [])
            if partners:
                first = partners.pop(0)
                outcomes[first] = min(right[first], right[row])
            else:
                waiting.setdefault((self.subtasks[row], answer, rival), []).append(row)
        return outcomes

    @cached_property
    def subtask_rows(self) -> dict[str, Indices]:
        """Return sub-task -> the rows of its items, sub-tasks in the order of their first items."""
        return rows_by_name(self.subtasks)

    def take(self, rows: Indices) -> Items:
        """Return the items at `rows`, in that order."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        lists = {name: column for name, column in columns.items() if isinstance(column, list)}
        return replace(
            self,
            **{name: [column[k] for k in rows.tolist()] for name, column in lists.items()},
            positive=self.positive[rows],
            outcomes={
                name: Outcomes(*(values[rows] for values in outcome))
                for name, outcome in self.outcomes.items()
            },
            extra={name: [column[k] for k in rows.tolist()] for name, column in self.extra.items()},
        )

    def to_arrow(self) -> pa.Table:
        """Return the parquet layout: `COLUMNS`, three per metric (`POLICIES`), and `extra`.

        "tie": whether any metric depends on equal scores.
        """
        tied = [outcome.tied for outcome in self.outcomes.values()]
        values = {name: getattr(self, key) for name, key in zip(COLUMNS, self.__dataclass_fields__)}
        values |= {
            "labels": [list(labels.items()) for labels in self.labels],
            POSITIVE_SCORE: [None if np.isnan(score) else score for score in self.positive],
            "tie": np.any(tied, axis=0),
        }
        columns = {name: pa.array(values[name], kind) for name, kind in COLUMNS.items()}
        for metric, outcomes in self.outcomes.items():
            for policy, array in zip(POLICIES, outcomes):
                columns[f"{policy}.{metric}"] = pa.array(array, pa.float64(), mask=np.isnan(array))
        return pa.table(columns | {name: pa.array(extra) for name, extra in self.extra.items()})

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Items:
        """Return the items of a stored table without `extra`; chance is not stored, and nan."""
        names = [name.removeprefix("used.") for name in table.column_names if name[:5] == "used."]

        def numbers(name: str) -> Values:
            return np.array(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)

        listed: dict[str, Any] = {
            key: table[name].to_pylist() for name, key in zip(COLUMNS, cls.__dataclass_fields__)
        }
        listed |= {"labels": [*map(dict, listed["labels"])], "positive": numbers(POSITIVE_SCORE)}
        listed |= {name: [*map(tuple, listed[name])] for name in ("images", "texts")}
        listed["outcomes"] = {
            name: Outcomes.nowhere(len(table))._replace(
                **{policy: numbers(f"{policy}.{name}") for policy in POLICIES}
            )
            for name in names
        }
        return cls(**listed)


def rows_by_name(names: Iterable[str]) -> dict[str, Indices]:
    """Return name -> the places at which it stands, names in the order of their first places."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return {name: np.array(of_name, dtype=np.int64) for name, of_name in places.items()}


# --- Which items are about the same photos, and so not independent of each other. ---

_CHAIN, _LONG = 0.25, 100


def case_clusters(cases: Sequence[Case]) -> list[str]:
    """Return the cluster of each case as one representative photo.

    Cases share a cluster that have a photo in common (crops of a photo are the same photo), or
    without photos one of the texts that belong together. So do choices among the same texts with
    different answers, such as the two items of a mirrored pair: a model that prefers one of the
    texts whatever the image shows is right on exactly one of them. Of cases with equal texts and
    equal answers the first goes with the first of each other answer, the second with the second,
    so that texts used for many photos do not make all of those one cluster. Where more than a
    hundred clusters and texts would hang together in that way, photos alone count.
    """
    times: Counter[tuple[object, str]] = Counter()
    contents = []
    photos = [
        tuple(ref.photo for ref in case.images) or tuple(f"text: {text}" for text in case.texts[:2])
        for case in cases
    ]
    for case, photo in zip(cases, linked(photos)):
        mirrored: tuple[str, ...] = ()
        if case.form is Form.CHOOSE_TEXT:
            texts, answer = sorted(case.texts), case.texts[case.truth]
            times[tuple(texts), answer] += 1
            mirrored = (f"texts {times[tuple(texts), answer]}: {texts}",)
        contents.append((photo, *mirrored))
    return linked(contents, share=0)


def linked(contents: Sequence[Sequence[str]], share: float = _CHAIN) -> list[str]:
    """Return for each item a photo that represents its cluster; contents: the photos of each.

    Items that have a photo in common are in one cluster, and so are those that hang together
    through others: clusters are the connected components. Where photos are used so often that more
    than a hundred of them, and more than `share` of all items, hang together (SVO-Probes), being
    connected says little any more: items of such a chain are clustered by the one of their photos
    that most items have.
    """
    parent: dict[str, str] = {}

    def root(photo: str) -> str:
        while parent[photo] != photo:
            parent[photo] = photo = parent[parent[photo]]
        return photo

    for photos in contents:
        for photo in photos:
            parent.setdefault(photo, photo)
            parent[root(photo)] = root(photos[0])
    roots = [root(photos[0]) for photos in contents]
    items, photos_of = Counter(roots), Counter(map(root, parent))
    chains = {c for c, n in items.items() if n > share * len(roots) and photos_of[c] > _LONG}
    uses = Counter(photo for photos in contents for photo in set(photos))
    return [
        max(photos, key=lambda photo: uses[photo]) if cluster in chains else cluster
        for cluster, photos in zip(roots, contents)
    ]


# --- Encoded images and texts, found by what they show or say; cosines between them. ---

PAIRS_AT_ONCE = 8192


@dataclass(frozen=True)
class EncodedFeatures:
    """Unit-length float32 features of the distinct images (N, D) and token sequences (M, D).

    image_rows, text_rows: row of each image and each text; texts with equal tokens share a row, so
    that their scores are bit-equal. bad: unusable image -> reason. truncated: texts longer than the
    model's context. matches: (row of an image, row of a text) -> score of a matching head, if it
    replaces the cosine. judge: scores the pairs of cases by another model, if there is one.
    """

    images: Scores
    image_rows: Mapping[ImageRef, int]
    texts: Scores
    text_rows: Mapping[str, int]
    bad: Mapping[ImageRef, str]
    truncated: frozenset[str]
    matches: Mapping[tuple[int, int], float] | None = None
    judge: Callable[[Cases], EncodedFeatures] | None = None

    def leading(self, width: int, name: str) -> EncodedFeatures:
        """Return the features cut to their first dimensions, of unit length again.

        width: how many. name: of the model, for the CompoclipError when it has fewer.
        """
        if (size := self.texts.shape[1] or self.images.shape[1]) < width:
            raise CompoclipError(f"{name}: --dimensions {width}: its features have {size}")
        images, texts = (unit_length(features[:, :width]) for features in (self.images, self.texts))
        return replace(self, images=images, texts=texts)

    def image_index(self, refs: Iterable[ImageRef]) -> Indices:
        """Return the rows of `images`."""
        return np.fromiter((self.image_rows[ref] for ref in refs), dtype=np.int64)

    def scores(self, images: Indices, texts: Indices) -> Scores:
        """Return the scores of the pairs (images[k], texts[k]) of rows, same shape, float32."""
        if self.matches is not None:
            pairs = zip(images.ravel().tolist(), texts.ravel().tolist())
            scores = np.array([self.matches[pair] for pair in pairs], dtype=np.float32)
            return scores.reshape(images.shape)
        return cosines(self.images, images, self.texts, texts)

    def text_index(self, texts: Iterable[str]) -> Indices:
        """Return the rows of `texts`."""
        return np.fromiter((self.text_rows[text] for text in texts), dtype=np.int64)


def unit_length(features: Scores) -> Scores:
    """Return features (N, D) scaled to length 1."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    scaled: Scores = features / np.maximum(norms, np.float32(1e-12))
    return scaled


def cosines(left: Scores, rows: Indices, right: Scores, columns: Indices) -> Scores:
    """Return scores of the pairs (rows[k], columns[k]), same shape as `rows`, float32.

    Summed pair by pair in a fixed order, so equal features give bit-equal scores wherever the pair
    stands; a matrix product promises that only up to rounding.
    """
    flat_rows, flat_columns = rows.reshape(-1), columns.reshape(-1)
    out = np.empty(len(flat_rows), dtype=np.float32)
    for start in range(0, len(out), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        product = left[flat_rows[part]] * right[flat_columns[part]]
        out[part] = product.sum(axis=1, dtype=np.float32)
    return out.reshape(rows.shape)


def merge_equal(features: Scores) -> tuple[Scores, Indices]:
    """Merge bit-equal rows: (distinct rows, index of each row among them).

    A matrix product may round equal columns differently; with merged columns ties stay exact.
    """
    places: dict[bytes, int] = {}
    index = np.empty(len(features), dtype=np.int64)
    keep: list[int] = []
    for row, feature in enumerate(features):
        place = places.setdefault(feature.tobytes(), len(places))
        if place == len(keep):
            keep.append(row)
        index[row] = place
    return features[keep], index
