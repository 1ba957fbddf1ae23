"""Settings of a process before it computes: how threads wait, whether freed memory stays."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from compoclip.errors import CompoclipError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_MUCH = 1 << 30
"""glibc's thresholds in bytes: larger blocks are mapped, larger free ends of the heap trimmed."""
_SPINS = 3000
"""Looks of a waiting thread before it sleeps: about ten microseconds, libgomp's own are 300,000."""


def set_up() -> None:
    """Set up this process and the processes that it starts, before `import torch`.

    Threads that wait for one another sleep soon, unless the environment says how they wait: in
    libgomp, which PyTorch uses on Linux, they wait a millisecond on a busy core and hold up the
    thread that they wait for. A process that imports the library is left as it is.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPINS))
    keep_freed()


def keep_freed() -> bool:
    """Keep memory that is freed for what is asked next; False where the C library cannot be told.

    glibc asks the system for every block of more than 32 MB and returns it when it is freed, and
    the system clears all pages of the next one: with the activations of a convolutional tower that
    takes longer than the convolutions.
    """
    return _tell_c("mallopt", _MMAP_THRESHOLD, _MUCH) and _tell_c("mallopt", _TRIM_THRESHOLD, _MUCH)


def give_back() -> bool:
    """Return freed memory to the system; False where the C library has no call for it.

    Tensors whose sizes change from step to step, as with ragged texts, leave holes that
    glibc keeps: without this a process that trains for hours on a CPU grows to several times what
    it uses.
    """
    return _tell_c("malloc_trim", 0)


def _tell_c(name: str, *arguments: int) -> bool:
    """Call a function of the C library on Linux; return whether there is one of that name."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*arguments)
    return function is not None


def require_main_guard(start_method: str) -> None:
    """Raise CompoclipError where workers of that kind would run the script of the program again.

    All but forked ones import the script. Without `if __name__ == "__main__":` each would start the
    work, and processes, anew: multiprocessing then prints a long trace for each.
    """
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    if start_method == "fork" or getattr(main, "__spec__", None) or not script:
        return
    try:
        text = Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return  # no file: there is nothing to import
    if "__name__" not in text:
        raise CompoclipError(
            f"{script}: every worker process runs this script again; put what it does below "
            'if __name__ == "__main__":, or set workers=0'
        )
