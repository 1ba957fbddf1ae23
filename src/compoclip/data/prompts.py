"""Class names and prompt templates, published ones and the user's, for zero-shot classification and
captions made of labels. The origin of `zero_shot.json` is in `benchmarks/data/README.md`.

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
import json
import os
import re
import runpy
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compoclip.errors import CompoclipError, UsageError, abridged, closest, require
from compoclip.files import first_of, read_json, read_json_object, read_text
from compoclip.typed import at_home, require_kind

DEFAULT_TEMPLATES = ("a photo of a {}.",)
CLASS_NAMES = "classnames.txt"
_LISTS = ("labels.txt", "labelmap.txt", CLASS_NAMES)
NUMBERS = re.compile("[0-9]{1,6}(,[0-9]{1,6})*")
"""Numbers of one or several classes."""
_FIX = "fix the file, or fetch it again"
_PLACEHOLDER = "needs the placeholder {} or {c} exactly once"


def fill(templates: Iterable[str], name: str) -> tuple[str, ...]:
    """Return the prompts of a class. Other braces in templates and names stay as they are."""
    parts = (template.partition("{c}" if "{c}" in template else "{}") for template in templates)
    return tuple(before + name + after for before, _, after in parts)


def read_names(path: Path, dataset: str, section: str = "") -> tuple[str, ...]:
    """Return the class names of `dataset` in file order; section: its heading in Markdown."""
    rows, location = _prompt_rows(path, dataset, section, "classes")
    return tuple(_name(value, f"{location}: class {k}") for k, value in enumerate(rows))


def list_of_names(folder: Path) -> Path | None:
    """Return the file of a folder that names classes called by numbers, in their order, if any."""
    return first_of(folder, _LISTS)


def listed_names(folder: Path) -> tuple[str, ...]:
    """Return the names in the folder's list; a blank line in between is a number without a name."""
    path = list_of_names(folder)
    return () if path is None else tuple(_prompt_rows(path, "", "", "classes")[0])


def read_index(path: Path) -> dict[str, str]:
    """Return the class name by directory, in file order."""
    value = read_json_object(path, damaged=_FIX)
    require(value, path, "names no class")
    return {key: _name(name, f"{path}: class {key!r:.80}") for key, name in value.items()}


def names_by_index(path: Path, classes: Collection[str], folder: Path) -> dict[str, str]:
    """Return the names that an index gives to classes, `read_index`; a class that it does not name
    keeps its own. Raises CompoclipError for a name of a class that is not in the folder."""
    named = read_index(path)
    odd = next((key for key in named if key not in classes and not (folder / key).is_dir()), "")
    if odd:
        raise CompoclipError(
            f"{path}: class directory {odd!r:.80} is not in {folder}; make it (empty for a class "
            "without photos) or drop the entry"
        )
    return {name: named[name] for name in classes if name in named}


def read_templates(path: Path, dataset: str, section: str = "") -> tuple[str, ...]:
    """Return the templates for `dataset`, each with one placeholder, see `read_names`."""
    rows, location = _prompt_rows(path, dataset, section, "templates")
    require(rows, location, "no templates")
    for number, template in enumerate(rows):
        require_kind(f"{location}: template {number}", template, str, _FIX)
        require(_places(template) == 1, location, f"template {template!r:.80} {_PLACEHOLDER}")
    return tuple(rows)


def templates_of(value: str | Path, dataset: str = "", section: str = "") -> tuple[str, ...]:
    """Return the templates that an option names: a template, a file of them, or a published set.

    dataset, section: as for `read_names`. Raises UsageError for none of the three.
    """
    value = str(value)
    path, sets = at_home(value), (*shipped_sets(), IMAGENET)
    if os.path.isfile(path):
        return read_templates(Path(path), dataset, section)
    if value in sets:
        return published(value).templates
    if _places(value) != 1:
        raise UsageError(
            f"templates {value!r:.80}: {_PLACEHOLDER}, or name a file of templates, or a set; "
            f"{closest(value, sets)}"
        )
    return (value,)


def _places(template: str) -> int:
    return template.count("{}") + template.count("{c}")


# --- Published names and templates. ---
#
# They are OpenAI's (Radford et al., ICML 2021). ImageNet's are in open_clip (MIT), and the ids of
# the classes of ImageNet-1K, -A and -R in timm (Apache-2.0). Both are read without importing the
# libraries, which would load torch.

_UPDATE = "install the libraries that compoclip asks for"


@cache
def imagenet_prompts(name: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return (WordNet ids, class names, templates) of imagenet-1k or a shift, in label order."""
    every = _synsets("imagenet")
    synsets = _synsets(name.replace("-", "_")) if name in ("imagenet-a", "imagenet-r") else every
    stated = runpy.run_path(str(library_folder("open_clip") / "zero_shot_metadata.py"))
    name_of = dict(zip(every, stated["IMAGENET_CLASSNAMES"], strict=True))
    templates = tuple(template("{}") for template in stated["OPENAI_IMAGENET_TEMPLATES"])
    return synsets, tuple(name_of[synset] for synset in synsets), templates


def _synsets(name: str) -> tuple[str, ...]:
    path = library_folder("timm") / "data" / "_info" / f"{name}_synsets.txt"
    return tuple(read_text(path, absent=_UPDATE).split())


def library_folder(library: str) -> Path:
    """Return the folder of an installed library, without importing it."""
    spec = find_spec(library)
    assert spec is not None
    assert spec.submodule_search_locations  # compoclip requires the library
    return Path(spec.submodule_search_locations[0])


@dataclass(frozen=True)
class PublishedPrompts:
    """Class names and templates behind the published scores of a set, () for an unknown set.

    classes: in label order, each a name and then its other names (directories, WordNet ids).
    toolkit: the class of each label in the index files of the ELEVATER toolkit, where these are
    numbered otherwise.
    """

    classes: tuple[tuple[str, ...], ...] = ()
    templates: tuple[str, ...] = ()
    toolkit: tuple[int, ...] = ()


IMAGENET = "imagenet-1k"


@cache
def shipped_sets() -> dict[str, Any]:
    """Return classes and templates of ELEVATER's sets as the file has them, by set."""
    text = Path(__file__).with_name("zero_shot.json").read_text(encoding="utf-8")
    sets: dict[str, Any] = json.loads(text)["sets"]
    return sets


def published(name: str) -> PublishedPrompts:
    """Return what is known of a set: ImageNet's (or a shift's), ELEVATER's, nothing of others."""
    if name.startswith("imagenet-"):
        synsets, names, templates = imagenet_prompts(name)
        return PublishedPrompts(tuple(zip(names, synsets)), templates)
    if name not in shipped_sets():
        return PublishedPrompts()
    entry = shipped_sets()[name]
    classes = tuple((name,) if isinstance(name, str) else tuple(name) for name in entry["classes"])
    return PublishedPrompts(classes, tuple(entry["templates"]))


def class_places(classes: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """Return class by any of its names, as compared; the first of two classes with one name."""
    named = [(plain_name(alias), k) for k, aliases in enumerate(classes) for alias in aliases]
    return dict(reversed(named))


def plain_name(name: str) -> str:
    """Return a name as names are compared: without case and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


# --- Names that are no words of a caption: ids, numbered names, words written as one. ---

_WORDNET_ID = re.compile("n[0-9]{8}")
_ID_BEFORE = re.compile(r"n[0-9]{8}[-_. ]+(?=\w)")  # n02085620-Chihuahua
_NUMBER_BEFORE = re.compile(r"[0-9]+[-_. ]+(?=[^\W\d_])")  # 001.Black_footed_Albatross
_WORD_END = re.compile(r"(?<=[a-z])(?=[A-Z])")  # AnnualCrop
_CODE = re.compile(r"[^\W\d_][0-9]|[0-9][^\W\d_]")  # class1
_SHOWN = 3


def spoken_names(names: Sequence[str], location: object) -> tuple[str, ...]:
    """Return what captions call classes: "001.Snow_goose" is "snow goose".

    Ids of WordNet's nouns, as ImageNet's folders have, are called by WordNet's names. A number or
    an id is left out where every name begins with one.
    """
    if all(map(_WORDNET_ID.fullmatch, names)):
        return _wordnet_names(names, location)
    for before in (_ID_BEFORE, _NUMBER_BEFORE):
        if all(map(before.match, names)):
            return tuple(_words(before.sub("", name, count=1)).lower() for name in names)
    return tuple(map(_words, names))


def spoken_among(names: Sequence[str], classes: Sequence[str], location: object) -> dict[str, str]:
    """Return `spoken_names` of some of the classes: a number is cut where every class has one."""
    among = {*names} <= {*classes} and not all(map(_WORDNET_ID.fullmatch, names))
    every = classes if among else names
    spoken = dict(zip(every, spoken_names(every, location)))
    return {name: spoken[name] for name in names}


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
    return f"class names that are no words of a caption: {abridged(examples, _SHOWN)}"


def numbered(names: Sequence[str], total: int) -> list[int]:
    """Return the places of `total` classes that names stand for which are numbers, else [].

    They count from 0, or from 1 when they end at the number of classes.
    """
    if not are_numbers(names):
        return []
    numbers = [int(name) for name in names]
    if total in numbers and 0 not in numbers:
        numbers = [number - 1 for number in numbers]
    return numbers if len({*numbers}) == len(numbers) and max(numbers) < total else []


def are_numbers(names: Sequence[str]) -> bool:
    """Return whether all names are numbers, which no caption calls a class."""
    return all(name.isascii() and name.isdigit() and len(name) < 10 for name in names)


def _wordnet_names(ids: Sequence[str], location: object) -> tuple[str, ...]:
    """Return the names of WordNet ids: OpenAI's of ImageNet-1K, else the first noun of WordNet."""
    synsets, names, _ = imagenet_prompts(IMAGENET)
    path = library_folder("timm") / "data" / "_info" / "imagenet_synset_to_lemma.txt"
    lines = (line.partition("\t") for line in read_text(path, absent=_UPDATE).split("\n"))
    name_of = {key: nouns.partition(",")[0] for key, _, nouns in lines} | dict(zip(synsets, names))
    odd = next((synset for synset in ids if synset not in name_of), None)
    if odd is not None:
        raise CompoclipError(
            f"{location}: class {odd!r} is no WordNet id of ImageNet; name the classes in an "
            "index.json there"
        )
    return tuple(name_of[synset] for synset in ids)


def _prompt_rows(path: Path, dataset: str, section: str, kind: str) -> tuple[Sequence[Any], str]:
    """Return the list of classes or templates of a data set, and how messages call it."""
    match path.suffix.lower():
        case ".json":
            value, location = read_json(path, damaged=_FIX), str(path)
            if isinstance(value, dict):
                if dataset not in value:
                    raise CompoclipError(
                        f"{path}: nothing for data set {dataset!r}; {closest(dataset, value)}"
                    )
                value, location = value[dataset], f"{path}: data set {dataset!r}"
            return require_kind(location, value, list, _FIX), location
        case ".md":
            _, *parts = re.split(
                r"^## +(\S[^\n]*)\n", read_text(path, damaged=_FIX), flags=re.MULTILINE
            )
            sections = {title.rstrip(): body for title, body in zip(parts[::2], parts[1::2])}
            section = section or dataset
            require(
                section in sections, path, f"no section {section!r}; {closest(section, sections)}"
            )
            location = f"{path}: section {section!r}"
            return _python_list(sections[section], kind, location), location
        case _:
            lines = [line.strip() for line in read_text(path, damaged=_FIX).rstrip().split("\n")]
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
    name: str = require_kind(location, listed[0], str, _FIX)
    if not name.strip():
        raise CompoclipError(f"{location} is empty; {_FIX}")
    return name
