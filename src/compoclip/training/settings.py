"""How a run is executed: one dataclass from the command line down to the step.

Free of torch, so that `compoclip train --help` and the Python API can name it for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from compoclip.config import BenchmarkName, InputFolder, OutputFolder, Shown, Workers
from compoclip.errors import UsageError
from compoclip.typed import Natural, NonNegative

# Where a run writes, what it reads with and when it reports: never part of what is computed.
_EXECUTION = {
    *("out", "workers", "device", "max_bad", "save_every", "log_every", "stop_after"),
    *("resume", "merge", "fsdp", "track", "features", "allow_no_negatives"),
}
# These change memory and speed, and numbers only by rounding: a resumed run may choose them anew.
_EQUIVALENT = {"micro_batch", "grad_checkpointing", "compile", "cache_frozen"}
# Recorded where they are used alone, so that states of runs without them can still be resumed.
_WHERE_USED = {"freeze", "crops", "lr_image", "lr_text", "layer_decay"}
_WHERE_USED |= {"ema", "matryoshka", "max_steps", "near_margin"}
_FROZEN = re.compile(r"(image|text)(-trunk|:[1-9][0-9]*-?)?|temperature")
_FROZEN_PARTS = (
    "image, text, image-trunk, text-trunk, image:N, text:N (its first N blocks), image:N-, text:N- "
    "(block N and what follows) or temperature"
)


def require_frozen_parts(freeze: Iterable[str]) -> None:
    """Raise UsageError for an unknown word of --freeze."""
    for word in freeze:
        if not _FROZEN.fullmatch(word):
            raise UsageError(f"--freeze {word}: must be {_FROZEN_PARTS}")


@dataclass(frozen=True, kw_only=True)
class OptimOptions:
    """Optimiser and schedule: AdamW, linear warm-up, cosine to zero. Unless given: the method's.

    Args:
        epochs: Passes over the data; may be a fraction.
        batch_size: Images per optimiser step, over all processes.
        lr: Peak learning rate. With --lora the default is ten times the method's.
        warmup_lr: Learning rate at the start of the warm-up.
        min_lr: Learning rate at the end of the cosine; the rate is constant if it equals lr.
        weight_decay: Decoupled weight decay, except on biases, norms and the temperature.
        beta1: AdamW first-moment decay.
        beta2: AdamW second-moment decay.
        eps: AdamW epsilon.
        warmup: Steps of linear warm-up. The default is at most a tenth of the run.
        warmup_share: Largest share of all steps that the warm-up may take; 0.1 if neither this nor
            --warmup is given.
        clip_grad: Maximum global gradient norm; 0 is off.
        max_logit_scale: Clamp s = exp(logit_scale) after each step, except in models with a logit
            bias (SigLIP), whose published scale is larger.
    """

    epochs: float | None = None
    batch_size: int | None = None
    lr: float | None = None
    warmup_lr: float | None = None
    min_lr: float | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    warmup: int | None = None
    warmup_share: float | None = None
    clip_grad: float | None = None
    max_logit_scale: float | None = None

    def optimiser(self) -> dict[str, Any]:
        """Return the values that are given, by name."""
        values = ((option.name, getattr(self, option.name)) for option in fields(OptimOptions))
        return {name: value for name, value in values if value is not None}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a run is executed, for any method, model and data.

    Args:
        out: Run folder. The checkpoint goes to OUT/model, the log to OUT/train.jsonl.
        seed: Fixes order, crops, rewrites and initial weights.
        workers: Processes that read data; the result does not depend on it. auto on a GPU: all
            cores but one, 16 at most. auto on a CPU: one for every eight cores. auto for fewer than
            4,096 images in the whole run: none. Ranks of one machine (torchrun) share its cores.
        device: cpu, cuda, cuda:N or mps; auto uses a GPU if there is one.
        precision: bf16 runs the towers under autocast. fp16 does too, with a scaled loss, for GPUs
            without bf16. auto is bf16 on a GPU, fp32 on a CPU.
        micro_batch: Gradient caching: encode N images at a time, and texts of as many tokens as N
            of the longest. Gradients equal the full batch's; everything is encoded twice. 0 is off.
        contrast: Image-text contrast over a batch: softmax (CLIP) or sigmoid (SigLIP). auto is
            sigmoid for models with a logit bias.
        grad_checkpointing: Recompute activations in the backward pass. Saves memory, costs a third
            more computation.
        compile: Compile both towers with torch.compile. Needs a C++ compiler (CPU) or Triton (GPU),
            and takes a minute at the start.
        cache_frozen: Encode the images of a frozen tower or trunk once, and cache the features on
            disk for all runs and seeds. Requires --no-crop or --crops N. If only one matrix of the
            text tower learns (LABCLIP), texts are encoded once per run too.
        features: Folder of cached features (default: the user's cache folder). Requires
            --cache-frozen.
        crops: Use N fixed crops per image, one per epoch in turn, instead of random crops.
        freeze: Parts to freeze, in addition to the parts that the method freezes: image, text,
            image-trunk or text-trunk (a tower without its last projection), image:N or text:N
            (everything up to the N-th block), image:N- or text:N- (everything from the N-th block
            on), temperature.
        lr_image: Learning rate of the image tower, instead of --lr.
        lr_text: Learning rate of the text tower, instead of --lr. The temperature uses --lr.
        layer_decay: Factor on the learning rate per block below the top of a tower: early blocks
            learn slower. 1 is off.
        ema: Average the weights over steps with this decay, for example 0.999. OUT/model gets the
            average, OUT/state the last weights. 0 is off.
        crop: Train on random crops of 90 to 100 % of an image, or on whole images as in evaluation.
            The default is the method's.
        draft: Decode large JPEGs at 1/2, 1/4 or 1/8 of their size, never below the size of the
            crop. Faster, with slightly different pixels.
        mask_duplicates: Leave true pairs other than the target out of contrasts over the batch:
            equal captions of other images, and the same photo in other samples. Published losses
            lack this.
        near_margin: Leave captions and images of others out of contrasts over the batch if their
            cosine exceeds the target's by more than this, e.g. 0.1: they are probably true.
            Generated negatives stay.
        matryoshka: Average every loss over the features and over their first N dimensions, for each
            N given ([128, 64]), so that features can be cut (evaluate --dimensions). Losses with a
            state or a head use whole features.
        allow_no_negatives: Train even if nearly all captions get no negative.
        max_bad: Largest number of unreadable images to skip; each is reported.
        save_every: Steps between saved states.
        log_every: Steps between log lines.
        max_steps: Most steps; the schedule ends there. 0 leaves the limit to --epochs.
        stop_after: Stop after this many steps in total, to resume later. 0 is off.
        resume: Resume from the last saved state in OUT. Without a state, start; if the run is
            finished, exit. A message says which.
        merge: With adapters, also write the merged model to OUT/model.
        fsdp: Shard weights, gradients and moments over the processes of torchrun (FSDP2), for
            models too large for one GPU.
        track: Also log to tensorboard (OUT/tensorboard, for `tensorboard --logdir OUT`) or wandb
            (OUT/wandb, offline unless WANDB_MODE or WANDB_API_KEY is set).
    """

    out: Annotated[OutputFolder, Shown(once=True)]
    seed: int = 0
    workers: Workers = 0
    device: str = "cpu"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    micro_batch: Natural = 0
    contrast: Literal["auto", "softmax", "sigmoid"] = "auto"
    grad_checkpointing: bool = False
    compile: bool = False
    cache_frozen: bool = False
    features: OutputFolder | None = None
    crops: Natural = 0
    freeze: tuple[str, ...] = ()
    lr_image: NonNegative | None = None
    lr_text: NonNegative | None = None
    layer_decay: float = 1.0
    ema: float = 0.0
    crop: bool | None = None
    draft: bool = True
    mask_duplicates: bool = True
    near_margin: float | None = None
    matryoshka: tuple[int, ...] = ()
    allow_no_negatives: bool = False
    max_bad: Natural = 0
    save_every: Natural = 500
    log_every: Natural = 10
    max_steps: Natural = 0
    stop_after: Annotated[Natural, Shown(once=True)] = 0
    resume: Annotated[bool, Shown(once=True)] = False
    merge: bool = True
    fsdp: bool = False
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for values that no run can use."""
        require_frozen_parts(self.freeze)
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"--layer-decay {self.layer_decay:g}: must be above 0 and at most 1")
        if not 0 <= self.ema < 1:
            raise UsageError(f"--ema {self.ema:g}: must be at least 0 and below 1")
        if self.crops and self.crop is False:
            raise UsageError("--crops are random crops: leave --no-crop out")

    def recorded(self) -> dict[str, Any]:
        """Return the settings that checkpoints and trackers record, by name."""
        options = [option for option in fields(RunSettings) if option.name not in _EXECUTION]
        return {
            option.name: getattr(self, option.name)
            for option in options
            if option.name not in _WHERE_USED or getattr(self, option.name) != option.default
        }

    def decisive(self) -> dict[str, Any]:
        """Return the settings that a resumed run must not change."""
        return {k: v for k, v in self.recorded().items() if k not in _EQUIVALENT}

    def require_new(self, finished: bool) -> None:
        """Raise UsageError for a run that is not resumed where `out` has a finished one."""
        if finished and not self.resume:
            raise UsageError(f"{self.out} holds a finished run; choose another --out")


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """How a model is measured during training.

    Args:
        on: Benchmarks to measure before the first step, during training and after the last step,
            named as for evaluate (NAME, NAME:PART, a suite, NAME,root=DIR,images=DIR). Scores go
            to train.jsonl, trackers and the report, items to OUT/eval/step-N.
        eval_every: Steps between measurements. 0 measures only before and after training.
        eval_data: Data root of the benchmarks of --on, in the default layout.
        eval_images: Folder with the photos of --on, if it is not in --eval-data.
        allow_partial: Evaluate the available items of --on if some are missing; results are marked
            partial.
        keep_best: Write the best measured weights to OUT/model, not the last: best in the headline
            of BENCHMARK, or in another mean or sub-task as BENCHMARK:NAME.
        patience: Stop after this many measurements without an improvement. 0 is off.
    """

    on: tuple[BenchmarkName, ...] = ()
    eval_every: Natural = 0
    eval_data: Path = Path("data")
    eval_images: InputFolder | None = None
    allow_partial: bool = False
    keep_best: str = ""
    patience: Natural = 0
