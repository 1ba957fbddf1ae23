"""One training run from start to checkpoint: data, texts, loop, provenance."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from compoclip.config import CONFIG
from compoclip.console import counted, note, time_left
from compoclip.data.fingerprint import FILE, Fingerprint
from compoclip.data.images import Companions
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan, prepare_captions
from compoclip.data.sources import Source
from compoclip.data.transform import DeviceTransform, ImageTransform, RandomCrop
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import only_writer, require_writable, write_text
from compoclip.methods.base import Method
from compoclip.models.checkpoint import LoadedModel, current_identity, load_model, save_model
from compoclip.models.config import part_of
from compoclip.models.formats.adapter import save_adapter
from compoclip.models.lora import Lora, Towers, attach_lora, merge_lora
from compoclip.models.projection import attach_text_map, merge_text_map
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.caches import FrozenTexts, frozen_features, kept_at
from compoclip.training.checks import notes, require_negatives
from compoclip.training.log import LOG, Trackers
from compoclip.training.loop import total_steps, train_loop
from compoclip.training.parts import frozen_by, rate_factors, with_frozen
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import full_state, require_torch
from compoclip.training.state import (
    latest_state,
    remove_states,
    require_same_run,
    run_fingerprint,
)
from compoclip.training.step import module_name
from compoclip.training.teacher import TeacherEncoder
from compoclip.training.watch import Watch
from compoclip.workers import own_cores

_FEW_IMAGES = 4096
_MOST_WORKERS = 16  # read more than any one GPU takes


@dataclass(frozen=True)
class RunSummary:
    """What a finished (or stopped) run amounts to.

    Attributes:
        model: What `load_model` gets the result with; None when the run was stopped early.
        method: The method's name.
        steps: Optimiser steps done.
        total_steps: Optimiser steps of the whole run.
        images: Images that were shown.
        texts: Texts that were shown.
        skipped: Images that could not be read.
        truncated: Texts cut to the model's context.
        seconds: Time spent in the loop, over all starts of the run.
        left_out: What the reader of the data left out, by reason.
        rewrites: Coverage of each rewrite.
        cut: Captions that were rewritten by their beginning alone, being longer than any model
            reads.
        adapter: The adapters alone, if any.
        skipped_steps: Steps whose loss or gradient was not finite.
        frozen: Parameters that --freeze held still, by what it names.
        best: With --keep-best the step whose weights the model has, and what it scored.
        ended_early: Whether the run ended for lack of improvement.
        drawn: Of a mixture the samples drawn of each data set.
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
    frozen: Mapping[str, int] = field(default_factory=dict)
    best: Mapping[str, Any] | None = None
    ended_early: bool = False
    drawn: Mapping[str, int] = field(default_factory=dict)


def run_training(
    model: LoadedModel,
    method: Method,
    source: Source,
    settings: RunSettings,
    ranks: Ranks = SINGLE,
    config: str = "",
    watch: Watch | None = None,
) -> RunSummary:
    """Train a model in place and write its checkpoint to `settings.out / "model"`.

    Adapters are merged into it; they are also written alone to `settings.out / "adapter"`.

    Args:
        model: What learns.
        method: Texts, images, losses, what trains, optimiser and schedule.
        source: The samples.
        settings: How the run is executed; `device` names a device that is here.
        ranks: The processes that train together, each of which calls this with the same arguments.
            All end with the same model and summary, whatever their number; rank 0 writes.
        config: The text of the file that repeats the run, to be written into its folder.
        watch: Measures the model, which must be the one that it was made for, while it trains.

    Returns:
        What the run amounts to.

    Raises:
        UsageError: When the run folder is taken and `resume` is not set, and for settings that do
            not go together.
        CompoclipError: When another process is writing the run folder, when no more than half of
            the steps had a finite loss and gradient, and for everything the data, the model or the
            disk report.
    """
    if settings.fsdp and (ranks.world == 1 or method.lora):
        raise UsageError(
            "--fsdp splits a model over processes: start with torchrun"
            if ranks.world == 1
            else "--fsdp splits weights that learn, adapters are small: leave --fsdp or LoRA out"
        )
    if settings.fsdp and settings.compile:
        raise UsageError("--fsdp splits the weights that --compile compiles in: leave one out")
    if settings.fsdp and (method.needs_teacher or method.heads):
        more = "a teacher" if method.needs_teacher else "heads"
        raise UsageError(
            f"--fsdp splits one model, and {method.name} has {more} beside it: leave --fsdp out"
        )
    if method.needs_teacher and method.teacher is None:
        raise UsageError(
            f"{method.name} has terms that compare with a teacher, and no teacher: name one in the "
            "recipe, Method(teacher=Teacher(decay=...))"
        )
    if method.needs_masked and not method.plan.hides:
        raise UsageError(
            f"{method.name} has terms that read a second pass with words hidden, and no texts say "
            "which: name them in the recipe, CaptionPlan(texts=(MaskPlan(),))"
        )
    if method.trains.matrix and (method.lora or settings.fsdp):
        raise UsageError(
            f"{method.name} trains one matrix: adapters would train more, and there is nothing to "
            "split: leave --lora and --fsdp out"
        )
    if settings.fsdp and settings.ema:
        raise UsageError("--ema keeps whole weights, --fsdp splits them: leave one out")
    if not 0 <= settings.ema < 1:
        raise UsageError(f"--ema {settings.ema:g}: must be at least 0 and below 1")
    if settings.fsdp and watch is not None:
        raise UsageError(
            "--on measures the whole model, which --fsdp never holds at once: leave one out and "
            "evaluate the checkpoint"
        )
    _require_precision(settings)
    if settings.fsdp:
        require_torch()
    require_writable(settings.out)
    with ExitStack() as stack:
        with ranks.agreed():  # rank 0 keeps other runs out of the folder, for all
            if ranks.first:
                stack.enter_context(only_writer(settings.out, folder=True))
        return _run(model, method, source, settings, ranks, config, watch)


def _require_precision(settings: RunSettings) -> None:
    """Raise UsageError for fp16 on a CPU, which gains nothing there."""
    if settings.precision == "fp16" and torch.device(settings.device).type == "cpu":
        raise UsageError("--precision fp16 is for GPUs without bf16: on a CPU take fp32 or bf16")


def _run(
    model: LoadedModel,
    method: Method,
    source: Source,
    settings: RunSettings,
    ranks: Ranks,
    config: str,
    watch: Watch | None,
) -> RunSummary:
    # A run folder holds one run: refuse to overwrite it or to mix two.
    checkpoint, adapter = settings.out / "model", settings.out / "adapter"
    started = latest_state(settings.out / "state") is not None
    finished = checkpoint.exists() or (adapter.exists() and not (started and settings.merge))
    if finished and not settings.resume:
        raise UsageError(f"{settings.out} holds a finished run; choose another --out")
    if started and not settings.resume:
        raise UsageError(f"{settings.out} holds an unfinished run; add --resume, or choose --out")
    if settings.resume and not (started or finished):
        note(f"{settings.out} holds nothing to resume: the run starts at step 1")
    if method.needs_local:
        model.encoder.require_local()
    elif method.needs_patches:
        model.encoder.require_patches()
    biased = model.encoder.logit_bias is not None
    if settings.contrast == "sigmoid" and not biased:
        raise UsageError(
            f"--contrast sigmoid: the logits of {model.name} have no bias; take a SigLIP model, or "
            "leave --contrast out"
        )
    hides = "patches" in method.plan.hides
    if method.needs_masked:
        model.encoder.require_masks(hides)
    heads = {
        module_name(name): plan.build(model.encoder.sizes, settings.seed)
        for name, plan in method.heads.items()
    }
    method = with_frozen(method, settings.freeze)
    still = _frozen_parameters(model, settings.freeze)
    rate_factors(model.encoder.model, method.optim.lr, settings)  # refuses impossible rates

    # The data for this method, and the method for this data.
    read = source
    source = method.images.source(source)
    method = method.for_data(source.brings())
    method.plan.require(source)
    method.images.require(source)
    for rewrite, instead in method.stand_ins.items():
        if rewrite in method.plan.rewrite_names:
            note(f"{method.name}: {instead}")

    # From here on, and in the record, what is done in place of what was left open.
    if settings.precision == "auto":
        gpu = torch.device(settings.device).type == "cuda"
        settings = replace(settings, precision="bf16" if gpu else "fp32")
    if settings.contrast == "auto":
        settings = replace(settings, contrast="sigmoid" if biased else "softmax")
    if settings.crop is None:
        settings = replace(settings, crop=method.crop or settings.crops > 0)
    # What does not go together is said before anything is read.
    if kept_at(method, settings) and method.needs_masked and hides:
        raise UsageError(
            f"--cache-frozen: {method.name} hides patches of images, so features change with every "
            "step: leave it out, or hide words alone (--set texts.masks.images=false)"
        )

    # A run that is resumed is the run that was begun.
    decisive = watch.decisive() if watch is not None else {}
    begun = None
    with ranks.agreed():
        if ranks.first:
            data = read.fingerprint()
            begun = run_fingerprint(model, method, source, data, settings, decisive)
            if started or finished:
                require_same_run(settings.out, begun)
    if finished:
        if checkpoint.exists() and ranks.first:  # the run may have been killed before it did so
            remove_states(settings.out / "state")
        return _finished(model, checkpoint if checkpoint.exists() else adapter, adapter)

    # Batches. Captions are parsed once, by rank 0; the other ranks find them in the store.
    parsed = None
    if method.needs_parsing:
        with ranks.rank0_first():
            parsed = prepare_captions(source)
    workers = reading_processes(settings, method, len(source))
    crop = RandomCrop(fixed=settings.crops) if settings.crop else None
    kind = DeviceTransform if source.decoded else ImageTransform
    transform = kind(model.preprocess, crop, settings.draft, source.upright)
    plan = TextPlan(method.plan, seed=settings.seed, parsed=parsed)
    if not settings.allow_no_negatives:
        require_negatives(method, source, plan)
    companions = _companions(model, method, source, settings, ranks)
    loader = BatchLoader(
        source,
        plan,
        transform,
        batch_size=method.optim.batch_size,
        seed=settings.seed,
        workers=workers,
        max_bad=settings.max_bad,
        rank=ranks.rank,
        world=ranks.world,
        images=method.images,
        companions=companions,
        kept=frozen_features(model, method, source, transform, settings, ranks),
    )
    total = total_steps(method.optim, loader, settings.max_steps)
    left_out = {reason: n for reason, n in source.left_out.items() if n}
    counts = ", ".join(f"{n} x {reason}" for reason, n in left_out.items())
    note(
        f"{method.name}: {counted(len(source), 'sample')}"
        f"{f' (left out: {counts})' if counts else ''}, "
        f"{counted(total, 'step')} of {method.optim.batch_size} images"
    )
    readers = counted(workers, "worker") if workers else "this process"
    note(f"  trains on {settings.device} in {settings.precision}; images are read by {readers}")
    if ranks.first:
        for line in notes(method, source, total, settings.mask_duplicates):
            note(line)
    for word, count in still.items():
        note(f"  frozen: {word}, {counted(count, 'parameter')}")

    # The model, on its device. The seed is for dropout; order, crops and rewrites draw their own.
    lora = attach_adapters(model, method, settings.seed)
    if method.trains.matrix == "after":
        attach_text_map(model.encoder.model)
    scale = model.encoder.logit_scale
    own_scale = scale.detach().clone()
    if method.trains.start_scale:
        scale.data.fill_(math.log(method.trains.start_scale))
    torch.manual_seed(settings.seed)
    texts = FrozenTexts(model.tokenizer) if settings.cache_frozen and method.trains.matrix else None
    encoder = model.encoder
    if settings.fsdp:  # a copy is split; the model itself stays whole, to be given the result
        encoder = deepcopy(model.encoder.cpu())
    if method.needs_teacher and method.teacher is not None:
        encoder.teacher = TeacherEncoder(encoder, method.teacher.decay)
    encoder.heads.update(heads)
    encoder.to(settings.device)
    if settings.grad_checkpointing:
        encoder.set_grad_checkpointing()
    if settings.compile and "text" not in encoder.compile_towers():
        note("the text tower is not compiled: its blocks are not open_clip's usual ones")

    # Train. What the checkpoint will say about its origin is what trackers show beside the curves.
    known = {
        "method": method.name,
        "settings": dict(method.settings),
        **method.record(),
        "optim": asdict(method.optim),
        "data": source.describe(),
        "orientation": source.orientation,
        **settings.recorded(),
        **({"init_from": model.provenance["soup"]} if "soup" in model.provenance else {}),
        **({"watch": watch.about} if watch is not None else {}),
        "torch": torch.__version__,
    }
    track = tuple(dict.fromkeys(settings.track)) if ranks.first else ()
    with (
        Trackers(track, settings.out, known, _Reporter(method.name)) as report,
        _repeatable(settings.out, config if ranks.first else "", None if started else begun),
    ):
        progress = train_loop(
            encoder, model.tokenizer, method, loader, settings, report, ranks, texts, watch
        )
    encoder.teacher = None  # the run's, not the model's, as heads are
    encoder.heads.clear()
    if method.trains.start_scale:
        scale.data.copy_(own_scale)
    if texts is not None:
        note(
            f"{texts.asked - texts.found} of {counted(texts.asked, 'text')} encoded, the others "
            f"remembered ({texts.bytes / 1e6:.0f} MB)"
        )
    if settings.fsdp:
        collected = {name: tensor.cpu() for name, tensor in full_state(encoder.model)}
        model.encoder.model.load_state_dict(collected)

    # Write the result, unless the run stops early, or hardly ever took a step.
    ended_early = progress.step < total and watch is not None and watch.over()
    finished = progress.step >= total or ended_early
    if finished and 2 * progress.skipped_steps >= progress.step:
        raise CompoclipError(
            f"the loss or gradient was not finite in {progress.skipped_steps} of "
            f"{counted(progress.step, 'step')}, which were skipped: the model has not been trained "
            "and is not written; lower --lr"
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
        left_out=left_out,
        cut=parsed.cut if parsed else 0,
        rewrites=progress.rewrites["rewrites"],
        adapter=adapter if finished and lora else None,
        skipped_steps=progress.skipped_steps,
        frozen=still,
        best=watch.told() if watch is not None and finished else None,
        ended_early=ended_early,
        drawn=loader.drawn(progress.step),
    )
    provenance: dict[str, Any] = {
        **known,
        "run": asdict(replace(summary, model=None, adapter=None)),
    }
    if lora is not None:
        provenance["lora"] = asdict(lora)
    writes = finished and ranks.first
    with ranks.agreed():
        if watch is not None and summary.best is not None:
            watch.restored(model.encoder.model, summary.best["step"])
        # An earlier finish of the same run may have written them, and then been interrupted.
        if lora is not None and writes and not adapter.exists():
            save_adapter(model, lora, adapter, provenance=provenance)
        merge_lora(model.encoder.model)
        merge_text_map(model.encoder.model)
        if writes and whole:
            describe = lora.describe() if lora else None
            save_model(model, checkpoint, provenance=provenance, adapter=describe)
    if watch is not None and writes:
        watch.clear()
    if writes and whole:  # nothing can resume it (adapters alone may still be merged)
        remove_states(settings.out / "state")
    return summary


@contextmanager
def _repeatable(out: Path, config: str, begun: Fingerprint | None) -> Iterator[None]:
    """The file that repeats the run, and its fingerprint where it begins, lie in its folder; of a
    run that took no step none is left."""
    if begun:
        begun.save(out)
    if config:
        write_text(out / CONFIG, config)
    try:
        yield
    finally:
        if (config or begun) and not (out / LOG).exists() and latest_state(out / "state") is None:
            for name in (CONFIG, FILE):
                (out / name).unlink(missing_ok=True)


def reading_processes(settings: RunSettings, method: Method, samples: int) -> int:
    """The number of processes that read data.

    A core reads, crops and rewrites for some 250 images a second. That keeps all cores busy where a
    GPU trains; on a CPU training itself takes a hundred times as long, on the same cores. For a few
    seconds of reading no process is started.

    Args:
        settings: `workers`, a number or "auto", and `device` are read.
        method: Epochs and images a sample.
        samples: Of the data.

    Returns:
        How many for this process, one of several on the machine under torchrun.
    """
    if settings.workers != "auto":
        return settings.workers
    images = samples * method.optim.epochs * method.images.images_per_sample
    if images < _FEW_IMAGES:
        return 0
    own = own_cores()
    if torch.device(settings.device).type == "cpu":
        return own // 8
    return min(max(1, own - 1), _MOST_WORKERS)


def attach_adapters(model: LoadedModel, method: Method, seed: int) -> Lora | None:
    """Attach the method's adapters, drawn from `seed`, to the network, and say how much learns.

    Args:
        model: Its network gets the adapters.
        method: Its `lora` says which, if any.
        seed: Of the adapters' initial weights.

    Returns:
        The settings, with the towers that have adapters now: those that the method trains, that
        its settings name and that have layers to adapt. None for a method without adapters.

    Raises:
        UsageError: When there is no such tower.
        CompoclipError: When the weights are not those of the model's identity.
    """
    if method.lora is None:
        return None
    trained = {"image": method.trains.image_tower, "text": method.trains.text_tower}
    chosen = [t for t, on in trained.items() if on and method.lora.towers in ("both", t)]
    if not chosen:
        raise UsageError(
            f"{method.name} trains nothing in the tower of its adapters ({method.lora.towers}): "
            "choose another with --lora-towers"
        )
    if current_identity(model) != model.identity:
        raise CompoclipError(
            f"{model.name}: its weights have changed since it was loaded, and adapters need a base "
            "that can be loaded again: save the model and train on the checkpoint"
        )
    network = model.encoder.model
    total = sum(parameter.numel() for parameter in network.parameters())
    targets = attach_lora(network, replace(method.lora, towers=_towers(chosen)), seed)
    having = {part_of(target.name) for target in targets}
    lora = replace(method.lora, towers=_towers(having))
    learns = sum(target.size for target in targets)
    note(
        f"{lora.describe()}: {learns:,} numbers learn beside {total:,} frozen ones "
        f"({learns / total:.2%})"
    )
    if len(having) < len(chosen):
        (left,) = set(chosen) - having
        note(f"  the {left} tower has no attention or MLP layers to adapt: it stays as it is")
    return lora


def _towers(names: Collection[str]) -> Towers:
    return "both" if len(names) == 2 else "image" if "image" in names else "text"


def _frozen_parameters(model: LoadedModel, freeze: Sequence[str]) -> dict[str, int]:
    """How many parameters each word of --freeze holds still."""
    network = model.encoder.model
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters()}
    found = frozen_by(network, freeze)
    return {word: sum(sizes.get(name, 0) for name in names) for word, names in found.items()}


def _companions(
    model: LoadedModel, method: Method, source: Source, settings: RunSettings, ranks: Ranks
) -> Companions:
    """The neighbour index that the images of the method need, by the model as it is now."""

    def encode(pixels: torch.Tensor) -> torch.Tensor:
        return model.encoder.encode_images(pixels.to(settings.device)).pooled

    model.encoder.to(settings.device).eval()
    with ranks.rank0_first():  # the others read what rank 0 has written
        kept = settings.resume or not ranks.first
        return method.images.prepare(source, encode, model.preprocess, settings.out, kept)


def _finished(model: LoadedModel, written: Path, adapter: Path) -> RunSummary:
    """Give a model the weights that a finished run has written; what that run amounts to."""
    loaded = load_model(written)
    model.encoder.model.load_state_dict(loaded.encoder.model.state_dict())
    note(f"already finished: {written}")
    told = {"model": written, "adapter": adapter if adapter.exists() else None}
    return RunSummary(**{**loaded.provenance["run"], **told})


class _Reporter:
    """Prints a line now and then: method, step, loss, images and captions a second, time to go."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._last = 0.0
        self._before: dict[str, float] = {}

    def __call__(self, record: dict[str, Any], total: int) -> None:
        if "eval" in record:
            scores = (f"{name} {100 * each['value']:.1f}" for name, each in record["eval"].items())
            note(f"  step {record['step']}: {', '.join(scores)}")
            return
        now = time.monotonic()
        if now - self._last < 5 and record["step"] != total:
            return
        before = self._before or {"images": 0.0, "texts": 0.0, "seconds": 0.0, "step": 0.0}
        seconds = max(1e-9, record["seconds"] - before["seconds"])
        steps = max(1.0, record["step"] - before["step"])
        left = (total - record["step"]) * seconds / steps
        lost = record["skipped_steps"]
        skipped = f"{counted(int(lost), 'step')} skipped (not finite)  " if lost else ""
        note(
            f"{self._method}: step {record['step']:.0f}/{total}  loss {record['loss']:.4f}  "
            f"{(record['images'] - before['images']) / seconds:.0f} images/s  "
            f"{(record['texts'] - before['texts']) / seconds:.0f} captions/s  "
            f"{skipped}{time_left(left)}"
        )
        self._last, self._before = now, dict(record)
