"""One training run from start to checkpoint: data, texts, loop, provenance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from compoclip.config import CONFIG
from compoclip.console import counted, note
from compoclip.data.fingerprint import FILE, Fingerprint
from compoclip.data.images import Companions
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan, prepare_captions
from compoclip.data.sources import Source
from compoclip.data.transform import ImageTransform, RandomCrop
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import only_writer, require_writable, write_text
from compoclip.methods.base import Method
from compoclip.models.checkpoint import LoadedModel, load_model, save_model
from compoclip.models.formats.adapters import save_adapter
from compoclip.models.lora import Lora, merge_lora
from compoclip.models.projection import attach_text_map, merge_text_map
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.caches import FrozenTexts, frozen_features, kept_at
from compoclip.training.checks import notes, require_negatives, require_precision, require_together
from compoclip.training.log import LOG, ProgressLines, Trackers
from compoclip.training.loop import TrainingLoop, total_steps
from compoclip.training.parts import attach_adapters, frozen_by, rate_factors, with_frozen
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import full_state, require_torch
from compoclip.training.state import (
    Progress,
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
    require_together(method, settings, ranks, watch)
    require_precision(settings)
    if settings.fsdp:
        require_torch()
    require_writable(settings.out)
    with ExitStack() as stack:
        with ranks.agreed():  # rank 0 keeps other runs out of the folder, for all
            if ranks.first:
                stack.enter_context(only_writer(settings.out, folder=True))
        return _Run(model, method, source, settings, ranks, config, watch)()


@dataclass
class _Run:
    """A run from start to checkpoint; see `run_training`."""

    model: LoadedModel
    method: Method
    source: Source
    settings: RunSettings
    ranks: Ranks
    config: str
    watch: Watch | None

    def __post_init__(self) -> None:
        out = self.settings.out
        self.checkpoint, self.adapter, self.states = out / "model", out / "adapter", out / "state"
        self.started = latest_state(self.states) is not None
        merges = self.started and self.settings.merge
        self.finished = self.checkpoint.exists() or (self.adapter.exists() and not merges)
        self.cut = 0  # captions too long to be parsed whole

    def __call__(self) -> RunSummary:
        self._require_free_folder()
        self._require_model()
        encoder, method = self.model.encoder, self.method
        heads = {
            module_name(name): plan.build(encoder.sizes, self.settings.seed)
            for name, plan in method.heads.items()
        }
        self.method = with_frozen(method, self.settings.freeze)
        self.still = _frozen_parameters(self.model, self.settings.freeze)
        rate_factors(encoder.model, method.optim.lr, self.settings)  # refuses impossible rates
        begun = self._fit_to_data()
        if self.finished:
            return self._as_finished()
        loader = self._loader()
        total = self._announce(loader)
        return self._finish(*self._train(loader, heads, begun), loader, total)

    # --- Prepare. ---

    def _require_free_folder(self) -> None:
        """A run folder holds one run: refuse to overwrite it or to mix two."""
        out, resume = self.settings.out, self.settings.resume
        if self.finished and not resume:
            raise UsageError(f"{out} holds a finished run; choose another --out")
        if self.started and not resume:
            raise UsageError(f"{out} holds an unfinished run; add --resume, or choose --out")
        if resume and not (self.started or self.finished):
            note(f"{out} holds nothing to resume: the run starts at step 1")

    def _require_model(self) -> None:
        """Raise for a model that lacks what the method, or a setting, reads of it."""
        encoder, method = self.model.encoder, self.method
        if method.needs_local:
            encoder.require_local()
        elif method.needs_patches:
            encoder.require_local(tower="image")
        if self.settings.contrast == "sigmoid" and encoder.logit_bias is None:
            raise UsageError(
                f"--contrast sigmoid: the logits of {self.model.name} have no bias; take a SigLIP "
                "model, or leave --contrast out"
            )
        for each in method.passes:
            each.require(method.plan, encoder)

    def _fit_to_data(self) -> Fingerprint | None:
        """Take the data for the method, and the method for the data; decide what was left open.

        Returns the fingerprint of the run on rank 0. A run that is resumed is the run that was
        begun.
        """
        read, settings = self.source, self.settings
        self.source = source = self.method.images.source(read)
        self.method = method = self.method.for_data(source.brings())
        method.plan.require(source)
        method.images.require(source)
        for rewrite, instead in method.stand_ins.items():
            if rewrite in method.plan.rewrite_names:
                note(f"{method.name}: {instead}")
        if settings.precision == "auto":
            gpu = torch.device(settings.device).type == "cuda"
            settings = replace(settings, precision="bf16" if gpu else "fp32")
        if settings.contrast == "auto":
            biased = self.model.encoder.logit_bias is not None
            settings = replace(settings, contrast="sigmoid" if biased else "softmax")
        if settings.crop is None:
            settings = replace(settings, crop=method.crop or settings.crops > 0)
        self.settings = settings
        # What does not go together is said before anything is read.
        remedies = [each.changes_images(method.plan) for each in method.passes]
        if kept_at(method, settings) and any(remedies):
            raise UsageError(
                f"--cache-frozen: {method.name} changes images at every step, and features with "
                f"them: leave it out, or {' and '.join(filter(None, remedies))}"
            )
        decisive = self.watch.decisive() if self.watch is not None else {}
        begun = None
        with self.ranks.agreed():
            if self.ranks.first:
                data = read.fingerprint()
                begun = run_fingerprint(self.model, method, source, data, settings, decisive)
                if self.started or self.finished:
                    require_same_run(settings.out, begun)
        return begun

    def _as_finished(self) -> RunSummary:
        """Give the model the weights that the run has written; return its summary."""
        written = self.checkpoint if self.checkpoint.exists() else self.adapter
        if written is self.checkpoint and self.ranks.first:
            remove_states(self.states)  # the run may have been killed before it did so
        loaded = load_model(written)
        self.model.encoder.model.load_state_dict(loaded.encoder.model.state_dict())
        note(f"already finished: {written}")
        adapter = self.adapter if self.adapter.exists() else None
        return RunSummary(**{**loaded.provenance["run"], "model": written, "adapter": adapter})

    def _loader(self) -> BatchLoader:
        """This rank's batches. Rank 0 parses captions once; the others find them in the store."""
        model, method, source, ranks = self.model, self.method, self.source, self.ranks
        settings = self.settings
        parsed = None
        if method.needs_parsing:
            with ranks.rank0_first():
                parsed = prepare_captions(source)
            self.cut = parsed.cut
        crop = RandomCrop(fixed=settings.crops) if settings.crop else None
        transform = ImageTransform(model.preprocess, crop, settings.draft, source.upright)
        plan = TextPlan(method.plan, seed=settings.seed, parsed=parsed)
        if not settings.allow_no_negatives:
            require_negatives(method, source, plan)
        self.workers = reading_processes(settings, method, len(source))
        return BatchLoader(
            source,
            plan,
            transform,
            batch_size=method.optim.batch_size,
            seed=settings.seed,
            workers=self.workers,
            max_bad=settings.max_bad,
            rank=ranks.rank,
            world=ranks.world,
            images=method.images,
            companions=self._companions(),
            kept=frozen_features(model, method, source, transform, settings, ranks),
        )

    def _companions(self) -> Companions:
        """The neighbour index that the images of the method need, by the model as it is now."""
        encoder, settings = self.model.encoder, self.settings

        def encode(pixels: torch.Tensor) -> torch.Tensor:
            return encoder.encode_images(pixels.to(settings.device)).pooled

        encoder.to(settings.device).eval()
        with self.ranks.rank0_first():  # the others read what rank 0 has written
            kept = settings.resume or not self.ranks.first
            return self.method.images.prepare(
                self.source, encode, self.model.preprocess, settings.out, kept
            )

    def _announce(self, loader: BatchLoader) -> int:
        """Say what will be done. Returns the steps of the whole run."""
        method, source, settings = self.method, self.source, self.settings
        total = total_steps(method.optim, loader, settings.max_steps)
        counts = ", ".join(f"{n} x {reason}" for reason, n in self._left_out.items())
        note(
            f"{method.name}: {counted(len(source), 'sample')}"
            f"{f' (left out: {counts})' if counts else ''}, "
            f"{counted(total, 'step')} of {method.optim.batch_size} images"
        )
        readers = counted(self.workers, "worker") if self.workers else "this process"
        place = f"{settings.device} in {settings.precision}"
        note(f"  trains on {place}; images are read by {readers}")
        if self.ranks.first:
            for line in notes(method, source, total, settings.mask_duplicates):
                note(line)
        for word, count in self.still.items():
            note(f"  frozen: {word}, {counted(count, 'parameter')}")
        return total

    @property
    def _left_out(self) -> dict[str, int]:
        return {reason: n for reason, n in self.source.left_out.items() if n}

    # --- Train. ---

    def _train(
        self, loader: BatchLoader, heads: Mapping[str, torch.nn.Module], begun: Fingerprint | None
    ) -> tuple[Progress, Lora | None, dict[str, Any]]:
        """Train the model on its device; where that ended, its adapters, and its origin."""
        model, method, settings = self.model, self.method, self.settings
        lora = attach_adapters(model, method, settings.seed)
        if method.trains.matrix == "after":
            attach_text_map(model.encoder.model)
        scale = model.encoder.logit_scale
        own_scale = scale.detach().clone()
        if method.trains.start_scale:
            scale.data.fill_(math.log(method.trains.start_scale))
        torch.manual_seed(settings.seed)  # for dropout; order, crops and rewrites draw their own
        texts = None
        if settings.cache_frozen and method.trains.matrix:
            texts = FrozenTexts(model.tokenizer)
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

        # What the checkpoint will say about its origin is what trackers show beside the curves.
        known = self._origin()
        first, watch = self.ranks.first, self.watch
        track = tuple(dict.fromkeys(settings.track)) if first else ()
        with (
            Trackers(track, settings.out, known, ProgressLines(method.name)) as report,
            _repeatable(
                settings.out, self.config if first else "", None if self.started else begun
            ),
        ):
            progress = TrainingLoop(
                encoder, model.tokenizer, method, loader, settings, report, self.ranks, texts, watch
            ).run()
        encoder.teacher = None  # the run's, not the model's, as heads are
        encoder.heads.clear()
        if method.trains.start_scale:
            scale.data.copy_(own_scale)
        if texts is not None:
            note(
                f"{texts.asked - texts.found} of {counted(texts.asked, 'text')} encoded, the "
                f"others remembered ({texts.bytes / 1e6:.0f} MB)"
            )
        if settings.fsdp:
            collected = {name: tensor.cpu() for name, tensor in full_state(encoder.model)}
            model.encoder.model.load_state_dict(collected)
        return progress, lora, known

    def _origin(self) -> dict[str, Any]:
        soup = self.model.provenance.get("soup")
        return {
            "method": self.method.name,
            "settings": dict(self.method.settings),
            **self.method.record(),
            "optim": asdict(self.method.optim),
            "data": self.source.describe(),
            "orientation": self.source.orientation,
            **self.settings.recorded(),
            **({} if soup is None else {"init_from": soup}),
            **({"watch": self.watch.about} if self.watch is not None else {}),
            "torch": torch.__version__,
        }

    # --- Finish. ---

    def _finish(
        self,
        progress: Progress,
        lora: Lora | None,
        known: dict[str, Any],
        loader: BatchLoader,
        total: int,
    ) -> RunSummary:
        """Write the result, unless the run stopped early, or hardly ever took a step."""
        watch, model, ranks = self.watch, self.model, self.ranks
        ended_early = progress.step < total and watch is not None and watch.over()
        finished = progress.step >= total or ended_early
        if finished and 2 * progress.skipped_steps >= progress.step:
            raise CompoclipError(
                f"the loss or gradient was not finite in {progress.skipped_steps} of "
                f"{counted(progress.step, 'step')}, which were skipped: the model has not been "
                "trained and is not written; lower --lr"
            )
        whole = self.settings.merge or lora is None
        summary = RunSummary(
            model=(self.checkpoint if whole else self.adapter) if finished else None,
            method=self.method.name,
            steps=progress.step,
            total_steps=total,
            images=progress.images,
            texts=progress.texts,
            skipped=progress.skipped,
            truncated=progress.truncated,
            seconds=round(progress.seconds, 1),
            left_out=self._left_out,
            cut=self.cut,
            rewrites=progress.rewrites["rewrites"],
            adapter=self.adapter if finished and lora else None,
            skipped_steps=progress.skipped_steps,
            frozen=self.still,
            best=watch.told() if watch is not None and finished else None,
            ended_early=ended_early,
            drawn=loader.drawn(progress.step),
        )
        provenance = {**known, "run": asdict(replace(summary, model=None, adapter=None))}
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
            if writes and whole:
                describe = lora.describe() if lora else None
                save_model(model, self.checkpoint, provenance=provenance, adapter=describe)
        if watch is not None and writes:
            watch.clear()
        if writes and whole:  # nothing can resume it (adapters alone may still be merged)
            remove_states(self.states)
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
    """The number of processes that read data, for this process, one of several under torchrun.

    A core reads, crops and rewrites for some 250 images a second. That keeps all cores busy where a
    GPU trains; on a CPU training itself takes a hundred times as long, on the same cores. For a few
    seconds of reading no process is started.
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


def _frozen_parameters(model: LoadedModel, freeze: Sequence[str]) -> dict[str, int]:
    """How many parameters each word of --freeze holds still."""
    network = model.encoder.model
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters()}
    found = frozen_by(network, freeze)
    return {word: sum(sizes.get(name, 0) for name in names) for word, names in found.items()}
