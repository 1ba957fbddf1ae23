"""What processes exchange: records, ragged rows, gradients; and what becomes of their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from compoclip.errors import UsageError
from compoclip.ranks import PeerLostError, Ranks, launched, peers
from compoclip.training.distributed import RankPeers, without_rows
from compoclip.training.gradients import GradientMean
from losses_oracle import CAPTION, features_for, layout_of
from ranks_helpers import in_ranks


def test_launched_reads_what_torchrun_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launched() == (0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launched() == (3, 4)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UsageError, match="start the run with torchrun"):
        launched()


def gradients(network: nn.Module) -> dict[str, list[float] | None]:
    return {
        name: None if p.grad is None else p.grad.reshape(-1).tolist()
        for name, p in network.named_parameters()
    }


def exchanging(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """What a process has of the others: rows, of which the second has none, numbers and records."""
    rank_peers, counts = RankPeers(ranks), np.array([2, 0, 3])
    rows = torch.full((int(counts[ranks.rank]), 2), 1.0 + ranks.rank, requires_grad=True)
    weights = (1.0 + ranks.rank) * torch.arange(5.0)[:, None]
    gathered = rank_peers.gathered(rows, counts)
    (gathered * weights).sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    numbers = np.arange(ranks.rank + 1) + 10 * ranks.rank
    collected = rank_peers.collected([numbers, numbers[:0], 2**40 + numbers[:1]])
    records = ranks.exchange({"rank": ranks.rank, "text": "x" * (7 * ranks.rank)})
    with ranks.rank0_first():
        before = sorted(path.name for path in folder.iterdir())
        (folder / str(ranks.rank)).touch()
    try:
        with ranks.agreed():
            if ranks.rank == 1:
                raise UsageError("only here")
    except UsageError as error:
        failed = str(error)
    return {
        "gathered": gathered.tolist(),
        "gradient": rows.grad[:, 0].tolist(),
        "sum": rank_peers.summed(torch.tensor(1.0 + ranks.rank)).item(),
        "collected": [array.tolist() for array in collected],
        "records": records,
        "failed": failed,
        "before": before,
    }


def test_processes_have_what_the_others_have(tmp_path: Path) -> None:
    results = in_ranks(3, exchanging, tmp_path)
    gradient = [0.0, 6.0, 12.0, 18.0, 24.0]  # each row has weights of all three processes
    for result, rows in zip(results, (gradient[:2], [], gradient[2:]), strict=True):
        assert isinstance(result, dict), result
        assert result["gathered"] == [[1.0] * 2] * 2 + [[3.0] * 2] * 3
        assert result["gradient"] == rows
        assert result["sum"] == 6.0
        assert result["records"] == [{"rank": r, "text": "x" * (7 * r)} for r in range(3)]
        assert result["failed"] == "only here"
        assert result["collected"] == [
            [0, 10, 11, 20, 21, 22],
            [],
            [2**40 + 10 * r for r in range(3)],
        ]
    assert results[0]["before"] == []
    assert all("0" in result["before"] for result in results[1:])


def test_a_part_without_images_has_no_rows_and_gradients_of_zero() -> None:
    layout = layout_of([(0, CAPTION, -1), (1, CAPTION, -1)])
    whole = features_for(layout)
    features = without_rows(whole)
    assert features.patches is not None
    assert features.token_mask is not None
    assert (len(features.image), len(features.patches), len(features.token_mask)) == (0, 0, 0)
    (features.image.sum() + features.text.sum()).backward()  # type: ignore[no-untyped-call]
    assert whole.image.grad is not None
    assert not whole.image.grad.any()


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (RuntimeError("[pair.cc:575] Connection closed by peer [127.0.0.1]:17"), True),
        (RuntimeError("whatever a later release says"), True),
        (
            dist.DistNetworkError("has timed out\nC++ CapturedTraceback:\n#4"),
            True,
        ),
        (dist.DistStoreError("wait timeout"), True),
        (dist.DistBackendError("NCCL error: remote process exited"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (NotImplementedError("no kernel"), False),
        (ValueError("The size of tensor a (3) must match"), False),
    ],
)
def test_the_type_of_an_error_says_that_another_process_has_ended(
    error: Exception, ended: bool
) -> None:
    with pytest.raises(PeerLostError if ended else type(error)) as raised, peers():
        raise error
    if ended:
        assert str(raised.value).startswith("another process of the run has ended")
        assert "CapturedTraceback" not in str(raised.value)


# --- The mean of gradients where ranks lack some. ---


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
        found.append(gradients(layers))
    return found


def test_ranks_that_lack_a_gradient_agree_with_the_others() -> None:
    first, second = in_ranks(2, uneven)
    assert isinstance(first, list), first
    assert first == second
    for step, given in enumerate(first):
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
