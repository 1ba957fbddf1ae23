"""Options as data: their types, defaults and help, and configuration files that hold them.

An option is a field of a dataclass or a parameter of a recipe. Nothing here knows one by name: what
a file or the command line may hold, and of which type, follows from the annotations.

    method: fsc-clip
    data: world/train
    epochs: 2
    lr: 1e-5
    texts: [+synonym]

Of YAML the plain part is read: `no` and `on` are texts, and 1e-5 is a number.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml

from compoclip.bounds import (
    MAX_CONFIG_CHARACTERS,
    MAX_CONFIG_DEPTH,
    MAX_RESAMPLES,
    MAX_SEED,
    MAX_WORKERS,
)
from compoclip.errors import UsageError, closest
from compoclip.files import read_text, reason
from compoclip.typed import Within, at_home, convert, is_a, marks_of, require_kind, says_none

CONFIG = "config.yaml"
"""In a run folder: the file that repeats the run."""
T = TypeVar("T")
RELATIVE_TO = "relative_to"
"""The key with the folder that relative paths in a file start from; else it is the current one."""


@dataclass(frozen=True)
class Shown:
    """How an option is given, in its `Annotated` beside the type.

    metavar: Stands for the value. short: Another name, "-o". positional: Given without a name.
    hint: Replaces the default in the help. words: A text of several words on the command line.
    place: A text that may hold the path of a file or folder. once: Of one call of the command, not
    of the run that it makes; the file that repeats the run leaves it out.
    """

    metavar: str = ""
    short: str = ""
    positional: bool = False
    hint: str = ""
    words: bool = False
    place: bool = False
    once: bool = False


@dataclass(frozen=True)
class Names:
    """Mark of what the value of an option names, in its `Annotated` beside the type.

    kind: A key of `checks.CHECKS`, which looks whether it is there before work begins.
    """

    kind: str


InputFile = Annotated[Path, Names("file")]
InputFolder = Annotated[Path, Names("folder")]
ModelFolder = Annotated[Path, Names("model folder")]
InputPlace = Annotated[Path, Names("file or folder")]
ResultPlace = Annotated[Path, Names("results")]
BlockResults = Annotated[Path, Names("BLOCK=results")]
RunFolder = Annotated[Path, Names("run")]
BundlePlace = Annotated[Path, Names("bundle")]
OutputFile = Annotated[Path, Names("output file")]
OutputFolder = Annotated[Path, Names("output folder")]
NewFolder = Annotated[Path, Names("new folder")]
DataName = Annotated[str, Names("data")]
BenchmarkName = Annotated[str, Names("benchmark")]
OfficialName = Annotated[str, Names("official benchmark")]
ModelName = Annotated[str, Names("model")]
NamedModel = Annotated[str, Names("NAME=MODEL")]
ScoringModel = Annotated[str, Names("NAME=MODEL of any kind")]
DeviceName = Annotated[str, Names("device")]
MethodName = Annotated[str, Names("method")]
ScoreName = Annotated[str, Names("score")]
TableName = Annotated[str, Names("published table")]
HubName = Annotated[str, Names("repository of the hub")]
PartName = Annotated[str, Names("part of a method")]
FileName = Annotated[str, Names("file")]
FileNames = Annotated[str, Names("files")]
"""A file, several by a pattern, or a folder of them."""
RecordNames = Annotated[str, Names("records")]
"""Files of JSON lines or Parquet, named as above; see `records.read_records`."""
IndexFile = Annotated[Path, Names("index")]
OutputIndex = Annotated[Path, Names("output index")]
Engine = Literal["local", "ray"]
"""Where tasks are carried out: on this machine, or on a Ray cluster."""
Trainer = Literal["sentence-transformers", "ms-swift", "negclip", "open-clip"]
"""Other trainers, in whose layouts negatives are written."""
Seed = Annotated[int, Within(0, MAX_SEED)]
"""The type of every option named seed, which goes to all generators."""
AtOnce = Annotated[int, Within(1, MAX_WORKERS)]
"""A number of processes, or of requests to a server, at the same time."""
Workers = Annotated[int, Within(0, MAX_WORKERS)] | Literal["auto"]
"""Processes that read data beside the one that trains; auto as many as the machine has use for."""
Resamples = Annotated[int, Within(1, MAX_RESAMPLES)]
"""Resamples of a bootstrap, which results record."""


@dataclass(frozen=True)
class Option:
    """An option of the command line or of a file.

    Args:
        name: With _ for -.
        kind: Its annotation.
        default: Its value when it is not given; `dataclasses.MISSING` when it is required.
        help: One paragraph.
        group: The class that declares it.
    """

    name: str
    kind: Any
    default: Any = MISSING
    help: str = ""
    group: str = ""

    @property
    def flag(self) -> str:
        """Return the name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def plain(self) -> Any:
        """Return the annotation without marks and without None."""
        kind = self.kind
        while get_origin(kind) in (Annotated, Union, UnionType):
            annotated = get_origin(kind) is Annotated
            left = [part for part in get_args(kind) if part is not NoneType]
            if len(left) > 1 and not annotated:
                break
            kind = left[0]
        return kind

    @property
    def usage(self) -> Shown:
        """Return how it is given."""
        return next(iter(marks_of(self.kind, Shown)), Shown())

    def at_home(self, value: Any) -> Any:
        """Return a value, with the folder of the user for "~" where it names files or folders."""
        if isinstance(value, tuple):
            return tuple(map(self.at_home, value))
        names = self.is_place or marks_of(self.kind, Names)
        return at_home(value) if names and isinstance(value, str) else value

    @property
    def is_place(self) -> bool:
        """Return whether a value may be, or hold, the path of a file or folder."""
        return self.usage.place or Path in _types(self.kind)


def options_of(kind: type) -> dict[str, Option]:
    """Return the fields of a dataclass as options by name, documented by `Args:` of its classes.

    A field that is a dataclass stands for the fields of that.
    """
    return {**_options_of(kind)}


@cache
def _options_of(kind: type) -> dict[str, Option]:
    hints = get_type_hints(kind, include_extras=True)
    help_of: dict[str, str] = {}
    group_of: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        help_of |= described(base.__doc__ or "")
        group_of = dict.fromkeys(inspect.get_annotations(base), base.__name__) | group_of
    options: dict[str, Option] = {}
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            options |= options_of(hints[field.name])
            continue
        default = field.default_factory() if callable(field.default_factory) else field.default
        about = help_of.get(field.name, "")
        kind_of_field = Seed if field.name == "seed" else hints[field.name]
        options[field.name] = Option(
            field.name, kind_of_field, default, about, group_of[field.name]
        )
    return options


def built(kind: type[T], values: Mapping[str, Any]) -> T:
    """Make a dataclass of values by name, as `options_of` names them."""
    hints = get_type_hints(kind)
    parts: dict[str, Any] = {}
    for field in fields(cast(Any, kind)):
        if is_dataclass(hints[field.name]):
            parts[field.name] = built(hints[field.name], values)
        elif field.name in values:
            parts[field.name] = values[field.name]
    return kind(**parts)


def require_with(options: object, other: str, *names: str) -> None:
    """Raise UsageError for each of these options that is given without another that it needs."""
    if not getattr(options, other):
        refuse(options, names, needs=f"--{other.replace('_', '-')}")


def refuse(
    options: object, names: Iterable[str], *, needs: str = "", unused_with: str = ""
) -> None:
    """Raise UsageError for each of these options whose value is not its default.

    needs: what they have a use with. unused_with: what they have none with.
    """
    by_name = options_of(type(options))
    for option in (by_name[name] for name in names):
        if getattr(options, option.name) != option.default:
            flag = option.usage.metavar if option.usage.positional else option.flag
            remedy = f"has no use with {unused_with}; leave it out"
            raise UsageError(f"{flag} goes with {needs}" if needs else f"{flag} {remedy}")


def require_distinct(name: str, values: Sequence[object]) -> None:
    """Raise UsageError for a value that an option has twice."""
    for value, times in Counter(values).items():
        if times > 1:
            raise UsageError(f"--{name} names {value} twice; name it once")


def described(doc: str) -> dict[str, str]:
    """Return the entries of the section `Args:` of a docstring, each as one paragraph."""
    listed = f"\n{inspect.cleandoc(doc)}".partition("\nArgs:\n")[2]
    entries = re.split(r"^    (\w+): ", re.split(r"^\S", listed, flags=re.M)[0], flags=re.M)
    return {name: " ".join(text.split()) for name, text in zip(entries[1::2], entries[2::2])}


@cache
def _other_names() -> dict[str, dict[str, list[str]]]:
    return package_yaml(Path(__file__).with_name("other_names.yaml"))


def names_here(name: str, of: str, names: Collection[str]) -> tuple[str, ...]:
    """Return what is called so in another program; () for a name that no other program has.

    Args:
        name: With - or _, with or without capitals.
        of: "options" or "verbs".
        names: The names that exist here; the results are some of them.
    """

    def plain(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    return tuple(
        ours
        for ours, theirs in _other_names()[of].items()
        if ours in names and plain(name) in map(plain, (ours, *theirs))
    )


def did_you_mean(names: Iterable[str]) -> str:
    """Return the question whether one of these names is meant."""
    return f"did you mean {' or '.join(names)}?"


def hint_for(name: str, of: str, names: Collection[str]) -> str:
    """Return a hint for an unknown name; the arguments are those of `names_here`."""
    ours = names_here(name, of, names)
    return did_you_mean(ours) if ours else closest(name, names)


def no_option(name: str, options: Collection[str], owner: str = "") -> str:
    """Return that there is no such option, with the closest; the arguments are those of `typed`."""
    subject = f"{owner} has no" if owner else "no"
    return f"{subject} option '{name}'; {hint_for(name, 'options', options)}"


def require(name: str, value: object, kind: Any) -> None:
    """Raise UsageError unless the value of an option is of its type, as `require_kind` says."""
    require_kind(name, value, kind, error=UsageError)


def require_texts(name: str, value: object) -> list[str]:
    """Return texts as a list, one text as a list of one; raise UsageError for other types."""
    require(name, value, str | list | tuple)
    texts = [value] if isinstance(value, str) else list(cast("Sequence[str]", value))
    for place, text in enumerate(texts):
        require(f"{name}[{place}]", text, str)
    return texts


def typed(
    values: Mapping[str, Any], options: Mapping[str, Option], place: str = "", owner: str = ""
) -> dict[str, Any]:
    """Return values by name in the types of their options.

    Raise UsageError for an unknown name, with the closest one, and for a value of another type.
    place: heads the messages, "run.yaml: ". owner: whose options they are, for messages.
    """
    converted: dict[str, Any] = {}
    for name, value in values.items():
        if name not in options:
            raise UsageError(f"{place}{no_option(name, options, owner)}")
        option = options[name]
        converted[name] = None if says_none(value, option.kind) else convert(value, option.kind)
        converted[name] = option.at_home(converted[name])
        require(f"{place}{name}", converted[name], options[name].kind)
    return converted


def _types(kind: Any) -> set[Any]:
    types = {get_origin(kind) or kind}
    return types.union(*map(_types, get_args(kind)))


# --- Files. ---


def read_config(path: Path) -> dict[str, Any]:
    """Read a configuration file (YAML or JSON): its values by name, with _ for -, not yet checked.

    Raises CompoclipError when the file cannot be read, or is no text, UsageError when it is not a
    list of names with values, each once.
    """
    return parsed_config(read_text(path, damaged="fix the file"), path)


def parsed_config(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of a file as `read_config` does; path: for messages."""
    named: dict[str, Any] = {}
    for name, value in parsed_yaml(text, path, "list of options").items():
        option_name = name if is_part(name) else name.replace("-", "_")
        if option_name in named:
            raise UsageError(f"{path}: '{name}' is there twice; keep one of them")
        named[option_name] = value
    return named


def parsed_yaml(text: str, path: Path, label: str) -> dict[str, Any]:
    """Return the names of a YAML text with their values.

    label: what the text should be, and path: of the file, for messages. No anchors, aliases or
    tags, and no name twice: raise UsageError, with the line, for any other text.
    """
    if len(text) > MAX_CONFIG_CHARACTERS:
        raise UsageError(f"{path}: too long for a {label}; name another file")
    try:
        values = _yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or reason(error)
        raise UsageError(f"{path}: {place}not YAML ({problem}); fix the file") from None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UsageError(f"{path}: not a {label} with lines 'NAME: VALUE'; fix the file")
    return values


def package_yaml(path: Path) -> dict[str, Any]:
    """Return what a YAML file of the package holds: the values of `parsed_yaml`, and merged
    mappings (<<), read in C where the library has that, in a tenth of the time."""
    values: dict[str, Any] = yaml.load(read_text(path), _PackageReader)
    return values


def checked(
    path: Path, values: Mapping[str, Any], options: Mapping[str, Option], label: str
) -> dict[str, Any]:
    """Check the values of a file against the options that it may hold; return them, converted.

    Under `RELATIVE_TO` the file may say where relative paths start. Raise UsageError for an unknown
    name, with the closest one, and for a value of another type. label: whose options they are, for
    messages.
    """
    of_file = {**options, RELATIVE_TO: Option(RELATIVE_TO, Path, MISSING)}
    converted = typed(values, of_file, f"{path}: ", label)
    folder = converted.pop(RELATIVE_TO, Path.cwd())
    if not folder.is_dir():
        raise UsageError(f"{path}: {RELATIVE_TO}: no folder {folder}; correct or remove the line")
    if folder != Path.cwd():
        for name, value in converted.items():
            if options[name].is_place and value != options[name].default:
                converted[name] = _moved(value, folder)
    return converted


def is_part(name: str) -> bool:
    """Return whether a name is the path of a part of a method, such as texts.graph.weights, and not
    the name of an option."""
    return "." in name


def as_settings(values: Mapping[str, Any]) -> list[str]:
    """Return values by name as NAME=VALUE texts, as --set and --grid take them."""
    texts = {
        name: str(value) if isinstance(value, str | Path) else json.dumps(value)
        for name, value in values.items()
    }
    return [f"{name}={text}" for name, text in texts.items()]


def config_text(heading: str, values: Mapping[str, Any]) -> str:
    """Return YAML that `read_config` and `checked` turn into these values again, read anywhere.

    None and empty lists stand for options not given, and are left out. heading: lines of comment.
    """
    plain = {name: _plain(value) for name, value in values.items()}
    plain = {name: value for name, value in plain.items() if value is not None and value != []}
    plain[RELATIVE_TO] = str(Path.cwd())
    comment = "".join(f"# {line}\n" for line in heading.splitlines())
    layout = {"sort_keys": False, "allow_unicode": True, "width": 1000}
    return comment + str(yaml.dump(plain, Dumper=_YamlWriter, **layout))


def read_value(text: str) -> Any:
    """Return the value that a file would hold: "1e-5", "[a, b]"; what is no YAML is a text."""
    try:
        value = _yaml(text)
    except yaml.YAMLError:
        return text
    return text if isinstance(value, dict) else value


def of_text(text: str, kind: Any) -> Any:
    """Return the value that a text stands for: a flag's, a target's, or one of several of them.

    A text stays as it is. Numbers, true and false are written as in files, and none or null is no
    value where the type has that. Raise ValueError for another type.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if says_none(text, kind):
        return None
    if origin in (Annotated, tuple):
        return of_text(text, parts[0])
    if origin in (Union, UnionType):
        for part in parts:
            try:
                return of_text(text, part)
            except ValueError:
                continue
        raise ValueError(text)
    if kind in (str, Path):
        return convert(text, kind)
    value = text if origin is Literal else convert(read_value(text), kind)
    if not is_a(value, kind):
        raise ValueError(text)
    return value


def of_setting(text: str, kind: Any) -> Any:
    """Return the value of NAME=VALUE as --set and --grid have it, `of_text`, for `typed` to check.

    As in a file, a list has brackets, a text may have quotes, and nothing is null.
    """
    value = read_value(text)
    quoted = isinstance(value, str) and value != text.strip()
    if isinstance(value, list) or value is None or quoted:
        return convert(value, kind)
    try:
        return convert(of_text(text.strip(), kind), kind)
    except ValueError:
        return convert(value, kind)


def _plain(value: Any) -> Any:
    """A value in the types of YAML."""
    if isinstance(value, tuple | list):
        return [_plain(element) for element in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Real):  # numpy's own too
        return int(value) if isinstance(value, Integral) else float(value)
    return str(value)


_PLACE = re.compile(r"(\+|local-dir:|[^/@]+@(?=[./\w]))?(.*?)((?::\w+|=[\d.]+)?)$", re.DOTALL)


def _moved(value: Any, folder: Path) -> Any:
    """A value with the relative path in it, if it holds one, as one from that folder."""
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, tuple):
        return tuple(_moved(element, folder) for element in value)
    return place_in(value, folder) if isinstance(value, str) else value


def place_in(value: str, folder: Path) -> str:
    """Make the path in a text absolute where the folder has such a file or folder.

    value: PATH, PATH:NAME, PATH=NUMBER, ARCHITECTURE@PATH or local-dir:PATH, perhaps with a +.
    """
    match = _PLACE.match(value)
    assert match is not None
    before, place, after = match[1] or "", match[2], match[3]
    if value and (folder / value).exists():
        before, place, after = "", value, ""
    first, *deeper = Path(place).parts or ("",)
    # of a pattern, or a file that is made only later, the folder is there
    there = (folder / place).exists() or (deeper and (folder / first).is_dir())
    return f"{before}{folder / place}{after}" if place and there else value


# --- YAML without its surprises: no, on and yes are texts, 1e-5 is a number, 1:30 is none. ---


def _yaml(text: str) -> Any:
    """The value of a text. Raises YAMLError for anything but plain YAML."""
    try:
        # Few aliases stand for a value larger than the memory; tags name types that options lack.
        # The time for brackets in brackets grows with the square of their number.
        depth = 0
        for event in yaml.parse(text, _YamlReader):
            if isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_CONFIG_DEPTH:
                    raise yaml.YAMLError("nested too deeply")
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                problem = "anchors, aliases and tags (&, *, !) are not read: write values out"
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return yaml.load(text, _YamlReader)
    except ValueError as error:
        raise yaml.YAMLError("a number has thousands of digits") from error


class _YamlReader(yaml.SafeLoader):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Names with values. Raises ConstructorError for a name that is there twice."""
        names = set[str]()
        for key, _ in node.value:
            name = str(key.value)
            if name in names:
                problem = f"'{name}' is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            names.add(name)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


class _PackageReader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}


class _YamlWriter(yaml.SafeDumper):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}


_NUMBERS = list("-+.0123456789")
_RESOLVED = (
    ("bool", r"true|false|True|False|TRUE|FALSE", list("tfTF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", _NUMBERS),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", _NUMBERS),
    ("float", r"[-+]?\.inf|\.nan", _NUMBERS),
    ("null", r"~|null|", ["~", "n", ""]),
)
_PackageReader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("<<$"), ["<"])
for _kind in (_YamlReader, _PackageReader, _YamlWriter):
    for _tag, _pattern, _first in _RESOLVED:
        _resolver = re.compile(f"(?:{_pattern})$")
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _resolver, _first)
