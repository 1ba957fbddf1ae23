"""Parsing the arguments of a verb by the table of its options; help that says defaults in words."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin

from compoclip.checks import check_options
from compoclip.config import (
    BlockResults,
    DeviceName,
    Engine,
    NamedModel,
    Names,
    Option,
    Shown,
    built,
    did_you_mean,
    names_here,
    options_of,
    require,
)
from compoclip.console import help_width, refilled
from compoclip.errors import UsageError, closest
from compoclip.printed import Text
from compoclip.typed import Count, kind_named, marks_of, of_text

T = TypeVar("T")
Outcome = tuple[Any, Text] | tuple[Any, Text, int]
"""The outcome of a verb: a JSON value, what it prints, and the exit code if it is not 0."""
WorkerCount = Count | Literal["auto"]
Models = Annotated[tuple[NamedModel, ...], Shown("MODEL ...", positional=True, hint="(required)")]
ResultPaths = Annotated[
    tuple[BlockResults, ...], Shown("RESULTS ...", positional=True, hint="(required)")
]


@dataclass(frozen=True, kw_only=True)
class Printing:
    """Options of verbs that print a result.

    Args:
        json: Print the result as JSON.
    """

    json: bool = False


@dataclass(frozen=True, kw_only=True)
class OnDevice(Printing):
    """Options of verbs that load models.

    Args:
        device: cpu, cuda, cuda:N or mps; auto uses a GPU if there is one.
    """

    device: DeviceName = "auto"


@dataclass(frozen=True, kw_only=True)
class OnEngine(Printing):
    """Options of verbs whose work several machines can share.

    Args:
        engine: local works on this machine; ray on the Ray cluster that RAY_ADDRESS names, or else
            on one that is started here. See docs/corpora.md.
    """

    engine: Engine = "local"


_FLAG = re.compile(r"--?[a-zA-Z]")
_PLACES = {
    "file": "FILE",
    "output file": "FILE",
    "output index": "INDEX",
    "folder": "FOLDER",
    "output folder": "FOLDER",
    "new folder": "FOLDER",
    "model folder": "FOLDER",
    "file or folder": "PATH",
    "results": "PATH",
    "BLOCK=results": "PATH",
    "run": "FOLDER",
    "bundle": "PATH",
    "data": "DATA",
    "benchmark": "BENCHMARK",
    "model": "MODEL",
    "NAME=MODEL": "MODEL",
    "NAME=MODEL of any kind": "MODEL",
    "device": "DEVICE",
    "index": "INDEX",
    "files": "FILE",
    "records": "FILE",
    "records or captions": "FILE",
    "published table": "TABLE",
    "repository of the hub": "REPO",
}
"""Kind of thing that an option names (`config.Names`) -> its placeholder, if it has one."""
_SHARED = {kind.__name__ for kind in (Printing, OnDevice, OnEngine)}
"""Classes whose options stand behind a verb's own in its help."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Breaks no name at its hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


class OptionParser(argparse.ArgumentParser):
    """A parser of the options of a table; `read` returns the values that were given, by name.

    Args:
        program: For the usage line.
        about: The head of the help.
        groups: Title -> options, in the order of the help; "" is not shown.
        required: Refuse a call without the options that have no default.
        keys: Options that --set takes by name, which are no flags.
    """

    def __init__(
        self,
        program: str,
        about: str,
        groups: Mapping[str, Collection[Option]],
        required: bool = True,
        keys: Mapping[str, Option] | None = None,
    ) -> None:
        every = [option for options in groups.values() for option in options]
        places = [_place(option) for option in every if option.usage.positional]
        usage = " ".join([program, *places, "[options]"])
        self._example = _first_example(about)
        super().__init__(
            prog=program,
            usage=refilled(usage, help_width() - len("usage: ")),
            description=refilled(about, help_width()),
            formatter_class=_Formatter,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        self.options = {option.name: option for option in every}
        self.keys = keys or {}
        for title, options in groups.items():
            group = self if title in ("", "options") else self.add_argument_group(title)
            for option in options:
                self._add(group, option, required, hidden=not title)

    def read(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values of the options that the arguments give, by name."""
        words = [
            word.partition("=")[0].replace("_", "-") + "".join(word.partition("=")[1:])
            if word.startswith("--")
            else word
            for word in arguments
        ]
        values = vars(self.parse_intermixed_args(words))
        for name, value in values.items():
            option = self.options[name]
            if option.usage.words and isinstance(value, list):
                values[name] = value[0] if len(value) == 1 else shlex.join(value)
            elif isinstance(value, list):
                values[name] = tuple(value)
        return values

    def print_help(self, file: Any = None) -> None:
        """Print the help; unlike argparse's, a reader that has gone away is noticed."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """End the process with code 2 and one line, which names the closest options."""
        unknown = message.partition("unrecognized arguments: ")[2].split()
        flags = [word for word in unknown if _FLAG.match(word)]
        if ": " in message and message.startswith("the following arguments are required"):
            names = re.split(", |/", message.partition(": ")[2])
            lacking = [o for o in self.options.values() if {o.flag, _place(o)} & {*names}]
            message = self.lacking([o for o in lacking if o.default is MISSING])
        hints = [self._hint(flag.partition("=")[0]) for flag in flags]
        if unknown and not flags:
            hints = [self._hint_of_value(unknown[0])]
        self.exit(2, f"{self.prog}: {'; '.join([message, *filter(None, hints)])}; see --help\n")

    def _hint_of_value(self, value: str) -> str:
        """Return which option a value without a name may be of; "" where none is required."""
        required = [o for o in self.options.values() if o.default is MISSING]
        flag = next((o.flag for o in required if not o.usage.positional), "")
        return flag and f"write the name of its option before it, such as {flag} {value}"

    def lacking(self, options: Sequence[Option]) -> str:
        """Return what to say where options are missing that must be given: an example of them."""
        first = [re.split(r"; |\. |\.$", option.help)[0] for option in options]
        message = "; ".join(f"give {_named(o)}: {help}" for o, help in zip(options, first))
        return f"{message}; such as {self._example}" if self._example else message

    def _hint(self, flag: str) -> str:
        """Return which option an unknown flag may mean; "" when none is close."""
        flags = {name: option.flag for name, option in self.options.items()}
        name = flag.lstrip("-").replace("-", "_")
        known = {**flags, **self.keys}
        ours = (name,) if name in known else names_here(name, "options", known)
        if ours and ours[0] in self.keys:
            return f"{flag} is a key: write --set {ours[0]}=VALUE"
        places = [_place(self.options[n]) for n in ours if self.options[n].usage.positional]
        named = [flags[n] for n in ours if not self.options[n].usage.positional]
        questions = [f"write {place} without {flag}" for place in places]
        questions += [did_you_mean(named)] if named else []
        if questions:
            return " or ".join(questions)
        all_named = [o.flag for o in self.options.values() if not o.usage.positional]
        hint = closest(flag, all_named)
        return hint if hint.startswith("did you mean") else ""

    def _add(self, group: Any, option: Option, required: bool, hidden: bool) -> None:
        shown, kind = option.usage, option.plain
        several = get_origin(kind) is tuple
        must = required and option.default is MISSING
        told: dict[str, Any] = {"help": argparse.SUPPRESS if hidden else help_text(option)}
        if kind is bool:
            group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **told)
            return

        def convert(text: str) -> Any:
            if text is argparse.SUPPRESS:  # a place that is left out
                return text
            try:
                value = of_text(text, option.kind)
            except ValueError:
                hint = closest(text, get_args(kind)) if get_origin(kind) is Literal else ""
                hint = f"; {hint}" if hint.startswith("did you mean") else ""
                wrong = f"{text!r} is not {kind_named(kind)}{hint}"
                raise argparse.ArgumentTypeError(wrong) from None
            require(option.flag, value, get_args(kind)[0] if several else option.kind)
            return value

        told |= {"type": convert, "metavar": _place(option)}
        if several or option.usage.words:
            told["nargs"] = "*" if several else "+"
        if shown.positional:
            if not several and not must:
                told["nargs"] = "?"
            if several and must:
                told["default"] = ()  # the verb says what to name
            group.add_argument(option.name, **told)
            return
        if several:
            told["action"] = "extend"
        names = [shown.short, option.flag] if shown.short else [option.flag]
        group.add_argument(*names, dest=option.name, required=must, **told)


def _first_example(about: str) -> str:
    """Return the first command of the examples in the head of a help; "" without any."""
    examples = refilled(about.partition("Example")[2], sys.maxsize)
    return next((line.strip() for line in examples.splitlines() if line[:1] == " "), "")


def help_text(option: Option) -> str:
    """Return the help of an option, with its default in words."""
    flag, default = option.flag[2:], option.default
    if option.usage.hint:
        hint = option.usage.hint
    elif default is MISSING:
        hint = "(required)"
    elif isinstance(default, bool):
        hint = f"(default: {flag if default else f'no-{flag}'})"
    elif default is None or default == "" or default == ():
        hint = ""
    else:
        value = " ".join(map(str, default)) if isinstance(default, tuple) else default
        hint = f"(default: {value})"
    return f"{option.help} {hint}".strip().replace("%", "%%")


def _named(option: Option) -> str:
    return _place(option) if option.usage.positional else f"{option.flag} {_place(option)}"


def _place(option: Option) -> str:
    """Return what stands for a value of an option in the usage."""
    if option.usage.metavar:
        return option.usage.metavar.removesuffix(" ...")
    named = [_PLACES[n.kind] for n in marks_of(option.kind, Names) if n.kind in _PLACES]
    return named[0] if named else _metavar(option.plain)


def _metavar(kind: Any) -> str:
    """Return what stands for a value of a type in the usage: INT, PATH, {a,b}."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"{{{','.join(map(str, parts))}}}"
    if origin in (tuple, Annotated):
        return _metavar(parts[0])
    return "|".join(map(_metavar, parts)) or str(kind.__name__).upper()


def parse(options: type[T], program: str, arguments: Sequence[str]) -> T:
    """Build `options`, a dataclass, from the arguments of a program such as "compoclip evaluate".

    Its docstring up to "Args:" heads the help. Ends the process with code 2 and a message on wrong
    usage, with 0 after --help. Raises UsageError for a number out of range, and when there is
    nothing of a list that the help calls required.
    """
    about = f"{inspect.getdoc(options) or ''}\n".partition("\nArgs:")[0].strip()
    known = sorted(options_of(options).values(), key=lambda option: option.group in _SHARED)
    parser = OptionParser(program, about, {"options": known})
    parsed = built(options, parser.read(arguments))
    for option in known:
        if option.usage.hint == "(required)" and not getattr(parsed, option.name):
            raise UsageError(f"{parser.lacking([option])}; see {program} --help")
    check_options(parsed)
    return parsed


def processes(workers: WorkerCount, work: float, enough: float) -> int:
    """Return the number of worker processes; "auto": all cores when `work` reaches `enough`."""
    if workers != "auto":
        return workers
    from compoclip.workers import available_cores  # with multiprocessing

    return available_cores() if work >= enough else 1
