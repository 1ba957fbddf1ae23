"""Errors that a user can act on: one clear line, the file it concerns, what to do next."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_LONGEST = 1000  # characters
_SHOWN = 80
_HINT = 400


def printable(text: str, longest: int = _LONGEST) -> str:
    """Return a text on one printable line, without its middle if it is long.

    Line breaks become blanks, other characters that do not print escapes such as \\x00.
    """
    line = " ".join(_cut(text, longest).splitlines())
    if line.isprintable():
        return line
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return _cut("".join(escaped), longest)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} ... {text[-longest // 2 :]}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _SHOWN


def typed_repr(value: object) -> str:
    """Return a value for a message as `quoted`, and its type."""
    return f"{quoted(value)} ({type(value).__name__})"


def quoted(value: object) -> str:
    """Return a value for a message: its repr, shortened while it is built.

    Of a nested value the whole repr may be larger than the memory.
    """
    try:
        text = _SHORT.repr(value)
    except Exception:  # a number of thousands of digits; any other code
        text = "..."
    return printable(text, _SHOWN)


def names_listed(names: Iterable[object]) -> str:
    """Return names for a message, such as those of columns, each shortened as a value is."""
    return ", ".join(printable(str(name), _SHOWN) for name in names)


def abridged(texts: Sequence[str], longest: int, separator: str = ", ") -> str:
    """Return the first texts, and how many more there are: "a, b and 3 more"."""
    others = len(texts) - longest
    return separator.join(texts[:longest]) + (f" and {others} more" if others > 0 else "")


def closest(name: str, names: Iterable[str]) -> str:
    """Return a hint for an unknown name: the closest known names, or all if none is close."""
    names = tuple(names)
    spelled = (name[:100], name[:100].replace("_", "-").lower())
    close = (difflib.get_close_matches(spelling, names[:1000]) for spelling in spelled)
    match = next(filter(None, close), ())
    hint = f"did you mean {' or '.join(match)}?" if match else f"known: {names_listed(names)}"
    return printable(hint, _HINT)  # names may come from a file


class CompoclipError(Exception):
    """The run failed for a reason the user can fix. The command line prints it and exits 1.

    The message is one line: what is wrong, in which file, and the remedy; see `printable`.
    """

    exit_code = 1

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(str(message)))


class UsageError(CompoclipError):
    """The request itself is wrong (unknown name, bad option). The command line exits 2."""

    exit_code = 2


def require(
    good: object, place: object, problem: str, kind: type[CompoclipError] = CompoclipError
) -> None:
    """Raise `kind` with "place: problem" unless `good`."""
    if not good:
        raise kind(f"{place}: {problem}")


class RunInterruptedError(CompoclipError):
    """The run was asked to stop and can be resumed. The command line exits with 128 + signal, as
    shells do: 130 after Ctrl-C, 143 after SIGTERM."""

    def __init__(self, message: str, signal: int = 2) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


@contextmanager
def interruption_said(message: str = "interrupted; the same command continues") -> Iterator[None]:
    """Say of an interruption inside the block what the command that trains there needs."""
    try:
        yield
    except RunInterruptedError as error:
        raise RunInterruptedError(message, error.exit_code - 128) from error


NOT_FINITE = (
    "the model yields features that are not finite numbers; its weights are damaged or training "
    "diverged: use another checkpoint"
)
NEEDS_WORLD = "comes with compoclip-world: run pip install ./world in a checkout of the repository"
"""How the message ends for what the distribution `world/` brings and is not installed."""


def pip_install(extra: str) -> str:
    """Spell the command that installs what an optional feature needs.

    It names the packages themselves: `pip install 'compoclip[...]'` would ask an index for a
    package of that name, whatever this one was installed from. extra: its name in pyproject.toml.
    """
    from importlib.metadata import requires  # slow to import

    of_extra = re.compile(rf"([\w-]+).*extra == ['\"]{extra}['\"]")
    matches = map(of_extra.match, requires("compoclip") or ())
    return " ".join(["pip install", *(match[1] for match in matches if match)])


def require_package(package: str, extra: str, subject: str) -> None:
    """Raise CompoclipError, as `optional` does, without a package of an extra; none is imported."""
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise _lacking(package, extra, subject)


def optional(package: str, extra: str, subject: str) -> Any:
    """Import a package of an extra. Raise CompoclipError, naming `subject` needs it, without it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise _lacking(package, extra, subject) from error


def _lacking(package: str, extra: str, subject: str) -> CompoclipError:
    return CompoclipError(f"{subject} needs {package}: {pip_install(extra)}")
