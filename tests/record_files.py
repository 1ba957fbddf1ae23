"""Files of captions and of records, for tests of the verbs that read and write them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_lines(path: Path, texts: Iterable[str]) -> Path:
    """One text a line."""
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
