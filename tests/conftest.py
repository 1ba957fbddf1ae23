"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Threads of several test processes would wait for one another on a small machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real photos, captions and annotations kept beside the project; skips when absent.

    Looked for in $COMPOCLIP_SHARED_DATA, else in ../shared/data beside the checkout.
    """
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("COMPOCLIP_SHARED_DATA", default))
    if not path.is_dir():
        pytest.skip(f"real data not found at {path}; set COMPOCLIP_SHARED_DATA")
    return path
