"""Errors that a user can act on: one clear line, the file it concerns, what to do next."""

from __future__ import annotations


class CompoclipError(Exception):
    """The run failed for a reason the user can mend. The command line prints it and exits 1.

    The message is one line: what is wrong, in which file, and the remedy. Line breaks in it, which
    names of files and of what is in them may have, become spaces.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(" ".join(message.splitlines()))


class UsageError(CompoclipError):
    """The request itself is wrong (unknown name, bad option). The command line exits 2."""

    exit_code = 2


class RunInterruptedError(CompoclipError):
    """The user stopped the run, which can be resumed. The command line exits 130, as shells do."""

    exit_code = 130
