"""Killed processes that read data."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from compoclip.data.loader import BatchLoader
from compoclip.errors import CompoclipError
from test_data_loader import equal, loader, pictures

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch looks for dead workers every 5 seconds."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))


def kill_a_worker(loading: BatchLoader) -> Any:
    assert loading._workers is not None
    iterator: Any = loading._workers._iterator
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    return iterator


def test_a_killed_worker_is_one_line_and_the_rest_can_be_had() -> None:
    before = signal.getsignal(signal.SIGCHLD)
    loading = loader(pictures(80), workers=2)
    batches = loading.epoch(0)
    seen = [next(batches)]
    assert signal.getsignal(signal.SIGCHLD) == before
    iterator = kill_a_worker(loading)
    with pytest.raises(
        CompoclipError, match=r"reads data was killed .*continue with --resume"
    ) as raised:
        seen.extend(batches)
    assert "\n" not in str(raised.value)
    assert not any(worker.is_alive() for worker in iterator._workers)
    rest = loading.epoch(0, len(seen))  # new workers
    assert equal(iter([*seen, *rest]), loader(pictures(80)).epoch(0))


def test_a_worker_killed_between_epochs_is_one_line_too() -> None:
    loading = loader(pictures(8), workers=1)
    list(loading.epoch(0))
    kill_a_worker(loading)
    with pytest.raises(CompoclipError, match=r"reads data was killed"):
        next(loading.epoch(1))
    assert equal(loading.epoch(1), loader(pictures(8)).epoch(1))
