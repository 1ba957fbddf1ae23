"""The shards that a file name, a folder or a pattern means."""

from __future__ import annotations

from collections import Counter
from glob import glob, has_magic
from pathlib import Path

from compoclip.data.paths import ROW_FILES, ending_of, expand_braces, require_local
from compoclip.errors import CompoclipError, UsageError

KINDS = (*ROW_FILES, ".tar")


def kind_of(name: str) -> str | None:
    """Which of `KINDS` a file name is of, by its ending."""
    return ending_of(name, KINDS)


def names_shards(source: str) -> bool:
    """Whether a text names shards rather than being a caption: a folder, or a file or pattern that
    ends like a shard."""
    try:
        if source.strip() and Path(source).is_dir():
            return True
    except (OSError, ValueError):  # too long or with odd bytes
        return False
    return kind_of(source) is not None and (
        not any(map(str.isspace, source)) or Path(source).exists() or bool(glob(source))
    )


def find_shards(spec: str) -> list[Path]:
    """The shards in order of their names: a file, a folder of them, or a pattern.

    Patterns: "part-*.parquet", "part-{000..099}.tar", "{a,b}.jsonl.gz". Raises CompoclipError when
    there is none or one is missing, UsageError when they are of several kinds, share a name or are
    not on this machine.
    """
    require_local(spec)
    path = Path(spec)
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if kind_of(file.name)]
        files = files or sorted(path.glob("data/*.parquet"))  # as on the Hugging Face hub
    elif path.exists():
        files = [path]
    else:
        files = [Path(name) for part in expand_braces(spec) for name in _matching(part)]
    shards = [file for file in files if kind_of(file.name) and not file.name.startswith(".")]
    kinds = sorted({str(kind_of(file.name)) for file in shards})
    if not shards:
        raise CompoclipError(f"{spec}: no shard there; they end in {', '.join(KINDS)}")
    if len(kinds) > 1:
        raise UsageError(
            f"{spec}: shards of several kinds ({', '.join(kinds)}); name those you mean with a "
            f"pattern such as '*{kinds[-1]}'"
        )
    twice = [name for name, times in Counter(file.name for file in shards).items() if times > 1]
    if twice:
        raise UsageError(f"{spec}: several shards are named {twice[0]}; run for each folder alone")
    return sorted(shards, key=lambda file: file.name)


def _matching(pattern: str) -> list[str]:
    return glob(pattern) if has_magic(pattern) else [pattern]
