"""Progress lines where there is no terminal."""

from __future__ import annotations

from itertools import count

import pytest

from compoclip.console import time_left, track


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every look is six seconds after the last."""
    ticks = count(step=6.0)
    monkeypatch.setattr("compoclip.console.time.monotonic", lambda: next(ticks))


@pytest.mark.usefixtures("slow")
def test_lines_say_how_long_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track("abcdef", "reading", unit="files")) == list("abcdef")
    assert capsys.readouterr().err.splitlines() == [
        "reading: 1 of 6 files, 60 s left",
        "reading: 3 of 6 files, 24 s left",
        "reading: 5 of 6 files, 7 s left",
    ]


@pytest.mark.usefixtures("slow")
def test_lines_give_the_speed_where_the_end_is_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(track(iter("abcd"), "reading", unit="files")) == list("abcd")
    assert capsys.readouterr().err.splitlines()[0] == "reading: 1 files, 0.1/s"


def test_minutes_are_counted_from_one_and_a_half() -> None:
    assert [time_left(seconds) for seconds in (0.4, 89, 90, 600)] == [
        "0 s left",
        "89 s left",
        "2 min left",
        "10 min left",
    ]
