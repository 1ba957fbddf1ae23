"""Ctrl-C and SIGTERM: how commands end when they are asked to.

Both raise KeyboardInterrupt in the main thread, once: what follows is tidying up, which a second
signal does not disturb. Schedulers (SLURM, Kubernetes, spot machines) send SIGTERM some time before
they kill.

A signal may come while Python runs code whose exceptions it prints and forgets (a finaliser, a weak
reference's callback, as imports have them). It is then sent once more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any, Self

#: Seconds after which a forgotten interruption is sent again.
_LATER = 0.05


class TerminatedError(KeyboardInterrupt):
    """Raised on SIGTERM; whatever handles Ctrl-C handles it too."""


def signal_of(error: KeyboardInterrupt) -> int:
    """The signal that caused an interruption."""
    return signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT


class Ending:
    """The handler of both signals. got: the first signal received, 0 before."""

    def __init__(self) -> None:
        self.got = 0
        self._hook = sys.unraisablehook

    def install(self) -> None:
        """Handle both from now on, where they have not been given another meaning (a shell lets
        jobs in the background ignore Ctrl-C). Must be called in the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if unhandled(number):
                signal.signal(number, self)
        if sys.unraisablehook != self._forgotten:
            self._hook, sys.unraisablehook = sys.unraisablehook, self._forgotten

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Interrupt at the first signal; later ones do nothing."""
        if not self.got:
            self.got = number
            raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt

    def _forgotten(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Send the signal again whose interruption went nowhere; other exceptions are printed."""
        error = unraisable.exc_value
        if not isinstance(error, KeyboardInterrupt):
            self._hook(unraisable)
            return
        self.got = 0
        again = threading.Timer(_LATER, os.kill, (os.getpid(), signal_of(error)))
        again.daemon = True
        with suppress(RuntimeError):  # no threads start any more: the process is about to end
            again.start()


class StopRequests:
    """Ctrl-C and SIGTERM as requests that a loop grants between two steps.

    While entered, the first signal only sets `stop_signal`, to its number. A second Ctrl-C
    interrupts at once; a second SIGTERM does nothing, since launchers and schedulers both send one.
    Has no effect outside the main thread, or where a signal has another meaning already (ignored by
    a shell for jobs in the background, handled by a notebook).
    """

    def __init__(self) -> None:
        self.stop_signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if unhandled(number):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.stop_signal:
            self.stop_signal = number
            how = "Ctrl-C again stops at once" if number == signal.SIGINT else "SIGTERM"
            with suppress(OSError, ValueError, AttributeError):  # closed, or no file
                # the signal may have come amid a print
                os.write(sys.stderr.fileno(), f"stopping after this step ({how})\n".encode())
        elif number == signal.SIGINT:
            self._before[number](number, frame)  # which raises KeyboardInterrupt


ENDING = Ending()
#: In the environment of a command that another one starts: the process to end with.
PARENT = "COMPOCLIP_PARENT"


def end_with_parent() -> None:
    """Send this process SIGTERM when the one that started it is gone, if that asked for it."""
    parent = os.getppid()
    if os.environ.get(PARENT) != str(parent):
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def unhandled(number: int) -> bool:
    """Return whether a signal may be handled here: in the main thread, without another handler."""
    usual: tuple[Any, ...] = (signal.SIG_DFL, signal.default_int_handler, ENDING)
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(number) in usual
