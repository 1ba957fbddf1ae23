"""Results on disk: `<out>/<model>/<benchmark>.json`, with the items as parquet beside it."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compoclip.errors import CompoclipError
from compoclip.evaluation.results import SCHEMA, Clean, Results, Score
from compoclip.files import only_writer, read_json, write_atomically


def save_results(results: Results, items: pa.Table, folder: Path) -> Results:
    """Write one result and its items below `folder`; `results.items` names the parquet file.

    The JSON file is written last and removed first: where it exists, both belong together.
    Returns the results with `items` as a full path, as `load_results` does.
    """
    path = folder / f"{file_stem(results.benchmark)}.json"
    table = folder / results.items
    text = json.dumps(asdict(results), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    with only_writer(path, wait=True):  # another run may measure a model of the same name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CompoclipError(f"{path}: cannot be replaced ({error.strerror})") from error
        write_atomically(table, lambda place: pq.write_table(items, place, compression="zstd"))
        write_atomically(path, lambda place: place.write_text(text, encoding="utf-8"))
    return replace(results, items=str(table))


def file_stem(name: str) -> str:
    """A benchmark or model name as a file name: separators become "_"."""
    return "".join("_" if c in '/\\:*?"<>| ' or ord(c) < 32 else c for c in name).lstrip(".") or "_"


def load_results(path: Path) -> list[Results]:
    """The result in a JSON file, or all results in a folder and the folders below it, sorted.

    `items` is then the full path of the parquet file. Raises CompoclipError naming the file when
    nothing is there or a file is malformed.
    """
    if path.is_file():
        return [_load(path)]
    if not path.is_dir():
        raise CompoclipError(f"{path}: no such file or folder; give what evaluate wrote (--out)")
    found = sorted(
        each
        for each in path.rglob("*.json")
        if not any(part.startswith(".") for part in each.relative_to(path).parts)
    )
    if not found:
        raise CompoclipError(f"{path}: holds no results; give what evaluate wrote (--out)")
    return [_load(each) for each in found]


def load_items(results: Results) -> pa.Table:
    """The per-item table of loaded results (columns: see `items.Items.to_arrow`).

    Raises CompoclipError when the parquet file is absent or damaged.
    """
    path = Path(results.items)
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise CompoclipError(
            f"{path}: cannot be read ({reason}); evaluate {results.model} on {results.benchmark} "
            "again"
        ) from error


def _load(path: Path) -> Results:
    remedy = "delete it, or evaluate again"
    data = read_json(path, damaged=remedy)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        version = data.get("schema") if isinstance(data, dict) else None
        raise CompoclipError(
            f"{path}: not a result file of this version (schema {version}, expected {SCHEMA}); "
            f"{remedy}"
        )
    try:
        results = _results(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CompoclipError(f"{path}: malformed result file ({error!r}); {remedy}") from error
    if Path(results.items).name != results.items:
        raise CompoclipError(f"{path}: its items file must lie beside it, not at {results.items}")
    return replace(results, items=str(path.parent / results.items))


def _results(data: dict[str, Any]) -> Results:
    required = {
        f.name for f in fields(Results) if f.default is MISSING and f.default_factory is MISSING
    }
    lacking = sorted(required - data.keys())
    if lacking:
        raise ValueError(f"lacks {', '.join(lacking)}")
    values = dict(data)
    values |= _scores(data)
    clean = data.get("clean")
    values["clean"] = None if clean is None else Clean(**{**clean, **_scores(clean)})
    values["missing"] = tuple(data.get("missing", ()))
    if values["headline"] not in values["aggregates"]:
        raise ValueError(f"no aggregate {values['headline']!r}")
    return Results(**values)


def _scores(data: dict[str, Any]) -> dict[str, Any]:
    """The fields "scores" and "aggregates" of a result, read."""
    return {
        "scores": {
            subtask: {metric: Score(**score) for metric, score in metrics.items()}
            for subtask, metrics in data["scores"].items()
        },
        "aggregates": {rule: Score(**score) for rule, score in data["aggregates"].items()},
    }
