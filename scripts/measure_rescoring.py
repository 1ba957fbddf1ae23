"""Does another score at test time do what fine-tuning does? A table of gains, and what they cost.

    python scripts/measure_rescoring.py OUT base=bundled negclip=runs/negclip/model \
        --on sugarcrepe:swap_att,root=suite foils:bind_colour,root=suite

Every model is measured with every score (OUT/SCORE/MODEL; the same command resumes). The table has
the headline of each benchmark, and its difference from the first model's cosine: "+" and "-" where
it is significant after correction over all of the table (`compare_all`). With `--oracle SUITE` it
also says what `parts` would reach if the oracle judged the parts. The cost is that
of the first model on the first `--timed` items of each benchmark, without a cache: pairs a second,
and how many times the cosine's time a pair takes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from compoclip.benchmarks.case import Cases
from compoclip.captions.parser import parse
from compoclip.cli.main import main as compoclip
from compoclip.console import end_with, table
from compoclip.evaluation.comparison import Difference, compare_all
from compoclip.evaluation.embedder import open_encoder
from compoclip.evaluation.encode import EncodeOptions, encode
from compoclip.evaluation.items import Scores
from compoclip.evaluation.pairs import COSINE, caption_parts, score_contents, score_of
from compoclip.evaluation.results import load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.run import Measuring
from compoclip_world.bounds import OracleEncoder
from compoclip_world.scene import Scene

SCORES = (COSINE, "local", "maxsim", "parts")


def gains(out: Path, scores: Sequence[str], models: Sequence[str]) -> str:
    """Return the table of headlines and of differences from the first model's cosine."""
    rows = {(m, s): load_results(out / s / m) for m in models for s in scores}
    (first, base), *others = rows.items()
    found: dict[tuple[str, str], dict[str, str]] = {first: {}}
    compared = compare_all(base, [results for _, results in others])
    for (key, _), comparison in zip(others, compared):
        found[key] = {each.benchmark: _difference(each) for each in comparison.headlines}
    lines = [
        [
            *key,
            *(f"{100 * r.headline_score.value:.1f}{found[key].get(r.benchmark, '')}" for r in each),
        ]
        for key, each in rows.items()
    ]
    return table(lines, ["model", "score", *(each.benchmark for each in base)], left=2)


def _difference(found: Difference) -> str:
    low, high = 100 * (found.low or 0), 100 * (found.high or 0)
    mark = {"higher": " +", "lower": " -"}.get(found.verdict, "")
    return f" ({100 * found.difference:+.1f} [{low:.1f}, {high:.1f}]{mark})"


class OracleOfParts(OracleEncoder):
    """Scores a text by the share of its parts that are true of the scene."""

    def match(self, images: Sequence[Scene], texts: Sequence[str], score: str = "itm") -> Scores:
        """Return (N,) of N pairs."""
        parts = [caption_parts(parse(text)) for text in texts]
        means = [
            super(OracleOfParts, self).match([i] * len(p), p).mean() for i, p in zip(images, parts)
        ]
        return np.array(means, dtype=np.float32)


def bound(suite: Path, targets: Sequence[str], out: Path) -> str:
    """Return the line of the oracle's parts."""
    benchmarks = Measuring(on=tuple(targets), device="cpu").benchmarks()
    results = evaluate("parts", OracleOfParts(suite), benchmarks, out, Options(score="itm"))
    found = ", ".join(f"{r.benchmark} {100 * r.headline_score.value:.1f}" for r in results)
    return f"oracle of parts: {found}"


def costs(model: str, targets: Sequence[str], scores: Sequence[str], items: int) -> str:
    """Return the table of pairs a second."""
    encoder, options = open_encoder(model), EncodeOptions(workers=1)
    contents: list[Cases] = []
    for each in Measuring(on=tuple(targets), device="cpu", allow_partial=True).benchmarks():
        there = [c for c in each.content.cases if all(ref.path.exists() for ref in c.images)]
        contents.append(Cases(there[:items]))
    pairs = {(i, t) for x in contents for c in x.cases for i in c.images for t in c.texts}
    images = list(dict.fromkeys(image for image, _ in pairs))
    texts = list(dict.fromkeys(text for _, text in pairs))
    seconds: dict[str, float] = {}
    for name in ("warm-up", *scores):
        start = time.perf_counter()
        score = score_of(COSINE if name == "warm-up" else name, encoder)
        if score is None:
            encode(encoder, images, texts, options)
        else:
            score_contents(encoder, score, contents, options)
        seconds[name] = time.perf_counter() - start
    rows = [
        [name, f"{len(pairs) / seconds[name]:.0f}", f"{seconds[name] / seconds[COSINE]:.1f}"]
        for name in scores
    ]
    return f"{len(pairs)} pairs, {len(images)} images, {len(texts)} texts\n" + table(
        rows, ["score", "pairs/s", "time, x cosine"], left=1
    )


def main() -> int:
    """Measure what is left, print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+", help="NAME=MODEL, the base first")
    parser.add_argument("--on", nargs="+", required=True, help="as for evaluate")
    parser.add_argument("--scores", nargs="+", default=SCORES, help="cosine first")
    parser.add_argument("--oracle", type=Path, help="the suite of drawn scenes that --on names")
    parser.add_argument("--timed", type=int, default=100, help="items a benchmark; 0: no costs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for score in given.scores:
        asked = ["evaluate", *given.models, "--on", *given.on, "--score", score, "--device", "cpu"]
        if compoclip([*asked, "--out", str(given.out / score), "--workers=1", "--allow-partial"]):
            return 1
    models = [each.partition("=")[0] for each in given.models]
    print(gains(given.out, given.scores, models))
    if given.oracle:
        print(bound(given.oracle, given.on, given.out / "oracle"))
    if given.timed:
        base = given.models[0].partition("=")[2]
        print(costs(base, given.on, given.scores, given.timed))
    return 0


if __name__ == "__main__":
    end_with(main, "measure_rescoring")
