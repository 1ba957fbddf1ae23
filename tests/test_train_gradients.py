"""The mean of gradients over ranks: what becomes of missing gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from compoclip.ranks import Ranks
from compoclip.training.gradients import GradientMean
from ranks_helpers import in_ranks


class Layers(nn.Module):
    """Four layers one after the other, a scale, and what most passes do without."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name in ("a", "b", "c", "d", "rare"):
            setattr(self, name, nn.Parameter(torch.randn(4, 4, generator=generator)))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.never = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor, rare: bool = False) -> Tensor:
        y: Tensor = x @ self.a @ self.b @ self.c @ self.d
        return (self.scale * (y + x @ self.rare if rare else y)).sin().sum()


def uneven(ranks: Ranks) -> list[dict[str, list[float] | None]]:
    """Gradients of four steps; only rank 1 reads `rare`, in the second and last, and rank 0 has
    nothing to learn from in the third."""
    layers, found = Layers(), []
    mean = GradientMean(layers.parameters(), ranks)
    for step in range(4):
        layers.zero_grad()
        if (step, ranks.rank) == (2, 0):
            mean.backward(torch.zeros(()))
        else:
            x = torch.full((2, 4), 1.0 + ranks.rank)
            layers(x).backward()  # as gradient caching does before the last pass of a step
            mean.backward(layers(x, step % 2 == ranks.rank == 1))
        found.append(
            {
                name: None if p.grad is None else p.grad.flatten().tolist()
                for name, p in layers.named_parameters()
            }
        )
    return found


def test_ranks_that_lack_a_gradient_agree_with_the_others() -> None:
    found = in_ranks(2, uneven)
    assert isinstance(found[0], list), found[0]
    assert found[0] == found[1]
    for step, given in enumerate(found[0]):
        layers = Layers()
        for rank in range(2):
            if (step, rank) != (2, 0):
                x = torch.full((2, 4), 1.0 + rank)
                (layers(x) / 2).backward()
                (layers(x, step % 2 == rank == 1) / 2).backward()
        for name, parameter in layers.named_parameters():
            if parameter.grad is None:
                assert given[name] is None, (step, name)
            else:
                expected = parameter.grad.flatten().tolist()
                assert given[name] == pytest.approx(expected, rel=1e-5), (step, name)
