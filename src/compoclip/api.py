"""compoclip from Python: load, score, rewrite, train, evaluate.

The options of the verbs are dataclasses, `TrainOptions` and `EvaluateOptions`; what they do is in
`compoclip.programs.run`, which the command line calls as well.

    import compoclip

    model = compoclip.load("bundled")
    model.score(["photo.png"], ["a red star", "a blue star"])
    compoclip.rewrite("a red star above a blue mug")
    tuned = compoclip.train(model, "fsc-clip", "train.jsonl", out="run", epochs=2)
    results = compoclip.evaluate({"base": model, "tuned": tuned}, on=["sugarcrepe"], data="data")
    compoclip.report("results", out="report.html")

Mistakes raise `CompoclipError` (or `UsageError`, one of them) with a line that says what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from compoclip.config import options_of, require, require_texts, typed
from compoclip.errors import UsageError, typed_repr
from compoclip.methods.registry import method_summaries
from compoclip.notebook import ShownList, ShownPath
from compoclip.plugins import fence
from compoclip.programs import run
from compoclip.programs.request import TrainRequest
from compoclip.programs.run import EvaluateOptions, TrainOptions, named_models
from compoclip.ranks import device_named
from compoclip.rewrites.base import rewrites_named
from compoclip.rewrites.records import Settings, records, text_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from compoclip.evaluation.comparison import Comparison
    from compoclip.evaluation.results import Results
    from compoclip.methods.base import Method
    from compoclip.models.checkpoint import LoadedModel
    from compoclip.models.config import ModelIdentity
    from compoclip.programs.tune import Tuned
    from compoclip.search import Found, PhotoIndex

    Features = NDArray[np.float32]
    Images = Image | str | Path | Sequence[Image | str | Path]

_BATCH = 64  # images or texts at once
_UNSET = TrainOptions(data="", out=Path())


@dataclass(frozen=True)
class Model:
    """A loaded model: encodes, scores, evaluates and trains.

    Args:
        loaded: Its parts: `encoder` (a torch module), `tokenizer`, `preprocess`, `identity`,
            `provenance`.
    """

    loaded: LoadedModel

    def __post_init__(self) -> None:
        if isinstance(self.loaded, str | Path):
            raise UsageError(f"a model is loaded by compoclip.load({str(self.loaded)!r})")

    def __repr__(self) -> str:
        loaded = self.loaded
        millions = sum(parameter.numel() for parameter in loaded.encoder.model.parameters()) / 1e6
        width, side = loaded.config.model_cfg["embed_dim"], loaded.identity.image_size[0]
        return (
            f"Model('{loaded.name}': {loaded.identity.architecture}, {millions:.1f} M parameters, "
            f"{width} dimensions, images of {side} pixels, {loaded.identity.context_length} tokens,"
            f" on {loaded.encoder.device})"
        )

    @property
    def identity(self) -> ModelIdentity:
        """Return everything its features depend on: architecture, tokenizer, weights, ..."""
        from compoclip.models.checkpoint import current_identity

        return current_identity(self.loaded)

    def encode_images(self, images: Images) -> Features:
        """Encode files or PIL images; return (N, D) float32 features of unit length.

        One image counts as a list of one, a folder as all images below it, by name.

        Raises CompoclipError for a missing or damaged file, UsageError for another object.
        """
        from PIL.Image import Image

        from compoclip.data.folders import image_files
        from compoclip.evaluation.encoder import ModelEncoder

        encoder = ModelEncoder(self.loaded)
        several: Any = [images] if isinstance(images, str | Path | Image) else images
        if isinstance(images, str | Path) and Path(images).is_dir():
            several = [Path(images, name) for name in image_files(Path(images), Counter())]

        def encode(part: Sequence[Image | str | Path]) -> Features:
            return encoder.encode_images([encoder.read_image.pixels(_pixels(i)) for i in part])

        with encoder.evaluating():
            kinds = (str, Path, Image)
            return _by_batch("images", several, kinds, "a path or a PIL image", encode)

    def encode_texts(self, captions: str | Sequence[str]) -> Features:
        """Encode captions, cut at the model's context; return (M, D) float32 unit vectors.

        One caption counts as a list of one. Raises UsageError for an object that is not a string.
        """
        from compoclip.evaluation.encoder import ModelEncoder

        encode = ModelEncoder(self.loaded).encode_texts
        several = [captions] if isinstance(captions, str) else captions
        return _by_batch("captions", several, (str,), "a text", encode)

    encode_image = encode_images
    encode_text = encode_texts

    def score(self, images: Images, captions: str | Sequence[str]) -> Features:
        """Return the (N, M) float32 cosines of N images and M captions.

        Takes and raises what `encode_images` and `encode_texts` do.
        """
        scores: Features = self.encode_images(images) @ self.encode_texts(captions).T
        return scores

    similarity = score

    def evaluate(
        self,
        on: EvaluateOptions | str | Path | Sequence[str | Path],
        name: str | None = None,
        **settings: Any,
    ) -> ShownList[Results]:
        """Measure this model on benchmarks, as `compoclip evaluate` does.

        Returns one result per benchmark, also written to the folder `out`. Raises UsageError for
        options that name a model, which is loaded already, and every error of `evaluate`.

        Args:
            on: Benchmarks, or options without `models`, `activation` and `device`.
            name: Name of the model in the results (default: the name it was loaded by).
            settings: Fields of `EvaluateOptions`.
        """
        options = _measuring(on, settings)
        require("name", name, str | None)
        if options.models or options.activation:
            raise UsageError("this evaluates the loaded model: leave models and activation out")
        label = name or next(iter(named_models((self.loaded.name,))))
        return _table(run.evaluate(options, {label: self.loaded}))

    def train(self, method: str | Method, options: TrainOptions, **parameters: Any) -> Model:
        """Train a copy of this model, which stays as it is, and return it; see `compoclip.train`.

        Leave out the options `model`, `activation`, `from_scratch` and `image_weights`: this model
        is loaded already.
        """
        require("options", options, TrainOptions)
        return _train(method, {**vars(options), **parameters}, self)

    def save(self, folder: str | Path) -> None:
        """Write the model as a new checkpoint folder.

        Raises CompoclipError when it exists or cannot be written.
        """
        from compoclip.models.checkpoint import save_model

        require("folder", folder, str | Path)
        save_model(self.loaded, Path(folder))


def load(
    spec: str | Path = "bundled",
    *,
    activation: Literal["gelu", "quick_gelu"] | None = None,
    device: str = "cpu",
) -> Model:
    """Load a model by its name, as on the command line.

    Args:
        spec: "bundled", a checkpoint folder, ARCHITECTURE:TAG, ARCHITECTURE@FILE or hf-hub:ID.
        activation: Activation of weights that do not record theirs.
        device: cpu, cuda, cuda:N, mps or auto.

    Returns:
        The model, in evaluation mode on that device.

    Raises:
        UsageError: For an unknown name.
        CompoclipError: For missing or damaged files.
    """
    from compoclip.models.checkpoint import load_model

    require("spec", spec, str | Path)
    require("device", device, str)
    return Model(load_model(spec, activation=activation, device=device_named(device)))


def train(
    model: str | Path | Model | Method,
    method: str | Method | TrainOptions,
    data: str | Path | None = None,
    *,
    out: str | Path | None = None,
    **settings: Any,
) -> Model:
    """Train a model with a method on data, as `compoclip train METHOD` does.

    `train(METHOD, OPTIONS, ...)` takes the settings of the run as `TrainOptions`.

    Args:
        model: A loaded model, which is not changed, or a model's name ("bundled", a folder, ...).
        method: A method's name ("fsc-clip"), the file of a custom one ("my_method.py"), or a
            `Method`, made by a recipe or from `compoclip.methods` and `compoclip.losses`.
        data: Image-text data, as `compoclip train --data` reads it.
        out: The run folder; the checkpoint goes to `out`/model.
        settings: Any field of `TrainOptions`, any setting of the optimiser (`lr`, `epochs`,
            `batch_size`, ...) and, with a method's name, its parameters as
            `compoclip train METHOD --help` lists them, with _ for -.

    Returns:
        The trained model; if the run stops early, the model at that step.

    Raises:
        UsageError: For unknown settings, or values of another type.
        CompoclipError: For every error of `compoclip train`.
    """
    from compoclip.methods.base import Method

    if isinstance(method, TrainOptions):
        if data is not None or out is not None:
            raise UsageError("data and out are among the TrainOptions: leave them out here")
        require("method", model, str | Method)
        return _train(cast("str | Method", model), {**vars(method), **settings})
    require("model", model, str | Path | Model)
    require("method", method, str | Method | TrainOptions)
    if data is None or out is None:
        raise UsageError("name the data and the run folder: train(model, method, data, out=...)")
    values = {"data": data, "out": out, **settings}
    if isinstance(model, Model):
        return _train(method, values, model)
    return _train(method, {**values, "model": model})


def evaluate(models: Any, on: Any = None, **settings: Any) -> ShownList[Results]:
    """Measure models on benchmarks, as `compoclip evaluate` does.

    `evaluate(OPTIONS, MODELS)` takes the settings as `EvaluateOptions`.

    Args:
        models: A model, or name in the results -> model: a loaded one, an embedder or scorer of
            your own, or the name to load one by. By default those in the options.
        on: A benchmark or several, as `compoclip evaluate --on` names them.
        settings: Fields of `EvaluateOptions`, such as `data`, `images`, `out`.

    Returns:
        All results, by model and then by benchmark, shown as a table; also written to `out`.

    Raises:
        UsageError: For options of another type, and without a model.
        CompoclipError: For every error of `compoclip evaluate`.
    """
    if isinstance(models, EvaluateOptions):
        options, targets = _measuring(models, settings), on
    else:
        options, targets = _measuring(on, settings), models
    from compoclip.evaluation.embedder import Embedder, Scorer

    if isinstance(targets, str | Path):
        targets = named_models((str(targets),))
    elif isinstance(targets, Model):
        targets = {next(iter(named_models((targets.loaded.name,)))): targets}
    elif isinstance(targets, Embedder | Scorer):
        targets = {type(targets).__name__: targets}
    named: Mapping[str, Any] = targets or named_models(options.models)
    if not named or (targets and options.models):
        raise UsageError("name the models, either in options.models or in models")

    for name, model in named.items():
        if not isinstance(model, Embedder | Scorer):
            require(f"models['{name}']", model, str | Path | Model)
    loaded = {
        n: m.loaded if isinstance(m, Model) else str(m) if isinstance(m, Path) else m
        for n, m in named.items()
    }
    return _table(run.evaluate(options, loaded))


@fence()
def compare(
    base: str | Path | Sequence[str | Path] | Sequence[Results],
    *others: str | Path | Sequence[Results],
    resamples: int = 2000,
    seed: int = 0,
) -> ShownList[Comparison]:
    """Compare models with a base, item by item, as `compoclip compare` does.

    Args:
        base: What `evaluate` returned or wrote (OUT/MODEL) for one model. What it returned for
            several, or a list of folders, is enough by itself: its first model is the base.
        others: The same of the models to compare with it.
        resamples: Bootstrap resamples for intervals.
        seed: Seed of the bootstrap.
    """
    from compoclip.evaluation.comparison import compare_all, one_model
    from compoclip.evaluation.grounded import ground_all
    from compoclip.evaluation.results import Results, by_model, load_results
    from compoclip.evaluation.statistics import Bootstrap
    from compoclip.evaluation.tables import comparison_table

    models: list[str | Path | Sequence[Results]] = [*others]
    if isinstance(base, str | Path):
        models = [base, *others]
    else:
        folders = [entry for entry in base if isinstance(entry, str | Path)]
        results = [entry for entry in base if isinstance(entry, Results)]
        if isinstance(base, Mapping) or len(folders) + len(results) < len(base):
            raise UsageError("compare takes folders or results, the base first: [BASE, OTHER]")
        measured = [results] if others and results else [*by_model(results).values()]
        models = [*folders, *measured, *others]
    if len(models) < 2:
        raise UsageError("name the base's results and at least one other: compare(BASE, OTHER)")
    first, *rest = (
        one_model(load_results(Path(entry)), Path(entry))
        if isinstance(entry, str | Path)
        else one_model(entry, Path("the results"))
        for entry in models
    )
    bootstrap = Bootstrap(resamples, seed)
    pairs = compare_all(first, rest, bootstrap)

    def text() -> str:
        measured = {results[0].model: results for results in (first, *rest)}
        gains = ground_all(measured, bootstrap=bootstrap).differences
        tables = (comparison_table(pair, len(pairs), gain=gains.get(pair.other)) for pair in pairs)
        return "\n\n".join(map(str, tables))

    return ShownList(pairs, text)


@fence()
def report(
    results: str | Path | Sequence[str | Path | Results],
    out: str | Path = "report.html",
    *,
    resamples: int = 2000,
    seed: int = 0,
    **settings: Any,
) -> Path:
    """Write an HTML report, as `compoclip report` does, and return its path.

    Args:
        results: What `evaluate` returned, or folders that it wrote (`out` or `out`/MODEL).
        out: The file.
        resamples: Bootstrap resamples for intervals.
        seed: Seed of the bootstrap.
        settings: Further arguments of `compoclip.report.write.write_report`.
    """
    from compoclip.evaluation.statistics import Bootstrap
    from compoclip.report.write import write_report

    several = (results,) if isinstance(results, str | Path) else results
    paths = [
        Path(result) if isinstance(result, str | Path) else Path(result.items).with_suffix(".json")
        for result in several
    ]
    settings["bootstrap"] = Bootstrap(resamples, seed)
    return ShownPath(write_report(paths, Path(out), **settings))


def tune(data: str | Path, out: str | Path = "tuned", **settings: Any) -> Tuned:
    """Fine-tune a model on captioned photos and judge it, as `compoclip tune` does.

    Args:
        data: Captioned photos.
        out: Folder for everything.
        settings: Fields of `compoclip.programs.tune.TuneOptions`, such as `images` and `model`.
    """
    from compoclip.programs.tune import TuneOptions
    from compoclip.programs.tune import tune as tune_options

    values = {"data": data, "out": out, **settings}
    return tune_options(TuneOptions(**typed(values, options_of(TuneOptions))))


@fence()
def index(
    photos: str | Path,
    model: str | Path | Model = "bundled",
    out: str | Path = "photos.index",
    *,
    images: str | Path | None = None,
    vectors: Literal["float32", "int8"] | None = None,
    to: Literal["file", "lancedb"] | None = None,
) -> PhotoIndex:
    """Encode photos once, for `search`, as `compoclip index` does.

    Args:
        photos: A folder of photos, or image-text data.
        model: A loaded model, or its name.
        out: The file to write; what is unchanged in it is not encoded again.
        images: Folder that image paths in the data are relative to.
        vectors: Numbers of the features; int8 take a quarter of the space of float32.
        to: Where they are stored: a file, or a table of LanceDB, which search reads from the disk.
    """
    from compoclip.data.places import require_there
    from compoclip.data.sources.open import Request
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.search import index_photos

    request = Request(str(photos), images=Path(images) if images else None)
    require_there(request.spec, request.images)
    loaded = model if isinstance(model, Model) else load(model)
    encoder, name = ModelEncoder(loaded.loaded), loaded.loaded.name
    return index_photos(request, encoder, Path(out), name, vectors=vectors, to=to)


@fence()
def search(
    index: str | Path | PhotoIndex,
    queries: str | Path | Sequence[str | Path],
    top: int = 10,
    *,
    model: str | Path | Model | None = None,
    negation: str | float = "subtract",
) -> ShownList[Found]:
    """Find the photos of an index nearest to texts or images, as `compoclip search` does.

    Args:
        index: The file that `index` wrote, or what it returned.
        queries: Texts; a `Path` is an image.
        top: Photos per query.
        model: The model that made the index, if it was moved.
        negation: What denied words do, as for --negation: "split", "subtract:0.25", "deo", "off".

    Returns:
        One answer per query. In a notebook they show the photos.
    """
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.search import read_index
    from compoclip.search import search as search_index
    from compoclip.search.page import FOUND_CSS, found_html, pictures_of

    path = Path(index) if isinstance(index, str | Path) else Path("the index")
    photos = read_index(path) if isinstance(index, str | Path) else index
    loaded = model if isinstance(model, Model) else load(model or photos.about["model"])
    encoder = ModelEncoder(loaded.loaded)
    photos.require(encoder, path)
    several = [queries] if isinstance(queries, str | Path) else list(queries)
    answers = search_index(photos, encoder, several, top, negation)

    def page() -> str:
        pictures = pictures_of(photos, answers)
        return f"<style>{FOUND_CSS}</style>{found_html(answers, pictures)}"

    return ShownList(answers, lambda: "\n\n".join(answer.text() for answer in answers), page)


def list_methods() -> dict[str, str]:
    """Return the names of all methods, each with its summary."""
    return dict(method_summaries())


def list_benchmarks() -> dict[str, str]:
    """Return the names of all benchmarks, each with its title."""
    from compoclip.benchmarks.names import benchmark_names
    from compoclip.benchmarks.registry import meta

    return {name: meta(name).title for name in benchmark_names()}


@fence()
def rewrite(
    caption: str | Sequence[str],
    rewrites: str | Sequence[str] = "all",
    *,
    seed: int = 0,
    epoch: int = 0,
    tagger: str = "hanta",
) -> ShownList[dict[str, Any]]:
    """Rewrite captions into hard negatives and hard positives.

    Args:
        caption: A text, or several; the place of a text is its id.
        rewrites: Names, in a list or joined by commas, or "all".
        seed: With `epoch` and the id, decides which of the possible texts is sampled.
        epoch: Another epoch samples another text.
        tagger: hanta, spacy or spacy:MODEL.

    Returns:
        A record for each caption and rewrite, with the fields of `compoclip rewrite --json`; the
        "text" of a refusal is None and its "reason" says why.

    Raises:
        UsageError: For unknown names, and values of another type.
    """
    captions = require_texts("caption", caption)
    names = rewrites_named(",".join(require_texts("rewrites", rewrites)))
    require("tagger", tagger, str)
    require("seed", seed, int)
    require("epoch", epoch, int)
    named = ((str(i), text) for i, text in enumerate(captions))
    rewritten = records(named, Settings(names, seed, epoch, tagger))
    by_caption = [rewritten[i : i + len(names)] for i in range(0, len(rewritten), len(names))]
    return ShownList(rewritten, lambda: "\n\n".join(map(text_of, by_caption)))


@fence()
def _train(method: str | Method, values: Mapping[str, Any], of_model: Model | None = None) -> Model:
    """Train a copy of the model, or what the options name, once the options are known to fit."""
    from compoclip.methods.base import Method

    require("method", method, str | Method)
    request = TrainRequest.of(method, values)
    for name in ("model", "activation", "from_scratch", "image_weights") if of_model else ():
        if getattr(request.options, name) != getattr(_UNSET, name):
            raise UsageError(f"this trains the loaded model: leave {name} out")
    composed = request.composed()
    copy, config = None, ""
    if of_model:  # the same model with weights of its own
        from compoclip.models.checkpoint import assemble, current_identity

        loaded = of_model.loaded
        state = loaded.encoder.model.state_dict()
        copy = replace(
            assemble(loaded.config, loaded.name, state=state, path=loaded.path),
            identity=current_identity(loaded),
            provenance=loaded.provenance,
        )
    elif isinstance(method, str):
        config = request.text(repeats=True)
    model, summary = run.train(request.options, composed, copy, config)
    run.push(request.options, summary)
    return load(summary.model) if summary.model else Model(model)


def _measuring(on: Any, settings: Mapping[str, Any]) -> EvaluateOptions:
    """Make options of the benchmarks that a notebook names, or of the types they state."""
    if on is None:
        raise UsageError("name what to measure: evaluate(model, on=['sugarcrepe'], ...)")
    if isinstance(on, EvaluateOptions) or not isinstance(on, str | Path | Iterable):
        require("options", on, EvaluateOptions)
        values = {**vars(on), **settings}
    else:
        targets = (on,) if isinstance(on, str | Path) else on
        values = {**settings, "on": tuple(map(str, targets))}
    return EvaluateOptions(**typed(values, options_of(EvaluateOptions)))


def _table(results: list[Results]) -> ShownList[Results]:
    from compoclip.evaluation.grounded import ground_all
    from compoclip.evaluation.results import by_model
    from compoclip.evaluation.tables import overview_table

    def text() -> str:
        if not results:
            return "[]"
        grounded = ground_all(by_model(results), bootstrap=results[0].bootstrap)
        return str(overview_table(results, results[0].model, grounded))

    return ShownList(results, text)


def _pixels(image: Image | str | Path) -> Image:
    from compoclip.data.decode import decode

    if isinstance(image, str) and image.lstrip()[:5].lower() == "data:":
        raise UsageError("images: a data URI is not a path; give the PIL image that it holds")
    return decode(Path(image) if isinstance(image, str) else image, upright=True)


def _by_batch(
    name: str,
    items: Any,
    kinds: tuple[type, ...],
    expected: str,
    encode: Callable[[Sequence[Any]], Features],
) -> Features:
    import numpy as np

    if not isinstance(items, Iterable):
        raise UsageError(f"{name}: {typed_repr(items)} is not a list, nor {expected}")
    listed = list(items)
    for place, item in enumerate(listed):
        if not isinstance(item, kinds):
            hint = "; PIL.Image.fromarray makes one of an array" if len(kinds) > 1 else ""
            raise UsageError(f"{name}[{place}]: {typed_repr(item)} is not {expected}{hint}")
    if not listed:
        raise UsageError("nothing to encode: the list is empty")
    parts = [encode(listed[i : i + _BATCH]) for i in range(0, len(listed), _BATCH)]
    return np.concatenate(parts)
