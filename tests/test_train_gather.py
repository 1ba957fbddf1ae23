"""What processes exchange: records, ragged rows, gradients, whole batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compoclip.data.batch import Merged, TextBlock, from_record, merge, to_record
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Features, Role
from compoclip.ranks import SINGLE, Ranks, launched
from compoclip.training.distributed import average_gradients, gather_features
from ranks_helpers import in_ranks

COUNTS = {2: ([3, 1], [5, 4]), 4: ([2, 0, 1, 3], [4, 0, 3, 5])}  # images and texts of each process
LENGTHS = (4, 6, 3, 5)


def block(images: int, first: int, added: int = 0, pair: bool = False) -> TextBlock:
    """`images` images, the last `added` of them not drawn, with 1 + i % 3 texts each."""
    owner = [i for i in range(images) for _ in range(1 + (first + i) % 3)]
    place = range(len(owner))
    return TextBlock(
        texts=tuple(f"text {first + o} {p}" for o, p in zip(owner, place)),
        owner=tuple(owner),
        role=tuple(Role.CAPTION if p % 2 else Role.NEGATIVE for p in place),
        rewrite=tuple("" if p % 2 else "swap" for p in place),
        images=images,
        photos=tuple(f"photo {first + i}" for i in range(images)),
        pair=tuple(i - added if i >= images - added else -1 for i in range(images)) if pair else (),
    )


def test_merging_one_part_changes_nothing() -> None:
    own = block(3, 0)
    merged = merge([own], [3])
    assert merged.block == own
    assert merged.images == (0, 1, 2)
    assert merged.texts == tuple(range(len(own.texts)))


def test_added_images_come_after_all_that_were_drawn() -> None:
    parts = [block(4, 0, added=2, pair=True), block(2, 10, added=1, pair=True)]
    merged = merge(parts, [2, 1])
    assert merged.images == (0, 1, 4, 2, 3, 5)
    assert merged.block.photos == tuple(f"photo {i}" for i in (0, 1, 10, 2, 3, 11))
    assert merged.block.pair == (-1, -1, -1, 0, 1, 2)
    flat = [text for part in parts for text in part.texts]
    assert merged.block.texts == tuple(flat[t] for t in merged.texts)
    for text, owner in zip(merged.block.texts, merged.block.owner):
        assert text.split()[1] == merged.block.photos[owner].split()[1]
    assert list(merged.block.owner) == sorted(merged.block.owner)


def test_parts_without_images_and_without_pairs() -> None:
    merged = merge([block(0, 0), block(2, 0, added=1, pair=True), block(1, 5)], [0, 1, 1])
    assert merged.images == (0, 2, 1)
    assert merged.block.pair == (-1, -1, 0)
    assert merge([block(0, 0), block(1, 0)], [0, 1]).block.pair == ()


def test_a_block_survives_a_record() -> None:
    own = block(3, 0, added=1, pair=True)
    assert from_record(to_record(own)) == own


def test_launched_reads_what_torchrun_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launched() == (0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launched() == (3, 4)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UsageError, match="start it with torchrun"):
        launched()


def test_alone_nothing_is_exchanged() -> None:
    with SINGLE.agreed(), SINGLE.rank0_first():
        assert SINGLE.exchange([1]) == [[1]]
    with pytest.raises(CompoclipError, match="mine"), SINGLE.agreed():
        raise CompoclipError("mine")


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


def toy_loss(features: Features) -> Tensor:
    """A function of everything a loss may see that mixes all rows."""
    assert features.patches is not None
    assert features.tokens is not None
    assert features.token_mask is not None
    scores = features.logit_scale * features.image @ features.text.T
    local = torch.einsum("bpd,tld->bt", features.patches, features.tokens.tanh())
    masked = (features.tokens * features.token_mask[..., None]).sum((1, 2))
    return scores.logsumexp(1).sum() + (local.softmax(1) * scores).sum() + masked.sin().sum()


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


def toy_orders(world: int) -> tuple[list[int], list[int]]:
    images, texts = (sum(counts) for counts in COUNTS[world])
    return [*range(1, images), 0], [*reversed(range(texts))]


def gradients(towers: Towers) -> dict[str, list[float] | None]:
    return {
        name: None if p.grad is None else p.grad.reshape(-1).tolist()
        for name, p in towers.named_parameters()
    }


def gathering(ranks: Ranks, folder: Path) -> dict[str, Any]:
    towers = Towers()
    images, texts = toy_orders(ranks.world)
    merged = Merged(block(0, 0), tuple(images), tuple(texts), tuple(zip(*COUNTS[ranks.world])))
    whole = gather_features(towers(*toy_parts(ranks.world)[ranks.rank]), ranks, merged)
    loss = toy_loss(whole)
    loss.backward()  # type: ignore[no-untyped-call]
    average_gradients(towers.parameters(), ranks)
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
        "loss": loss.item(),
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
    images, texts = toy_orders(world)
    towers = Towers()
    loss = toy_loss(towers(pixels[images], words[texts], mask[texts]))
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
    assert found[0]["found"] == []
    assert all("0" in result["found"] for result in found[1:])


def test_features_alone_are_untouched() -> None:
    features = Towers()(*toy_parts(2)[0])
    assert gather_features(features, SINGLE, merge([block(1, 0)], [1])) is features
