"""Configuration, identity and record of a model, as stored in its files.

Torch is not imported here, so that results can name their model without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from compoclip.bounds import MAX_MODEL_FILE_BYTES
from compoclip.console import note_once
from compoclip.errors import CompoclipError
from compoclip.files import read_json_object, reason
from compoclip.typed import Natural, build, require_kind
from compoclip.version import __version__

_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
OPEN_CLIP, RECORD, MERGES = "open_clip_config.json", "compoclip.json", "bpe.txt.gz"
"""File names of open_clip's configuration, of the record, and of merges other than CLIP's."""
BLOCK = (
    *("ln_1.weight", "ln_1.bias", "attn.in_proj_weight", "attn.in_proj_bias"),
    *("attn.out_proj.weight", "attn.out_proj.bias", "ln_2.weight", "ln_2.bias"),
    *("mlp.c_proj.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight"),
)
"""The parameters of open_clip's plain block but for layer scales; the first four come before
attention."""
POSITIONS = ("positional_embedding", "text.positional_embedding")
"""Names of the table of text positions: of a CLIP, and of a network with a text tower apart."""
EPSILON = 1e-5  # of layer norms
QUICK = 1.702
"""QuickGELU is x * sigmoid(QUICK x)."""
# What taking values of another type apart raises.
_MALFORMED = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    RuntimeError,
)


@dataclass(frozen=True)
class ModelConfig:
    """An open_clip configuration file.

    Attributes:
        model_cfg: The architecture, in open_clip's words.
        preprocess_cfg: Image preprocessing; missing keys have open_clip's defaults.
        freeze_batch_norm: Keep batch norms in eval mode (see `DualEncoder`).
        folder: Folder of relative file names in it.
        assumed: Sentences on what features depend on and no file of the model states.
    """

    model_cfg: Mapping[str, Any]
    preprocess_cfg: Mapping[str, Any] = field(default_factory=dict)
    freeze_batch_norm: bool = False
    folder: Path | None = None
    assumed: tuple[str, ...] = ()

    @property
    def merges(self) -> Path | None:
        """Return the merges file of the tokenizer; None for CLIP's."""
        options = self.model_cfg["text_cfg"].get("tokenizer_kwargs") or {}
        stated = options.get("bpe_path")
        return None if stated is None else (self.folder or Path()) / stated

    def to_json(self) -> dict[str, Any]:
        """Return the content of `open_clip_config.json`."""
        data: dict[str, Any] = {
            "model_cfg": self.model_cfg,
            "preprocess_cfg": self.preprocess_cfg,
        }
        if self.freeze_batch_norm:
            data["compoclip"] = {"freeze_batch_norm": True}
        return data


@contextmanager
def sound(source: object) -> Iterator[None]:
    """Make errors of the block name the file: our own, and what malformed values raise."""
    try:
        yield
    except CompoclipError as error:
        if str(source) in str(error):
            raise
        raise type(error)(f"{source}: {error}") from error
    except _MALFORMED as error:
        raise CompoclipError(
            f"{source}: damaged ({reason(error)}); restore the original file"
        ) from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises CompoclipError when it is missing, malformed or too large."""
    require_small(path)
    return read_json_object(path, damaged="restore the original file", halves=True)


def as_json(data: Mapping[str, Any]) -> str:
    """Return an object as readable JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write an object as readable JSON."""
    path.write_text(as_json(data), encoding="utf-8", errors="backslashreplace")  # lone surrogates


def require_small(path: Path) -> None:
    """Raise CompoclipError for a file of text that is larger than any model has."""
    if path.is_file() and path.stat().st_size > MAX_MODEL_FILE_BYTES:
        raise CompoclipError(
            f"{path}: has more than {MAX_MODEL_FILE_BYTES:,} bytes, which is too large for such a "
            "file; restore the original file"
        )


def section(data: Mapping[str, Any], key: str, source: object) -> dict[str, Any]:
    """Return the object under `key`, empty without one. Raises CompoclipError for anything else."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CompoclipError(f"{source}: '{key}' is not an object; restore the original file")
    return dict(value)


def known_settings(
    data: Mapping[str, Any], key: str, names: Iterable[str], source: object
) -> dict[str, Any]:
    """Return the object under `key`, "" for `data` itself. Raises CompoclipError for a setting
    that has another name."""
    settings = section(data, key, source) if key else dict(data)
    if unknown := settings.keys() - {*names}:
        name = f"'{min(unknown)}'" + (f' under "{key}"' if key else "")
        raise CompoclipError(f"{source}: unknown setting {name}; restore the original file")
    return settings


def require_hub_name(name: object, key: str) -> None:
    """Raise CompoclipError unless `name` is one of the Hugging Face hub: a configuration may not
    lead to files outside its folder."""
    if not isinstance(name, str) or not _HUB_NAME.fullmatch(name) or ".." in name:
        raise CompoclipError(
            f"model configuration: {key} '{str(name)[:80]}' is not a name on the Hugging Face hub "
            "(ORGANISATION/NAME)"
        )


def read_config(path: Path) -> ModelConfig:
    """Read an open_clip configuration file.

    Args:
        path: The JSON file, with or without the outer "model_cfg".

    Raises:
        CompoclipError: The file is missing or malformed, or has unknown compoclip settings.
    """
    data = read_object(path)
    config = section(data, "model_cfg", path) if "model_cfg" in data else data
    for key in ("embed_dim", "vision_cfg", "text_cfg"):
        if config.get(key) is None:
            raise CompoclipError(
                f"{path}: not an open_clip model configuration: no '{key}', in 'model_cfg' or alone"
            )
        if key != "embed_dim":
            section(config, key, path)
    stated = section(config["text_cfg"], "tokenizer_kwargs", path).get("bpe_path", "")
    require_kind(f"{path}: bpe_path", stated, str, "restore the original file")
    if Path(stated).name == MERGES and (path.parent / MERGES).is_file():
        config["text_cfg"]["tokenizer_kwargs"]["bpe_path"] = MERGES  # absolute for open_clip alone
    settings = known_settings(data, "compoclip", ["freeze_batch_norm"], path)
    for name, value in settings.items():
        require_kind(f"{path}: {name}", value, bool)
    return ModelConfig(
        model_cfg=config,
        preprocess_cfg=section(data, "preprocess_cfg", path),
        freeze_batch_norm=settings.get("freeze_batch_norm", False),
        folder=path.parent,
    )


def note_assumptions(spec: object, sentences: Iterable[str]) -> None:
    """Say once what of a model no file states."""
    for sentence in sentences:
        note_once(f"{spec}: assumed, as no file of the model states it: {sentence}")


Tower = Literal["image", "text"]
Part = Literal["image", "text", "temperature"]


def part_of(name: str) -> Part:
    """Return the part of a parameter or buffer: the image tower is everything below `visual`, the
    temperature the scale and bias of the logits, the text tower the rest."""
    if name in ("logit_scale", "logit_bias"):
        return "temperature"
    return "image" if name.startswith("visual.") else "text"


@dataclass(frozen=True)
class ModelIdentity:
    """Everything that makes two checkpoints give different features; saved with every checkpoint,
    verified on load, copied into every result.

    Attributes:
        architecture: Its name, or a hash of the model configuration without one.
        activation: "quick_gelu" or "gelu".
        tokenizer: Kind and hash of the vocabulary.
        context_length: Tokens per text.
        image_size: (height, width) in pixels.
        image_mean, image_std: Per channel, for pixels in [0, 1].
        interpolation: "bicubic" or "bilinear".
        resize_mode: "shortest" (resize the short side, centre crop), "longest" or "squash".
        base: Hash of the weights before training, "" if unknown.
        adapter: Description of merged adapters, "" without any.
        weights: blake2b hash over all tensors (names, shapes, values) of the state dict.
        assumed: What no file of the model stated when it was read first, in sentences.
    """

    architecture: str
    activation: str
    tokenizer: str
    context_length: Natural
    image_size: tuple[Natural, Natural]
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    interpolation: str
    resize_mode: str
    base: str
    adapter: str
    weights: str
    assumed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping, without `assumed` where nothing is."""
        data = asdict(self)
        if not self.assumed:
            del data["assumed"]
        return data

    @classmethod
    def from_json(cls, data: object, origin: object) -> ModelIdentity:
        """Invert `to_json`. Raises CompoclipError, naming the file `origin`, for a field that is
        missing, unknown or of another type."""
        remedy = "restore the file or re-save the checkpoint"
        identity: ModelIdentity = build(cls, data, str(origin), remedy, "identity")
        return identity

    def require(
        self, other: ModelIdentity, models: str, remedy: str, ignore: tuple[str, ...] = ()
    ) -> None:
        """Raise CompoclipError with "field: ours vs theirs" for every field that differs but base,
        adapter, assumed and the fields to ignore. models: names of both, for the message."""
        differences = [
            f"{f.name}: {getattr(self, f.name)} vs {getattr(other, f.name)}"
            for f in fields(self)
            if f.name not in ("base", "adapter", "assumed", *ignore)
            and getattr(self, f.name) != getattr(other, f.name)
        ]
        if differences:
            raise CompoclipError(f"{models}: {'; '.join(differences)}; {remedy}")


_RECORDED = ("compoclip", "identity", "provenance", "onnx_difference")  # the last by `onnx`


def read_record(record: Path) -> tuple[ModelIdentity, dict[str, Any]]:
    """Return the identity and the provenance in a `compoclip.json`. Raises CompoclipError."""
    data = known_settings(read_object(record), "", _RECORDED, record)
    if not isinstance(data.get("identity"), dict):
        raise CompoclipError(
            f"{record}: has no identity; delete the file or re-save the checkpoint"
        )
    identity = ModelIdentity.from_json(data["identity"], record)
    return identity, section(data, "provenance", record)


def record_of(identity: ModelIdentity, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `compoclip.json`."""
    return {
        "compoclip": __version__,
        "identity": identity.to_json(),
        "provenance": dict(provenance),
    }
