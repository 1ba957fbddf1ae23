"""The forms of cases: choice, group, triple, half-truth, text-only, and true-or-false.

All but the last are judged case by case, by comparisons between their scores (`Comparisons`). A
tie counts three ways (`items.Outcomes`): as the benchmark's policy has it, as wrong, and as broken
at random.
"""

from __future__ import annotations

import string
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise, permutations, repeat
from pathlib import Path
from typing import Any

import numpy as np

from compoclip.benchmarks.case import Benchmark, Case, Cases, Form, TiePolicy
from compoclip.config import package_yaml
from compoclip.console import counted
from compoclip.errors import CompoclipError
from compoclip.evaluation.curves import balanced_threshold, placements
from compoclip.evaluation.forms.form import ItemForm, first_wins
from compoclip.evaluation.items import (
    EncodedFeatures,
    Flags,
    Indices,
    Items,
    Outcomes,
    Scores,
    Values,
    cosines,
    rows_by_name,
)


@dataclass(frozen=True)
class Comparisons:
    """A metric as comparisons between the scores of an item, called a, b, ... by their place.

    "a>b d>c" means that a is above b and d above c. " | " separates alternatives. A tie of "a>>b"
    is wrong. A tie of "a>b" is right if the tie policy lets the first candidate win. Chance is the
    share of all orders of the scores in which the metric holds; for ties broken at random, the same
    share of the orders that the ties allow.
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
        """Return for each row of scores (n, K) whether the comparisons hold.

        loose: a tie is right, but for comparisons that are strict.
        """
        above = [
            [
                scores[:, a] >= scores[:, b]
                if loose and not strict
                else scores[:, a] > scores[:, b]
                for a, b, strict in way
            ]
            for way in self.ways
        ]
        holds: Flags = np.logical_or.reduce([np.logical_and.reduce(way) for way in above])
        return holds

    def outcomes(self, scores: Scores, first: Flags) -> Outcomes:
        """Return the outcomes of scores (n, K). first: (n,), whether a tie goes to the first
        candidate."""
        count = scores.shape[1]
        strict = self.hold(scores)
        below = (scores[:, :, None] > scores[:, None, :]).sum(axis=2)  # ranks, equal for ties
        codes, place = np.unique(below @ (count ** np.arange(count)), return_inverse=True)
        ranks = [tuple(int(code) // count**k % count for k in range(count)) for code in codes]
        shares = np.array([_share(self, row) for row in ranks])
        return Outcomes(
            used=np.where(first, self.hold(scores, loose=True), strict).astype(np.float64),
            strict=strict.astype(np.float64),
            fractional=shares[place.reshape(-1)],
            chance=np.full(len(scores), _share(self, tuple(repeat(0, count)))),
        )


@lru_cache(maxsize=1 << 12)
def _share(metric: Comparisons, ranks: tuple[int, ...]) -> float:
    """Return the share of the orders of scores of these ranks in which the comparisons hold."""
    orders = [
        np.argsort(order)
        for order in permutations(range(len(ranks)))
        if all(ranks[a] <= ranks[b] for a, b in pairwise(order))
    ]
    holds: Values = metric.hold(np.array(orders)).astype(np.float64)
    return float(holds.sum() / len(orders))


SEVERAL = -1


@dataclass(eq=False)
class CaseForm(ItemForm[Cases]):
    """A form of cases that are judged one by one; a benchmark may mix such forms.

    The scores of an item are those of every image with every text, image by image. Without an image
    they are those of all pairs of texts. images, texts: their numbers; SEVERAL stands for one per
    candidate. answers: number of candidates that `truth` is an index into. comparisons: metric ->
    `Comparisons`, the main one first. matching: places of the scores of matching pairs, whose mean
    is the positive score; () if the candidate at `truth` alone is right. true: whether each text
    is true.
    """

    name: Form
    images: int
    texts: int
    answers: int = 0
    comparisons: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    matching: tuple[int, ...] = (0,)
    called: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    true: tuple[bool | None, ...] = (True, True, False)

    ties = TiePolicy.STRICT
    together = False

    def __post_init__(self) -> None:
        self.metrics = self.metrics or tuple(self.comparisons)
        self.in_pairs = self.images != 0

    def candidates(self, case: Case) -> int:
        """Return the number of candidates; raise CompoclipError for a case that does not fit."""
        images, texts = len(case.images), len(case.texts)
        scores = images * texts if self.images else 3
        good = self.fits(*(np.array(n) for n in (images, texts, scores, case.truth)))
        if not good:
            raise CompoclipError(
                f"item '{case.id}' of sub-task '{case.subtask}': {counted(images, 'image')}, "
                f"{counted(texts, 'text')} and truth {case.truth} are no {case.form} item; check "
                "the annotation file"
            )
        return self.answers or max(images, texts)

    def fits(self, images: Indices, texts: Indices, scores: Indices, truth: Indices) -> Flags:
        """Return which stored items have the form's shape, and one of its candidates as truth."""
        fitting: Flags = (truth >= 0) & (truth < (self.answers or np.maximum(images, texts)))
        for count, expected in ((images, self.images), (texts, self.texts)):
            fitting &= count >= 2 if expected == SEVERAL else count == expected
        fitting &= scores == (images * texts if self.images else 3)
        return fitting

    def items(self, content: Cases, features: EncodedFeatures, benchmark: Benchmark) -> Items:
        """Judge every case under its sub-task's tie policy, and the groups of `Benchmark.joint`."""
        blocks: dict[tuple[Form, int], list[int]] = defaultdict(list)
        for row, case in enumerate(content):
            blocks[case.form, ONE_BY_ONE[case.form].candidates(case)].append(row)
        n = len(content)
        scores: list[Sequence[float]] = [() for _ in range(n)]
        positive = np.zeros(n)
        for (name, _), rows in blocks.items():
            form, block = ONE_BY_ONE[name], [content[row] for row in rows]
            images = features.image_index(ref for case in block for ref in case.images)
            texts = features.text_index(text for case in block for text in case.texts)
            images, texts = images.reshape(len(block), -1), texts.reshape(len(block), -1)
            if images.shape[1]:
                pairs = np.broadcast_arrays(images[:, :, None], texts[:, None, :])
                values = features.scores(*pairs).reshape(len(block), -1)
            else:
                left, right = texts[:, [0, 0, 1]], texts[:, [1, 2, 2]]
                values = cosines(features.texts, left, features.texts, right)
            true_scores = values[np.arange(len(block)), [case.truth for case in block]]
            positive[rows] = values[:, form.matching].mean(axis=1) if form.matching else true_scores
            for row, row_scores in zip(rows, values.tolist()):
                scores[row] = row_scores
        forms, subtasks = [case.form for case in content], [case.subtask for case in content]
        truth = np.array([case.truth for case in content])
        outcomes = judged(forms, subtasks, truth, scores, benchmark.ties)
        items = Items.of_cases(content, scores, positive, outcomes)
        return with_joint(items, benchmark) if benchmark.joint else items

    def judge(self, scores: Scores, truth: Indices, first: Flags) -> dict[str, Outcomes]:
        """Return the outcome of every metric, of n cases with equally many candidates.

        truth: (n,), the index of the right candidate. first: (n,), True where a tie goes to the
        candidate that comes first (argmax of the stored order), False where it is wrong.
        """
        flat = scores.reshape(len(scores), -1)
        return {
            metric: Comparisons(text).outcomes(flat, first)
            for metric, text in self.comparisons.items()
        }


class ChoiceForm(CaseForm):
    """One image and K texts, or one text and K images, of which one is right: accuracy, chance
    1/K."""

    def judge(self, scores: Scores, truth: Indices, first: Flags) -> dict[str, Outcomes]:
        """accuracy: the right candidate scores best."""
        best = scores.max(axis=1)
        tied = (scores == best[:, None]).sum(axis=1)
        top = scores[np.arange(len(scores)), truth] == best
        strict = (top & (tied == 1)).astype(np.float64)
        outcomes = Outcomes(
            used=np.where(first, scores.argmax(axis=1) == truth, strict).astype(np.float64),
            strict=strict,
            fractional=(top / tied).astype(np.float64),
            chance=np.full(len(scores), 1.0 / scores.shape[1]),
        )
        return {"accuracy": outcomes}


def _forms() -> Iterator[CaseForm]:
    for name, row in package_yaml(Path(__file__).with_name("forms.yaml")).items():
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        if "comparisons" in row:
            yield CaseForm(Form(name), **fields)
        else:
            yield ChoiceForm(Form(name), **fields, metrics=("accuracy",))


ONE_BY_ONE: Mapping[Form, CaseForm] = {form.name: form for form in _forms()}


def judged(
    forms: Sequence[str],
    subtasks: Sequence[str],
    truth: Indices,
    scores: Sequence[Sequence[float]],
    ties: Mapping[str, TiePolicy],
) -> dict[str, Outcomes]:
    """Return metric -> outcomes of n items, nan for those of forms that are not judged one by one.

    forms, subtasks, truth, scores: (n,). All items of a form and number of scores are judged at
    once, under the tie policies of their sub-tasks.
    """
    blocks: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row, (name, values) in enumerate(zip(forms, scores)):
        blocks[name, len(values)].append(row)
    here = [form for name, form in ONE_BY_ONE.items() if any(name == used for used, _ in blocks)]
    outcomes = {metric: Outcomes.nowhere(len(forms)) for form in here for metric in form.metrics}
    for (name, _), rows in blocks.items():
        if name in ONE_BY_ONE:
            form = ONE_BY_ONE[Form(name)]
            first = first_wins((subtasks[row] for row in rows), ties, form.ties)
            block = np.array([scores[row] for row in rows], dtype=np.float32)
            for metric, of_block in form.judge(block, truth[rows], first).items():
                for whole, part in zip(outcomes[metric], of_block):
                    whole[rows] = part
    return outcomes


# --- Metrics of groups of items: a group is right when all of its items are. ---


def _group_sizes(benchmark: Benchmark) -> Counter[tuple[str, str, str]]:
    """Return (metric, sub-task, label value) -> cases of the whole group; see `Benchmark.joint`."""
    return Counter(
        (metric, case.subtask, case.labels[label])
        for case in benchmark.content.cases
        for metric, label in benchmark.joint.items()
        if label in case.labels
    )


def groups_by_part(benchmark: Benchmark) -> dict[str, int]:
    """Return "sub-task/metric" -> number of groups."""
    return dict(Counter(f"{part}/{metric}" for metric, part, _ in _group_sizes(benchmark)))


def with_joint(items: Items, benchmark: Benchmark) -> Items:
    """Return the items with one more metric per entry of `Benchmark.joint`: a whole group right.

    The outcome of a group is the product of the main outcomes of its items. For random ties and for
    chance it is the product of their probabilities, as if items were independent. It is stored with
    the first item of the group. A group of which items are missing is left out.
    """
    sizes = _group_sizes(benchmark)
    main = next(iter(items.outcomes.values()))
    outcomes = dict(items.outcomes)
    for metric, label in benchmark.joint.items():
        groups: dict[tuple[str, str, str], list[int]] = {}
        for row, (subtask, labels) in enumerate(zip(items.subtasks, items.labels)):
            if label in labels:
                groups.setdefault((metric, subtask, labels[label]), []).append(row)
        outcomes[metric] = grouped = Outcomes.nowhere(len(items))
        for key, rows in groups.items():
            for out, values in zip(grouped, main) if len(rows) == sizes[key] else ():
                out[rows[0]] = values[rows].prod()
    return replace(items, outcomes=outcomes)


# --- True-or-false cases. A cosine has no natural threshold, so a dual encoder cannot say yes or no
# by itself: the area under the ROC curve needs none, an accuracy takes one tuned elsewhere. ---


class BinaryForm(CaseForm):
    """One image and one text that is true of it or not.

    "auc" is the area under the ROC curve of the score; chance is 1/2. "accuracy" exists where the
    benchmark names cases to tune on (`Benchmark.tuned_on`): a score above the threshold that is
    best for them counts as "true". Its chance is the share of the more frequent answer. Balanced
    accuracy (chance 1/2) is an aggregate: the mean of the accuracies on true and on false cases.
    """

    together = True

    def items(self, content: Cases, features: EncodedFeatures, benchmark: Benchmark) -> Items:
        """Score the cases; the sub-tasks that `Benchmark.tuned_on` names only set thresholds.

        The outcome "auc" of an item is its placement among the items of the other kind in its
        sub-task (`curves.placements`). The outcome "accuracy" is whether the item is on the right
        side of the threshold. The column "threshold" is nan for sub-tasks without one. Raises
        CompoclipError for cases of other forms, and for a sub-task without true or without false
        cases.
        """
        for case in content:
            if case.form is not self.name:
                raise CompoclipError(
                    f"item '{case.id}' of sub-task '{case.subtask}': a {case.form} item among "
                    "binary ones; a benchmark with binary items can have no others"
                )
            self.candidates(case)
        scores = features.scores(
            features.image_index(content.images), features.text_index(content.texts)
        )
        truth = np.array([case.truth == 1 for case in content], dtype=bool)
        rows_of = rows_by_name(case.subtask for case in content)
        needed = {dev: part for part, dev in benchmark.tuned_on.items() if part in rows_of}
        for name in (*rows_of, *needed):
            kinds = truth[rows_of[name]] if name in rows_of else np.empty(0, dtype=bool)
            if not kinds.any() or kinds.all():
                of = f", which set the threshold of '{needed[name]}'," if name in needed else ""
                raise CompoclipError(
                    f"sub-task '{name}': among the {counted(len(kinds), 'item')}{of} there must be "
                    "true and false ones; get their images and the whole annotation file"
                )
        thresholds = {
            part: balanced_threshold(scores[rows_of[dev]], truth[rows_of[dev]])
            for part, dev in benchmark.tuned_on.items()
            if part in rows_of
        }
        limits = np.full(len(content), np.nan)
        constant = np.full(len(content), np.nan)
        auc = Outcomes.nowhere(len(content))
        scored = [part for part in rows_of if part not in benchmark.tuned_on.values()]
        for part in scored:
            rows = rows_of[part]
            limits[rows] = thresholds.get(part, np.nan)
            auc.used[rows] = auc.fractional[rows] = placements(scores[rows], truth[rows])
            auc.strict[rows] = placements(scores[rows], truth[rows], tie=0.0)
            auc.chance[rows] = 0.5
            # A score without any knowledge can be a constant, whose accuracy is the share of the
            # kind it is on the side of: the accuracy to beat is that of the more frequent kind.
            constant[rows] = truth[rows] == (truth[rows].mean() >= 0.5)
        limited = ~np.isnan(limits)
        right = np.where(limited, (scores > limits) == truth, np.nan)
        outcomes = {"auc": auc}
        if thresholds:
            chance = np.where(limited, constant, np.nan)
            outcomes["accuracy"] = Outcomes(right, right, right, chance)
        scored_rows = np.sort(np.concatenate([rows_of[part] for part in scored]))
        return Items.of_cases(
            [content[row] for row in scored_rows],
            scores=[[float(score)] for score in scores[scored_rows]],
            positive=np.where(truth, scores, np.nan)[scored_rows].astype(np.float64),
            outcomes={
                metric: Outcomes(*(values[scored_rows] for values in outcome))
                for metric, outcome in outcomes.items()
            },
            extra={"threshold": limits[scored_rows].tolist()} if thresholds else {},
        )
