"""Mean gradients over all ranks, by torch's DDP."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from compoclip.ranks import TIMEOUT, Ranks, peers


class GradientMean:
    """Replaces every gradient by its mean over the ranks, during the backward pass.

    DDP includes the sums of backward passes before the last one. A missing gradient counts as zero;
    a parameter without a gradient on any rank gets none. parameters: in the same order on all
    ranks; sharded ones (FSDP's DTensors) are left out: they hold means already.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
        self._reducer: nn.Module | None = None
        if ranks.world == 1:
            return
        import torch.distributed as dist
        from torch.distributed.tensor import DTensor  # slow to import, and not needed alone

        warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")
        whole = [p for p in parameters if p.requires_grad and not isinstance(p, DTensor)]
        if whole:
            self._reducer = nn.parallel.DistributedDataParallel(
                _Learning(whole),
                broadcast_buffers=False,
                init_sync=False,
                find_unused_parameters=True,
                # Losses exchange features in the same backward pass, in an order of their own.
                process_group=dist.new_group(timeout=TIMEOUT),
            )

    def backward(self, output: Tensor, gradient: Tensor | None = None) -> None:
        """Run the last backward pass of a step, from a scalar, and average gradients.

        All ranks must call it once per step. Raises PeerLostError when a rank is lost.
        """
        last: Any = output if self._reducer is None else self._reducer(output)
        with nullcontext() if self._reducer is None else peers():
            if last.requires_grad:
                last.backward(gradient)


class _Learning(nn.Module):
    """Parameters that DDP knows of, and one that every backward pass reaches on every rank."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self.parameters_ = nn.ParameterList(parameters)
        self.reached = nn.Parameter(parameters[0].detach().new_zeros(()))

    def forward(self, output: Tensor) -> Tensor:
        return output + 0 * self.reached
