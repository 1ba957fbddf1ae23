"""compoclip from Python: load, score, rewrite, evaluate, train.

Thin wrappers over what the command line runs; its option classes are their parameters.

    import compoclip

    model = compoclip.load("bundled")
    model.score(["photo.png"], ["a red star", "a blue star"])
    compoclip.rewrite("a red star above a blue mug")
    model.evaluate(compoclip.EvaluateOptions(on=("sugarcrepe",), data=Path("data")))
    model.train("fsc-clip", compoclip.TrainOptions(data="train.jsonl", out=Path("run")), epochs=2)

Mistakes raise `CompoclipError` (or `UsageError`, one of them) with a line that says what to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from compoclip.cli.evaluate import EvaluateOptions, measure, named_models
from compoclip.cli.options import device_named
from compoclip.cli.train import TrainOptions, adapted, execute, push
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.registry import load_recipe
from compoclip.rewrites.base import rewrites_named
from compoclip.rewrites.records import Settings, records

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from compoclip.evaluation.results import Results
    from compoclip.methods.base import Method
    from compoclip.models.config import ModelIdentity
    from compoclip.models.loaded import LoadedModel

    Features = NDArray[np.float32]

__all__ = [
    "CompoclipError",
    "EvaluateOptions",
    "Model",
    "TrainOptions",
    "UsageError",
    "load",
    "rewrite",
]

_BATCH = 64  # images or texts at once
_Options = TypeVar("_Options", EvaluateOptions, TrainOptions)


@dataclass(frozen=True)
class Model:
    """A loaded model. loaded: its parts (encoder, tokenizer, preprocessing, identity)."""

    loaded: LoadedModel

    def __repr__(self) -> str:
        architecture, device = self.loaded.identity.architecture, self.loaded.encoder.device
        return f"Model('{self.loaded.name}', {architecture}, {device})"

    @property
    def identity(self) -> ModelIdentity:
        """All that its features depend on: architecture, activation, tokenizer, weights, ..."""
        from compoclip.models.loaded import current_identity

        return current_identity(self.loaded)

    def encode_images(self, images: Sequence[Image | str | Path]) -> Features:
        """(N, D) float32 features of unit length, by the model's own preprocessing.

        images: files or PIL images. Raises CompoclipError for a missing or damaged file.
        """
        from PIL.Image import Image

        from compoclip.evaluation.encoder import ModelEncoder

        if isinstance(images, str | Path):
            raise UsageError("images are a list, also of one: model.score([image], captions)")
        images = _list_of(images, "images", (str, Path, Image), "a path or a PIL image")
        show = self.loaded.preprocess.evaluation
        encode = ModelEncoder(self.loaded).encode_images
        return _by_batch(images, lambda batch: encode([show(_pixels(image)) for image in batch]))

    def encode_texts(self, captions: Sequence[str]) -> Features:
        """(M, D) float32 features of unit length. A caption beyond the context is cut."""
        from compoclip.evaluation.encoder import ModelEncoder

        if isinstance(captions, str):
            raise UsageError("captions are a list, also of one: model.score(images, [caption])")
        captions = _list_of(captions, "captions", (str,), "a text")
        return _by_batch(captions, ModelEncoder(self.loaded).encode_texts)

    def score(self, images: Sequence[Image | str | Path], captions: Sequence[str]) -> Features:
        """(N, M) cosines of every image with every caption.

        images: files or PIL images. Raises CompoclipError for a missing or damaged file, UsageError
        for what is neither, and for captions that are no texts.
        """
        scores: Features = self.encode_images(images) @ self.encode_texts(captions).T
        return scores

    def evaluate(self, options: EvaluateOptions, name: str | None = None) -> list[Results]:
        """Measure it on the benchmarks in `options.on`, as `compoclip evaluate` does.

        name: what it is called in the results (default: after what was loaded). Results lie in
        `options.out` too. `options.models`, `activation` and `device` are of other models and must
        be left out. Raises what `compoclip evaluate` reports.
        """
        options = _tidy(options, EvaluateOptions)
        _require("name", name, str | None)
        if options.models or options.activation:
            raise UsageError("this evaluates the loaded model: leave models and activation out")
        label = name or next(iter(named_models((self.loaded.name,))))
        return measure(options, {label: self.loaded}, lambda *_: None)

    def train(self, method: str, options: TrainOptions, **parameters: Any) -> Model:
        """The model that `compoclip train METHOD` makes of this one, which stays as it is.

        parameters: the method's own, as `compoclip train METHOD --help` lists them, with _ for -.
        `options.model`, `activation` and `from_scratch` are of other models and must be left out.
        The checkpoint lies in `options.out` too; a run that stops early returns the model as it is
        then. Raises UsageError for parameters that the method does not have, and what
        `compoclip train` reports.
        """
        from compoclip.methods.compose import compose

        options = _tidy(options, TrainOptions)
        _require("method", method, str)
        unset = TrainOptions(data="", out=Path())
        for name in ("model", "activation", "from_scratch", "image_weights"):
            if getattr(options, name) != getattr(unset, name):
                raise UsageError(f"this trains the loaded model: leave {name} out")
        recipe = _recipe(method, parameters)
        composed = compose(recipe, options.texts, options.terms, options.set)
        model = _copy(self.loaded)
        wanted = adapted(composed, options, "lr" in parameters)
        summary = execute(options, wanted, model)[1]
        push(options, summary)
        return load(summary.model) if summary.model else Model(model)

    def save(self, folder: str | Path) -> None:
        """Write it as a checkpoint folder, which must not be there."""
        from compoclip.models.checkpoint import save_model

        _require("folder", folder, str | Path)
        save_model(self.loaded, Path(folder))


def load(
    spec: str | Path,
    *,
    activation: Literal["gelu", "quick_gelu"] | None = None,
    device: str = "cpu",
) -> Model:
    """A model by what the command line calls it: "bundled", a folder, ARCHITECTURE:TAG, ...

    activation: your word on weights that do not record theirs. device: cpu, cuda, cuda:N, mps or
    auto. Raises UsageError for an unknown name, CompoclipError for missing or damaged files.
    """
    from compoclip.models.checkpoint import load_model

    _require("spec", spec, str | Path)
    _require("device", device, str)
    return Model(load_model(spec, activation=activation, device=device_named(device)))


def rewrite(
    caption: str,
    rewrites: str = "all",
    *,
    seed: int = 0,
    epoch: int = 0,
    tagger: str = "hanta",
) -> list[dict[str, Any]]:
    """What the rewrites make of a caption: a record each, as `compoclip rewrite --json` prints.

    A record has "rewrite", "keeps_meaning" (hard positive or negative), "text" and "edits", or
    "text" None and the "reason" of the refusal. rewrites: names joined by commas, or "all". seed
    and epoch decide which of the possible texts is drawn. Raises UsageError for unknown names.
    """
    for name, value in (("caption", caption), ("rewrites", rewrites), ("tagger", tagger)):
        _require(name, value, str)
    _require("seed", seed, int)
    _require("epoch", epoch, int)
    return records([("0", caption)], Settings(rewrites_named(rewrites), seed, epoch, tagger))


def _recipe(name: str, parameters: Mapping[str, Any]) -> Method:
    """The method with these parameters, those of its optimiser among them."""
    recipe = load_recipe(name)
    own = dict(inspect.signature(recipe).parameters)
    optim = own.pop("optim").default
    of_optim = {each.name for each in fields(optim)}
    odd = next((each for each in parameters if each not in {*own, *of_optim}), None)
    if odd is not None:
        known = ", ".join([*own, *sorted(of_optim)])
        raise UsageError(f"{name} has no parameter '{odd}'; it has: {known}")
    kinds = {**get_type_hints(type(optim)), **get_type_hints(recipe)}
    for each, value in parameters.items():
        _require(each, value, kinds[each])
    chosen = {each: value for each, value in parameters.items() if each in own}
    steps = {each: value for each, value in parameters.items() if each in of_optim}
    return recipe(**chosen, optim=replace(optim, **steps))


def _copy(loaded: LoadedModel) -> LoadedModel:
    """The same model with weights of its own."""
    from compoclip.models.loaded import assemble, current_identity

    state = loaded.encoder.model.state_dict()
    other = assemble(loaded.config, loaded.name, state=state, path=loaded.path)
    identity = current_identity(loaded)
    return replace(other, identity=identity, provenance=loaded.provenance)


def _tidy(options: _Options, kind: type[_Options]) -> _Options:
    """Options with the types they state, where a notebook has a text for a path, or the reverse.

    Raises UsageError for a value that is of another type.
    """
    _require("options", options, kind)
    changed: dict[str, Any] = {}
    for each in fields(options):
        value, stated = getattr(options, each.name), str(each.type)
        if isinstance(value, str) and stated.startswith(("Path", "Annotated[Path")):
            changed[each.name] = Path(value)
        elif isinstance(value, Path) and stated == "str":
            changed[each.name] = str(value)
        elif "tuple[str, ...]" in stated and isinstance(value, str | list):
            changed[each.name] = (value,) if isinstance(value, str) else tuple(value)
    tidy = replace(options, **changed)
    for name, expected in get_type_hints(kind).items():
        _require(name, getattr(tidy, name), expected)
    return tidy


def _require(name: str, value: object, kind: Any) -> None:
    """Raise UsageError unless an argument is of the type that it is annotated with."""
    if not _is_a(value, kind):
        raise UsageError(f"{name}: {_short(value)} is not {_spelled(kind)}")


def _is_a(value: object, kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _is_a(value, parts[0])
    if origin in (Union, UnionType):
        return any(_is_a(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_a(each, parts[0]) for each in value)
    if kind in (int, float):  # numpy's own too; True is no number here
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind)


_SPELLED = {str: "a text", Path: "a path", int: "a whole number", float: "a number"}


def _spelled(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _spelled(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(map(_spelled, parts))
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin is tuple:
        return f"a list, each of it {_spelled(parts[0])}"
    return _SPELLED.get(kind) or ("None" if kind is NoneType else str(kind.__name__))


def _short(value: object) -> str:
    return f"{repr(value)[:80]} ({type(value).__name__})"


def _list_of(items: Any, name: str, kinds: tuple[type, ...], wanted: str) -> Sequence[Any]:
    """`items` as a list. Raises UsageError naming the first that is of none of `kinds`."""
    if not isinstance(items, Iterable):
        raise UsageError(f"{name}: {_short(items)} is not a list")
    listed = list(items)
    for place, each in enumerate(listed):
        if not isinstance(each, kinds):
            hint = "; PIL.Image.fromarray makes one of an array" if len(kinds) > 1 else ""
            raise UsageError(f"{name}[{place}]: {_short(each)} is not {wanted}{hint}")
    return listed


def _pixels(image: Image | str | Path) -> Image:
    """An image as RGB. Raises CompoclipError for a file that is missing or damaged."""
    from compoclip.data.decode import decode, to_rgb

    if isinstance(image, str | Path):
        return decode(Path(image))
    try:
        return to_rgb(image)
    except Exception as error:  # Pillow reads a file that it has opened only now
        reason = " ".join(str(error).split()) or type(error).__name__
        name = getattr(image, "filename", "") or "image"
        raise CompoclipError(f"{name}: damaged image ({reason}); replace it") from error


def _by_batch(items: Sequence[Any], encode: Callable[[Sequence[Any]], Features]) -> Features:
    import numpy as np

    if not items:
        raise UsageError("nothing to encode: the list is empty")
    parts = [encode(items[i : i + _BATCH]) for i in range(0, len(items), _BATCH)]
    return np.concatenate(parts)
