"""Foils: any set of images with a true and a false caption each, for data of your own.

Read from `<root>/foils/*.jsonl` and `*.json` in the order of their names (option `annotations`:
one such file, or another folder). A .jsonl file has one object a line, a .json file one list:

    {"id": "17", "image": "photos/17.jpg", "caption": "a cup left of a plate",
     "negative_caption": "a cup right of a plate", "subtask": "left of", "skill": "spatial"}

image: relative to `<root>` (argument `images`: to another folder). subtask: what the foil probes;
the file's name without its suffix when absent. skill: one of `skills.SKILLS`, the same in all rows
of a sub-task; optional. id: unique within the sub-task. Other keys become labels when they hold
text, e.g. "relation": "left of". A tie is wrong. The headline `macro` is the plain mean of the
sub-tasks, `micro` the mean over all items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Benchmark, Case, Form, ImageRef
from compoclip.benchmarks.meta import Meta
from compoclip.benchmarks.parts import of_cases, select
from compoclip.benchmarks.skills import SKILLS
from compoclip.errors import CompoclipError

_SUFFIXES = (".json", ".jsonl")
_KNOWN = ("id", "image", "caption", "negative_caption", "subtask", "skill")
META = Meta(
    id="foils",
    title="Foils (your own data)",
    citation="the data's own",
    source="any files of this layout; `compoclip world suite` writes such files",
    licence="the data's own",
    access="open",
    files=("foils/*.jsonl",),
    images=(".",),
    parts=(),
    chance={"": 1 / 2},
    skills={},
)


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read foils as CHOOSE_TEXT cases; layout: see the module. Sub-tasks are those in the files.

    Raises CompoclipError for absent or malformed files, UsageError for an unknown sub-task.
    """
    paths = _files(annotations or root / "foils")
    cases: list[Case] = []
    skills: dict[str, str] = {}
    seen: dict[str, set[object]] = {}
    for path in paths:
        for where, row in _rows(path):
            name = files.text(row, "subtask", where) if "subtask" in row else path.stem
            _same_skill(row, name, name in seen, skills, where)
            key = files.identifier(row, "id", where, seen.setdefault(name, set()))
            cases.append(_case(row, name, key, images or root, where))
    if not cases:
        raise CompoclipError(f"{paths[0]}: no rows")
    kept = select(META.id, tuple(seen), subtasks)
    own = replace(META, skills=skills)
    digest = files.data_hash({path.name: path for path in paths})
    return of_cases(own, kept, (c for c in cases if c.subtask in kept), digest, {}, "macro")


def _files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    found = sorted(path for path in place.iterdir() if path.suffix in _SUFFIXES)
    if not found:
        raise CompoclipError(f"{place}: holds no .jsonl or .json file with foils")
    return found


def _rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    if path.suffix == ".json":
        for index, value in enumerate(files.items(files.read_json(path), str(path))):
            where = f"{path}: row {index}"
            yield where, files.record(value, where)
    else:
        for line, row in files.read_jsonl(path):
            yield f"{path}: line {line}", row


def _same_skill(
    row: dict[str, Any], subtask: str, later: bool, skills: dict[str, str], where: str
) -> None:
    """Note the skill of a sub-task's first row; all its rows must agree."""
    skill = files.text(row, "skill", where) if "skill" in row else None
    if skill is not None and skill not in SKILLS:
        raise CompoclipError(f"{where}: unknown skill {skill!r}; known: {', '.join(SKILLS)}")
    if later and skills.get(subtask) != skill:
        raise CompoclipError(
            f"{where}: skill {skill!r}, but earlier rows of sub-task {subtask!r} have "
            f"{skills.get(subtask)!r}; give all rows of a sub-task the same skill"
        )
    if skill is not None:
        skills[subtask] = skill


def _case(row: dict[str, Any], subtask: str, key: str, photos: Path, where: str) -> Case:
    return Case(
        id=f"{subtask}/{key}",
        form=Form.CHOOSE_TEXT,
        images=(ImageRef(files.image_path(photos, files.text(row, "image", where), where)),),
        texts=(files.text(row, "caption", where), files.text(row, "negative_caption", where)),
        subtask=subtask,
        labels={k: v for k, v in row.items() if k not in _KNOWN and isinstance(v, str) and v},
    )
