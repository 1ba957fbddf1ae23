"""The forms of cases: choice, group, triple, half-truth, text-only, and true-or-false.

All but the last are judged case by case, by comparisons between their scores (`Comparisons`). A
tie counts three ways (`items.Outcomes`): as the benchmark's policy has it, as wrong, and as broken
at random.
"""

from __future__ import annotations

import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise, permutations
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from compoclip.benchmarks.case import Benchmark, Case, Cases, Form, TiePolicy
from compoclip.errors import CompoclipError
from compoclip.evaluation.curves import balanced_threshold, placements
from compoclip.evaluation.forms.form import CaseForm, Record, ShownItem, first_wins
from compoclip.evaluation.items import (
    Columns,
    EncodedFeatures,
    Flags,
    Indices,
    Items,
    Outcomes,
    Scores,
    Values,
    cosines,
)


@dataclass(frozen=True)
class Comparisons:
    """A metric as comparisons between the scores of an item, called a, b, ... by their place.

    "a>b d>c": a is above b, and d above c; " | " separates alternatives. A tie of "a>b" is right
    where the first candidate wins, and wrong otherwise; a tie of "a>>b" is always wrong. What a tie
    broken at random reaches, and chance, are shares of the orders of the scores.
    """

    text: str

    @cached_property
    def ways(self) -> tuple[tuple[tuple[int, int, bool], ...], ...]:
        """Every alternative: (place of the higher score, of the lower one, whether strict)."""
        place = string.ascii_letters.index
        return tuple(
            tuple((place(pair[0]), place(pair[-1]), ">>" in pair) for pair in way.split())
            for way in self.text.split("|")
        )

    def hold(self, scores: Scores, loose: bool = False) -> Flags:
        """Return for each row of scores whether the comparisons hold.

        Args:
            scores: (n, K).
            loose: A tie is right, but for comparisons that are strict.
        """
        ways = [
            np.logical_and.reduce(
                [
                    scores[:, a] >= scores[:, b]
                    if loose and not strict
                    else scores[:, a] > scores[:, b]
                    for a, b, strict in way
                ]
            )
            for way in self.ways
        ]
        found: Flags = np.logical_or.reduce(ways)
        return found

    def outcomes(self, scores: Scores, first: Flags) -> Outcomes:
        """Return the outcomes of n items.

        Args:
            scores: (n, K).
            first: (n,), True where a tie goes to the candidate that comes first.
        """
        count = scores.shape[1]
        strict = self.hold(scores)
        below = (scores[:, :, None] > scores[:, None, :]).sum(axis=2)  # ranks, equal for ties
        codes, place = np.unique(below @ (count ** np.arange(count)), return_inverse=True)
        ranks = [tuple(int(code) // count**k % count for k in range(count)) for code in codes]
        shares = np.array([_share(self, each) for each in ranks])
        return Outcomes(
            used=np.where(first, self.hold(scores, loose=True), strict).astype(np.float64),
            strict=strict.astype(np.float64),
            fractional=shares[place.reshape(-1)],
            chance=np.full(len(scores), _share(self, (0,) * count)),
        )


@lru_cache(maxsize=1 << 12)
def _share(metric: Comparisons, ranks: tuple[int, ...]) -> float:
    """The share of the orders of scores of these ranks in which the comparisons hold."""
    orders = [
        np.argsort(order)
        for order in permutations(range(len(ranks)))
        if all(ranks[a] <= ranks[b] for a, b in pairwise(order))
    ]
    held: Values = metric.hold(np.array(orders)).astype(np.float64)
    return float(held.sum() / len(orders))


class OneByOneForm(CaseForm):
    """A form whose cases are right or wrong on their own; a benchmark may mix such forms."""

    together = False
    comparisons: ClassVar[Mapping[str, str]] = {}
    """Metric -> the comparisons between the scores that have to hold, see `Comparisons`."""

    def judge(self, scores: Scores, truth: Indices, first: Flags) -> dict[str, Outcomes]:
        """Return the outcome of every metric.

        Args:
            scores: (n, K), or (n, 2, 2) for GROUP, of n cases with equally many candidates.
            truth: (n,), the index of the right candidate.
            first: (n,), True where a tie goes to the candidate that comes first (argmax of the
                stored order), False where it is wrong.
        """
        flat = scores.reshape(len(scores), -1)
        return {
            metric: Comparisons(text).outcomes(flat, first)
            for metric, text in self.comparisons.items()
        }

    def scores(self, images: Indices, texts: Indices, features: EncodedFeatures) -> Scores:
        """Scores of n cases; images, texts: (n, ...) rows of the features."""
        rows, columns = np.broadcast_arrays(images, texts)
        return features.scores(rows, columns)

    def positive(self, scores: Scores, truth: Indices) -> Scores:
        """Score of the matching pair, of the first one where several match; (n,)."""
        picked: Scores = scores[:, 0]
        return picked

    def columns(self, scores: Scores) -> Mapping[str, Sequence[str]]:
        """Further columns of the table of items."""
        return {}

    def items(self, content: Cases, features: EncodedFeatures, benchmark: Benchmark) -> Items:
        """Every case under its sub-task's tie policy, and the groups of `Benchmark.joint`."""
        items = score_cases(content, features, benchmark.ties)
        if not benchmark.joint:
            return items
        sizes = group_sizes(benchmark.content.cases, benchmark.joint)
        return with_joint(items, benchmark.joint, sizes)


class ChooseTextForm(OneByOneForm):
    """One image, K texts of which one is right: accuracy, chance 1/K."""

    name = Form.CHOOSE_TEXT
    metrics = ("accuracy",)

    def shape(self, images: Any, texts: Any) -> tuple[Any, Any, Any]:
        """One image and at least two texts."""
        return (images == 1) & (texts >= 2), texts, texts

    def judge(self, scores: Scores, truth: Indices, first: Flags) -> dict[str, Outcomes]:
        """accuracy: the right candidate scores best."""
        best = scores.max(axis=1)
        tied = (scores == best[:, None]).sum(axis=1)
        top = self.positive(scores, truth) == best
        strict, loose = top & (tied == 1), scores.argmax(axis=1) == truth
        outcomes = Outcomes(
            used=np.where(first, loose, strict).astype(np.float64),
            strict=strict.astype(np.float64),
            fractional=(top / tied).astype(np.float64),
            chance=np.full(len(scores), 1.0 / scores.shape[1]),
        )
        return {"accuracy": outcomes}

    def positive(self, scores: Scores, truth: Indices) -> Scores:
        """Score of the right candidate."""
        picked: Scores = scores[np.arange(len(scores)), truth]
        return picked

    def margin(self, scores: Sequence[float], truth: int) -> float:
        """The right candidate against the best other one."""
        return scores[truth] - max(score for k, score in enumerate(scores) if k != truth)

    def shown(self, row: Record, wrong: Record) -> ShownItem:
        """The photo with the caption and the best foil."""
        truth, rival = row["truth"], _rival(wrong)
        return ShownItem(
            [("Photo", row["images"][0])],
            [("Caption", row["texts"][truth], True), ("Foil", row["texts"][rival], False)],
            [("caption", truth), ("foil", rival)],
        )


class ChooseImageForm(ChooseTextForm):
    """One text, K images of which one is right: accuracy, chance 1/K."""

    name = Form.CHOOSE_IMAGE

    def shape(self, images: Any, texts: Any) -> tuple[Any, Any, Any]:
        """One text and at least two images."""
        return (texts == 1) & (images >= 2), images, images

    def shown(self, row: Record, wrong: Record) -> ShownItem:
        """The text with the right photo and the best wrong one."""
        truth, rival = row["truth"], _rival(wrong)
        return ShownItem(
            [("Right photo", row["images"][truth]), ("Wrong photo", row["images"][rival])],
            [("Text", row["texts"][0], None)],
            [("right photo", truth), ("wrong photo", rival)],
        )


def _rival(record: Record) -> int:
    """The best candidate that is not the right one."""
    scores, truth = record["scores"], record["truth"]
    return max((k for k in range(len(scores)) if k != truth), key=lambda k: scores[k])


class GroupForm(OneByOneForm):
    """Two images and two texts, image i matches text i: Winoground's three scores.

    With s(i, t) of image i and text t: text: s(0,0) > s(0,1) and s(1,1) > s(1,0), chance 1/4.
    image: s(0,0) > s(1,0) and s(1,1) > s(0,1), 1/4. group: both, 1/6. A tie for the first favours
    item 0 and fails item 1.

    Source: Thrush et al., Winoground, CVPR 2022.
    """

    name = Form.GROUP
    comparisons = MappingProxyType(
        {"group": "a>b d>>c a>c d>>b", "text": "a>b d>>c", "image": "a>c d>>b"}
    )
    metrics = tuple(comparisons)

    def shape(self, images: Any, texts: Any) -> tuple[Any, Any, Any]:
        """Two of each, four scores."""
        return (images == 2) & (texts == 2), 2, 4

    def scores(self, images: Indices, texts: Indices, features: EncodedFeatures) -> Scores:
        """(n, 2, 2): [case, image, text]."""
        return features.scores(*np.broadcast_arrays(images[:, :, None], texts[:, None, :]))

    def positive(self, scores: Scores, truth: Indices) -> Scores:
        """The mean of the two matching pairs."""
        return (scores[:, 0, 0] + scores[:, 1, 1]) / np.float32(2)

    def margin(self, scores: Sequence[float], truth: int) -> float:
        """The worse of the matching pairs against the better of the others."""
        a, b, c, d = scores[:4]  # photo 1 with texts 1 and 2, photo 2 with both
        return min(a, d) - max(b, c)

    def shown(self, row: Record, wrong: Record) -> ShownItem:
        """Both photos, both texts, all four scores."""
        return ShownItem(
            [(f"Photo {k + 1}", key) for k, key in enumerate(row["images"])],
            [(f"Text {k + 1}", text, None) for k, text in enumerate(row["texts"])],
            [(f"photo {k // 2 + 1}, text {k % 2 + 1}", k) for k in range(4)],
        )


BUCKETS = ("both above", "only first above", "only second above", "both below", "tie")


class TripleForm(OneByOneForm):
    """One image with a caption, its rewording and a foil: sensitivity and invariance.

    With s_j of the image and text j: original: s_0 > s_2, chance 1/2. second: s_1 > s_2, 1/2.
    augmented: both, 1/3. brittleness: s_2 strictly between s_0 and s_1, 1/3. both_below: s_0 < s_2
    and s_1 < s_2, 1/3. The last two are no accuracies: they are strict whatever the policy.

    Sources: Dumpala et al., SugarCrepe++, NeurIPS 2024 (augmented is its ITT); Kamath et al., The
    Hard Positive Truth about Vision-Language Compositionality, ECCV 2024.
    """

    name = Form.TRIPLE
    comparisons = MappingProxyType(
        {
            "augmented": "a>c b>c",
            "original": "a>c",
            "second": "b>c",
            "brittleness": "a>>c c>>b | b>>c c>>a",
            "both_below": "c>>a c>>b",
        }
    )
    metrics: ClassVar[tuple[str, ...]] = tuple(comparisons)
    called = ("Caption", "Rewording", "Foil")
    headings = ("caption", "rewording", "foil")

    def shape(self, images: Any, texts: Any) -> tuple[Any, Any, Any]:
        """One image and three texts."""
        return (images == 1) & (texts == 3), 3, 3

    def columns(self, scores: Scores) -> Mapping[str, Sequence[str]]:
        """The bucket of each case; the five partition them."""
        p, q, n = scores[:, 0], scores[:, 1], scores[:, 2]
        tests = [(p > n) & (q > n), (p > n) & (q < n), (p < n) & (q > n), (p < n) & (q < n)]
        return {"bucket": [BUCKETS[k] for k in np.select(tests, list(range(4)), default=4)]}

    def margin(self, scores: Sequence[float], truth: int) -> float:
        """The worse of the true texts against the foil."""
        return min(scores[0], scores[1]) - scores[2]

    def shown(self, row: Record, wrong: Record) -> ShownItem:
        """The photo, if there is one, and the three texts."""
        texts = list(zip(self.called, row["texts"], (True, True, False)))
        columns = [(heading, k) for k, heading in enumerate(self.headings)]
        return ShownItem([("Photo", key) for key in row["images"]], texts, columns)


class HalfTruthForm(TripleForm):
    """One image, a short true text, and two texts that add to it: one truly, one falsely.

    With s_a of the short text, s_f of the full truth and s_h of the half-truth: ht: s_a > s_h, a
    wrong detail makes the text worse, chance 1/2. cor: s_f > s_a > s_h, the order of how much is
    right, 1/6. full: s_f > s_a, a right detail makes it better, 1/2: a model that dislikes length
    wins at ht and loses here. A tie for the first favours the short text over the half-truth, and
    the full truth over the short text.

    Source: CS-CLIP, arXiv 2602.23906, 2026.
    """

    name = Form.HALF_TRUTH
    comparisons = MappingProxyType({"ht": "a>c", "cor": "b>a a>c", "full": "b>a"})
    metrics = tuple(comparisons)
    called = ("Short", "Full truth", "Half-truth")
    headings = ("short", "full truth", "half-truth")
    columns = OneByOneForm.columns

    def margin(self, scores: Sequence[float], truth: int) -> float:
        """The short text against the half-truth."""
        return scores[0] - scores[2]


class TextOnlyForm(TripleForm):
    """The three texts of a triple without the image: the TOT of SugarCrepe++.

    With s(a, b) of two texts: original: s(0,1) > s(0,2), chance 1/2. second: s(0,1) > s(1,2), 1/2.
    augmented: both, 1/3.
    """

    name = Form.TEXT_ONLY
    comparisons = MappingProxyType({"augmented": "a>b a>c", "original": "a>b", "second": "a>c"})
    metrics = tuple(comparisons)
    in_pairs = False
    headings = ("caption–rewording", "caption–foil", "rewording–foil")
    columns = OneByOneForm.columns

    def shape(self, images: Any, texts: Any) -> tuple[Any, Any, Any]:
        """Three texts."""
        return (images == 0) & (texts == 3), 3, 3

    def scores(self, images: Indices, texts: Indices, features: EncodedFeatures) -> Scores:
        """(n, 3): s(0,1), s(0,2), s(1,2)."""
        left, right = texts[:, [0, 0, 1]], texts[:, [1, 2, 2]]
        return cosines(features.texts, left, features.texts, right)

    def margin(self, scores: Sequence[float], truth: int) -> float:
        """The true pair against the better of the others."""
        return scores[0] - max(scores[1:])


ONE_BY_ONE: Mapping[Form, OneByOneForm] = {
    each.name: each
    for each in (
        ChooseTextForm(),
        ChooseImageForm(),
        GroupForm(),
        TripleForm(),
        HalfTruthForm(),
        TextOnlyForm(),
    )
}


def score_cases(
    cases: Sequence[Case], features: EncodedFeatures, ties: Mapping[str, TiePolicy]
) -> Items:
    """Score every case and judge it, all cases of a form and number of candidates at once.

    Args:
        cases: of the forms in `ONE_BY_ONE`.
        features: of every image and text of `cases`.
        ties: sub-task -> tie policy, "" for all others; strict where nothing is said.

    Raises:
        CompoclipError: the shape of a case does not fit its form.
    """
    blocks: dict[tuple[Form, int], list[int]] = defaultdict(list)
    for position, case in enumerate(cases):
        blocks[case.form, ONE_BY_ONE[case.form].candidates(case)].append(position)

    n = len(cases)
    here = [form for name, form in ONE_BY_ONE.items() if any(name is each for each, _ in blocks)]
    outcomes = {metric: Outcomes.nowhere(n) for form in here for metric in form.metrics}
    scores: list[Sequence[float]] = [()] * n
    positive = np.zeros(n)
    extra: Columns = {}
    for (name, _), positions in blocks.items():
        form, block, rows = ONE_BY_ONE[name], [cases[p] for p in positions], np.array(positions)
        images = features.image_index(ref for case in block for ref in case.images)
        texts = features.text_index(text for case in block for text in case.texts)
        values = form.scores(
            images.reshape(len(block), -1), texts.reshape(len(block), -1), features
        )
        truth = np.array([case.truth for case in block])
        first = first_wins((case.subtask for case in block), ties, form.ties)
        for metric, found in form.judge(values, truth, first).items():
            for whole, part in zip(outcomes[metric], found):
                whole[rows] = part
        positive[rows] = form.positive(values, truth)
        for position, row in zip(positions, values.reshape(len(block), -1)):
            scores[position] = row.tolist()
        for column, entries in form.columns(values).items():
            filled = np.array(extra.get(column, [None] * n), dtype=object)
            filled[rows] = entries
            extra[column] = filled.tolist()
    return Items.of_cases(cases, scores, positive, outcomes, extra)


# --- Metrics of groups of items: a group is right when all of its items are. ---

Sizes = Mapping[tuple[str, str, str], int]
"""(metric, sub-task, label value) -> items of the whole group."""


def group_sizes(cases: Iterable[Case], joint: Mapping[str, str]) -> Sizes:
    """Number of cases in every group; joint: metric -> case label, see `Benchmark`."""
    return Counter(
        (metric, case.subtask, case.labels[label])
        for case in cases
        for metric, label in joint.items()
        if label in case.labels
    )


def groups_by_part(sizes: Sizes) -> dict[str, int]:
    """ "sub-task/metric" -> number of groups."""
    return dict(Counter(f"{subtask}/{metric}" for metric, subtask, _ in sizes))


def with_joint(items: Items, joint: Mapping[str, str], sizes: Sizes) -> Items:
    """The items with one more metric for each entry of `joint`.

    A group's outcome is the product of its items' main outcomes (with random ties and for chance
    their probabilities, the items being independent). The group's first item bears it, the metric
    does not apply to the others. Groups of which an item is absent, by `sizes`, are left out.
    """
    main = next(iter(items.outcomes.values()))
    outcomes = dict(items.outcomes)
    for metric, label in joint.items():
        groups: dict[tuple[str, str, str], list[int]] = {}
        for row, (subtask, labels) in enumerate(zip(items.subtasks, items.labels)):
            if label in labels:
                groups.setdefault((metric, subtask, labels[label]), []).append(row)
        whole = [np.array(rows) for key, rows in groups.items() if len(rows) == sizes[key]]
        outcomes[metric] = main.each(partial(_products, whole))
    return replace(items, outcomes=outcomes)


def _products(groups: Sequence[Indices], values: Values) -> Values:
    out = np.full(len(values), np.nan)
    for rows in groups:
        out[rows[0]] = values[rows].prod()
    return out


# --- True-or-false cases. A cosine has no natural threshold, so a dual encoder cannot say yes or no
# by itself: the area under the ROC curve needs none, an accuracy takes one tuned elsewhere. ---


class BinaryForm(CaseForm):
    """One image and one text that is true of it or not.

    auc: the area under the ROC curve of the score, chance 1/2. accuracy: true above the threshold
    that is best for the cases of `Benchmark.tuned_on`, where the benchmark names some; chance: the
    share of the more frequent kind, which one answer to all cases reaches. The mean of the
    accuracies of true and of false cases (balanced accuracy, chance 1/2) is an aggregate by the
    label that tells them apart.
    """

    name = Form.BINARY
    metrics = ("auc", "accuracy")

    def shape(self, images: Any, texts: Any) -> tuple[Any, Any, Any]:
        """One of each, two answers, one score."""
        return (images == 1) & (texts == 1), 2, 1

    def items(self, content: Cases, features: EncodedFeatures, benchmark: Benchmark) -> Items:
        """Score the cases. Those of the values of `Benchmark.tuned_on` only set thresholds.

        The outcome "auc" of an item is the share of its sub-task's items of the other kind on its
        right side; "accuracy", only for sub-tasks with a threshold, says whether it is on the right
        side of that. Items carry the column "threshold" (nan without one).

        Raises:
            CompoclipError: there are cases of other forms, or a sub-task has no true or no false
                case.
        """
        other = next((case for case in content if case.form is not self.name), None)
        if other is not None:
            raise CompoclipError(
                f"item '{other.id}' of sub-task '{other.subtask}' is a {other.form} item among "
                "binary ones; a benchmark with binary items can have no others"
            )
        for case in content:
            self.candidates(case)
        scores = features.scores(
            features.image_index(content.images), features.text_index(content.texts)
        )
        truth = np.array([case.truth == 1 for case in content], dtype=bool)
        rows_of = _rows(content, truth, benchmark.tuned_on)
        thresholds = {
            part: balanced_threshold(scores[rows_of[dev]], truth[rows_of[dev]])
            for part, dev in benchmark.tuned_on.items()
            if part in rows_of
        }
        scored = [part for part in rows_of if part not in benchmark.tuned_on.values()]
        kept = np.sort(np.concatenate([rows_of[part] for part in scored]))
        limits = np.full(len(content), np.nan)
        auc = Outcomes.nowhere(len(content))
        for part in scored:
            rows = rows_of[part]
            limits[rows] = thresholds.get(part, np.nan)
            auc.used[rows] = auc.fractional[rows] = placements(scores[rows], truth[rows])
            auc.strict[rows] = placements(scores[rows], truth[rows], tie=0.0)
            auc.chance[rows] = 0.5
        right = np.where(np.isnan(limits), np.nan, (scores > limits) == truth)
        accuracy = Outcomes(right, right, right, _constant(rows_of, scored, truth, limits))
        outcomes = {"auc": auc} | ({"accuracy": accuracy} if thresholds else {})
        return Items.of_cases(
            [content[row] for row in kept],
            scores=[[float(score)] for score in scores[kept]],
            positive=np.where(truth, scores, np.nan)[kept].astype(np.float64),
            outcomes={metric: each.take(kept) for metric, each in outcomes.items()},
            extra={"threshold": limits[kept].tolist()} if thresholds else {},
        )

    def margin(self, scores: Sequence[float], truth: int) -> float:
        """None: an item has one score."""
        return float("nan")

    def shown(self, row: Record, wrong: Record) -> ShownItem:
        """The photo, and the text with what is true of it."""
        said, true = ("True", True) if row["truth"] else ("False", False)
        texts = [(said, row["texts"][0], true)]
        return ShownItem([("Photo", row["images"][0])], texts, [("cosine", 0)])


def _constant(
    rows_of: Mapping[str, Indices], scored: Sequence[str], truth: Flags, limits: Values
) -> Values:
    """Where the same answer to all items of a sub-task is right, the one that is right more often.

    A score without any knowledge can be a constant, whose accuracy is the share of the kind it is
    on the side of, or random, with 1/2; so the accuracy to beat is the share of the more frequent
    kind, and the mean of the accuracies of true and of false items (balanced accuracy) has 1/2.
    """
    right = np.full(len(truth), np.nan)
    for part in scored:
        rows = rows_of[part]
        mostly = truth[rows].mean() >= 0.5
        right[rows] = truth[rows] == mostly
    return np.where(np.isnan(limits), np.nan, right)


def _rows(cases: Sequence[Case], truth: Flags, tuned_on: Mapping[str, str]) -> dict[str, Indices]:
    """Rows of each sub-task, all of which must have true and false cases."""
    names = np.asarray([case.subtask for case in cases], dtype=object)
    found = {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
    needed = {dev: part for part, dev in tuned_on.items() if part in found}
    for name in (*found, *needed):
        kinds = truth[found[name]] if name in found else np.empty(0, dtype=bool)
        if kinds.all() or not kinds.any():
            purpose = f", which set the threshold of '{needed[name]}'," if name in needed else ""
            raise CompoclipError(
                f"sub-task '{name}': among the {len(kinds)} items{purpose} there must be true and "
                "false ones; get their images and the whole annotation file"
            )
    return found
