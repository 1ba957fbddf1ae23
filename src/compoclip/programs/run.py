"""The program: train a model, measure models. The command line and `api` call this.

Options are dataclasses whose fields are the options of the verbs, documented here alone. Nothing
here prints results; notes on progress go to standard error. torch is imported when work begins.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from compoclip.config import (
    AtOnce,
    BenchmarkName,
    DataName,
    DeviceName,
    HubName,
    InputFile,
    InputFolder,
    ModelName,
    OutputFolder,
    PartName,
    Resamples,
    ScoreName,
    ScoringModel,
    Shown,
    Workers,
)
from compoclip.console import counted, note
from compoclip.data.options import DataOptions
from compoclip.errors import CompoclipError, RunInterruptedError, UsageError
from compoclip.evaluation.scores import require_score
from compoclip.files import file_stems, require_writable
from compoclip.models.names import (
    BUNDLED,
    BUNDLED_KNOWS,
    INSIDE,
    LOCAL,
    require_model,
    require_pushable,
)
from compoclip.plugins import fence, is_file, split
from compoclip.process import give_back
from compoclip.ranks import device_named, launched, process_group
from compoclip.training.settings import OptimOptions, RunSettings, WatchSettings
from compoclip.typed import Count, Natural

if TYPE_CHECKING:
    import torch

    from compoclip.benchmarks.case import Benchmark
    from compoclip.data.sources import Source
    from compoclip.evaluation.embedder import Embedder, Scorer
    from compoclip.evaluation.encoder import Encoder
    from compoclip.evaluation.results import Results
    from compoclip.evaluation.run import Options
    from compoclip.methods.base import Method
    from compoclip.models.checkpoint import LoadedModel
    from compoclip.training.run import RunSummary
    from compoclip.training.teacher import ExternalTeacher


def named_models(texts: Sequence[str]) -> dict[str, str]:
    """Name -> what to load, from "NAME=MODEL" or "MODEL".

    What a run leaves, RUN/model or RUN/adapter, is called RUN, and ./my_model.py my_model. Raises
    UsageError when two models have one name.
    """
    models: dict[str, str] = {}
    for text in texts:
        match = re.fullmatch(r"([\w.@+-]+)=(.+)", text)
        if match:
            name, spec = match[1], match[2]
        else:
            path = Path(text.removeprefix(LOCAL))
            folder_name = path.parent.name if path.name in INSIDE else path.name
            name, spec = (folder_name if path.is_dir() and folder_name else text), text
            if is_file(text):
                file, part = split(text)
                name = part or file.stem
        if name in models:
            raise UsageError(f"two models are called '{name}'; name them: NAME=MODEL")
        models[name] = spec
    return models


def load_models(texts: Sequence[str], device: str = "cpu") -> dict[str, LoadedModel]:
    """Load models; a line says which device "auto" has chosen, once the models are there.

    Args:
        texts: Models, each as `MODEL` or `NAME=MODEL`, which `named_models` reads.
        device: As --device names it.

    Returns:
        Name -> model.
    """
    named = named_models(texts)
    if not named:
        return {}
    from compoclip.models.checkpoint import load_model

    place = device_named(device)
    loaded = {name: load_model(spec, device=place) for name, spec in named.items()}
    if device == "auto":
        note(f"computes on {place}")
    return loaded


# --- Training. ---


@dataclass(frozen=True, kw_only=True)
class TrainingInputs(DataOptions):
    """Model and data.

    Args:
        data: Image-text data: COCO-Karpathy JSON, Flickr8k token file, NegCLIP TSV, CSV, TSV,
            JSONL, Parquet, webdataset shards, a folder of images with caption files, or
            hf:NAME/SPLIT (Hugging Face). Mix several with sampling weights: a.jsonl=0.7 b.tsv=0.3.
        model: Checkpoint folder, ARCHITECTURE:TAG (open_clip weights), ARCHITECTURE@FILE, hf-hub:ID
            or "bundled"; with --from-scratch an open_clip configuration file.
        init_from: Average the weights of these checkpoints (model soup) and start from the result.
            Replaces --model.
        from_scratch: Start from random weights. --model names the configuration.
        image_weights: Pretrained weights for the image tower, with --from-scratch.
        activation: Override the activation that a checkpoint records; also in the new checkpoint.
        teacher: The teacher for terms that compare with one (--terms +similarity), instead of a
            copy of the model. Any model with vectors, as for evaluate (st:ID, hf:ID,
            ./my_model.py, a checkpoint), of any width. It sees the pixels and texts of each step.
    """

    data: Annotated[DataName, Shown(place=True, words=True)]
    model: Annotated[
        ModelName, Shown(place=True, hint=f"(default: bundled, which {BUNDLED_KNOWS})")
    ] = BUNDLED
    init_from: Annotated[tuple[ModelName, ...], Shown(place=True)] = ()
    from_scratch: bool = False
    image_weights: InputFile | None = None
    activation: Literal["gelu", "quick_gelu"] | None = None
    teacher: Annotated[ScoringModel, Shown(place=True)] = ""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(WatchSettings, RunSettings, OptimOptions, TrainingInputs):
    """Model, data, and how the run is executed.

    Args:
        lora: Train low-rank adapters instead of all weights. The default --lr is then ten times the
            method's. OUT/adapter holds the adapters, and OUT/model holds the merged model.
        lora_rank: Rank of the adapters (default 4).
        lora_alpha: Numerator of the adapters' scaling, alpha / rank (default 1).
        lora_towers: Towers with adapters (default both). The other tower is frozen.
        lora_targets: linear (default) adapts attention and MLP weights; +conv adds the patch
            embedding, as in the released code of FSC-CLIP.
        lora_init: zero (default) starts exactly from the base; xavier_ab as in FSC-CLIP's code.
        texts: +NAME adds the texts of another method or rewrite ("+mosaic +synonym"), or of a
            rewrite in a file (+./my_rewrite.py). Names without + replace the method's texts.
        terms: +METHOD or +METHOD.TERM adds the loss terms of another method. +./my_loss.py adds the
            losses in a file.
        set: PATH=VALUE changes a part of the method: terms.local_hn.weight=0.5 or
            texts.hn_fraction=0.5. NAME=VALUE sets a key that --help-all lists: save_every=100.
        push_to_hub: After the last step, also upload the checkpoint to this repository of the
            Hugging Face hub, as `compoclip push OUT/model REPO` does (OUT/adapter with
            merge=false).
        json: Print the summary as JSON.
    """

    workers: Workers = "auto"
    device: DeviceName = "auto"
    lora: bool = False
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_towers: Literal["both", "image", "text"] | None = None
    lora_targets: Literal["linear", "+conv"] | None = None
    lora_init: Literal["zero", "xavier_ab"] | None = None
    texts: Annotated[tuple[PartName, ...], Shown(place=True)] = ()
    terms: Annotated[tuple[PartName, ...], Shown(place=True)] = ()
    set: tuple[PartName, ...] = ()
    push_to_hub: Annotated[HubName | None, Shown(once=True)] = None
    json: Annotated[bool, Shown(once=True)] = False

    @property
    def written(self) -> Path:
        """Return the folder of the result of a finished run."""
        return self.out / ("model" if self.merge else "adapter")

    def measuring(self, out: Path = Path("results")) -> EvaluateOptions:
        """Return how the run's model is measured on the benchmarks of `on`."""
        from compoclip.benchmarks.targets import file_of

        # Benchmarks made of files show the photos of the training data.
        more = "" if self.eval_images or not self.images else f",images={self.images}"
        return EvaluateOptions(
            on=tuple(f"{e}{more}" if file_of(e) and "images=" not in e else e for e in self.on),
            data=self.eval_data,
            images=self.eval_images,
            allow_partial=self.allow_partial,
            device=self.device,
            out=out,
        )


@fence()
def train(
    options: TrainOptions,
    method: Method,
    model: LoadedModel | None = None,
    config: str = "",
    inputs: tuple[Source, list[Benchmark]] | None = None,
) -> tuple[LoadedModel, RunSummary]:
    """Load model and data as the options say, and train.

    Under torchrun all ranks train together and return the same; only rank 0 writes.

    Args:
        options: Model, data and settings of the run.
        method: As `TrainRequest.composed` returns it.
        model: Instead of `options.model`; it is changed in place.
        config: The text of the run's configuration file, for its folder.
        inputs: From `open_inputs`; without it they are opened here.

    Returns:
        The trained model, and what the run took.

    Raises:
        CompoclipError: As `run_training` does.
    """
    if options.push_to_hub:
        require_pushable(options.push_to_hub)
    from compoclip.evaluation.run import watch_model
    from compoclip.training.run import run_training

    device = device_named(options.device)
    options = replace(options, device=str(device))
    with process_group(device) as ranks:
        with ranks.agreed():
            source, benchmarks = inputs or open_inputs(options)
            model = model or _start(options)
            teacher = _teacher(options, device) if options.teacher else None
        watch = watch_model(model, benchmarks, options, options.out, ranks) if benchmarks else None
        summary = run_training(model, method, source, options, ranks, config, watch, teacher)
        gc.collect()  # parts of the loop refer to one another, and its optimiser is large
        give_back()
        if ranks.first and summary.warning:
            note(f"  {summary.warning}")
        return model, summary


def open_inputs(options: TrainOptions) -> tuple[Source, list[Benchmark]]:
    """Open the training data and the benchmarks of --on; torch is not loaded for it."""
    from compoclip.data.sources.open import request_of
    from compoclip.data.usable import require_trainable

    benchmarks = options.measuring().benchmarks() if options.on else []
    source = request_of(options.data, options).open()
    require_trainable(source)
    return source, benchmarks


def _start(options: TrainOptions) -> LoadedModel:
    from compoclip.models.checkpoint import create_model, load_model
    from compoclip.models.config import read_config
    from compoclip.models.conversion import average

    if options.init_from:
        parts = (load_model(spec, activation=options.activation) for spec in options.init_from)
        return average(parts)
    if options.from_scratch:
        config = read_config(Path(options.model))
        return create_model(config, seed=options.seed, image_weights=options.image_weights)
    return load_model(options.model, activation=options.activation)


def _teacher(options: TrainOptions, device: torch.device) -> ExternalTeacher:
    """The model that --set teacher names, in the precision of the run as far as it has that."""
    from compoclip.evaluation.blind import TextOnlyEncoder
    from compoclip.evaluation.embedder import open_encoder
    from compoclip.evaluation.encoder import described
    from compoclip.evaluation.libraries import ModelOptions
    from compoclip.training.teacher import ExternalTeacher

    lower = options.precision in ("bf16", *(["auto"] if device.type == "cuda" else []))
    encoder = open_encoder(options.teacher, ModelOptions(device, "bf16" if lower else "fp32"))
    if isinstance(encoder, TextOnlyEncoder):
        raise UsageError(f"--teacher {options.teacher}: sees no image; name a model that does")
    return ExternalTeacher(encoder, {"model": options.teacher, **described(encoder)})


def push(options: TrainOptions, summary: RunSummary) -> None:
    """Upload the result of a finished run to the hub, with --push-to-hub.

    Raise CompoclipError when the hub cannot be reached or refuses. The checkpoint stays.
    """
    repository = options.push_to_hub
    if not repository or launched()[0]:
        return
    from compoclip.models.formats.hub import publish

    if summary.model is None:
        note(f"  not pushed to {repository}: the run is not finished")
    else:
        note(f"  {summary.model} -> {publish(summary.model, repository).url}")


# --- Measuring. ---


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How to measure, as for evaluate.

    Args:
        on: Benchmarks: NAME or NAME:PART (sugarcrepe:swap_*, retrieval:coco, zero_shot:dtd), with
            places and options as NAME,root=DIR,images=DIR,annotations=PATH,id=NAME; a folder with
            suite.json; a data root, for all its complete benchmarks; "all", for all of --data;
            a suite of the literature (comp, elevater, elevater_20, imagenet_shifts, retrieval_3);
            a file, ./my_benchmark.py; or retrieval:captions.csv and rewrites:captions.csv, made of
            captions that are read as train reads them (split=, image_column=, caption_column=).
        data: Data root in the default layout.
        images: Folder with the photos, if it is not in the data root.
        batch_size: Images or texts encoded at once [default: 64; on a GPU 512 images, 1,024 texts].
            Changes scores by rounding (1e-6) only.
        workers: Threads that read images [default: 2; for a GPU one per core].
        device: cpu, cuda, cuda:N or mps; auto uses a GPU if there is one.
        allow_partial: Evaluate the available items if some are missing; results are marked partial.
        max_bad: Largest number of damaged images to leave out.
        fresh: Measure again instead of reusing existing results.
        resamples: Bootstrap resamples for intervals.
        seed: Seed of the bootstrap.
    """

    on: Annotated[
        tuple[BenchmarkName, ...], Shown("BENCHMARK ...", hint="(required to measure)")
    ] = ()
    data: Path = Path("data")
    images: InputFolder | None = None
    batch_size: Count | None = None
    workers: AtOnce | None = None
    device: DeviceName = "auto"
    allow_partial: bool = False
    max_bad: Natural = 0
    fresh: bool = False
    resamples: Resamples = 2000
    seed: int = 0

    def benchmarks(self, only: Collection[str] = ()) -> list[Benchmark]:
        """Load the benchmarks of `on`, and check everything that needs no model.

        only: the names to load; all by default. Raise UsageError for wrong options and names,
        CompoclipError for missing data.
        """
        if not self.on:
            raise UsageError("name what to measure on: --on BENCHMARK ...")
        from compoclip.benchmarks.registry import require_present
        from compoclip.benchmarks.targets import parse_targets

        targets = parse_targets(self.on, self.data, self.images)
        benchmarks = [target.load() for target in targets if not only or target.id in only]
        for benchmark in benchmarks:
            require_present(benchmark, self.allow_partial)
        return benchmarks

    def settings(
        self, cache: Path | None, precision: str = "fp32", **more: Any
    ) -> tuple[Options, torch.device]:
        """Return the settings of `evaluation.run.evaluate` and the device, and log both.

        cache: folder of cached features. precision: for the log line. more: further settings.
        """
        from compoclip.evaluation.run import Options

        names = {field.name for field in fields(Measuring)}
        names &= {field.name for field in fields(Options)}
        settings = Options(cache=cache, **{name: getattr(self, name) for name in names}, **more)
        device = device_named(self.device)
        if not launched()[0]:
            readers = counted(settings.readers(device), "thread")
            note(f"measures on {device} in {precision}; images are read by {readers}")
        return settings, device


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Measuring):
    """Measure models on benchmarks; results go to OUT/MODEL/BENCHMARK.json and .parquet.

    Every distinct image and text is encoded once for all benchmarks. An interrupted run resumes;
    existing results for the same weights, data and protocol are reused. torchrun shares the
    encoding among processes. One table has the headlines of all models, with the first as the
    base; --details adds the sub-tasks of each model.

    Examples:
        compoclip evaluate bundled --on sugarcrepe --data /data
        compoclip evaluate base=ViT-B-32-quickgelu:openai tuned=runs/fsc/model --on suite/
        compoclip evaluate bundled --on sugarcrepe,annotations=/a/sugarcrepe,images=/coco/val2017
        compoclip evaluate bundled --on all --data /data
        compoclip evaluate hf:Qwen/Qwen2.5-VL-3B-Instruct --score vqa --on sugarcrepe --data /data
        torchrun --nproc-per-node 2 -m compoclip evaluate bundled --on all --device cuda

    Args:
        models: Checkpoint folder, ARCHITECTURE:TAG (open_clip weights), ARCHITECTURE@FILE,
            hf-hub:ID or "bundled"; ./my_model.py, a file of yours; st:ID, hf:ID or mteb:ID, a model
            of sentence-transformers, transformers or mteb, with @REVISION or without;
            blind:CAPTIONS, a model that knows the captions of training data and sees no image;
            NAME=MODEL gives it a name in the results.
        out: Folder for the results.
        score: How an image and a text are compared. cosine compares features. The other scores need
            every pair, so they work only with benchmarks of items: itm (the matching head of BLIP),
            local or maxsim (tokens against patches), parts (units of the caption against windows of
            the image), vqa (log-odds of Yes, by a language model hf:ID), or a file, ./my_score.py
            [default: cosine, or the score of a model that only scores pairs].
        precision: bf16 runs the towers under autocast and loads st: and hf: models in bf16. It is
            for GPUs. Cosines change by 1e-3, so features and results are stored apart from fp32.
        dimensions: Cut features to their first N dimensions, for a model trained with matryoshka.
            The results record this in the identity of the model.
        judge: Model that answers questions about the retrieved photos, for benchmarks that need it
            (simpleneg): hf:ID, or a file whose scores are above 0 for yes.
        text_prompt: For st: and hf: models: a prefix of each text, or the instruction of a chat
            model. With --score vqa it is the question, in which {} stands for the text [default:
            the model's own].
        image_prompt: For st: and hf: models: the instruction for images [default: the model's own].
        trust_remote_code: Run the code that comes with the weights of st: and hf: models.
        activation: Override the activation that a checkpoint records.
        exclude_faulty: Leave out items that data audit finds faulty. Results are marked partial and
            name the faults.
        cache: Folder of cached features [default: OUT/.features].
        details: Also print a table per model and benchmark, with the sub-tasks.
        json: Print the results as JSON.
    """

    models: Annotated[
        tuple[ScoringModel, ...], Shown("MODEL ...", positional=True, hint="(required)")
    ] = ()
    out: OutputFolder = Path("results")
    score: Annotated[ScoreName, Shown(place=True)] = ""
    precision: Literal["fp32", "bf16"] = "fp32"
    dimensions: Count | None = None
    judge: Annotated[ScoringModel, Shown(place=True)] = ""
    text_prompt: str | None = None
    image_prompt: str | None = None
    trust_remote_code: bool = False
    activation: Literal["gelu", "quick_gelu"] | None = None
    exclude_faulty: bool = False
    cache: OutputFolder | None = None
    details: bool = False
    json: bool = False


@fence()
def evaluate(
    options: EvaluateOptions,
    models: Mapping[str, str | LoadedModel | Embedder | Scorer],
    processes: bool = False,
    failed: Callable[[str, CompoclipError], None] | None = None,
) -> list[Results]:
    """Load the benchmarks, then measure one model after the other.

    Under torchrun all ranks encode; only rank 0 has results, by model, then by benchmark.

    Args:
        options: Benchmarks and settings; `options.models` is ignored.
        models: Name -> a model to load, a loaded model (which stays on its device), or an embedder
            or scorer.
        processes: Allow reading processes if many images are read for a GPU; they import the main
            module again.
        failed: Called with the name of a model that fails, and the error; then the next model is
            measured. Without it, and under torchrun, the error is raised.
    """
    if not options.on:
        raise UsageError("name a benchmark with --on; compoclip list benchmarks shows all")
    require_writable(options.out)
    file_stems(models)
    require_score(options.score)
    for model in models.values():
        if isinstance(model, str):
            require_model(model, external=True)
    benchmarks = options.benchmarks()
    from compoclip.benchmarks.audit import audit
    from compoclip.evaluation.embedder import ExternalEncoder, open_encoder
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.evaluation.libraries import YES_OR_NO, ModelOptions
    from compoclip.evaluation.run import evaluate as evaluate_one
    from compoclip.models.checkpoint import LoadedModel

    settings, device = options.settings(
        options.cache or options.out / ".features",
        options.precision,
        score=options.score,
        dimensions=options.dimensions or 0,
        processes=processes,
    )
    audits = (
        {benchmark.name: audit(benchmark) for benchmark in benchmarks}
        if options.exclude_faulty
        else {}
    )
    everything: list[Results] = []
    with process_group(device) as ranks:
        settings = replace(settings, audits=audits, ranks=ranks)
        loading = ModelOptions(
            device,
            options.precision,
            options.text_prompt,
            options.image_prompt,
            options.trust_remote_code,
            options.score,
        )
        if options.judge:
            asking = replace(loading, text_prompt=YES_OR_NO, image_prompt=None, score="vqa")
            settings = replace(settings, judge=open_encoder(options.judge, asking))

        for name, model in models.items():
            encoder: Encoder
            try:
                if isinstance(model, str):
                    encoder = open_encoder(model, loading, options.activation)
                elif isinstance(model, LoadedModel):
                    encoder = ModelEncoder(model, options.precision)
                else:
                    encoder = ExternalEncoder(name, model, device, options.precision)
                give_back()  # of reading the weights; activations take other sizes
                everything += evaluate_one(name, encoder, benchmarks, options.out, settings)
            except CompoclipError as error:
                if failed is None or ranks.world > 1 or isinstance(error, RunInterruptedError):
                    raise
                failed(name, error)
    return everything
