"""Look whether what the options of a command name is there, before torch is loaded: that takes
seconds, and a mistyped name is to be said at once.

The annotation of an option says what it names (`config.Names`). The checks are those that opening
makes later, called early; nothing is read here that is not small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compoclip.config import Names, Option, marks_of, options_of
from compoclip.errors import UsageError, require
from compoclip.files import require_writable


def check_options(options: Any) -> None:
    """Raise UsageError or CompoclipError for the first option that names what is not there.

    options: A dataclass whose annotations hold `Names`; fields that are dataclasses count as well.
    """
    for part in (getattr(options, field.name) for field in fields(options)):
        if is_dataclass(part):
            check_options(part)
    for option in options_of(type(options)).values():
        value = getattr(options, option.name, None)
        for names in marks_of(option.kind, Names):
            for one in value if isinstance(value, tuple) else (value,):
                if one not in (None, ""):
                    CHECKS[names.kind](one, options, option)


def _remedy(option: Option) -> str:
    return "check the path" if option.usage.positional else f"correct {option.flag}"


def _file(path: Path, _: Any, option: Option) -> None:
    require(path.is_file(), path, f"no such file; {_remedy(option)}")


def _folder(path: Path, _: Any, option: Option) -> None:
    require(path.is_dir(), path, f"no such folder; {_remedy(option)}", UsageError)


def _model_folder(path: Path, options: Any, option: Option) -> None:
    """Check the folder of a model, which may be written as local-dir:FOLDER."""
    from compoclip.models.names import LOCAL

    _folder(Path(str(path).removeprefix(LOCAL)), options, option)


def _place(path: Path, _: Any, option: Option) -> None:
    require(path.exists(), path, f"no such file or folder; {_remedy(option)}")


def _block_place(path: Path, options: Any, option: Option) -> None:
    """Check the results of one block of a published table, or results alone."""
    _, equals, place = str(path).partition("=")
    _place(Path(place) if equals and not path.exists() else path, options, option)


def _output_folder(folder: Path, _: Any, option: Option) -> None:
    flag = "" if option.usage.positional else f" with {option.flag}"
    problem = f"is a file; name a folder{flag}"
    require(not folder.is_file(), folder, problem, UsageError)
    require_writable(folder)


def _output_file(path: Path, _: Any, __: Option) -> None:
    require(not path.is_dir(), path, "is a folder; name a file to write", UsageError)
    require_writable(path.parent)


def _output_index(path: Path, options: Any, _: Option) -> None:
    from compoclip.search.index import require_out

    require_out(path, options.to)
    require_writable(path.parent)


def _data(spec: str, options: Any, _: Option) -> None:
    from compoclip.data.sources.open import Request, require_there

    require_there(Request(spec, images=options.images))


def _benchmark(target: str, options: Any, _: Option) -> None:
    from compoclip.benchmarks.registry import meta, split_spec
    from compoclip.benchmarks.targets import parse_targets

    root, images = (getattr(options, name, None) for name in ("data", "images"))
    if not isinstance(root, Path):  # of training and tuning, where `data` is what is trained on
        root, images = (getattr(options, f"eval_{name}", None) for name in ("data", "images"))
    for parsed in parse_targets((target,), root or Path("data"), images):
        meta(split_spec(parsed.spec)[0])


def _model(spec: str, options: Any, option: Option) -> None:
    from compoclip.models.names import require_model

    if getattr(options, "from_scratch", False):
        _place(Path(spec), options, option)
    else:
        require_model(spec)


def _named_model(text: str, _: Any, __: Option, external: bool = False) -> None:
    from compoclip.data.sources.open import Request, require_there
    from compoclip.models.names import BLIND, require_model
    from compoclip.run import named_models

    for spec in named_models((text,)).values():
        require_model(spec, external)
        library, _, captions = spec.partition(":")
        if library == BLIND:
            require_there(Request(captions))


def _device(text: str, _: Any, __: Option) -> None:
    from compoclip.ranks import require_device

    require_device(text)


def _index(path: Path, _: Any, __: Option) -> None:
    from compoclip.search.index import require_index

    require_index(path)


CHECKS: Mapping[str, Callable[[Any, Any, Option], None]] = {
    "file": _file,
    "folder": _folder,
    "model folder": _model_folder,
    "file or folder": _place,
    "BLOCK=file or folder": _block_place,
    "output folder": _output_folder,
    "output file": _output_file,
    "output index": _output_index,
    "data": _data,
    "benchmark": _benchmark,
    "model": _model,
    "NAME=MODEL": _named_model,
    "NAME=MODEL of any kind": partial(_named_model, external=True),
    "device": _device,
    "index": _index,
}
"""Kind of thing that an option names -> its check, given the value, all options, the option."""
