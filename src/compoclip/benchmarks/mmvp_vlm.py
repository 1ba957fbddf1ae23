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
from collections.abc import Iterator, Sequence
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import by_stem
from compoclip.benchmarks.reader import PAIR_CHANCE, CaseReader, Loading, Subtask, facts
from compoclip.benchmarks.sources import RemoteFile
from compoclip.errors import CompoclipError, UsageError

_PATTERNS = {
    "orientation": ("spatial", "orientation and direction", "orientation"),
    "presence": ("object", "presence of specific features", "presence"),
    "state": ("attribute", "state and condition", "state"),
    "quantity": ("counting", "quantity and count", "quantity"),
    "position": ("spatial", "positional and relational context", "spatial"),
    "color": ("attribute", "color and appearance", "color"),
    "structure": ("attribute", "structural characteristics", "structural character"),
    "texts": ("attribute", "texts", "text"),
    "viewpoint": ("spatial", "viewpoint and perspective", "camera perspective"),
}
"""Sub-task -> its skill, its name in the paper, its folder."""
PROMPT = "a photo of {}"
_NUMBER = re.compile("[0-9]{1,9}")
_HUB = "https://huggingface.co/datasets/MMVP/MMVP_VLM/resolve/main"
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
    chance=PAIR_CHANCE,
    remote=(RemoteFile("mmvp_vlm/Questions.csv", f"{_HUB}/Questions.csv"),),
    **facts({name: Subtask(skill, 15) for name, (skill, *_) in _PATTERNS.items()}),
)


def _cases(
    data: Loading, *, annotations: Path | None = None, prompt: str = PROMPT
) -> Iterator[Case]:
    """prompt: "{}" stands for the statement."""
    if "{}" not in prompt:
        raise UsageError(f'mmvp_vlm: the prompt {prompt!r} has no "{{}}" for the statement')
    data.stated.append(prompt)
    path = annotations or data.root / "mmvp_vlm" / "Questions.csv"
    data.files["questions"] = path
    photos = data.photos("mmvp_vlm/MLLM_VLM Images")
    rows = _rows(path)
    known = _patterns(list(dict.fromkeys(folder for _, _, folder, _ in rows)), path)
    if len(rows) % 2:
        raise CompoclipError(f"{rows[-1][0]}: the last pair has one row; fetch the file again")
    found = {name: by_stem((files.image_path(photos, name, str(path)),)) for name in known}
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
        part = known[folder]
        yield Case(f"{part}/{first[1]}", Form.GROUP, refs, texts, part)


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
    by_name = {name: subtask for subtask, (_, *names) in _PATTERNS.items() for name in names}
    known = {each: by_name[each.lower()] for each in folders if each.lower() in by_name}
    if not known and len(folders) == len(_PATTERNS):
        return dict(zip(folders, _PATTERNS))
    for each in folders:
        if each not in known:
            raise CompoclipError(
                f"{path}: unknown pattern {each!r:.80}; known: "
                f"{', '.join(name for _, name, _ in _PATTERNS.values())}"
            )
    return known


MMVP_VLM = CaseReader(
    META,
    _cases,
    rules={
        "vl_compo": Aggregate(META.parts),
        "paper": Aggregate(META.parts, metric="image"),
        **{each: Aggregate(META.parts, metric=each) for each in ("image", "text")},
    },
    headline="vl_compo",
    empty="no pairs of PARTS; fetch the official file",
)
