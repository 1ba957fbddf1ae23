"""Low-rank adapters without their base, in the layout of Hugging Face's PEFT.

    adapter_config.json         PEFT's: rank, alpha, adapted modules, base
    adapter_model.safetensors   base_model.model.<module>.lora_A.weight and .lora_B.weight
    adapter.json                identity of the base, LoRA settings, provenance (compoclip only)

Modules have the names of the base's CLIPModel or SiglipModel; for other bases, open_clip's names.
PEFT adapts query, key and value projections separately; open_clip's fused projection has one A for
all three (see `lora`). To write PEFT, each third gets a copy of A and its rows of B. To read PEFT,
three different A are stacked (rank 3 r) with B block by block. Both are exact. PEFT's patch
embedding is a rank-r map from k x k patches, ours a (out k, in k) matrix: it is written with the
full change as one factor and an identity as the other, and unchanged ("<name>.a", "<name>.b").
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import regex
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from compoclip.bounds import MAX_PATTERN_SECONDS
from compoclip.errors import CompoclipError, UsageError, quoted, require, typed_repr
from compoclip.files import new_folder
from compoclip.models.checkpoint import (
    Adapted,
    Format,
    LoadedModel,
    assemble,
    load_model,
    open_model,
    override_activation,
)
from compoclip.models.config import (
    ModelIdentity,
    known_settings,
    read_object,
    section,
    sound,
    write_json,
)
from compoclip.models.formats.closed_list import check_entries, unread_files
from compoclip.models.formats.hf_files import ParameterNames, model_type_of
from compoclip.models.formats.hugging_face import HFClip, HFSiglip
from compoclip.models.lora import (
    Lora,
    adapted_names,
    lora_state,
    lora_targets,
    merged_state,
    towers_of,
)
from compoclip.models.names import HUB, split_part
from compoclip.models.weights import mismatch, read_state_dict, require_finite
from compoclip.typed import Count, read_fields
from compoclip.version import __version__

CONFIG, WEIGHTS, RECORD = "adapter_config.json", "adapter_model.safetensors", "adapter.json"
_WEIGHT_FILES = (WEIGHTS, "adapter_model.bin")  # of which the first that is there is read
_BASE = "base_model_name_or_path"  # the entry of PEFT's configuration
_PREFIX = "base_model.model."
_MERGE = "merge it with PEFT (merge_and_unload)"
_OTHERS = (
    "which our adapters do not: merge it with PEFT (merge_and_unload), or a weights file by "
    "--to merged"
)
_SETTINGS: dict[str, Any] = {
    "r": Count,
    "lora_alpha": float,
    "target_modules": str | list[str],
    "exclude_modules": str | list[str] | None,
    "rank_pattern": dict[str, int] | None,
    "alpha_pattern": dict[str, float] | None,
    "use_rslora": bool | None,
    _BASE: str | None,
}
"""The entries of PEFT's configuration that are followed."""
Pairs = Mapping[str, tuple[Tensor, Tensor]]
"""A and B of each adapted weight, by its open_clip name."""


class AdapterFolder(Format):
    """Adapters that this program or PEFT wrote."""

    kind = "adapter folder, merged into its base"
    known_by = "the base"
    order = 31
    markers = (CONFIG,)
    stored = WEIGHTS
    downloads = _WEIGHT_FILES
    companions = (RECORD,)
    forms = ("lora", "peft")
    adapters_only = True

    def load(self, source: str, activation: str | None) -> LoadedModel:
        """Load the base that the folder names and merge the adapters into it."""
        return self.load_on(source, None, activation)

    def load_on(self, source: str, base: str | None, activation: str | None) -> LoadedModel:
        """Merge the adapters into a copy of the base that the user names, or of their own."""
        adapted = self.adapted(source, base, activation)
        start, lora = adapted.base, adapted.lora
        weights = start.encoder.model.state_dict()
        state = merged_state(weights, adapted.adapters, lora.scaling)
        loaded = assemble(start.config, source, state=state, path=Path(source))
        identity = replace(loaded.identity, base=start.identity.weights, adapter=lora.describe())
        return replace(loaded, identity=identity, provenance=adapted.provenance)

    def adapted(self, source: str, base: str | None, activation: str | None) -> Adapted:
        """Return the adapters on the base that is named by the user or by them."""
        path = Path(source)
        if base is None:
            _require_no_circle(path)
        if not (path / RECORD).is_file():
            start = self._base(path, base, activation)
            adapters, lora = read_peft(path, start.encoder.model)
            return Adapted(start, lora, adapters, {"peft": {"base": start.name}})
        stated, identity, lora, provenance = read_adapter_record(path)
        place = base or stated
        try:
            start = open_model(place, identity.activation)
        except CompoclipError as error:
            raise CompoclipError(
                f"{path}: its base {place} cannot be loaded ({error}); say where it is in "
                f"{path / RECORD}"
            ) from error
        identity.require(
            start.identity,
            f"{path}: its base {stated} and {start.name} differ (its base first)",
            "load it on its own base",
        )
        adapters = _recorded_state(path, start.encoder.model, lora)
        return Adapted(override_activation(start, activation), lora, adapters, provenance)

    def _base(self, path: Path, base: str | None, activation: str | None) -> LoadedModel:
        """Return the base of a folder without a record, and what nobody reads of the folder."""
        stated = _stated_base(path)
        by_name = f"compoclip convert {path} DST --to merged --base BASE"
        if not (base or stated):
            raise UsageError(
                f"{path}: does not say what it was trained on, {CONFIG} has no {_BASE}: {by_name}"
            )
        try:
            start = load_model(base or stated, activation=activation)
        except CompoclipError as error:
            if base:
                raise
            raise type(error)(
                f"{path / CONFIG}: {_BASE} {quoted(stated)} cannot be loaded ({error}); name it: "
                f"{by_name}"
            ) from error
        assumed = (*start.config.assumed, *unread_files(path, "PEFT"))
        return replace(start, config=replace(start.config, assumed=assumed))

    def save_adapted(self, adapted: Adapted, folder: Path) -> None:
        """Write the folder."""
        base = adapted.base
        require_finite(adapted.adapters, f"{base.name}: adapter")
        state, config = _to_peft(adapted)
        architecture, at, file = base.name.partition("@")
        place = str(Path(base.name).absolute()) if Path(base.name).is_dir() else base.name
        if base.path is not None and at:
            part = split_part(file)[1]
            place = f"{architecture}@{base.path.absolute()}{f'#{part}' if part else ''}"
        record = {
            "compoclip": __version__,
            "base": {"model": place, "identity": base.identity.to_json()},
            "lora": asdict(adapted.lora),
            "adapted": sorted(adapted_names(adapted.adapters)),
            "provenance": dict(adapted.provenance),
        }
        with new_folder(folder) as temporary:
            save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
            write_json(temporary / CONFIG, config)
            write_json(temporary / RECORD, record)


def save_adapter(
    loaded: LoadedModel, lora: Lora, folder: Path, *, provenance: Mapping[str, Any]
) -> None:
    """Write the adapters on a network as an adapter folder.

    Args:
        loaded: The model with adapters attached; its identity is the base's.
        lora: The settings of the adapters.
        folder: Folder to write, which must not exist.
        provenance: JSON-ready record of their training.

    Raises:
        CompoclipError: The model has no adapters, or the folder exists or is not writable.
    """
    state = lora_state(loaded.encoder.model)
    require(state, loaded.name, "has no adapters to save")
    AdapterFolder().save_adapted(Adapted(loaded, lora, state, provenance), folder)


def read_adapter_record(folder: Path) -> tuple[str, ModelIdentity, Lora, dict[str, Any]]:
    """Read the record of an adapter folder: the base as `load_model` gets it, its identity, the
    settings and the provenance. Raises CompoclipError for a damaged one."""
    path = folder / RECORD
    data = read_object(path)
    with sound(path):
        known_settings(data, "", ("compoclip", "base", "lora", "adapted", "provenance"), path)
        base, names = data["base"], [field.name for field in fields(Lora)]
        known_settings(data, "base", ("model", "identity"), path)
        settings = known_settings(data, "lora", names, path)
        lora = Lora(**{name: settings[name] for name in names})
        identity = ModelIdentity.from_json(base["identity"], path)
        return str(base["model"]), identity, lora, section(data, "provenance", path)


def _require_agreement(folder: Path, lora: Lora, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a folder with a record of which PEFT would read something else."""
    file, remedy = folder / CONFIG, "restore the original files"
    data = _peft_config(file, remedy)
    for entry, recorded in (("r", lora.rank), ("lora_alpha", lora.alpha)):
        stated = data[entry]
        if stated != recorded:
            raise CompoclipError(
                f"{file}: {entry} is {typed_repr(stated)}, and {recorded} in {RECORD}; {remedy}"
            )
    for key, a in tensors.items():
        module, _, part = key.removeprefix(_PREFIX).partition(".lora_")
        if part != "A.weight":
            continue
        scaling = _scaling(data, module, len(a), file, remedy)
        expected = 1.0 if a.ndim == 4 else lora.scaling  # a convolution has its whole change
        if not math.isclose(scaling, expected):
            raise CompoclipError(
                f"{file}: scales '{module}' by {scaling:g}, and {RECORD} by {expected:g}; {remedy}"
            )


def _stated_base(folder: Path) -> str:
    """Return the base that an adapter folder states; "" for one that states none."""
    if (folder / RECORD).is_file():
        return read_adapter_record(folder)[0]
    stated = read_object(folder / CONFIG).get(_BASE) if (folder / CONFIG).is_file() else None
    return f"{'' if Path(str(stated)).is_dir() else HUB}{stated}" if stated else ""


def _require_no_circle(folder: Path) -> None:
    """Raise CompoclipError for adapters whose base is, by way of other adapters, themselves."""
    folders = [folder.resolve()]
    while (stated := _stated_base(folders[-1])) and Path(stated).is_dir():
        base = Path(stated).resolve()
        require(base not in folders, folder, "it is the base of itself")
        folders.append(base)


def _recorded_state(folder: Path, network: nn.Module, lora: Lora) -> dict[str, Tensor]:
    """Return the adapters of a folder with a record, exactly those of its settings."""
    weights = folder / WEIGHTS
    state = read_state_dict(weights)
    theirs = {key: value for key, value in state.items() if key.startswith(_PREFIX)}
    with sound(folder):
        adapters = _named(_pairs(theirs, network, weights, lambda *_: 1.0))
    adapters |= {key: value for key, value in state.items() if key not in theirs}
    expected = {
        f"{target.name}.{part}": torch.empty(shape, device="meta")
        for target in lora_targets(network, lora)
        for part, shape in (("a", target.a_shape), ("b", target.b_shape))
    }
    difference = mismatch(expected, adapters)
    require(not difference, weights, f"not the adapters of {RECORD}: {difference}")
    names, record = sorted(adapted_names(adapters)), folder / RECORD
    listed = read_object(record).get("adapted", names)
    require(listed == names, record, "'adapted' lists other weights; restore the original file")
    _require_agreement(folder, lora, theirs)
    return adapters


def _named(pairs: Pairs) -> dict[str, Tensor]:
    """Return adapters by the names of `lora_state`."""
    return {f"{name}.{part}": v for name, pair in pairs.items() for part, v in zip("ab", pair)}


def _filled(network: nn.Module, lora: Lora, pairs: Pairs, source: Path) -> dict[str, Tensor]:
    """Return adapters on all layers of a network, zero where there are none; refuse others."""
    targets = {t.name: t for t in lora_targets(network, lora)}
    odd = next((name for name in pairs if name not in targets), None)
    require(odd is None, source, f"adapts '{odd}', {_OTHERS}")
    filled = {}
    for name, target in targets.items():
        filled[name] = a, b = torch.zeros(target.a_shape), torch.zeros(target.b_shape)
        if name in pairs:
            read_a, read_b = pairs[name]
            if (read_a.shape[1], len(read_b)) != (a.shape[1], len(b)):
                raise CompoclipError(
                    f"{source}: the adapter of '{name}' maps {read_a.shape[1]} to {len(read_b)} "
                    f"and the model has {a.shape[1]} to {len(b)}: it is for another architecture"
                )
            a[: len(read_a)], b[:, : len(read_a)] = read_a, read_b
    return _named(filled)


# --- PEFT's names and forms. ---


def _names_of(network: nn.Module) -> tuple[ParameterNames, str]:
    """Return the names in the model of transformers, and what open_clip may put before its own."""
    family = HFSiglip() if hasattr(network.visual, "trunk") else HFClip()
    return family.names, family.nested


def _to_peft(adapted: Adapted) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of adapters under PEFT's names, and its configuration."""
    lora, base, network = adapted.lora, adapted.base, adapted.base.encoder.model
    weights = adapted_names(adapted.adapters)
    names, nested = _names_of(network)
    try:
        theirs = {name: names.theirs(name.removeprefix(nested)) for name in weights}
    except KeyError:  # no model of transformers: open_clip's own names
        theirs = {name: (name, "") for name in weights}
    state: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    targets: list[str] = []
    for name, (module, how) in theirs.items():
        module = module.removesuffix(".weight")
        modules = [module.replace("q_proj", f"{p}_proj") for p in ("qkv" if how == "qkv" else "q")]
        a, b = (adapted.adapters[f"{name}.{part}"].float() for part in "ab")
        shape = attrgetter(name)(network).shape
        if len(shape) == 4:
            state |= {f"{name}.a": a, f"{name}.b": b}
            a, ranks[module] = (b @ a).reshape(shape) * lora.scaling, shape[0]
            b = torch.eye(shape[0])[:, :, None, None]
        for target, rows in zip(modules, b.chunk(len(modules))):
            state[f"{_PREFIX}{target}.lora_A.weight"] = a.clone()
            state[f"{_PREFIX}{target}.lora_B.weight"] = rows.clone()
        targets += modules
    place = base.name.removeprefix(HUB) if base.name.startswith(HUB) else None
    if model_type_of(Path(base.name)):
        place = str(Path(base.name).absolute())
    return state, {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": place,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "target_modules": sorted(targets),
        "rank_pattern": ranks,
        "alpha_pattern": {module: float(rank) for module, rank in ranks.items()},
    }


def _pairs(
    state: Mapping[str, Tensor],
    network: nn.Module,
    source: Path,
    scale: Callable[[str, int], float],
) -> Pairs:
    """Return A, and B times its scaling (of a module and rank), of tensors by PEFT's names."""
    expected, (names, nested) = network.state_dict(), _names_of(network)
    pairs: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
    for key, a in state.items():
        stripped = key.removeprefix(_PREFIX)
        module = stripped.removesuffix(".lora_A.weight")
        if module == stripped:
            if not key.endswith(".lora_B.weight"):
                raise CompoclipError(f"{source}: '{stripped}' is no LoRA weight of a CLIPModel")
            continue
        b = state.get(key.replace("lora_A", "lora_B"))
        if b is None:
            raise CompoclipError(f"{source}: '{module}' has no lora_B; get the whole file")
        third = re.fullmatch(r"(.*self_attn\.)([qkv])_proj", module)
        name = module if module in expected else f"{module}.weight"
        if name not in expected:
            try:
                name, _ = names.ours(f"{third[1]}q_proj.weight" if third else name)
            except KeyError as error:
                raise CompoclipError(f"{source}: adapts '{module}', {_OTHERS}") from error
            name = name if name in expected else f"{nested}{name}"
        a, b = a.float(), scale(module, len(a)) * b.float()
        if a.ndim == 4:
            change = torch.einsum("or,rikl->oikl", b[:, :, 0, 0], a)
            out, inner, kernel, _ = change.shape
            a, b = torch.eye(inner * kernel), change.reshape(out * kernel, inner * kernel)
        pairs.setdefault(name, {})[third[2] if third else ""] = (a, b)
    return {name: parts[""] if "" in parts else _fused(parts) for name, parts in pairs.items()}


def _fused(parts: Pairs) -> tuple[Tensor, Tensor]:
    """Return one (A, B) of a fused projection from the pairs of its thirds."""
    first, b = next(iter(parts.values()))
    rows = len(b)
    if all(torch.equal(a, first) for a, _ in parts.values()):
        zero = torch.zeros(rows, len(first))
        return first, torch.cat([parts[key][1] if key in parts else zero for key in "qkv"])
    a = torch.cat([a for a, _ in parts.values()])
    b, column = torch.zeros(3 * rows, len(a)), 0
    for key, (one, other) in parts.items():
        start = "qkv".index(key) * rows
        b[start : start + rows, column : column + len(one)] = other
        column += len(one)
    return a, b


def _peft_config(source: Path, remedy: str) -> dict[str, Any]:
    """Read PEFT's configuration; refuse one with entries that are not followed."""
    config = read_object(source)
    check_entries(config, CONFIG, source, remedy)
    return read_fields(config, _SETTINGS, str(source), remedy)


def _scaling(config: Mapping[str, Any], module: str, rank: int, source: Path, remedy: str) -> float:
    """Return how PEFT scales B A of a module with this rank; refuse a module that it leaves out."""

    def stated(patterns: str, default: str) -> Any:
        """Resolve a pattern as PEFT does."""
        for pattern, value in dict(config.get(patterns) or {}).items():
            if regex.match(rf"(.*\.)?({pattern})$", module, timeout=MAX_PATTERN_SECONDS):
                return value
        return config[default]

    def matches(names: str | list[str]) -> bool:
        """Return whether PEFT finds the module by the entry."""
        if isinstance(names, str):
            whole = regex.fullmatch(names, module, timeout=MAX_PATTERN_SECONDS)
            return names == "all-linear" or whole is not None
        return any(f".{module}".endswith(f".{name}") for name in names)

    with sound(source):
        try:
            for entry, expected in (("target_modules", True), ("exclude_modules", False)):
                if matches(config.get(entry) or []) is not expected:
                    raise CompoclipError(
                        f"{source}: {entry} leaves '{module}' out, and the weights adapt it; "
                        f"{remedy}"
                    )
            alpha = float(stated("alpha_pattern", "lora_alpha"))
            listed = int(stated("rank_pattern", "r"))
        except (TimeoutError, regex.error) as error:
            raise ValueError(f"a pattern takes too long or is invalid: {error}") from error
    if listed != rank:
        raise CompoclipError(
            f"{source.parent}: '{module}' has rank {rank} and {CONFIG} says r {listed}: parts of "
            "several files were mixed"
        )
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def read_peft(folder: Path, network: nn.Module) -> tuple[dict[str, Tensor], Lora]:
    """Return a PEFT folder without a record as adapters on an open_clip network.

    Layers that it leaves alone have zeros. Raises CompoclipError when it is damaged, adapts what
    our adapters do not (then merge it with PEFT), or does not fit the network.
    """
    source = folder / CONFIG
    config = _peft_config(source, _MERGE)
    paths = [folder / name for name in _WEIGHT_FILES if (folder / name).is_file()]
    require(paths, folder, f"has no weights; expected {WEIGHTS}")
    weights = paths[0]
    state = read_state_dict(weights)
    state = {key: value for key, value in state.items() if not key.endswith((".a", ".b"))}
    with sound(folder):
        scale = partial(_scaling, config, source=source, remedy=_MERGE)
        pairs = _pairs(state, network, weights, scale)
        require(pairs, weights, "has no LoRA weights")
        kernels = {k: v.shape[-1] for k, v in network.state_dict().items() if v.ndim == 4}
        conv = any(name in kernels for name in pairs)
        lora = Lora(1, 1.0, towers_of(pairs), "+conv" if conv else "linear")
        full = max(target.full_rank for target in lora_targets(network, lora))
        linear = max((len(a) for name, (a, _) in pairs.items() if name not in kernels), default=1)
        # each projection may bring its own
        if not linear <= 3 * full:
            raise CompoclipError(
                f"{folder}: rank {linear:,} exceeds the rank of every layer, {full:,}"
            )
        ranks = (math.ceil(len(a) / kernels.get(name, 1)) for name, (a, _) in pairs.items())
        rank = max(linear, *ranks)
        # scaling is part of B already: alpha / rank = 1
        lora = Lora(rank, float(rank), lora.towers, lora.targets)
        return _filled(network, lora, pairs, folder), lora
