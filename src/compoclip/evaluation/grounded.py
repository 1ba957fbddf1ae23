"""Grounded gain: what a model reaches beyond what is reached without looking at an image.

- A column is a sub-task in its main metric. Blind is the better of chance and the blind models
  (`blind`) on the same items.
- The gain of a column is score - blind. A gain below zero counts as zero: a model that is
  systematically wrong is not paid for getting to chance.
- Three kinds of columns stand apart and count in no mean: those with a blind score above
  `NEEDS_NO_IMAGE`, those without images, and those that repeat the items of an earlier column.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from compoclip.benchmarks.case import Case, Form
from compoclip.benchmarks.registry import by_others
from compoclip.console import counted
from compoclip.evaluation.aggregate import additions, evaluate
from compoclip.evaluation.comparison import Difference, Pair, ScorePart, corrected, evidence_of
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.groups import kind
from compoclip.evaluation.items import BOTH_IMAGES, Items, Values
from compoclip.evaluation.numerals import SIGNS, percent, with_interval
from compoclip.evaluation.results import Results, by_model, stored_items
from compoclip.evaluation.statistics import (
    BOOTSTRAP,
    FEWEST,
    Bootstrap,
    Estimate,
    bounded_interval,
)
from compoclip.models.names import BLIND
from compoclip.printed import Table

NEEDS_NO_IMAGE = 0.85
CHANCE = "chance"
MEAN = "mean grounded gain"
EXCHANGES = 9999
"""Draws of `exchange_test`: the p-values of ten models, corrected, can be as small as 0.001."""
_CHOICES_AT_ONCE = 4_000_000
_SAME = 1e-12  # differences closer than that are equal


def is_blind(results: Results) -> bool:
    """Return whether these are results of a blind model."""
    return results.identity.get("architecture") == BLIND


@dataclass(frozen=True)
class ColumnGain:
    """A score beside what is reached without looking; values lie in [0, 1].

    results: what the score is part of. blind_by: the blind model whose score `blind` is, or CHANCE.
    gains: score - blind in bootstrap draws of photos. apart: why the column counts in no mean, ""
    for one that counts.
    """

    results: Results
    part: ScorePart
    score: float
    blind: float
    blind_by: str
    gains: Values
    photos: int
    apart: str

    @property
    def gain(self) -> Estimate:
        """Return score - blind, with its 95 % interval."""
        bounds = (-self.blind, 1.0 - self.blind) if self.blind_by == CHANCE else (-1.0, 1.0)
        interval = bounded_interval(self.gains, self.photos, *bounds)
        return Estimate(self.score - self.blind, *interval)

    @property
    def credited(self) -> float:
        """Return the gain as it counts in means."""
        return max(0.0, self.score - self.blind)

    @property
    def name(self) -> str:
        """Return the name in tables: benchmark, sub-task or rule, and "both images" for pairs."""
        metric = f", {BOTH_IMAGES}" if self.part.metric == BOTH_IMAGES else ""
        return f"{self.part.benchmark} {self.part.name}{metric}"

    @property
    def below_blind(self) -> bool:
        """Return whether the model does worse than without looking."""
        return self.score < self.blind

    def record(self) -> dict[str, Any]:
        """Return the column as JSON output gives it."""
        return {
            "benchmark": self.part.benchmark,
            "name": self.part.name,
            "score": self.score,
            "blind": self.blind,
            "blind_by": self.blind_by,
            "gain": asdict(self.gain),
            "apart": self.apart,
        }


@dataclass(frozen=True)
class Grounded:
    """The columns of one model.

    blind: the names of the blind models; () for chance alone. pairs: sub-tasks with choices between
    the same two texts on two images, as the share of pairs in which both are right, chance 1/4.
    Their items are those of columns, so they count in no mean.
    """

    model: str
    blind: tuple[str, ...]
    columns: tuple[ColumnGain, ...]
    pairs: tuple[ColumnGain, ...]

    def counted(self, others: bool = False) -> list[ColumnGain]:
        """Return the columns that count in the mean; others: those whose texts others wrote."""
        return [
            column
            for column in self.columns
            if not column.apart and (not others or by_others(column.results.reader_name))
        ]

    def mean(self, others: bool = False) -> Estimate | None:
        """Return the mean grounded gain with its 95 % interval, None if no column counts."""
        columns = self.counted(others)
        if not columns:
            return None
        value = float(np.mean([column.credited for column in columns]))
        photos = min(column.photos for column in columns)
        draws = _mean_draws(np.stack([column.gains for column in columns]))
        return Estimate(value, *bounded_interval(draws, photos, lowest=0.0))


def _mean_draws(gains: Values) -> Values:
    """Return the mean credited gain in each draw of (columns, draws); missing columns do not count.

    A draw misses a column when it has none of its photos.
    """
    present = ~np.isnan(gains)
    total = np.where(present, np.maximum(gains, 0.0), 0.0).sum(axis=0)
    mean: Values = total / np.maximum(present.sum(axis=0), 1)
    return mean


def ground(
    results: Sequence[Results],
    blind: Sequence[Results] = (),
    bootstrap: Bootstrap = BOOTSTRAP,
) -> Grounded:
    """Compare one model with what is reached without looking.

    Args:
        results: of the model, one per benchmark.
        blind: of blind models. On a benchmark without any, chance alone is blind.
        bootstrap: the draws for the intervals.

    Raises:
        CompoclipError: items cannot be read, or a blind model was measured on other data.
    """
    columns: list[ColumnGain] = []
    earlier: dict[Hashable, str] = {}
    for measured in results:
        if kind(measured) == "sanity":
            continue
        pairs = {CHANCE: Pair.with_guessing(measured)}
        same = (result for result in blind if result.benchmark == measured.benchmark)
        pairs |= {result.model: Pair.of(result, measured) for result in same}
        apart = _apart(measured, earlier)
        by_reference: dict[str, dict[ScorePart, float]] = {}
        for part in _parts(measured, pairs[CHANCE]):
            blinds = {
                name: evaluate(pair.tree(part.name, part.metric), pair.base)
                for name, pair in pairs.items()
            }
            best = max(blinds, key=lambda name: blinds[name])
            by_reference.setdefault(best, {})[part] = blinds[best]
        for name, values in by_reference.items():
            pair = pairs[name]
            groups = {part: (part,) for part in values}
            evidence = evidence_of({measured.benchmark: pair}, groups, bootstrap)
            for part, value in values.items():
                score = evaluate(pair.tree(part.name, part.metric), pair.other)
                reason = apart.get(part.name, "")
                if value > NEEDS_NO_IMAGE:
                    reason = reason or "needs no image"
                columns.append(
                    ColumnGain(
                        results=measured,
                        part=part,
                        score=value if abs(score - value) < _SAME else score,
                        blind=value,
                        blind_by=name,
                        gains=evidence[part].draws,
                        photos=evidence[part].photos,
                        apart=reason,
                    )
                )
    strict = [column for column in columns if column.part.metric == BOTH_IMAGES]
    plain = [column for column in columns if column.part.metric != BOTH_IMAGES]
    return Grounded(results[0].model, (*by_model(blind),), tuple(plain), tuple(strict))


def _parts(results: Results, pair: Pair) -> list[ScorePart]:
    """Return the columns of a benchmark. Classes that are sub-tasks are one column together."""
    name = results.benchmark
    if any("ap11" in metrics for metrics in results.scores.values()):
        return [ScorePart(name, results.headline, "")]
    strict = [
        ScorePart(name, subtask, BOTH_IMAGES)
        for subtask, rows in pair.subtask_rows.items()
        if not np.isnan(pair.other[BOTH_IMAGES][rows]).all()
    ]
    return [*(ScorePart(name, subtask) for subtask in pair.subtask_rows), *strict]


def _apart(results: Results, earlier: dict[Hashable, str]) -> dict[str, str]:
    """Return the sub-tasks that have no images, or the items of an earlier column, with the reason.

    earlier: the questions of a column -> its name; those of these results are added.
    """
    items = stored_items(results)
    questions: dict[str, set[Hashable]] = {}
    for row, subtask in enumerate(items.subtasks):
        in_pairs = FORMS[Form(items.forms[row])].in_pairs
        alone = results.benchmark, subtask, items.ids[row]
        question = _question(items, row) if in_pairs else alone
        questions.setdefault(subtask, set()).add(question)
    pairs = zip(items.subtasks, items.images)
    reasons = {subtask: "has no images" for subtask, images in pairs if not images}
    for subtask, question_set in questions.items():
        column = f"{results.benchmark} {subtask}"
        first = earlier.setdefault(frozenset(question_set), column)
        if first != column:
            reasons[subtask] = f"repeats {first}"
    return reasons


def _question(items: Items, row: int) -> Hashable:
    """Return what an item asks: its images, and the words of its true and of its false texts.

    Texts of the same words, such as "a cup and a plate" and "a plate and a cup", are alike, so that
    a further true text that only changes the order makes no other question.
    """
    form, truth, texts = Form(items.forms[row]), items.truth[row], items.texts[row]
    true, false = Case("", form, (), texts, "", truth).sides
    words = [tuple(sorted(re.findall(r"\w+", text.lower()))) for text in texts]
    images = tuple(image.rpartition("/")[2] for image in items.images[row])
    answer = -1 if false else truth
    return images, answer, frozenset(words[k] for k in true), frozenset(words[k] for k in false)


# --- The difference between two models' mean gains. ---


def gain_differences(base: Grounded, others: Sequence[Grounded]) -> dict[str, Difference]:
    """Compare mean grounded gains with a base's, on the columns that count for both.

    Returns model -> difference, with p-values of `exchange_test` corrected over all models; models
    that share no such column are left out. Raises CompoclipError as `compare_all` does.
    """
    differences = {other.model: gain_difference([base], [other]) for other in others}
    defined = {
        model: difference for model, difference in differences.items() if difference is not None
    }
    return dict(zip(defined, corrected([*defined.values()])))


def gain_difference(base: Sequence[Grounded], other: Sequence[Grounded]) -> Difference | None:
    """Compare the mean grounded gains of two recipes, each the runs of as many seeds.

    Outcomes are averaged over the seeds before the floors and the test. None without a column that
    counts for both; the p-value is not corrected. Raises ValueError for different numbers of runs,
    CompoclipError as `compare_all` does.
    """
    shared = {c.part for c in base[0].counted()} & {c.part for c in other[0].counted()}
    parts = [column.part for column in base[0].counted() if column.part in shared]
    if not parts:
        return None
    adds, gains, draws, photos, items = [], [], [], 0, 0
    for one, two in zip(base, other, strict=True):
        mine, theirs = ({c.part: c for c in model.columns} for model in (one, two))
        columns = [[by_part[part] for part in parts] for by_part in (mine, theirs)]
        photos = min(column.photos for column in (*columns[0], *columns[1]))
        gains.append([[c.score - c.blind for c in side] for side in columns])
        draws.append([[c.gains for c in side] for side in columns])
        added, items = _added(parts, mine, theirs)
        adds.append(added)
    before, after = np.mean(gains, axis=0)
    p = exchange_test(before, after, np.mean(adds, axis=0)) if photos >= FEWEST else None
    first, second = (float(np.maximum(side, 0.0).mean()) for side in (before, after))
    mean_draws = [_mean_draws(side) for side in np.mean(draws, axis=0)]
    low, high = bounded_interval(mean_draws[1] - mean_draws[0], photos)
    return Difference("", MEAN, first, second, second - first, low, high, items, photos, p)


def _added(
    parts: Sequence[ScorePart],
    base: Mapping[ScorePart, ColumnGain],
    other: Mapping[ScorePart, ColumnGain],
) -> tuple[Values, int]:
    """Return (photos, columns) what each photo adds to other - base, and the number of items."""
    pairs: dict[str, Pair] = {}
    for part in parts:
        if part.benchmark not in pairs:
            pairs[part.benchmark] = Pair.of(base[part].results, other[part].results)
    blocks = []
    for benchmark, pair in pairs.items():
        adds = np.zeros((int(pair.photos.max()) + 1, len(parts)))
        for place, part in enumerate(parts):
            if part.benchmark == benchmark:
                tree = pair.tree(part.name, part.metric)
                adds[:, place] = additions(tree, pair.base, pair.other, pair.photos)
        blocks.append(adds)
    return np.concatenate(blocks), sum(len(pair.photos) for pair in pairs.values())


def exchange_test(
    base: Values, other: Values, adds: Values, draws: int = EXCHANGES, seed: int = 0
) -> float:
    """Return the two-sided p-value that the mean grounded gains of two models do not differ.

    If two models are equally good, the outcomes of both on a photo could as well be exchanged. p is
    the share of random choices of photos after whose exchange the mean gains, with their floors at
    zero, differ at least as much as observed; the observed choice counts as one of them.

    Args:
        base, other: (columns,) scores minus what is reached without looking.
        adds: (photos, columns) what each photo adds to other - base.
        draws: number of random choices.
        seed: of these.

    Source: Good, Permutation, Parametric and Bootstrap Tests of Hypotheses (2005).
    """
    rng = np.random.default_rng(seed)
    adds = adds[adds.any(axis=1)]

    def gap(moved: Values) -> Values:
        """Return how far mean gains differ when `moved` goes from `other` to `base`."""
        gains = np.maximum(other - moved, 0.0) - np.maximum(base + moved, 0.0)
        distance: Values = np.abs(gains.mean(axis=-1))
        return distance

    observed = gap(np.zeros(len(base))) - _SAME
    hits = 1
    at_once = max(1, _CHOICES_AT_ONCE // max(1, len(adds)))
    for first in range(0, draws, at_once):
        size = min(at_once, draws - first), len(adds)
        exchanged = rng.integers(0, 2, size, dtype=np.int8).astype(np.float64)
        hits += int(np.count_nonzero(gap(exchanged @ adds) >= observed))
    return hits / (1 + draws)


# --- Models side by side. ---


@dataclass(frozen=True)
class GroundedModels:
    """The grounded gains of several models, the base first; differences: of means to the base's."""

    models: tuple[Grounded, ...]
    differences: Mapping[str, Difference]

    @property
    def reference(self) -> str:
        """Return what the gains are counted from, in words."""
        names = dict.fromkeys(name for one in self.models for name in one.blind)
        return f"the better of chance and {', '.join(names)}" if names else "chance alone"

    def needs_image(self, parts: Iterable[ScorePart], score: float) -> bool:
        """Return whether a mean score over sub-tasks is out of reach without an image: neither does
        a blind model reach 85 % of all their items, nor as much on average."""
        places = {(part.benchmark, part.name) for part in parts}
        columns = [c for c in self.models[0].columns if (c.part.benchmark, c.part.name) in places]
        return not columns or (
            not all(column.apart for column in columns)
            and score > float(np.mean([column.blind for column in columns]))
        )

    def means(self, others: bool = False) -> dict[str, str]:
        """Return model -> its mean with interval and mark, "-" without a column that counts."""
        cells = {}
        for one in self.models:
            mean, difference = one.mean(others), self.differences.get(one.model)
            mark = SIGNS.get(difference.verdict, "") if difference and not others else ""
            value = mean and with_interval(mean.value, mean.low, mean.high)
            cells[one.model] = f"{value}{mark}" if value else "-"
        return cells

    def table(self) -> Table:
        """Return a row per column, each model's gain and what blind is, and then the means."""
        gains: dict[str, dict[str, str]] = {}
        blind: dict[str, str] = {}
        for one in self.models:
            for column in (*one.counted(), *one.pairs):
                gain = column.gain
                cell = with_interval(gain.value, gain.low, gain.high, "+")
                gains.setdefault(column.name, {})[one.model] = cell
                blind.setdefault(column.name, f"{percent(column.blind)} ({column.blind_by})")
        gains |= {MEAN: self.means(), f"{MEAN}, texts by others": self.means(others=True)}
        names = [one.model for one in self.models]
        rows = [
            [name, *(cells.get(model, "-") for model in names), blind.get(name, "")]
            for name, cells in gains.items()
        ]
        return Table(rows, ["grounded gain", *names, "blind"], notes=self.notes())

    def notes(self, details: bool = True) -> list[str]:
        """Return what blind is, and how many columns count.

        details: name those that count in no mean, and those that count as zero.
        """
        base = self.models[0]
        blind = any(one.blind for one in self.models)
        remedy = "" if blind else "; measure blind:CAPTIONS beside the model"
        number = counted(len(base.counted()), "column")
        below = sum(column.below_blind for column in base.counted())
        apart = sum(bool(column.apart) for column in base.columns)
        lines = [
            f"{MEAN}: score - blind, in points; blind: {self.reference}{remedy}",
            f"{number} in the mean of {base.model}, {below} below blind; {apart} count in no mean",
        ]
        reasons: dict[str, dict[str, None]] = {}
        models_below: dict[str, list[str]] = {}
        for one in self.models if details else ():
            for column in one.columns:
                if column.apart:
                    name = f"{column.name} ({percent(column.blind)})"
                    reasons.setdefault(column.apart, {})[name] = None
                elif column.below_blind:
                    models_below.setdefault(column.name, []).append(one.model)
        lines += [f"{reason}, in no mean: {', '.join(names)}" for reason, names in reasons.items()]
        return lines + [
            f"below blind, counted as 0: {name} ({', '.join(models)})"
            for name, models in models_below.items()
        ]

    def record(self, model: str, benchmark: str = "") -> dict[str, Any]:
        """Return what JSON output says of a model: its means over all benchmarks, and its columns.

        benchmark: the one whose columns to give; "" for all.
        """
        (one,) = (one for one in self.models if one.model == model)
        mean, by_others = one.mean(), one.mean(others=True)
        columns, pairs = (
            [column.record() for column in columns if benchmark in ("", column.part.benchmark)]
            for columns in (one.columns, one.pairs)
        )
        return {
            "mean": mean and asdict(mean),
            "mean_texts_by_others": by_others and asdict(by_others),
            "blind_models": list(one.blind),
            "columns": columns,
            "both_images": pairs,
        }

    def results_json(self, results: Sequence[Results]) -> list[dict[str, Any]]:
        """Return results as JSON output gives them, with the columns of each benchmark."""
        return [
            {**asdict(measured), "grounded": self.record(measured.model, measured.benchmark)}
            for measured in results
        ]


def ground_all(
    results: Mapping[str, Sequence[Results]],
    bounds: Sequence[Results] = (),
    bootstrap: Bootstrap = BOOTSTRAP,
) -> GroundedModels:
    """Compare every model with what is reached without looking, and with the base.

    Args:
        results: of each model, the base first; those of blind models are blind for all.
        bounds: of further models, of which the blind ones count.
        bootstrap: the draws for the intervals.

    Raises:
        CompoclipError: as `ground` does.
    """
    every = [result for measured in results.values() for result in measured]
    blind = [result for result in (*every, *bounds) if is_blind(result)]
    base, *others = (ground(measured, blind, bootstrap) for measured in results.values())
    return GroundedModels((base, *others), gain_differences(base, others))
