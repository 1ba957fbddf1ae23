"""The metrics log of a run: one JSON object a line, one line a logged step."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compoclip.errors import CompoclipError
from compoclip.files import unreadable


class MetricsLog:
    """Appends to `path`; on resume first drops what was logged after the state that is resumed."""

    def __init__(self, path: Path, resume_step: int) -> None:
        partial = path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = _records_up_to(path, resume_step) if resume_step else []
            partial.write_text("".join(json.dumps(r) + "\n" for r in kept))
            os.replace(partial, path)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed in __exit__)
        except OSError as error:
            raise CompoclipError(
                f"cannot write the log {path}: {error.strerror}; free space or choose another --out"
            ) from error
        finally:
            with suppress(OSError):
                partial.unlink()
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._file.close()
        if kind is not None:  # a run that fails before there is anything to log leaves no trace
            with suppress(OSError):
                if not self._path.stat().st_size:
                    self._path.unlink()
                    self._path.parent.rmdir()

    def write(self, record: dict[str, Any]) -> None:
        """Append one record. Raises CompoclipError when the disk is full."""
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise CompoclipError(
                f"cannot write the log {self._path}: {error.strerror}; free space, then --resume"
            ) from error


def read_log(path: Path) -> list[dict[str, Any]]:
    """All complete records of a log; a torn last line (killed while writing) is left out.

    Raises CompoclipError, naming the line, for anything else that is no record of a step.
    """
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except OSError as error:
        raise unreadable(path, error) from error
    records = []
    for number, line in enumerate([*lines, last], 1):
        try:
            record = json.loads(line)
            if type(record["step"]) is not int:
                raise TypeError("step")
        except (ValueError, TypeError, KeyError, RecursionError):
            if number > len(lines) or not line.strip():
                continue
            raise CompoclipError(
                f"{path}: line {number} is no record of a step; remove that line"
            ) from None
        records.append(record)
    return records


def _records_up_to(path: Path, step: int) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [record for record in read_log(path) if record["step"] <= step]
