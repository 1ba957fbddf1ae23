"""State dicts on disk: read without running code, compared before loading, hashed by value."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
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


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors file or a PyTorch file that holds nothing but data.

    Accepts {"state_dict": ...} and strips "module." (left by data-parallel training). Raises
    CompoclipError when the file is missing, cut short, holds code, or holds no tensors.
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
    if isinstance(data, Mapping) and isinstance(data.get("state_dict"), Mapping):
        data = data["state_dict"]
    if not isinstance(data, Mapping) or not data:
        raise CompoclipError(f"{path}: holds no state dict")
    state = {str(name).removeprefix("module."): value for name, value in data.items()}
    state = {name: value for name, value in state.items() if name not in _IGNORED}
    wrong = next((name for name, value in state.items() if not isinstance(value, Tensor)), None)
    if wrong is not None:
        raise CompoclipError(
            f"{path}: '{wrong}' is not a tensor, so this is not a state dict; "
            "expected tensors by name or {'state_dict': ...}"
        )
    return state


def load_into(model: nn.Module, state: Mapping[str, Tensor], source: str, name: str) -> None:
    """Copy `state` into `model`; every key must be there with the right shape.

    Old layouts of the same parameters (text tower at top level, scale as a vector) are accepted.
    Raises CompoclipError naming the file, the architecture, one key and both shapes.
    """
    own = model.state_dict()
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
