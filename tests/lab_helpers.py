"""What tests of the lab share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from compoclip.evaluation.statistics import Bootstrap
from compoclip_world.export.suite import write_suite
from lab.columns import differences


class Here:
    """In the place of `Workers`: each task is done in this process, which has imported torch and
    read the word lists already."""

    def __init__(self, count: int, **_: object) -> None:
        assert count == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def as_done(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        return map(work, tasks)


def run_small(patch: pytest.MonkeyPatch, folder: Path, benchmarks: Sequence[str] = ()) -> None:
    """Let labs run in this process, with a cache below the folder, few resamples of differences,
    and suites of these benchmarks of the world alone."""
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    patch.setattr("lab.pool.Workers", Here)
    patch.setattr("lab.run.differences", partial(differences, bootstrap=Bootstrap(50)))
    patch.setattr("lab.ground.write_suite", partial(write_suite, benchmarks=benchmarks))


def cells(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table, row by row, without the line below the header."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [row for row in rows if set("".join(row)) - set("-:")]


def box_of(box: Sequence[Any], category: int = 1, **fields: Any) -> dict[str, Any]:
    """Return an annotation of COCO's instances, of the photo of `coco`."""
    return {"image_id": 9, "category_id": category, "bbox": box, "iscrowd": 0, **fields}


def coco(*annotations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return instances like COCO's: an umbrella to the left of skis, and further annotations."""
    return {
        "images": [{"id": 9, "file_name": "9.jpg", "width": 100, "height": 100}],
        "categories": [{"id": 1, "name": "umbrella"}, {"id": 2, "name": "skis"}],
        "annotations": [box_of([0, 0, 20, 20]), box_of([30.5, 0, 20, 20], 2), *annotations],
        **changes,
    }
