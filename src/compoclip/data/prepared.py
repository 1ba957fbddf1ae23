"""The texts of a batch as numbers, made by the workers: one buffer that a device gets in one copy.

What a step needs of texts are integers: token ids in the order in which the text tower takes them,
which text belongs to which image, and the indices that losses read. A worker computes them all and
lays them out one after the other; the main process copies them and cuts them up where they lie.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compoclip.data.batch import TextBlock
from compoclip.losses.contract import HostLayout, IndexRequest, Ints, Layout
from compoclip.models.preprocess import Tokenizer
from compoclip.models.text_plan import FurtherTexts, TextInputs, TextPlanner


@dataclass(frozen=True)
class ArrayPlace:
    """The place of an array among those of a buffer."""

    number: int


@dataclass(frozen=True)
class IntBuffer:
    """Arrays of integers, and after them arrays of truth values, as one int32 tensor.

    Args:
        values: (n,) int32.
        shapes: Of the arrays, by slot.
        order: The slots in the order in which they lie in `values`.
        masks: How many of the arrays, the last in this order, are truth values.
    """

    values: Tensor
    shapes: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    masks: int

    @staticmethod
    def of(arrays: list[Ints]) -> IntBuffer:
        """Lay arrays out one after the other.

        Args:
            arrays: Integers within int32, or truth values.

        Returns:
            The buffer; the array at place i of the list has slot i.
        """
        order = sorted(range(len(arrays)), key=lambda i: arrays[i].dtype == bool)
        flat = [np.empty(0, np.int32), *(arrays[i].ravel() for i in order)]
        values = torch.from_numpy(np.concatenate(flat, dtype=np.int32, casting="unsafe"))
        masks = sum(array.dtype == bool for array in arrays)
        return IntBuffer(values, tuple(array.shape for array in arrays), tuple(order), masks)

    def on(self, device: torch.device) -> list[Tensor]:
        """Copy the buffer to a device, once, and cut it up there.

        Args:
            device: Where the tensors are wanted.

        Returns:
            The arrays by slot, integers as int64.
        """
        whole = self.values.to(device, non_blocking=True).long()
        sizes = [int(np.prod(self.shapes[slot])) for slot in self.order]
        numbers = len(sizes) - self.masks
        parts = list(torch.split(whole, [*sizes[:numbers], sum(sizes[numbers:])]))
        parts[numbers:] = torch.split(parts[numbers].bool(), sizes[numbers:]) if self.masks else ()
        views = dict(zip(self.order, parts))
        return [views[slot].view(shape) for slot, shape in enumerate(self.shapes)]

    def array(self, slot: ArrayPlace) -> Ints:
        """An array of integers as the host has it, int32."""
        start = 0
        for other in self.order:
            size = int(np.prod(self.shapes[other]))
            if other == slot.number:
                found: Ints = self.values.numpy()[start : start + size]
                return found.reshape(self.shapes[other])
            start += size
        raise KeyError(slot)


@dataclass(frozen=True)
class Numbers:
    """The texts of a batch as numbers.

    Args:
        buffer: All of them.
        texts: What the text tower is given, with slots of the buffer for tensors.
        layout: The fields of the layout that are there, as slots.
        images: Number of images.
        kinds: Kinds of text.
        answers: Indices that losses ask the layout for.
        keys: What tells texts and photos apart in several processes (see `HostLayout`).
        truncated: Texts that the tokenizer cuts.
    """

    buffer: IntBuffer
    texts: TextInputs
    layout: Mapping[str, ArrayPlace]
    images: int
    kinds: tuple[str, ...]
    answers: Mapping[IndexRequest, tuple[ArrayPlace, ...]]
    keys: tuple[Ints, Ints | None] | None
    truncated: int

    def on(self, device: torch.device) -> tuple[TextInputs, Layout]:
        """Copy them to a device.

        Args:
            device: Where the step computes.

        Returns:
            What the text tower is given, and the layout.
        """
        views = self.buffer.on(device)

        def view(slot: Any) -> Tensor:
            tensor: Tensor = views[slot.number]
            return tensor

        texts = self.texts.mapped(view)
        tensors: dict[str, Any] = {name: view(slot) for name, slot in self.layout.items()}
        layout = Layout(images=self.images, kinds=self.kinds, **tensors)
        layout.known_as(self.host)
        for request, slots in self.answers.items():
            layout.answers[request] = tuple(map(view, slots))
        return texts, layout

    @property
    def host(self) -> HostLayout:
        """The layout on the host."""
        arrays: Any = {name: self.buffer.array(slot) for name, slot in self.layout.items()}
        return HostLayout(images=self.images, kinds=self.kinds, keys=self.keys, **arrays)

    def lengths(self, request: IndexRequest) -> list[int]:
        """The lengths of the arrays that a loss asks for.

        Args:
            request: What it asks.

        Returns:
            One of each array.

        Raises:
            ValueError: When the batch has no answer.
        """
        if request in self.answers:
            return [self.buffer.shapes[slot.number][0] for slot in self.answers[request]]
        return [len(array) for array in self.host.answer(request)]

    def pin_memory(self) -> Numbers:
        """The same in memory from which a CUDA device copies without the processor."""
        return replace(self, buffer=replace(self.buffer, values=self.buffer.values.pin_memory()))


@dataclass(frozen=True)
class Preparation:
    """Makes numbers of the texts of batches; may be sent to other processes.

    Args:
        tokenize: The model's tokenizer.
        planner: How its text tower wants texts.
    """

    tokenize: Tokenizer
    planner: TextPlanner

    def __call__(self, block: TextBlock, requests: Collection[IndexRequest] = ()) -> Numbers:
        """The texts of a batch as numbers.

        Args:
            block: The texts; without any there is one that is empty, since towers need something to
                encode.
            requests: The indices that losses are known to ask for.

        Returns:
            The numbers.
        """
        encoded = self.tokenize.encode(block.texts or ("",))
        ids = torch.from_numpy(encoded.ids)
        arrays: list[Ints] = []

        def kept(array: Any) -> Any:
            arrays.append(np.asarray(array))
            return ArrayPlace(len(arrays) - 1)

        planned = self.planner.inputs(ids.long())
        host = block.on_host(encoded.ids[: len(block.texts)])
        if block.masks:
            planned = replace(planned, again=self._masked(block, encoded.ids, host.captions()))
        texts = planned.mapped(kept)
        layout = {name: kept(array) for name, array in host.arrays().items()}
        answers: dict[IndexRequest, tuple[ArrayPlace, ...]] = {}
        for request in requests:
            with suppress(ValueError):  # of a batch that the loss is not asked about
                found = host.answer(request)
                if all(map(_fits, found)):  # pairs of a very large batch do not
                    answers[request] = tuple(map(kept, found))
        return Numbers(
            IntBuffer.of(arrays),
            texts,
            layout,
            block.images,
            host.kinds,
            answers,
            host.keys,
            encoded.truncated if block.texts else 0,
        )

    def _masked(self, block: TextBlock, ids: Ints, captions: Ints) -> FurtherTexts:
        """The first caption of each image with its words hidden, `~id` standing for an id (see
        `methods/macco/hidden.py`)."""
        rows = ids[captions].astype(np.int64)
        hidden = np.zeros(rows.shape, bool)
        # A word's tokens are those between the end of what comes before it and its own.
        cuts = [
            (row, edge)
            for row, (caption, mask) in enumerate(zip(captions, block.masks))
            for span in mask.spans(block.texts[caption])
            for edge in (block.texts[caption][: span[0]], block.texts[caption][: span[1]])
        ]
        edges = torch.from_numpy(self.tokenize.encode([text for _, text in cuts] or [""]).ids)
        ends = self.planner.ends(edges.long()).tolist()
        last = self.planner.ends(torch.from_numpy(rows)).tolist()
        for (row, _), start, stop in zip(cuts[::2], ends[::2], ends[1::2]):
            hidden[row, start : min(stop, last[row])] = True
        inputs = self.planner.inputs(torch.from_numpy(np.where(hidden, ~rows, rows)))
        image, place = np.nonzero(hidden)
        numbers = image * inputs.longest + place, rows[image, place]
        return FurtherTexts(inputs, tuple(map(torch.from_numpy, numbers)))


def _fits(array: Ints) -> bool:
    return array.size == 0 or int(array.max()) < 2**31
