"""The --device option of every verb that runs a model."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from compoclip.errors import UsageError
from compoclip.ranks import launched

if TYPE_CHECKING:
    import torch


def device_named(text: str) -> torch.device:
    """The device that `text` means: cpu, cuda, cuda:N, mps, or auto (a GPU when there is one).

    Under torchrun cuda is a GPU for each process of a machine. Raises UsageError for another name
    and for a device that is not here.
    """
    import torch

    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    match = re.fullmatch(r"(cpu|mps|cuda)(?::(\d+))?", text)
    if match is None or (match[2] and match[1] != "cuda"):
        raise UsageError(
            f"--device '{text}' is not one of cpu, cuda, cuda:N, mps; use --device cpu"
        )
    if match[1] == "mps" and not torch.backends.mps.is_available():
        raise UsageError("--device mps: there is no Apple GPU here; use --device cpu")
    if match[1] == "cuda":
        have = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not have:
            raise UsageError(f"--device {text}: no CUDA device is available here; use --device cpu")
        if int(match[2] or 0) >= have:
            raise UsageError(f"--device {text}: the CUDA devices here end at cuda:{have - 1}")
        if launched()[1] > 1:
            return torch.device("cuda", _own_gpu(match[2], have))
    return torch.device(text)


def _own_gpu(asked: str | None, have: int) -> int:
    """The number of this process's GPU among those of its machine, under torchrun."""
    if asked is not None:
        raise UsageError(
            f"--device cuda:{asked}: under torchrun every process takes a GPU of its own; "
            "use --device cuda"
        )
    own = int(os.environ.get("LOCAL_RANK", launched()[0]))
    if own >= have:
        raise UsageError(
            f"more processes than the {have} CUDA devices here; start torchrun with "
            f"--nproc-per-node {have}"
        )
    return own
