"""The shares of several processes add up to the loss of the batch: value, gradients, margins.

The processes are threads whose columns are those of one graph, so that what flows back is exact.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from compoclip.losses import (
    alignment,
    contrastive,
    intra_cross,
    masked,
    negation,
    triplet,
)
from compoclip.losses.contract import Features, HostLayout, IndexRequest, Ints, Peers
from compoclip.losses.dimensions import LeadingDimensions
from compoclip.losses.rows import OnlyKinds
from losses_oracle import CAPTION, KINDS, NEGATIVE, POSITIVE, POSITIVES, masking
from losses_pairs import biased
from losses_table import LOSSES as LOSSES_WITH_LOOPS
from losses_table import LossFn


class Table:
    """Where threads put what they have, until all have."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=60)
        self.places: list[Any] = [None] * world

    def all(self, rank: int, own: Any) -> list[Any]:
        self.places[rank] = own
        self.barrier.wait()
        found = list(self.places)
        self.barrier.wait()
        return found


class Threads(Peers):
    def __init__(self, rank: int, world: int, table: Table) -> None:
        self.rank, self.world, self._table = rank, world, table

    def sizes(self, request: IndexRequest, local: Sequence[int]) -> NDArray[np.int64]:
        found = self._table.all(self.rank, (request, list(local)))
        assert {each for each, _ in found} == {request}  # all ask the same in the same order
        return np.array([each for _, each in found]).T

    def gathered(self, rows: Tensor, sizes: Ints) -> Tensor:
        found = self._table.all(self.rank, rows)
        assert [len(each) for each in found] == sizes.tolist()
        return torch.cat(found)

    def summed(self, values: Tensor) -> Tensor:
        return sum(self._table.all(self.rank, values.detach()), torch.zeros(()))

    def collected(self, arrays: Sequence[Ints]) -> list[Ints]:
        return [np.concatenate(each) for each in zip(*self._table.all(self.rank, list(arrays)))]


LOSSES: dict[str, LossFn] = {
    **LOSSES_WITH_LOOPS,
    "negclip of a kind": OnlyKinds(contrastive.negclip_loss, KINDS[:1]),
    "ranking": intra_cross.RankingLoss(KINDS),  # with a state
    "alignment of kinds": partial(alignment.caption_alignment, positives=POSITIVES[:2]),
    "leading": LeadingDimensions(intra_cross.intra_modal_loss, (1, 3)),
    "masked contrast": masked.masked_contrast,
    "masked match": masked.masked_match,
    "grouping": triplet.grouping_loss,
    "conclip": negation.conclip_loss,
    "conclip without distractors": partial(negation.conclip_loss, distractor_weight=0.0),
    "paraphrase": negation.paraphrase_loss,
    "denial": negation.denial_loss,
    "separation": negation.separation_loss,
    "projected negation": negation.projected_negation_loss,
}
LOSSES |= {
    f"{name} masked": masking(LOSSES[name])
    for name in (
        *("clip", "negclip of a kind", "hard positive symmetric_pos=False", "triplet"),
        *("hard positive symmetric_pos=True", "alignment of kinds", "masked contrast"),
        *("masked match", "grouping", "conclip", "bag bag=d", "composite"),
    )
}
LOSSES |= {
    f"{name} near": masking(LOSSES[name], near=0.05)
    for name in (
        *("clip", "negclip missing_hn=mask", "triplet", "conclip", "composite"),
        "unit slots=filled",
    )
}
LOSSES |= {
    f"{name} of a bias": biased(LOSSES[name])
    for name in (
        *("negclip missing_hn=mask near", "hard positive symmetric_pos=False masked", "triplet"),
        *("composite", "masked contrast", "masked contrast masked", "bag bag=d masked"),
    )
}


def part_of(seed: int, images: int, first: int, extra: int) -> tuple[HostLayout, Features]:
    """Images, the last `extra` of them generated, whose texts and photos recur in other parts."""
    rng = np.random.default_rng(seed)
    kinds = (*KINDS, *POSITIVES)
    texts: list[tuple[int, int, int]] = []
    for image in range(images):
        texts.append((image, CAPTION, -1))
        texts += [(image, NEGATIVE, int(rng.integers(len(KINDS)))) for _ in range(rng.integers(4))]
        for place in range(len(POSITIVES)):
            texts += [(image, POSITIVE, len(KINDS) + place)] * int(rng.integers(2))
    rng.shuffle(texts)
    owner, role, rewrite = np.array(texts, np.int64).reshape(-1, 3).T
    keys = rng.integers(0, 9, len(owner)), rng.integers(0, 5, images)
    pair = np.arange(images)
    pair[images - extra :] = np.arange(extra)
    host = HostLayout(
        owner,
        role,
        rewrite,
        images,
        kinds,
        text_id=keys[0],
        image_id=keys[1],
        side=(np.arange(images) >= images - extra).astype(np.int64),
        pair=pair,
        keys=keys,
    )
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    tokens = len(owner), 3, 4
    mask = torch.ones(tokens[:2], dtype=torch.bool)
    unit = torch.nn.functional.normalize
    return host, Features(
        unit(noise(images, 4), dim=-1).requires_grad_(),
        unit(noise(len(owner), 4), dim=-1).requires_grad_(),
        torch.tensor(3.0, dtype=torch.float64, requires_grad=True),
        noise(images, 2, 4).requires_grad_(),
        noise(*tokens).requires_grad_(),
        mask,
        teacher_image=unit(noise(images, 4), dim=-1),
        teacher_text=unit(noise(len(owner), 4), dim=-1),
        masked_image=unit(noise(images, 4), dim=-1).requires_grad_(),
        masked_text=unit(noise(images, 4), dim=-1).requires_grad_(),
    )


def together(parts: Sequence[tuple[HostLayout, Features]]) -> tuple[HostLayout, Features]:
    """The parts as one batch."""
    hosts, features = zip(*parts)
    starts = np.cumsum([0, *(host.images for host in hosts)])

    def joined(name: str, moved: bool = False) -> Any:
        return np.concatenate(
            [getattr(host, name) + moved * start for host, start in zip(hosts, starts)]
        )

    host = replace(
        hosts[0],
        images=int(starts[-1]),
        keys=None,
        **{n: joined(n, n in ("owner", "pair")) for n in hosts[0].arrays()},
    )
    one = features[0]
    whole = {
        name: torch.cat([getattr(each, name) for each in features]).detach().requires_grad_()
        for name in LEAVES
    }
    for name in ("token_mask", "teacher_image", "teacher_text"):
        whole[name] = torch.cat([getattr(each, name) for each in features])
    scale = one.logit_scale.detach().clone().requires_grad_()
    return host, Features(logit_scale=scale, **whole)


LEAVES = ("image", "text", "patches", "tokens", "masked_image", "masked_text")
SIZES = {"one": (5,), "ragged": (3, 1, 5), "empty": (2, 0, 3)}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", LOSSES)
def test_shares_add_up(name: str, sizes: str) -> None:
    world = len(SIZES[sizes])
    parts = [part_of(r, n, 10 * r, n // 3) for r, n in enumerate(SIZES[sizes])]
    host, features = together(parts)
    loss, *losses = (copy.deepcopy(LOSSES[name]) for _ in range(1 + world))  # some have a state
    for _ in range(2 if name == "ranking" else 1):  # the second reads the margins of the first
        value = loss(features, host.layout(torch.from_numpy))
        shares = in_threads(losses, parts)
    total = torch.stack(shares).sum()
    torch.testing.assert_close(total, value)
    value.backward()  # type: ignore[no-untyped-call]
    total.backward()  # type: ignore[no-untyped-call]
    for leaf in LEAVES:
        expected = getattr(features, leaf).grad
        gradients = [getattr(part, leaf).grad for _, part in parts]
        if expected is not None:
            ours = torch.cat([gradient for gradient in gradients if gradient is not None])
            torch.testing.assert_close(ours, expected)
    scales = [f.logit_scale.grad for _, f in parts if f.logit_scale.grad is not None]
    if features.logit_scale.grad is not None:
        torch.testing.assert_close(torch.stack(scales).sum(), features.logit_scale.grad)
    if name == "ranking":
        for part in losses:
            assert part.state_dict() == pytest.approx(loss.state_dict())


def in_threads(
    losses: Sequence[LossFn],
    parts: Sequence[tuple[HostLayout, Features]],
) -> list[Tensor]:
    """What each process makes of its part."""
    world, found = len(parts), {}
    table = Table(world)

    def share(rank: int) -> None:
        host, features = parts[rank]
        try:
            layout = host.layout(torch.from_numpy).shared_by(Threads(rank, world, table))
            found[rank] = losses[rank](features, layout)
        finally:
            if rank not in found:
                table.barrier.abort()

    threads = [threading.Thread(target=share, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(world)]
