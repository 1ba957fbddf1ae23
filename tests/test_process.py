"""How a process of our own waits, and what becomes of memory that it frees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compoclip.process import give_back, keep_freed

BLOCK, COUNT = 64 << 10, 2000  # below the size from which on glibc maps every block by itself


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="counts as Linux does")
def test_holes_are_given_back() -> None:
    if not give_back():
        pytest.skip("the C library has no malloc_trim")
    blocks = [bytearray(b"x" * BLOCK) for _ in range(COUNT)]
    kept = blocks[::100]  # what keeps the rest from being one hole at the end
    full = resident()
    del blocks
    assert give_back()
    assert full - resident() > BLOCK * COUNT // 2
    assert len(kept) == COUNT // 100


FAULTS = """
import resource, sys
from compoclip.process import keep_freed
if sys.argv[1] == "keep" and not keep_freed():
    sys.exit("no mallopt")
bytearray(256 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    bytearray(256 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts as Linux does")
def test_large_blocks_are_taken_again_without_the_system() -> None:
    def faults(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=False
        )
        if "no mallopt" in done.stderr:
            pytest.skip("the C library has no mallopt")
        return int(done.stdout)

    assert faults("keep") < faults("leave") / 10


def test_nothing_is_set_where_the_c_library_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed()
    assert not give_back()


COMMAND = """
import os, sys
from compoclip.cli import main
def told(argv):
    print("torch" in sys.modules, os.environ.get("GOMP_SPINCOUNT"))
    return 0
main.main = told
main.entry()
"""


@pytest.mark.parametrize(
    ("said", "spins"),
    [
        ({}, "3000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "None"),
    ],
)
def test_a_command_says_how_threads_wait_before_torch_is_loaded(
    said: dict[str, str], spins: str
) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND],
        env={**clean, **said},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", spins]
