"""Entries of `benchmarks.yaml`: facts, files, rules, and the functions that they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from functools import cache
from pathlib import PurePosixPath
from pkgutil import resolve_name
from typing import Any, NamedTuple

from compoclip.benchmarks.case import Aggregate, Meta
from compoclip.benchmarks.files import combined_hash
from compoclip.benchmarks.reader import Loading
from compoclip.benchmarks.sources import RemoteFile, document, remote_file

Entry = Mapping[str, Any]


@cache
def entries() -> dict[str, Entry]:
    """Return the entries by the names of their benchmarks."""
    return {name: entry for name, entry in document().items() if name[0] != "_"}


def hook(name: str) -> Callable[..., Any]:
    """Return the function of this package called "module:function"."""
    function: Callable[..., Any] = resolve_name(f"{__package__}.{name}")
    return function


class File(NamedTuple):
    """A file of a benchmark: its place below the folder, keys of its table, names for templates."""

    place: str
    table: Entry
    names: dict[str, str]


def files_of(entry: Entry, part: str, names: Mapping[str, str] | None = None) -> Iterator[File]:
    """Yield the files of a sub-task; `names`: what options add to the names of the entry."""
    for pattern, more in entry.get("tables", {"*": {}}).items():
        match = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)"), part)
        if match is None:
            continue
        table = {**entry, **more}
        values = {"part": part, "star": (*match.groups(), "")[0]}
        values |= {**entry.get("names", {}), **(names or {})}
        listed = table.get("file", {})
        for template, source in (listed if isinstance(listed, dict) else {listed: ""}).items():
            place = template.format_map({**values, "number": "{number}"})
            file = {"source": source, "file": str(PurePosixPath(place).with_suffix(""))}
            yield File(place, table, {**values, **file})
        return


def meta_of(name: str, entry: Entry) -> Meta:
    """Return the facts that an entry states."""
    rows = {
        part: (*row, *("", 0, 0, "")[len(row) :]) for part, row in entry.get("parts", {}).items()
    }
    aside = entry.get("tuned_on", {}).values()
    chance = entry.get("chance", {})
    chances = chance if isinstance(chance, dict) else {"": chance}
    texts = ("title", "citation", "source", "licence", "status", "requires")
    facts: dict[str, Any] = {
        key: entry[key] for key in (*texts, "family", "by_others") if key in entry
    }
    facts |= {key: tuple(entry.get(key, ())) for key in ("images", "archives", "optional")}
    facts |= {key: dict(entry.get(key, {})) for key in ("part_folders", "hashes")}
    parts = [part for part in rows if part not in aside]
    facts["skills"] = {part: rows[part][0] for part in parts if rows[part][0]}
    facts["expected"] = {part: items for part, (_, items, *_) in rows.items() if items}
    facts |= {key: entry[key] for key in ("skills", "expected") if key in entry}
    repository, _, commit = str(entry.get("repository", "")).partition("@")
    served = repository and f"https://raw.githubusercontent.com/{repository}/{commit}"
    remote: dict[str, RemoteFile] = {}
    if "files" in entry:
        facts |= {"files": tuple(entry["files"]), "elsewhere": entry.get("elsewhere", {})}
    else:
        prefix = f"{entry['folder']}/" if "folder" in entry else ""
        keys = tuple(entry.get("fetched_columns", ()))
        elsewhere: dict[str, str] = {}
        for part, (_, _, size, blake2b) in rows.items():
            for place, table, names in files_of(entry, part):
                target = prefix + place
                other = prefix + table.get("elsewhere", place).format_map(names)
                address = f"{served}/{other.partition('/')[2]}"
                remote[target] = RemoteFile(target, address, size, keys=keys)
                elsewhere |= {target: other} if other != target else {}
                facts["hashes"] |= {target: blake2b} if blake2b else {}
        facts |= {"files": tuple(remote), "elsewhere": elsewhere}
    remote = remote if served else {}
    for target, source in entry.get("remote", {}).items():
        remote[target] = remote_file(target, source, served)
    return Meta(
        id=name,
        access=entry.get("access", "open"),
        parts=tuple(parts),
        chance={key: float(Fraction(share)) for key, share in chances.items()},
        remote=tuple(remote.values()),
        **facts,
    )


@cache
def official_meta(name: str) -> Meta:
    """Return the facts about a benchmark of the package; none of its functions is imported."""
    return meta_of(name, entries()[name])


def official_hash(name: str, parts: Collection[str]) -> str:
    """Return the `Benchmark.data_hash` of the official files of these sub-tasks.

    "" where it is not known: for files without a published hash, and for benchmarks whose items
    hang on more than one file per sub-task.
    """
    entry = entries().get(name, {})
    if "file" not in entry or {"tuned_on", "read", "archive"} & entry.keys():
        return ""
    about, hashes = official_meta(name), dict[str, str]()
    for part in parts:
        for place, table, names in files_of(entry, part):
            target = f"{entry['folder']}/{place}" if "folder" in entry else place
            key = table.get("hashed_as", "{part}").format_map({**names, "path": place})
            hashes[key] = about.hashes.get(target, "")
    return combined_hash(hashes) if hashes and all(hashes.values()) else ""


def rule_of(node: Any, groups: Mapping[str, tuple[str, ...]]) -> Aggregate:
    """Return the aggregate that an entry writes as a list, or as {mean or micro: list, ...}.

    groups: name that stands for several sub-tasks -> these.
    """
    node = node if isinstance(node, dict) else {"mean": node}
    parts = node.get("micro", node.get("mean"))
    if isinstance(parts, str):
        parts = groups.get(parts, (parts,))
    return Aggregate(
        tuple(part if isinstance(part, str) else rule_of(part, groups) for part in parts),
        "micro" if "micro" in node else "macro",
        macro_by=node.get("by"),
        metric=node.get("metric"),
    )


def rules_of(entry: Entry, data: Loading) -> dict[str, Aggregate]:
    """Return the rules of an entry, those that depend on the items that were read included."""
    groups = {"all": data.about.parts, "chosen": data.parts}
    rules = {name: rule_of(node, groups) for name, node in entry.get("rules", {}).items()}
    for label, template in entry.get("rules_by", {}).items():
        for value, rule in each_value(data, data.parts, label).items():
            rules[template.format(value.lower())] = rule
    return rules | (hook(entry["more_rules"])(data) if "more_rules" in entry else {})


def each_value(data: Loading, parts: tuple[str, ...], label: str) -> dict[str, Aggregate]:
    """Return value of a label -> the mean over the items of some sub-tasks that have it."""
    here = (case for case in data.content.cases if case.subtask in parts and label in case.labels)
    values = sorted({case.labels[label] for case in here})
    return {
        value: Aggregate(parts, macro_by=label, exclude=tuple({*values} - {value}))
        for value in values
    }
