"""compoclip from Python: load, score, rewrite, train, evaluate.

The options of the verbs are dataclasses, `TrainOptions` and `EvaluateOptions`; what they do is in
`compoclip.run`, which the command line calls as well.

    import compoclip

    model = compoclip.load("bundled")
    model.score(["photo.png"], ["a red star", "a blue star"])
    compoclip.rewrite("a red star above a blue mug")
    tuned = compoclip.train(model, "fsc-clip", "train.jsonl", out="run", epochs=2)
    tuned.evaluate(compoclip.EvaluateOptions(on=("sugarcrepe",), data="data"))

Mistakes raise `CompoclipError` (or `UsageError`, one of them) with a line that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from compoclip import run
from compoclip.config import options_of, require
from compoclip.errors import UsageError, shown
from compoclip.own import fence
from compoclip.ranks import device_named
from compoclip.request import TrainRequest
from compoclip.rewrites.base import rewrites_named
from compoclip.rewrites.records import Settings, records
from compoclip.run import EvaluateOptions, TrainOptions, named_models
from compoclip.typed import convert

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from compoclip.evaluation.embedder import Embedder, Scorer
    from compoclip.evaluation.results import Results
    from compoclip.methods.base import Method
    from compoclip.models.checkpoint import LoadedModel
    from compoclip.models.config import ModelIdentity

    Features = NDArray[np.float32]

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

    def __repr__(self) -> str:
        architecture, device = self.loaded.identity.architecture, self.loaded.encoder.device
        return f"Model('{self.loaded.name}', {architecture}, {device})"

    @property
    def identity(self) -> ModelIdentity:
        """Return everything its features depend on: architecture, tokenizer, weights, ..."""
        from compoclip.models.checkpoint import current_identity

        return current_identity(self.loaded)

    def encode_images(self, images: Sequence[Image | str | Path]) -> Features:
        """Encode files or PIL images; return (N, D) float32 features of unit length.

        Raises CompoclipError for a missing or damaged file, UsageError for another object.
        """
        from PIL.Image import Image

        from compoclip.evaluation.encoder import ModelEncoder

        encoder = ModelEncoder(self.loaded)

        def encode(part: Sequence[Image | str | Path]) -> Features:
            return encoder.encode_images([encoder.read_image.pixels(_pixels(i)) for i in part])

        with encoder.evaluating():
            kinds = (str, Path, Image)
            return _by_batch("images", images, kinds, "a path or a PIL image", encode)

    def encode_texts(self, captions: Sequence[str]) -> Features:
        """Encode captions, cut at the model's context; return (M, D) float32 unit vectors.

        Raises UsageError for an object that is not a string.
        """
        from compoclip.evaluation.encoder import ModelEncoder

        encode = ModelEncoder(self.loaded).encode_texts
        return _by_batch("captions", captions, (str,), "a text", encode)

    def score(self, images: Sequence[Image | str | Path], captions: Sequence[str]) -> Features:
        """Return the (N, M) float32 cosines of N images and M captions.

        Takes and raises what `encode_images` and `encode_texts` do.
        """
        scores: Features = self.encode_images(images) @ self.encode_texts(captions).T
        return scores

    def evaluate(self, options: EvaluateOptions, name: str | None = None) -> list[Results]:
        """Measure this model on the benchmarks in `options.on`, as `compoclip evaluate` does.

        Returns one result per benchmark, also written to `options.out`. Raises UsageError for
        options that name a model, which is loaded already, and every error of `evaluate`.

        Args:
            options: Benchmarks and settings, without `models`, `activation` and `device`.
            name: Name of the model in the results (default: the name it was loaded by).
        """
        options = _tidy(options)
        require("name", name, str | None)
        if options.models or options.activation:
            raise UsageError("this evaluates the loaded model: leave models and activation out")
        label = name or next(iter(named_models((self.loaded.name,))))
        return run.evaluate(options, {label: self.loaded})

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
    spec: str | Path,
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


def evaluate(
    options: EvaluateOptions,
    models: Mapping[str, str | Path | Model | Embedder | Scorer] | None = None,
) -> list[Results]:
    """Measure models on the benchmarks in `options.on`, as `compoclip evaluate` does.

    Args:
        options: Benchmarks and settings.
        models: Name in the results -> a loaded model, an embedder or scorer of your own, or the
            name to load a model by; by default the models in `options.models`.

    Returns:
        All results, by model and then by benchmark; also written to `options.out`.

    Raises:
        UsageError: For options of another type, and without a model.
        CompoclipError: For every error of `compoclip evaluate`.
    """
    options = _tidy(options)
    named: Mapping[str, Any] = models or named_models(options.models)
    if not named or (models and options.models):
        raise UsageError("name the models, either in options.models or in models")
    from compoclip.evaluation.embedder import Embedder, Scorer

    for name, model in named.items():
        if not isinstance(model, Embedder | Scorer):
            require(f"models['{name}']", model, str | Path | Model)
    found = {
        n: m.loaded if isinstance(m, Model) else str(m) if isinstance(m, Path) else m
        for n, m in named.items()
    }
    return run.evaluate(options, found)


@fence()
def rewrite(
    caption: str,
    rewrites: str = "all",
    *,
    seed: int = 0,
    epoch: int = 0,
    tagger: str = "hanta",
) -> list[dict[str, Any]]:
    """Rewrite a caption into hard negatives and hard positives.

    Args:
        caption: The text.
        rewrites: Names joined by commas, or "all".
        seed: With `epoch`, decides which of the possible texts is sampled.
        epoch: Another epoch samples another text.
        tagger: hanta, spacy or spacy:MODEL.

    Returns:
        A record for each rewrite, as `compoclip rewrite --json` prints: "rewrite", "keeps_meaning"
        (hard positive or negative), "text" and "edits"; or "text" None and the "reason" of the
        refusal.

    Raises:
        UsageError: For unknown names, and values of another type.
    """
    for name, value in (("caption", caption), ("rewrites", rewrites), ("tagger", tagger)):
        require(name, value, str)
    require("seed", seed, int)
    require("epoch", epoch, int)
    return records([("0", caption)], Settings(rewrites_named(rewrites), seed, epoch, tagger))


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


def _tidy(options: EvaluateOptions) -> EvaluateOptions:
    """Return options of the types they state, where a notebook has a text for a path, say."""
    require("options", options, EvaluateOptions)
    given = {}
    for name, each in options_of(EvaluateOptions).items():
        given[name] = convert(getattr(options, name), each.kind)
        require(name, given[name], each.kind)
    return replace(options, **given)


def _pixels(image: Image | str | Path) -> Image:
    from compoclip.data.decode import decode

    if isinstance(image, str) and image.lstrip()[:5].lower() == "data:":
        raise UsageError("images: a data URI is not a path; give the PIL image that it holds")
    return decode(Path(image) if isinstance(image, str) else image, upright=True)


def _by_batch(
    name: str,
    items: Any,
    kinds: tuple[type, ...],
    wanted: str,
    encode: Callable[[Sequence[Any]], Features],
) -> Features:
    import numpy as np

    if isinstance(items, str | Path) or not isinstance(items, Iterable):
        raise UsageError(f"{name}: {shown(items)} is not a list; {name} are a list, also of one")
    listed = list(items)
    for place, each in enumerate(listed):
        if not isinstance(each, kinds):
            hint = "; PIL.Image.fromarray makes one of an array" if len(kinds) > 1 else ""
            raise UsageError(f"{name}[{place}]: {shown(each)} is not {wanted}{hint}")
    if not listed:
        raise UsageError("nothing to encode: the list is empty")
    parts = [encode(listed[i : i + _BATCH]) for i in range(0, len(listed), _BATCH)]
    return np.concatenate(parts)
