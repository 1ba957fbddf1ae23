"""How every verb turns its arguments into options."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, TypeVar

import tyro

from compoclip.errors import UsageError
from compoclip.ranks import launched

if TYPE_CHECKING:
    import torch


T = TypeVar("T")

MARKERS = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone, tyro.conf.OmitArgPrefixes)
"""Flags have one form each; None is what an option is when it is not given."""


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


def require_seeds(options: object) -> None:
    """Raise UsageError unless every seed in the options, a dataclass, is one for all generators."""
    for each in fields(options) if is_dataclass(options) else ():
        value = getattr(options, each.name)
        if each.name == "seed" and not (type(value) is int and 0 <= value < 2**63):
            raise UsageError(f"--seed {value}: must be a whole number from 0 to {2**63 - 1}")
        require_seeds(value)


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


# --- The --device option of every verb that runs a model. ---


def device_named(text: str) -> torch.device:
    """The device that `text` means: cpu, cuda, cuda:N, mps, or auto (a GPU when there is one).

    Under torchrun cuda is a GPU for each process of a machine. Raises UsageError for another name
    and for a device that is not here.
    """
    import torch

    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    match = re.fullmatch(r"(cpu|mps|cuda)(?::(\d+))?", text)
    if match is None or (match[2] and match[1] != "cuda"):
        raise UsageError(
            f"--device '{text}' is not one of cpu, cuda, cuda:N, mps; use --device cpu"
        )
    if match[1] == "mps" and not torch.backends.mps.is_available():
        raise UsageError("--device mps: there is no Apple GPU here; use --device cpu")
    if match[1] == "cuda":
        have = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not have:
            raise UsageError(f"--device {text}: no CUDA device is available here; use --device cpu")
        if int(match[2] or 0) >= have:
            raise UsageError(f"--device {text}: the CUDA devices here end at cuda:{have - 1}")
        if launched()[1] > 1:
            return torch.device("cuda", _own_gpu(match[2], have))
    return torch.device(text)


def _own_gpu(asked: str | None, have: int) -> int:
    """The number of this process's GPU among those of its machine, under torchrun."""
    if asked is not None:
        raise UsageError(
            f"--device cuda:{asked}: under torchrun every process takes a GPU of its own; "
            "use --device cuda"
        )
    own = int(os.environ.get("LOCAL_RANK", launched()[0]))
    if own >= have:
        raise UsageError(
            f"more processes than the {have} CUDA devices here; start torchrun with "
            f"--nproc-per-node {have}"
        )
    return own
