"""`python -m bench memory`: what a training step holds in memory, part by part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bench.harness import Row, Sampled
from bench.made import caption_batch, drawn_captions
from compoclip.data.batch import Batch
from compoclip.losses.contract import Features
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.models.work import MicroBatch, Outputs
from compoclip.ranks import device_named
from compoclip.training.loop import freeze
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import repeated_units
from compoclip.training.step import weighted_loss


def count_step_memory(
    loaded: LoadedModel, method: Method, batch: Batch, settings: RunSettings
) -> dict[str, int]:
    """Count the bytes that a step holds, by what they are for, the most at once ("peak") and the
    same if the batch is not encoded in pieces ("whole").

    Pieces are encoded with a graph, one at a time, and the losses computed on features of the sizes
    of the whole batch. Nothing is trained. Features: as encoded, as losses see them, and their
    gradients. Images and texts: of the largest piece; if activations are computed again, with
    those of one block, taken as an equal share of the tower's. What lives only within one operation
    is not counted.
    """
    encoder = loaded.encoder
    freeze(encoder.model, method.trains)
    encoder.train()
    device = encoder.device
    pixels = batch.normalised(device)
    ids = loaded.tokenizer(list(batch.texts))
    active = method.terms_on(batch.kind)
    local = any(term.needs_local for term in active)
    work = encoder.work(pixels, ids, local, settings.micro_batch)
    pieces = len(encoder.image_work(pixels, local, settings.micro_batch).micro_batches)
    of_images, of_texts = work.micro_batches[:pieces], work.micro_batches[pieces:]

    def amp() -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")

    known = {t.untyped_storage().data_ptr() for t in (pixels, *encoder.parameters())}

    def kept(micro_batches: Iterable[MicroBatch]) -> tuple[list[int], Outputs]:
        """What each micro-batch keeps, and what the last one gives."""
        sizes: list[int] = []
        outputs: Outputs = ()
        for encode in micro_batches:
            del outputs
            with SavedBytes(known) as saved, amp():
                outputs = encode()
            sizes.append(saved.bytes)
        return sizes, tuple(each.detach() for each in outputs)

    images, seen = kept(of_images[:1])  # all are alike, or smaller
    texts, read = kept(of_texts)
    image, text = images[0], max(texts)
    if encoder.recomputes:
        encoder.set_grad_checkpointing(False)
        blocks = len(repeated_units(encoder.model.get_submodule("visual")))
        image += kept(of_images[:1])[0][0] // max(1, blocks)
        blocks = len(repeated_units(encoder.model)) - blocks
        text += max(kept(of_texts)[0]) // max(1, blocks)
        encoder.set_grad_checkpointing()
    longest = encoder.text_planner().inputs(ids).longest
    features = _features(seen, read, len(pixels), len(ids), longest)
    with SavedBytes(known) as saved:
        _, loss = weighted_loss(active, features, batch.layout(device, ids))
    del loss
    learn = sum(p.nbytes for p in encoder.parameters() if p.requires_grad)
    whole = (features.image, features.text, features.patches, features.tokens)
    always = {
        "weights": sum(x.nbytes for x in (*encoder.parameters(), *encoder.buffers())),
        "gradients": learn,
        "moments of AdamW": 2 * learn,
        "images of the batch": batch.pixels.nbytes + pixels.nbytes,
        "features of the batch and their gradients": 3
        * sum(x.nbytes for x in whole if x is not None),
    }
    all_pieces = images[0] * len(pixels) // len(seen[0]) + sum(texts)
    together = sum(always.values()) + all_pieces + saved.bytes
    # In pieces, the losses' part is given back before the first piece is encoded again.
    peak = together if work.whole else sum(always.values()) + max(image, text, saved.bytes)
    return always | {
        "kept for the losses": saved.bytes,
        "kept for a micro-batch of images": image,
        "kept for a micro-batch of texts": text,
        "peak": peak,
        "whole": together,
    }


class SavedBytes:
    """Counts what operations inside the block keep for their backward pass, each storage once.

    `known` storages (of parameters) are not counted. bytes: the sum, after the block.
    """

    def __init__(self, known: Iterable[int] = ()) -> None:
        self._known = set(known)
        self._sizes: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept)

    @property
    def bytes(self) -> int:
        """Bytes of distinct storages."""
        return sum(self._sizes.values())

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor


def _features(seen: Outputs, read: Outputs, images: int, texts: int, longest: int) -> Features:
    """Noise in the form of a whole batch's features; seen, read: outputs of a piece of each tower.
    Every text is as long as the longest."""
    device = seen[0].device
    generator = torch.Generator(device).manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).requires_grad_()

    local = len(seen) > 1
    width = seen[0].shape[-1]
    return Features(
        image=noise(images, width),
        text=noise(texts, width),
        logit_scale=torch.tensor(100.0, device=device, requires_grad=True),
        patches=noise(images, *seen[1].shape[1:]) if local else None,
        tokens=noise(texts, longest, width) if local else None,
        token_mask=torch.ones(texts, longest, dtype=torch.bool, device=device) if local else None,
    )


_GB = 1e9
_MOST = 8.0  # GB
QUICK = ()


@dataclass(frozen=True)
class Options(Sampled):
    """Bytes that a training step of FSC-CLIP holds at its peak, counted: weights, gradients and
    moments of AdamW, features of the whole batch, and what operations keep for the backward pass
    of one micro-batch, each storage once. Nothing is trained; micro-batches are encoded one at a
    time.

    Args:
        model: Anything `compoclip evaluate` takes.
        batch_size: Images a step.
        micro_batch: Images encoded at once, as for `compoclip train`; 0 is all.
        grad_checkpointing: Activations computed again in backward, as for `compoclip train`.
        precision: Arithmetic of the towers (bf16: autocast).
    """

    model: str = "random:ViT-B-32"
    batch_size: int = 256
    micro_batch: int = 32
    grad_checkpointing: bool = False
    precision: Literal["fp32", "bf16"] = "fp32"


def measure(options: Options, folder: Path) -> list[Row]:
    """Count the parts of a step of FSC-CLIP, and its peak."""
    captions = drawn_captions(options.captions, options.batch_size, options.seed, "--batch-size")
    loaded = load_model(options.model, device=device_named("cpu"))
    method = load_recipe("fsc-clip")()
    if options.grad_checkpointing:
        loaded.encoder.set_grad_checkpointing()
    batch = caption_batch(loaded, method, captions, options.seed)
    settings = RunSettings(out=Path(), precision=options.precision, micro_batch=options.micro_batch)
    parts = count_step_memory(loaded, method, batch, settings)
    peak, whole = (parts.pop(name) / _GB for name in ("peak", "whole"))
    size = f"batch {options.batch_size} by {options.micro_batch}"
    most = Row(
        what=f"FSC-CLIP step, {options.model}, {size}, GB at the peak ({_MOST:.0f} asked)",
        ours=peak,
        baseline=whole,
        against="the whole batch at once",
        target=whole / _MOST,
        less=True,
    )
    return [most, *(Row(f"{name}, GB", size / _GB) for name, size in parts.items())]
