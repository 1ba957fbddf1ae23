"""Look whether what the options of a command name is there, before torch is loaded: that takes
seconds, and a mistyped name is to be said at once.

The annotation of an option says what it names (`config.Names`). The checks are those that opening
makes later, called early; nothing is read here that is not small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from compoclip.config import Names, Option, options_of
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import require_new_folder, require_writable
from compoclip.plugins import is_file, require_file
from compoclip.typed import marks_of


def check_options(options: Any) -> None:
    """Raise UsageError or CompoclipError for the first option that names what is not there.

    options: A dataclass whose annotations hold `Names`; fields that are dataclasses count as well.
    """
    _check(
        (option, getattr(part, option.name, None), part)
        for part in _parts(options)
        for option in options_of(type(part)).values()
    )


def check_values(values: Iterable[tuple[Option, object]], options: Any) -> None:
    """Check the values of options as `check_options` does. options: those of the command."""
    _check((option, value, options) for option, value in values)


def _parts(options: Any) -> Iterator[Any]:
    yield options
    for value in (getattr(options, field.name) for field in fields(options)):
        if is_dataclass(value):
            yield from _parts(value)


def _check(rows: Iterable[tuple[Option, object, Any]]) -> None:
    """Check values, the quick checks first. rows: an option, its value, the options around it."""
    named = [(n.kind, *row) for row in rows for n in marks_of(row[0].kind, Names)]
    for kind, option, value, options in sorted(named, key=lambda row: [*CHECKS].index(row[0])):
        for one in value if isinstance(value, tuple) else (value,):
            if one not in (None, ""):
                CHECKS[kind](one, options, option)


def _remedy(option: Option) -> str:
    return "check the path" if option.usage.positional else f"correct {option.flag}"


def _file(path: Path | str, _: Any, option: Option) -> None:
    problem = "is a folder, not a file" if Path(path).is_dir() else "no such file"
    require(Path(path).is_file(), path, f"{problem}; {_remedy(option)}")


def _folder(path: Path, _: Any, option: Option) -> None:
    problem = "is a file, not a folder" if path.is_file() else "no such folder"
    require(path.is_dir(), path, f"{problem}; {_remedy(option)}", UsageError)


def _model_folder(path: Path, options: Any, option: Option) -> None:
    """Check the folder of a model, which may be written as local-dir:FOLDER."""
    from compoclip.models.names import LOCAL, require_folder

    folder = Path(str(path).removeprefix(LOCAL))
    _folder(folder, options, option)
    require_folder(folder)


def _place(path: Path, _: Any, option: Option) -> None:
    require(path.exists(), path, f"no such file or folder; {_remedy(option)}")


def _results(path: Path, options: Any, option: Option) -> None:
    from compoclip.evaluation.written import require_results

    _place(path, options, option)
    require_results(path)


def _block_results(path: Path, options: Any, option: Option) -> None:
    """Check the results of one block of a published table, or results alone."""
    _, equals, place = str(path).partition("=")
    _results(Path(place) if equals and not path.exists() else path, options, option)


def _run(folder: Path, options: Any, option: Option) -> None:
    from compoclip.evaluation.written import model_of

    _folder(folder, options, option)
    model_of(folder)


def _bundle(path: Path, options: Any, option: Option) -> None:
    from compoclip.evaluation.written import require_bundle

    _place(path, options, option)
    require_bundle(path)


def _output_folder(folder: Path, _: Any, option: Option) -> None:
    if folder.is_file():
        flag = "" if option.usage.positional else f" with {option.flag}"
        raise UsageError(f"{folder}: is a file; name a folder{flag}")
    require_writable(folder)


def _new_folder(folder: Path, _: Any, __: Option) -> None:
    require_new_folder(folder)
    require_writable(folder.parent)


def _output_file(path: Path, _: Any, __: Option) -> None:
    require(not path.is_dir(), path, "is a folder; name a file to write", UsageError)
    require_writable(path.parent)


def _output_index(path: Path, options: Any, _: Option) -> None:
    from compoclip.search.index import require_out

    require_out(path, options.to, options.vectors)
    require_writable(path.parent)


def _data(spec: str, options: Any, _: Option) -> None:
    from compoclip.data.places import require_there

    require_there(spec, options.images)


def _benchmark(target: str, options: Any, _: Option) -> None:
    from compoclip.benchmarks.names import require_name
    from compoclip.benchmarks.targets import parse_targets

    require_name(target)
    root, images = (getattr(options, name, None) for name in ("data", "images"))
    if not isinstance(root, Path):  # of training and tuning, where `data` is what is trained on
        root, images = (getattr(options, f"eval_{name}", None) for name in ("data", "images"))
    for parsed in parse_targets((target,), root or Path("data"), images):
        parsed.check()


def _model(spec: str, options: Any, option: Option) -> None:
    from compoclip.models.config import read_config
    from compoclip.models.names import require_model

    if getattr(options, "from_scratch", False):
        _place(Path(spec), options, option)
        read_config(Path(spec))
    else:
        require_model(spec)


def _named_model(text: str, _: Any, __: Option, external: bool = False) -> None:
    from compoclip.models.names import BLIND, library_and_id, require_model
    from compoclip.programs.run import named_models

    for spec in named_models((text,)).values():
        require_model(spec, external)
        library, captions = library_and_id(spec)
        if library == BLIND:
            from compoclip.data.places import require_there

            require_there(captions)


def _part(name: str, _: Any, option: Option) -> None:
    """Check a part of another method, or a setting, of --texts, --terms and --set."""
    from compoclip.methods.registry import require_term, require_texts
    from compoclip.methods.settings import part_and_value

    checks = {"texts": require_texts, "terms": require_term}
    try:
        checks.get(option.name, part_and_value)(name)
    except UsageError as error:
        raise UsageError(f"{option.flag} {name}: {error}") from None


def _files(pattern: str, _: Any, option: Option) -> None:
    from compoclip.patterns import ROW_FILES, find_files

    if not Path(pattern).exists() and not any(map(Path.exists, find_files(pattern, ROW_FILES))):
        raise CompoclipError(f"{pattern}: no such file; {_remedy(option)}")


def _records(pattern: str, options: Any, option: Option, word: str = "") -> None:
    """Check files that a recipe reads, and the first of their rows.

    word: what may stand in their place.
    """
    from compoclip.records import read_records

    if pattern != word:
        _files(pattern, options, option)
        next(read_records(pattern), None)


def _decoder(name: str, _: Any, __: Option) -> None:
    """Check a Python file, or the folder or id of a model of transformers."""
    from compoclip.models.names import require_folder_or_id

    if is_file(name):
        require_file(name)
    else:
        require_folder_or_id(name)


def _language_model(name: str, options: Any, _: Option) -> None:
    """Check a folder or id of a model that answers in this process; a server knows its own."""
    from compoclip.language.engine import PHOTOS
    from compoclip.models.names import require_folder_or_id, require_model

    if options.task == PHOTOS:
        require_model(name, external=True)
    else:
        require_folder_or_id("" if options.server else name)


def _by(function: str) -> Callable[[Any, Any, Option], None]:
    """Check the value alone by a function, module:name, whose module is imported when needed."""
    return lambda value, _, __: resolve_name(function)(value)


CHECKS: Mapping[str, Callable[[Any, Any, Option], None]] = {
    "file": _file,
    "folder": _folder,
    "model folder": _model_folder,
    "file or folder": _place,
    "output folder": _output_folder,
    "new folder": _new_folder,
    "output file": _output_file,
    "device": _by("compoclip.ranks:require_device"),
    "model": _model,
    "method": _by("compoclip.methods.registry:require_method"),
    "part of a method": _part,
    "files": _files,
    "records": _records,
    "records or captions": partial(_records, word="captions"),
    "decoder": _decoder,
    "score": _by("compoclip.evaluation.scores:require_score"),
    "published table": _by("compoclip.evaluation.published.read:published_table"),
    "repository of the hub": _by("compoclip.models.names:require_pushable"),
    "language model": _language_model,
    "NAME=MODEL": _named_model,
    "NAME=MODEL of any kind": partial(_named_model, external=True),
    "run": _run,
    "results": _results,
    "BLOCK=results": _block_results,
    "bundle": _bundle,
    "index": _by("compoclip.search.index:require_index"),
    "output index": _output_index,
    "data": _data,
    "official benchmark": _by("compoclip.benchmarks.names:require_name"),
    "benchmark": _benchmark,
}
"""Kind of thing that an option names -> its check, given the value, all options, the option.

The quick ones come first, and are made first.
"""
