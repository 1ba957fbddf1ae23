"""A model together with all that its features depend on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compoclip.errors import CompoclipError
from compoclip.models.architecture import (
    activation_of,
    architecture_name,
    attach_preprocess,
    build_model,
    with_activation,
)
from compoclip.models.config import ModelConfig, ModelIdentity, read_object, section
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.preprocess import Preprocess, Tokenizer, build_tokenizer
from compoclip.models.weights import fitting, load_into, require_finite, weights_hash


@dataclass(frozen=True)
class LoadedModel:
    """A model with all that its features depend on.

    identity describes the weights as loaded; `current_identity` describes them now.
    name: what the user asked for. path: the directory or file it came from, if any.
    provenance: how it was made (method settings, data, step, parent); empty when unknown.
    """

    encoder: DualEncoder
    tokenizer: Tokenizer
    preprocess: Preprocess
    config: ModelConfig
    identity: ModelIdentity
    name: str
    path: Path | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


def assemble(
    config: ModelConfig,
    name: str,
    *,
    state: Mapping[str, Tensor] | None = None,
    network: nn.Module | None = None,
    seed: int = 0,
    path: Path | None = None,
) -> LoadedModel:
    """Network, tokenizer, preprocessing and identity of a configuration, on the CPU in eval mode.

    Weights are `state` when given, those of `network` when given, else drawn from `seed`. Raises
    CompoclipError when the parts do not fit together.
    """
    source = str(path or name)

    def fits(outline: nn.Module) -> None:
        if state is not None:
            fitting(outline, state, source, architecture_name(config.model_cfg))

    with _said_of(source):
        model = build_model(config.model_cfg, seed, fits) if network is None else network
    if state is not None:
        load_into(model, state, source, architecture_name(config.model_cfg))
    require_finite(model.state_dict(), source)
    with _said_of(source):
        tokenizer = build_tokenizer(config.model_cfg["text_cfg"], config.folder)
        preprocess = attach_preprocess(model, config.preprocess_cfg)
    rows = getattr(model, "vocab_size", None)
    if rows and tokenizer.vocab_size > rows:
        remedy = f"set text_cfg.vocab_size to {tokenizer.vocab_size}"
        if state is not None:
            remedy = "they are of two models: restore the tokenizer's files"
        raise CompoclipError(
            f"{source}: the tokenizer needs {tokenizer.vocab_size} token ids and the text tower "
            f"has {rows}: {remedy}"
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
    )
    return LoadedModel(encoder, tokenizer, preprocess, config, identity, name, path)


@contextmanager
def _said_of(source: str) -> Iterator[None]:
    """Let errors of the block name what is loaded."""
    try:
        yield
    except CompoclipError as error:
        if source in str(error):
            raise
        raise type(error)(f"{source}: {error}") from error


def current_identity(loaded: LoadedModel) -> ModelIdentity:
    """The identity with the hash of the weights as they are now. Changed weights have the loaded
    ones as base, and no adapter."""
    now = weights_hash(loaded.encoder.model.state_dict())
    if now == loaded.identity.weights:
        return loaded.identity
    return replace(loaded.identity, base=loaded.identity.weights, adapter="", weights=now)


def override_activation(loaded: LoadedModel, activation: str | None) -> LoadedModel:
    """The same weights with that activation, recorded in the identity; unchanged for None."""
    if activation is None or activation == loaded.identity.activation:
        return loaded
    config = replace(loaded.config, model_cfg=with_activation(loaded.config.model_cfg, activation))
    state = loaded.encoder.model.state_dict()
    other = assemble(config, loaded.name, state=state, path=loaded.path)
    identity = replace(loaded.identity, activation=activation)
    return replace(other, identity=identity, provenance=loaded.provenance)


# --- What every written form of a model shares: tensors as stored, the record, its
# verification. ---

RECORD, MERGES = "compoclip.json", "bpe.txt.gz"


def verified(loaded: LoadedModel, record: Path) -> LoadedModel:
    """`loaded` with the identity and provenance of its record.

    Raises CompoclipError when the record is damaged, or says otherwise than what was loaded.
    """
    stored, provenance = read_record(record)
    wrong = stored.differences(loaded.identity, ignore=("base", "adapter"))
    if wrong:
        raise CompoclipError(
            f"{record.parent}: {RECORD} and the other files disagree ({RECORD} first): "
            f"{'; '.join(wrong)}; restore the original files"
        )
    return replace(loaded, identity=stored, provenance=provenance)


def read_record(record: Path) -> tuple[ModelIdentity, dict[str, Any]]:
    """The identity and the provenance in a `compoclip.json`.

    Raises CompoclipError when it is missing or damaged.
    """
    data = read_object(record)
    if not isinstance(data.get("identity"), dict):
        raise CompoclipError(
            f"{record}: has no identity; delete the file or re-save the checkpoint"
        )
    try:
        identity = ModelIdentity.from_json(data["identity"])
    except CompoclipError as error:
        raise CompoclipError(f"{record}: {error}") from error
    return identity, section(data, "provenance", record)


def as_stored(state: Mapping[str, Tensor], dtype: str, name: str) -> dict[str, Tensor]:
    """Tensors on the CPU in float32; with "float16" matrices are rounded to that.

    name: of the model. Raises CompoclipError for another dtype, when a value does not fit float16,
    and when one is not finite.
    """
    require_finite(state, name)
    if dtype not in ("float32", "float16"):
        raise CompoclipError(f"checkpoint dtype '{dtype}' is not float32 or float16")
    stored = {}
    for name, value in state.items():
        value = value.detach().to("cpu")
        if value.is_floating_point():
            half = dtype == "float16" and value.ndim >= 2
            value = value.to(torch.float16 if half else torch.float32)
            if half and not value.isfinite().all():
                raise CompoclipError(f"'{name}' does not fit float16: save as float32")
        stored[name] = value.contiguous()
    return stored


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write an object as readable JSON."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # of a lone surrogate
