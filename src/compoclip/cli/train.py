"""`compoclip train METHOD`: fine-tune with a published method, or pre-train from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from compoclip import console
from compoclip.cli.options import device_named
from compoclip.errors import UsageError
from compoclip.methods.registry import load_recipe, method_summaries
from compoclip.ranks import launched, meeting

if TYPE_CHECKING:
    from compoclip.methods.base import Method
    from compoclip.models.loaded import LoadedModel
    from compoclip.training.run import RunSummary


@dataclass(frozen=True)
class TrainOptions:
    """What to train, on what, and how the run is executed.

    Args:
        data: Image-text data: COCO-Karpathy JSON, Flickr8k token file, NegCLIP TSV, CSV, TSV,
            JSONL, Parquet, webdataset shards, or a folder of images with captions beside them.
        out: Run folder. The checkpoint goes to OUT/model, the log to OUT/train.jsonl.
        model: Checkpoint folder, ARCHITECTURE:TAG (open_clip weights), ARCHITECTURE@FILE, hf-hub:ID
            or "bundled"; with --from-scratch an open_clip configuration file.
        images: Folder that image paths in the data are relative to.
        split: Split of the data to use, where it holds several: train unless given; all takes
            everything.
        image_column: Column with image paths or bytes, for tables.
        caption_column: Column or columns (comma-separated) with captions, for tables.
        from_scratch: Start from random weights of the configuration that --model names.
        image_weights: Pretrained weights for the image tower, with --from-scratch.
        activation: Override the activation a checkpoint states; recorded in the new one.
        seed: Fixes order, crops, rewrites and initial weights.
        workers: Processes that read data; the result does not depend on it.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        precision: bf16 runs the towers under autocast; auto is bf16 on a GPU, fp32 on a CPU.
        micro_batch: Images that are encoded at once, and texts of as many tokens as that many of
            the longest; the gradients stay those of the whole batch, memory is that of the
            micro-batch, and everything is encoded twice. 0 is the whole batch.
        grad_checkpointing: Compute activations again in backward: less memory, a third more work.
        compile: Compile both towers with torch.compile: needs a C++ compiler (CPU) or Triton (GPU),
            and a minute at the start.
        cache_frozen: Keep the features of images whose tower is frozen (up to 4 GB) in place of
            encoding an image again: for CLIC, or with --no-crop for adapters in the text tower
            alone.
        crop: Show random crops of 90 to 100 % of an image, or the whole image as evaluation does;
            None leaves it to the method.
        draft: Decode large JPEGs at 1/2, 1/4 or 1/8 of their size, never below what is shown:
            faster, with slightly other pixels than decoding them whole (--no-draft).
        max_bad: Unreadable images to tolerate; each is reported.
        save_every: Steps between saved states.
        log_every: Steps between log lines.
        stop_after: Stop after this many steps in total, to resume later; 0 is never.
        resume: Go on from the last saved state in OUT; where there is none, say so and start.
        lora: Train low-rank adapters instead of all weights, at ten times the learning rate of the
            method unless --lr is given. OUT/adapter gets them alone, OUT/model merged.
        lora_rank: Rank of the adapters (default 4).
        lora_alpha: Adapters are scaled by alpha / rank (default 1).
        lora_towers: Towers with adapters (default both); the other one is frozen.
        lora_targets: linear (default) is attention and MLP weights; +conv adds the patch embedding,
            as in the released code of FSC-CLIP.
        lora_init: zero (default) starts from the base exactly; xavier_ab as in that code.
        merge: Write adapters only, no OUT/model.
        fsdp: Split weights, gradients and moments over the processes of torchrun (FSDP2), for
            models too large for one GPU.
        texts: Compose: +NAME adds the texts of another method or rewrite ("+mosaic +synonym"),
            names without + replace the method's own.
        terms: Compose: +METHOD or +METHOD.TERM adds the loss terms of another method.
        set: Compose: PATH=VALUE, e.g. terms.local_hn.weight=0.5 or texts.hn_fraction=0.5.
        track: Log also for tensorboard, wandb or both: OUT/tensorboard for `tensorboard --logdir
            OUT`; OUT/wandb, offline unless WANDB_MODE or WANDB_API_KEY is set.
        push_to_hub: When all steps are done, put the checkpoint on the Hugging Face hub too, as
            `compoclip push OUT/model REPO` does (OUT/adapter with --no-merge).
        json: Print the summary as JSON.
    """

    data: str
    out: Path
    model: str = "bundled"
    images: Path | None = None
    split: str | None = None
    image_column: str | None = None
    caption_column: str | None = None
    from_scratch: bool = False
    image_weights: Path | None = None
    activation: Literal["gelu", "quick_gelu"] | None = None
    seed: int = 0
    workers: int = 0
    device: str = "cpu"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    micro_batch: int = 0
    grad_checkpointing: bool = False
    compile: bool = False
    cache_frozen: bool = False
    crop: Annotated[bool | None, tyro.conf.Fixed, tyro.conf.Suppress] = None  # see `main`
    draft: bool = True
    max_bad: int = 0
    save_every: int = 500
    log_every: int = 10
    stop_after: int = 0
    resume: bool = False
    lora: bool = False
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_towers: Literal["both", "image", "text"] | None = None
    lora_targets: Literal["linear", "+conv"] | None = None
    lora_init: Literal["zero", "xavier_ab"] | None = None
    merge: bool = True
    fsdp: bool = False
    texts: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    push_to_hub: str | None = None
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse the method's own options and the run's, train, print a summary."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0].startswith("-"):
        raise UsageError("name a method first: compoclip train METHOD ...; see train --help")
    from compoclip.cli.options import MARKERS, joined
    from compoclip.methods.base import Method
    from compoclip.methods.compose import compose

    recipe = load_recipe(argv[0])

    # The names head the help.
    def train(run: TrainOptions, method: Method, crop: bool | None = None) -> int:
        own_lr = any(word == "--lr" or word.startswith("--lr=") for word in argv)
        composed = compose(method, run.texts, run.terms, run.set)
        return start(replace(run, crop=crop), adapted(composed, run, own_lr))

    # The options of a method are the parameters of its recipe, known only now; so is what it does
    # to images. Of --crop there are both forms, of all other flags one.
    one_form = tyro.conf.FlagCreatePairsOff
    train.__annotations__["run"] = Annotated[TrainOptions, one_form]
    train.__annotations__["method"] = Annotated[Method, tyro.conf.arg(constructor=recipe), one_form]
    train.__annotations__["crop"] = Annotated[
        bool | None,
        tyro.conf.arg(
            help="Show random crops of 90 to 100 % of an image, or the whole image as evaluation "
            "does.",
            help_behavior_hint=f"(default: {'random crops' if recipe().crop else 'whole images'})",
        ),
    ]
    arguments = list(argv[1:])
    for option in ("--texts", "--terms", "--set", "--track"):
        arguments = joined(arguments, option)
    return tyro.cli(
        train,
        prog=f"compoclip train {argv[0]}",
        args=arguments,
        config=tuple(marker for marker in MARKERS if marker is not one_form),
    )


def usage() -> str:
    """The text of `compoclip train --help`: the methods."""
    rows = [[name, summary] for name, summary in method_summaries().items()]
    width = max(len(name) for name, _ in rows)
    lines = [
        "usage: compoclip train METHOD --data DATA --out RUN [options]",
        "       compoclip train METHOD --help lists the options of a method",
        "",
        *(f"  {name.ljust(width)}  {summary}" for name, summary in rows),
        "",
        "torchrun --nproc-per-node N -m compoclip train METHOD ... trains in N processes",
    ]
    return "\n".join(lines)


def adapted(method: Method, options: TrainOptions, own_lr: bool) -> Method:
    """The method with the adapters that the options ask for, if any.

    own_lr: whether the learning rate was given, so that it is not the method's to scale. Raises
    UsageError for settings of adapters without adapters.
    """
    from compoclip.methods.base import Lora

    names = ("rank", "alpha", "towers", "targets", "init")
    given = {name: getattr(options, f"lora_{name}") for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    if not (options.lora or method.lora):
        if given:
            raise UsageError(f"--lora-{next(iter(given))} goes with --lora")
        if not options.merge:
            raise UsageError("--no-merge goes with --lora")
        return method
    changed = method.with_lora(replace(method.lora or Lora(), **given))
    return replace(changed, optim=method.optim) if own_lr else changed


def start(options: TrainOptions, method: Method) -> int:
    """Train and print a summary."""
    model, summary = execute(options, method)
    show(options, summary, model.tokenizer.context_length)
    push(options, summary)
    return 0


def push(options: TrainOptions, summary: RunSummary) -> None:
    """Put what a finished run wrote on the hub if the options ask for it.

    Raises CompoclipError when the hub cannot be reached or refuses: the checkpoint stays.
    """
    repository = options.push_to_hub
    if not repository or launched()[0]:
        return
    from compoclip.models.hub import publish

    if summary.model is None:
        console.note(f"  not pushed to {repository}: the run is not finished")
    else:
        console.note(f"  {summary.model} -> {publish(summary.model, repository).url}")


def execute(
    options: TrainOptions, method: Method, model: LoadedModel | None = None
) -> tuple[LoadedModel, RunSummary]:
    """Build model and data as the options say, and train: the model as it is then, the summary.

    model: what is trained, instead of what the options name. Under torchrun all processes train
    together and return the same; only the first writes. Raises UsageError for options that do
    not go together, and what `run_training` raises.
    """
    from compoclip.cli.options import require_seeds
    from compoclip.data.sources.open import open_source
    from compoclip.training.run import RunSettings, run_training

    require_seeds(options)
    counts = ("workers", "micro_batch", "max_bad", "save_every", "log_every", "stop_after")
    for name in counts:
        if getattr(options, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} must not be negative")
    if options.image_weights and not options.from_scratch:
        raise UsageError("--image-weights goes with --from-scratch")
    if options.from_scratch and method.lora:
        raise UsageError("LoRA adapts trained weights: leave --lora or --from-scratch out")
    if options.push_to_hub:
        from compoclip.models.hub import require_pushable

        require_pushable(options.push_to_hub)
    device = device_named(options.device)
    precision = options.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    with meeting(device) as ranks:
        with ranks.agreed():
            model = model or _start(options)
            source = open_source(
                options.data,
                images=options.images,
                image_column=options.image_column,
                caption_column=options.caption_column,
                split=options.split,
            )
        summary = run_training(
            model,
            method,
            source,
            RunSettings(
                out=options.out,
                seed=options.seed,
                workers=options.workers,
                device=str(device),
                precision=precision,
                micro_batch=options.micro_batch,
                grad_checkpointing=options.grad_checkpointing,
                compile=options.compile,
                cache_frozen=options.cache_frozen,
                crop=options.crop,
                draft=options.draft,
                max_bad=options.max_bad,
                save_every=options.save_every,
                log_every=options.log_every,
                stop_after=options.stop_after,
                resume=options.resume,
                merge=options.merge,
                fsdp=options.fsdp,
                track=tuple(dict.fromkeys(options.track)),
            ),
            ranks,
        )
    return model, summary


def _start(options: TrainOptions) -> LoadedModel:
    from compoclip.models.checkpoint import create_model, load_model, read_config

    if options.from_scratch:
        config = read_config(Path(options.model))
        return create_model(config, seed=options.seed, image_weights=options.image_weights)
    return load_model(options.model, activation=options.activation)


def show(options: TrainOptions, summary: RunSummary, context: int) -> None:
    """Print what a run amounts to. context: tokens that the model reads."""
    if options.json:
        data = asdict(summary)
        paths = {"model": summary.model, "adapter": summary.adapter}
        console.emit_json({**data, **{k: str(v) if v else None for k, v in paths.items()}})
        return
    where = summary.model or f"{options.out}/state (unfinished; go on with --resume)"
    print(
        f"{summary.method}: {console.counted(summary.steps, 'step')}, {summary.images} images, "
        f"{summary.texts} texts, {summary.seconds:.0f} s -> {where}"
    )
    for reason, count in summary.left_out.items():
        console.note(f"  left out of the data: {count} x {reason}")
    if summary.skipped:
        console.note(f"  unreadable images left out of batches: {summary.skipped}")
    if summary.skipped_steps:
        steps = console.counted(summary.skipped_steps, "step")
        console.note(f"  {steps} skipped: the loss was not finite (train.jsonl names them)")
    if summary.truncated:
        cut = console.counted(summary.truncated, "text")
        console.note(f"  {cut} cut: longer than the model's context of {context} tokens")
    if summary.cut:
        long = console.counted(summary.cut, "caption")
        console.note(f"  {long} cut before parsing: longer than any model reads")
    for name, made in summary.rewrites.items():
        print(f"  {name}: a text for {made['coverage']:.1%} of the samples{_each(made)}")


def _each(made: dict[str, float]) -> str:
    """How many texts a sample has that has any, where it may have several."""
    samples = made["samples"]
    return f", {made['made'] / samples:.1f} each" if samples < made["made"] else ""
