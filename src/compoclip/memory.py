"""Memory that was freed and is still held by the process."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> bool:
    """Return freed memory to the system; False where the C library has no call for it.

    Tensors whose sizes change from step to step, as those of ragged texts do, leave holes that
    glibc keeps: without this a process that trains for hours on a CPU grows to several times what
    it uses.
    """
    if sys.platform != "linux":
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True
