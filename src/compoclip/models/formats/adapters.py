"""Low-rank adapters without their base, in the layout of Hugging Face's PEFT, and earlier ones.

    adapter_config.json         PEFT's: rank, alpha, adapted modules, base
    adapter_model.safetensors   base_model.model.<module>.lora_A.weight and .lora_B.weight
    adapter.json                identity of the base, LoRA settings, provenance (ours alone)
    adapter.safetensors         in folders of earlier releases, in place of PEFT's two files

Modules are those of the CLIPModel or SiglipModel of the base, or open_clip's own of other bases.
PEFT adapts query, key and value projections each on its own, open_clip's fused projection has one A
for all three (see `lora`). From here to PEFT each third gets a copy of A and its rows of B. Back,
three different A are stacked (rank 3 r) with B block by block; all is exact. A patch embedding of
PEFT is a rank-r map from k x k patches, ours a (out k, in k) matrix: it is written with the full
change as one factor and an identity as the other, and as it is ("<name>.a", "<name>.b").

The code of TSVLC, DAC and FSC-CLIP keeps W beside A and B in one state dict (the naming of
Microsoft's loralib), with alpha = 1; for a k x k convolution A is (r k, in k) and B (out k, r k):

    NAME.weight           with  NAME.lora_A, NAME.lora_B                  linear and convolution
    NAME.in_proj_weight   with  NAME.in_proj_weight_lora_A and _lora_B    attention, one shared A
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
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
    override_activation,
)
from compoclip.models.config import ModelIdentity, read_object, section, write_json
from compoclip.models.formats.hf_files import ParameterNames, model_type_of
from compoclip.models.formats.hub import HUB
from compoclip.models.formats.hugging_face import HFClip, HFSiglip
from compoclip.models.lora import Lora, full_rank, lora_state, lora_targets, towers_of
from compoclip.models.weights import mismatch, read_state_dict, require_finite
from compoclip.version import __version__

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
RECORD, EARLIER = "adapter.json", "adapter.safetensors"
_PREFIX = "base_model.model."
_PATTERN_SECONDS = 1.0  # that a pattern of the file may take
_REFUSED = ("use_dora", "modules_to_save", "layer_replication", "fan_in_fan_out", "lora_bias")
_MERGE = "merge it with PEFT (merge_and_unload) and load the CLIPModel folder"
ALPHA = 1.0  # of loralib's files, divided by the rank; no published script changes it
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class AdapterRecord:
    """The content of `adapter.json`. base: what `load_model` gets the base with."""

    base: str
    identity: ModelIdentity
    lora: Lora
    provenance: Mapping[str, Any]


class AdapterFolder(Format):
    """Adapters that this program or PEFT wrote."""

    kind = "adapter folder, merged into its base"
    known_by = "the base"
    order = 31
    stored = WEIGHTS
    downloads = (WEIGHTS, EARLIER)
    forms = ("lora", "peft")
    adapters_only = True

    def sniff(self, source: str) -> bool:
        """Return whether it is a folder with a record or PEFT's configuration."""
        return any((Path(source) / name).is_file() for name in (RECORD, CONFIG))

    def load(self, source: str, name: str, activation: str | None, above: Above) -> LoadedModel:
        """Load the base that the folder names and merge the adapters into it."""
        path = Path(source)
        if not (path / RECORD).is_file():
            return merged_model(self.adapted(source, None, activation), source, path)
        record = read_adapter_record(path)
        try:
            if path.resolve() in above:
                raise CompoclipError("it is the base of itself")
            base = open_model(record.base, record.identity.activation, (*above, path.resolve()))
        except CompoclipError as error:
            raise CompoclipError(
                f"{path}: its base {record.base} cannot be loaded ({error}); say where it is in "
                f"{path / RECORD}"
            ) from error
        return override_activation(load_adapter(base, path), activation)

    def load_on(self, source: str, base: str, activation: str | None) -> LoadedModel:
        """Merge the adapters into the base that the user names."""
        return merged_model(self.adapted(source, base, activation), source, Path(source))

    def adapted(self, source: str, base: str | None, activation: str | None) -> Adapted:
        """Return the adapters on the base that is named by the user or by them."""
        path = Path(source)
        if (path / RECORD).is_file():
            record = read_adapter_record(path)
            start = load_model(base or record.base, activation=record.identity.activation)
            found = _recorded(start, path)
            return Adapted(override_activation(start, activation), *found)
        stated = read_object(path / CONFIG).get("base_model_name_or_path")
        if stated and not Path(str(stated)).is_dir():
            stated = f"{HUB}{stated}"
        if not (base or stated):
            raise UsageError(
                f"{source}: does not say what it was trained on: compoclip convert {source} DST "
                "--to merged --base BASE"
            )
        start = load_model(base or str(stated), activation=activation)
        adapters, lora = read_peft(path, start.encoder.model)
        return Adapted(start, lora, adapters, {"peft": {"base": start.name}})

    def save_adapted(self, adapted: Adapted, folder: Path) -> None:
        """Write the folder."""
        base, lora = adapted.base, adapted.lora
        require_finite(adapted.adapters, f"{base.name}: adapter")
        state, config = _to_peft(adapted)
        architecture, at, _ = base.name.partition("@")
        place = str(Path(base.name).absolute()) if Path(base.name).is_dir() else base.name
        if base.path is not None and at:
            place = f"{architecture}@{base.path.absolute()}"
        record = {
            "compoclip": __version__,
            "base": {"model": place, "identity": base.identity.to_json()},
            "lora": asdict(lora),
            "adapted": sorted(k.removesuffix(".a") for k in adapted.adapters if k.endswith(".a")),
            "provenance": dict(adapted.provenance),
        }
        with new_folder(folder) as temporary:
            save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
            write_json(temporary / CONFIG, config)
            write_json(temporary / RECORD, record)

    def hub_files(self, folder: Path) -> tuple[list[str], tuple[str, ...]]:
        """Return the files of either layout."""
        if (folder / CONFIG).is_file():
            return [CONFIG, WEIGHTS], (RECORD,)
        return [RECORD, EARLIER], ()


def adapter_shapes(network: nn.Module, lora: Lora) -> dict[str, tuple[int, int]]:
    """Return the shapes of the adapters that `lora` puts on a network, by `lora_state`'s names."""
    targets = lora_targets(network, lora)
    return {f"{t.name}.a": t.a_shape for t in targets} | {f"{t.name}.b": t.b_shape for t in targets}


def save_adapter(
    loaded: LoadedModel, lora: Lora, folder: Path, *, provenance: Mapping[str, Any]
) -> None:
    """Write the adapters on a network as an adapter folder.

    Args:
        loaded: The model with adapters attached; its identity is that of their base.
        lora: The settings that they were attached with.
        folder: Folder to write, which must not exist.
        provenance: JSON-ready record of how they were made.

    Raises:
        CompoclipError: There are no adapters, or the place is taken or not writable.
    """
    state = lora_state(loaded.encoder.model)
    if not state:
        raise CompoclipError(f"{loaded.name}: has no adapters to save")
    AdapterFolder().save_adapted(Adapted(loaded, lora, state, provenance), folder)


def read_adapter_record(folder: Path) -> AdapterRecord:
    """Read the record of an adapter folder. Raises CompoclipError for a damaged one."""
    path = folder / RECORD
    data = read_object(path)
    try:
        base, settings = data["base"], data["lora"]
        lora = Lora(**{field.name: settings[field.name] for field in fields(Lora)})
        identity = ModelIdentity.from_json(base["identity"])
        return AdapterRecord(str(base["model"]), identity, lora, section(data, "provenance", path))
    except (KeyError, TypeError, ValueError, CompoclipError) as error:
        raise CompoclipError(f"{path}: damaged ({error}); restore the original file") from error


def load_adapter(base: LoadedModel, folder: Path) -> LoadedModel:
    """Merge the adapters of a folder with a record into a copy of their base.

    Args:
        base: The model that the adapters were trained on; it stays as it is.
        folder: The adapter folder.

    Returns:
        A plain model without adapters.

    Raises:
        CompoclipError: The adapters were trained on another base, or files are damaged.
    """
    return merged_model(Adapted(base, *_recorded(base, folder)), str(folder), folder)


def _recorded(base: LoadedModel, folder: Path) -> tuple[Lora, dict[str, Tensor], Mapping[str, Any]]:
    """Return settings, adapters and provenance of a folder with a record, for its own base."""
    record = read_adapter_record(folder)
    wrong = record.identity.differences(base.identity, ignore=("base", "adapter"))
    if wrong:
        raise CompoclipError(
            f"{folder}: its base {record.base} and {base.name} differ (its base first): "
            f"{'; '.join(wrong)}; load it on its own base"
        )
    network, earlier = base.encoder.model, not (folder / CONFIG).is_file()
    weights = folder / (EARLIER if earlier else WEIGHTS)
    state = read_state_dict(weights)
    theirs = {key: value for key, value in state.items() if key.startswith(_PREFIX)}
    with _of_shapes(folder):
        pairs = _pairs(theirs, network, weights, lambda *_: 1.0)
    found = {f"{name}.{part}": v for name, pair in pairs.items() for part, v in zip("ab", pair)}
    found |= {key: value for key, value in state.items() if key not in theirs}
    shapes = adapter_shapes(network, record.lora)
    own = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    if problem := mismatch(own, found):
        raise CompoclipError(f"{weights}: not the adapters of {RECORD}: {problem}")
    return record.lora, found, record.provenance


# --- PEFT's names and forms. ---


@contextmanager
def _of_shapes(folder: Path) -> Iterator[None]:
    """Turn what taking tensors of wrong shapes apart raises into one line."""
    try:
        yield
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise CompoclipError(
            f"{folder}: its tensors have not the shapes of LoRA weights ({first}); restore the "
            "original files"
        ) from error


def _names_of(network: nn.Module) -> tuple[ParameterNames, str]:
    """Return the names in the model of transformers, and what open_clip may put before its own."""
    family = HFSiglip() if hasattr(network.visual, "trunk") else HFClip()
    return family.names, family.nested


def _to_peft(adapted: Adapted) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of adapters under PEFT's names, and its configuration."""
    lora, base, network = adapted.lora, adapted.base, adapted.base.encoder.model
    weights = [key.removesuffix(".a") for key in adapted.adapters if key.endswith(".a")]
    names, nested = _names_of(network)
    modules: dict[str, list[str]] = {}
    try:
        for name in weights:
            module, how = names.theirs(name.removeprefix(nested))
            parts = "qkv" if how == "qkv" else "q"
            theirs = module.removesuffix(".weight")
            modules[name] = [theirs.replace("q_proj", f"{part}_proj") for part in parts]
    except KeyError:  # no model of transformers: open_clip's own names
        modules = {name: [name.removesuffix(".weight")] for name in weights}
    state: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for name in weights:
        a, b = (adapted.adapters[f"{name}.{part}"].float() for part in "ab")
        path, _, parameter = name.rpartition(".")
        shape = getattr(network.get_submodule(path), parameter).shape
        thirds = b.chunk(len(modules[name]))
        if len(shape) == 4:
            state |= {f"{name}.a": a, f"{name}.b": b}
            a, rank = (b @ a).reshape(shape) * lora.scaling, shape[0]
            thirds, ranks[modules[name][0]] = (torch.eye(rank)[:, :, None, None],), rank
        for module, rows in zip(modules[name], thirds):
            state[f"{_PREFIX}{module}.lora_A.weight"] = a.clone()
            state[f"{_PREFIX}{module}.lora_B.weight"] = rows.clone()
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
        "target_modules": sorted(module for each in modules.values() for module in each),
        "rank_pattern": ranks,
        "alpha_pattern": {module: float(rank) for module, rank in ranks.items()},
    }


def _pairs(
    state: Mapping[str, Tensor],
    network: nn.Module,
    source: Path,
    scale: Callable[[str, int], float],
) -> dict[str, Pair]:
    """Return open_clip's name of each adapted weight -> A, and B times its scaling.

    state: by PEFT's names. scale: of a module and its rank.
    """
    own, (names, nested) = network.state_dict(), _names_of(network)
    found: dict[str, dict[str, Pair]] = {}
    for key, a in state.items():
        module, lora, ending = key.removeprefix(_PREFIX).rpartition(".lora_A.weight")
        if not lora or ending:
            if not key.endswith(".lora_B.weight"):
                shown = key.removeprefix(_PREFIX)
                raise CompoclipError(f"{source}: '{shown}' is no LoRA weight of a CLIPModel")
            continue
        b = state.get(key.replace("lora_A", "lora_B"))
        if b is None:
            raise CompoclipError(f"{source}: '{module}' has no lora_B; get the whole file")
        third = re.fullmatch(r"(.*self_attn\.)([qkv])_proj", module)
        name = module if module in own else f"{module}.weight"
        if name not in own:
            try:
                name, _ = names.ours(f"{third[1]}q_proj.weight" if third else name)
            except KeyError as error:
                raise CompoclipError(
                    f"{source}: adapts '{module}', which our adapters do not: {_MERGE}"
                ) from error
            name = name if name in own else f"{nested}{name}"
        a, b = a.float(), scale(module, len(a)) * b.float()
        if a.ndim == 4:
            change = torch.einsum("or,rikl->oikl", b[:, :, 0, 0], a)
            out, inner, kernel, _ = change.shape
            a, b = torch.eye(inner * kernel), change.reshape(out * kernel, inner * kernel)
        found.setdefault(name, {})[third[2] if third else ""] = (a, b)
    return {name: parts[""] if "" in parts else _fused(parts) for name, parts in found.items()}


def _fused(parts: Mapping[str, Pair]) -> Pair:
    """Return one (A, B) of a fused projection from those of some of its thirds."""
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


def read_peft(folder: Path, network: nn.Module) -> tuple[dict[str, Tensor], Lora]:
    """Return a PEFT folder without a record as adapters on an open_clip network.

    Layers that it leaves alone have zeros. Raises CompoclipError when it is damaged, adapts what
    our adapters do not (then merge it with PEFT), or does not fit the network.
    """
    source, weights = folder / CONFIG, folder / WEIGHTS
    config = read_object(source)
    used = [key for key in _REFUSED if config.get(key)]
    if config.get("peft_type") != "LORA" or used or config.get("bias", "none") != "none":
        odd = used[0] if used else f"peft_type {config.get('peft_type')}, bias {config.get('bias')}"
        raise CompoclipError(f"{source}: {odd}: only plain LoRA is read; {_MERGE}")
    if not weights.is_file():
        weights = folder / "adapter_model.bin"
    if not weights.is_file():
        raise CompoclipError(f"{folder}: has no weights; expected {WEIGHTS}")
    state = read_state_dict(weights)
    state = {key: value for key, value in state.items() if not key.endswith((".a", ".b"))}
    with _of_shapes(folder):
        changes = _pairs(state, network, weights, partial(_scaling, config, source))
        if not changes:
            raise CompoclipError(f"{weights}: has no LoRA weights")
        return _padded(folder, network, changes)


def _padded(
    folder: Path, network: nn.Module, changes: Mapping[str, Pair]
) -> tuple[dict[str, Tensor], Lora]:
    """Return adapters of one rank on all layers of a network, and their settings."""
    kernels = {k: v.shape[-1] for k, v in network.state_dict().items() if v.ndim == 4}
    conv = any(name in kernels for name in changes)
    lora = Lora(rank=1, towers=towers_of(changes), targets="+conv" if conv else "linear")
    targets = {target.name: target for target in lora_targets(network, lora)}
    if odd := [name for name in changes if name not in targets]:
        raise CompoclipError(f"{folder}: adapts '{odd[0]}', which our adapters do not: {_MERGE}")
    full = max(full_rank(target) for target in targets.values())
    linear = max((len(a) for name, (a, _) in changes.items() if name not in kernels), default=1)
    if linear > 3 * full:  # each projection may bring its own
        raise CompoclipError(f"{folder}: rank {linear:,} is above that of every layer, {full:,}")
    rank = max(math.ceil(len(a) / kernels.get(name, 1)) for name, (a, _) in changes.items())
    rank = max(rank, linear)
    adapters: dict[str, Tensor] = {}
    for name, target in targets.items():
        rows = rank * kernels.get(name, 1)
        a, b = torch.zeros(rows, target.a_shape[1]), torch.zeros(target.b_shape[0], rows)
        if name in changes:
            found_a, found_b = changes[name]
            if found_a.shape[1] != a.shape[1] or len(found_b) != len(b):
                raise CompoclipError(
                    f"{folder}: the adapter of '{name}' maps {found_a.shape[1]} to {len(found_b)} "
                    f"and the model has {a.shape[1]} to {len(b)}: it is for another architecture"
                )
            a[: len(found_a)], b[:, : len(found_a)] = found_a, found_b
        adapters |= {f"{name}.a": a, f"{name}.b": b}
    # scaling is part of B already: alpha / rank = 1
    return adapters, Lora(rank, float(rank), lora.towers, lora.targets)


def _scaling(config: Mapping[str, Any], source: Path, module: str, rank: int) -> float:
    """Return alpha / rank of a module, as PEFT resolves its patterns."""

    def stated(patterns: str, default: str) -> Any:
        for pattern, value in dict(config.get(patterns) or {}).items():
            if regex.match(rf"(.*\.)?({pattern})$", module, timeout=_PATTERN_SECONDS):
                return value
        return config[default]

    try:
        alpha, said = float(stated("alpha_pattern", "lora_alpha")), int(stated("rank_pattern", "r"))
    except TimeoutError as error:
        raise CompoclipError(f"{source}: damaged (a pattern takes too long)") from error
    except (KeyError, TypeError, ValueError, ArithmeticError, regex.error) as error:
        raise CompoclipError(f"{source}: damaged ({error})") from error
    if said != rank:
        raise CompoclipError(
            f"{source.parent}: '{module}' has rank {rank} and {CONFIG} says {said}: parts of "
            "several files were mixed"
        )
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


# --- loralib's names. ---


def split(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return plain weights, as before training, and adapters as `lora_state` names them."""
    plain, adapters = {}, {}
    for name, value in state.items():
        found = re.fullmatch(r"(.*)([._])lora_([AB])", name)
        if found is None:
            plain[name] = value
        else:
            weight = f"{found[1]}.weight" if found[2] == "." else found[1]
            adapters[f"{weight}.{found[3].lower()}"] = value
    return plain, adapters


def lora_of(adapters: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str) -> Lora:
    """Return the settings of adapters (as `split` gives them) on `weights`.

    Raises CompoclipError when a pair is incomplete, a shape does not fit its weight, or ranks
    differ.
    """
    ranks: dict[str, int] = {}
    for name in dict.fromkeys(key[:-2] for key in adapters):
        a, b = adapters.get(f"{name}.a"), adapters.get(f"{name}.b")
        if a is None or b is None:
            lacking = "lora_A" if a is None else "lora_B"
            raise CompoclipError(f"{source}: '{name}' has no {lacking}; get the whole file")
        if name not in weights:
            raise CompoclipError(
                f"{source}: adapts '{name}', which the model does not have: it is for another "
                "architecture"
            )
        weight = weights[name]
        kernel = weight.shape[-1] if weight.ndim == 4 else 1
        rows, rank = weight.shape[0] * kernel, len(a) if a.ndim else 0
        if (
            not (a.ndim == b.ndim == 2 and rank and rank % kernel == 0)
            or tuple(b.shape) != (rows, rank)
            or a.shape[1] * rows != weight.numel()
        ):
            raise CompoclipError(
                f"{source}: lora_A {tuple(a.shape)} and lora_B {tuple(b.shape)} of '{name}' do not "
                f"fit its shape {tuple(weight.shape)}"
            )
        ranks[name] = rank // kernel
    if not ranks:
        raise CompoclipError(f"{source}: has no LoRA weights (names that end in lora_A, lora_B)")
    low, high = min(ranks, key=ranks.__getitem__), max(ranks, key=ranks.__getitem__)
    if ranks[low] != ranks[high]:
        raise CompoclipError(
            f"{source}: LoRA ranks differ ('{low}' has {ranks[low]}, '{high}' has {ranks[high]}), "
            "so its scaling is unknown: parts of several files were mixed"
        )
    conv = any(weights[name].ndim == 4 for name in ranks)
    return Lora(ranks[low], ALPHA, towers_of(ranks), "+conv" if conv else "linear", "xavier_ab")


def adapters_inside(state: Mapping[str, Tensor], base: LoadedModel, file: Path) -> Adapted:
    """Return loralib's adapters in a state dict on their base, with zeros for other layers."""
    plain, found = split(state)
    own = base.encoder.model.state_dict()
    lora = lora_of(found, own, str(file))
    for name, value in plain.items():
        start = own.get(name)
        if start is None or not torch.equal(value.float().reshape(-1), start.float().reshape(-1)):
            raise CompoclipError(
                f"{file}: its LoRA weights were trained on another base than {base.name} "
                f"('{name}' differs): name its own base, or use --to merged"
            )
    shapes = adapter_shapes(base.encoder.model, lora)
    if odd := [key[:-2] for key in found if key not in shapes]:
        raise CompoclipError(
            f"{file}: adapts '{odd[0]}', which our adapters do not: use --to merged"
        )
    filled = {key: found.get(key, torch.zeros(shape)).float() for key, shape in shapes.items()}
    return Adapted(base, lora, filled, {})
