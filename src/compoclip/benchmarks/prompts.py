"""Class names and prompt templates for zero-shot classification, read from the user's files.

Class names (`read_names`), a JSON list in the order of the sorted class directories, or a JSON
object of such lists by data set (the layout of CLIP_benchmark's class-name file). Index
(`read_index`), a JSON object directory -> class name. A name may be a list of aliases: the first
counts. Templates (`read_templates`), a JSON list, a JSON object of lists by data set, or a text
file with one template a line; each has the placeholder `{}` or `{c}` exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files
from compoclip.benchmarks.parts import close
from compoclip.errors import CompoclipError

DEFAULT_TEMPLATES = ("a photo of a {}.",)


def fill(templates: Iterable[str], name: str) -> tuple[str, ...]:
    """The prompts of a class. Other braces in templates and names stay as they are."""
    return tuple(_split(template)[0] + name + _split(template)[1] for template in templates)


def _split(template: str) -> tuple[str, str]:
    before, _, after = template.partition("{c}" if "{c}" in template else "{}")
    return before, after


def read_names(path: Path, dataset: str) -> tuple[str, ...]:
    """Class names of `dataset` in file order. Raises CompoclipError for malformed files."""
    rows, where = _of_dataset(files.read_json(path), path, dataset)
    return tuple(_name(value, f"{where}: class {k}") for k, value in enumerate(rows))


def read_index(path: Path) -> dict[str, str]:
    """Class name by directory, in file order. Raises CompoclipError for malformed files."""
    value = files.record(files.read_json(path), str(path))
    if not value:
        raise CompoclipError(f"{path}: names no class")
    return {key: _name(name, f"{path}: class {key!r}") for key, name in value.items()}


def read_templates(path: Path, dataset: str) -> tuple[str, ...]:
    """Templates for `dataset`. Raises CompoclipError for malformed files or placeholders."""
    if path.suffix.lower() == ".json":
        rows, where = _of_dataset(files.read_json(path), path, dataset)
    else:
        rows = [line for line in files.read_text(path).splitlines() if line.strip()]
        where = str(path)
    if not rows:
        raise CompoclipError(f"{where}: no templates")
    templates = tuple(files.nonempty(row, f"{where}: template {k}") for k, row in enumerate(rows))
    for template in templates:
        if template.count("{}") + template.count("{c}") != 1:
            raise CompoclipError(
                f"{where}: template {template!r} needs the placeholder {{}} or {{c}} exactly once"
            )
    return templates


def _of_dataset(value: Any, path: Path, dataset: str) -> tuple[Sequence[Any], str]:
    if not isinstance(value, dict):
        return files.items(value, str(path)), str(path)
    if dataset not in value:
        raise CompoclipError(f"{path}: nothing for data set {dataset!r}; {close(dataset, value)}")
    where = f"{path}: data set {dataset!r}"
    return files.items(value[dataset], where), where


def _name(value: Any, where: str) -> str:
    if isinstance(value, list):
        if not value:
            raise CompoclipError(f"{where}: empty list of aliases")
        value = value[0]
    return files.nonempty(value, where)
