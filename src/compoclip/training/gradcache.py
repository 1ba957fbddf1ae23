"""Gradient caching: the gradients of a whole batch in the memory of a micro-batch.

Losses see all features of a batch at once, encoders need not. So the batch is encoded twice, piece
by piece: first without a graph, which leaves the features; the losses' gradients with respect to
these features are kept; then each piece once more, now with a graph, through which its gradients
flow to the parameters. The same sums as in one go, in another order.

Reference: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup
(RepL4NLP 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compoclip.errors import UsageError
from compoclip.losses.contract import Features
from compoclip.models.work import FeatureWork, Outputs, Piece

Amp = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class _Encoded:
    """A piece that has been encoded without a graph.

    outputs: leaves, which gather gradients if the piece learns. random: the states of the random
    generators (CPU, then the device if it is another) before it was encoded.
    """

    piece: Piece
    outputs: Outputs
    learns: bool
    random: tuple[Tensor, ...]


class GradientCache:
    """The features of a batch, encoded in pieces without a graph.

    features: what losses see; gradients of a loss of them stop at the cache. `backward` carries
    them on to the parameters, and leaves the random state as it finds it: dropout and drop-path
    repeat, piece by piece, what they drew the first time.
    """

    def __init__(self, work: FeatureWork, amp: Amp, device: torch.device) -> None:
        """amp: the precision that every piece is encoded in, both times."""
        self._amp, self._device = amp, device
        image = [self._encoded(piece, work.image.learns) for piece in work.image.pieces]
        text = [self._encoded(piece, work.text.learns) for piece in work.text.pieces]
        self._pieces = [*image, *text]
        with amp():
            self.features: Features = work.join(_outputs(image), _outputs(text))

    def backward(self) -> None:
        """Encode every piece that learns again, and add its gradients to the parameters'."""
        for each in self._pieces:
            wanted = [i for i, leaf in enumerate(each.outputs) if leaf.grad is not None]
            if not each.learns or not wanted:
                continue
            with _random_states(self._device, each.random), self._amp():
                outputs = each.piece()
            torch.autograd.backward(
                [outputs[i] for i in wanted], [each.outputs[i].grad for i in wanted]
            )

    def _encoded(self, piece: Piece, learns: bool) -> _Encoded:
        random = _states(self._device)
        with torch.no_grad(), self._amp():
            outputs = piece()
        leaves = tuple(each.detach().requires_grad_(learns) for each in outputs)
        return _Encoded(piece, leaves, learns, random)


def refuse_batch_norm(network: nn.Module) -> None:
    """Raise UsageError when a layer of the network computes statistics over the batch: in pieces
    they would be other statistics, and other gradients. Frozen batch norms, in eval mode, do not.
    """
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            tower = "image" if name.startswith("visual.") else "text"
            raise UsageError(
                f"--micro-batch: the {tower} tower normalises over the batch ({name} is a batch "
                "norm that learns), so a piece of it gives other features than the whole: leave "
                "--micro-batch out, or freeze that tower"
            )


def _outputs(pieces: Sequence[_Encoded]) -> list[Outputs]:
    return [each.outputs for each in pieces]


def _states(device: torch.device) -> tuple[Tensor, ...]:
    if device.type == "cuda":
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)
    return (torch.get_rng_state(),)


@contextmanager
def _random_states(device: torch.device, states: tuple[Tensor, ...]) -> Iterator[None]:
    """Inside the block random numbers go on from `states`, after it as if it had not been."""
    own = _states(device)
    _set_states(device, states)
    try:
        yield
    finally:
        _set_states(device, own)


def _set_states(device: torch.device, states: tuple[Tensor, ...]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
