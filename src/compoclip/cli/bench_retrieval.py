"""`compoclip bench retrieval`: ranks at COCO's size, and zero-shot class weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from compoclip.cli.bench_rows import Inputs, Row, machine
from compoclip.cli.device import device_named
from compoclip.cli.options import parse
from compoclip.console import emit_json
from compoclip.errors import UsageError

if TYPE_CHECKING:
    from compoclip.evaluation.retrieval_speed import ClassWeights, RetrievalCost


@dataclass(frozen=True)
class Options:
    """Ranks of random features in both directions, by the code of evaluate, which works through
    blocks, against all scores at once and sorted; and the class weights of ImageNet classes
    against open_clip's build_zero_shot_classifier with the same model."""

    images: int = 5000
    """images (COCO's test set: 5000)"""
    texts: int = 25010
    """captions (COCO's test set: 25010)"""
    width: int = 512
    """numbers a feature has"""
    model: str = "bundled"
    """whose text encoder makes class weights: anything `compoclip evaluate` takes"""
    classes: int = 100
    """ImageNet classes to make weights of, from the first"""
    templates: int = 80
    """of CLIP's 80 prompt templates, from the first"""
    json: bool = False
    """print JSON"""


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse(Options, "bench retrieval", arguments)
    if min(options.images, options.texts, options.width, options.classes, options.templates) < 1:
        raise UsageError("numbers must be at least 1")
    if options.texts < options.images:
        raise UsageError("--texts must be at least --images, so that every image has a caption")
    ranks, weights = measure(options)
    if options.json:
        emit_json({"machine": machine(), "ranks": asdict(ranks), "weights": asdict(weights)})
        return 0
    print(f"{machine()}\n\nranks of {ranks.images} images x {ranks.texts} texts, both ways:")
    for name, cost in (("in blocks", ranks.ours), ("all at once", ranks.dense)):
        print(f"  {name}: {cost.seconds:.1f} CPU s, {cost.peak_bytes / 1e6:.0f} MB at most")
    print(f"  ranks {'equal' if ranks.equal else 'DIFFER'}")
    print(
        f"\nclass weights of {weights.classes} classes, {weights.prompts} prompts, "
        f"{weights.distinct} distinct: {weights.ours:.1f} CPU s; open_clip's builder "
        f"{weights.open_clip:.1f} CPU s; largest difference {weights.difference:.1e}"
    )
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """COCO's size, a quarter of it in each direction when it has to be quick."""
    options = Options(images=1250, texts=6250, classes=20) if inputs.quick else Options()
    ranks, weights = measure(options)
    size = f"{ranks.images} x {ranks.texts}"
    ours, dense = ranks.ours, ranks.dense
    return [
        Row(
            bench="retrieval",
            what=f"ranks {size}, CPU seconds",
            ours=ours.seconds,
            baseline=dense.seconds,
            against="all scores, sorted",
            ratio=dense.seconds / ours.seconds,
        ),
        Row(
            bench="retrieval",
            what=f"ranks {size}, MB at most",
            ours=ours.peak_bytes / 1e6,
            baseline=dense.peak_bytes / 1e6,
            against="all scores, sorted",
            ratio=dense.peak_bytes / ours.peak_bytes,
        ),
        Row(
            bench="retrieval",
            what=f"class weights, {weights.prompts} prompts, CPU seconds",
            ours=weights.ours,
            baseline=weights.open_clip,
            against="open_clip's builder",
            ratio=weights.open_clip / weights.ours,
        ),
    ]


def measure(options: Options) -> tuple[RetrievalCost, ClassWeights]:
    """Both measurements."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES

    from compoclip.evaluation.retrieval_speed import class_weights, retrieval_cost
    from compoclip.models.checkpoint import load_model

    ranks = retrieval_cost(options.images, options.texts, options.width)
    model = load_model(options.model, device=device_named("cpu"))
    model.encoder.eval()
    names = IMAGENET_CLASSNAMES[: options.classes]
    return ranks, class_weights(model, names, OPENAI_IMAGENET_TEMPLATES[: options.templates])
