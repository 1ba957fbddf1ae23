"""Whether `torch.compile` works here."""

from __future__ import annotations

import torch

from compoclip.errors import CompoclipError


def require_compiler(device: torch.device) -> None:
    """Compile and run a trifle. Raises CompoclipError when that fails: no C++ compiler for a CPU,
    no Triton for a GPU, no room for the compiler's cache."""

    def trifle(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    try:
        torch.compile(trifle)(torch.zeros(8, device=device))
    except Exception as error:  # whatever the back end raises
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CompoclipError(
            f"--compile: torch.compile does not work on {device} here ({first}); install a C++ "
            "compiler (g++) for a CPU or Triton for a GPU, or leave --compile out"
        ) from error
