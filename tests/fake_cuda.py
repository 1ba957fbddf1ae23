"""A CUDA device that is not there: tensors with a device, a shape and no content, to count on.

Operations are those that a GPU would be given, in forward, backward and optimiser, with autocast.
What torch asks a real device for is stood in for: the attention kernel, which is flash in half
precision, and the walk through the graph in backward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from compoclip.data import transform

DEVICE = torch.device("cuda", 0)
_NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "_unsafe_view"}
_SEVERAL = {"_varlen_attn": 2}  # attention, and zeros in the place of a random state
_ATTENTION = ("_varlen_attn", "_scaled_dot_product_flash_attention")


class Launches(TorchDispatchMode):
    """Counts the operations that launch something: neither views nor memory without content.

    Attributes:
        found: How often each ran, by name.
        attention: Name of each attention that ran forward, and the shape of its queries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.attention: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function.namespace == "prim":  # a question about a tensor
            return function(*args, **kwargs)
        if not any(map(_on_device, tree_leaves((args, kwargs)))):
            with unset_fake_temporarily():  # the host's own
                return function(*args, **kwargs)
        name = function.overloadpacket.__name__
        views = any(r.alias_info and not r.alias_info.is_write for r in function._schema.returns)
        if not views and name not in _NOTHING:
            self.found[name] += _SEVERAL.get(name, 1)
        if name in _ATTENTION:
            self.attention.append((name, tuple(args[0].shape)))
        return function(*args, **kwargs)


def _on_device(given: object) -> bool:
    return isinstance(given, FakeTensor) or getattr(given, "type", None) == "cuda"


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Let the block make tensors on `DEVICE`, and modules within `with DEVICE`; what concerns the
    host alone is computed within `Launches`."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    plain = F.scaled_dot_product_attention

    def attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        if q.dtype in (torch.bfloat16, torch.float16):
            found: tuple[Tensor, ...] = kernel(q, k, v, 0.0, is_causal)
            return found[0]
        return plain(q, k, v, is_causal=is_causal)

    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True):
        patch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
        patch.setattr("torch.nn.utils.clip_grad._has_foreach_support", lambda *_: True)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        patch.setattr(F, "scaled_dot_product_attention", attend)
        patch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
        patch.setattr(Tensor, "backward", _backward)
        transform._scale.cache_clear()
        try:
            yield
        finally:
            transform._scale.cache_clear()


def _backward(loss: Tensor, gradient: Tensor) -> None:
    """`loss.backward(gradient)` with the operations of autograd's engine, without its streams."""
    root: Any = loss.grad_fn
    uses: Counter[Any] = Counter()
    seen, unseen = {root}, [root]
    while unseen:
        for node, _ in unseen.pop().next_functions:
            if node is not None:
                uses[node] += 1
                if node not in seen:
                    seen.add(node)
                    unseen.append(node)
    given: dict[Any, list[Tensor | None]] = {
        node: [None] * len(node._input_metadata) for node in seen
    }
    given[root] = [gradient]
    ready = [root]
    with torch.no_grad():
        while ready:
            node = max(ready, key=lambda each: each._sequence_nr())  # the one made last
            ready.remove(node)
            for (after, slot), gradient in _passed_on(node, given.pop(node)):
                if gradient is not None:
                    metadata, before = after._input_metadata[slot], given[after][slot]
                    if gradient.shape != (shape := tuple(metadata.shape)):
                        gradient = gradient.sum_to_size(shape)
                    gradient = gradient.to(metadata.dtype)
                    given[after][slot] = gradient if before is None else before + gradient
                uses[after] -= 1
                if not uses[after]:
                    ready.append(after)


def _passed_on(node: Any, given: list[Tensor | None]) -> list[tuple[Any, Tensor | None]]:
    """The gradient for each edge that leaves a node; leaves keep theirs."""
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    if all(each is None for each in given):
        return [(edge, None) for edge in edges]
    if (leaf := getattr(node, "variable", None)) is not None:
        (gradient,) = given
        assert gradient is not None
        assert leaf.grad is None
        # A gradient that lies in memory as its parameter does is taken, any other is copied.
        leaf.grad = gradient if gradient.stride() == leaf.stride() else gradient.clone()
        return []
    if hasattr(node, "apply"):  # written in Python, with arguments that are no tensors
        made = node.apply(*given)
        made = made if isinstance(made, tuple) else (made,)
        wanted = [gradient for gradient, needed in zip(made, node.needs_input_grad) if needed]
        return list(zip(edges, wanted, strict=True))
    made = node(*given)
    made = made if isinstance(made, tuple) else (made,)
    pairs = zip(node.next_functions, made, strict=True)
    return [(edge, gradient) for edge, gradient in pairs if edge[0] is not None]
