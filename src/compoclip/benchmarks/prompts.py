"""Class names and prompt templates for zero-shot classification, read from the user's files.

Class names (`read_names`): a JSON list in label order, a JSON object of such lists by data set (the
layout of CLIP_benchmark's class-name file), a text file with one name a line, or `prompts.md` of
the CLIP repository, Markdown with a section "## DataSet" that holds the Python lists `classes` and
`templates`. Index (`read_index`): a JSON object directory -> class name. A name may be a list of
aliases: the first counts. Templates (`read_templates`): a JSON list, a JSON object of lists by data
set, a text file with one template a line, or `prompts.md`; each has the placeholder `{}` or `{c}`
exactly once.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files
from compoclip.benchmarks.files import close
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
    return tuple(aliases[0] for aliases in read_aliases(path, dataset))


def read_aliases(path: Path, dataset: str) -> tuple[tuple[str, ...], ...]:
    """Class names of `dataset`, each with its aliases. Raises as `read_names`."""
    rows, where = _prompt_rows(path, dataset, "classes")
    return tuple(_aliases(value, f"{where}: class {k}") for k, value in enumerate(rows))


def read_index(path: Path) -> dict[str, str]:
    """Class name by directory, in file order. Raises CompoclipError for malformed files."""
    value = files.record(files.read_json(path), str(path))
    if not value:
        raise CompoclipError(f"{path}: names no class")
    return {key: _aliases(name, f"{path}: class {key!r:.80}")[0] for key, name in value.items()}


def read_templates(path: Path, dataset: str) -> tuple[str, ...]:
    """Templates for `dataset`. Raises CompoclipError for malformed files or placeholders."""
    rows, where = _prompt_rows(path, dataset, "templates")
    if not rows:
        raise CompoclipError(f"{where}: no templates")
    templates = tuple(files.nonempty(row, f"{where}: template {k}") for k, row in enumerate(rows))
    for template in templates:
        if template.count("{}") + template.count("{c}") != 1:
            raise CompoclipError(
                f"{where}: template {template!r:.80} needs the placeholder {{}} or {{c}} "
                "exactly once"
            )
    return templates


def _prompt_rows(path: Path, dataset: str, what: str) -> tuple[Sequence[Any], str]:
    """The list of classes or templates of a data set, and how messages call it."""
    match path.suffix.lower():
        case ".json":
            return _of_dataset(files.read_json(path), path, dataset)
        case ".md":
            return _of_section(files.read_text(path), path, dataset, what)
        case _:
            lines = [line.strip() for line in files.read_text(path).rstrip().split("\n")]
            return [line for line in lines if line or what == "classes"], str(path)


def _of_dataset(value: Any, path: Path, dataset: str) -> tuple[Sequence[Any], str]:
    if not isinstance(value, dict):
        return files.items(value, str(path)), str(path)
    if dataset not in value:
        raise CompoclipError(f"{path}: nothing for data set {dataset!r}; {close(dataset, value)}")
    where = f"{path}: data set {dataset!r}"
    return files.items(value[dataset], where), where


def _of_section(text: str, path: Path, section: str, what: str) -> tuple[Sequence[Any], str]:
    _, *parts = re.split(r"^## +(\S[^\n]*)\n", text, flags=re.MULTILINE)
    found = {title.rstrip(): body for title, body in zip(parts[::2], parts[1::2])}
    if section not in found:
        raise CompoclipError(f"{path}: no section {section!r}; {close(section, found)}")
    where = f"{path}: section {section!r}"
    block = re.search(r"^```.*?\n(.*?)^```", found[section], re.MULTILINE | re.DOTALL)
    try:
        with warnings.catch_warnings(action="ignore"):  # of "\d" in somebody else's file
            tree = ast.parse(block[1] if block else "")
        for node in tree.body:
            if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [what]:
                value = ast.literal_eval(node.value)
                if isinstance(value, list):
                    return value, where
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CompoclipError(f"{where}: {what} are no Python list; fetch the file again") from error
    raise CompoclipError(f"{where}: no list {what!r}; fetch the file again")


def _aliases(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, list):
        if not value:
            raise CompoclipError(f"{where}: empty list of aliases")
        return tuple(files.nonempty(each, where) for each in value)
    return (files.nonempty(value, where),)
