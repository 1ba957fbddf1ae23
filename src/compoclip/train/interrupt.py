"""Ctrl-C and SIGTERM as requests that are granted between two steps, where a run can be resumed
exactly."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from compoclip.interrupts import say, unhandled


class Interrupts:
    """While entered, the first Ctrl-C or SIGTERM only sets `asked`, to its number; a second Ctrl-C
    interrupts at once. A second SIGTERM does nothing: launchers and schedulers both send one.

    Does nothing outside the main thread or where a signal has another meaning already (ignored by a
    shell for jobs in the background, handled by a notebook).
    """

    def __init__(self) -> None:
        self.asked = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if unhandled(number):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = number
            how = "Ctrl-C again stops at once" if number == signal.SIGINT else "SIGTERM"
            say(f"stopping after this step ({how})")
        elif number == signal.SIGINT:
            self._before[number](number, frame)  # which raises KeyboardInterrupt
