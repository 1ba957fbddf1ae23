"""Parsing the arguments of a verb into its option class, with help that says defaults in words."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

from compoclip.errors import UsageError
from compoclip.run import require_seeds
from compoclip.workers import available_cores

T = TypeVar("T")

MARKERS = (tyro.conf.DisallowNone, tyro.conf.OmitArgPrefixes)
"""None is what an option is when it is not given, and cannot be asked for."""


WorkerCount = int | Literal["auto"]
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
    parsed = understood(options, f"{program} {verb}", arguments, about)
    require_seeds(parsed)
    return parsed


def understood(
    function: Callable[..., T],
    program: str,
    arguments: Sequence[str],
    about: str | None = None,
    given: Mapping[str, Any] | None = None,
    words: Mapping[str, str] | None = None,
    fixed: tuple[type, Mapping[str, Any]] = (type(None), {}),
) -> T:
    """What `function` makes of command-line arguments: a dataclass, or annotated with such.

    given: other defaults, by option, from a configuration file; what must be given, it may give.
    words: defaults to show in the help, by option, in place of the values. fixed: a dataclass, and
    values of fields that are no options here. Ends the process as `parse` does.
    """
    given, words, asked = given or {}, words or {}, set[int]()
    registry = ConstructorRegistry()

    @registry.struct_rule
    def told(info: StructTypeInfo) -> StructConstructorSpec | None:
        """The rule for dataclasses, with defaults given and told."""
        if not is_dataclass(info.type) or id(info) in asked:
            return None
        asked.add(id(info))  # the rules are asked again, for what they say without this one
        spec = ConstructorRegistry.get_struct_spec(info)
        asked.discard(id(info))
        if not isinstance(spec, StructConstructorSpec):
            return None
        held = fixed[1] if info.type is fixed[0] else {}
        changed = []
        for each in spec.fields:
            kind: Any = _told(each.type, each.name, each.helptext, given, words)
            default = given.get(each.name, each.default)
            if each.name in held:
                kind, default = Annotated[each.type, *_HELD], held[each.name]
            changed.append(replace(each, default=default, type=kind))
        return replace(spec, fields=tuple(changed))

    plain = is_dataclass(function)
    return tyro.cli(
        function if plain else told_function(function, given, words, function),
        prog=program,
        args=list(arguments),
        description=about,
        config=MARKERS,
        registry=registry,
    )


def told_function(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    words: Mapping[str, str],
    call: Callable[..., T],
) -> Callable[..., T]:
    """`call`, as a function that takes what `function` does, with defaults given and told."""

    def same(**values: Any) -> T:
        return call(**values)

    hints = get_type_hints(function, include_extras=True)
    entries = re.split(r"^ +(\w+): ", inspect.getdoc(function) or "", flags=re.MULTILINE)
    described = dict(zip(entries[1::2], entries[2::2]))
    parameters = [
        each.replace(
            default=given.get(each.name, each.default),
            annotation=_told(hints[each.name], each.name, described.get(each.name), given, words),
        )
        for each in inspect.signature(function).parameters.values()
    ]
    same.__doc__, same.__name__ = function.__doc__, function.__name__
    same.__annotations__ = {each.name: each.annotation for each in parameters}
    same.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return same


_HELD = (tyro.conf.Fixed, tyro.conf.Suppress)
_NOT_GIVEN = ("None", "")


def _told(
    kind: Any,
    name: str,
    about: str | Callable[[], str | None] | None,
    given: Mapping[str, Any],
    words: Mapping[str, str],
) -> Any:
    """The annotation of an option, with what its help says of the default.

    about: its help, where the default may be stated already.
    """
    flag = name.replace("_", "-")

    def said(spelled: str) -> str:
        value = " ".join(shlex.split(spelled))  # the parser quotes as a shell needs it
        if name in words and name not in given:
            return f"(default: {words[name]})"
        if value in ("True", "False"):
            return f"(default: {flag if value == 'True' else f'no-{flag}'})"
        if value not in _NOT_GIVEN:
            return f"(default: {value})"
        stated = (about() if callable(about) else about) or ""
        return "" if "default" in stated else "(optional)"

    own = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    if any(getattr(each, "help_behavior_hint", None) for each in own):
        return kind
    return Annotated[kind, tyro.conf.arg(help_behavior_hint=said)]


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


def processes(workers: WorkerCount, work: float, enough: float) -> int:
    """The number of worker processes: what is asked for, or by "auto" what the work is worth.

    work, enough: how much there is, and from how much on all cores are worth the seconds that
    processes take to start. Raises UsageError for less than one.
    """
    if workers == "auto":
        return available_cores() if work >= enough else 1
    if workers < 1:
        raise UsageError("--workers must be at least 1")
    return workers


def value_of(argv: Sequence[str], option: str) -> str | None:
    """The value of an option that takes one; None when it is not there."""
    found = None
    for place, word in enumerate(argv):
        if word == option and place + 1 < len(argv):
            found = argv[place + 1]
        elif word.startswith(f"{option}="):
            found = word.removeprefix(f"{option}=")
    return found
