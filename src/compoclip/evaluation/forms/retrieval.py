"""Image-text retrieval both ways: R@1, R@5, R@10 from exact ranks, in bounded memory; and images
that a judge is asked about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from compoclip.benchmarks.case import (
    Aggregate,
    Benchmark,
    Case,
    Cases,
    Form,
    JudgedRetrieval,
    Retrieval,
    image_key,
    image_names,
    text_names,
)
from compoclip.evaluation.forms.form import ItemForm, first_wins
from compoclip.evaluation.items import (
    EncodedFeatures,
    Indices,
    Items,
    Outcomes,
    Scores,
    Values,
    linked,
    merge_equal,
)

CUTS = (1, 5, 10)
NO_LABELS: Mapping[str, str] = MappingProxyType({})
"""The labels of every query: millions of empty ones would take as much memory as their texts."""


class RetrievalForm(ItemForm[Retrieval]):
    """All texts ranked for each image ("i2t") and all images for each text ("t2i").

    r1, r5, r10: a matching candidate is among the k best; chance: the whole gallery in random
    order.
    """

    name = Form.RETRIEVAL
    metrics = ("r1", "r5", "r10")
    one_gallery = True

    def items(self, content: Retrieval, features: EncodedFeatures, benchmark: Benchmark) -> Items:
        """Rank for every query that has a match; candidates without one stay as distractors.

        Ties go by the order of the gallery unless the benchmark says otherwise.
        """
        texts_of: dict[int, list[int]] = {}
        images_of: dict[int, list[int]] = {}
        for image, text in content.pairs:
            texts_of.setdefault(image, []).append(text)
            images_of.setdefault(text, []).append(image)
        images = features.images[features.image_index(content.images)]
        texts = features.texts[features.text_index(content.texts)]
        query_images, query_texts = sorted(texts_of), sorted(images_of)
        i2t = rank(images[query_images], texts, [sorted(set(texts_of[i])) for i in query_images])
        t2i = rank(texts[query_texts], images, [sorted(set(images_of[t])) for t in query_texts])

        keys = [image_key(ref) for ref in content.images]
        paths = [ref.photo for ref in content.images]
        names, caption = image_names(content.images), text_names(content)
        n = len(query_images) + len(query_texts)
        best_texts, text_scores = i2t.best_candidates(content.texts)
        best_images, image_scores = t2i.best_candidates(keys)
        to_text, to_image = first_wins(("i2t", "t2i"), benchmark.ties, self.ties)
        return Items(
            ids=[names[i] for i in query_images] + [caption[t] for t in query_texts],
            forms=[self.name.value for _ in range(n)],
            subtasks=["i2t" for _ in query_images] + ["t2i" for _ in query_texts],
            labels=[NO_LABELS for _ in range(n)],
            truth=[0 for _ in range(n)],
            images=[(keys[i],) for i in query_images] + best_images,
            texts=best_texts + [(content.texts[t],) for t in query_texts],
            scores=text_scores + image_scores,
            clusters=linked(
                [[paths[i]] for i in query_images]
                + [[paths[i] for i in images_of[t]] for t in query_texts]
            ),
            positive=np.concatenate([i2t.best_score, t2i.best_score]).astype(np.float64),
            outcomes={
                f"r{k}": Outcomes.stacked([i2t.within(k, to_text), t2i.within(k, to_image)])
                for k in CUTS
            },
            extra={"rank": [int(r) for r in (*i2t.rank, *t2i.rank)]},
        )

    def rules(
        self, content: Retrieval, subtasks: Sequence[str]
    ) -> tuple[dict[str, Aggregate], str]:
        """R@1, the mean of both ways."""
        return {"r1": Aggregate(("i2t", "t2i"), metric="r1")}, "r1"


class JudgedForm(ItemForm[JudgedRetrieval]):
    """The best image of each text, about which a judge is asked two questions.

    A judge says yes where its score is above 0, as log-odds are. both: yes to the first question
    and no to the second; named: yes to the first. chance: the same of a random image per text.
    """

    name = Form.JUDGED
    metrics = ("both", "named")
    alone = (("Text", None),)
    one_gallery = True

    def items(
        self, content: JudgedRetrieval, features: EncodedFeatures, benchmark: Benchmark
    ) -> Items:
        """Find and judge; of equally good images the first one is taken."""
        assert features.judge is not None
        images = features.images[features.image_index(content.images)]
        texts = features.texts[features.text_index(content.texts)]
        n, scores = len(texts), texts @ images.T
        best, highest = scores.argmax(axis=1), scores.max(axis=1)
        sampled = np.random.default_rng(0).integers(len(images), size=n)
        refs = [content.images[k] for k in (*best, *sampled)]
        questions = [*content.questions, *content.questions]
        pairs = zip(refs, questions)
        cases = (Case(str(k), Form.CHOOSE_TEXT, (r,), q, "") for k, (r, q) in enumerate(pairs))
        judged = features.judge(Cases(cases))
        rows = judged.image_index(refs)
        answers = [judged.text_index(column) for column in zip(*questions)]
        yes, no = (judged.scores(rows, answer) > 0 for answer in answers)
        right = {"both": (yes & ~no).astype(np.float64), "named": yes.astype(np.float64)}
        return Items(
            ids=[f"text {k}" for k in range(n)],
            forms=[self.name.value for _ in range(n)],
            subtasks=["negated" for _ in range(n)],
            labels=[NO_LABELS for _ in range(n)],
            truth=[0 for _ in range(n)],
            images=[(image_key(content.images[k]),) for k in best],
            texts=[(text,) for text in content.texts],
            scores=[[score] for score in highest.tolist()],
            clusters=linked([[content.images[k].photo] for k in best]),
            positive=highest.astype(np.float64),
            outcomes={
                metric: Outcomes(used[:n], used[:n], used[:n], used[n:])
                for metric, used in right.items()
            },
        )

    def rules(
        self, content: JudgedRetrieval, subtasks: Sequence[str]
    ) -> tuple[dict[str, Aggregate], str]:
        """Both answers."""
        return {m: Aggregate(("negated",), "micro", metric=m) for m in self.metrics}, "both"


# --- Exact ranks of the right candidates in a shared gallery. ---

SCORES_AT_ONCE = 1 << 23


@dataclass(frozen=True)
class RetrievalRanks:
    """Rank of the best right candidate of each of q queries among m candidates.

    better: candidates that score more. equal: candidates with the same score, itself included;
    equal_right: how many of these are right. before: wrong ones of these that come first in index
    order. right: number of right candidates. best: index of the best right candidate (the first of
    equals); rival: index of the best wrong one (-1 without one). All (q,).
    """

    gallery: int
    better: Indices
    equal: Indices
    equal_right: Indices
    before: Indices
    right: Indices
    best: Indices
    rival: Indices
    best_score: Scores
    rival_score: Scores

    @property
    def rank(self) -> Indices:
        """1 + strictly better + equal ones before it in index order."""
        return 1 + self.better + self.before

    def within(self, k: int, first: bool = True) -> Outcomes:
        """Outcomes of "a right candidate is among the k best".

        used: by `rank` when `first`, else every wrong equal counts as before it (strict).
        fractional: equals in random order. chance: the whole gallery in random order.
        """
        strict = (1 + self.better + self.equal - self.equal_right <= k).astype(np.float64)
        everyone = np.full(len(self.better), self.gallery)
        return Outcomes(
            used=(self.rank <= k).astype(np.float64) if first else strict,
            strict=strict,
            fractional=_any_drawn(k - self.better, self.equal, self.equal_right),
            chance=_any_drawn(np.full(len(everyone), k), everyone, self.right),
        )

    def best_candidates(
        self, names: Sequence[str]
    ) -> tuple[list[tuple[str, ...]], list[Sequence[float]]]:
        """Names and scores of the best right candidate and, where there is a wrong one, of its
        best rival."""
        pairs = [(b,) if r < 0 else (b, r) for b, r in zip(self.best, self.rival)]
        scores = zip(self.best_score.tolist(), self.rival_score.tolist())
        return [tuple(names[k] for k in pair) for pair in pairs], [
            both[: len(pair)] for pair, both in zip(pairs, scores)
        ]


def rank(queries: Scores, gallery: Scores, right: Sequence[Sequence[int]]) -> RetrievalRanks:
    """Rank a gallery (m, D) for each query (q, D); `right[i]` are the right candidates of query i.

    Every query needs at least one right candidate. Works through blocks of queries of about
    SCORES_AT_ONCE scores, so memory does not grow with q * m. Bit-equal gallery rows get bit-equal
    scores.
    """
    distinct, place = merge_equal(gallery)
    m, step = len(gallery), max(1, SCORES_AT_ONCE // max(len(gallery), 1))
    none = np.empty(0, dtype=np.int64)
    blocks: list[tuple[np.ndarray, ...]] = [] if len(queries) else [(none,) * 9]
    for start in range(0, len(queries), step):
        scores = queries[start : start + step] @ distinct.T
        if len(distinct) < m:
            scores = scores[:, place]
        matches = right[start : start + step]
        counts = np.array([len(row) for row in matches], dtype=np.int64)
        rows = np.repeat(np.arange(len(matches)), counts)
        columns = np.concatenate([np.sort(np.asarray(row, dtype=np.int64)) for row in matches])
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        match_scores = scores[rows, columns]
        best_score = np.maximum.reduceat(match_scores, starts)
        is_best = match_scores == best_score[rows]
        best = np.minimum.reduceat(np.where(is_best, columns, m), starts)
        equal_right = np.add.reduceat(is_best.astype(np.int64), starts)
        level = scores == best_score[:, None]
        equal = np.count_nonzero(level, axis=1)
        before = np.zeros(len(matches), dtype=np.int64)
        for row in np.flatnonzero(equal > equal_right):
            before[row] = np.count_nonzero(level[row, : best[row]])
        better = np.count_nonzero(scores > best_score[:, None], axis=1)
        scores[rows, columns] = -np.inf
        rival = scores.argmax(axis=1)
        rival_score = scores[np.arange(len(scores)), rival]
        rival = np.where(np.isneginf(rival_score), -1, rival)
        blocks.append(
            (better, equal, equal_right, before, counts, best, rival, best_score, rival_score)
        )
    return RetrievalRanks(m, *map(np.concatenate, zip(*blocks)))


def _any_drawn(draws: Indices, total: Indices, right: Indices) -> Values:
    """Probability that `draws` picks without return out of `total` hit one of `right`."""
    draws = np.clip(draws, 0, total)
    miss = np.ones(len(draws))
    for i in range(int(draws.max(initial=0))):
        left = np.maximum(total - i, 1)
        miss = np.where(i < draws, miss * np.maximum(total - right - i, 0) / left, miss)
    return 1.0 - miss
