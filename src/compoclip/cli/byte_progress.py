"""How far a download is: a bar on a terminal, else a plain line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compoclip.console import note

_EVERY = 10.0


@contextmanager
def byte_progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function to be told the bytes there so far and in all (None where not known)."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(name, total=None)
            yield lambda got, total: bar.update(task, completed=got, total=total)
    else:
        last = time.monotonic()

        def tell(got: int, total: int | None) -> None:
            nonlocal last
            if time.monotonic() - last >= _EVERY:
                last = time.monotonic()
                of = f" of {total / 1e6:,.1f}" if total else ""
                note(f"{name}: {got / 1e6:,.1f}{of} MB")

        yield tell
