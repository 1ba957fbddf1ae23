"""One shard in, one shard out: written whole or not at all, and known as finished afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from compoclip.corpora import jsonl, parquet, tar
from compoclip.corpora.find import kind_of
from compoclip.corpora.job import Counts, Job, new_counts
from compoclip.data.cachefile import fingerprint
from compoclip.errors import CompoclipError
from compoclip.files import replacing, sync, unwritable, write_atomically

MANIFESTS = "manifest"
SETTINGS = "settings.json"
_FORMATS: Mapping[str, ModuleType] = {
    ".parquet": parquet,
    ".jsonl": jsonl,
    ".jsonl.gz": jsonl,
    ".tar": tar,
}


@dataclass(frozen=True)
class ShardTask:
    """What a worker does: `source` becomes a file of that name in the folder `out`."""

    source: Path
    out: Path
    job: Job
    column: str | None = None

    @property
    def target(self) -> Path:
        """The shard to write."""
        return self.out / self.source.name

    @property
    def manifest(self) -> Path:
        """Where it is written down that the shard is finished."""
        return self.out / MANIFESTS / f"{self.source.name}.json"


@dataclass(frozen=True)
class ShardResult:
    """What became of a shard: its counts, or what is wrong with it.

    stop: the output cannot be written, so that going on with others is no use.
    """

    name: str
    counts: Counts | None = None
    error: str = ""
    stop: bool = False


def checked(source: Path, column: str | None) -> None:
    """Raise UsageError when the captions cannot be where `column` says, CompoclipError when the
    shard cannot be read."""
    _format_of(source).check(source, column)


def finished(task: ShardTask) -> Counts | None:
    """The counts of a shard that an earlier run finished; None when it is to be made.

    Finished is a shard whose file has the size that its manifest says, made from a source that has
    not changed since. Raises CompoclipError when it was made from another file of the same name.
    """
    try:
        known = json.loads(task.manifest.read_text(encoding="utf-8"))
        size = task.target.stat().st_size
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(known, dict) or known.get("bytes") != size:
        return None
    if known.get("state") == fingerprint(task.source):
        counts, usual = known.get("counts"), new_counts()
        task.job.make([], usual)
        return counts if isinstance(counts, dict) and _are_like(counts, usual) else None
    if known.get("source") != str(task.source.absolute()):
        raise CompoclipError(
            f"{task.target}: was made from {known.get('source')}, not from {task.source}; choose "
            "another -o"
        )
    return None


def _are_like(value: Any, usual: Any) -> bool:
    """Whether a value is a count or, where `usual` is a dictionary, one of counts with its names
    and perhaps more."""
    if not isinstance(usual, dict):
        return type(value) is int and value >= 0
    return (
        isinstance(value, dict)
        and usual.keys() <= value.keys()
        and all(_are_like(each, usual.get(name)) for name, each in value.items())
    )


def make_shard(task: ShardTask) -> ShardResult:
    """Do the task; the same task gives the same bytes. Never raises for bad shards or disks."""
    name = task.source.name
    counts = new_counts()
    try:
        state = fingerprint(task.source)
        part = task.target.with_name(f".{name}.part")
        with replacing(task.target, part) as place:
            _format_of(task.source).transform(task.source, place, task.column, task.job, counts)
            sync(place)
        known = {
            "source": str(task.source.absolute()),
            "state": state,
            "bytes": task.target.stat().st_size,
            "counts": counts,
        }
        write_atomically(task.manifest, partial(_dump, known))
    except CompoclipError as error:
        return ShardResult(name, error=str(error))
    except OSError as error:
        return ShardResult(name, error=str(unwritable(task.target, error)), stop=True)
    return ShardResult(name, counts)


def _format_of(source: Path) -> ModuleType:
    return _FORMATS[str(kind_of(source.name))]


def _dump(known: Mapping[str, Any], place: Path) -> None:
    place.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
