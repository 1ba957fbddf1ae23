"""How a run is executed: one dataclass from the command line down to the step.

Free of torch, so that `compoclip train --help` and the Python API can name it for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from compoclip.config import OptionMark

# Where a run writes, what it reads with and when it reports: never part of what is computed.
_EXECUTION = {
    *("out", "workers", "device", "max_bad", "save_every", "log_every", "stop_after"),
    *("resume", "merge", "fsdp", "track", "features", "allow_no_negatives"),
}
# These change memory and speed, and numbers only by rounding: a resumed run may choose them anew.
_EQUIVALENT = {"micro_batch", "grad_checkpointing", "compile", "cache_frozen"}
# Recorded where they are used alone, so that states of runs without them can still be resumed.
_WHERE_USED = {"freeze", "crops", "lr_image", "lr_text", "layer_decay", "ema", "max_steps"}


@dataclass(frozen=True, kw_only=True)
class OptimOptions:
    """Optimiser and schedule: AdamW, linear warm-up, cosine to zero. Unless given: the method's.

    Args:
        epochs: Passes over the data; may be a fraction.
        batch_size: Images per optimiser step, over all processes.
        lr: Peak learning rate; of adapters that --lora adds, ten times the method's unless given.
        warmup_lr: Learning rate at the start of the warm-up.
        min_lr: Learning rate at the end of the cosine; equal to lr, it is constant.
        weight_decay: Decoupled weight decay; not on biases, norms and the temperature.
        beta1: AdamW first-moment decay.
        beta2: AdamW second-moment decay.
        eps: AdamW epsilon.
        warmup: Steps of linear warm-up; unless given, at most a tenth of the run.
        warmup_share: Largest share of all steps that the warm-up may take.
        clip_grad: Maximum global gradient norm; 0 is off.
        max_logit_scale: Largest s = exp(logit_scale) allowed after a step; no limit for a model
            with a logit bias (SigLIP), whose published scale is larger.
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
        values = ((each.name, getattr(self, each.name)) for each in fields(OptimOptions))
        return {name: value for name, value in values if value is not None}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a run is executed, whatever the method, the model and the data.

    Args:
        out: Run folder. The checkpoint goes to OUT/model, the log to OUT/train.jsonl.
        seed: Fixes order, crops, rewrites and initial weights.
        workers: Processes that read data; the result does not depend on it. auto on a GPU: all
            cores but one, 16 at most. auto on a CPU: one for every eight cores. auto for fewer than
            4,096 images in the whole run: none. Ranks of one machine (torchrun) share its cores.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        precision: bf16 runs the towers under autocast; so does fp16, with a scaled loss, for GPUs
            without bf16; auto is bf16 on a GPU, fp32 on a CPU.
        micro_batch: Images that are encoded at once, and texts of as many tokens as that many of
            the longest; the gradients stay those of the whole batch, memory is that of the
            micro-batch, and everything is encoded twice. 0 is the whole batch.
        contrast: What contrasts of images with texts over a batch are: softmax, as in CLIP, or the
            sigmoid loss of every pair, as in SigLIP, for a model whose logits have a bias; auto is
            sigmoid for these.
        grad_checkpointing: Compute activations again in backward: less memory, a third more work.
        compile: Compile both towers with torch.compile: needs a C++ compiler (CPU) or Triton (GPU),
            and a minute at the start.
        cache_frozen: Encode the images of a frozen tower or trunk once, and keep their features on
            disk for all later runs and seeds: with --no-crop, or with a number of --crops. Where
            one matrix of the text tower learns (LABCLIP) texts are encoded once a run, too.
        features: Folder for them, in place of the user's cache folder; asks for --cache-frozen.
        crops: Show as many fixed crops of every image, the next one in every epoch, in place of new
            random ones.
        freeze: What keeps its weights: image, text, image-trunk or text-trunk (a tower but for its
            last projection), image:N or text:N (what comes before the N-th block, and that block),
            temperature; one or several, beside what the method leaves alone.
        lr_image: Learning rate of the image tower, in place of --lr.
        lr_text: Learning rate of the text tower, in place of --lr; the temperature has --lr.
        layer_decay: Multiply the learning rate of a tower by this once for every block between a
            parameter and the tower's end: early blocks learn slower; 1 is the same for all.
        ema: Average the weights over the steps, with this decay (0.999, say): OUT/model gets the
            average, the weights of the last step stay in OUT/state; 0 is off.
        crop: Show random crops of 90 to 100 % of an image, or the whole image as evaluation does;
            unless given, what the method does.
        draft: Decode large JPEGs at 1/2, 1/4 or 1/8 of their size, never below what is shown:
            faster, with slightly other pixels than decoding them whole.
        mask_duplicates: Leave pairs that are true without being the target out of every contrast
            over the batch: an image with an equal caption of another image, or of the same photo
            in another sample. Losses as published lack this.
        allow_no_negatives: Train although the recipe finds no negative for nearly all captions.
        max_bad: Unreadable images to tolerate; each is reported.
        save_every: Steps between saved states.
        log_every: Steps between log lines.
        max_steps: Train no more steps than this, the schedule of the learning rate included; 0 sets
            no limit beside --epochs.
        stop_after: Stop after this many steps in total, to resume later; 0 is never.
        resume: Go on from the last saved state in OUT; where there is none, say so and start; where
            the run is finished, say so and end.
        merge: Of a run with adapters write OUT/model, too, with them merged in.
        fsdp: Split weights, gradients and moments over the processes of torchrun (FSDP2), for
            models too large for one GPU.
        track: Log also for tensorboard, wandb or both: OUT/tensorboard for `tensorboard --logdir
            OUT`; OUT/wandb, offline unless WANDB_MODE or WANDB_API_KEY is set.
    """

    out: Annotated[Path, OptionMark.ONCE]
    seed: int = 0
    workers: int | Literal["auto"] = 0
    device: str = "cpu"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    micro_batch: int = 0
    contrast: Literal["auto", "softmax", "sigmoid"] = "auto"
    grad_checkpointing: bool = False
    compile: bool = False
    cache_frozen: bool = False
    features: Path | None = None
    crops: int = 0
    freeze: tuple[str, ...] = ()
    lr_image: float | None = None
    lr_text: float | None = None
    layer_decay: float = 1.0
    ema: float = 0.0
    crop: bool | None = None
    draft: bool = True
    mask_duplicates: bool = True
    allow_no_negatives: bool = False
    max_bad: int = 0
    save_every: int = 500
    log_every: int = 10
    max_steps: int = 0
    stop_after: Annotated[int, OptionMark.ONCE] = 0
    resume: Annotated[bool, OptionMark.ONCE] = False
    merge: bool = True
    fsdp: bool = False
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()

    def recorded(self) -> dict[str, Any]:
        """The settings that a checkpoint and a tracker state, by name."""
        known = [each for each in fields(RunSettings) if each.name not in _EXECUTION]
        return {
            each.name: getattr(self, each.name)
            for each in known
            if each.name not in _WHERE_USED or getattr(self, each.name) != each.default
        }

    def decisive(self) -> dict[str, Any]:
        """The settings that a resumed run must share with the run that it goes on with."""
        return {k: v for k, v in self.recorded().items() if k not in _EQUIVALENT}


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """How a model is measured while it trains, and what follows from it.

    Args:
        on: Benchmarks to measure on while training, before the first step and after the last one,
            named as for evaluate (NAME, NAME:PART, a suite, NAME,root=DIR,images=DIR). Scores go
            to train.jsonl, trackers and the report, and per item to OUT/eval/step-N.
        eval_every: Steps between measurements; 0 measures before and after alone.
        eval_data: Data root of these benchmarks in the default layout.
        eval_images: Folder with their photos, when it is not in that data root.
        allow_partial: Measure on what is there of them when images or items are missing.
        keep_best: OUT/model is the best that was measured, not the last: BENCHMARK by its headline,
            BENCHMARK:NAME by another mean or sub-task of it.
        patience: Stop after this many measurements without anything better; 0 never does.
    """

    on: tuple[str, ...] = ()
    eval_every: int = 0
    eval_data: Path = Path("data")
    eval_images: Path | None = None
    allow_partial: bool = False
    keep_best: str = ""
    patience: int = 0
