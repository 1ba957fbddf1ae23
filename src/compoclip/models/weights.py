"""State dicts on disk: read without running code, compared before loading, hashed by value."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from compoclip.errors import CompoclipError

# Entries of published files that are no parameters of an open_clip model.
_IGNORED = (
    "input_resolution",
    "context_length",
    "vocab_size",
    "text.transformer.embeddings.position_ids",
)


# Where training codes put the weights beside the state of their optimiser, and what wrappers
# (data-parallel training, torch.compile, a trainer's module) put before the names.
_ENTRIES = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.")


@dataclass(frozen=True)
class WeightsFile:
    """What a weights file holds.

    state: tensors by name, without `prefix`. entry: the key they were found under ("" for a plain
    state dict). facts: the other entries of the file that are numbers or short texts, e.g. epoch.
    """

    state: dict[str, Tensor]
    entry: str = ""
    prefix: str = ""
    facts: Mapping[str, str | int | float] = field(default_factory=dict)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of `read_weights`."""
    return read_weights(path).state


def read_weights(path: Path) -> WeightsFile:
    """Tensors by name from a .safetensors file or a PyTorch file that holds nothing but data.

    Takes them from an entry "state_dict", "model_state_dict" or "model" beside an optimiser's
    state, and strips "module." and its like. Raises CompoclipError when the file is missing, cut
    short, holds code, or holds no tensors.
    """
    if not path.is_file():
        raise CompoclipError(f"{path}: no such weights file")
    data: object
    try:
        if path.suffix == ".safetensors":
            data = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # remarks on the file's form; errors say it better
                data = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise CompoclipError(
            f"{path}: damaged or cut short ({_first_line(error)}); copy or download it again"
        ) from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise CompoclipError(
            f"{path}: not a plain PyTorch state dict; it is damaged or holds code (TorchScript, "
            "pickled objects), which is never run: save its state_dict() as .safetensors"
        ) from error
    if not isinstance(data, Mapping):
        raise CompoclipError(f"{path}: holds no state dict")
    entry = next((key for key in _ENTRIES if isinstance(data.get(key), Mapping)), "")
    facts = {
        str(key): value
        for key, value in data.items()
        if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 200)
    }
    tensors = data[entry] if entry else data
    if not tensors:
        raise CompoclipError(f"{path}: holds no state dict")
    state = {str(name): value for name, value in tensors.items() if name not in _IGNORED}
    wrong = next((name for name, value in state.items() if not isinstance(value, Tensor)), None)
    if wrong is not None:
        raise CompoclipError(
            f"{path}: '{wrong}' is not a tensor, so this is not a state dict; "
            f"expected tensors by name, alone or under {' or '.join(map(repr, _ENTRIES))}"
        )
    prefix, state = _stripped(state, path)
    return WeightsFile(state, entry, prefix, facts if entry else {})


def _stripped(state: dict[str, Tensor], path: Path) -> tuple[str, dict[str, Tensor]]:
    """What wrappers put before the names, and the tensors without it."""
    found = ""
    while prefix := next((p for p in _PREFIXES if any(name.startswith(p) for name in state)), ""):
        names = [name.removeprefix(prefix) for name in state]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise CompoclipError(
                f"{path}: has '{twice}' with and without '{prefix}': it holds two models; "
                "save the one you mean"
            )
        state = {name: value for name, value in zip(names, state.values()) if name not in _IGNORED}
        found += prefix
    return found, state


def load_into(model: nn.Module, state: Mapping[str, Tensor], source: str, name: str) -> None:
    """Copy `state` into `model`; every key must be there with the right shape.

    Old layouts of the same parameters (text tower at top level, scale as a vector) are accepted.
    Raises CompoclipError naming the file, the architecture, one key and both shapes.
    """
    own = model.state_dict()
    if any(key.startswith("image_encoder.") for key in state):  # Apple's MobileCLIP files
        state = convert_state_dict(model, dict(state))
    if "text.positional_embedding" in own:
        state = convert_to_custom_text_state_dict(dict(state))
    state = {
        key: value.reshape(own[key].shape)
        if key in ("logit_scale", "logit_bias") and key in own and own[key].numel() == value.numel()
        else value
        for key, value in state.items()
    }
    problem = mismatch(own, state)
    if problem:
        raise CompoclipError(f"{source}: not the weights of {name}: {problem}")
    model.load_state_dict(state)


def mismatch(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """The first difference in names or shapes between an architecture's tensors and a file's, in
    words; "" when there is none."""
    for key, value in own.items():
        if key in state and state[key].shape != value.shape:
            return (
                f"'{key}' is {tuple(state[key].shape)} in the file "
                f"and {tuple(value.shape)} in the architecture"
            )
    for key, value in own.items():
        if key not in state:
            return f"the file lacks '{key}' {tuple(value.shape)}"
    for key, value in state.items():
        if key not in own:
            return f"the architecture has no '{key}' {tuple(value.shape)}"
    return ""


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """blake2b over names, shapes and values of all tensors, in order of name.

    Values are taken as float32 (integers as int64), so a float16 file and the float32 model loaded
    from it have one hash.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        value = state[name].detach()
        digest.update(f"{name}\0{tuple(value.shape)}\0".encode())
        dtype = torch.float32 if value.is_floating_point() else torch.int64
        plain = value.to("cpu", dtype).contiguous()
        digest.update(plain.reshape(-1).numpy().data)
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
