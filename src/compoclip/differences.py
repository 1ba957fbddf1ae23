"""Differences between the inputs that something was made from and those that it is to have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compoclip.errors import UsageError, abridged

_HASH = re.compile(r"(?=.*\d)[0-9a-f]{12,}")
_MOST_LISTED = 6


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under joined names: {"lora": {"rank": 4}} is {"lora.rank": 4}."""
    joined: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            joined |= flat(value, f"{prefix}{name}.")
        else:
            joined[f"{prefix}{name}"] = value
    return joined


def differences_of(
    before: Mapping[str, Any], now: Mapping[str, Any], *, whole: bool = True
) -> dict[str, str]:
    """Describe what differs between values, by name: "lr was 0.0005, is 0.0001".

    Args:
        before: Values as JSON has them.
        now: Later values, JSON-ready.
        whole: Also compare values that the later ones lack.
    """
    earlier, later = flat(before), json.loads(json.dumps(flat(now)))
    differences: dict[str, str] = {}
    for name in dict.fromkeys([*(earlier if whole else ()), *later]):
        was, is_now = earlier.get(name), later.get(name)
        if was == is_now:
            continue
        values = [value for value in (was, is_now) if value is not None]
        if all(isinstance(value, str) and _HASH.fullmatch(value) for value in values):
            change = "changed" if len(values) == 2 else "is new" if is_now else "is gone"
            differences[name] = f"{name} {change}"
        else:
            differences[name] = f"{name} was {_text_of(was)}, is {_text_of(is_now)}"
    return differences


def _text_of(value: Any) -> str:
    if value is None:
        return "none"
    return str(value)[:80] or "empty"


def listed(differences: Mapping[str, str]) -> str:
    """Return differences as one line."""
    return abridged(list(differences.values()), _MOST_LISTED, "; ")


def require_same(
    product: Path,
    differences: Mapping[str, str],
    problem: str,
    remedy: str = "choose another --out",
) -> None:
    """Raise UsageError, naming what differs, unless a product has the inputs that it is to have.

    Args:
        product: The file or folder.
        differences: Between the recorded inputs and those that it is to have.
        problem: What it is otherwise: "is of another sweep".
        remedy: What to do about it.
    """
    if differences:
        raise UsageError(f"{product}: {problem} ({listed(differences)}); {remedy}")
