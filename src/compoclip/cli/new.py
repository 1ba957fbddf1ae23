"""`compoclip new KIND NAME`: copy a working example under a new name, and its test."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from compoclip import own
from compoclip.cli.options import Outcome, Printing
from compoclip.config import Shown
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import write_text, writing

_PACKAGE = Path(__file__).parents[1]
_GROUPS: Mapping[str, own.Kind] = {"loss": "losses", "model": "models"}
_CUSTOM = Path("examples", "custom")  # inside the package of a wheel, at the root of a checkout
_USES = {
    "method": "compoclip train {} --data DATA --out RUN",
    "rewrite": "compoclip train negclip --texts +{} --data DATA --out RUN",
    "loss": "compoclip train negclip --terms +{} --data DATA --out RUN",
    "benchmark": "compoclip evaluate MODEL --on {}",
    "model": "compoclip evaluate {} --on BENCHMARK",
}
"""Kind -> the command that takes the file."""


@dataclass(frozen=True)
class NewOptions(Printing):
    """Write a working template and a test of it that passes.

    Examples:
        compoclip new method my-method
        compoclip new rewrite opposites --out ideas
        pytest ideas/test_opposites.py

    Args:
        kind: Kind of template.
        name: The name: letters, digits, - and _. The files are NAME.py and test_NAME.py, with _
            for -.
        out: Folder for the files; created if missing.
    """

    kind: Annotated[
        Literal["method", "rewrite", "loss", "benchmark", "model"],
        Shown("method|rewrite|loss|benchmark|model", positional=True),
    ]
    name: Annotated[str, Shown("NAME", positional=True)]
    out: Path = Path()


def main(options: NewOptions) -> Outcome:
    """Copy both files. Return the exit code."""
    plain = options.name.lower().replace("-", "_")
    if not plain.isidentifier() or keyword.iskeyword(plain) or not plain.isascii():
        raise UsageError(
            f"{options.name!r:.80}: a name has letters, digits, - and _, and begins with a letter"
        )
    if plain in {each.replace("-", "_") for each in _taken(options.kind)}:
        raise UsageError(f"{options.name}: there is a {options.kind} of that name; choose another")
    paths = (options.out / f"{plain}.py", options.out / f"test_{plain}.py")
    for path in paths:
        if path.exists():
            raise CompoclipError(f"{path}: exists; choose another name or --out")
    folder = next(f for f in (_PACKAGE / _CUSTOM, _PACKAGE.parents[1] / _CUSTOM) if f.is_dir())
    words = {
        f"my_{options.kind}": plain,
        f"my-{options.kind}": plain.replace("_", "-"),
        f"My{options.kind.capitalize()}": plain.title().replace("_", ""),
    }
    with writing(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
    for path, start in zip(paths, ("", "test_")):
        text = (folder / f"{start}my_{options.kind}.py").read_text(encoding="utf-8")
        for mark, word in words.items():
            text = text.replace(mark, word)
        write_text(path, text)
    use = _USES[options.kind].format(paths[0] if paths[0].parent != Path() else f"./{paths[0]}")
    record = {"file": str(paths[0]), "test": str(paths[1]), "use": use}
    return record, f"{paths[0]}\n{paths[1]}    (pytest {paths[1]})\nnext: {use}"


def _taken(kind: str) -> Sequence[str]:
    """Return the names of that kind that exist already."""
    from compoclip.benchmarks.registry import benchmark_names
    from compoclip.methods.registry import method_names
    from compoclip.rewrites.base import rewrite_names

    names = {"method": method_names, "rewrite": rewrite_names, "benchmark": benchmark_names}
    return names[kind]() if kind in names else tuple(own.installed(_GROUPS[kind]))
