"""`compoclip tree-score MODEL ...`: measure how tree-like text encoders compute."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compoclip import console
from compoclip.cli.caption_input import read_captions
from compoclip.cli.options import Models, OnDevice, Outcome
from compoclip.config import Count
from compoclip.files import require_writable, write_json, write_text
from compoclip.ranks import device_named
from compoclip.run import named_models

if TYPE_CHECKING:
    from compoclip.analysis.trees import TreeScores
    from compoclip.evaluation.statistics import Estimate


@dataclass(frozen=True)
class TreeScoreOptions(OnDevice):
    """Measure how well the span vectors of text encoders follow some binary tree.

    A span of words behaves like a constituent if its vector does not change when, from layer h on,
    it attends to itself only. The chart of a caption holds the cosine of both vectors for every
    span. A tree's score is the sum of its constituents' cosines minus the expected sum for random
    splits of the same spans; "best" is the binary tree of the highest score, found exactly. For
    comparison: the tree of the highest sum (in a causal encoder always the left-branching one), the
    greedy tree, and left-branching, right-branching and random trees.

    Examples:
        compoclip tree-score bundled --captions captions.txt
        compoclip tree-score base=ViT-B-32-quickgelu:openai tuned=runs/mosaic/model
            --captions /data/sugarcrepe --out trees

    Args:
        models: As for evaluate; NAME=MODEL gives a name. The others are compared with the first.
        captions: A .txt (one caption per line), .json or .jsonl file, or a folder of them.
        sample: Number of distinct captions to sample.
        seed: Seed of the sample, the random trees and the bootstrap.
        threshold: The layers h [default: 0 to half the layers; the last one is the headline].
        batch_size: Captions encoded at once; changes scores by rounding only.
        out: Folder for tree-score.json, plots by layer (.png, .svg) and every caption's tree.
        resamples: Bootstrap resamples.
    """

    models: Models
    captions: Path
    sample: Count = 1000
    seed: int = 0
    threshold: tuple[int, ...] = ()
    batch_size: Count = 64
    out: Path | None = None
    resamples: Count = 2000


def main(options: TreeScoreOptions) -> Outcome:
    """Parse, draw captions, measure every model, print and write."""
    models = named_models(options.models)
    if options.out is not None:
        require_writable(options.out)
    known = list(dict.fromkeys(read_captions(options.captions)))
    if len(known) < options.sample:
        console.note(f"{options.captions}: only {len(known)} distinct captions, all are taken")
    drawn = random.Random(options.seed).sample(known, min(options.sample, len(known)))

    from compoclip.analysis.trees import BEST, TREES, differences, estimates, measure_trees
    from compoclip.models.checkpoint import load_model

    device, drawing = device_named(options.device), (options.resamples, options.seed)
    scores: list[TreeScores] = []
    means, records, texts = [], [], []
    for name, spec in models.items():
        loaded = load_model(spec, device=device)
        each = measure_trees(
            name, loaded, drawn, options.threshold, options.batch_size, options.seed
        )
        scores.append(each)
        means.append({tree: estimates(each.scores[tree], *drawing) for tree in TREES})
        record: dict[str, Any] = {
            "model": name,
            "weights": each.weights,
            "layers": each.layers,
            "headline": each.headline,
            "captions": len(each.captions),
            "left_out": dict(each.left_out),
            "source": str(options.captions),
            "seed": options.seed,
            "scores": {tree: _by_threshold(each, found) for tree, found in means[-1].items()},
        }
        rows = [[tree, *map(_cell, found)] for tree, found in means[-1].items()]
        base = scores[0]
        if each is not base and each.thresholds == base.thresholds:
            number, gap = differences(base, each, *drawing)
            record["difference"] = {"captions": number, "best": _by_threshold(each, gap)}
            rows.append(["best, minus first", *(_cell(estimate, "+") for estimate in gap)])
        elif each is not base:
            console.note(
                f"{base.model} has {base.layers} text layers and {name} {each.layers}: not "
                "compared; name the layers to compare with --threshold"
            )
        records.append(record)
        lost = "".join(f", {n} left out: {reason}" for reason, n in each.left_out.items())
        columns = [f"h = {h}" for h in each.thresholds]
        columns[-1] += " (headline)"
        texts.append(
            f"{name}: {each.layers} text layers, "
            f"{console.counted(len(each.captions), 'caption')}{lost}\n"
            f"{console.table(rows, ['tree score', *columns, 'mean'])}"
        )
    if options.out is not None:
        from compoclip.report.trajectory import tree_plot

        write_json(options.out / "tree-score.json", records)
        lines = []
        for each in scores:
            for caption, tree, row in zip(each.captions, each.trees, each.scores[BEST]):
                score = round(float(row[-1]), 6)
                line = {"model": each.model, "caption": caption, "score": score, "tree": tree}
                lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        write_text(options.out / "trees.jsonl", "".join(lines))
        for path in tree_plot(options.out / "tree-score", scores, means):
            console.note(f"written to {path}")
    return records, "\n\n".join(texts)


def _by_threshold(scores: TreeScores, found: Sequence[Estimate]) -> dict[str, Any]:
    names = [*(str(h) for h in scores.thresholds), "mean"]
    return {name: asdict(each) for name, each in zip(names, found)}


def _cell(each: Estimate, sign: str = "") -> str:
    if each.low is None or each.high is None:
        return f"{each.value:{sign}.3f} [-]"
    return f"{each.value:{sign}.3f} [{each.low:{sign}.3f}, {each.high:{sign}.3f}]"
