"""Measure how long every command takes to show its help, and to refuse a mistyped name or option.

    python scripts/verb_times.py [--markdown] [--runs N] [COMMAND ...]

Times are processor seconds of a process of its own, the least of N runs: other programs change
these less than the time on a clock. The commands are those of the program's own tables, the
mistakes those of tests/mistakes.yaml.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

from compoclip.cli.main import Verbs, all_verbs
from compoclip.console import note
from compoclip.methods.registry import method_names
from compoclip.printed import Table

MISTAKES = Path(__file__).parents[1] / "tests" / "mistakes.yaml"
_METHOD = "clip-ft"  # of the mistakes; stands for every other one
_OF_METHODS = ("train", "sweep")  # verbs that a method comes after
_UNKNOWN = "--nonsense"


def commands(verbs: Verbs | None = None) -> Iterator[str]:
    """Yield the verbs, their own verbs, and those that train with every method."""
    verbs = verbs or all_verbs()
    for name in verbs.table:
        command = f"{verbs.program} {name}".partition(" ")[2]
        yield command
        inner = getattr(verbs.function(name), "__self__", None)
        if isinstance(inner, Verbs):
            yield from commands(inner)
        if command in _OF_METHODS:
            yield from (f"{command} {method}" for method in method_names())


def mistakes() -> dict[str, str]:
    """Return commands with a mistyped path, name or option, and words of their messages."""
    lines: dict[str, str] = yaml.safe_load(MISTAKES.read_text(encoding="utf-8"))
    return lines


def prepare(folder: Path) -> None:
    """Write the files and folders that the mistakes name."""
    from PIL import Image

    (folder / "photos").mkdir()
    (folder / "empty").mkdir()
    Image.new("RGB", (40, 40)).save(folder / "photos" / "a.png")
    (folder / "c.csv").write_text("filename,caption\na.png,a dog\n")
    (folder / "headonly.csv").write_text("filename,caption\n")
    (folder / "world" / "train").mkdir(parents=True)
    (folder / "world" / "suite").mkdir()
    Image.new("RGB", (40, 40)).save(folder / "world" / "suite" / "a.png")
    with tarfile.open(folder / "world" / "train" / "train-000000.tar", "w"):
        pass
    (folder / "t.txt").write_text("a dog\n")
    (folder / "zero.csv").write_text("")
    for name in ("a", "b"):
        (folder / "two" / name).mkdir(parents=True)
        (folder / "two" / name / "sugarcrepe.json").write_text('{"schema": 2}')


def by_command(lines: Iterable[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Return the mistakes of every command: an unknown option, and those that begin with its name.

    The first mistake of a verb with one method is made with every other one.
    """
    of_command = {name: [f"{name} {_UNKNOWN}"] for name in names}
    for line in lines:
        words = line.split()
        owner = next(name for n in (2, 1) if (name := " ".join(words[:n])) in of_command)
        of_command[owner].append(line)
    for verb in _OF_METHODS:
        first = of_command[f"{verb} {_METHOD}"][1]
        for name in names:
            method = name.removeprefix(f"{verb} ")
            if method not in (name, _METHOD):
                of_command[name].append(first.replace(_METHOD, method, 1))
    return of_command


def processor_seconds(words: str, folder: Path, runs: int) -> float:
    """Return the least processor time of some runs of a command in a folder."""
    command = [sys.executable, "-m", "compoclip", *shlex.split(words)]
    seconds = []
    for _ in range(runs):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds.append(usage.ru_utime + usage.ru_stime)
    return min(seconds)


def main() -> None:
    """Print a row for each command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help='such as "data pack"')
    parser.add_argument("--markdown", action="store_true", help="print a table for a page")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    wrong = by_command(mistakes(), [*commands()])
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        for command in options.commands or wrong:
            shown = processor_seconds(f"{command} --help", folder, options.runs)
            refused = {
                line: processor_seconds(line, folder, options.runs) for line in wrong[command]
            }
            slowest = max(refused, key=lambda line: refused[line])
            rows.append([command, f"{shown:.2f}", f"{refused[slowest]:.2f}", slowest])
            note("  ".join(rows[-1]))
    header = ["command", "--help", "slowest refusal", "of"]
    if options.markdown:
        header[1] = "`--help`"
        rows = [[f"`{name}`", *seconds, f"`{line}`"] for name, *seconds, line in rows]
    print(Table(rows, header, left=4).printed("markdown" if options.markdown else "text"))


if __name__ == "__main__":
    main()
