"""LoRA adapters in the layout of Hugging Face's PEFT, on a CLIPModel: read and written.

    adapter_config.json         rank, alpha, adapted modules, base
    adapter_model.safetensors   base_model.model.<module>.lora_A.weight and .lora_B.weight

PEFT adapts query, key and value projections each on its own; open_clip's fused projection has one
A for all three (see `lora`). From here to PEFT each third gets a copy of A and its rows of
B. Back, three different A are stacked (rank 3 r) with B block by block; all is exact. A patch
embedding of PEFT is a rank-r map from k x k patches, ours a (out k, in k) matrix: either is written
with the full change as one factor and an identity as the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import regex
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from compoclip.errors import CompoclipError, UsageError
from compoclip.files import new_folder
from compoclip.models.checkpoint import (
    Above,
    Adapted,
    Format,
    LoadedModel,
    load_model,
    merged_model,
    open_model,
)
from compoclip.models.config import read_object, write_json
from compoclip.models.formats.hf_clip import NAMES
from compoclip.models.formats.hf_folder import model_type_of
from compoclip.models.formats.hub import HUB
from compoclip.models.lora import Lora, full_rank, lora_targets, towers_of
from compoclip.models.weights import read_state_dict

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PATCHES, _PATCHES_HF = "visual.conv1.weight", "vision_model.embeddings.patch_embedding"
_QKV = ("q_proj", "k_proj", "v_proj")
_ATTENTION = r"(vision|text)_model\.encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj"
_PATTERN_SECONDS = 1.0  # that a pattern of the file may take
_REFUSED = ("use_dora", "modules_to_save", "layer_replication", "fan_in_fan_out", "lora_bias")


class PeftFolder(Format):
    """LoRA weights that Hugging Face's PEFT saved."""

    kind = "PEFT adapter folder, merged into its base"
    known_by = "the base"
    order = 11
    markers = (CONFIG,)
    stored = WEIGHTS
    downloads = (WEIGHTS,)
    forms = ("peft",)
    adapters_only = True

    def load(self, source: str, name: str, activation: str | None, above: Above) -> LoadedModel:
        """The base that the folder names, with the adapters merged."""
        base = _base_of(Path(source))
        if base is None:
            raise CompoclipError(
                f"{source}: does not say what it was trained on: compoclip convert {source} DST "
                "--to merged --base BASE"
            )
        return merge_peft(open_model(base, activation), Path(source))

    def load_on(self, source: str, base: str, activation: str | None) -> LoadedModel:
        """The adapters merged into the base that the user names."""
        return merge_peft(load_model(base, activation=activation), Path(source))

    def adapted(self, source: str, base: str | None, activation: str | None) -> Adapted:
        """The adapters in the form of `lora`, on the base that is named by the user or by them."""
        stated = base or _base_of(Path(source))
        if stated is None:
            raise UsageError(f"{source}: does not say what it was trained on: give --base BASE")
        start = load_model(stated, activation=activation)
        adapters, lora = read_peft(Path(source), start.encoder.model)
        return Adapted(start, lora, adapters, {"peft": Path(source).name})

    def save_adapted(self, adapted: Adapted, folder: Path) -> None:
        """Write the folder, for the CLIPModel of the base. Raises CompoclipError when a weight is
        not one of a CLIPModel."""
        shapes = adapted.base.encoder.model.state_dict()
        state: dict[str, Tensor] = {}
        ranks: dict[str, int] = {}
        alphas: dict[str, float] = {}
        modules: set[str] = set()
        for name in (key.removesuffix(".a") for key in adapted.adapters if key.endswith(".a")):
            a, b = adapted.adapters[f"{name}.a"].float(), adapted.adapters[f"{name}.b"].float()
            if name.removeprefix("text.") == _PATCHES:
                change = (b @ a).reshape(shapes[name].shape) * adapted.lora.scaling
                out = len(change)
                module = _PATCHES_HF
                state |= _pair(module, change, torch.eye(out)[:, :, None, None])
                ranks[module], alphas[module] = out, float(out)
                modules.add(module)
                continue
            for module, rows in _modules(name, b):
                state |= _pair(module, a.clone(), rows.contiguous())
                modules.add(module)
        config = {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": _place_of(adapted.base.name),
            "inference_mode": True,
            "r": adapted.lora.rank,
            "lora_alpha": adapted.lora.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "init_lora_weights": True,
            "target_modules": sorted(modules),
            "rank_pattern": ranks,
            "alpha_pattern": alphas,
        }
        with new_folder(folder) as temporary:
            save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
            write_json(temporary / CONFIG, config)


def merge_peft(base: LoadedModel, folder: Path) -> LoadedModel:
    """A plain model: `base`, which stays as it is, with a PEFT adapter merged.

    Raises CompoclipError when the folder is damaged, or does not fit the base.
    """
    adapters, lora = read_peft(folder, base.encoder.model)
    provenance = {"peft": {"base": base.name}}
    return merged_model(Adapted(base, lora, adapters, provenance), str(folder), folder)


def _place_of(name: str) -> str | None:
    """Where PEFT can load a base from: a folder of transformers, or an id of the hub."""
    if name.startswith(HUB):
        return name.removeprefix(HUB)
    folder = Path(name)
    return str(folder.absolute()) if model_type_of(folder) else None


def _base_of(folder: Path) -> str | None:
    """The base that a PEFT folder names, as `load_model` takes it: a folder or an id of the hub."""
    base = read_object(folder / CONFIG).get("base_model_name_or_path")
    if not base:
        return None
    return str(base) if Path(str(base)).is_dir() else f"{HUB}{base}"


def read_peft(folder: Path, network: nn.Module) -> tuple[dict[str, Tensor], Lora]:
    """A PEFT folder as adapters on an open_clip network (names of `lora.lora_state`), with
    zeros for the layers that it leaves alone.

    Raises CompoclipError when it is damaged, adapts what our adapters do not (then merge it with
    PEFT), or does not fit the network.
    """
    source = folder / CONFIG
    config = read_object(source)
    used = [key for key in _REFUSED if config.get(key)]
    if config.get("peft_type") != "LORA" or used or config.get("bias", "none") != "none":
        odd = used[0] if used else f"peft_type {config.get('peft_type')}, bias {config.get('bias')}"
        raise CompoclipError(
            f"{source}: {odd}: only plain LoRA is read; merge it with PEFT (merge_and_unload) and "
            "load the CLIPModel folder"
        )
    try:
        return _on_network(folder, network, _read_pairs(folder, config))
    except (IndexError, RuntimeError, TypeError, ValueError) as error:  # of taking tensors apart
        first = (str(error).splitlines() or [""])[0]
        raise CompoclipError(
            f"{folder}: its tensors have not the shapes of LoRA weights ({first}); restore the "
            "original files"
        ) from error


def _on_network(
    folder: Path, network: nn.Module, changes: Mapping[str, tuple[Tensor, Tensor]]
) -> tuple[dict[str, Tensor], Lora]:
    """The adapters in `changes` on a network, with zeros for the layers that they leave alone."""
    towers = towers_of(changes)
    conv = _PATCHES in changes
    lora = Lora(rank=1, alpha=1.0, towers=towers, targets="+conv" if conv else "linear")
    targets = {target.name: target for target in lora_targets(network, lora)}
    own = {name: value.shape for name, value in network.state_dict().items()}
    for name in changes:
        if name not in targets:
            raise CompoclipError(
                f"{folder}: adapts '{name}', which is no attention or MLP layer of the model: "
                "merge it with PEFT (merge_and_unload) and load the CLIPModel folder"
            )
    rank = max((len(a) for name, (a, _) in changes.items() if name != _PATCHES), default=1)
    full = max(full_rank(target) for target in targets.values())
    if rank > len(_QKV) * full:  # each projection may bring its own
        raise CompoclipError(f"{folder}: rank {rank:,} is above that of every layer, {full:,}")
    if conv:
        rank = max(rank, math.ceil(changes[_PATCHES][0].shape[1] / own[_PATCHES][-1]))
    adapters: dict[str, Tensor] = {}
    for name, target in targets.items():
        rows = rank * (own[name][-1] if name == _PATCHES else 1)
        a = torch.zeros(rows, target.a_shape[1])
        b = torch.zeros(target.b_shape[0], rows)
        if name in changes:
            found_a, found_b = changes[name]
            if found_a.shape[1] != a.shape[1] or len(found_b) != len(b):
                raise CompoclipError(
                    f"{folder}: the adapter of '{name}' maps {found_a.shape[1]} to {len(found_b)} "
                    f"and the model has {a.shape[1]} to {len(b)}: it is for another architecture"
                )
            a[: len(found_a)], b[:, : len(found_a)] = found_a, found_b
        adapters[f"{name}.a"], adapters[f"{name}.b"] = a, b
    # scaling is part of B already: alpha / rank = 1
    return adapters, Lora(rank=rank, alpha=float(rank), towers=towers, targets=lora.targets)


def _pair(module: str, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    return {
        f"{_PREFIX}{module}.lora_A.weight": a.contiguous(),
        f"{_PREFIX}{module}.lora_B.weight": b.contiguous(),
    }


def _modules(name: str, b: Tensor) -> list[tuple[str, Tensor]]:
    """The CLIPModel modules of an adapted open_clip weight, each with its B."""
    plain = name.removeprefix("text.")
    try:
        if plain.endswith(".attn.in_proj_weight"):
            sibling = NAMES.theirs(plain.replace("in_proj_weight", "out_proj.weight"))
            stem = sibling.removesuffix("out_proj.weight")
            return [(f"{stem}{part}", third) for part, third in zip(_QKV, b.chunk(3))]
        return [(NAMES.theirs(plain).removesuffix(".weight"), b)]
    except KeyError as error:
        raise CompoclipError(
            f"'{name}' is no weight of Hugging Face's CLIPModel, so PEFT cannot hold its adapter: "
            "use --to merged or --to onnx"
        ) from error


def _read_pairs(folder: Path, config: Mapping[str, Any]) -> dict[str, tuple[Tensor, Tensor]]:
    """open_clip weight -> (A, B) with the scaling multiplied into B."""
    weights = folder / WEIGHTS
    if not weights.is_file():
        weights = folder / "adapter_model.bin"
    if not weights.is_file():
        raise CompoclipError(f"{folder}: has no weights; expected {WEIGHTS}")
    state = {
        key.removeprefix(_PREFIX): value.float() for key, value in read_state_dict(weights).items()
    }
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    thirds: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
    for key, a in state.items():
        module, found, ending = key.rpartition(".lora_A.weight")
        if not found or ending:
            if not key.endswith(".lora_B.weight"):
                raise CompoclipError(f"{weights}: '{key}' is no LoRA weight of a CLIPModel")
            continue
        b = state.get(f"{module}.lora_B.weight")
        if b is None:
            raise CompoclipError(f"{weights}: '{module}' has no lora_B; get the whole file")
        scale = _scaling(module, config, len(a), weights)
        if module == _PATCHES_HF:
            change = scale * torch.einsum("or,rikl->oikl", b[:, :, 0, 0], a)
            out, inner, kernel, _ = change.shape
            flat = change.reshape(out * kernel, inner * kernel)
            pairs[_PATCHES] = (torch.eye(inner * kernel), flat)
            continue
        part = re.fullmatch(_ATTENTION, module)
        if part:
            tower = "visual." if part[1] == "vision" else ""
            name = f"{tower}transformer.resblocks.{part[2]}.attn.in_proj_weight"
            thirds.setdefault(name, {})[part[3]] = (a, scale * b)
            continue
        try:
            pairs[NAMES.ours(f"{module}.weight")] = (a, scale * b)
        except KeyError as error:
            raise CompoclipError(
                f"{weights}: adapts '{module}', which our adapters do not: merge it with PEFT "
                "(merge_and_unload) and load the CLIPModel folder"
            ) from error
    if not pairs and not thirds:
        raise CompoclipError(f"{weights}: has no LoRA weights")
    return pairs | {name: _fused(parts) for name, parts in thirds.items()}


def _fused(parts: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One (A, B) of a fused projection from those of some of its thirds."""
    first = next(iter(parts.values()))
    rows = len(first[1])
    zero = torch.zeros(rows, len(first[0]))
    if all(torch.equal(a, first[0]) for a, _ in parts.values()):
        return first[0], torch.cat([parts[key][1] if key in parts else zero for key in "qkv"])
    a = torch.cat([a for a, _ in parts.values()])
    b = torch.zeros(3 * rows, len(a))
    column = 0
    for key, (one, other) in parts.items():
        start = "qkv".index(key) * rows
        b[start : start + rows, column : column + len(one)] = other
        column += len(one)
    return a, b


def _scaling(module: str, config: Mapping[str, Any], rank: int, source: Path) -> float:
    """alpha / rank of a module, as PEFT resolves its patterns."""
    try:
        alpha = float(_of_pattern(config.get("alpha_pattern"), module, config["lora_alpha"]))
        stated = int(_of_pattern(config.get("rank_pattern"), module, config["r"]))
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise CompoclipError(f"{source.parent / CONFIG}: damaged ({error})") from error
    if stated != rank:
        raise CompoclipError(
            f"{source}: '{module}' has rank {rank} and {CONFIG} says {stated}: parts of several "
            "files were mixed"
        )
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _of_pattern(patterns: Any, module: str, default: Any) -> Any:
    for pattern, value in dict(patterns or {}).items():
        try:
            if regex.match(rf"(.*\.)?({pattern})$", module, timeout=_PATTERN_SECONDS):
                return value
        except (regex.error, TimeoutError) as error:
            raise ValueError(
                f"the pattern {str(pattern)[:80]!r} is wrong or takes too long"
            ) from error
    return default
