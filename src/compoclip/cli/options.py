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
    AtOnce,
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
    of_text,
    options_of,
    require,
)
from compoclip.console import help_width, refilled
from compoclip.errors import UsageError, closest
from compoclip.printed import Text
from compoclip.typed import kind_named, marks_of

T = TypeVar("T")
Outcome = tuple[Any, Text] | tuple[Any, Text, int]
"""The outcome of a verb: a JSON value, what it prints, and the exit code if it is not 0."""
WorkerCount = AtOnce | Literal["auto"]
Models = Annotated[tuple[NamedModel, ...], Shown("MODEL ...", positional=True)]
ResultPaths = Annotated[tuple[BlockResults, ...], Shown("RESULTS ...", positional=True)]


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


_REQUIRED = "(required)"
_FLAG = re.compile(r"--?[a-zA-Z]")
_NAME = re.compile("^--[^=]*")
_PLACEHOLDERS = {
    "BENCHMARK": ("benchmark",),
    "DATA": ("data",),
    "DEVICE": ("device",),
    "FILE": ("file", "output file", "files", "records", "records or captions"),
    "FOLDER": ("folder", "output folder", "new folder", "model folder", "run"),
    "INDEX": ("index", "output index"),
    "MODEL": ("model", "NAME=MODEL", "NAME=MODEL of any kind"),
    "PATH": ("file or folder", "results", "BLOCK=results", "bundle"),
    "REPO": ("repository of the hub",),
    "TABLE": ("published table",),
}
"""Placeholder -> the kinds of things (`config.Names`) that it stands for in the help."""
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
        keys: Options that --set takes by name, which are no flags.
    """

    def __init__(
        self,
        program: str,
        about: str,
        groups: Mapping[str, Collection[Option]],
        keys: Mapping[str, Option] | None = None,
    ) -> None:
        every = [option for options in groups.values() for option in options]
        places = [_place(option) for option in every if option.usage.positional]
        usage = " ".join([program, *places, "[options]"])
        examples = refilled(about.partition("Example")[2], sys.maxsize).splitlines()
        self._example = next((line.strip() for line in examples if line[:1] == " "), "")
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
                self._add(group, option, hidden=not title)

    def read(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values of the options that the arguments give, by name."""
        words = [_NAME.sub(lambda name: name[0].replace("_", "-"), word) for word in arguments]
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
        hints = [self._hint(flag.partition("=")[0]) for flag in flags]
        if unknown and not flags:  # a value, of an option that is required perhaps
            named = [option for option in self.options.values() if not option.usage.positional]
            flag = next((option.flag for option in named if _is_required(option)), "")
            example = f"{flag} {unknown[0]}"
            hints = [flag and f"write the name of its option before it, such as {example}"]
        self.exit(2, f"{self.prog}: {'; '.join([message, *filter(None, hints)])}; see --help\n")

    def require_given(self, values: Mapping[str, Any]) -> None:
        """Raise UsageError where a value that must be given is not there; its message shows one."""
        lacking = []
        for option in self.options.values():
            if _is_required(option) and values.get(option.name, ()) == ():
                place = _place(option)
                named = place if option.usage.positional else f"{option.flag} {place}"
                first_sentence = re.split(r"; |\. |\.$", option.help)[0]
                lacking.append(f"give {named}: {first_sentence}")
        if lacking:
            example = f"; such as {self._example}" if self._example else ""
            raise UsageError(f"{'; '.join(lacking)}{example}; see {self.prog} --help")

    def _hint(self, flag: str) -> str:
        """Return which option an unknown flag may mean; "" when none is close."""
        name = flag.lstrip("-").replace("-", "_")
        names = {**self.options, **self.keys}
        ours = (name,) if name in names else names_here(name, "options", names)
        if ours and ours[0] in self.keys:
            return f"{flag} is a key: write --set {ours[0]}=VALUE"
        options = [self.options[n] for n in ours]
        questions = [f"write {_place(o)} without {flag}" for o in options if o.usage.positional]
        flags = [option.flag for option in options if not option.usage.positional]
        if flags:
            questions.append(did_you_mean(flags))
        if questions:
            return " or ".join(questions)
        hint = closest(flag, [o.flag for o in self.options.values() if not o.usage.positional])
        return hint if hint.startswith("did you mean") else ""

    def _add(self, group: Any, option: Option, hidden: bool) -> None:
        usage, kind = option.usage, option.plain
        several = get_origin(kind) is tuple
        settings: dict[str, Any] = {"help": argparse.SUPPRESS if hidden else help_text(option)}
        if kind is bool:
            group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **settings)
            return

        def convert(text: str) -> Any:
            if text is argparse.SUPPRESS:  # a place that is left out
                return text
            try:
                value = option.at_home(of_text(text, option.kind))
            except ValueError:
                hint = closest(text, get_args(kind)) if get_origin(kind) is Literal else ""
                hint = f"; {hint}" if hint.startswith("did you mean") else ""
                raise argparse.ArgumentTypeError(
                    f"{text!r} is not {kind_named(kind)}{hint}"
                ) from None
            require(option.flag, value, get_args(kind)[0] if several else option.kind)
            return value

        settings |= {"type": convert, "metavar": _place(option)}
        if several or usage.words:
            settings["nargs"] = "*" if several else "+"
        if usage.positional:
            settings.setdefault("nargs", "?")
            group.add_argument(option.name, **settings)
            return
        if several:
            settings["action"] = "extend"
        names = [usage.short, option.flag] if usage.short else [option.flag]
        group.add_argument(*names, dest=option.name, **settings)


def _is_required(option: Option) -> bool:
    """Return whether a call must give an option; its class may have a default for other uses."""
    return option.default is MISSING or option.usage.hint == _REQUIRED


def help_text(option: Option) -> str:
    """Return the help of an option, with its default in words."""
    flag, default = option.flag[2:], option.default
    if option.usage.hint:
        hint = option.usage.hint
    elif default is MISSING:
        hint = _REQUIRED
    elif isinstance(default, bool):
        hint = f"(default: {flag if default else f'no-{flag}'})"
    elif default is None or default == "" or default == ():
        hint = ""
    else:
        value = " ".join(map(str, default)) if isinstance(default, tuple) else default
        hint = f"(default: {value})"
    return f"{option.help} {hint}".strip().replace("%", "%%")


def _place(option: Option) -> str:
    """Return what stands for a value of an option in the usage."""
    if option.usage.metavar:
        return option.usage.metavar.removesuffix(" ...")
    for mark in marks_of(option.kind, Names):
        for placeholder, kinds in _PLACEHOLDERS.items():
            if mark.kind in kinds:
                return placeholder
    return _metavar(option.plain)


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
    usage, with 0 after --help. Raises UsageError for a number out of range, and where a value that
    must be given is not there.
    """
    about = f"{inspect.getdoc(options) or ''}\n".partition("\nArgs:")[0].strip()
    in_order = sorted(options_of(options).values(), key=lambda option: option.group in _SHARED)
    parser = OptionParser(program, about, {"options": in_order})
    values = parser.read(arguments)
    parser.require_given(values)
    parsed = built(options, values)
    check_options(parsed)
    return parsed


def processes(workers: WorkerCount, work: float, enough: float) -> int:
    """Return the number of worker processes; "auto": all cores when `work` reaches `enough`."""
    if workers != "auto":
        return workers
    from compoclip.workers import available_cores  # with multiprocessing

    return available_cores() if work >= enough else 1
