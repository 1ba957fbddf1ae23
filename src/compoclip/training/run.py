"""One training run from start to checkpoint: data, texts, loop, provenance."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from compoclip.console import counted, note
from compoclip.data.images import Companions
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan, prepare_captions
from compoclip.data.sources import Source
from compoclip.data.transform import ImageTransform, RandomCrop
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import only_writer, require_writable
from compoclip.methods.base import Method
from compoclip.models.adapter import save_adapter
from compoclip.models.checkpoint import LoadedModel, current_identity, save_model
from compoclip.models.config import part_of
from compoclip.models.lora import Lora, Towers, attach_lora, merge_lora
from compoclip.ranks import ALONE, Ranks
from compoclip.training.log import Trackers
from compoclip.training.loop import LoopSettings, total_steps, train_loop
from compoclip.training.sharding import full_state
from compoclip.training.state import latest_state
from compoclip.training.step import FrozenImages, StepSettings

# --- Adapters in a run: put on before training, saved and merged after it. ---


def put_on(model: LoadedModel, method: Method, seed: int) -> Lora | None:
    """Put the adapters of the method, drawn from `seed`, on the network; None when it has none.

    Says how much learns. The result names the towers that have adapters now: those that the method
    trains, that its LoRA settings name and that have layers to adapt. Raises UsageError when there
    is no such tower, CompoclipError when the weights are not those of the model's identity.
    """
    if method.lora is None:
        return None
    wanted = _both(method.lora.towers, method)
    if current_identity(model) != model.identity:
        raise CompoclipError(
            f"{model.name}: its weights have changed since it was loaded, and adapters need a base "
            "that can be loaded again: save the model and train on the checkpoint"
        )
    network = model.encoder.model
    total = sum(parameter.numel() for parameter in network.parameters())
    targets = attach_lora(network, replace(method.lora, towers=wanted), seed)
    having = {part_of(target.name) for target in targets}
    towers: Towers = "both" if len(having) == 2 else "image" if "image" in having else "text"
    lora = replace(method.lora, towers=towers)
    learns = sum(target.size for target in targets)
    note(
        f"{lora.describe()}: {learns:,} numbers learn beside {total:,} frozen ones "
        f"({learns / total:.2%})"
    )
    if wanted != towers:
        left = "image" if towers == "text" else "text"
        note(f"  the {left} tower has no attention or MLP layers to adapt: it stays as it is")
    return lora


def save(model: LoadedModel, lora: Lora, folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write the adapters to `folder`, unless an earlier finish of the same run did."""
    if not folder.exists():
        save_adapter(model, lora, folder, provenance=provenance)


def _both(towers: Towers, method: Method) -> Towers:
    """The towers that LoRA settings name and the method trains."""
    trained = {"image": method.trains.image_tower, "text": method.trains.text_tower}
    chosen = [t for t, trains in trained.items() if trains and towers in ("both", t)]
    if not chosen:
        raise UsageError(
            f"{method.name} trains nothing in the tower of its adapters ({towers}): choose another "
            "with --lora-towers"
        )
    return "both" if len(chosen) == 2 else "image" if chosen == ["image"] else "text"


# --- One training run from start to checkpoint: data, texts, loop, provenance. ---


@dataclass(frozen=True)
class RunSettings:
    """How a run is executed.

    out: the run folder; holds `model/` (the checkpoint), `train.jsonl` and `state/` (to resume);
    a run with adapters writes them alone to `adapter/`, and if `merge` also the whole `model/`.
    track: names of trackers beside the log (see `train.track`).
    crop: whether training images are randomly cropped; None leaves it to the method. draft: whether
    large JPEGs are decoded at a fraction of their size (see `ImageTransform`). max_bad: unreadable
    images tolerated.
    grad_checkpointing: whether backward computes activations again in place of keeping them.
    compile: whether the towers are compiled (see `DualEncoder.compile_towers`). cache_frozen:
    whether features of a frozen image tower are kept (see `FrozenImages`).
    The other fields are those of `LoopSettings`, `StepSettings` and `BatchLoader`.
    """

    out: Path
    seed: int = 0
    workers: int = 0
    device: str = "cpu"
    precision: str = "fp32"
    micro_batch: int = 0
    grad_checkpointing: bool = False
    compile: bool = False
    cache_frozen: bool = False
    crop: bool | None = None
    draft: bool = True
    max_bad: int = 0
    save_every: int = 500
    log_every: int = 10
    stop_after: int = 0
    resume: bool = False
    merge: bool = True
    fsdp: bool = False
    track: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunSummary:
    """What a finished (or stopped) run amounts to.

    model: what `load_model` gets the result with; None when the run was stopped early. adapter: the
    adapters alone, if any. skipped: images that could not be read. skipped_steps: steps whose loss
    was not finite. truncated: texts cut to the
    model's context. left_out: what the reader of the data left out, by reason. rewrites: coverage
    of each. cut: captions that were rewritten by their beginning alone, being longer than any model
    reads.
    """

    model: Path | None
    method: str
    steps: int
    total_steps: int
    images: int
    texts: int
    skipped: int
    truncated: int
    seconds: float
    left_out: Mapping[str, int]
    rewrites: Mapping[str, Any]
    cut: int = 0
    adapter: Path | None = None
    skipped_steps: int = 0


def run_training(
    model: LoadedModel,
    method: Method,
    source: Source,
    settings: RunSettings,
    ranks: Ranks = ALONE,
) -> RunSummary:
    """Train `model` in place and write its checkpoint to `settings.out / "model"`. Adapters are
    merged into it; they are also written to `settings.out / "adapter"`.

    ranks: the processes that train together, each of which calls this with the same arguments. All
    end with the same model and summary, whatever their number; the first one writes.

    Raises UsageError when the run folder is taken and `resume` is not set, CompoclipError when
    another process is writing it, when no more than half of the steps had a finite loss, and for
    everything the data, the model or the disk object to.
    """
    if settings.fsdp and (ranks.world == 1 or method.lora):
        raise UsageError(
            "--fsdp splits a model over processes: start with torchrun"
            if ranks.world == 1
            else "--fsdp splits weights that learn, adapters are small: leave --fsdp or LoRA out"
        )
    if settings.fsdp and settings.compile:
        raise UsageError("--fsdp splits the weights that --compile compiles in: leave one out")
    require_writable(settings.out)
    with _only_run(settings.out, ranks):
        return _run(model, method, source, settings, ranks)


@contextmanager
def _only_run(out: Path, ranks: Ranks) -> Iterator[None]:
    """Keep other runs out of the folder; the first process does, for all."""
    with ExitStack() as stack:
        with ranks.agreed():
            if ranks.first:
                stack.enter_context(only_writer(out, folder=True))
        yield


def _run(
    model: LoadedModel,
    method: Method,
    source: Source,
    settings: RunSettings,
    ranks: Ranks,
) -> RunSummary:
    checkpoint, adapter = settings.out / "model", settings.out / "adapter"
    started = latest_state(settings.out / "state") is not None
    if checkpoint.exists() or (adapter.exists() and not (started and settings.merge)):
        raise UsageError(f"{settings.out} holds a finished run; choose another --out")
    if started and not settings.resume:
        raise UsageError(f"{settings.out} holds an unfinished run; add --resume, or choose --out")
    if settings.resume and not started:
        note(f"{settings.out} holds nothing to resume: the run starts at step 1")
    if method.needs_local:
        model.encoder.require_local()

    source = method.images.source(source)
    method = method.for_data(source.brings())
    method.plan.require(source)
    method.images.require(source)
    if settings.crop is None:  # from here on, and in the record, what is done
        settings = replace(settings, crop=method.crop)
    for rewrite, instead in method.stand_ins.items():
        if rewrite in method.plan.rewrite_names:
            note(f"{method.name}: {instead}")
    parsed = None
    if method.needs_parsing:
        with ranks.first_before_others():
            parsed = prepare_captions(source)
    plan = TextPlan(method.plan, seed=settings.seed, parsed=parsed)
    loader = BatchLoader(
        source,
        plan,
        ImageTransform(model.preprocess, RandomCrop() if settings.crop else None, settings.draft),
        batch_size=method.optim.batch_size,
        seed=settings.seed,
        workers=settings.workers,
        max_bad=settings.max_bad,
        rank=ranks.rank,
        world=ranks.world,
        images=method.images,
        companions=_companions(model, method, source, settings, ranks),
    )
    total = total_steps(method.optim, loader)
    note(
        f"{method.name}: {counted(len(source), 'sample')}{_left_out_text(source)}, "
        f"{counted(total, 'step')} of {method.optim.batch_size} images"
    )
    if method.optim.warmup_steps(total) >= total:
        note(
            f"the warm-up of {method.optim.warmup} steps is not over before the run is: the "
            "learning rate never reaches --lr (lower --warmup)"
        )
    lora = put_on(model, method, settings.seed)
    torch.manual_seed(settings.seed)  # for dropout; order, crops and rewrites draw their own
    frozen = _remembering_images(method, lora, settings)
    encoder = model.encoder
    if settings.fsdp:  # the model stays whole, to be given the result
        encoder = deepcopy(model.encoder.cpu())
    encoder.to(settings.device)
    if settings.grad_checkpointing:
        encoder.set_grad_checkpointing()
    if settings.compile and "text" not in encoder.compile_towers():
        note("the text tower is not compiled: its blocks are not open_clip's usual ones")
    known = {
        "method": method.name,
        "settings": dict(method.settings),
        **method.record(),
        "optim": asdict(method.optim),
        "data": source.describe(),
        "seed": settings.seed,
        "precision": settings.precision,
        "micro_batch": settings.micro_batch,
        "grad_checkpointing": settings.grad_checkpointing,
        "compile": settings.compile,
        "cache_frozen": settings.cache_frozen,
        "crop": settings.crop,
        "draft": settings.draft,
        "torch": torch.__version__,
    }
    track = settings.track if ranks.first else ()
    with Trackers(track, settings.out, known, _Reporter(method.name)) as report:
        progress = train_loop(
            encoder,
            model.tokenizer,
            method,
            loader,
            LoopSettings(
                out=settings.out,
                signature=_signature(model, method, source, settings),
                step=StepSettings(settings.device, settings.precision, settings.micro_batch),
                save_every=settings.save_every,
                log_every=settings.log_every,
                stop_after=settings.stop_after,
                fsdp=settings.fsdp,
                frozen=frozen,
            ),
            settings.resume,
            report,
            ranks,
        )
    if frozen is not None:
        note(
            f"{frozen.asked - frozen.found} of {counted(frozen.asked, 'image')} encoded, the "
            f"others remembered ({frozen.bytes / 1e6:.0f} MB)"
        )
    if settings.fsdp:
        collected = {name: tensor.cpu() for name, tensor in full_state(encoder.model)}
        model.encoder.model.load_state_dict(collected)
    finished = progress.step >= total
    if finished and 2 * progress.skipped_steps >= progress.step:
        raise CompoclipError(
            f"the loss was not finite in {progress.skipped_steps} of {counted(total, 'step')}, "
            "which were skipped: the model has not been trained and is not written; lower --lr"
        )
    whole = settings.merge or lora is None
    summary = RunSummary(
        model=(checkpoint if whole else adapter) if finished else None,
        method=method.name,
        steps=progress.step,
        total_steps=total,
        images=progress.images,
        texts=progress.texts,
        skipped=progress.skipped,
        truncated=progress.truncated,
        seconds=round(progress.seconds, 1),
        left_out=_left_out(source),
        cut=parsed.cut if parsed else 0,
        rewrites=progress.rewrites["rewrites"],
        adapter=adapter if finished and lora else None,
        skipped_steps=progress.skipped_steps,
    )
    provenance: dict[str, Any] = {
        **known,
        "run": asdict(replace(summary, model=None, adapter=None)),
    }
    writes = finished and ranks.first
    with ranks.agreed():
        if lora is not None:
            provenance["lora"] = asdict(lora)
            if writes:
                save(model, lora, adapter, provenance)
        merge_lora(model.encoder.model)
        if writes and whole:
            describe = lora.describe() if lora else None
            save_model(model, checkpoint, provenance=provenance, adapter=describe)
    return summary


def _remembering_images(
    method: Method, lora: Lora | None, settings: RunSettings
) -> FrozenImages | None:
    """The memory that --cache-frozen asks for. Raises UsageError where it would remember nothing:
    the image tower learns, or no image is shown twice."""
    if not settings.cache_frozen:
        return None
    if method.trains.image_tower and (lora is None or lora.towers != "text"):
        raise UsageError(
            f"--cache-frozen: {method.name} trains the image tower, so features change at every "
            "step: leave it out"
        )
    if settings.crop:
        raise UsageError(
            "--cache-frozen: random crops make every image a new one: add --no-crop, or leave it "
            "out"
        )
    return FrozenImages()


def _companions(
    model: LoadedModel, method: Method, source: Source, settings: RunSettings, ranks: Ranks
) -> Companions:
    """What the images of the method need to know of all samples, by the model as it is now."""

    def encode(pixels: torch.Tensor) -> torch.Tensor:
        return model.encoder.encode_images(pixels.to(settings.device)).pooled

    model.encoder.to(settings.device).eval()
    with ranks.first_before_others():  # the others read what the first has written
        kept = settings.resume or not ranks.first
        return method.images.prepare(source, encode, model.preprocess, settings.out, kept)


def _signature(model: LoadedModel, method: Method, source: Source, settings: RunSettings) -> str:
    """A hash over everything that must be the same for a resumed run to be the same run."""
    record = {
        "weights": model.identity.weights,
        "activation": model.identity.activation,
        "tokenizer": model.identity.tokenizer,
        "method": method.name,
        "settings": dict(method.settings),
        "optim": asdict(method.optim),
        "trains": asdict(method.trains),
        "lora": asdict(method.lora) if method.lora else None,
        **method.record(),
        "data": source.describe(),
        "samples": len(source),
        "seed": settings.seed,
        "precision": settings.precision,
        "crop": settings.crop,
        "draft": settings.draft,
    }
    text = json.dumps(record, sort_keys=True)
    return f"{method.name}:{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def _left_out(source: Source) -> dict[str, int]:
    """How many captions and samples the reader of `source` left out, by reason."""
    return {reason: n for reason, n in source.left_out.items() if n}


def _left_out_text(source: Source) -> str:
    counts = ", ".join(f"{n} x {reason}" for reason, n in _left_out(source).items())
    return f" (left out: {counts})" if counts else ""


class _Reporter:
    """Prints a line now and then: method, step, loss, images and captions a second, time to go."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._last = 0.0
        self._before: dict[str, float] = {}

    def __call__(self, record: dict[str, float], total: int) -> None:
        now = time.monotonic()
        if now - self._last < 5 and record["step"] != total:
            return
        before = self._before or {"images": 0.0, "texts": 0.0, "seconds": 0.0, "step": 0.0}
        seconds = max(1e-9, record["seconds"] - before["seconds"])
        steps = max(1.0, record["step"] - before["step"])
        left = (total - record["step"]) * seconds / steps
        lost = record["skipped_steps"]
        skipped = f"{counted(int(lost), 'step')} skipped (loss not finite)  " if lost else ""
        note(
            f"{self._method}: step {record['step']:.0f}/{total}  loss {record['loss']:.4f}  "
            f"{(record['images'] - before['images']) / seconds:.0f} images/s  "
            f"{(record['texts'] - before['texts']) / seconds:.0f} captions/s  "
            f"{skipped}"
            f"{f'{left / 60:.0f} min' if left >= 90 else f'{left:.0f} s'} left"
        )
        self._last, self._before = now, dict(record)
