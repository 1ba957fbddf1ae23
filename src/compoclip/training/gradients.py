"""The mean of gradients over all ranks, on its way while the backward pass still computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from compoclip.ranks import Ranks

_BUCKET_BYTES = 32 << 20


class GradientMean:
    """Replaces every gradient by its mean over the ranks, in buckets of 32 MB.

    Gradients are summed over the ranks while `during` is open, as soon as a bucket has them all,
    and what is left in `finish`. All ranks start the same buckets in the same order, whatever order
    gradients come in: that in which they came on rank 0 in the first step. Leaving the context
    takes the hooks off the parameters.

    Args:
        parameters: In the same order on all ranks. Those that FSDP has split (DTensors) are left
            alone: their means are taken already.
        ranks: The processes that train together.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
        self._ranks = ranks
        self._parameters: list[nn.Parameter] = []
        self._buckets: list[list[int]] = []
        self._bucket_of: dict[int, int] = {}
        self._under_way = False
        self._restart()
        if ranks.world == 1:
            return
        from torch.distributed.tensor import DTensor  # slow to import, and not needed alone

        learning = (p for p in parameters if p.requires_grad)
        self._parameters = [p for p in learning if not isinstance(p, DTensor)]
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._arrived, number)
            )
            for number, parameter in enumerate(self._parameters)
        ]

    def __enter__(self) -> GradientMean:
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks if self._parameters else ():
            hook.remove()

    @contextmanager
    def during(self) -> Iterator[None]:
        """Around a backward pass after which the gradients that it reaches do not change."""
        self._under_way = True
        try:
            yield
        finally:
            self._under_way = False

    def finish(self) -> None:
        """Wait for the means; all ranks must call it, after each step's last backward pass.

        A gradient that some ranks lack counts as zero there; without one anywhere a parameter keeps
        none.
        """
        if not self._parameters:
            return
        # Others may have started these in the backward pass: they come before anything else.
        while self._started < len(self._buckets):
            self._start()
        # A part without an image, or without a kind of text, may leave some out.
        having = torch.tensor([p.grad is not None for p in self._parameters], dtype=torch.int32)
        self._ranks.all_reduce(having)
        used = [number for number, count in enumerate(having.tolist()) if count]
        new = [number for number in used if number not in self._bucket_of]
        for bucket in self._cut(new):
            self._sum(bucket)
        for numbers, flat, wait in self._sums:
            wait()
            flat.div_(self._ranks.world)
            parameters = [self._parameters[number] for number in numbers]
            parts = torch.split(flat, [p.numel() for p in parameters])
            for number, parameter, part in zip(numbers, parameters, parts):
                if having[number]:
                    if parameter.grad is None:
                        parameter.grad = torch.empty_like(parameter)
                    parameter.grad.copy_(part.view_as(parameter))
        if new:
            self._order(used)
        self._restart()

    def _restart(self) -> None:
        self._arrivals: dict[int, None] = {}
        self._left = [len(bucket) for bucket in self._buckets]
        self._started = 0
        # Of each sum under way the parameters, their gradients below each other, and what waits.
        self._sums: list[tuple[Sequence[int], Tensor, Callable[[], None]]] = []

    def _arrived(self, number: int, _: Tensor) -> None:
        """The hook of a parameter, called whenever its gradient has been added to."""
        if not self._under_way:
            return
        assert number not in self._arrivals, "a gradient has changed after it was complete"
        self._arrivals[number] = None
        if number in self._bucket_of:
            self._left[self._bucket_of[number]] -= 1
        while self._started < len(self._buckets) and not self._left[self._started]:
            self._start()

    def _start(self) -> None:
        self._sum(self._buckets[self._started])
        self._started += 1

    def _sum(self, numbers: Sequence[int]) -> None:
        parameters = [self._parameters[number] for number in numbers]
        gradients = [p.new_zeros(p.numel()) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.detach().reshape(-1) for gradient in gradients])
        self._sums.append((numbers, flat, self._ranks.start_all_reduce(flat)))

    def _order(self, used: Sequence[int]) -> None:
        """Buckets for the next steps, of all parameters that have had a gradient anywhere."""
        numbers = {*used, *self._bucket_of}
        came = [
            number for number in self._ranks.exchange([*self._arrivals])[0] if number in numbers
        ]
        # The temperature comes first, straight from the losses, which still exchange features then:
        # scalars wait until the end.
        order = dict.fromkeys((*came, *sorted(numbers)))
        ordered = sorted(order, key=lambda number: self._parameters[number].ndim == 0)
        self._buckets = self._cut(ordered)
        self._bucket_of = {n: i for i, bucket in enumerate(self._buckets) for n in bucket}

    def _cut(self, numbers: Iterable[int]) -> list[list[int]]:
        """Few large messages rather than one for each parameter: latency dominates for small
        tensors. A bucket has gradients of one type on one device."""
        buckets: list[list[int]] = []
        size, alike = 0, None
        for number in numbers:
            parameter = self._parameters[number]
            added = parameter.numel() * parameter.element_size()
            kind = parameter.dtype, parameter.device
            if not buckets or size + added > _BUCKET_BYTES or kind != alike:
                buckets.append([])
                size, alike = 0, kind
            buckets[-1].append(number)
            size += added
        return buckets
