"""A step computes on a device without asking it for anything: nothing waits, little is copied.

Steps run on torch's `meta` device, whose tensors have a shape and no content: whatever had to read
one (a number of rows that depends on values, a condition, `.item()`) fails there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from compoclip.cli.main import main
from compoclip.losses.contract import StatefulLoss
from compoclip.training import loop
from compoclip.training.step import step
from method_data import arguments, differing

READS = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "masked_scatter",
    "bincount",
    "is_nonzero",
    "equal",
    "lift_fresh",  # a tensor made of Python numbers, which a device gets by a copy of its own
}


class Counted(TorchDispatchMode):
    """Counts the operations that read contents, masks as indices, and copies between devices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.operations = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        self.operations += 1
        if name in READS:
            self.found[name] += 1
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [t for t in args[1] if t is not None and t.dtype in (torch.bool, torch.uint8)]
            self.found["a mask for an index"] += bool(masks)
        out = function(*args, **kwargs)
        before = {t.device.type for t in args if isinstance(t, Tensor)}
        if name in ("_to_copy", "copy_") and isinstance(out, Tensor):
            self.found["copy"] += before != {out.device.type}
        return out


@pytest.mark.parametrize("name", differing())
def test_a_step_asks_its_device_for_nothing(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Counter[str]] = []

    def without_content(
        encoder: Any, tokenize: Any, method: Any, batch: Any, *rest: Any, **options: Any
    ) -> Any:
        settings = replace(rest[0], device="meta")
        assert batch.numbers is not None
        there = deepcopy(encoder).to("meta")
        losses = [replace(term, loss=deepcopy(term.loss)) for term in method.losses]
        for term in losses:  # margins live where the features of the step before did
            if isinstance(term.loss, StatefulLoss) and hasattr(term.loss, "_margins"):
                term.loss._margins = term.loss._margins.to("meta")
        batch.normalised(torch.device("meta"))  # mean and deviation are copied once
        with monkeypatch.context() as patch, Counted() as counted:
            patch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
            changed = replace(method, losses=tuple(losses))
            step(there, tokenize, changed, batch, settings, *rest[1:])
        seen.append(+counted.found)
        return step(encoder, tokenize, method, batch, *rest, **options)

    monkeypatch.setattr(loop, "step", without_content)
    assert main(arguments(world, name, tmp_path / "run", "--set=stop_after=3")) == 0
    assert len(seen) == 3
    # The pixels and one buffer, and what a second pass hides of images, and where that is. In the
    # first step losses say which indices they want: some more arrays of the host that are copied,
    # and still nothing that is read.
    assert seen[2]["copy"] == (4 if name == "macco" else 2)
    assert set(seen[2]) <= {"copy", *(("lift_fresh",) if name == "macco" else ())}
    assert set(seen[0]) <= {"copy", "lift_fresh"}


def test_what_waits_is_seen() -> None:
    x = torch.arange(4.0)
    with Counted() as counted:
        x[x > 1], x[x > 1], (x > 1).nonzero(), x.sum().item(), x.to("meta"), x[torch.arange(2)]
    assert counted.found["a mask for an index"] == 2
    assert counted.found["nonzero"] == 1
    assert counted.found["_local_scalar_dense"] == 1
    assert counted.found["copy"] == 1
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.ones(3, device="meta").nonzero()
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.ones(3, device="meta").sum().item()
