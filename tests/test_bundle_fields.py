"""Every field of every file of a bundle, changed in turn: named as different, or as unchecked.

Hashes are made again after each change, as somebody does who forges a bundle.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from compoclip.data.fingerprint import FILE, Fingerprint
from compoclip.errors import CompoclipError
from compoclip.evaluation import verify
from compoclip.evaluation.bundle import PLAN, write_bundle
from compoclip.evaluation.plan_page import plan_page
from compoclip.evaluation.results import load_results
from compoclip.evaluation.verify import Verified, verify_bundle
from report_study import make_study
from test_bundle import sealed, write_run

SEALED = ("files", "digest")
Place = tuple[str | int, ...]
Change = tuple[str, Place, Callable[[Path], object]]
"""File, place of the field in it, and what changes it in a file of that content."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two models on choices of texts and on retrieval, with all files that one has."""
    folder = tmp_path_factory.mktemp("made")
    results = make_study(folder, photos=14, models=("base", "negclip"), resamples=20)
    for path in results.glob("*/*.*"):
        if path.stem not in ("hard_positives", "retrieval_flickr8k"):
            path.unlink()
    identity = load_results(results / "negclip")[0].identity
    optim = {"lr": 1e-5, "batch_size": 4}
    run = write_run(folder / "run", identity, optim=optim, seed=0)
    values = {"method": "negclip", "weights": identity["base"], "seed": 0, "samples": 14, **optim}
    Fingerprint(values, {"captions": np.arange(14, dtype=np.uint32)}).save(run)
    sizes = ("training_seconds", "evaluating_seconds", "memory_bytes", "download_bytes")
    plan = {
        "name": "mine",
        "protocol": "mine",
        "recipe": "negclip",
        "model": "base",
        "table": "hard-positives",
        "base": [],
        "row": [],
        "device": "cpu",
        "weights": "a hash",
        "photos": 14,
        "of_photos": 14,
        "published": {"epochs": 1, "batch_size": 4},
        "settings": {"lr": 1e-5, "micro_batch": 0, "precision": "fp32"},
        "benchmarks": ["hard_positives"],
        "left_out": {},
        "downloads": {},
        "estimate": {**dict.fromkeys(sizes, 9), "unknown_sizes": 0, "disk_bytes": 9},
    }
    return write_bundle(run, results, folder / "bundle", ["hard-positives"], plan)


@pytest.mark.parametrize(
    ("row", "verdicts"), [("human", ["below", "above"]), ("HP + HN", ["within", "within"])]
)
def test_the_page_says_on_which_side_of_the_paper_a_score_lies(
    made: Path, row: str, verdicts: list[str]
) -> None:
    """Measured are 71.4 [46, 89] and 25.0 [7, 48]; people have 97.0 and 0.0, the row 58.0, 16.9."""
    plan = json.loads((made / PLAN).read_text())
    page = plan_page({**plan, "row": [row]}, load_results(made / "results"), 5.0)
    assert re.findall(r" to \S+ \| (\w+) \|", page) == verdicts


def other(value: Any) -> Any:
    """A value of the same kind that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.01 if value < 0.9 else value - 0.01
    if isinstance(value, str):
        return value + "x"
    return {"x": 1} if isinstance(value, dict) else ["x"] if isinstance(value, list) else 0.5


def leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    if isinstance(value, dict | list) and value:
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*place, key))
    else:
        yield place


def with_other(data: Any, place: Place) -> Any:
    """The data with another value at a place."""
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = other(inner[place[-1]])
    return data


def in_json(path: Path, place: Place) -> None:
    path.write_text(json.dumps(with_other(json.loads(path.read_text()), place)))


def in_yaml(path: Path, place: Place) -> None:
    path.write_text(yaml.safe_dump(with_other(yaml.safe_load(path.read_text()), place)))


def in_fingerprint(path: Path, place: Place) -> None:
    now = Fingerprint.load(path.parent)
    part = now.rows if place[0] in now.rows else now.values
    changed = {**part, place[0]: other_rows(part[place[0]])}
    values, rows = (now.values, changed) if part is now.rows else (changed, now.rows)
    Fingerprint(values, rows).save(path.parent)


def other_rows(value: Any) -> Any:
    return value + 1 if isinstance(value, np.ndarray) else other(value)


def in_line(path: Path, place: Place) -> None:
    """Another value in a line: of JSON, or the first digit or letter of a text."""
    number, key = place
    lines = path.read_text().splitlines()
    if path.suffix == ".jsonl":
        lines[number] = json.dumps(with_other(json.loads(lines[number]), (key,)))
    elif key == "digit":
        lines[number] = re.sub(r"\d", lambda m: str((int(m[0]) + 1) % 10), lines[number], count=1)
    else:
        lines[number] = re.sub("[a-z]", "Q", lines[number], count=1)
    path.write_text("\n".join(lines) + "\n")


def changes_of(bundle: Path) -> Iterator[Change]:
    """Every change of one field of one file."""
    for path in sorted(path for path in bundle.rglob("*") if path.is_file()):
        name = path.relative_to(bundle).as_posix()
        places: list[Place] = []
        if path.suffix == ".json":
            change = in_json  # hashes and digest are made again
            places = [p for p in leaves(json.loads(path.read_text())) if p[0] not in SEALED]
        elif path.suffix == ".parquet":
            change, places = with_cell, [(column,) for column in pq.read_schema(path).names]
        elif path.name == FILE:
            now = Fingerprint.load(path.parent)
            change, places = in_fingerprint, [(key,) for key in (*now.values, *now.rows)]
        elif path.suffix == ".yaml":
            change, places = in_yaml, [*leaves(yaml.safe_load(path.read_text()))]
        else:
            change = in_line
            for number, line in enumerate(path.read_text().splitlines()):
                kinds = {"digit": re.search(r"\d", line), "letter": re.search("[a-z]", line)}
                keys = json.loads(line) if path.suffix == ".jsonl" else filter(kinds.get, kinds)
                places += [(number, key) for key in keys]
        for place in places:
            yield name, place, partial(change, place=place)


def with_cell(path: Path, place: Place) -> None:
    """The first cell of a column that is not empty, as another value."""
    (column,) = place
    table = pq.read_table(path)
    cells, kind = table[column].to_pylist(), table.schema.field(column).type
    row = next((row for row, cell in enumerate(cells) if cell not in (None, [])), 0)
    cell = cells[row]
    if isinstance(cell, list):
        first = [("x", "y")] if pa.types.is_map(kind) else [other(cell[0])]
        cells[row] = [*first, *cell[1:]]
    else:
        cells[row] = [("x", "y")] if pa.types.is_map(kind) else other(cell)
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, pa.array(cells, kind)), path)


def is_unchecked(report: Verified, file: str, place: Place) -> bool:
    """Return whether a line of the report names the file and a part of the place as unchecked."""
    for line in report.unchecked:
        pattern, _, rest = line.partition(": ")
        fields = rest.partition(": ")[0].split(", ")
        if fnmatch(file, pattern) and ("all other fields" in fields or {*fields} & {*place}):
            return True
    return False


def kind_of(file: str, place: Place) -> tuple[str, Place]:
    """Return the kind of a field: its file and place without model, sub-task, rule and line."""
    if file == "page.md":
        return file, (place[0] % 3, *place[1:])
    names = [key for key in place if isinstance(key, str)]
    kept = (*names[:1], *(names[-1:] if len(names) > 1 and names[0] != "skills" else ()))
    return re.sub("/(base|negclip)/", "/*/", file), kept


def test_every_field_is_named_or_unchecked(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One field of each kind that is checked; all fields with COMPOCLIP_EVERY_FIELD=1."""
    check_page = verify._check_page

    def check_page_if_needed(*arguments: Any) -> None:
        """Write the page again, which takes longest, only while nothing is wrong."""
        if not arguments[3].wrong:
            check_page(*arguments)

    monkeypatch.setattr(verify, "_check_page", check_page_if_needed)
    as_made = verify_bundle(made)
    assert as_made.wrong == []
    changes = [*changes_of(made)]
    if not os.environ.get("COMPOCLIP_EVERY_FIELD"):
        checked = [c for c in changes if not is_unchecked(as_made, *c[:2])]
        changes = [*{kind_of(*change[:2]): change for change in checked}.values()]
    bundle = Path(shutil.copytree(made, tmp_path / "bundle"))
    unnoticed, named = [], 0
    for file, place, change in changes:
        change(bundle / file)
        sealed(bundle)
        try:
            report = verify_bundle(bundle)
        except CompoclipError as error:  # bundle.json is another's
            report = Verified(wrong=[str(error)])
        named += bool(report.wrong)
        if not report.wrong and not is_unchecked(report, file, place):
            unnoticed.append((file, place))
        for name in (file, "bundle.json"):
            shutil.copyfile(made / name, bundle / name)
    assert unnoticed == []
    assert named > 50, f"{named} of {len(changes)} are named"
