"""The --device option of every verb that runs a model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compoclip.errors import UsageError

if TYPE_CHECKING:
    import torch


def device_named(text: str) -> torch.device:
    """The device that `text` means: cpu, cuda, cuda:N, mps, or auto (a GPU when there is one).

    Raises UsageError for another name and for a device that is not here.
    """
    import torch

    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
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
    return torch.device(text)
