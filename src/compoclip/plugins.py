"""Code from outside the package: a local file, named by its path, or another package's.

Methods, rewrites, losses and benchmarks are found by name. A name that ends in .py is a file,
`./my_rewrite.py`, or `./my_rewrite.py:NAME` where it defines several. Other packages add names
through the entry-point groups `compoclip.methods`, `.rewrites`, `.losses`, `.benchmarks`, `.models`
(an embedder or scorer, or what makes one), `.verbs` (what the verb does, "module:function"),
`.checkpoints` (the folder of `bundled`), `.examples` (for the playground, a function: size in
pixels -> captions with PNG files) and `.scales` (for `reproduce --scale`, a function: folder for
its data -> `experiments.Scale`).

A file becomes a module below this one. Its name holds the path, so that a worker process, which
knows the name alone, can import it, too.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import reading
from compoclip.typed import at_home

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
Kind = Literal[
    "methods",
    "rewrites",
    "losses",
    "benchmarks",
    "models",
    "verbs",
    "checkpoints",
    "examples",
    "scales",
]

PACKAGE = "compoclip"
"""The origin of the package's own methods, rewrites, losses and benchmarks, in lists."""

_SUFFIX = ".py"
_PARSER = "argparse"  # of options
_DIGEST = "__digest__"  # of the source that a module was made from
_NOWHERE = ModuleType("")  # of what was typed into a notebook
__path__: list[str] = []  # makes this module one that others can stand below


# --- Files. ---


def is_file(name: str) -> bool:
    """Return whether a name is a Python file, FILE.py or FILE.py:NAME."""
    return name.partition(":")[0].endswith(_SUFFIX)


def split(name: str) -> tuple[Path, str]:
    """Return the file of FILE.py:NAME, and the NAME in it; "" for FILE.py."""
    file, _, part = name.partition(":")
    return Path(at_home(file)), part


def require_file(name: str) -> None:
    """Raise CompoclipError unless the file of FILE.py or FILE.py:NAME is there; it is not read."""
    file = split(name)[0]
    require(file.is_file(), file, "no such file; check the path")


def parts_of(name: str) -> dict[str, Any]:
    """Return what a file defines or imports, by name; it is run when needed.

    Raises CompoclipError when the file cannot be read or run.
    """
    return vars(_module(split(name)[0]))


def refresh(name: str) -> None:
    """Run a file again if it has changed since it was run; other names stay as they are.

    Called where the user names it; later, two versions of the file could mix.
    """
    if is_file(name):
        _module(split(name)[0], again=True)


def chosen(name: str, defined: Mapping[str, T], label: str, none: str) -> T:
    """Pick one of the things that a file defines.

    The one that is named, or the only one; else raise UsageError. label: what they are, in the
    plural. none: what a file that defines none should have defined.
    """
    path, key = split(name)
    if not key and len(defined) == 1:
        key = next(iter(defined))
    if key not in defined:
        names = ", ".join(f"{path}:{other}" for other in defined) or f"none, {none}"
        raise UsageError(f"{path}: name one of its {label}; it has: {names}")
    return defined[key]


def _module(path: Path, again: bool = False) -> ModuleType:
    """Import a file, or return its module; again: import it anew if the file has changed."""
    name = f"{__name__}.{path.stem.replace('.', '_')}_{os.fsencode(path.absolute()).hex()}"
    with reading(path):
        source = path.read_bytes() if again or name not in sys.modules else b""
    if source and getattr(sys.modules.get(name), _DIGEST, "") != _digest(source):
        sys.modules.pop(name, None)
    with fence(str(path)):
        return importlib.import_module(name)


def _digest(source: bytes) -> str:
    return hashlib.blake2b(source, digest_size=8).hexdigest()


class _Loader(SourceFileLoader):
    """Compiles the source each time: the cache of bytecode misses changes within a second."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file as it is now, and note its digest."""
        source = self.get_data(self.path)
        setattr(sys.modules[fullname], _DIGEST, _digest(source))
        code: CodeType = self.source_to_code(source, self.path)
        return code


def _find_spec(name: str, path: object, target: object = None) -> ModuleSpec | None:
    """Find the modules that stand below this one by the path in their names."""
    if not name.startswith(f"{__name__}."):
        return None
    file = os.fsdecode(bytes.fromhex(name.rpartition("_")[2]))
    return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, file))


sys.meta_path.append(SimpleNamespace(find_spec=_find_spec))


# --- What foreign code raises. ---


@contextmanager
def fence(place: str = "", remedy: str = "fix the file") -> Iterator[None]:
    """Turn whatever foreign code raises in the block into a CompoclipError that names it.

    `sys.exit`, too: else it would end the command with success. Interruptions pass, and errors of
    the package itself. place: the foreign code, by default the innermost foreign file of the
    traceback.
    """
    try:
        yield
    except (CompoclipError, KeyboardInterrupt, BrokenPipeError):
        raise
    except BaseException as error:
        place = place or _foreign_place(error)
        if not place:
            raise
        try:
            text = str(error)
        except BaseException:  # foreign code, too
            text = ""
        raise CompoclipError(
            f"{place}: {type(error).__name__}{': ' if text else ''}{text}; {remedy}"
        ) from error


def _foreign_place(error: BaseException) -> str:
    """The innermost foreign file that an error passed through, with the line; "" for none."""
    place = last = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__"))
        last = f"{frame.f_code.co_filename}, line {line}"
        if name.startswith(f"{__name__}.") or _is_plug_in(name.partition(".")[0]):
            place = last
    exits = isinstance(error, SystemExit) and name.partition(".")[0] != _PARSER
    return place or (last if exits else "")


def _is_plug_in(package: str) -> bool:
    """Return whether a package adds methods, rewrites, losses, benchmarks or models."""
    if package == PACKAGE or package in sys.stdlib_module_names:
        return False
    kinds: tuple[Kind, ...] = ("methods", "rewrites", "losses", "benchmarks", "models")
    points = [point for kind in kinds for point in installed(kind).values()]
    return any(point.module.partition(".")[0] == package for point in points)


# --- Other packages. ---


def installed(kind: Kind) -> dict[str, EntryPoint]:
    """Return what other packages add, by name; nothing is imported."""
    points = _entry_points(tuple(sys.path)).select(group=f"{PACKAGE}.{kind}")
    return {point.name: point for point in points}


@functools.cache
def _entry_points(_: tuple[str, ...]) -> Any:
    """Return the entry points of all packages on a path, for which a file of each is read."""
    from importlib.metadata import entry_points  # slow to import

    return entry_points()


def imported(point: EntryPoint, label: str) -> Any:
    """Import what an entry point names.

    label: what it should be ("rewrite"). Raise CompoclipError when it cannot be imported.
    """
    place = f"{label} {point.name!r} of entry point {point.value!r} cannot be imported"
    with fence(place, "update or uninstall that package"):
        return point.load()


def origin(name: str, point: EntryPoint | None) -> str:
    """Return where something comes from: its file, another package with its version, or this one.

    point: of the name, None for what this package has.
    """
    if is_file(name):
        return str(split(name)[0])
    if point is None:
        return PACKAGE
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


# --- What a run was made with: a hash of each source that is not the package's. ---


def sources_of(*things: object) -> dict[str, str]:
    """Return the hash of every file from outside the package that things are made in.

    Local modules that a file imports count as well, installed packages do not. A function typed
    into a notebook is known by its own source, or by its bytecode where there is no source. Of
    `functools.partial` and of objects that hold functions these are looked at. Return absolute path
    -> hash, which `named_sources` shortens.
    """
    digests: dict[str, str] = {}
    for part in (part for thing in things for part in _made_of(thing)):
        module = sys.modules.get(part.__module__ or "", _NOWHERE)
        if module.__name__.partition(".")[0] == PACKAGE and not hasattr(module, _DIGEST):
            continue
        if getattr(module, "__file__", None) and module.__name__ != "__main__":
            _add_module(module, digests)
        elif source := _typed_in(part):
            name = f"{part.__qualname__} (typed in)"
            digest = _digest(source)  # two typed-in functions may have one name
            if digests.setdefault(name, digest) != digest:
                digests[name] = _digest((digests[name] + digest).encode())
    return dict(sorted(digests.items()))


def named_sources(digests: Mapping[str, str]) -> dict[str, str]:
    """Return sources by their paths relative to the folder that all of them are in.

    The same wherever the folder lies.
    """
    files = [name for name in digests if os.path.isabs(name)]
    folder = os.path.commonpath([os.path.dirname(file) for file in files]) if files else ""
    return {
        Path(name).relative_to(folder).as_posix() if os.path.isabs(name) else name: digest
        for name, digest in sorted(digests.items())
    }


def _made_of(thing: object) -> Iterator[Callable[..., Any]]:
    """Yield the functions and classes in a thing."""
    parts: Iterable[object] = ()
    if isinstance(thing, functools.partial):
        parts = (thing.func, *thing.args, *thing.keywords.values())
    elif inspect.isroutine(thing) or inspect.isclass(thing):
        yield inspect.unwrap(thing)
    elif callable(thing):
        yield type(thing)
        parts = getattr(thing, "__dict__", {}).values()
    for part in parts:
        yield from _made_of(part)


def _typed_in(thing: Callable[..., Any]) -> bytes:
    """Return the source of a function that is in no file, or its bytecode; b"" for none."""
    try:
        return inspect.getsource(thing).encode()
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)
        if code is None:
            return b""
        constants = [constant for constant in code.co_consts if not inspect.iscode(constant)]
        names = repr((code.co_names, code.co_varnames, constants))
        return bytes(code.co_code) + names.encode()


def _add_module(module: ModuleType, digests: dict[str, str]) -> None:
    """Add the hashes of a module's file and of the local ones that it imports, by path."""
    path = Path(os.path.abspath(str(module.__file__)))
    if str(path) in digests or not path.is_file():
        return
    source = path.read_bytes()
    digests[str(path)] = getattr(module, _DIGEST, None) or _digest(source)
    for node in ast.walk(ast.parse(source)) if path.suffix == _SUFFIX else ():
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(base, module.__package__ or "")
            names = [f"{base}.{alias.name}" for alias in node.names]
        for parts in (name.split(".") for name in names):
            for length in range(1, len(parts) + 1):
                imported = sys.modules.get(".".join(parts[:length]))
                if imported is not None and _is_local(imported):
                    _add_module(imported, digests)


def _is_local(module: ModuleType) -> bool:
    """Return whether a module is a file that is neither ours nor installed."""
    path = Path(getattr(module, "__file__", None) or _standard_library())
    installed = {"site-packages", "dist-packages"} & {*path.parts}
    standard = path.is_relative_to(_standard_library())
    return not (installed or standard or module.__name__.partition(".")[0] == PACKAGE)


@functools.cache
def _standard_library() -> str:
    """The folder of Python's own modules; the system takes long to name it."""
    return sysconfig.get_path("stdlib")
