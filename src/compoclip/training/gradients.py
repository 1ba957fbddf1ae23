"""The gradients of a batch: encoded in micro-batches, averaged over the ranks.

Gradient caching computes the gradients of a whole batch in the memory of a micro-batch. Losses need
all features of a batch at once, encoders do not. So every micro-batch is encoded twice: first
without a graph, for the features and the losses' gradients with respect to them; then with a graph,
through which these gradients flow to the parameters. The sums equal one backward pass over the
whole batch, in another order.

Reference: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup
(RepL4NLP 2021).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from compoclip.errors import UsageError
from compoclip.losses.contract import Features
from compoclip.models.work import MicroBatch, Outputs, Work
from compoclip.ranks import TIMEOUT, Ranks, peers

Amp = Callable[[], AbstractContextManager[object]]


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context in which towers are run in "bf16" or "fp16"; it does nothing for fp32."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision in ("bf16", "fp16"))


class GradientCache:
    """The features of a batch, encoded micro-batch by micro-batch without a graph.

    Args:
        work: The batch, cut into micro-batches.

    Attributes:
        features: Features for the losses. Gradients of a loss stop here; `backward` continues.
    """

    def __init__(self, work: Work[Features], amp: Amp, device: torch.device) -> None:
        self._amp, self._gpus = amp, [device] if device.type == "cuda" else []
        # Of what learns: the micro-batch, its outputs, which collect gradients, and the states of
        # the random generators before it was encoded.
        self._learning: list[tuple[MicroBatch, Outputs, list[Tensor]]] = []
        encoded: list[Outputs] = []
        for encode, learns in zip(work.micro_batches, work.learns):
            random = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._gpus)]
            with torch.no_grad(), amp():
                outputs = encode()
            encoded.append(tuple(tensor.detach().requires_grad_(learns) for tensor in outputs))
            if learns:
                self._learning.append((encode, encoded[-1], random))
        with amp():
            self.features = work.join(encoded)

    def backward(self) -> None:
        """Encode every trained micro-batch again, and accumulate gradients of the parameters.

        Dropout and drop-path repeat the masks of the first pass.
        """
        for encode, leaves, (random, *of_gpus) in self._learning:
            used = [i for i, leaf in enumerate(leaves) if leaf.grad is not None]
            if not used:
                continue
            with torch.random.fork_rng(self._gpus), self._amp():
                torch.set_rng_state(random)
                for gpu, state in zip(self._gpus, of_gpus):
                    torch.cuda.set_rng_state(state, gpu)
                outputs = encode()
            torch.autograd.backward([outputs[i] for i in used], [leaves[i].grad for i in used])


def learning_batch_norms(network: nn.Module) -> list[str]:
    """Return the names of the layers that compute statistics over the batch.

    Frozen batch norms, in eval mode, compute none.
    """
    norm, named = nn.modules.batchnorm._BatchNorm, network.named_modules()
    return [name for name, layer in named if isinstance(layer, norm) and layer.training]


def refuse_batch_norm(network: nn.Module) -> None:
    """Raise UsageError for statistics over the batch: those of a micro-batch are others."""
    for name in learning_batch_norms(network):
        tower = "image" if name.startswith("visual.") else "text"
        raise UsageError(
            f"--micro-batch: {name} in the {tower} tower is a batch norm that learns, so a part of "
            "the batch gives other features than the whole batch: leave --micro-batch out, or "
            "freeze that tower"
        )


# --- The mean over all ranks, by torch's DDP. ---


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
