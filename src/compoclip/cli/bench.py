"""`compoclip bench STAGE`: throughput of a stage, measured against a named reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from compoclip.errors import UsageError

# stage -> what it measures; the code is compoclip.cli.bench_<stage>, imported only when called.
STAGES = {
    "evaluate": "how many images and texts an evaluation encodes, against one item at a time",
    "parse": "captions/s of tagging and scene-graph parsing, on one core",
    "text": "captions/s of the text encoder, against open_clip's own encode_text",
}


def usage() -> str:
    """The text of `compoclip bench --help`."""
    lines = ["usage: compoclip bench STAGE [options]    (compoclip bench STAGE --help)", ""]
    return "\n".join([*lines, *(f"  {stage:<8} {what}" for stage, what in STAGES.items())])


def main(arguments: Sequence[str]) -> int:
    """Run one stage; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    stage, rest = arguments[0], arguments[1:]
    if stage not in STAGES:
        raise UsageError(f"no stage '{stage}' to measure; one of {', '.join(STAGES)}")
    run: Callable[[Sequence[str]], int] = import_module(f"compoclip.cli.bench_{stage}").main
    return run(rest)
