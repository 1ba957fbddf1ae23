"""MMVP-VLM: pairs of photos that CLIP takes for the same, nine visual patterns (Tong et al., 2024).

Read from `<root>/mmvp_vlm/Questions.csv` (option `annotations`: another file), whose three columns
are a number, a pattern and a statement; the header is skipped:

    Question ID,Type,Statement
    1,Orientation,the dog's head faces left
    2,Orientation,the dog's head faces right

Two rows after one another form a pair, the first number being odd. Photos: `<root>/mmvp_vlm/
MLLM_VLM Images/<pattern>/<number>.jpg` (argument `images`: another folder of the pattern folders).
Patterns are known by their names in the paper or in the folders; in a file that uses other names
for all nine they are taken in the paper's order, as the official code does.

The prompt is "a photo of {statement}" (option `prompt`). Official score: `image`, each statement
picks its own photo, ties wrong. Headline `vl_compo`: plain mean of the nine patterns' group scores.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import by_stem, of_cases, select
from compoclip.errors import CompoclipError, UsageError

_NAMES = {
    "orientation": ("orientation and direction", "orientation"),
    "presence": ("presence of specific features", "presence"),
    "state": ("state and condition", "state"),
    "quantity": ("quantity and count", "quantity"),
    "position": ("positional and relational context", "spatial"),
    "color": ("color and appearance", "color"),
    "structure": ("structural characteristics", "structural character"),
    "texts": ("texts", "text"),
    "viewpoint": ("viewpoint and perspective", "camera perspective"),
}
PROMPT = "a photo of {}"
_NUMBER = re.compile("[0-9]{1,9}")
META = Meta(
    id="mmvp_vlm",
    title="MMVP-VLM",
    citation="Tong et al., Eyes Wide Shut? Exploring the Visual Shortcomings of Multimodal LLMs, "
    "CVPR 2024",
    source="dataset-hub page MMVP/MMVP_VLM: Questions.csv and the folder MLLM_VLM Images",
    licence="MIT",
    access="open",
    files=("mmvp_vlm/Questions.csv",),
    images=("mmvp_vlm/MLLM_VLM Images",),
    parts=tuple(_NAMES),
    chance={"/text": 1 / 4, "/image": 1 / 4, "/group": 1 / 6},
    skills={
        "orientation": "spatial",
        "presence": "object",
        "state": "attribute",
        "quantity": "counting",
        "position": "spatial",
        "color": "attribute",
        "structure": "attribute",
        "texts": "attribute",
        "viewpoint": "spatial",
    },
    expected=dict.fromkeys(_NAMES, 15),
)
_RULES = {
    "vl_compo": Aggregate(META.parts),
    "paper": Aggregate(META.parts, metric="image"),
    **{each: Aggregate(META.parts, metric=each) for each in ("image", "text")},
}


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
    prompt: str = PROMPT,
) -> Benchmark:
    """Read MMVP-VLM as GROUP cases; layout: see the module. prompt: "{}" stands for the statement.

    Raises CompoclipError for absent or malformed files, UsageError for an unknown sub-task or a
    prompt without "{}".
    """
    kept = select(META.id, META.parts, subtasks)
    if "{}" not in prompt:
        raise UsageError(f'mmvp_vlm: the prompt {prompt!r} has no "{{}}" for the statement')
    path = annotations or root / "mmvp_vlm" / "Questions.csv"
    photos = images or root / "mmvp_vlm" / "MLLM_VLM Images"
    cases = [case for case in _cases(path, photos, prompt) if case.subtask in kept]
    if not cases:
        raise CompoclipError(f"{path}: no pairs of {', '.join(kept)}; fetch the official file")
    digest = files.data_hash({"questions": path}, (prompt,))
    return of_cases(META, kept, cases, digest, _RULES, "vl_compo")


def _cases(path: Path, photos: Path, prompt: str) -> list[Case]:
    rows = _rows(path)
    known = _patterns(list(dict.fromkeys(folder for _, _, folder, _ in rows)), path)
    if len(rows) % 2:
        raise CompoclipError(f"{rows[-1][0]}: the last pair has one row; fetch the file again")
    found = {name: by_stem((files.image_path(photos, name, str(path)),)) for name in known}
    cases = []
    for first, second in zip(rows[::2], rows[1::2]):
        where, number, folder, _ = second
        if (number, folder) != (first[1] + 1, first[2]) or number % 2:
            raise CompoclipError(
                f"{where}: number {number} of {folder!r:.80} after {first[1]} of {first[2]!r:.80} "
                "is no pair; expected an odd number and the next one, of one pattern"
            )
        refs = tuple(
            ImageRef(
                found[folder].get(str(k)) or files.image_path(photos, f"{folder}/{k}.jpg", where)
            )
            for k in (first[1], number)
        )
        texts = tuple(prompt.replace("{}", row[3]) for row in (first, second))
        subtask = known[folder]
        cases.append(Case(f"{subtask}/{first[1]}", Form.GROUP, refs, texts, subtask))
    return cases


def _rows(path: Path) -> list[tuple[str, int, str, str]]:
    """(file and line, number, pattern, statement) of every row below the header."""
    reader = csv.reader(files.read_text(path).splitlines(keepends=True), strict=True)
    rows = []
    seen: set[object] = set()
    try:
        for row in reader:
            where = f"{path}: line {reader.line_num}"
            if reader.line_num == 1 or not any(cell.strip() for cell in row):
                continue
            if len(row) != 3 or not _NUMBER.fullmatch(row[0].strip()):
                raise CompoclipError(f"{where}: expected a number, a pattern and a statement")
            number = int(files.identifier({"number": int(row[0])}, "number", where, seen))
            pattern, statement = (
                files.nonempty(cell, f"{where}: {name}")
                for cell, name in zip(row[1:], ("pattern", "statement"))
            )
            rows.append((where, number, pattern.strip(), statement))
    except csv.Error as error:
        raise CompoclipError(f"{path}: line {reader.line_num}: {error}") from error
    if not rows:
        raise CompoclipError(f"{path}: no rows; fetch the official file again")
    return rows


def _patterns(folders: Sequence[str], path: Path) -> dict[str, str]:
    """Pattern as written in the file -> sub-task."""
    by_name = {name: subtask for subtask, names in _NAMES.items() for name in names}
    known = {each: by_name[each.lower()] for each in folders if each.lower() in by_name}
    if not known and len(folders) == len(_NAMES):
        return dict(zip(folders, _NAMES))
    for each in folders:
        if each not in known:
            raise CompoclipError(
                f"{path}: unknown pattern {each!r:.80}; known: "
                f"{', '.join(names[0] for names in _NAMES.values())}"
            )
    return known
