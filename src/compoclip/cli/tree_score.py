"""`compoclip tree-score MODEL ...`: how tree-like text encoders compute."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compoclip import console
from compoclip.cli.caption_input import read_captions
from compoclip.cli.options import Models, parse
from compoclip.errors import UsageError
from compoclip.files import require_writable, write_json, write_text
from compoclip.ranks import device_named
from compoclip.run import named_models, require_least

if TYPE_CHECKING:
    from compoclip.analysis.trees import TreeScores
    from compoclip.evaluation.statistics import Estimate


@dataclass(frozen=True)
class TreeScoreOptions:
    """Tree scores of text encoders: how well their span vectors follow some binary tree.

    A span of words that comes out the same when, from layer h on, it sees nothing but itself was
    computed on its own, as a constituent is. The chart of a caption holds the cosine of both
    vectors for every span. A tree's score is the sum of its constituents' cosines minus what
    splitting the same spans blindly yields; "best" is the binary tree of the highest score, found
    exactly. Beside it: the tree of the highest sum (in a causal encoder always the left-branching
    one), the greedy one, and left-branching, right-branching and random trees, which know nothing
    of the model.

    Examples:
        compoclip tree-score bundled --captions captions.txt
        compoclip tree-score base=ViT-B-32-quickgelu:openai tuned=runs/mosaic/model
            --captions /data/sugarcrepe --out trees

    Args:
        models: As for evaluate; NAME=MODEL gives a name. The others are compared with the first.
        captions: A .txt (one caption a line), .json or .jsonl file, or a folder of them.
        sample: Distinct captions to draw from these.
        seed: Seed of the draw, of the random trees and of the bootstrap.
        threshold: The layers h [default: every one from 0 to half the layers; the last one is the
            headline].
        batch_size: Captions at once; changes scores by rounding only.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        out: Folder for tree-score.json, plots by layer (.png, .svg) and every caption's tree.
        resamples: Bootstrap resamples.
        json: Print the scores as JSON.
    """

    models: Models
    captions: Path
    sample: int = 1000
    seed: int = 0
    threshold: tuple[int, ...] = ()
    batch_size: int = 64
    device: str = "auto"
    out: Path | None = None
    resamples: int = 2000
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse, draw captions, measure every model, print and write."""
    options = parse(TreeScoreOptions, "tree-score", argv)
    if not options.models:
        raise UsageError("name at least one model; see tree-score --help")
    require_least(1, options, "sample", "batch_size", "resamples")
    models = named_models(options.models)
    if options.out is not None:
        require_writable(options.out)
    known = list(dict.fromkeys(read_captions(options.captions)))
    if len(known) < options.sample:
        console.note(f"{options.captions}: only {len(known)} distinct captions, all are taken")
    drawn = random.Random(options.seed).sample(known, min(options.sample, len(known)))

    from compoclip.analysis.trees import TREES, differences, estimates, measure_trees
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
        gap, base = None, scores[0]
        if each is not base and each.thresholds == base.thresholds:
            gap = differences(base, each, *drawing)
        elif each is not base:
            console.note(
                f"{base.model} has {base.layers} text layers and {name} {each.layers}: not "
                "compared; name the layers to compare with --threshold"
            )
        records.append(_record(each, means[-1], gap, options))
        texts.append(_text(each, means[-1], gap))
    if options.out is not None:
        _write(options.out, scores, means, records)
    return console.tell(options.json, records, "\n\n".join(texts))


Gap = tuple[int, list["Estimate"]]
"""How many captions, and the difference to the first model by threshold."""


def _record(
    scores: TreeScores,
    means: dict[str, list[Estimate]],
    gap: Gap | None,
    options: TreeScoreOptions,
) -> dict[str, Any]:
    """Return the JSON record of a model."""

    def by_threshold(found: Sequence[Estimate]) -> dict[str, Any]:
        names = [*(str(h) for h in scores.thresholds), "mean"]
        return {name: asdict(each) for name, each in zip(names, found)}

    record: dict[str, Any] = {
        "model": scores.model,
        "weights": scores.weights,
        "layers": scores.layers,
        "headline": scores.headline,
        "captions": len(scores.captions),
        "left_out": dict(scores.left_out),
        "source": str(options.captions),
        "seed": options.seed,
        "scores": {tree: by_threshold(found) for tree, found in means.items()},
    }
    if gap is not None:
        record["difference"] = {"captions": gap[0], "best": by_threshold(gap[1])}
    return record


def _text(scores: TreeScores, means: dict[str, list[Estimate]], gap: Gap | None) -> str:
    """Return one model as a table: trees by threshold."""
    lost = "".join(f", {n} left out: {reason}" for reason, n in scores.left_out.items())
    captions = console.counted(len(scores.captions), "caption")
    columns = [f"h = {h}" for h in scores.thresholds]
    columns[-1] += " (headline)"
    rows = [[tree, *map(_cell, found)] for tree, found in means.items()]
    if gap is not None:
        rows.append(["best, minus first", *(_cell(each, "+") for each in gap[1])])
    return (
        f"{scores.model}: {scores.layers} text layers, {captions}{lost}\n"
        f"{console.table(rows, ['tree score', *columns, 'mean'])}"
    )


def _cell(each: Estimate, sign: str = "") -> str:
    if each.low is None or each.high is None:
        return f"{each.value:{sign}.3f} [-]"
    return f"{each.value:{sign}.3f} [{each.low:{sign}.3f}, {each.high:{sign}.3f}]"


def _write(
    out: Path,
    scores: Sequence[TreeScores],
    means: Sequence[dict[str, list[Estimate]]],
    records: Sequence[dict[str, Any]],
) -> None:
    """Write the scores, plots, and the tree of every caption."""
    from compoclip.analysis.trees import BEST
    from compoclip.report.trajectory import tree_plot

    write_json(out / "tree-score.json", records)
    lines = []
    for each in scores:
        for caption, tree, row in zip(each.captions, each.trees, each.scores[BEST]):
            score = round(float(row[-1]), 6)
            line = {"model": each.model, "caption": caption, "score": score, "tree": tree}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_text(out / "trees.jsonl", "".join(lines))
    for path in tree_plot(out / "tree-score", scores, means):
        console.note(f"written to {path}")
