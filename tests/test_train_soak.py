"""Training past damaged images, killed processes and a full disk."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from ranks_helpers import Forked
from test_data_loader import Pictures, equal, loader

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


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


@pytest.mark.slow
def test_a_short_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import soak

    def finished(asked: list[str], env: dict[str, str]) -> dict[str, int]:
        """`soak.finished`, in this process, which has imported torch already."""
        out = io.StringIO()
        with monkeypatch.context() as patch, redirect_stdout(out):
            patch.setenv("XDG_CACHE_HOME", env["XDG_CACHE_HOME"])
            assert main(asked[asked.index("train") :]) == 0
        summary: dict[str, int] = json.loads(out.getvalue())
        return summary

    monkeypatch.setattr(soak, "finished", finished)
    monkeypatch.setattr(soak.subprocess, "Popen", Forked)
    found = soak.soak(soak.Soak(tmp_path / "soak", steps=16, scenes=32, damaged=0.1))
    assert found.equal_weights
    assert found.equal_counts
    assert found.damaged > 0
    assert found.skipped[0] == found.skipped[1] > 0
    assert "a process that reads data was killed" in found.stops["data worker killed"]
    assert "cannot write the training state" in found.stops["disk full"]
    assert "--resume" in found.stops["disk full"]
    assert 0 < found.at["data worker killed"] <= found.at["trainer killed"] <= found.at["disk full"]
    sys.modules.pop("soak")
