"""Ctrl-C as a request that is granted between two steps, where the run can be resumed exactly."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from compoclip.console import note


class Interrupts:
    """While entered, the first Ctrl-C only sets `asked`; the second interrupts at once.

    Does nothing outside the main thread or where Ctrl-C has another meaning already (ignored by a
    shell for jobs in the background, handled by a notebook).
    """

    def __init__(self) -> None:
        self.asked = False
        self._installed = False

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        note("stopping after this step (Ctrl-C again stops at once)")
