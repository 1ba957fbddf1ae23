"""Killed processes that read data."""

from __future__ import annotations

import os
import signal

import pytest

from compoclip.errors import CompoclipError
from test_data_loader import Pictures, equal, loader


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_killed_worker_is_one_line_and_the_rest_can_be_had() -> None:
    before = signal.getsignal(signal.SIGCHLD)
    loading = loader(Pictures(80), workers=2)
    batches = loading.epoch(0)
    first = next(batches)
    assert signal.getsignal(signal.SIGCHLD) == before
    assert loading._workers is not None
    iterator = loading._workers._iterator
    assert iterator is not None
    os.kill(iterator._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    seen = [first]
    with pytest.raises(
        CompoclipError, match=r"reads data was killed .*--resume continues"
    ) as raised:
        seen.extend(batches)
    assert "\n" not in str(raised.value)
    assert not any(worker.is_alive() for worker in iterator._workers)  # type: ignore[attr-defined]
    rest = loading.epoch(0, len(seen))  # new workers
    assert equal(iter([*seen, *rest]), loader(Pictures(80)).epoch(0))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_worker_killed_between_epochs_is_one_line_too() -> None:
    loading = loader(Pictures(8), workers=1)
    list(loading.epoch(0))
    assert loading._workers is not None
    iterator = loading._workers._iterator
    assert iterator is not None
    os.kill(iterator._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(CompoclipError, match=r"reads data was killed"):
        next(loading.epoch(1))
    assert equal(loading.epoch(1), loader(Pictures(8)).epoch(1))
