"""Our results as the files in which mteb keeps its own, to read them beside MIEB's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.published.measured import Measured, TableEntry
from compoclip.evaluation.published.read import MtebTask, PublishedTable
from compoclip.files import file_stems, new_folder
from compoclip.models.config import write_json


def write_mteb_files(
    table: PublishedTable, entries: Sequence[TableEntry], measured: Sequence[Measured], out: Path
) -> list[str]:
    """Write one file per model and task of mteb whose scores the columns of a table hold.

    Returns their paths in the folder; a line names each task that is left out.

    The files are `results/compoclip__MODEL/WEIGHTS/TASK.json` in the new folder `out`, in the
    format of `mteb.TaskResult` (2.26). `mteb_version` is null, as mteb did not measure them, and
    `dataset_revision` is the hash of our items. A task is left out unless all its items were
    measured, as the format has no place for a remark.

    Raises UsageError for a table without tasks of mteb, CompoclipError when no task is complete.
    """
    if not table.tasks:
        raise UsageError(f"{table.id} has no tasks of mteb; write --against mieb")
    results = {
        name: {result.reader_name: result for result in blocks[""]} for name, blocks in entries
    }
    stems = file_stems(results)
    column_ids = [column.id for column in table.columns]
    contents: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    for row in measured:
        cells = dict(zip(column_ids, row.cells))
        for task in table.tasks:
            values = {name: cells[column] for name, column in task.scores.items()}
            source = table.columns[column_ids.index(task.scores[task.main])].terms[0][0]
            if row.edition:
                left_out[f"{row.name} {task.name}"] = f"measured on the items of '{row.edition}'"
            elif any(cell is None for cell in values.values()):
                left_out[f"{row.name} {task.name}"] = "not measured"
            elif any(cell and cell.marks for cell in values.values()):
                left_out[f"{row.name} {task.name}"] = "measured on a part of the items"
            else:
                result = results[row.name][source.benchmark]
                weights = str(result.identity.get("weights", "no_revision_available"))
                scores = {name: cell.value for name, cell in values.items() if cell}
                folder = f"results/compoclip__{stems[row.name]}/{weights}"
                contents[f"{folder}/{task.name}.json"] = _file(
                    task, scores, result.data_hash, result.seconds
                )
    if not contents:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise CompoclipError(f"{out}: no task of mteb was measured whole ({reasons})")
    with new_folder(out) as temporary:
        for name, content in contents.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            write_json(temporary / name, content)
    for task_name, reason in left_out.items():
        note(f"left out: {task_name}, {reason}")
    return list(contents)


def _file(
    task: MtebTask, scores: Mapping[str, float], data_hash: str, seconds: float
) -> dict[str, Any]:
    """Return the content of a file of mteb."""
    rounded = {name: round(value, 6) for name, value in scores.items()}  # as mteb rounds
    subset = {"main_score": rounded[task.main], "hf_subset": "default", "languages": ["eng-Latn"]}
    return {
        "dataset_revision": f"compoclip-{data_hash}",
        "task_name": task.name,
        "mteb_version": None,
        "scores": {"test": [{**rounded, **subset}]},
        "evaluation_time": seconds,
        "kg_co2_emissions": None,
    }
