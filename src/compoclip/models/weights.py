"""State dicts on disk: read without running code, compared before loading, hashed by value."""

from __future__ import annotations

import hashlib
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import open_clip
import torch
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from safetensors.torch import load_file
from torch import Tensor, nn

from compoclip.errors import CompoclipError
from compoclip.files import disguised, reason
from compoclip.models.config import Part, part_of

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
_WRAPPERS = 8  # at most, one around the other
_SHARED = 4  # times the size of its file that the tensors of a model may have: some name one twice


@dataclass(frozen=True)
class WeightsFile:
    """The content of a weights file.

    state: tensors by name, without `prefix`. entry: the key they were found under ("" for a plain
    state dict). facts: the other entries of the file that are numbers or short texts, e.g. epoch.
    """

    state: dict[str, Tensor]
    entry: str = ""
    prefix: str = ""
    facts: Mapping[str, str | int | float] = field(default_factory=dict)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Return the tensors of `read_weights`."""
    return read_weights(path).state


def read_weights(path: Path) -> WeightsFile:
    """Read tensors by name from a .safetensors file or a PyTorch file that holds nothing but data.

    Takes them from an entry "state_dict", "model_state_dict" or "model" beside an optimiser's
    state, and strips "module." and its like. Raises CompoclipError when the file is missing, cut
    short, holds code, or holds no tensors; and naming a tensor that is not of finite floats (what
    counts or places, such as "num_batches_tracked", may be integers).
    """
    if not path.is_file():
        raise CompoclipError(f"{path}: no such weights file")
    data = _content(path)
    entry, tensors = "", data
    facts: dict[str, str | int | float] = {}
    if isinstance(data, Mapping):
        entry = next((key for key in _ENTRIES if isinstance(data.get(key), Mapping)), "")
        tensors = data[entry] if entry else data
        for key, value in data.items() if entry else ():
            number = isinstance(value, int | float) and abs(value) < 2**63
            if number or (isinstance(value, str) and len(value) <= 200):
                facts[str(key)] = value
    if not isinstance(tensors, Mapping) or not tensors:
        raise CompoclipError(f"{path}: holds no state dict")
    state = {str(name): value for name, value in tensors.items() if name not in _IGNORED}
    named = 0
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CompoclipError(
                f"{path}: '{name}' is not a tensor, so this is not a state dict; expected tensors "
                f"by name, alone or under {' or '.join(map(repr, _ENTRIES))}"
            )
        if kind := _odd_kind(name, value):
            raise CompoclipError(
                f"{path}: '{name}' is {kind}, and weights are plain tensors of floats: save the "
                "float32 state_dict() of the model, as it was before it was quantised or packed"
            )
        named += value.numel() * value.element_size()
    size = path.stat().st_size
    if named > _SHARED * size:
        raise CompoclipError(
            f"{path}: names {named:,} bytes of tensors and has {size:,}: save contiguous tensors"
        )
    require_finite(state, str(path))
    prefix = ""
    for _ in range(_WRAPPERS):
        outer = next((p for p in _PREFIXES if any(name.startswith(p) for name in state)), "")
        if not outer:
            break
        names = [name.removeprefix(outer) for name in state]
        twice, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise CompoclipError(
                f"{path}: has '{twice}' with and without '{outer}': it holds two models; "
                "save the one you mean"
            )
        state = {name: value for name, value in zip(names, state.values()) if name not in _IGNORED}
        prefix += outer
    return WeightsFile(state, entry, prefix, facts)


def _content(path: Path) -> Any:
    """Return the unpickled or mapped content of a file; code in it is never run."""
    if wrong := disguised(path):
        raise CompoclipError(f"{path}: {wrong}")
    safe = path.suffix == ".safetensors"
    if not safe:
        size, unpacked, script = path.stat().st_size, 0, False
        with suppress(Exception), zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
            script = any(name.endswith("/constants.pkl") for name in archive.namelist())
        if script:
            name = f"{path.stem.removesuffix('px')}-quickgelu"
            name = name if name in open_clip.list_models() else "ViT-B-32-quickgelu"
            raise CompoclipError(
                f"{path}: not a plain PyTorch state dict but a TorchScript archive, whose code is "
                f"never run: for OpenAI's own weights write {name}:openai, of others save the "
                "state_dict() as .safetensors"
            )
        if unpacked > size:
            raise CompoclipError(
                f"{path}: unpacks from {size:,} to {unpacked:,} bytes, which PyTorch's own files "
                "do not: download it again, or save it with torch.save"
            )
    try:
        if safe:
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on the file's form; errors say it better
            return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError as error:
        raise CompoclipError(f"{path}: does not fit into this machine's memory") from error
    except Exception as error:  # what a reader says of bytes that are no weights has any type
        why = f"damaged or cut short ({reason(error)}); copy or download it again"
        if not safe:
            why = (
                "not a plain PyTorch state dict; it is damaged or holds code (pickled objects), "
                "which is never run: copy or download it again, or save its state_dict() as "
                ".safetensors"
            )
        raise CompoclipError(f"{path}: {why}") from error


def _odd_kind(name: str, value: Tensor) -> str:
    """Why a tensor is no plain one, or no weight of floats; "" when it is."""
    if value.is_quantized:
        return "quantised"
    if value.is_meta:
        return "without values (on the device meta)"
    if value.is_nested or value.layout != torch.strided:
        return "sparse or nested"
    weight = name.endswith(("weight", "bias"))
    return _dtype(value) if weight and not value.is_floating_point() else ""


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def require_finite(state: Mapping[str, Tensor], source: str) -> None:
    """Raise CompoclipError naming `source` and the first tensor with a value that is not finite."""
    for name, value in state.items():
        # numbers of 8 bits have no such test
        plain = value.float() if value.element_size() == 1 else value
        # a sum is finite only if all its terms are, and takes a sixth of the time
        if value.is_floating_point() and not (plain.sum().isfinite() or plain.isfinite().all()):
            raise CompoclipError(
                f"{source}: '{name}' holds values that are not finite: the weights are damaged or "
                "their training diverged; use another checkpoint"
            )


def load_into(model: nn.Module, state: Mapping[str, Tensor], source: str, name: str) -> None:
    """Copy `state` into `model`. Raises like `fitting`."""
    model.load_state_dict(fitting(model, state, source, name))


def fitting(
    model: nn.Module, state: Mapping[str, Tensor], source: str, name: str
) -> dict[str, Tensor]:
    """Return `state` under the names of `model`, where every key must be with the right shape.

    Old layouts of the same parameters (text tower at top level, scale as a vector) are accepted.
    Raises CompoclipError naming the file, the architecture, one key and both shapes; and a tensor
    that is not of floats where the network's is.
    """
    own, problem = model.state_dict(), ""
    found: dict[str, Tensor] = dict(state)
    if any(key.startswith("image_encoder.") for key in found):  # Apple's MobileCLIP files
        try:
            found = convert_state_dict(model, found)
        except Exception:  # it takes the names and shapes of those files for granted
            problem = "the file has names of Apple's MobileCLIP"
    if "text.positional_embedding" in own:
        found = convert_to_custom_text_state_dict(found)
    for key in {"logit_scale", "logit_bias"} & own.keys() & found.keys():
        if own[key].numel() == found[key].numel():
            found[key] = found[key].reshape(own[key].shape)
    if problem := problem or mismatch(own, found):
        raise CompoclipError(f"{source}: not the weights of {name}: {problem}")
    return found


def mismatch(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """The first difference in names, shapes or kinds of number between an architecture's tensors
    and a file's, in words; "" without one."""
    for key, value in own.items():
        if key in state and state[key].shape != value.shape:
            return (
                f"'{key}' is {tuple(state[key].shape)} in the file "
                f"and {tuple(value.shape)} in the architecture"
            )
        if key in state and value.is_floating_point() and not state[key].is_floating_point():
            return f"'{key}' is {_dtype(state[key])} in the file, and weights are floats"
    for key, value in own.items():
        if key not in state:
            return f"the file lacks '{key}' {tuple(value.shape)}"
    for key, value in state.items():
        if key not in own:
            return f"the architecture has no '{key}' {tuple(value.shape)}"
    return ""


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


def counts(plain: Mapping[str, Tensor], adapters: Mapping[str, Tensor]) -> dict[str, int]:
    """Parameters by part (image, text, temperature, adapter, total).

    Running statistics of batch norms in a file are not parameters.
    """
    found = {"image": 0, "text": 0, "temperature": 0}
    for name, value in plain.items():
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            found[part_of(name)] += value.numel()
    found["adapter"] = sum(value.numel() for value in adapters.values())
    return found | {"total": sum(found.values())}


def dtypes(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Number of tensors by number format."""
    return dict(Counter(map(_dtype, state.values())))


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


# Kinship: what tells the activation of weights that do not record it.
#
# A fine-tuned weight stays near its start: the relative distance |W - W0| / |W0| of the matrices is
# a few hundredths at published learning rates, while weights trained from another start are about
# as far away as unrelated vectors of that length (1.4). Nothing lies between the two, so the
# distance is a fingerprint of the base and with it of the activation both were trained with.

NEAR, FAR = 0.5, 0.9

Verdict = Literal["same", "derived", "unclear", "unrelated"]


@dataclass(frozen=True)
class Kinship:
    """The distance between two sets of weights of one architecture.

    image, text: the median over the matrices of that tower of |W - W0| / |W0|. compared: how many
    matrices that is. changed: how many tensors of all differ in any value.
    """

    image: float
    text: float
    compared: int
    changed: int

    @property
    def verdict(self) -> Verdict:
        """ "same" when no value differs, "derived" when both towers are near, "unrelated" when
        both are far, else "unclear"."""
        if self.changed == 0:
            return "same"
        if max(self.image, self.text) < NEAR:
            return "derived"
        return "unrelated" if min(self.image, self.text) > FAR else "unclear"

    def describe(self) -> str:
        """ "image tower 0.012, text tower 0.034 from it"."""
        return f"image tower {self.image:.3f}, text tower {self.text:.3f} from it"


def named_like(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict under the names of `own`: text tower at top level or below "text."."""
    if "text.positional_embedding" in own and "text.positional_embedding" not in state:
        return {(f"text.{k}" if f"text.{k}" in own else k): v for k, v in state.items()}
    return dict(state)


def kinship(state: Mapping[str, Tensor], base: Mapping[str, Tensor], source: str) -> Kinship:
    """Compare two state dicts of one architecture; a shorter positional table is compared with the
    first rows of the longer.

    Raises CompoclipError naming `source` when names or shapes differ otherwise, and when either
    tower has no matrix.
    """
    distances: dict[Part, list[float]] = {"image": [], "text": [], "temperature": []}
    changed = 0
    for name, start in base.items():
        value = state.get(name, torch.empty(0))
        if name.endswith("positional_embedding") and value.ndim == start.ndim == 2:
            rows = min(len(value), len(start))
            value, start = value[:rows], start[:rows]
        if name not in state or value.numel() != start.numel():
            theirs = f"is {tuple(value.shape)}" if name in state else "is lacking"
            raise CompoclipError(
                f"{source}: '{name}' {theirs} and {tuple(start.shape)} in the base: another "
                "architecture"
            )
        if not start.is_floating_point():
            continue
        one, other = (x.detach().cpu().float().reshape(-1) for x in (value, start))
        changed += int(not torch.equal(one, other))
        norm = float(other.norm())
        if start.ndim >= 2 and norm > 0:
            distances[part_of(name)].append(float((one - other).norm()) / norm)
    if not distances["image"] or not distances["text"]:
        raise CompoclipError(f"{source}: has no weight matrices to compare with the base")
    return Kinship(
        image=median(distances["image"]),
        text=median(distances["text"]),
        compared=len(distances["image"]) + len(distances["text"]),
        changed=changed,
    )
