"""Console output: progress bars on a terminal or plain lines, notes, aligned tables, JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, NoReturn, TypeVar

from compoclip.errors import CompoclipError
from compoclip.process import set_up

T = TypeVar("T")


def note(message: str) -> None:
    """Print one line for the user to standard error: standard output is for data."""
    print(message, file=sys.stderr, flush=True)


def counted(number: int, noun: str) -> str:
    """ "1 image", "2 images"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def end_with(main: Callable[[], int], program: str) -> NoReturn:
    """Run a script, and end the process with its exit code; an error is one line on stderr."""
    set_up()
    try:
        sys.exit(main())
    except CompoclipError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def emit_json(data: Any) -> None:
    """Print `data` as one JSON document on standard output (the `--json` form of a verb)."""
    print(json.dumps(data, ensure_ascii=False, indent=1, sort_keys=True))


def tell(as_json: bool, record: Any, text: str) -> int:
    """Print what a verb did, as JSON or as text; returns exit code 0."""
    if as_json:
        emit_json(record)
    else:
        print(text)
    return 0


def track(
    items: Iterable[T], description: str, total: int | None = None, unit: str = "items"
) -> Iterator[T]:
    """Iterate with a progress bar on a terminal, else with a plain line every ten seconds."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    if sys.stderr.isatty():
        yield from _bar(items, description, total, unit)
    else:
        yield from _lines(items, description, total, unit)


def _bar(items: Iterable[T], description: str, total: int | None, unit: str) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(items, total=total, description=description)


def _lines(items: Iterable[T], description: str, total: int | None, unit: str) -> Iterator[T]:
    start = last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - last >= 10:
            last = now
            if total is None:
                speed = done / (now - start)
                note(f"{description}: {done} {unit}, {speed:.{0 if speed >= 10 else 1}f}/s")
            else:
                left = time_left((now - start) / done * (total - done))
                note(f"{description}: {done} of {total} {unit}, {left}")
        yield item


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows without a header, every column as wide as its widest cell."""
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def time_left(seconds: float) -> str:
    """ "40 s left", "12 min left"."""
    return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


def table(rows: Sequence[Sequence[str]], header: Sequence[str], left: int = 1) -> str:
    """Rows as an aligned plain-text table: the first `left` columns left, the others right."""
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        words = [cell.ljust(width) for cell, width in zip(cells[:left], widths)]
        numbers = [cell.rjust(width) for cell, width in zip(cells[left:], widths[left:])]
        return "  ".join([*words, *numbers]).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *map(line, rows)])
