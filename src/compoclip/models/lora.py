"""Low-rank adaptation (Hu et al., LoRA, ICLR 2022) of the weights of an open_clip network.

An adapted weight is W' = W + (alpha / r) * B A with A (r, d_in) and B (d_out, r); W stays frozen.
The adapters are torch parametrizations of the parameters, so every path through the network
(this package's, open_clip's, fused attention) computes with W'. As published for CLIP, the
three projections of an attention's `in_proj_weight` share one A; its B is (3 d, r).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.utils import parametrize

from compoclip.errors import CompoclipError, UsageError, require
from compoclip.models.config import part_of
from compoclip.typed import Count, NonNegative, check_fields

Towers = Literal["both", "image", "text"]
Targets = Literal["linear", "+conv"]
Init = Literal["zero", "xavier_ab"]


@dataclass(frozen=True)
class Lora:
    """Settings of low-rank adaptation.

    Attributes:
        rank: r.
        alpha: Numerator of the scaling alpha / r.
        towers: Towers with adapters: "both", "image" or "text".
        targets: "linear" adapts the in- and out-projections of attention and both MLP layers;
            "+conv" the patch embedding too, as in the code released with FSC-CLIP (k x k patches
            have rank r * k).
        init: "zero" is B = 0, so that training starts from the base exactly; "xavier_ab" samples A
            and B of in-projections from Xavier's uniform distribution, as in FSC-CLIP's code.
    """

    rank: Count = 4
    alpha: NonNegative = 1.0
    towers: Towers = "both"
    targets: Targets = "linear"
    init: Init = "zero"

    def __post_init__(self) -> None:
        """Raises UsageError for a rank or alpha that is not positive, and unknown words."""
        check_fields(self, "LoRA ")
        require(self.alpha, "LoRA alpha", "must be above 0", UsageError)

    @property
    def scaling(self) -> float:
        """Return the factor of B A: alpha / rank."""
        return self.alpha / self.rank

    def describe(self) -> str:
        """Return a description for identities and logs: "lora rank 4, alpha 1, both towers"."""
        towers = "both towers" if self.towers == "both" else f"{self.towers} tower"
        targets = ", +conv" if self.targets == "+conv" else ""
        init = f", init {self.init}" if self.init != "zero" else ""
        return f"lora rank {self.rank}, alpha {self.alpha:g}, {towers}{targets}{init}"


_LAYERS = ("attn", "mlp")  # whose linear maps are adapted, in open_clip's blocks and timm's
_OUTSIDE = ("attn_pool", "text_decoder")  # pooling heads; captioning heads see no contrastive loss


@dataclass(frozen=True)
class AdaptedWeight:
    """A weight to adapt: `name` in the state dict, `parameter` of `module`; shapes of A and B."""

    name: str
    module: nn.Module
    parameter: str
    a_shape: tuple[int, int]
    b_shape: tuple[int, int]

    @property
    def size(self) -> int:
        """Number of parameters of its adapter."""
        return math.prod(self.a_shape) + math.prod(self.b_shape)

    @property
    def full_rank(self) -> int:
        """The largest rank that a change of the weight can have."""
        return min(self.a_shape[1], self.b_shape[0])


def lora_targets(network: nn.Module, lora: Lora) -> tuple[AdaptedWeight, ...]:
    """Return the weights of an open_clip network that `lora` adapts, in the order of the network.

    In-projections, linear layers that stand directly in an attention or an MLP, and with "+conv"
    the patch embedding: a k x k convolution seen as a (out * k, in * k) matrix of rank r * k. A
    tower without attention or MLP layers (ResNet, MobileNet) has none. Raises CompoclipError when
    nothing is left to adapt, or "+conv" finds no patch embedding.
    """
    visual: Any = network.visual
    timm, rank = isinstance(visual, TimmModel), lora.rank
    adapted: list[AdaptedWeight] = []

    def add(module: nn.Module, name: str, rank: int, rows: int, columns: int) -> None:
        if lora.towers in ("both", part_of(name)):
            shapes = (rank, columns), (rows, rank)
            adapted.append(AdaptedWeight(name, module, name.rpartition(".")[2], *shapes))

    for path, module in network.named_modules():
        parts = path.split(".")
        timm_head = timm and parts[:2] == ["visual", "head"]
        if timm_head or not set(_OUTSIDE).isdisjoint(parts):
            continue
        fused = getattr(module, "in_proj_weight", None)
        if parts[-1] == "attn" and isinstance(fused, Tensor):
            add(module, f"{path}.in_proj_weight", rank, *fused.shape)
        elif isinstance(module, nn.Linear) and parts[-2:-1] and parts[-2] in _LAYERS:
            add(module, f"{path}.weight", rank, module.out_features, module.in_features)
    if lora.targets == "+conv" and lora.towers != "text":
        name, patches = "visual.conv1.weight", getattr(visual, "conv1", None)
        if timm:
            name = "visual.trunk.patch_embed.proj.weight"
            patches = getattr(getattr(visual.trunk, "patch_embed", None), "proj", None)
        if not isinstance(patches, nn.Conv2d) or not (
            timm or isinstance(visual, VisionTransformer)
        ):
            raise CompoclipError(
                f"LoRA targets +conv: the image tower ({type(visual).__name__}) has no patch "
                "embedding; leave +conv out"
            )
        kernel = patches.kernel_size[0]
        rows, columns = patches.out_channels * kernel, patches.in_channels * kernel
        add(patches, name, rank * kernel, rows, columns)
    if not adapted:
        subject = "the model" if lora.towers == "both" else f"the {lora.towers} tower"
        raise CompoclipError(
            f"{subject} has no attention or MLP layers that LoRA knows: adapt another tower "
            "(--lora-towers), or train without LoRA"
        )
    return tuple(adapted)


def attach_lora(network: nn.Module, lora: Lora, seed: int = 0) -> tuple[AdaptedWeight, ...]:
    """Attach adapters to a network, in place; freezes nothing, and changes keys of the state dict.

    Args:
        network: An open_clip network.
        lora: Settings of the adapters.
        seed: Seed of the adapters.

    Raises:
        UsageError: The rank exceeds the rank of every adapted weight.
        CompoclipError: The network has adapters already, or no weight that `lora` could adapt.
    """
    targets = lora_targets(network, lora)
    full = max(target.full_rank for target in targets)
    if lora.rank > full:
        raise UsageError(
            f"LoRA rank {lora.rank:,}: no adapted weight has more than rank {full:,}, so that more "
            f"adds nothing; choose at most {full:,} (4 to 64 are usual)"
        )
    require(not lora_state(network), "the model has adapters already", "merge them first")
    generator = torch.Generator().manual_seed(seed)
    for target in targets:
        a, b = torch.empty(target.a_shape), torch.zeros(target.b_shape)
        if target.parameter == "in_proj_weight" and lora.init == "xavier_ab":
            nn.init.xavier_uniform_(a, generator=generator)
            nn.init.xavier_uniform_(b, generator=generator)
        else:
            nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
        place = target.module, target.parameter
        device = getattr(*place).device
        adapter = _LowRank(a.to(device), b.to(device), lora.scaling)
        # no trial run: it keeps shapes
        parametrize.register_parametrization(*place, adapter, unsafe=True)
    return targets


def lora_parameters(network: nn.Module) -> Iterator[nn.Parameter]:
    """Iterate over A and B of every adapter, the parameters to train.

    Args:
        network: A network with adapters.
    """
    for _, adapter in _adapters(network):
        yield from adapter.parameters()


def lora_state(network: nn.Module) -> dict[str, Tensor]:
    """ "<name of the weight>.a" and ".b" -> values on the CPU; empty without adapters."""
    return {
        f"{name}.{part}": value.detach().cpu().contiguous()
        for name, adapter in _adapters(network)
        for part, value in adapter.named_parameters()
    }


def merge_lora(network: nn.Module) -> None:
    """Merge the adapters into their weights, in place, which leaves a plain open_clip network.

    Computed on the CPU, so that merged weights do not depend on the training device.

    Args:
        network: A network; unchanged without adapters.
    """
    for name, adapter in list(_adapters(network)):
        path, _, parameter = name.rpartition(".")
        module = network.get_submodule(path)
        parametrize.remove_parametrizations(module, parameter, leave_parametrized=False)
        weight = getattr(module, parameter)
        with torch.no_grad():
            weight.copy_(merged(weight.cpu(), adapter.a.cpu(), adapter.b.cpu(), adapter.scaling))


def merged_copy(network: nn.Module) -> nn.Module:
    """Return a copy of a network with the weights that it computes with: plain, adapters merged.

    `merge_lora` of a deep copy would take the adapters' properties off the class that both share.
    """
    copy = deepcopy(network)
    for module in list(copy.modules()):
        if not parametrize.is_parametrized(module):
            continue
        chains = dict(module.get_submodule("parametrizations").named_children())
        weights = {name: getattr(module, name).detach().clone() for name in chains}
        module.__class__ = type(module).__bases__[0]
        del module.parametrizations
        for name, weight in weights.items():
            module.register_parameter(name, nn.Parameter(weight))
    return copy


def merged(weight: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """W + scaling * B A, float32, in the shape of W (a convolution's is flattened for it)."""
    flat = weight.reshape(b.shape[0], a.shape[1])
    return torch.addmm(flat, b, a, alpha=scaling).reshape(weight.shape)


def adapted_names(adapters: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the weights that adapters, as `lora_state` names them, adapt."""
    return [key.removesuffix(".a") for key in adapters if key.endswith(".a")]


def merged_state(
    state: Mapping[str, Tensor], adapters: Mapping[str, Tensor], scaling: float
) -> dict[str, Tensor]:
    """A state dict with adapters (as `lora_state` names them) merged into copies of its weights."""
    out = dict(state)
    for name in adapted_names(adapters):
        a, b = adapters[f"{name}.a"], adapters[f"{name}.b"]
        out[name] = merged(state[name].detach().cpu().float(), a.float(), b.float(), scaling)
    return out


class _LowRank(nn.Module):
    """The parametrization W -> W'."""

    def __init__(self, a: Tensor, b: Tensor, scaling: float) -> None:
        super().__init__()
        self.a = nn.Parameter(a)
        self.b = nn.Parameter(b)
        self.scaling = scaling

    def forward(self, weight: Tensor) -> Tensor:
        # A small delta would be lost if it were added in bfloat16.
        with torch.autocast(weight.device.type, enabled=False):
            return merged(weight, self.a, self.b, self.scaling)


def _adapters(network: nn.Module) -> Iterator[tuple[str, _LowRank]]:
    """State-dict name of every adapted weight, and its adapter."""
    for path, module in network.named_modules():
        if not parametrize.is_parametrized(module):
            continue
        for parameter, chain in module.parametrizations.items():
            if isinstance(chain[0], _LowRank):
                yield f"{path}.{parameter}", chain[0]


def towers_of(names: Iterable[str]) -> Towers:
    """Return the towers that weights of these names are in."""
    parts = {part_of(name) for name in names}
    if parts == {"image"}:
        return "image"
    return "text" if parts == {"text"} else "both"
