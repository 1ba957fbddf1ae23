"""Console output: progress bars on a terminal or plain lines, notes, lists, JSON."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from compoclip.errors import CompoclipError, UsageError, abridged
from compoclip.process import set_up

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")


def note(message: str) -> None:
    """Print one line for the user to standard error: standard output is for data."""
    print(message, file=sys.stderr, flush=True)


note_once = lru_cache(maxsize=64)(note)
"""Print a line as `note` does, unless this process has printed it before."""


def note_others(folder: Path, patterns: Iterable[str], written: Iterable[Path]) -> None:
    """Say which files of a folder match patterns and are not among those written now."""
    matches = {path for pattern in patterns for path in folder.glob(pattern)}
    names = sorted(str(path.relative_to(folder)) for path in matches.difference(written))
    if names:
        note(f"{folder}: also holds {abridged(names, 5)}, not written now; remove old ones")


def require_terminal() -> None:
    """Raise UsageError where nobody can answer a question."""
    if not sys.stdin.isatty():
        raise UsageError(
            "this needs your consent, and there is no terminal to ask for it; add --yes"
        )


def counted(number: int, noun: str) -> str:
    """Return "1 image", "2,000 images", "2 classes", "2 queries"."""
    if number != 1:
        noun = f"{noun[:-1]}ie" if noun.endswith("y") else noun
        noun += "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}"


def worded(value: Any) -> str:
    """Return a JSON value as one line to read, without what is empty."""
    if isinstance(value, dict):
        said = [(key.replace("_", " "), worded(part), part) for key, part in value.items()]
        return ", ".join(
            f"{key} ({text})" if isinstance(part, dict) else f"{key} {text}"
            for key, text, part in said
            if text
        )
    if isinstance(value, list):
        return "; ".join(filter(None, map(worded, value)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


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


def track(
    items: Iterable[T], description: str, total: int | None = None, unit: str = "items"
) -> Iterator[T]:
    """Iterate with a progress bar on a terminal, else with a plain line every ten seconds."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    if sys.stderr.isatty():
        from rich.progress import MofNCompleteColumn, TextColumn

        with progress_bar(MofNCompleteColumn(), TextColumn(unit)) as progress:
            yield from progress.track(items, total=total, description=description)
        return
    start = last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - last >= 10:
            last = now
            if total is None:
                speed = done / (now - start)
                already = counted(done, unit.removesuffix("s"))
                note(f"{description}: {already}, {speed:.{0 if speed >= 10 else 1}f}/s")
            else:
                left = f"{duration((now - start) / done * (total - done))} left"
                note(f"{description}: {done} of {total} {unit}, {left}")
        yield item


def progress_bar(*columns: Any) -> Progress:
    """Return a progress bar on standard error, with these columns of `rich` behind the bar."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        *(TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn()),
        console=Console(file=sys.stderr),
        transient=True,
    )


def columns(rows: Sequence[Sequence[str]], width: int = 0) -> str:
    """Return rows without a header, every column as wide as its widest cell.

    width: Where the last column is wrapped; by default where the terminal ends, if there is one.
    """
    width = width or terminal_width()
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    indent = " " * sum(column + 2 for column in widths[:-1])
    lines = []
    for row in rows:
        line = "  ".join(cell.ljust(column) for cell, column in zip(row, widths)).rstrip()
        lines.append(_wrapped(line, width, indent) if len(line) > width else line)
    return "\n".join(lines)


def terminal_width() -> int:
    """Return how many characters fit a line of the terminal; without one, any number does."""
    return shutil.get_terminal_size((sys.maxsize, 0)).columns


def help_width() -> int:
    """Return how wide a page of help is: as the terminal, 80 characters in a pipe."""
    return shutil.get_terminal_size().columns


_QUOTED = re.compile(r'"[^"]*"')


def refilled(text: str, width: int) -> str:
    """Return a text with its paragraphs wrapped at `width`, and the commands of its examples.

    A command is an indented line, with the lines below it that are indented further. One that is
    too long is continued as in a shell, behind a backslash.
    """
    lines: list[str] = []
    for line in text.splitlines():
        above = lines[-1] if lines else ""
        indents = [len(part) - len(part.lstrip()) for part in (above, line)]
        if above and line and (indents == [0, 0] or 0 < indents[0] < indents[1]):
            lines[-1] = f"{above} {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(
        _wrapped_command(line, width) if line[:1] == " " else _wrapped(line, width)
        for line in lines
    )


def _wrapped(line: str, width: int, indent: str = "") -> str:
    """Wrap a line; names of benchmarks and options stay whole. indent: of the further lines."""
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _wrapped_command(line: str, width: int) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    if len(line) <= width:
        return line
    whole = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", "\0"), line)
    wrapped = _wrapped(whole, width - len(" \\"), f"{indent}    ")
    return wrapped.replace("\n", " \\\n").replace("\0", " ")


def duration(seconds: float) -> str:
    """ "40 s", "12 min", "1.5 h"."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def reasons_listed(reasons: Mapping[str, int]) -> list[str]:
    """Return reasons with their numbers, "1,200 x hidden file", all but those of none."""
    return [f"{number:,} x {reason}" for reason, number in reasons.items() if number]


def left_out_listed(reasons: Mapping[str, int]) -> str:
    """Return " (left out: 2 x hidden file)", of reasons with their numbers; "" if none is."""
    listed = ", ".join(reasons_listed(reasons))
    return f" (left out: {listed})" if listed else ""


def prose(sentences: Iterable[str], indent: str = "") -> str:
    """Return sentences, each from a new line, broken between words where a terminal ends."""
    width = terminal_width()
    return "\n".join(_wrapped(indent + sentence, width, f"{indent}  ") for sentence in sentences)
