"""State dicts on disk: read without running code, compared before loading, hashed by value."""

from __future__ import annotations

import hashlib
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import open_clip
import torch
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from safetensors import safe_open
from torch import Tensor, nn

from compoclip.bounds import MAX_SHARED, MAX_WRAPPERS
from compoclip.errors import CompoclipError, require
from compoclip.files import disguised, reason
from compoclip.models.config import Part, part_of
from compoclip.patterns import has_ending

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
_MAPPED_BYTES = 1 << 26  # after which a file is mapped anew


@dataclass(frozen=True)
class WeightsFile:
    """The content of a weights file.

    state: tensors by name, without `prefix`. entry: the key they were found under ("" for a plain
    state dict). facts: the other entries of the file that are numbers or short texts, e.g. epoch.
    others: the other entries that hold tensors, e.g. an average of the weights.
    """

    state: dict[str, Tensor]
    entry: str = ""
    prefix: str = ""
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    others: tuple[str, ...] = ()


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Return the tensors of `read_weights`."""
    return read_weights(path).state


def read_weights(path: Path, part: str = "") -> WeightsFile:
    """Read tensors by name from a .safetensors file or a PyTorch file that holds nothing but data.

    Takes them from an entry "state_dict", "model_state_dict" or "model" beside an optimiser's
    state, and strips "module." and its like. Raises CompoclipError when the file is missing, cut
    short, holds code, or holds no tensors; and naming a tensor that is not of finite floats (what
    counts or places, such as "num_batches_tracked", may be integers).

    part: the entry to take, or the beginning of the names to take, which they lose.
    """
    require(path.is_file(), path, "no such weights file")
    tensors, entry = _content(path), ""
    facts: dict[str, str | int | float] = {}
    others: tuple[str, ...] = ()
    if isinstance(tensors, Mapping):
        usual = (key for key in (part, *_ENTRIES) if isinstance(tensors.get(key), Mapping))
        entry = next(usual, "")
        others = tuple(
            str(key)
            for key, value in tensors.items()
            if key != entry and isinstance(value, Mapping) and value
            if all(isinstance(tensor, Tensor) for tensor in value.values())
        )
        if others and not entry:
            raise CompoclipError(
                f"{path}: holds weights under names that are not usual; {_choice(path, others)}"
            )
    if entry:
        for key, value in tensors.items():
            number = isinstance(value, int | float) and abs(value) < 2**63
            if number or (isinstance(value, str) and len(value) <= 200):
                facts[str(key)] = value
        tensors = tensors[entry]
    require(isinstance(tensors, Mapping) and tensors, path, "holds no state dict")
    state = {str(name): value for name, value in tensors.items() if name not in _IGNORED}
    named = 0
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CompoclipError(
                f"{path}: '{name}' is not a tensor, so this is not a state dict; expected tensors "
                f"by name, alone or under {' or '.join(map(repr, _ENTRIES))}"
            )
        unusual = value.is_quantized or value.is_meta or value.is_nested
        floats = value.is_floating_point() or not name.endswith(("weight", "bias"))
        if unusual or value.layout != torch.strided or not floats:
            raise CompoclipError(
                f"{path}: '{name}' is no plain tensor of floats ({_dtype(value)}): save the "
                "float32 state_dict() of the model, as it was before it was quantised or packed"
            )
        named += value.numel() * value.element_size()
    size = path.stat().st_size
    if named > MAX_SHARED * size:
        raise CompoclipError(
            f"{path}: names {named:,} bytes of tensors and has {size:,}: save contiguous tensors"
        )
    require_finite(state, str(path))
    prefix, rest = "", part if part != entry else ""
    if rest and any(name.startswith(rest) for name in state):
        state, rest = _below(state, rest), ""
    for _ in range(MAX_WRAPPERS):
        outer = next((p for p in _PREFIXES if any(name.startswith(p) for name in state)), "")
        if not outer or any(".visual." in name and not name.startswith(outer) for name in state):
            break
        names = [name.removeprefix(outer) for name in state]
        twice, times = Counter(names).most_common(1)[0]
        if times != 1:
            raise CompoclipError(
                f"{path}: has '{twice}' with and without '{outer}': it holds two models; save the "
                "one you mean"
            )
        state = {name: value for name, value in zip(names, state.values()) if name not in _IGNORED}
        prefix += outer
    if rest:
        state = _below(state, rest)
        if not state:
            remedy = f"; {_choice(path, others)}" if others else ""
            raise CompoclipError(
                f"{path}: has no entry '{part}' and no names that begin so{remedy}"
            )
    return WeightsFile(state, entry, prefix, facts, others)


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _choice(path: Path, parts: Iterable[str]) -> str:
    """Return how a user picks one of several parts of a weights file."""
    return f"write one of {', '.join(f'{path}#{part}' for part in parts)}"


def require_one_model(content: WeightsFile, path: Path) -> WeightsFile:
    """Return the tensors without a prefix that all names share, e.g. "clip_model.".

    Raises CompoclipError naming the prefixes, and how to pick one, when there are several models,
    as of a student and a teacher, or other tensors beside one.
    """
    places = {name: f".{name}".find(".visual.") for name in content.state}
    prefixes = sorted({name[:place] for name, place in places.items() if place >= 0})
    if not prefixes or prefixes == [""]:
        return content
    outside = [name for name in content.state if not name.startswith(tuple(prefixes))]
    if len(prefixes) != 1 or outside:
        models = " and one below ".join(repr(prefix) for prefix in prefixes)
        other = f", and '{outside[0]}' beside" if outside else ""
        raise CompoclipError(
            f"{path}: holds a model below {models}{other}; {_choice(path, filter(None, prefixes))}"
        )
    state = _below(content.state, prefixes[0])
    return replace(content, state=state, prefix=content.prefix + prefixes[0])


def _content(path: Path) -> Any:
    """Return the unpickled or mapped content of a file; code in it is never run."""
    disguise = disguised(path)
    require(not disguise, path, disguise)
    safe = has_ending(path, ".safetensors")
    if not safe:
        _refuse_archive(path)
    try:
        if safe:
            return _tensors(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on the file's form; errors say it better
            return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError as error:
        raise CompoclipError(f"{path}: does not fit into this machine's memory") from error
    except Exception as error:  # what a reader says of bytes that are no weights has any type
        if safe:
            raise CompoclipError(
                f"{path}: damaged or cut short ({reason(error)}); copy or download it again"
            ) from error
        raise CompoclipError(
            f"{path}: not a plain PyTorch state dict; it is damaged or holds code (pickled "
            "objects), which is never run: copy or download it again, or save its state_dict() as "
            ".safetensors"
        ) from error


def _refuse_archive(path: Path) -> None:
    """Raise CompoclipError for a zip archive with code, or one that PyTorch has not written."""
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
            f"{path}: unpacks from {size:,} to {unpacked:,} bytes, which PyTorch's own files do "
            "not: download it again, or save it with torch.save"
        )


def _tensors(path: Path) -> dict[str, Tensor]:
    """Read a .safetensors file tensor by tensor.

    The file is mapped anew now and then, so that what is read does not stay in memory beside its
    copy.
    """
    with safe_open(path, "pt") as file:
        names = list(file.keys())
    tensors: dict[str, Tensor] = {}
    while len(tensors) < len(names):
        mapped = 0
        with safe_open(path, "pt") as file:
            for name in names[len(tensors) :]:
                tensors[name] = file.get_tensor(name).clone()
                mapped += tensors[name].nbytes
                if mapped > _MAPPED_BYTES:
                    break
    return tensors


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


def load_into(
    model: nn.Module, state: Mapping[str, Tensor], source: str, name: str, assign: bool = False
) -> None:
    """Load `state` into `model`. Raises like `fitting`.

    assign: whether nothing else keeps the tensors; they then become the parameters, without a copy.
    """
    tensors = fitting(model, state, source, name)
    present = model.state_dict(keep_vars=True)
    tied = len({id(value) for value in present.values()}) < len(present)
    if assign and not tied:
        tensors = _apart({k: v.detach().to(present[k].dtype) for k, v in tensors.items()})
    model.load_state_dict(tensors, assign=assign and not tied)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that share no memory: those that do, or are parts of a larger one, copied."""
    apart: dict[str, Tensor] = {}
    places = set[int]()
    for name, value in tensors.items():
        storage = value.untyped_storage()
        alone = storage.nbytes() == value.nbytes and storage.data_ptr() not in places
        places.add(storage.data_ptr())
        plain = alone and value.is_contiguous()
        apart[name] = value if plain else value.clone(memory_format=torch.contiguous_format)
    return apart


def fitting(
    model: nn.Module, state: Mapping[str, Tensor], source: str, name: str
) -> dict[str, Tensor]:
    """Return `state` under the names of `model`, where every key must be with the right shape.

    Old layouts of the same parameters (text tower at top level, scale as a vector) are accepted.
    Raises CompoclipError naming the file, the architecture `name`, one key and both shapes; and a
    tensor that is not of floats where the network's is.
    """
    expected, problem = model.state_dict(), ""
    tensors: dict[str, Tensor] = dict(state)
    if any(key.startswith("image_encoder.") for key in tensors):  # Apple's MobileCLIP files
        try:
            tensors = convert_state_dict(model, tensors)
        except Exception:  # it takes the names and shapes of those files for granted
            problem = "the file has names of Apple's MobileCLIP"
    if "text.positional_embedding" in expected:
        tensors = convert_to_custom_text_state_dict(tensors)
    for key in {"logit_scale", "logit_bias"} & expected.keys() & tensors.keys():
        if expected[key].numel() == tensors[key].numel():
            tensors[key] = tensors[key].reshape(expected[key].shape)
    problem = problem or mismatch(expected, tensors)
    require(not problem, source, f"not the weights of {name}: {problem}")
    return tensors


def mismatch(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """Return the first difference in names, shapes or kinds of number between an architecture's
    tensors and a file's, in words; "" without one."""
    for key, value in expected.items():
        theirs = state.get(key, value)
        if theirs.shape != value.shape:
            here = tuple(value.shape)
            return f"'{key}' is {tuple(theirs.shape)} in the file and {here} in the architecture"
        if value.is_floating_point() and not theirs.is_floating_point():
            return f"'{key}' is {_dtype(theirs)} in the file, and weights are floats"
    for has, lacks, words in (
        (expected, state, "the file lacks"),
        (state, expected, "the architecture has no"),
    ):
        for key, value in has.items():
            if key not in lacks:
                return f"{words} '{key}' {tuple(value.shape)}"
    return ""


def as_stored(state: Mapping[str, Tensor], dtype: str, name: str) -> dict[str, Tensor]:
    """Return tensors on the CPU in float32; with "float16" matrices are rounded to that.

    name: of the model. Raises CompoclipError for another dtype, when a value does not fit float16,
    and when one is not finite.
    """
    require_finite(state, name)
    if dtype not in ("float32", "float16"):
        raise CompoclipError(f"checkpoint dtype: '{dtype}' is not float32 or float16")
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


def counts(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Return numbers of parameters by part (image, text, temperature, total).

    Running statistics of batch norms in a file are not parameters.
    """
    numbers = {"image": 0, "text": 0, "temperature": 0}
    for name, value in state.items():
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            numbers[part_of(name)] += value.numel()
    return numbers | {"total": sum(numbers.values())}


def dtypes(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of tensors by number format."""
    return dict(Counter(map(_dtype, state.values())))


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """Return blake2b over names, shapes and values of all tensors, in order of name.

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


def kinship(state: Mapping[str, Tensor], base: Mapping[str, Tensor], source: str) -> dict[str, Any]:
    """Return the distance of a state dict from another of its architecture.

    A text tower at top level is compared with one below "text.", a shorter positional table with
    the first rows of the longer.

    Returns:
        "image", "text": the median over the matrices of that tower of |W - W0| / |W0|; "distance":
        both in words; "changed": how many tensors differ in any value; "verdict": "same" when none
        does, "derived" when both towers are near, "unrelated" when both are far, else "unclear".

    Raises CompoclipError naming `source` when names or shapes differ otherwise, and when either
    tower has no matrix.
    """
    if "text.positional_embedding" in base and "text.positional_embedding" not in state:
        state = {(f"text.{k}" if f"text.{k}" in base else k): v for k, v in state.items()}
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
    image, text = median(distances["image"]), median(distances["text"])
    verdict = "unrelated" if min(image, text) > FAR else "unclear"
    verdict = "derived" if max(image, text) < NEAR else verdict
    return {
        "verdict": verdict if changed else "same",
        "distance": f"image tower {image:.3f}, text tower {text:.3f} from it",
        "image": image,
        "text": text,
        "changed": changed,
    }
