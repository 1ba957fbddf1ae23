"""Measure what re-ranking by tokens and patches gains over global vectors, and what it costs.

    python scripts/measure_rerank.py base=bundled fsc=runs/fsc/model --on world/suite.json

Of every retrieval set texts search images: R@1 of the global vectors, and after the best K are put
in a new order. Of sets whose items are one image and several texts, or two of each, the share of
right choices; a choice among texts is not search, it says what the score itself can tell apart.
Counts are paired: won and lost are the queries that only one of the two gets right, p is McNemar's.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch.nn.functional import normalize

import compoclip
from compoclip.benchmarks.case import Case, Form, Retrieval
from compoclip.benchmarks.targets import parse_targets
from compoclip.console import track
from compoclip.data.decode import decode
from compoclip.evaluation import Reranker, sign_flip
from compoclip.evaluation.encoder import evaluating, full_float32
from compoclip.run import named_models

Flags = NDArray[np.bool_]
Patches = NDArray[np.float16]
Item = TypeVar("Item")
LOCAL = "local"
_AT_ONCE = 64


class Searched:
    """Features of a model, each image and text encoded once."""

    def __init__(
        self, spec: str, weights: Sequence[float], tops: Sequence[int], items: int
    ) -> None:
        self.model = compoclip.load(spec)
        self.reranker = Reranker(self.model.loaded)
        self.weights, self.tops, self.items = weights, tops, items
        self.seconds: dict[str, float] = defaultdict(float)
        self.products: dict[str, list[int]] = defaultdict(list)

    def found(
        self, similarity: NDArray[np.floating], local: NDArray[np.floating]
    ) -> dict[str, int]:
        """The best position by each score: global, combined at each weight, local alone."""
        best = {"global": int(similarity.argmax()), LOCAL: int(local.argmax())}
        return best | {f"{w:g}": int((similarity + w * local).argmax()) for w in self.weights}

    def encoded(self, files: Sequence[Path | Image]) -> tuple[NDArray[np.float32], Patches]:
        """(N, D) global vectors and (N, P, D) patches of images, in one pass over the tower."""
        loaded = self.model.loaded
        vectors, patches = [], []
        starts = range(0, len(files), _AT_ONCE)
        for start in track(starts, "encoding images", len(starts), f"times {_AT_ONCE}"):
            shown = [
                each if isinstance(each, Image) else decode(each)
                for each in files[start : start + _AT_ONCE]
            ]
            pixels = torch.stack([loaded.preprocess.evaluation(each) for each in shown])
            with evaluating(loaded.encoder), torch.inference_mode(), full_float32():
                found = loaded.encoder.encode_images(pixels, patches=True)
            assert found.patches is not None
            vectors.append(normalize(found.pooled, dim=-1).numpy())
            patches.append(found.patches.numpy().astype(np.float16))
        return np.concatenate(vectors), np.concatenate(patches)

    def retrieval(self, content: Retrieval) -> dict[str, Flags]:
        """Whether the best image is right, for each text, by score and K."""
        images, patches = self.encoded([ref.path for ref in content.images])
        right: dict[int, set[int]] = defaultdict(set)
        for image, text in content.pairs:
            right[text].add(image)
        hits: dict[str, list[bool]] = defaultdict(list)
        for number in _spread(range(len(content.texts)), self.items):
            text = content.texts[number]
            start = time.process_time()
            (query,) = self.model.encode_texts([text])
            similarity = images @ query
            rows = np.argsort(-similarity, kind="stable")[: max(self.tops)]
            self.seconds["search"] += time.process_time() - start
            start = time.process_time()
            local = self.reranker.local_scores(text, patches[rows])
            self.seconds["rerank"] += time.process_time() - start
            tokens = int((self.model.loaded.tokenizer([text]) != 0).sum()) - 1
            self.products["search"].append(images.size)
            self.products["rerank"].append(2 * tokens * patches[rows].size)
            for top in self.tops:
                for name, at in self.found(similarity[rows[:top]], local[:top]).items():
                    key = name if name == "global" else f"{name} of {top}"
                    if name != "global" or top == self.tops[0]:
                        hits[key].append(int(rows[at]) in right[number])
        return {name: np.array(each) for name, each in hits.items()}

    def choices(self, cases: Sequence[Case]) -> dict[tuple[str, str], Flags]:
        """Whether each choice is right, by kind of choice and score."""
        refs = list(dict.fromkeys(ref for case in cases for ref in case.images))
        files = [decode(ref.path, box=ref.box) for ref in refs]
        image = dict(zip(refs, zip(*self.encoded(files))))
        hits: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for case in cases:
            vectors, patches = (
                np.stack(each) for each in zip(*(image[ref] for ref in case.images))
            )
            similarity = vectors @ self.model.encode_texts(case.texts).T
            local = np.stack([self.reranker.local_scores(t, patches) for t in case.texts], axis=1)
            if case.form == Form.GROUP:
                for i in (0, 1):
                    for name, at in self.found(similarity[:, i], local[:, i]).items():
                        hits["image of a text", name].append(at == i)
            if case.form in (Form.GROUP, Form.CHOOSE_TEXT):
                for i, row in enumerate(similarity):
                    truth = i if case.form == Form.GROUP else case.truth
                    for name, at in self.found(row, local[i]).items():
                        hits["text of an image", name].append(at == truth)
        return {name: np.array(each) for name, each in hits.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table a model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="[NAME=]MODEL")
    parser.add_argument("--on", nargs="+", required=True, metavar="TARGET")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--weights", nargs="+", type=float, default=[0.25, 1.0])
    parser.add_argument("--top", nargs="+", type=int, default=[5, 20])
    parser.add_argument("--parts", nargs="*", default=[], help="sub-tasks of sets of choices")
    parser.add_argument("--items", type=int, default=600, help="at most of each set")
    options = parser.parse_args(argv)
    loaded = [target.load() for target in parse_targets(options.on, options.data)]
    for name, spec in named_models(tuple(options.models)).items():
        searched = Searched(spec, options.weights, options.top, options.items)
        print(f"\n{name}: right, won, lost, p")
        for benchmark in loaded:
            content = benchmark.content
            if isinstance(content, Retrieval):
                _show(f"{benchmark.name}: R@1", searched.retrieval(content))
            by_part: dict[str, list[Case]] = defaultdict(list)
            for case in content.cases:
                wanted = not options.parts or case.subtask in options.parts
                if wanted and case.form in (Form.GROUP, Form.CHOOSE_TEXT):
                    by_part[case.subtask].append(case)
            for part, cases in by_part.items():
                found = searched.choices(_spread(cases, options.items))
                for kind in dict.fromkeys(kind for kind, _ in found):
                    flags = {score: each for (of, score), each in found.items() if of == kind}
                    _show(f"{benchmark.name}, {part}: {kind}", flags)
        if searched.products:
            _cost(searched)


def _show(name: str, flags: dict[str, Flags]) -> None:
    before = flags["global"]
    for score, each in flags.items():
        won, lost = int((each & ~before).sum()), int((before & ~each).sum())
        line = f"{name:<40} {score:<11} {each.mean():6.1%} of {len(each)}"
        print(
            line, won, lost, f"{sign_flip(np.subtract(each, before, dtype=float)):.2g}", flush=True
        )


def _spread(items: Sequence[Item], most: int) -> Sequence[Item]:
    """At most so many, from all over the list."""
    return items[:: max(1, -(-len(items) // most))]


def _cost(searched: Searched) -> None:
    ratio = searched.seconds["rerank"] / searched.seconds["search"]
    counts = {part: round(np.mean(each)) for part, each in searched.products.items()}
    print(
        f"\none text at a time, re-ranking {max(searched.tops)} images takes {ratio:.2f} of the "
        f"time of encoding the text and comparing it with all images; {counts['rerank']:,} "
        f"multiplications a query, and {counts['search']:,} for the comparison with all"
    )


if __name__ == "__main__":
    main()
