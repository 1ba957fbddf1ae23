"""Measured models for tests of what reads results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from compoclip.programs.run import EvaluateOptions


@contextmanager
def few_resamples(number: int = 20) -> Iterator[None]:
    """Measure inside with few resamples, for tests that assert no interval of a command."""
    defaults: Any = EvaluateOptions.__init__.__kwdefaults__
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defaults, "resamples", number)
        yield
