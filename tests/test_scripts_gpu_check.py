"""`scripts/gpu_check.py`, in small on a CPU: it runs, and what fails is named."""

from __future__ import annotations

import json
from pathlib import Path

import gpu_check
import pytest
import torch

from bench.host import PARTS


@pytest.mark.slow
def test_every_section_runs_in_small(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "write_world", lambda folder: world)
    out = tmp_path / "out"
    assert gpu_check.main(["--tiny", "--device=cpu", f"--out={out}"]) == 0
    found = json.loads((out / "results.json").read_text())
    assert found["failed"] == {}
    assert list(found["figures"]) == list(gpu_check.SECTIONS)
    said = {
        name: {row["what"]: row["value"] for row in found["figures"][name]}
        for name in gpu_check.SECTIONS
    }
    assert said["step"]["waits of a step, by line"] == "0"
    assert {f"of which {part}" for part in PARTS} < set(said["step"])
    assert said["nan_gradient"]["the step is left out and counted"] == "yes"
    assert said["agrees"]["fsc-clip, fp32"] == "loss off by 0.0e+00, gradient by 0.0e+00"
    assert said["compiled"]["nothing is compiled again for ragged batches"] == "yes"
    assert said["evaluation"]["texts a second, 4 at once, bf16"] > 0
    page = (out / "page.md").read_text()
    assert page.startswith("## Measured on a CPU, in small\n")
    assert all(f"**{name}**" in page for name in gpu_check.SECTIONS)
    assert "images a second" in (out / "log.txt").read_text()
    assert (out / "trace.json").stat().st_size > 0


def test_what_fails_is_named_and_the_rest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(run: gpu_check.Run) -> None:
        """Breaks."""
        run.figure("seen", 1.0, "ms")
        raise RuntimeError("out of memory")

    def wrong(run: gpu_check.Run) -> None:
        """Does not hold."""
        run.require("two is three", False)

    def fine(run: gpu_check.Run) -> None:
        """Holds."""
        run.require("two is two", True)
        run.figure("speed", 1234.5, "images/s", "at least 4,000")

    monkeypatch.setattr(gpu_check, "SECTIONS", {"breaks": breaks, "wrong": wrong, "fine": fine})
    common = ["--tiny", "--device=cpu", f"--out={tmp_path}"]
    assert gpu_check.main(common) == 1
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["failed"] == {"breaks": ["RuntimeError: out of memory"], "wrong": ["two is three"]}
    page = (tmp_path / "page.md").read_text()
    assert "| speed | 1,234 images/s | at least 4,000 |" in page
    assert "- **breaks failed**: RuntimeError: out of memory" in page
    assert "Traceback" in (tmp_path / "log.txt").read_text()
    assert "wrong FAILED: two is three" in capsys.readouterr().out
    assert gpu_check.main([*common, "--only", "fine"]) == 0
    assert gpu_check.main([*common, "--minutes=-1", "--only", "fine"]) == 1
    assert "not reached within -1 minutes" in (tmp_path / "page.md").read_text()


def test_without_a_gpu_it_asks_for_tiny(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu_check.main([f"--out={tmp_path}"])
    assert "--tiny" in capsys.readouterr().err
