"""The parts of a benchmark: its facts, and a function that turns rows into cases.

    META = Meta(id="my_benchmark", ...)

    def _cases(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
        path = annotations or data.root / "my_benchmark" / "rows.json"
        for index, where, row in data.rows("rows", path):
            image = files.photo(data.photos("my_benchmark/images"), row, "image", where)
            ...
            yield Case(f"{index}", Form.CHOOSE_TEXT, (image,), texts, "my_benchmark")

    MY_BENCHMARK = CaseReader(META, _cases, rules={...}, headline="...")

Everything else (which sub-tasks are wanted, the hash over the files, expected counts, skills, the
aggregates that remain defined) follows. The keyword-only arguments of the function are the
benchmark's options.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

from compoclip import config
from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import (
    Aggregate,
    Benchmark,
    Cases,
    Classification,
    Meta,
    Probe,
    Retrieval,
    TiePolicy,
)
from compoclip.config import Option
from compoclip.data.options import DataOptions
from compoclip.errors import CompoclipError, UsageError, closest

if TYPE_CHECKING:
    from compoclip.data.sources.open import OpenedPart

Rules = Mapping[str, Aggregate]
OWN = "own"
"""The set of a family that is made of a file or folder of the user's."""
_READING = "reading"
"""The argument of a function that reads captioned photos: `DataOptions`, each an option."""
_DATA_OPTIONS = {
    name: option for name, option in config.options_of(DataOptions).items() if name != "images"
}


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """Return the keyword-only arguments of a function as options by name.

    The options of `DataOptions` stand for an argument `reading`. Raises UsageError for a type that
    the module of the function does not know when it runs; it need not import Path.
    """
    named = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    of_data = _DATA_OPTIONS if named.pop(_READING, None) else {}
    stated = SimpleNamespace(__annotations__={name: p.annotation for name, p in named.items()})
    try:
        kinds = get_type_hints(stated, function.__globals__, {"Path": Path}, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{function.__module__}.{function.__name__}: the type of an option: {error}; import it "
            "outside of TYPE_CHECKING"
        ) from error
    return {name: Option(name, kinds[name], p.default) for name, p in named.items()} | of_data


@dataclass(kw_only=True)
class Loading(Benchmark):
    """A benchmark while it is read: functions that read may change all but the first three fields.

    about: its facts. images: folder of the photos named by the user. parts: the wanted sub-tasks,
    as named by the user where the facts state none. opened: captioned photos that are opened
    already. files: name -> file, or its content, for the data hash; stated: further inputs that
    decide the items. content: the cases of the wanted sub-tasks once they are read. aggregates: in
    addition to those of the reader.
    """

    about: Meta
    root: Path
    images: Path | None
    parts: tuple[str, ...]
    left_out: Counter[str] = field(default_factory=Counter)
    files: dict[str, Path | bytes] = field(default_factory=dict)
    stated: list[str] = field(default_factory=list)
    opened: OpenedPart | None = None

    def photos(self, folder: str) -> Path:
        """Return the folder of photos named by the user, else `folder` below the root."""
        return self.images or self.root / folder

    def rows(
        self, name: str, path: Path, remedy: str = ""
    ) -> Iterator[tuple[Any, str, dict[str, Any]]]:
        """Yield (key, file and row for messages, row) as `tables.read_annotations` does.

        name: name of the file in the data hash. remedy: advice for the message when it is absent.
        """
        self.files[name] = path
        for key, location, value in tables.read_annotations(path, absent=remedy):
            yield key, location, files.record(value, location)


@dataclass(frozen=True)
class CaseReader:
    """A benchmark that can be loaded by its name: `read(data: Loading, **options)` reads it.

    read: yields the cases in order, of which those of unwanted sub-tasks are dropped, or returns a
    set for retrieval or classification, or a whole `Benchmark`. rules: its named aggregates, or a
    function of the finished `Loading` that returns them. headline: the aggregate to quote; "micro"
    if it is not defined for the wanted sub-tasks. ties: the official policy, or one by sub-task (""
    for all others). usual: sub-tasks read by default; () for all. empty: message for files that
    hold no case. takes: its options, if `read` does not name them all.
    """

    meta: Meta
    read: Callable[..., Any]
    rules: Rules | Callable[[Loading], Rules] = field(default_factory=dict)
    headline: str = "micro"
    ties: TiePolicy | Mapping[str, TiePolicy] = TiePolicy.STRICT
    usual: tuple[str, ...] = ()
    empty: str = ""
    takes: Mapping[str, Option] | None = None

    @property
    def options(self) -> dict[str, Option]:
        """Return the options of `load` by name."""
        return options_of(self.read) if self.takes is None else dict(self.takes)

    def chosen(self, subtasks: Sequence[str]) -> tuple[str, ...]:
        """Return the sub-tasks that `load` reads; raise UsageError for an unknown one."""
        about = self.meta
        if not about.parts or about.family:
            return tuple(subtasks)
        return select(about.id, about.parts, subtasks or self.usual)

    def load(
        self,
        root: Path,
        images: Path | None = None,
        *,
        subtasks: Sequence[str] = (),
        opened: OpenedPart | None = None,
        **options: Any,
    ) -> Benchmark:
        """Read the benchmark, or those of its sub-tasks that match any of some patterns ("swap_*").

        images: folder of the photos, when they are not in the default layout. opened: captioned
        photos that are opened already. options: see `options`. Raises CompoclipError for absent or
        malformed files, UsageError for an unknown sub-task or a bad option.
        """
        about, parts = self.meta, self.chosen(subtasks)
        expected, skills = dict(about.expected), dict(about.skills)
        if about.parts and not about.family:
            expected = {name: expected[name] for name in parts if name in expected}
            skills = {name: skills[name] for name in parts if name in skills}
        data = Loading(
            name=about.id,
            content=Cases(),
            data_hash="",
            ties={"": self.ties} if isinstance(self.ties, TiePolicy) else dict(self.ties),
            skills=skills,
            expected=expected,
            headline=self.headline,
            about=about,
            root=root,
            images=images,
            parts=parts,
            opened=opened,
        )
        if _DATA_OPTIONS.keys() <= self.options.keys():
            data_options = {name: options.pop(name) for name in _DATA_OPTIONS if name in options}
            options[_READING] = DataOptions(images=images, **data_options)
        read = self.read(data, **options)
        if isinstance(read, Benchmark):
            return read
        single = isinstance(read, Retrieval | Classification | Probe)
        if single:
            data.content = read
        else:
            every = list(read)
            needed = {*data.parts, *data.tuned_on.values()}
            data.content = Cases(case for case in every if case.subtask in needed)
            if self.empty and not data.content:
                place = next((file for file in data.files.values() if isinstance(file, Path)), root)
                names = ", ".join(data.parts)
                raise CompoclipError(f"{place}: {self.empty.replace('PARTS', names)}")
        rules = {**(self.rules(data) if callable(self.rules) else self.rules), **data.aggregates}
        if not single:
            rules, data.headline = aggregates(rules, data.parts, data.headline)
        data.aggregates = rules
        data.data_hash = files.data_hash(data.files, data.stated)
        data.files, data.opened = {}, None  # may hold whole files
        data.left_out = Counter({reason: n for reason, n in data.left_out.items() if n or single})
        return data


# --- Choosing sub-tasks of a benchmark, and the aggregates that remain defined for the choice. ---


def select(benchmark: str, subtasks: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the `subtasks` that match any of `patterns` (shell style), in their order.

    No patterns select all. Raises UsageError for a pattern that matches nothing.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in subtasks):
            raise UsageError(f"{benchmark}: no sub-task {pattern!r}; {closest(pattern, subtasks)}")
    return tuple(
        name for name in subtasks if not patterns or any(fnmatchcase(name, p) for p in patterns)
    )


def aggregates(
    rules: Rules, parts: Sequence[str], headline: str
) -> tuple[dict[str, Aggregate], str]:
    """Return the rules whose sub-tasks all are `parts`, plus "micro" and "macro", and the headline.

    The headline falls back to "micro" when its rule is no longer defined.
    """
    defined = {"micro": Aggregate(tuple(parts), "micro"), "macro": Aggregate(tuple(parts))}
    defined |= {name: rule for name, rule in rules.items() if rule.subtasks() <= set(parts)}
    return defined, headline if headline in defined else "micro"
