"""Count what a rank has to do, keep and exchange in a training step, by the number of ranks.

    python scripts/count_ranks.py [--ranks 1 8 16 64] [--recipes fsc-clip negclip]

256 images with 4 texts each on every rank, features of ViT-B/32's size. There is one process: the
other ranks are taken to have what this one has, so that everything that grows with their number
does. Features have shapes and no content (torch's `meta` device). Prints a line for each recipe and
number of ranks:

- host: processor milliseconds of this thread to take a batch, tell the others of it and hear of
  theirs, and make tensors of its numbers: what a step needs before the towers;
- losses: the same for forward and backward of the losses on `meta`, indices included, which says
  how that part of the host's work grows, and little of what it takes on a GPU;
- exchanges of a step, but for the mean of the gradients: their number, and bytes that arrive;
- GB kept: what autograd keeps for the losses, and with --towers for the towers of ViT-B/32 in
  float32; with weights, gradients and moments that is what a GPU has to hold.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from compoclip.data.batch import Batch, TextBlock
from compoclip.data.loader import BatchLoader
from compoclip.data.prepared import Preparation
from compoclip.losses.contract import Features, Role
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelConfig
from compoclip.ranks import Ranks
from compoclip.training.distributed import shared_batches
from compoclip.training.step import weighted_loss

WORDS = ("cat", "dog", "red", "blue", "on", "the", "a", "table", "man", "woman", "street", "near")


@dataclass(frozen=True)
class Setting:
    """One point. captions: texts an image, all but the first negatives. words: of a caption."""

    batch: int = 16
    captions: int = 2
    words: int = 10


PART = Setting(batch=256, captions=4)
META = torch.device("meta")
VISION = {"image_size": 224, "patch_size": 32, "width": 768, "layers": 12, "head_width": 64}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12}
VIT_B_32 = {"embed_dim": 512, "vision_cfg": VISION, "text_cfg": TEXT}
WIDTH, PATCHES = 512, 49
STATE_BYTES = 16  # of a parameter: weight, gradient and two moments


def batch_of(setting: Setting, model: LoadedModel, method: Method) -> Batch:
    """Noise with captions of about so many words, half as many to half as many more."""
    rng = random.Random(0)
    count = setting.batch * setting.captions
    lengths = [min(74, max(1, round(setting.words * rng.uniform(0.5, 1.5)))) for _ in range(count)]
    role = (Role.CAPTION, *[Role.NEGATIVE] * (setting.captions - 1)) * setting.batch
    block = TextBlock(
        texts=tuple(" ".join(rng.choices(WORDS, k=length)) for length in lengths),
        owner=tuple(i // setting.captions for i in range(count)),
        role=role,
        rewrite=tuple("" if r is Role.CAPTION else method.kinds[0] for r in role),
        images=setting.batch,
    )
    generator = torch.Generator().manual_seed(0)
    size = (setting.batch, 3, *model.preprocess.size)
    pixels = torch.randint(256, size, dtype=torch.uint8, generator=generator)
    ids = tuple(map(str, range(setting.batch)))
    return Batch(pixels, block, ids, mean=model.preprocess.mean, std=model.preprocess.std)


@dataclass(frozen=True)
class Alike(Ranks):
    """Rank 0 of many that all have what it has. exchanges: the bytes that each brought."""

    exchanges: list[int] = field(default_factory=list, compare=False)

    def exchange(self, record: Any) -> list[Any]:
        self.exchanges.append(self.world)
        return [record] * self.world

    def _gathered(self, tensor: Tensor) -> Tensor:
        self._note(tensor, self.world)
        return tensor.repeat(self.world, *[1] * (tensor.ndim - 1))

    def reduce_scatter(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        self._note(rows)
        return rows[: counts[0]] * self.world

    def all_reduce(self, tensor: Tensor) -> None:
        self._note(tensor)
        tensor *= self.world

    def _note(self, tensor: Tensor, times: int = 1) -> None:
        if self.world > 1:
            self.exchanges.append(tensor.numel() * tensor.element_size() * times)


class Loader:
    """The same batch again and again, with its numbers as a worker makes them."""

    def __init__(self, batch: Batch, prepare: Preparation) -> None:
        self.bad: dict[str, str] = {}
        self._batch, self._prepare = batch, prepare
        self.work()

    def work(self) -> None:
        """What a worker does."""
        numbers = self._prepare(self._batch.block, self._batch.unforeseen)
        self._made = replace(self._batch, numbers=numbers)

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        for _ in range(start, stop):
            yield self._made


class Kept:
    """The bytes that autograd keeps inside the block, each storage once."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._hooks = saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage
        return tensor

    def __enter__(self) -> Kept:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    @property
    def bytes(self) -> int:
        return self.bytes_but(set())

    def bytes_but(self, others: set[int]) -> int:
        """Without these storages."""
        kept = (storage for key, storage in self._storages.items() if key not in others)
        return sum(storage.nbytes() for storage in kept)


def features_of(images: int, texts: int, length: int, local: bool) -> Features:
    """What the towers would give, without content."""

    def made(*shape: int) -> Tensor:
        return torch.zeros(*shape, device=META, requires_grad=True)

    return Features(
        F.normalize(made(images, WIDTH), dim=-1),
        F.normalize(made(texts, WIDTH), dim=-1),
        torch.ones((), device=META, requires_grad=True).exp(),
        made(images, PATCHES, WIDTH) if local else None,
        made(texts, length, WIDTH) if local else None,
        torch.ones(texts, length, dtype=torch.bool, device=META) if local else None,
    )


@dataclass(frozen=True)
class Counts:
    """What one step takes on a rank, see the top."""

    host: float
    losses: float
    exchanges: tuple[int, ...]
    kept: int


# There is no autocast for a device without content, where it changes nothing.
_without_autocast = patch.object(torch, "autocast", lambda *_, **__: nullcontext())


@_without_autocast
def counts_of(model: LoadedModel, recipe: str, world: int, repeats: int = 3) -> Counts:
    """Take steps of a recipe at so many ranks, but for the towers; the least of some repeats.

    model: the tokenizer and the planner of its text tower are used.
    """
    method = load_recipe(recipe)()
    prepare = Preparation(model.tokenizer, model.encoder.text_planner(0))
    loader, ranks = Loader(batch_of(PART, model, method), prepare), Alike(0, world)
    shared = shared_batches(cast(BatchLoader, loader), ranks, lambda: 0, 0, 2 + repeats)
    host, losses, kept = [], [], 0
    for number in range(2 + repeats):  # the first say which indices losses want
        loader.work()
        ranks.exchanges.clear()
        start = time.thread_time()
        batch, whole = next(shared)
        assert batch.numbers is not None
        texts, layout = batch.numbers.on(META)
        layout.shared_by(whole.peers).note_in(batch.unforeseen)
        spent = time.thread_time() - start
        terms = method.terms_on(batch.kind)
        local = any(term.needs_local for term in terms)
        features = features_of(layout.images, len(layout.owner), texts.longest, local)
        start = time.thread_time()
        with Kept() as found:
            _, loss = weighted_loss(terms, features, layout)
        whole.peers.summed(loss)
        loss.backward(torch.full_like(loss, world))  # type: ignore[no-untyped-call]
        if number >= 2:
            host.append(spent)
            losses.append(time.thread_time() - start)
            kept = found.bytes
    return Counts(1e3 * min(host), 1e3 * min(losses), tuple(ranks.exchanges), kept)


@_without_autocast
def towers_of(model: LoadedModel, recipe: str) -> tuple[int, int]:
    """Bytes of weights, gradients and moments; and what autograd keeps for the towers' features."""
    method = load_recipe(recipe)()
    batch = batch_of(PART, model, method)
    numbers = Preparation(model.tokenizer, model.encoder.text_planner(0))(batch.block)
    encoder = deepcopy(model.encoder).to("meta").train()
    local = any(term.needs_local for term in method.losses)
    with Kept() as found:
        encoder.work(batch.normalised(META), numbers.on(META)[0], local, 0).all()
    weights = {parameter.untyped_storage()._cdata for parameter in encoder.parameters()}
    state = sum(parameter.numel() for parameter in encoder.parameters()) * STATE_BYTES
    return state, found.bytes_but(weights)


def main() -> None:
    """Count, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 16, 64])
    parser.add_argument("--recipes", nargs="+", default=["fsc-clip", "negclip"])
    parser.add_argument("--towers", action="store_true", help="count what towers keep, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = create_model(ModelConfig(VIT_B_32, {"size": 224}), seed=0)
    print("recipe ranks images | host ms | losses ms | exchanges, MB | losses GB")
    for recipe in given.recipes:
        for world in given.ranks:
            found = counts_of(model, recipe, world)
            print(
                f"{recipe} {world} {world * PART.batch} | {found.host:.1f} | {found.losses:.1f} | "
                f"{len(found.exchanges)}, {sum(found.exchanges) / 1e6:.1f} | "
                f"{found.kept / 1e9:.2f}",
                flush=True,
            )
        if given.towers:
            state, kept = towers_of(model, recipe)
            print(f"{recipe}: state {state / 1e9:.2f} GB, towers keep {kept / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
