"""Any model: what evaluation asks of one, and the encoder over a model that is not compoclip's.

A model is an `Embedder`, a `Scorer`, or both. It comes from a local file, from another package
(entry points `compoclip.models`) or from a library (`evaluation.libraries`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import groupby
from typing import Any, Protocol, get_type_hints, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from compoclip import plugins
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.blind import TextOnlyEncoder
from compoclip.evaluation.encoder import (
    ImageReader,
    ModelEncoder,
    Pending,
    Precision,
    TextKey,
    full_float32,
    require_finite,
)
from compoclip.evaluation.items import Scores, unit_length
from compoclip.evaluation.libraries import DTYPES, LIBRARIES, ModelOptions
from compoclip.evaluation.scores import COSINE
from compoclip.files import bytes_hash
from compoclip.models.checkpoint import load_model
from compoclip.models.config import Tower
from compoclip.models.names import BLIND, is_external, library_and_id
from compoclip.models.weights import weights_hash

_REMEDY = "correct the model; where memory is short, lower --batch-size"
_DEPTH = 3  # how far below a model its torch modules are looked for


@runtime_checkable
class Embedder(Protocol):
    """A model that maps images and texts to vectors of one width.

    Arrays and tensors of any length will do; they are scaled to unit length. Optional attributes,
    part of the identity: `revision` (of the weights), `prompt` (a text, or kind of input -> text).
    Optional, for a teacher in training: `scale`, by which cosines become logits. Optional method:
    `truncated(texts)`, which of them lose words to the context length.
    """

    def images(self, images: Sequence[Image.Image]) -> Any:
        """Return (N, D) of N RGB images."""

    def texts(self, texts: Sequence[str]) -> Any:
        """Return (N, D) of N texts."""


@runtime_checkable
class Scorer(Protocol):
    """A model that scores given pairs: a reranker, a matching head, a VQA model.

    It scores only the pairs of a benchmark's items. Optional attributes: as `Embedder`.
    """

    def score(self, image: Image.Image, texts: Sequence[str]) -> Any:
        """Return (T,): how well each of T texts fits an RGB image, higher is better."""


@dataclass(frozen=True)
class ExternalIdentity:
    """Everything that the features or scores of a model from outside depend on.

    architecture: where it comes from, as the user names it, without folders. revision: of the
    weights, as the library or the model states it. prompt: kind of input -> its prompt, "" for all.
    dtype: of the parameters, "" without any. files: local source file -> hash. libraries: library
    -> version. weights: hash of all of this and of the parameters of every torch module.
    """

    architecture: str
    revision: str = ""
    prompt: Mapping[str, str] = field(default_factory=dict)
    dtype: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    weights: str = ""

    @classmethod
    def of(cls, name: str, model: object) -> ExternalIdentity:
        """Describe a model by its attributes, its source files and its torch modules."""
        modules = list(_modules(model, _DEPTH))
        tensors = [tensor for module in modules for tensor in module.state_dict().values()]
        prompt = getattr(model, "prompt", None) or {}
        facts: dict[str, Any] = {
            "architecture": name,
            "revision": str(getattr(model, "revision", None) or ""),
            "prompt": prompt if isinstance(prompt, Mapping) else {"": str(prompt)},
            "dtype": next((str(t.dtype)[6:] for t in tensors if t.is_floating_point()), ""),
            "files": plugins.named_sources(plugins.sources_of(type(model))),
            "libraries": {library: version(library) for library in getattr(model, "libraries", ())},
        }
        hashes = [weights_hash(module.state_dict()) for module in modules]
        digest = bytes_hash(json.dumps([facts, hashes], sort_keys=True).encode())
        return cls(**facts, weights=digest)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return asdict(self)


def _modules(thing: object, depth: int) -> Iterator[nn.Module]:
    """The torch modules in an object's attributes; not those in other modules."""
    if isinstance(thing, nn.Module):
        yield thing
    elif depth:
        for attribute in getattr(thing, "__dict__", {}).values():
            yield from _modules(attribute, depth - 1)


def by_image(
    score: Callable[[Any, list[str]], Scores], images: Sequence[Any], texts: Sequence[str]
) -> Scores:
    """Score N pairs with a function of one image and T texts -> (T,); equal images lie together."""
    runs = [list(run) for _, run in groupby(range(len(images)), key=lambda k: id(images[k]))]
    return np.concatenate([score(images[run[0]], [texts[k] for k in run]) for run in runs])


class ExternalEncoder:
    """An `Encoder` over an `Embedder`, a `Scorer`, or a model that is both.

    name: in messages and in its identity. device: says how much is done at once. precision: that it
    was loaded in. scored_by: what its scores of pairs are called, "scorer" or "vqa".
    """

    def __init__(
        self,
        name: str,
        model: Embedder | Scorer,
        device: torch.device | None = None,
        precision: Precision = "fp32",
        scored_by: str = "scorer",
    ) -> None:
        self.name = name
        self.model = model
        self.device = device or torch.device("cpu")
        self.precision = precision
        self.read_image = ImageReader()
        self.score = COSINE if isinstance(model, Embedder) else scored_by
        self._scored_by = scored_by
        with plugins.fence(name, _REMEDY):
            self.identity = ExternalIdentity.of(name, model)

    def tower_weights(self, tower: Tower) -> str:
        """Return the hash of the whole model."""
        return self.identity.weights

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """No gradients, full float32."""
        with torch.inference_mode(), full_float32():
            yield

    def text_keys(self, texts: Sequence[str]) -> list[TextKey]:
        """Return the texts themselves as keys, and whether they are cut, where the model knows."""
        find = getattr(self.model, "truncated", None)
        with plugins.fence(self.name, _REMEDY):
            cut = list(find(texts)) if find else [False for _ in texts]
        return [TextKey(t.encode(), len(t), bool(c)) for t, c in zip(texts, cut, strict=True)]

    def start_texts(self, texts: Sequence[str]) -> Pending:
        """Encode one batch; see `Encoder`."""
        return self._embedded("texts", texts)

    def start_images(self, images: Sequence[Image.Image]) -> Pending:
        """Encode one batch of what `read_image` returned; see `Encoder`."""
        return self._embedded("images", images)

    @property
    def scale(self) -> float | None:
        """Return the model's `scale`, if it has one."""
        scale: float | None = getattr(self.model, "scale", None)
        return scale

    def images(self, images: Sequence[Image.Image]) -> Scores:
        """Return (N, D) of unit length; see `Embedder`."""
        return self.start_images(images)()

    def texts(self, texts: Sequence[str]) -> Scores:
        """Return (N, D) of unit length; see `Embedder`."""
        return self.start_texts(texts)()

    def match(
        self, images: Sequence[Image.Image], texts: Sequence[str], score: str = "scorer"
    ) -> Scores:
        """Return (N,), the model's own scores of N pairs."""
        model = self.model
        if not isinstance(model, Scorer) or score != self._scored_by:
            remedy = f"; --score {self.score}" if self.score != COSINE else ""
            raise UsageError(f"{self.name}: has no score '{score}'{remedy}")

        def one(image: Image.Image, texts: list[str]) -> Scores:
            return self._call(model.score, "score", (len(texts),), image, texts)

        return by_image(one, images, texts)

    def _embedded(self, kind: str, inputs: Sequence[Any]) -> Pending:
        if not isinstance(self.model, Embedder):
            raise UsageError(
                f"{self.name}: scores pairs and has no vectors; add --score {self.score}"
            )
        vectors = self._call(getattr(self.model, kind), kind, (len(inputs), 0), list(inputs))
        unit = unit_length(vectors)
        return lambda: unit

    def _call(
        self, function: Callable[..., Any], name: str, shape: tuple[int, ...], *inputs: Any
    ) -> Scores:
        """Call the model. shape: the required shape of its result, 0 for any width."""
        with plugins.fence(self.name, _REMEDY), self.evaluating():
            value = function(*inputs)
            output: Scores = (
                value.detach().float().cpu().numpy()
                if isinstance(value, Tensor)
                else np.asarray(value, dtype=np.float32)
            )
        fits = all(not b or a == b for a, b in zip(output.shape, shape))
        if not fits or len(output.shape) != len(shape):
            expected = f"({', '.join(str(n) if n else 'D' for n in shape)})"
            raise CompoclipError(
                f"{self.name}: {name}() returns shape {output.shape}, not {expected}; {_REMEDY}"
            )
        require_finite(output, self.name)
        return output


# --- Finding a model by its name. ---


def open_encoder(
    spec: str, options: ModelOptions | None = None, activation: str | None = None
) -> ModelEncoder | ExternalEncoder | TextOnlyEncoder:
    """Load any model by what a user writes for it.

    Args:
        spec: FILE.py or FILE.py:NAME; st:ID, hf:ID or mteb:ID, each with @REVISION or without;
            blind:CAPTIONS; the name of a model of another package; else what `load_model` takes.
        options: Device, precision and prompts.
        activation: As for `load_model`.

    Raises:
        UsageError: There is no such model.
        CompoclipError: It cannot be loaded, a library is missing, or its code fails.
    """
    options = options or ModelOptions()
    library, name = library_and_id(spec)
    if not is_external(spec):
        if options.score == "vqa":
            raise UsageError(f"{spec}: --score vqa needs a vision-language model: hf:ID")
        return ModelEncoder(
            load_model(spec, activation=activation, device=options.device), options.precision
        )
    if library == BLIND:
        from compoclip.data.sources.open import open_source

        return TextOnlyEncoder(open_source(name).captions())
    if plugins.is_file(spec):
        plugins.refresh(spec)
        definition = plugins.chosen(
            spec,
            _defined(plugins.parts_of(spec)),
            "models",
            "a class with images and texts, or score",
        )
        path, member = plugins.split(spec)
        spec = ":".join(filter(None, (path.name, member)))
        model = _instance(definition, spec, options)
    elif library in LIBRARIES:
        identifier, _, revision = name.partition("@")
        with plugins.fence(spec, _REMEDY):
            model = LIBRARIES[library](identifier, revision or None, options)
    else:
        model = _instance(
            plugins.imported(plugins.installed("models")[spec], "model"), spec, options
        )
    if not isinstance(model, Embedder | Scorer):
        raise CompoclipError(f"{spec}: a model has images() and texts(), or score(); {_REMEDY}")
    scored_by = "vqa" if options.score == "vqa" and library == "hf" else "scorer"
    return ExternalEncoder(spec, model, options.device, options.precision, scored_by)


def _defined(module: Mapping[str, Any]) -> dict[str, Any]:
    """The models of a file: instances, classes, and functions that say that they return one."""
    models = {}
    for name, value in module.items():
        here = getattr(value, "__module__", module["__name__"]) == module["__name__"]
        candidate = get_type_hints(value).get("return") if inspect.isfunction(value) else value
        if here and not name.startswith("_") and isinstance(candidate, Embedder | Scorer):
            models[name] = value
    return models


def _instance(definition: Any, name: str, options: ModelOptions) -> Any:
    """An instance: classes and functions are called with the device and precision they take."""
    if not inspect.isclass(definition) and not inspect.isfunction(definition):
        return definition
    with plugins.fence(name, _REMEDY):
        arguments = {"device": options.device, "dtype": DTYPES[options.precision]}
        takes = inspect.signature(definition).parameters
        return definition(**{key: value for key, value in arguments.items() if key in takes})
