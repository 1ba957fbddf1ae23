"""`compoclip data TASK`: benchmark and training data: what is there, missing, faulty; packing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from compoclip.errors import UsageError

# task -> what it does; the code is compoclip.cli.data_<task>, imported only when called.
TASKS = {
    "ls": "list the benchmarks: items, licence, where to get them; details of those named",
    "check": "say what of a benchmark is there, missing or short",
    "fetch": "download the files that are open to all",
    "pack": "write training data as shards with small images, for fast training",
    "audit": "find faulty items: equal captions, duplicates, guessable answers, ...",
}


def usage() -> str:
    """The text of `compoclip data --help`."""
    lines = ["usage: compoclip data TASK [options]    (compoclip data TASK --help)", ""]
    return "\n".join([*lines, *(f"  {task:<6} {what}" for task, what in TASKS.items())])


def main(arguments: Sequence[str]) -> int:
    """Run one task; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    task, rest = arguments[0], arguments[1:]
    if task not in TASKS:
        raise UsageError(f"no task '{task}'; one of {', '.join(TASKS)}")
    run: Callable[[Sequence[str]], int] = import_module(f"compoclip.cli.data_{task}").main
    return run(rest)
