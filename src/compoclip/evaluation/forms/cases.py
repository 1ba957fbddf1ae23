"""The forms of cases: choice, group, triple, half-truth, text-only, and true-or-false.

All but the last are judged case by case, by comparisons between their scores (`Comparisons`). A
tie counts three ways (`items.Outcomes`): as the benchmark's policy has it, as wrong, and as broken
at random.
"""

from __future__ import annotations

import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise, permutations
from typing import Any

import numpy as np

from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Cases, Form, TiePolicy
from compoclip.errors import CompoclipError, refuse
from compoclip.evaluation.curves import balanced_threshold, placements
from compoclip.evaluation.forms.form import ItemForm, Record, ShownItem, first_wins
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
        found: Flags = np.logical_or.reduce([np.logical_and.reduce(way) for way in above])
        return found

    def outcomes(self, scores: Scores, first: Flags) -> Outcomes:
        """Return the outcomes of scores (n, K). first: (n,), whether a tie goes to the first
        candidate."""
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
    """Return the share of the orders of scores of these ranks in which the comparisons hold."""
    orders = [
        np.argsort(order)
        for order in permutations(range(len(ranks)))
        if all(ranks[a] <= ranks[b] for a, b in pairwise(order))
    ]
    held: Values = metric.hold(np.array(orders)).astype(np.float64)
    return float(held.sum() / len(orders))


SEVERAL = -1
_BUCKETS = {
    "both above": "a>>c b>>c",
    "only first above": "a>>c c>>b",
    "only second above": "c>>a b>>c",
    "both below": "c>>a c>>b",
}
BUCKETS = (*_BUCKETS, "tie")


@dataclass(eq=False)
class CaseForm(ItemForm[Cases]):
    """A form of cases that are judged one by one; a benchmark may mix such forms.

    The scores of an item are those of every image with every text, image by image. Without an
    image they are those of all pairs of texts.

    Args:
        name: In cases and stored items.
        images: Number of images; SEVERAL stands for one per candidate.
        texts: Number of texts; SEVERAL likewise.
        answers: Number of candidates that `truth` is an index into.
        comparisons: Metric -> `Comparisons`, the main one first.
        matching: Places of the scores of matching pairs, whose mean is the positive score. Empty if
            the candidate at `truth` alone is right.
        called: Names of the texts on a card.
        headings: Names of the scores on a card.
        true: Whether each text is true.
        buckets: Value of the column "bucket" -> `Comparisons` that hold; "tie" if none do.
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
    buckets: Mapping[str, str] = field(default_factory=dict)

    ties = TiePolicy.STRICT
    together = False

    def __post_init__(self) -> None:
        self.metrics = self.metrics or tuple(self.comparisons)
        self.in_pairs = self.images != 0

    def candidates(self, case: Case) -> int:
        """Return the number of candidates; raise CompoclipError for a case that does not fit."""
        images, texts = len(case.images), len(case.texts)
        scores = images * texts if self.images else 3
        if not self.fits(*(np.array(n) for n in (images, texts, scores, case.truth))):
            raise CompoclipError(
                f"item '{case.id}' of sub-task '{case.subtask}' has {images} images, {texts} texts "
                f"and truth {case.truth}, which is no {case.form} item; check the annotation file"
            )
        return self.answers or max(images, texts)

    def fits(self, images: Indices, texts: Indices, scores: Indices, truth: Indices) -> Flags:
        """Return which stored items have the form's shape, and one of its candidates as truth."""
        found: Flags = (truth >= 0) & (truth < (self.answers or np.maximum(images, texts)))
        for count, wanted in ((images, self.images), (texts, self.texts)):
            found &= count >= 2 if wanted == SEVERAL else count == wanted
        found &= scores == (images * texts if self.images else 3)
        return found

    def rules(self, content: Cases, subtasks: Sequence[str]) -> tuple[dict[str, Aggregate], str]:
        """Return the mean over all items, and that over the sub-tasks."""
        parts = tuple(subtasks)
        return {"micro": Aggregate(parts, "micro"), "macro": Aggregate(parts)}, "micro"

    def items(self, content: Cases, features: EncodedFeatures, benchmark: Benchmark) -> Items:
        """Judge every case under its sub-task's tie policy, and the groups of `Benchmark.joint`.

        All cases of a form and number of candidates are judged at once.
        """
        blocks: dict[tuple[Form, int], list[int]] = defaultdict(list)
        for position, case in enumerate(content):
            blocks[case.form, ONE_BY_ONE[case.form].candidates(case)].append(position)

        n = len(content)
        here = [form for key, form in ONE_BY_ONE.items() if any(key is each for each, _ in blocks)]
        outcomes = {metric: Outcomes.nowhere(n) for form in here for metric in form.metrics}
        scores: list[Sequence[float]] = [()] * n
        positive = np.zeros(n)
        buckets: list[str | None] = [None] * n
        for (name, _), positions in blocks.items():
            form, block, rows = ONE_BY_ONE[name], [content[p] for p in positions], positions
            images = features.image_index(ref for case in block for ref in case.images)
            texts = features.text_index(text for case in block for text in case.texts)
            images, texts = images.reshape(len(block), -1), texts.reshape(len(block), -1)
            if images.shape[1]:
                pairs = np.broadcast_arrays(images[:, :, None], texts[:, None, :])
                values = features.scores(*pairs).reshape(len(block), -1)
            else:
                left, right = texts[:, [0, 0, 1]], texts[:, [1, 2, 2]]
                values = cosines(features.texts, left, features.texts, right)
            truth = np.array([case.truth for case in block])
            first = first_wins((case.subtask for case in block), benchmark.ties, form.ties)
            for metric, found in form.judge(values, truth, first).items():
                for whole, part in zip(outcomes[metric], found):
                    whole[rows] = part
            own = values[np.arange(len(block)), truth]
            positive[rows] = values[:, form.matching].mean(axis=1) if form.matching else own
            held = {each: Comparisons(text).hold(values) for each, text in form.buckets.items()}
            for k, (position, row) in enumerate(zip(positions, values.tolist())):
                scores[position] = row
                if held:
                    buckets[position] = next((b for b, each in held.items() if each[k]), "tie")
        extra: Columns = {"bucket": buckets} if any(buckets) else {}
        items = Items.of_cases(content, scores, positive, outcomes, extra)
        if not benchmark.joint:
            return items
        sizes = group_sizes(benchmark.content.cases, benchmark.joint)
        return with_joint(items, benchmark.joint, sizes)

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

    def shown(self, row: Record, wrong: Record) -> ShownItem:
        """Return the photos, if there are any, the texts, and all scores."""
        several = len(row["images"]) > 1
        photos = [(f"Photo {k}" if several else "Photo", i) for k, i in enumerate(row["images"], 1)]
        texts = list(zip(self.called, row["texts"], self.true))
        return photos, texts, [(name, k) for k, name in enumerate(self.headings)]


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

    def shown(self, row: Record, wrong: Record) -> ShownItem:
        """Return the right candidate and the best wrong one."""
        truth, scores = row["truth"], wrong["scores"]
        others = (k for k in range(len(scores)) if k != wrong["truth"])
        rival = max(others, key=lambda k: scores[k])
        columns = [(self.headings[0], truth), (self.headings[1], rival)]
        images, texts = row["images"], row["texts"]
        if self.images == 1:
            named = [(self.called[0], texts[truth], True), (self.called[1], texts[rival], False)]
            return [("Photo", images[0])], named, columns
        photos = [("Right photo", images[truth]), ("Wrong photo", images[rival])]
        return photos, [("Text", texts[0], None)], columns


_CHOICE: dict[str, Any] = {"metrics": ("accuracy",), "matching": ()}
_ONE_BY_ONE = (
    ChoiceForm(
        Form.CHOOSE_TEXT,
        images=1,
        texts=SEVERAL,
        **_CHOICE,
        called=("Caption", "Negative caption"),
        headings=("caption", "negative"),
    ),
    ChoiceForm(
        Form.CHOOSE_IMAGE,
        images=SEVERAL,
        texts=1,
        **_CHOICE,
        headings=("right photo", "wrong photo"),
    ),
    # Thrush et al., Winoground, CVPR 2022. Scores are s(0,0) s(0,1) s(1,0) s(1,1) of (image, text).
    # A tie for the first favours item 0 and fails item 1. Chance: 1/6, 1/4, 1/4.
    CaseForm(
        Form.GROUP,
        images=2,
        texts=2,
        answers=2,
        comparisons={"group": "a>b d>>c a>c d>>b", "text": "a>b d>>c", "image": "a>c d>>b"},
        matching=(0, 3),
        called=("Text 1", "Text 2"),
        headings=tuple(f"photo {i}, text {t}" for i in (1, 2) for t in (1, 2)),
        true=(None, None),
    ),
    # One image with a caption, its rewording and a foil: sensitivity and invariance. Dumpala et
    # al., SugarCrepe++, NeurIPS 2024 (augmented is its ITT); Kamath et al., The Hard Positive Truth
    # about Vision-Language Compositionality, ECCV 2024. Chance: 1/3, 1/2, 1/2, 1/3, 1/3. The last
    # two are no accuracies: they are strict whatever the policy.
    CaseForm(
        Form.TRIPLE,
        images=1,
        texts=3,
        answers=3,
        comparisons={
            "augmented": "a>c b>c",
            "original": "a>c",
            "second": "b>c",
            "brittleness": "a>>c c>>b | b>>c c>>a",
            "both_below": "c>>a c>>b",
        },
        called=("Caption", "Paraphrase", "Negative caption"),
        headings=("caption", "paraphrase", "negative"),
        buckets=_BUCKETS,
    ),
    # One image, a short true text, and two texts that add to it: one truly, one falsely. CS-CLIP,
    # arXiv 2602.23906, 2026. ht: a wrong detail makes the text worse, chance 1/2. cor: the order of
    # how much is right, 1/6. full: a right detail makes it better, 1/2: a model that dislikes
    # length wins at ht and loses here. A tie for the first favours the short text over the
    # half-truth, and the full truth over the short text.
    CaseForm(
        Form.HALF_TRUTH,
        images=1,
        texts=3,
        answers=3,
        comparisons={"ht": "a>c", "cor": "b>a a>c", "full": "b>a"},
        called=("Short", "Full truth", "Half-truth"),
        headings=("short", "full truth", "half-truth"),
    ),
    # One image, two true texts and two false ones, as in BLA. Chance: 1/6, 1/3, 1/3.
    CaseForm(
        Form.TWO_TRUE,
        images=1,
        texts=4,
        answers=4,
        comparisons={"group": "a>c a>d b>c b>d", "first": "a>c a>d", "second": "b>c b>d"},
        called=("Caption", "Caption", "Negative caption", "Negative caption"),
        headings=("caption 1", "caption 2", "negative 1", "negative 2"),
        matching=(0, 1),
        true=(True, True, False, False),
    ),
    # The three texts of a triple without the image: the TOT of SugarCrepe++. Scores are s(0,1)
    # s(0,2) s(1,2) of texts. Chance: 1/3, 1/2, 1/2.
    CaseForm(
        Form.TEXT_ONLY,
        images=0,
        texts=3,
        answers=3,
        comparisons={"augmented": "a>b a>c", "original": "a>b", "second": "a>c"},
        called=("Caption", "Paraphrase", "Negative caption"),
        headings=("caption–paraphrase", "caption–negative", "paraphrase–negative"),
    ),
)
ONE_BY_ONE: Mapping[Form, CaseForm] = {each.name: each for each in _ONE_BY_ONE}


# --- Metrics of groups of items: a group is right when all of its items are. ---

Sizes = Mapping[tuple[str, str, str], int]
"""(metric, sub-task, label value) -> items of the whole group."""


def group_sizes(cases: Iterable[Case], joint: Mapping[str, str]) -> Sizes:
    """Return the number of cases in every group; joint: metric -> case label, see `Benchmark`."""
    return Counter(
        (metric, case.subtask, case.labels[label])
        for case in cases
        for metric, label in joint.items()
        if label in case.labels
    )


def groups_by_part(sizes: Sizes) -> dict[str, int]:
    """Return "sub-task/metric" -> number of groups."""
    return dict(Counter(f"{subtask}/{metric}" for metric, subtask, _ in sizes))


def with_joint(items: Items, joint: Mapping[str, str], sizes: Sizes) -> Items:
    """Return the items with one more metric for each entry of `joint`: all items of a group right.

    The outcome of a group is the product of the main outcomes of its items. For random ties and for
    chance it is the product of their probabilities, as if items were independent. It is stored with
    the first item of the group. A group that has fewer items than `sizes` says is left out.
    """
    main = next(iter(items.outcomes.values()))
    outcomes = dict(items.outcomes)
    for metric, label in joint.items():
        groups: dict[tuple[str, str, str], list[int]] = {}
        for row, (subtask, labels) in enumerate(zip(items.subtasks, items.labels)):
            if label in labels:
                groups.setdefault((metric, subtask, labels[label]), []).append(row)
        outcomes[metric] = found = Outcomes.nowhere(len(items))
        for key, rows in groups.items():
            for out, values in zip(found, main) if len(rows) == sizes[key] else ():
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
            wrong = (
                f"item '{case.id}' of sub-task '{case.subtask}' is a {case.form} item among "
                "binary ones; a benchmark with binary items can have no others"
            )
            refuse({wrong: case.form is not self.name}, CompoclipError)
            self.candidates(case)
        scores = features.scores(
            features.image_index(content.images), features.text_index(content.texts)
        )
        truth = np.array([case.truth == 1 for case in content], dtype=bool)
        names = np.asarray([case.subtask for case in content], dtype=object)
        rows_of = {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
        needed = {dev: part for part, dev in benchmark.tuned_on.items() if part in rows_of}
        for name in (*rows_of, *needed):
            kinds = truth[rows_of[name]] if name in rows_of else np.empty(0, dtype=bool)
            if kinds.all() or not kinds.any():
                of = f", which set the threshold of '{needed[name]}'," if name in needed else ""
                raise CompoclipError(
                    f"sub-task '{name}': among the {len(kinds)} items{of} there must be true and "
                    "false ones; get their images and the whole annotation file"
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
        known = ~np.isnan(limits)
        right = np.where(known, (scores > limits) == truth, np.nan)
        outcomes = {"auc": auc}
        if thresholds:
            chance = np.where(known, constant, np.nan)
            outcomes["accuracy"] = Outcomes(right, right, right, chance)
        kept = np.sort(np.concatenate([rows_of[part] for part in scored]))
        return Items.of_cases(
            [content[row] for row in kept],
            scores=[[float(score)] for score in scores[kept]],
            positive=np.where(truth, scores, np.nan)[kept].astype(np.float64),
            outcomes={
                metric: Outcomes(*(values[kept] for values in each))
                for metric, each in outcomes.items()
            },
            extra={"threshold": limits[kept].tolist()} if thresholds else {},
        )

    def shown(self, row: Record, wrong: Record) -> ShownItem:
        """Return the photo and the text, with its label."""
        said, true = ("True", True) if row["truth"] else ("False", False)
        texts = [(said, row["texts"][0], true)]
        return [("Photo", row["images"][0])], texts, [("cosine", 0)]
