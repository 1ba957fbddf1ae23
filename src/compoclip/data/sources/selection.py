"""A source without some of its samples: a file that names the source and the ids to leave out.

    {"selection_of": {"spec": "/data/trohn", "images": "/data/coco/train2017"},
     "without": ["000000391895.jpg#0", ...], "because": "photos of the Karpathy test"}

`compoclip data audit --kept` writes it; it is opened wherever data is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compoclip.data.columns import fields
from compoclip.data.sources.table import TableSource
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import write_text

KEY = "selection_of"
_OPTIONS = {
    **dict.fromkeys(("spec", "images", "image_column", "caption_column", "split"), str),
    "orientation": str,
    "quoting": bool,
    "held_out": float,
    "split_seed": int,
}
_REMEDY = "write it again: compoclip data audit --kept"


def open_selection(
    path: Path, data: Mapping[str, Any], open_source: Callable[..., TableSource]
) -> TableSource:
    """Open the source that a selection names, without the samples that it leaves out.

    data: the content of the file. open_source: opens a source by its options. Raises CompoclipError
    for a malformed file, unknown ids and an empty selection, UsageError as `open_source` does.
    """
    without = fields(data, {"without": list[str]}, str(path), _REMEDY)["without"]
    options = fields(data[KEY], {"spec": str}, str(path), _REMEDY)
    good = all(isinstance(v, _OPTIONS.get(k, ())) for k, v in options.items())
    require(good, path, f"no selection of a source; {_REMEDY}")
    if Path(options["spec"]).absolute() == path.absolute():
        raise UsageError(f"{path}: selects from itself; {_REMEDY}")
    named = {**options, **({"images": Path(options["images"])} if "images" in options else {})}
    source = open_source(named.pop("spec"), **named)
    left, ids = frozenset(without), list(source.column("id"))
    if missing := left.difference(ids):
        raise CompoclipError(
            f"{path}: leaves out {min(missing)!r:.80}, unknown to {source.describe()}; {_REMEDY}"
        )
    kept = np.array([i for i, id in enumerate(ids) if id not in left], np.int64)
    require(len(kept), path, f"leaves out every sample; {_REMEDY}")
    because = str(data.get("because") or "sample that the selection leaves out")
    fewer = len(ids) - len(kept)
    description = f"{source.describe()} without {fewer} ({path})"
    return source.take(kept, description, {because: fewer})


def write_selection(
    path: Path, spec: str, without: Sequence[str], because: str, **options: Any
) -> None:
    """Write a file that `open_selection` reads.

    spec: the source, as named for training; a local path is written in full. without: ids of the
    samples to leave out. because: the reason. options: other arguments of `open_source`.
    """
    given = {name: value for name, value in options.items() if value not in (None, True)}
    named = {"spec": Path(spec), **given}
    source = {k: str(v.absolute()) if isinstance(v, Path) else v for k, v in named.items()}
    record = {KEY: source, "because": because, "without": list(without)}
    write_text(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")
