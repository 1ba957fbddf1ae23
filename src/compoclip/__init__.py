"""compoclip: fine-tune CLIP-style models for compositionality and measure it honestly.

From Python: `load` a `Model` to score, evaluate and train it, `rewrite` captions (`compoclip.api`).
Importing this package is cheap: it imports neither torch nor any optional extra, and the names
above only when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compoclip.version import __version__

if TYPE_CHECKING:
    from compoclip.api import (
        CompoclipError,
        EvaluateOptions,
        Model,
        TrainOptions,
        UsageError,
        load,
        rewrite,
    )

__all__ = [
    "CompoclipError",
    "EvaluateOptions",
    "Model",
    "TrainOptions",
    "UsageError",
    "__version__",
    "load",
    "rewrite",
]


def __getattr__(name: str) -> object:
    """A name of `compoclip.api`, imported when it is first asked for."""
    if name in __all__:
        from compoclip import api

        return getattr(api, name)
    raise AttributeError(f"module 'compoclip' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
