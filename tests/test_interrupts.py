"""Ctrl-C and SIGTERM: the first interrupts, what follows does not disturb the tidying up."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from compoclip import interrupts
from compoclip.cli import lists
from compoclip.cli.main import main
from compoclip.errors import RunInterruptedError
from compoclip.interrupts import Ending, StopRequests, TerminatedError, signal_of

KINDS = pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)]
)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ending]:
    """The handler of the command line, installed."""
    fresh = Ending()
    monkeypatch.setattr(interrupts, "ENDING", fresh)
    monkeypatch.setattr("compoclip.cli.main.ENDING", fresh)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    fresh.install()
    yield fresh
    for number, handler in before.items():
        signal.signal(number, handler)


@KINDS
def test_the_first_signal_interrupts_and_later_ones_do_not(
    ending: Ending, number: int, kind: type[KeyboardInterrupt]
) -> None:
    with pytest.raises(kind) as caught:
        os.kill(os.getpid(), number)
    assert type(caught.value) is kind
    assert signal_of(caught.value) == ending.got == number
    for later in (signal.SIGTERM, signal.SIGINT) * 3:
        os.kill(os.getpid(), later)
    assert ending.got == number


def test_an_interrupt_that_a_library_swallows_still_counts(
    ending: Ending, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def swallowing(arguments: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("cannot load module more than once per process") from None
        return 0

    monkeypatch.setattr(lists, "list_main", swallowing)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "compoclip list: interrupted\n"


@KINDS
def test_an_interrupt_that_python_forgets_comes_again(
    ending: Ending, number: int, kind: type[KeyboardInterrupt], capsys: pytest.CaptureFixture[str]
) -> None:
    class Finalised:
        """Interrupted where Python prints exceptions and goes on."""

        def __del__(self) -> None:
            os.kill(os.getpid(), number)

    def goes_on() -> None:
        Finalised()
        time.sleep(10)

    with pytest.raises(kind) as caught:
        goes_on()
    assert type(caught.value) is kind
    assert ending.got == number
    assert capsys.readouterr().err == ""


def test_other_exceptions_that_python_forgets_are_shown(
    ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finalised:
        def __del__(self) -> None:
            raise ValueError("of a finaliser")

    shown: list[object] = []
    monkeypatch.setattr(ending, "_hook", lambda what: shown.append(what.exc_value))
    Finalised()
    assert [str(error) for error in shown] == ["of a finaliser"]
    assert ending.got == 0


def test_other_meanings_of_the_signals_are_left_alone(ending: Ending) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ending.install()
    with StopRequests() as requests:
        for number in (signal.SIGINT, signal.SIGTERM):
            assert signal.getsignal(number) == signal.SIG_IGN
            os.kill(os.getpid(), number)
    assert requests.stop_signal == ending.got == 0


def test_a_run_is_asked_once_and_interrupted_by_a_second_ctrl_c(ending: Ending) -> None:
    with StopRequests() as requests:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert requests.stop_signal == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is ending
    assert RunInterruptedError("x", requests.stop_signal).exit_code == 143


def test_threads_leave_signals_to_the_main_one(ending: Ending) -> None:
    replaced: list[dict[int, object]] = []

    def enter() -> None:
        with StopRequests() as requests:
            replaced.append(dict(requests._before))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert replaced == [{}]
