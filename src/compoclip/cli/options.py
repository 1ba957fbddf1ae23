"""Parsing the arguments of a verb into its option class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

from compoclip.run import require_seeds

T = TypeVar("T")

MARKERS = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone, tyro.conf.OmitArgPrefixes)
"""Flags have one form each; None is what an option is when it is not given."""


Models = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="MODEL ...", help_behavior_hint="(required)"),
]
ResultPaths = Annotated[
    tuple[Path, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="RESULTS ...", help_behavior_hint="(required)"),
]


def parse(
    options: Callable[..., T], verb: str, arguments: Sequence[str], program: str = "compoclip"
) -> T:
    """`options` built from the arguments of `compoclip VERB`, or of another program's verb.

    options: a dataclass, whose docstring up to "Args:" heads the help. Ends the process with code 2
    and a message on wrong usage, with 0 after --help. Raises UsageError for a seed that not every
    generator of random numbers takes.
    """
    about = (inspect.getdoc(options) or "").partition("\nArgs:")[0].strip()
    parsed = tyro.cli(
        options,
        prog=f"{program} {verb}",
        args=list(arguments),
        description=about,
        config=MARKERS,
    )
    require_seeds(parsed)
    return parsed


def joined(argv: Sequence[str], option: str) -> list[str]:
    """`argv` with all `option`s as one, at the end: of several the parser would keep the last.

    option: e.g. "--on", which takes one or more values.
    """
    rest: list[str] = []
    values: list[str] = []
    taking = seen = False
    for argument in argv:
        if argument == option or argument.startswith(f"{option}="):
            taking, seen = argument == option, True
            values += [] if taking else [argument.removeprefix(f"{option}=")]
            continue
        taking = taking and not argument.startswith("-")
        (values if taking else rest).append(argument)
    return [*rest, option, *values] if seen else rest
