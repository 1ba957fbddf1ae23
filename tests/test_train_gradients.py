"""The mean of gradients over ranks: when buckets start, and what becomes of missing gradients."""

from __future__ import annotations

import pytest
import torch
from count_ranks import Alike
from torch import Tensor, nn

from compoclip.ranks import Ranks
from compoclip.training import gradients
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


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_BUCKET_BYTES", 2 * 4 * 16)  # two layers


def test_buckets_start_while_backward_computes(small_buckets: None) -> None:
    layers, ranks = Layers(), Alike(0, 4)
    x = torch.ones(2, 4)
    with GradientMean(layers.parameters(), ranks) as mean:
        started = []
        for _ in range(3):
            layers.zero_grad()
            with mean.during():
                layers(x).backward()
            started.append(list(ranks.exchanges))
            alone = {n: p.grad.clone() for n, p in layers.named_parameters() if p.grad is not None}
            mean.finish()
            ranks.exchanges.clear()
            for name, parameter in layers.named_parameters():
                if name in alone:  # all ranks have the same gradients, and that is their mean
                    torch.testing.assert_close(parameter.grad, alone[name])
                else:
                    assert parameter.grad is None
        assert started == [[], [128, 128, 4], [128, 128, 4]]  # scalars come last
        before = layers.a.grad.clone()
    with mean.during():
        layers(x).backward()
    assert not ranks.exchanges  # the hooks are gone
    assert not torch.equal(layers.a.grad, before)


def test_only_the_last_backward_pass_of_a_step_starts_them(small_buckets: None) -> None:
    layers, ranks = Layers(), Alike(0, 2)
    x = torch.ones(2, 4)
    with GradientMean(layers.parameters(), ranks) as mean:
        for step in range(2):
            layers.zero_grad()
            layers(x).backward()
            layers(2 * x).backward()
            assert not ranks.exchanges
            with mean.during():
                layers(3 * x).backward()
            assert len(ranks.exchanges) == 3 * step
            mean.finish()
            ranks.exchanges.clear()
    torch.testing.assert_close(layers.a.grad, whole_gradient(x, "a"))


def test_a_gradient_must_not_change_once_it_is_complete(small_buckets: None) -> None:
    layers = Layers()
    with GradientMean(layers.parameters(), Alike(0, 2)) as mean, mean.during():
        layers(torch.ones(2, 4)).backward()
        with pytest.raises(AssertionError, match="has changed after it was complete"):
            layers(torch.ones(2, 4)).backward()


def whole_gradient(x: Tensor, name: str) -> Tensor:
    layers = Layers()
    sum(layers(i * x) for i in (1, 2, 3)).backward()
    found: Tensor = layers.get_parameter(name).grad
    return found


def uneven(ranks: Ranks) -> list[dict[str, list[float] | None]]:
    """Gradients of four steps; only rank 1 reads `rare`, in the second and last, and rank 0 has
    nothing to learn from in the third."""
    gradients._BUCKET_BYTES = 128
    layers, found = Layers(), []
    with GradientMean(layers.parameters(), ranks) as mean:
        for step in range(4):
            layers.zero_grad()
            if (step, ranks.rank) != (2, 0):
                loss = layers(torch.full((2, 4), 1.0 + ranks.rank), step % 2 == ranks.rank == 1)
                with mean.during():
                    loss.backward()
            mean.finish()
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
                (layers(x, step % 2 == rank == 1) / 2).backward()
        for name, parameter in layers.named_parameters():
            if parameter.grad is None:
                assert given[name] is None, (step, name)
            else:
                expected = parameter.grad.flatten().tolist()
                assert given[name] == pytest.approx(expected, rel=1e-5), (step, name)
