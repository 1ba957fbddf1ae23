"""Towers too large for one device: parameters, gradients and moments split over ranks (FSDP2).

Each rank keeps a W-th of every parameter and the moments of that part; what a block needs whole is
collected when it computes and let go after. As in `distributed`, gradients
are averaged over the ranks; FSDP does this while it splits them.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from compoclip.errors import UsageError
from compoclip.methods.base import Optim
from compoclip.models.dual_encoder import DualEncoder
from compoclip.ranks import Ranks
from compoclip.training.optim import build_optimizer, ordered

OLDEST = "2.11"
"""The oldest torch whose split parameters have the gradients of whole ones, on a CPU too."""


def require_torch() -> None:
    """Raise UsageError where this torch is too old to split parameters."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < tuple(map(int, OLDEST.split("."))):
        raise UsageError(
            f"--fsdp needs torch {OLDEST}, and this is {torch.__version__}: leave it out, or "
            "update torch"
        )


def shard_training(
    encoder: DualEncoder,
    optimizer: torch.optim.Optimizer,
    optim: Optim,
    device: torch.device,
    ranks: Ranks,
    factors: Mapping[str, float] = types.MappingProxyType({}),
) -> torch.optim.AdamW:
    """Split the parameters of an encoder that is being trained over all ranks, in place.

    Which parameters require a gradient must be decided before.

    Returns the optimiser that replaces `optimizer`. Its moments are split like their parameters: a
    run may be resumed with another number of ranks, or without FSDP.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
    from torch.distributed.tensor import DTensor, distribute_tensor

    network = encoder.model
    slots = [optimizer.state.get(p, {}) for p in ordered(network.named_parameters())]
    mesh = init_device_mesh(device.type, (ranks.world,))
    scalars = {p for p in encoder.parameters() if p.ndim == 0}
    # Every transformer block or stage is collected by itself, so that only one is whole at a time;
    # all else is collected together with the encoder. The logit scale stays whole on every rank: a
    # scalar cannot be split, and the loss reads it outside of any forward pass.
    for unit in repeated_units(network):
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    fully_shard(encoder, mesh=mesh, reshard_after_forward=True, ignored_params=scalars)
    register_fsdp_forward_method(encoder, "_run")  # every micro-batch of every tower
    sharded = build_optimizer(network.named_parameters(), optim, factors)
    for parameter, slot in zip(ordered(network.named_parameters()), slots):
        for key, value in slot.items():
            if isinstance(parameter, DTensor) and value.shape == parameter.shape:
                value = value.to(parameter.device)
                value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
            sharded.state[parameter][key] = value
    return sharded


def repeated_units(network: nn.Module) -> list[nn.Module]:
    """The members of every list of two or more modules of one class, the outermost lists."""
    chosen: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in network.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or module in inside:
            continue
        members = list(module)
        same = len(members) > 1 and len({type(member) for member in members}) == 1
        if same and all(any(True for _ in member.parameters()) for member in members):
            chosen += members
            inside.update(part for member in members for part in member.modules())
    return chosen


def whole(tensor: Tensor) -> Tensor:
    """A split tensor, collected; others as they are. All ranks must call it."""
    collect = getattr(tensor, "full_tensor", None)
    collected: Tensor = tensor if collect is None else collect()
    return collected


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float, ranks: Ranks) -> Tensor:
    """Scale all gradients down to a norm of `limit` together; 0 does not clip.

    Returns the norm, on the device: nothing waits for it. Of gradients that are split over ranks it
    is that of the whole.
    """
    parameters = list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    parts = [g.to_local() for g in gradients if hasattr(g, "to_local")]
    if not parts:
        norm = nn.utils.get_total_norm(gradients)
        if limit > 0:
            nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return norm
    # Squares of the parts are summed over the ranks; whole gradients are the same on all and count
    # once. In double precision, so that the sum does not depend on how the parameters are cut.
    rest = [g for g in gradients if not hasattr(g, "to_local")]
    squares = torch.stack([part.double().square().sum() for part in parts]).sum()
    ranks.all_reduce(squares)
    norm = sum((g.double().square().sum() for g in rest), squares).sqrt()
    if limit > 0:
        factor = torch.where(norm > limit, limit / (norm + 1e-6), 1.0)
        for gradient in (*parts, *rest):
            gradient.mul_(factor.to(gradient.dtype))
    return norm
