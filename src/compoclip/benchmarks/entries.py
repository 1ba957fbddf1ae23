"""What an entry of `benchmarks.yaml` states: facts, files, rules, and the functions it names."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from compoclip.benchmarks.case import Aggregate, Meta
from compoclip.benchmarks.reader import Loading
from compoclip.benchmarks.sources import RemoteFile, repository

Entry = Mapping[str, Any]


def hook(name: str) -> Callable[..., Any]:
    """Return the function of this package called "module:function"."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(
        importlib.import_module(f"{__package__}.{module}"), function
    )
    return found


def further_places(entry: Entry) -> dict[str, str]:
    """Return the places of photos beside the main one, which an option each moves."""
    return {name: each for name, each in entry.get("places", {}).items() if name != "images"}


class File(NamedTuple):
    """A file of a benchmark: its place below the folder, keys of its table, names for templates."""

    place: str
    table: Entry
    names: dict[str, str]


def files_of(entry: Entry, part: str, names: Mapping[str, str] | None = None) -> Iterator[File]:
    """Yield the files that hold the items of a sub-task.

    Args:
        entry: Of the benchmark.
        part: The sub-task.
        names: What the user's options add to the names of the entry.
    """
    for pattern, more in entry.get("tables", {"*": {}}).items():
        match = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)"), part)
        if match is None:
            continue
        table = {**entry, **more}
        known = {"part": part, "star": (*match.groups(), "")[0], **entry.get("names", {})}
        listed = table.get("file", {})
        for template, source in (listed if isinstance(listed, dict) else {listed: ""}).items():
            place = template.format_map({**known, **(names or {}), "number": "{number}"})
            file = {"source": source, "file": str(PurePosixPath(place).with_suffix(""))}
            yield File(place, table, {**known, **(names or {}), **file})
        return


class Subtask(NamedTuple):
    """What an entry states of a sub-task."""

    skill: str = ""
    items: int = 0
    size: int = 0
    blake2b: str = ""


def meta_of(name: str, entry: Entry) -> Meta:
    """Return the facts that an entry states.

    Args:
        name: Id of the benchmark.
        entry: Its keys.
    """
    known = {part: Subtask(*row) for part, row in entry.get("parts", {}).items()}
    parts = [part for part in known if part not in entry.get("tuned_on", {}).values()]
    chance = entry.get("chance", {})
    chances = chance if isinstance(chance, dict) else {"": chance}
    texts = ("title", "citation", "source", "licence", "status", "requires", "same_rows_as")
    facts: dict[str, Any] = {key: entry[key] for key in texts if key in entry}
    facts |= {key: tuple(entry.get(key, ())) for key in ("files", "images", "archives")}
    about = Meta(
        id=name,
        access=entry.get("access", "open"),
        parts=tuple(parts),
        skills={part: known[part].skill for part in parts if known[part].skill},
        expected={part: row.items for part, row in known.items() if row.items},
        chance={key: float(Fraction(each)) for key, each in chances.items()},
        **facts,
    )
    if "files" in entry:
        about = replace(about, elsewhere=entry.get("elsewhere", {}))
    else:
        about = _with_files(about, entry, known)
    remote = {each.target: each for each in about.remote}
    for target, source in entry.get("remote", {}).items():
        more = {"url": source} if isinstance(source, str) else dict(source)
        more |= {"keys": tuple(more.get("keys", ()))}
        more |= {"url": more["url"].format(repository=_address(entry))}
        remote[target] = RemoteFile(target, **more)
    return replace(about, remote=tuple(remote.values()))


def _address(entry: Entry) -> str:
    name, _, rest = str(entry.get("repository", "")).partition("@")
    return repository(name, rest) if name else ""


def _with_files(about: Meta, entry: Entry, parts: Mapping[str, Subtask]) -> Meta:
    """The facts about files, each of which holds the items of one sub-task or more."""
    at = _address(entry)
    prefix = f"{entry['folder']}/" if "folder" in entry else ""
    keys = tuple(entry.get("fetched_columns", ()))
    remote: dict[str, RemoteFile] = {}
    elsewhere: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for part, row in parts.items():
        for place, table, names in files_of(entry, part):
            target = prefix + place
            other = prefix + table.get("elsewhere", place).format_map(names)
            address = f"{at}/{other.partition('/')[2]}"
            remote[target] = RemoteFile(target, address, row.size, keys=keys)
            elsewhere |= {target: other} if other != target else {}
            hashes |= {target: row.blake2b} if row.blake2b else {}
    return replace(
        about,
        files=tuple(remote),
        remote=tuple(remote.values()) if at else (),
        elsewhere=elsewhere,
        hashes=hashes,
    )


def rule_of(node: Any, groups: Mapping[str, tuple[str, ...]]) -> Aggregate:
    """Return the aggregate that an entry writes as a list, or as {mean or micro: list, ...}.

    Args:
        node: As written.
        groups: Name that stands for several sub-tasks -> these.
    """
    node = node if isinstance(node, dict) else {"mean": node}
    weighting = "micro" if "micro" in node else "macro"
    parts = node.get("micro", node.get("mean"))
    if isinstance(parts, str):
        parts = groups.get(parts, (parts,))
    return Aggregate(
        tuple(each if isinstance(each, str) else rule_of(each, groups) for each in parts),
        weighting,
        macro_by=node.get("by"),
        metric=node.get("metric"),
    )


def rules_of(entry: Entry, about: Meta, data: Loading) -> dict[str, Aggregate]:
    """Return the rules of an entry, those that depend on the items included.

    Args:
        entry: Of the benchmark.
        about: Its facts.
        data: The benchmark, read.
    """
    groups = {"all": about.parts, "chosen": data.parts}
    rules = {name: rule_of(node, groups) for name, node in entry.get("rules", {}).items()}
    return rules | (hook(entry["more_rules"])(data) if "more_rules" in entry else {})


def each_value(data: Loading, parts: tuple[str, ...], label: str) -> dict[str, Aggregate]:
    """Return value of a label -> the mean over the items of some sub-tasks that have it.

    Args:
        data: With its cases.
        parts: Sub-tasks.
        label: The label.
    """
    here = (case for case in data.cases if case.subtask in parts and label in case.labels)
    values = sorted({case.labels[label] for case in here})
    return {
        value: Aggregate(parts, macro_by=label, exclude=frozenset(values) - {value})
        for value in values
    }
