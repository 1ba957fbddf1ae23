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
from compoclip.errors import CompoclipError, closest, require

DEFAULT_TEMPLATES = ("a photo of a {}.",)


def fill(templates: Iterable[str], name: str) -> tuple[str, ...]:
    """Return the prompts of a class. Other braces in templates and names stay as they are."""
    parts = (template.partition("{c}" if "{c}" in template else "{}") for template in templates)
    return tuple(before + name + after for before, _, after in parts)


def read_names(path: Path, dataset: str, section: str = "") -> tuple[str, ...]:
    """Return the class names of `dataset` in file order; section: its heading in Markdown."""
    rows, location = _prompt_rows(path, dataset, section, "classes")
    return tuple(_name(value, f"{location}: class {k}") for k, value in enumerate(rows))


def read_index(path: Path) -> dict[str, str]:
    """Return the class name by directory, in file order."""
    value = files.record(files.read_json(path), str(path))
    require(value, path, "names no class")
    return {key: _name(name, f"{path}: class {key!r:.80}") for key, name in value.items()}


def read_templates(path: Path, dataset: str, section: str = "") -> tuple[str, ...]:
    """Return the templates for `dataset`, each with one placeholder, see `read_names`."""
    rows, location = _prompt_rows(path, dataset, section, "templates")
    require(rows, location, "no templates")
    templates = tuple(
        files.nonempty(row, f"{location}: template {k}") for k, row in enumerate(rows)
    )
    for template in templates:
        problem = f"template {template!r:.80} needs the placeholder {{}} or {{c}} exactly once"
        require(template.count("{}") + template.count("{c}") == 1, location, problem)
    return templates


# --- Names that are no words of a caption: ids, numbered names, words written as one. ---

_WORDNET_ID = re.compile("n[0-9]{8}")
_ID_BEFORE = re.compile(r"n[0-9]{8}[-_. ]+(?=\w)")  # n02085620-Chihuahua
_NUMBER_BEFORE = re.compile(r"[0-9]+[-_. ]+(?=[^\W\d_])")  # 001.Black_footed_Albatross
_WORD_END = re.compile(r"(?<=[a-z])(?=[A-Z])")  # AnnualCrop
_CODE = re.compile(r"[^\W\d_][0-9]|[0-9][^\W\d_]")  # class1
_SHOWN = 3


def are_wordnet_ids(names: Sequence[str]) -> bool:
    """Return whether all names are ids of WordNet's nouns, as ImageNet's folders have."""
    return all(map(_WORDNET_ID.fullmatch, names))


def as_caption_words(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of classes as the words of a caption: "001.Snow_goose" -> "snow goose".

    A number or an id is left out where every name begins with one.
    """
    for before in (_ID_BEFORE, _NUMBER_BEFORE):
        if all(map(before.match, names)):
            return tuple(_words(before.sub("", name, count=1)).lower() for name in names)
    return tuple(map(_words, names))


def _words(name: str) -> str:
    if name.isalpha() and _WORD_END.search(name):
        name = _WORD_END.sub(" ", name).lower()
    return name.replace("_", " ")


def say_renamed(names: Sequence[str], words: Sequence[str]) -> str:
    """Return what was made of names that are no words of a caption; "" where all are."""
    examples = [
        f"{name!r:.60} is called {word!r:.60}"
        for name, word in zip(names, words)
        if name.replace("_", " ") != word or _CODE.search(word)
    ]
    if not examples:
        return ""
    more = f" and {len(examples) - _SHOWN} more" if len(examples) > _SHOWN else ""
    return f"class names that are no words of a caption: {', '.join(examples[:_SHOWN])}{more}"


def _prompt_rows(path: Path, dataset: str, section: str, kind: str) -> tuple[Sequence[Any], str]:
    """Return the list of classes or templates of a data set, and how messages call it."""
    match path.suffix.lower():
        case ".json":
            value, location = files.read_json(path), str(path)
            if isinstance(value, dict):
                problem = f"nothing for data set {dataset!r}; {closest(dataset, value)}"
                require(dataset in value, path, problem)
                value, location = value[dataset], f"{path}: data set {dataset!r}"
            return files.items(value, location), location
        case ".md":
            _, *parts = re.split(r"^## +(\S[^\n]*)\n", files.read_text(path), flags=re.MULTILINE)
            sections = {title.rstrip(): body for title, body in zip(parts[::2], parts[1::2])}
            section = section or dataset
            require(
                section in sections, path, f"no section {section!r}; {closest(section, sections)}"
            )
            location = f"{path}: section {section!r}"
            return _python_list(sections[section], kind, location), location
        case _:
            lines = [line.strip() for line in files.read_text(path).rstrip().split("\n")]
            return [line for line in lines if line or kind == "classes"], str(path)


def _python_list(text: str, name: str, location: str) -> list[Any]:
    """Return the Python list that the first code block of Markdown assigns to a name."""
    block = re.search(r"^```.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    try:
        with warnings.catch_warnings(action="ignore"):  # of "\d" in somebody else's file
            tree = ast.parse(block[1] if block else "")
        for node in tree.body:
            if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [name]:
                value = ast.literal_eval(node.value)
                if isinstance(value, list):
                    return value
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CompoclipError(
            f"{location}: {name} is not a Python list; fetch the file again"
        ) from error
    raise CompoclipError(f"{location}: no list {name!r}; fetch the file again")


def _name(value: Any, location: str) -> str:
    listed = value if isinstance(value, list) else [value]
    require(listed, location, "empty list of aliases")
    return next(files.nonempty(alias, location) for alias in listed)
