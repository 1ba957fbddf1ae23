"""Load models by name or path, and save them, in any of the formats of `models/formats`.

Each file of that folder defines a format: an object that recognises, loads, writes and describes
its models. No other code depends on the list of formats.
"""

from __future__ import annotations

import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from compoclip.errors import CompoclipError, UsageError, closest
from compoclip.files import unreadable
from compoclip.models import formats as folder_of_formats
from compoclip.models.architecture import (
    activation_of,
    architecture_name,
    attach_preprocess,
    build_model,
    described,
    with_activation,
)
from compoclip.models.config import (
    OPEN_CLIP,
    RECORD,
    ModelConfig,
    ModelIdentity,
    note_assumptions,
    read_object,
    read_record,
    sound,
)
from compoclip.models.downloads import downloaded
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.lora import Lora
from compoclip.models.names import HUB, LOCAL, require_model
from compoclip.models.preprocess import Preprocess
from compoclip.models.tokenizer import Tokenizer, build_tokenizer
from compoclip.models.weights import (
    counts,
    dtypes,
    fitting,
    kinship,
    load_into,
    read_state_dict,
    require_finite,
    weights_hash,
)


@dataclass(frozen=True)
class LoadedModel:
    """A model with everything its features depend on.

    Attributes:
        encoder: The network, in eval mode when it is loaded.
        tokenizer: Captions to token ids.
        preprocess: Images to pixels.
        config: The open_clip configuration that the network was built from.
        identity: Describes the weights as loaded; `current_identity` describes them now.
        name: Name given by the user.
        path: Its directory or file, if any.
        provenance: Record of its training (method, settings, data, steps); empty if unknown.
        files: The files that it was read from -> their stamps before; empty if unknown.
    """

    encoder: DualEncoder
    tokenizer: Tokenizer
    preprocess: Preprocess
    config: ModelConfig
    identity: ModelIdentity
    name: str
    path: Path | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def load_model(
    spec: str | Path, *, activation: str | None = None, device: str | torch.device = "cpu"
) -> LoadedModel:
    """Load a model by its name or path, in eval mode, verified against its checkpoint's record.

    Args:
        spec: A checkpoint directory (open_clip's layout, or a folder of transformers); an adapter
            directory (compoclip or PEFT, merged into its base);
            `ViT-B-32-quickgelu@file.pt` (an open_clip state dict); `ViT-B-32-quickgelu:openai`
            (weights that open_clip publishes); `hf-hub:org/repo` or `local-dir:FOLDER` (any of
            these folders); `bundled` (the small base of compoclip-world);
            `random:ViT-B-32[:SEED]`.
        activation: "quick_gelu" or "gelu", overrides the source; recorded in the identity.
        device: Device of the network.

    Raises:
        UsageError: `spec` is not one of these.
        CompoclipError: Files are missing, damaged or of another architecture, or do not say which
            activation they were trained with.
    """
    try:
        loaded = open_model(str(spec), activation)
    except OSError as error:
        raise unreadable(Path(error.filename or str(spec)[:200]), error) from error
    note_assumptions(spec, loaded.identity.assumed)
    loaded.encoder.to(device)
    return loaded


def open_model(spec: str, activation: str | None) -> LoadedModel:
    """`load_model` for formats, on the CPU."""
    place = place_of(spec)
    return replace(format_of(place).load(place, activation), name=spec.removeprefix(LOCAL))


def place_of(spec: str) -> str:
    """Return the folder, file or name of a model on this machine; a repository of the hub is
    downloaded. Raises UsageError for a missing folder."""
    if spec.startswith(HUB):
        return downloaded(spec, lambda folder: format_of(folder).downloads)
    if spec.startswith(LOCAL):
        require_model(spec)
    return spec.removeprefix(LOCAL)


def save_model(
    loaded: LoadedModel,
    directory: Path,
    *,
    form: str = "open-clip",
    provenance: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    adapter: str | None = None,
) -> ModelIdentity:
    """Write a model folder atomically.

    Args:
        loaded: The model, with its present weights.
        directory: Folder to write, which must not exist.
        form: Name of the layout as in `compoclip convert --to`: "open-clip", "hf", "hf-vision",
            "hf-text", "onnx".
        provenance: JSON-ready record of the training (default: the loaded model's).
        dtype: "float32" or "float16", which halves matrices.
        adapter: Description of the adapter that was merged into the weights.

    Raises:
        CompoclipError: The model has no such form, the folder exists or is not writable, or a value
            does not fit float16.
    """
    if provenance is not None:
        loaded = replace(loaded, provenance=provenance)
    if adapter is not None:
        loaded = replace(loaded, identity=replace(current_identity(loaded), adapter=adapter))
    return writer_of(form, loaded).save(loaded, directory, form, dtype)


def create_model(
    config: ModelConfig, *, seed: int = 0, image_weights: Path | None = None
) -> LoadedModel:
    """Make a new model for pre-training, on the CPU in eval mode.

    Args:
        config: The open_clip configuration, as `read_config` reads it.
        seed: Seed of the parameters.
        image_weights: Pretrained weights of the image trunk (timm's parameter names); a classifier
            in the file is dropped.

    Raises:
        CompoclipError: The configuration cannot be built, or the image weights do not fit it.
    """
    loaded = assemble(config, f"new model (seed {seed})", seed=seed)
    if image_weights is None:
        return loaded
    visual: Any = loaded.encoder.model.visual
    trunk = getattr(visual, "trunk", visual)
    state = read_state_dict(image_weights)
    head = getattr(trunk, "default_cfg", {}).get("classifier", "")
    heads = tuple(f"{h}." for h in ((head,) if isinstance(head, str) else head) if h)
    expected = trunk.state_dict()
    loaded_state = {
        k: value for k, value in state.items() if k in expected or not k.startswith(heads)
    }
    load_into(trunk, loaded_state, str(image_weights), f"the image trunk {type(trunk).__name__}")
    return assemble(config, loaded.name, network=loaded.encoder.model)


def assemble(
    config: ModelConfig,
    name: str,
    *,
    state: Mapping[str, Tensor] | None = None,
    network: nn.Module | None = None,
    seed: int = 0,
    path: Path | None = None,
    assign: bool = False,
) -> LoadedModel:
    """Return network, tokenizer, preprocessing and identity, on the CPU in eval mode; weights are
    from `state` or `network`, else from `seed`. Raises CompoclipError for parts that do not fit.

    assign: whether nothing else keeps the tensors of `state`, which then become the parameters.
    """
    source = str(path or name)

    def fits(outline: nn.Module) -> None:
        if state is not None:
            fitting(outline, state, source, architecture)

    with sound(source):
        architecture = described(config.model_cfg)
        model = network
        if model is None:
            model = build_model(config.model_cfg, seed if state is None else None, fits)
        if state is not None:
            load_into(model, state, source, architecture, assign)
        require_finite(model.state_dict(), source)
        tokenizer = build_tokenizer(config.model_cfg["text_cfg"], config.folder)
        preprocess = attach_preprocess(model, config.preprocess_cfg)
    rows, needed = getattr(model, "vocab_size", None), tokenizer.vocab_size
    remedy = "they are of two models: restore the tokenizer's files"
    remedy = remedy if state is not None else f"set text_cfg.vocab_size to {needed}"
    if rows and needed > rows:
        raise CompoclipError(
            f"{source}: the tokenizer needs {needed} token ids and the text tower has {rows}: "
            f"{remedy}"
        )
    encoder = DualEncoder(model, freeze_bn=config.freeze_batch_norm).eval()
    identity = ModelIdentity(
        architecture=architecture_name(with_activation(config.model_cfg, "gelu")),
        activation=activation_of(config.model_cfg),
        tokenizer=tokenizer.id,
        context_length=tokenizer.context_length,
        image_size=preprocess.size,
        image_mean=preprocess.mean,
        image_std=preprocess.std,
        interpolation=preprocess.interpolation,
        resize_mode=preprocess.resize_mode,
        base="",
        adapter="",
        weights=weights_hash(model.state_dict()),
        assumed=config.assumed,
    )
    return LoadedModel(encoder, tokenizer, preprocess, config, identity, name, path)


def current_identity(loaded: LoadedModel) -> ModelIdentity:
    """Return the identity of a model with its present weights: the loaded one if none has changed,
    else one with the loaded weights as base and no adapter.

    Args:
        loaded: The model, trained since it was loaded or not.
    """
    now = weights_hash(loaded.encoder.model.state_dict())
    if now == loaded.identity.weights:
        return loaded.identity
    return replace(loaded.identity, base=loaded.identity.weights, adapter="", weights=now)


def override_activation(loaded: LoadedModel, activation: str | None) -> LoadedModel:
    """Return the model with that activation, recorded in its identity; unchanged for None."""
    if activation is None or activation == loaded.identity.activation:
        return loaded
    config = replace(loaded.config, model_cfg=with_activation(loaded.config.model_cfg, activation))
    state = loaded.encoder.model.state_dict()
    other = assemble(config, loaded.name, state=state, path=loaded.path)
    identity = replace(loaded.identity, activation=activation)
    return replace(other, identity=identity, provenance=loaded.provenance)


def recorded(loaded: LoadedModel, folder: Path, provenance: Mapping[str, Any]) -> LoadedModel:
    """Return a model with identity and provenance of its folder's record, else with `provenance`.

    Raises CompoclipError when the record is damaged or of another model."""
    record = folder / RECORD
    if not record.is_file():
        return replace(loaded, provenance=provenance)
    stored, provenance = read_record(record)
    stored.require(
        loaded.identity,
        f"{folder}: {RECORD} and the other files disagree ({RECORD} first)",
        "restore the original files",
    )
    config = replace(loaded.config, assumed=stored.assumed)
    return replace(loaded, config=config, identity=stored, provenance=provenance)


@dataclass(frozen=True)
class Adapted:
    """A base and low-rank adapters on it, apart. adapters: as `lora.lora_state` names them.
    provenance: how they were made."""

    base: LoadedModel
    lora: Lora
    adapters: Mapping[str, Tensor]
    provenance: Mapping[str, Any]


class Format(ABC):
    """A format of models: how to recognise, load, save and describe them.

    Members that a format does not define refuse, or return nothing.

    Attributes:
        kind: The format, in words.
        known_by: Source of the activation in folders without a compoclip record.
        order: `sniff` is called in ascending order.
        markers: Files that every folder of this format has.
        stored: File of a folder with the tensors, which `describe` reads with `read_state_dict`.
        downloads: Patterns of weight files in a repository of the hub; the first match is fetched.
        companions: Optional files that go to the hub with `markers` and `stored`.
        forms: Names for `compoclip convert --to`; () if it cannot be written.
        adapters_only: Whether folders hold adapters without their base.
    """

    kind: ClassVar[str]
    known_by: ClassVar[str]
    order: ClassVar[int]
    markers: ClassVar[tuple[str, ...]] = ()
    stored: ClassVar[str] = ""
    downloads: ClassVar[tuple[str, ...]] = ()
    companions: ClassVar[tuple[str, ...]] = ()
    forms: ClassVar[tuple[str, ...]] = ()
    adapters_only: ClassVar[bool] = False

    def sniff(self, source: str) -> bool:
        """Return whether a model has this format, from its name and small files only."""
        return bool(self.markers) and all(
            (Path(source) / marker).is_file() for marker in self.markers
        )

    @abstractmethod
    def load(self, source: str, activation: str | None) -> LoadedModel:
        """Load a model, on the CPU in eval mode. activation: overrides the source.

        Raises CompoclipError when files are missing or damaged, or their identities differ.
        """

    def load_on(self, source: str, base: str, activation: str | None) -> LoadedModel:
        """Load a model whose base the user names."""
        raise UsageError(
            f"{source}: needs no base; leave --base out, which is for weights files and PEFT "
            "adapters"
        )

    def adapted(self, source: str, base: str | None, activation: str | None) -> Adapted:
        """Return the adapters and their base, unmerged. Raises CompoclipError without adapters."""
        raise CompoclipError(f"{source}: has no adapters; name an adapter folder or a PEFT folder")

    def fits(self, loaded: LoadedModel) -> bool:
        """Return whether a model can be written by this format, of all formats with the form."""
        return True

    def save(self, loaded: LoadedModel, folder: Path, form: str, dtype: str) -> ModelIdentity:
        """Write a model as `form`, atomically; return the identity as saved. Raises CompoclipError
        if it has no such form, or the folder exists or is not writable."""
        raise UsageError(
            f"{loaded.name}: is not an adapter, and only adapters have the form {form}"
        )

    def save_adapted(self, adapted: Adapted, folder: Path) -> None:
        """Write adapters without their base, atomically. Raises like `save`."""
        raise NotImplementedError

    def facts(self, identity: ModelIdentity, folder: Path) -> dict[str, Any]:
        """Return JSON-ready facts about a saved folder."""
        return {"architecture": identity.architecture, "weights": identity.weights}

    def hub_files(self, folder: Path) -> tuple[list[str], tuple[str, ...]]:
        """Return the files of a folder for the hub: required ones, and optional ones."""
        return [*self.markers, self.stored], self.companions

    def snippet(self, folder: Path) -> tuple[str, str]:
        """Return the hub's name of a library that loads a folder without compoclip, and its code
        with FOLDER as path; ("", "") without one."""
        return "", ""

    def describe(
        self, source: str, base: LoadedModel | None, activation: str | None
    ) -> dict[str, Any]:
        """Return what `inspect_model` does but for the source. Raises like `load`."""
        loaded = load_model(source, activation=activation)
        identity, state = loaded.identity, loaded.encoder.model.state_dict()
        by = f"recorded in {RECORD}" if (Path(source) / RECORD).is_file() else self.known_by
        file = Path(source) / self.stored
        alone = self.adapters_only or not file.is_file()  # as loaded, with adapters merged
        return {
            "kind": self.kind,
            "architecture": identity.architecture,
            "activation": identity.activation,
            "activation_by": by if activation is None else "stated by the user",
            "context": identity.context_length,
            "image_size": identity.image_size[0],
            "vocabulary": loaded.tokenizer.vocab_size,
            "adapter": identity.adapter,
            "parameters": counts(dict(loaded.encoder.model.named_parameters())),
            "dtypes": dtypes(state if alone else read_state_dict(file)),
            "provenance": loaded.provenance,
            "identity": identity.to_json(),
            "base": {} if base is None else distance(state, base, source),
        }


def distance(state: Mapping[str, Tensor], base: LoadedModel, source: str) -> dict[str, Any]:
    """Return the distance of tensors from a base, JSON-ready; see `kinship`."""
    facts = {"weights": base.identity.weights, "activation": base.identity.activation}
    return {"name": base.name, **facts, **kinship(state, base.encoder.model.state_dict(), source)}


@cache
def formats() -> tuple[Format, ...]:
    """Return every format of `models/formats`, in the order of their `sniff`."""
    modules = pkgutil.iter_modules(folder_of_formats.__path__, f"{folder_of_formats.__name__}.")
    instances = [
        kind()
        for module in map(import_module, (info.name for info in modules))
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Format)
        and not inspect.isabstract(kind)
        and kind.__module__ == module.__name__
    ]
    return tuple(sorted(instances, key=lambda form: form.order))


def format_of(source: str) -> Format:
    """Return the format of a model that a user names so. Raises UsageError when it is of none."""
    require_model(source)
    if recognised := next((form for form in formats() if form.sniff(source)), None):
        return recognised
    configured = (Path(source) / "config.json").is_file()
    if (Path(source) / "modules.json").is_file():
        clips = sorted(file.parent for file in Path(source).glob("*_CLIPModel/config.json"))
        also = "".join(f", and {folder} is the CLIPModel inside" for folder in clips)
        lacking = " whose config.json has no model_type" if configured else ""
        raise UsageError(
            f"{source}: is a folder of sentence-transformers{lacking}: st:{source} measures "
            f"it{also}"
        )
    if configured:
        raise UsageError(
            f"{source}: config.json has no model_type, and no open_clip_config.json is there; "
            "restore the original files"
        )
    if Path(source).is_dir():
        read_object(Path(source) / OPEN_CLIP)  # says that it is missing
    raise UsageError(f"{source}: is not a model in a known format; see compoclip inspect")


def writer_of(form: str, loaded: LoadedModel) -> Format:
    """Return the format that writes a model as `form`. Raises UsageError for an unknown form."""
    for writer in formats():
        if form in writer.forms and writer.fits(loaded):
            return writer
    raise UsageError(f"no form '{form}'; {closest(form, known_forms())}")


def known_forms() -> list[str]:
    """Every form that `compoclip convert --to` can write."""
    return [form for writer in formats() for form in writer.forms]
