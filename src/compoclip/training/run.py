"""One training run from start to checkpoint: data, texts, loop, provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack, closing
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from compoclip.config import CONFIG
from compoclip.console import counted, left_out_listed, note
from compoclip.data.fingerprint import FILE, Fingerprint
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan, prepare_captions
from compoclip.data.sources import LABEL, Source
from compoclip.data.transform import ImageTransform, RandomCrop
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import only_writer, require_writable, write_text
from compoclip.methods.base import Method
from compoclip.models.checkpoint import LoadedModel, load_model, save_model
from compoclip.models.formats.adapters import save_adapter
from compoclip.models.lora import Lora, merge_lora
from compoclip.models.projection import attach_text_map, merge_text_map
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.caches import FrozenTexts, cached_at, frozen_features, image_bank
from compoclip.training.checks import notes, require_negatives, require_precision, require_together
from compoclip.training.log import LOG, ProgressLines, Trackers
from compoclip.training.loop import TrainingLoop, total_steps
from compoclip.training.parts import attach_adapters, frozen_by, with_frozen
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import require_torch, whole
from compoclip.training.state import (
    Progress,
    latest_state,
    remove_states,
    require_same_run,
    run_fingerprint,
)
from compoclip.training.step import module_name, on_dimensions
from compoclip.training.teacher import ExternalTeacher, TeacherEncoder
from compoclip.training.watch import Watch
from compoclip.workers import own_cores

_FEW_IMAGES = 4096
_MOST_WORKERS = 16  # read more than any one GPU takes


@dataclass(frozen=True)
class RunSummary:
    """The summary of a finished or stopped run.

    Attributes:
        model: Path of the result for `load_model`; None if the run stopped early.
        method: The method's name.
        steps: Optimiser steps done.
        total_steps: Optimiser steps of the whole run.
        images: Images trained on.
        texts: Texts trained on.
        skipped: Unreadable images.
        truncated: Texts cut to the model's context.
        seconds: Time spent in the loop, over all starts of the run.
        left_out: Samples that the reader left out, by reason.
        rewrites: Coverage of each rewrite.
        cut: Captions of which only the beginning was rewritten, since no model reads more.
        adapter: Path of the adapters, if any.
        skipped_steps: Steps with a non-finite loss or gradient.
        frozen: Number of frozen parameters by value of --freeze.
        best: With --keep-best, the step of the model's weights, and its score.
        ended_early: Whether the run ended by --patience.
        drawn: Samples per data set of a mixture.
        loss: Of the last step; None if that was not taken, or not finite.
        chance: The loss of that step if all features were equal.
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
    loss: float | None = None
    chance: float | None = None

    @property
    def warning(self) -> str:
        """Return a sentence about a run that ended at chance; else nothing."""
        if self.loss is None or self.chance is None or self.loss < self.chance:
            return ""
        return (
            f"the loss ended at {self.loss:.2f}, and a model that tells nothing apart has "
            f"{self.chance:.2f}: the run has learned nothing; try a lower learning rate or larger "
            "batches"
        )


def run_training(
    model: LoadedModel,
    method: Method,
    source: Source,
    settings: RunSettings,
    ranks: Ranks = SINGLE,
    config: str = "",
    watch: Watch | None = None,
    teacher: ExternalTeacher | None = None,
) -> RunSummary:
    """Train a model in place and write its checkpoint to `settings.out / "model"`.

    Adapters are merged into it, and also written unmerged to `settings.out / "adapter"`.

    Args:
        model: The model to train.
        method: Texts, images, losses, trained parts, optimiser and schedule.
        source: The samples.
        settings: Settings of the run, with an available `device`.
        ranks: The processes that train together; all call this with equal arguments. All end with
            the same model and summary, for any number of ranks; rank 0 writes.
        config: The text of the run's configuration file, written into its folder.
        watch: Measures this model during training.
        teacher: The teacher, instead of a copy of this model.

    Raises:
        UsageError: When the run folder exists and `resume` is not set, and for conflicting
            settings.
        CompoclipError: When another process is writing the run folder, when half of the steps or
            more had a non-finite loss or gradient, and for errors of data, model or disk.
    """
    require_together(method, settings, ranks, watch, teacher)
    require_precision(settings)
    if settings.fsdp:
        require_torch()
    require_writable(settings.out)
    with ExitStack() as stack:
        with ranks.agreed():  # rank 0 keeps other runs out of the folder, for all
            if ranks.first:
                stack.enter_context(only_writer(settings.out, folder=True))
        return _Run(model, method, source, settings, ranks, config, watch, teacher)()


@dataclass
class _Run:
    """A run from start to checkpoint: prepare, train, finish; see `run_training`."""

    model: LoadedModel
    method: Method
    source: Source
    settings: RunSettings
    ranks: Ranks
    config: str
    watch: Watch | None
    teacher: ExternalTeacher | None

    def __call__(self) -> RunSummary:
        out = self.settings.out
        self.checkpoint, self.adapter, self.states = out / "model", out / "adapter", out / "state"
        self.started = latest_state(self.states) is not None
        merges = self.started and self.settings.merge
        self.finished = self.checkpoint.exists() or (self.adapter.exists() and not merges)
        self._prepare()
        if not self.finished:
            # Workers of a loader that the garbage collector finds are waited for, 5 seconds each.
            with closing(self._loader()) as loader:
                return self._finish(loader, *self._train(loader))
        # The run has written its result, which the model is given.
        written = self.checkpoint if self.checkpoint.exists() else self.adapter
        if written is self.checkpoint and self.ranks.first:
            remove_states(self.states)  # the run may have been killed before it did so
        loaded = load_model(written)
        self.model.encoder.model.load_state_dict(loaded.encoder.model.state_dict())
        note(f"already finished: {written}")
        adapter = self.adapter if self.adapter.exists() else None
        return RunSummary(**{**loaded.provenance["run"], "model": written, "adapter": adapter})

    # --- Prepare. ---

    def _prepare(self) -> None:
        """Refuse what cannot be done; take the data for the method, and the method for the data."""
        read, encoder, settings = self.source, self.model.encoder, self.settings
        new = not settings.resume
        settings.require_new(self.finished)
        if self.started and new:
            raise UsageError(
                f"{settings.out} holds an unfinished run; add --resume, or choose --out"
            )
        if settings.resume and not (self.started or self.finished):
            note(f"{settings.out} holds nothing to resume: the run starts at step 1")
        # What the method, or a setting, reads of the model.
        if self.method.needs_patches:
            encoder.require_local(tower=None if self.method.needs_local else "image")
        biased = encoder.logit_bias is not None
        name, width = self.model.name, int(self.model.config.model_cfg["embed_dim"])
        for dimensions in settings.matryoshka:
            if not 0 < dimensions < width:
                raise UsageError(
                    f"--set matryoshka={dimensions}: must be 1 to {width - 1}, below the {width} "
                    f"dimensions of {name}"
                )
        if settings.contrast == "sigmoid" and not biased:
            raise UsageError(
                f"--set contrast=sigmoid: the logits of {name} have no bias; take a SigLIP model, "
                "or leave contrast out"
            )
        for further in self.method.passes:
            further.require(self.method.plan, encoder)
        self.heads = {
            module_name(name): plan.build(encoder.sizes, settings.seed)
            for name, plan in self.method.heads.items()
        }
        method = with_frozen(self.method, settings.freeze)
        sizes = {name: parameter.numel() for name, parameter in encoder.model.named_parameters()}
        self.still = {
            word: sum(sizes.get(name, 0) for name in names)
            for word, names in frozen_by(encoder.model, settings.freeze).items()
        }
        # The samples as the method reads them, and what the settings leave open.
        self.source = source = method.images.source(read)
        self.method = method = method.for_data(source.brings())
        method.plan.require(source)
        method.images.require(source)
        for rewrite, instead in method.stand_ins.items():
            if rewrite in method.plan.rewrite_names:
                note(f"{method.name}: {instead}")
        gpu = torch.device(settings.device).type == "cuda"
        chosen: dict[str, Any] = {
            "precision": "bf16" if gpu else "fp32",
            "contrast": "sigmoid" if biased else "softmax",
            "crop": method.crop or settings.crops > 0,
        }
        left = {k: v for k, v in chosen.items() if getattr(settings, k) in ("auto", None)}
        settings = replace(settings, **left)
        self.settings = settings
        self.cached_at = cached_at(method, settings)
        remedies = [extra_pass.changes_images(method.plan) for extra_pass in method.passes]
        if self.cached_at and any(remedies):
            raise UsageError(
                f"--cache-frozen: {method.name} changes the images at every step, so their "
                "features cannot be cached: leave it out, or "
                f"{' and '.join(filter(None, remedies))}"
            )
        if method.needs_bank and self.cached_at != "tower":
            raise UsageError(
                f"{method.name} contrasts captions with all images, so the image tower must be "
                "frozen and its features cached: add --freeze image --cache-frozen --no-crop"
            )
        if method.needs_bank and LABEL in source.brings():
            raise UsageError(
                f"{method.name} contrasts captions with all images, and captions made of classes "
                "are true of many: leave --terms +all-images out"
            )
        if self.teacher and self.cached_at:
            raise UsageError(
                "--cache-frozen stores no pixels, and the teacher needs them: leave --cache-frozen "
                "or the teacher out"
            )
        decisive = self.watch.decisive() if self.watch is not None else {}
        decisive |= {"teacher": self.teacher.about} if self.teacher is not None else {}
        self.begun: Fingerprint | None = None
        with self.ranks.agreed():
            if self.ranks.first:
                data = read.fingerprint()
                self.begun = run_fingerprint(self.model, method, source, data, settings, decisive)
                if self.started or self.finished:
                    require_same_run(settings.out, self.begun)

    def _loader(self) -> BatchLoader:
        """This rank's batches. Rank 0 parses and caches first; the others find it on disk."""
        model, method, source, ranks = self.model, self.method, self.source, self.ranks
        settings, encoder = self.settings, self.model.encoder
        parsed, self.cut = None, 0
        if method.needs_parsing:
            with ranks.rank0_first():
                parsed = prepare_captions(source)
            self.cut = parsed.cut
        crop = RandomCrop(fixed=settings.crops) if settings.crop else None
        transform = ImageTransform(model.preprocess, crop, settings.draft, source.upright)
        plan = TextPlan(method.plan, seed=settings.seed, parsed=parsed)
        if not settings.allow_no_negatives:
            require_negatives(method, source, plan)
        encoder.to(settings.device).eval()
        with ranks.rank0_first():  # neighbours are found with the model as it is now
            companions = method.images.prepare(
                source,
                lambda pixels: encoder.encode_images(pixels.to(settings.device)).pooled,
                model.preprocess,
                settings.out,
                settings.resume or not ranks.first,
            )
        workers = reading_processes(settings, method, len(source))
        self.cached = None
        if at := self.cached_at:
            self.cached = frozen_features(model, method, source, transform, settings, at, ranks)
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
            cached=self.cached,
        )
        self.total = total_steps(method.optim, loader, settings.max_steps)
        self.left_out = {reason: n for reason, n in source.left_out.items() if n}
        note(
            f"{method.name}: {counted(len(source), 'sample')}{left_out_listed(self.left_out)}, "
            f"{counted(self.total, 'step')} of {counted(method.optim.batch_size, 'image')}"
        )
        readers = counted(workers, "worker") if workers else "this process"
        place = f"{settings.device} in {settings.precision}"
        note(f"  trains on {place}; images are read by {readers}")
        if ranks.first:
            for line in notes(method, source, self.total, settings.mask_duplicates):
                note(line)
        for word, count in self.still.items():
            note(f"  frozen: {word}, {counted(count, 'parameter')}")
        return loader

    # --- Train. ---

    def _train(self, loader: BatchLoader) -> tuple[Progress, Lora | None, dict[str, Any]]:
        """Train the model on its device; where that ended, its adapters, and its origin."""
        model, method, settings = self.model, self.method, self.settings
        lora = attach_adapters(model, method, settings.seed)
        if method.trains.matrix == "after":
            attach_text_map(model.encoder.model)
        scale = model.encoder.logit_scale
        model_scale = scale.detach().clone()
        if method.trains.start_scale:
            scale.data.fill_(math.log(method.trains.start_scale))
        torch.manual_seed(settings.seed)  # for dropout; order, crops and rewrites draw their own
        texts = None
        if settings.cache_frozen and method.trains.matrix:
            texts = FrozenTexts(model.tokenizer)
        encoder = model.encoder
        if settings.fsdp:  # a copy is split; the model itself stays whole, to be given the result
            encoder = deepcopy(model.encoder.cpu())
        if self.teacher is not None:
            encoder.teacher = self.teacher
        elif method.needs_teacher and method.teacher is not None:
            encoder.teacher = TeacherEncoder(encoder, method.teacher.decay)
        encoder.heads.update(self.heads)
        encoder.to(settings.device)
        bank = image_bank(encoder, self.cached) if method.needs_bank and self.cached else None
        if settings.grad_checkpointing:
            encoder.set_grad_checkpointing()
        if settings.compile and "text" not in encoder.compile_towers():
            note("the text tower is not compiled: its blocks are not open_clip's usual ones")

        # What the checkpoint will say about its origin is what trackers show beside the curves.
        soup = model.provenance.get("soup")
        origin = {
            "method": method.name,
            "settings": dict(method.settings),
            **method.record(),
            "optim": asdict(method.optim),
            "data": self.source.describe(),
            "orientation": self.source.orientation,
            **settings.recorded(),
            **({} if soup is None else {"init_from": soup}),
            **({"watch": self.watch.about} if self.watch is not None else {}),
            **({"teacher": self.teacher.about} if self.teacher is not None else {}),
            "torch": torch.__version__,
        }
        first, out = self.ranks.first, settings.out
        # The file that repeats the run, and its fingerprint where it begins, lie in its folder; of
        # a run that took no step none is left.
        if self.begun is not None and not self.started:
            self.begun.save(out)
        if first and self.config:
            write_text(out / CONFIG, self.config)
        track = tuple(dict.fromkeys(settings.track)) if first else ()
        try:
            with Trackers(track, out, origin, ProgressLines(method.name)) as report:
                loop = TrainingLoop(
                    encoder,
                    model.tokenizer,
                    on_dimensions(method, settings.matryoshka, self.teacher is None),
                    loader,
                    settings,
                    report,
                    self.ranks,
                    texts,
                    bank,
                    self.watch,
                )
                progress = loop.run()
                self.ending = loop.ending
        finally:
            if first and not (out / LOG).exists() and latest_state(self.states) is None:
                for name in (CONFIG, FILE):
                    (out / name).unlink(missing_ok=True)
        encoder.teacher = None  # the run's, not the model's, as heads are
        encoder.heads.clear()
        if method.trains.start_scale:
            scale.data.copy_(model_scale)
        if texts is not None:
            note(
                f"{texts.requested - texts.reused} of {counted(texts.requested, 'text')} encoded, "
                f"the others cached ({texts.bytes / 1e6:.0f} MB)"
            )
        if settings.fsdp:
            split = encoder.model.state_dict()
            model.encoder.model.load_state_dict({k: whole(v).cpu() for k, v in split.items()})
        return progress, lora, origin

    # --- Finish. ---

    def _finish(
        self, loader: BatchLoader, progress: Progress, lora: Lora | None, origin: dict[str, Any]
    ) -> RunSummary:
        """Write the result, unless the run stopped early, or hardly ever took a step."""
        watch, model, ranks = self.watch, self.model, self.ranks
        ended_early = progress.step < self.total and watch is not None and watch.over()
        finished = progress.step >= self.total or ended_early
        if finished and 2 * progress.skipped_steps >= progress.step:
            raise CompoclipError(
                f"the loss or gradient was not finite in {progress.skipped_steps} of "
                f"{counted(progress.step, 'step')}, which were skipped: the model has not been "
                "trained and is not written; lower --lr"
            )
        merged = self.settings.merge or lora is None
        counts = ("images", "texts", "skipped", "truncated", "skipped_steps")
        summary = RunSummary(
            model=(self.checkpoint if merged else self.adapter) if finished else None,
            method=self.method.name,
            steps=progress.step,
            total_steps=self.total,
            seconds=round(progress.seconds, 1),
            left_out=self.left_out,
            cut=self.cut,
            rewrites=progress.rewrites["rewrites"],
            adapter=self.adapter if finished and lora else None,
            frozen=self.still,
            best=watch.report() if watch is not None and finished else None,
            ended_early=ended_early,
            drawn=loader.samples_by_source(progress.step),
            loss=round(self.ending[0], 6) if self.ending else None,
            chance=round(self.ending[1], 6) if self.ending else None,
            **{name: getattr(progress, name) for name in counts},
        )
        provenance = {**origin, "run": asdict(replace(summary, model=None, adapter=None))}
        if lora is not None:
            provenance["lora"] = asdict(lora)
        writes = finished and ranks.first
        with ranks.agreed():
            if watch is not None and summary.best is not None:
                watch.restored(model.encoder.model, summary.best["step"])
            # An earlier finish of the same run may have written them, and then been interrupted.
            if lora is not None and writes and not self.adapter.exists():
                save_adapter(model, lora, self.adapter, provenance=provenance)
            merge_lora(model.encoder.model)
            merge_text_map(model.encoder.model)
            if writes and merged:
                describe = lora.describe() if lora else None
                save_model(model, self.checkpoint, provenance=provenance, adapter=describe)
        if watch is not None and writes:
            watch.clear()
        if writes and merged:  # nothing can resume it (adapters alone may still be merged)
            remove_states(self.states)
        return summary


def reading_processes(settings: RunSettings, method: Method, samples: int) -> int:
    """Return the number of reading processes of this process, one of several under torchrun.

    A core reads, crops and rewrites some 250 images per second. That keeps all cores busy if a GPU
    trains; on a CPU training takes a hundred times as long, on the same cores. For a few seconds of
    reading no process is started.
    """
    if settings.workers != "auto":
        return settings.workers
    images = samples * method.optim.epochs * method.images.images_per_sample
    if images < _FEW_IMAGES:
        return 0
    cores = own_cores()
    if torch.device(settings.device).type == "cpu":
        return cores // 8
    return min(max(1, cores - 1), _MOST_WORKERS)
