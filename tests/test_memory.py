"""Freed memory goes back to the system."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from compoclip.memory import give_back

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
