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
from compoclip.losses.contract import Features
from compoclip.ranks import PeerLostError, Ranks, launched, peers
from compoclip.training.distributed import RankPeers, without_rows
from compoclip.training.gradients import GradientMean
from ranks_helpers import in_ranks

COUNTS = {2: ([3, 1], [5, 4]), 4: ([2, 0, 1, 3], [4, 0, 3, 5])}  # images and texts of each process
LENGTHS = (4, 6, 3, 5)


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


class Towers(nn.Module):
    """Linear towers with local features: what a gradient has to come back through."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.image = nn.Parameter(torch.randn(6, 5, generator=generator))
        self.text = nn.Parameter(torch.randn(6, 5, generator=generator))
        self.logit_scale = nn.Parameter(torch.tensor(1.0))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, pixels: Tensor, words: Tensor, mask: Tensor) -> Features:
        patches, tokens = pixels @ self.image, words @ self.text
        tokens = tokens.masked_fill(~mask[..., None], 0.0)
        return Features(
            image=nn.functional.normalize(patches.mean(1), dim=-1),
            text=nn.functional.normalize(tokens.sum(1), dim=-1),
            logit_scale=self.logit_scale.exp(),
            patches=patches,
            tokens=tokens,
            token_mask=mask,
        )


def toy_loss(features: Features, images: Tensor, texts: Tensor) -> Tensor:
    """A function of everything a loss may see, whose rows meet the columns `images`, `texts`."""
    assert features.patches is not None
    assert features.tokens is not None
    assert features.token_mask is not None
    scores = features.logit_scale * features.image @ texts.T
    back = features.logit_scale * features.text @ images.T
    local = features.patches.tanh().sum((1, 2)) * scores.softmax(1).square().sum(1)
    masked = (features.tokens * features.token_mask[..., None]).sum((1, 2))
    return scores.logsumexp(1).sum() + back.logsumexp(1).sin().sum() + local.sum() + masked.sum()


def toy_parts(world: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Pixels, words and mask of each process."""
    generator = torch.Generator().manual_seed(1)
    parts = []
    for rank, (images, texts) in enumerate(zip(*COUNTS[world])):
        length = LENGTHS[rank]
        pixels = torch.randn(images, 3, 6, generator=generator)
        words = torch.randn(texts, length, 6, generator=generator)
        ends = torch.randint(1, length + 1, (texts, 1), generator=generator)
        parts.append((pixels, words, torch.arange(length) < ends))
    return parts


def gradients(network: nn.Module) -> dict[str, list[float] | None]:
    return {
        name: None if p.grad is None else p.grad.reshape(-1).tolist()
        for name, p in network.named_parameters()
    }


def gathering(ranks: Ranks, folder: Path) -> dict[str, Any]:
    towers = Towers()
    images, texts = COUNTS[ranks.world]
    mean, rank_peers = GradientMean(towers.parameters(), ranks), RankPeers(ranks)
    for _ in range(2):
        towers.zero_grad()
        own = towers(*toy_parts(ranks.world)[ranks.rank])
        share = toy_loss(
            own,
            rank_peers.gathered(own.image, np.array(images)),
            rank_peers.gathered(own.text, np.array(texts)),
        )
        mean.backward(ranks.world * share)
    numbers = np.arange(ranks.rank + 1) + 10 * ranks.rank
    collected = rank_peers.collected([numbers, numbers[:0], 2**40 + numbers[:1]])
    said = ranks.exchange({"rank": ranks.rank, "text": "x" * (7 * ranks.rank)})
    with ranks.rank0_first():
        found = sorted(path.name for path in folder.iterdir())
        (folder / str(ranks.rank)).touch()
    try:
        with ranks.agreed():
            if ranks.rank == 1:
                raise UsageError("only here")
    except UsageError as error:
        failed = str(error)
    return {
        "loss": rank_peers.summed(share).item(),
        "collected": [each.tolist() for each in collected],
        "gradients": gradients(towers),
        "said": said,
        "failed": failed,
        "found": found,
    }


@pytest.mark.parametrize("world", [2, 4])
def test_gathered_features_have_the_gradients_of_one_process(world: int, tmp_path: Path) -> None:
    parts = toy_parts(world)
    longest = max(mask.shape[1] for _, _, mask in parts)
    pixels = torch.cat([part[0] for part in parts])
    words = torch.cat([nn.functional.pad(w, (0, 0, 0, longest - w.shape[1])) for _, w, _ in parts])
    mask = torch.cat([nn.functional.pad(m, (0, longest - m.shape[1])) for _, _, m in parts])
    towers = Towers()
    features = towers(pixels, words, mask)
    loss = toy_loss(features, features.image, features.text)
    loss.backward()  # type: ignore[no-untyped-call]
    expected = gradients(towers)
    found = in_ranks(world, gathering, tmp_path)
    for result in found:
        assert isinstance(result, dict), result
        assert result["loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert result["gradients"] == found[0]["gradients"]  # bit for bit: replicas stay equal
        assert result["gradients"]["unused"] is None
        for name, values in expected.items():
            if values is not None:
                assert result["gradients"][name] == pytest.approx(values, rel=1e-5, abs=1e-6)
        assert result["said"] == [{"rank": r, "text": "x" * (7 * r)} for r in range(world)]
        assert result["failed"] == "only here"
        assert result["collected"] == [
            [10 * r + i for r in range(world) for i in range(r + 1)],
            [],
            [2**40 + 10 * r for r in range(world)],
        ]
    assert found[0]["found"] == []
    assert all("0" in result["found"] for result in found[1:])


def test_a_part_without_images_has_no_rows_and_gradients_of_zero() -> None:
    towers = Towers()
    features = without_rows(towers(*toy_parts(2)[0]))
    assert (len(features.image), len(features.patches), len(features.token_mask)) == (0, 0, 0)
    toy_loss(features, torch.ones(2, 5), torch.ones(3, 5)).backward()  # type: ignore[no-untyped-call]
    assert towers.image.grad is not None
    assert not towers.image.grad.any()


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
