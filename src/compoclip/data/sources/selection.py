"""A source without some of its samples: a file that names the source and what is left out of it.

    {"selection_of": {"spec": "/data/trohn", "images": "/data/coco/train2017"},
     "without": ["000000391895.jpg#0", ...], "because": "photos of the Karpathy test"}

`compoclip data audit --kept` writes it; it is opened wherever data is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from compoclip.data.fingerprint import Fingerprint
from compoclip.data.sources import Sample, Source
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import write_text

KEY = "selection_of"
_OPTIONS = {
    **dict.fromkeys(("spec", "images", "image_column", "caption_column", "split"), str),
    "quoting": bool,
}
_REMEDY = "write it again: compoclip data audit --kept"


class Selection(Source):
    """The samples of a source without those of some ids; neighbours that are left out are none."""

    def __init__(self, source: Source, without: Iterable[str], because: str, name: str) -> None:
        """Select samples.

        Args:
            source: The samples.
            without: Ids of those that are left out.
            because: Why, as it is counted.
            name: Of the selection, in descriptions.

        Raises:
            CompoclipError: When an id is none of the source, or nothing is left.
        """
        left = frozenset(without)
        ids = source.ids()
        missing = left.difference(ids)
        if missing:
            raise CompoclipError(
                f"{name}: leaves out {min(missing)!r:.80}, which {source.describe()} has not; "
                f"{_REMEDY}"
            )
        self._source, self._name = source, name
        self._kept = np.array([i for i, id in enumerate(ids) if id not in left], np.int64)
        if not len(self._kept):
            raise CompoclipError(f"{name}: leaves out every sample; {_REMEDY}")
        self._place = np.full(len(ids), -1, np.int64)
        self._place[self._kept] = np.arange(len(self._kept))
        self.left_out: Mapping[str, int] = {**source.left_out, because: len(ids) - len(self._kept)}
        self.decoded, self.upright = source.decoded, source.upright

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> Sample:
        return self._sample(index, self._source.__getitem__)

    def bare(self, index: int) -> Sample:
        """The sample; images that do not lie in a file of their own may be no bytes at all."""
        return self._sample(index, self._source.bare)

    def _sample(self, index: int, read: Callable[[int], Sample]) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        sample = read(int(self._kept[index]))
        if not sample.neighbours:
            return sample
        near = (int(self._place[other]) for other in sample.neighbours)
        return replace(sample, neighbours=tuple(other for other in near if other >= 0))

    def _of(self, values: Iterable[Any]) -> Iterable[Any]:
        return (value for value, place in zip(values, self._place) if place >= 0)

    def ids(self) -> list[str]:
        """The id of every sample, in order."""
        return list(self._of(self._source.ids()))

    def caption_lists(self) -> Iterable[tuple[str, ...]]:
        """The captions of each sample, in order."""
        return self._of(self._source.caption_lists())

    def brings(self) -> frozenset[str]:
        """The columns of the whole source."""
        return self._source.brings()

    def groups(self) -> tuple[list[str], list[float | None]]:
        """The group of every sample ("" for none), and its score, if any."""
        names, scores = self._source.groups()
        return list(self._of(names)), list(self._of(scores))

    def image_scores(self) -> list[float | None]:
        """The score of every sample's image, if any."""
        return list(self._of(self._source.image_scores()))

    def fingerprint(self) -> Fingerprint:
        """What the samples that are left hold."""
        return self._source.fingerprint().take(self._kept)

    def describe(self) -> str:
        """Where the samples come from, and how many are left out."""
        return f"{self._source.describe()} without {len(self._place) - len(self)} ({self._name})"


def open_selection(
    path: Path, data: Mapping[str, Any], open_source: Callable[..., Source]
) -> Selection:
    """Open the source that a file selects from, and leave out what it says.

    Args:
        path: The file.
        data: Its content.
        open_source: Opens a source by its options.

    Returns:
        The selection.

    Raises:
        CompoclipError: For a file of another form, or ids that the source has not.
        UsageError: As `open_source` raises it.
    """
    options, without = data[KEY], data.get("without")
    right = isinstance(options, dict) and isinstance(options.get("spec"), str)
    right = right and all(isinstance(v, _OPTIONS.get(k, ())) for k, v in options.items())
    if not right or not isinstance(without, list) or not all(isinstance(i, str) for i in without):
        raise CompoclipError(f"{path}: no selection of a source; {_REMEDY}")
    if Path(options["spec"]).absolute() == path.absolute():
        raise UsageError(f"{path}: selects from itself; {_REMEDY}")
    named = {**options, **({"images": Path(options["images"])} if "images" in options else {})}
    source = open_source(named.pop("spec"), **named)
    because = str(data.get("because") or "sample that the selection leaves out")
    return Selection(source, without, because, str(path))


def write_selection(
    path: Path, spec: str, without: Sequence[str], because: str, **options: Any
) -> None:
    """Write a file that `open_selection` reads.

    Args:
        path: The file.
        spec: The source, as it is named for training; a local path is written in full.
        without: Ids of the samples to leave out.
        because: Why, in words.
        **options: The other arguments of `open_source`.
    """
    given = {name: value for name, value in options.items() if value not in (None, True)}
    named = {"spec": Path(spec), **given}
    source = {k: str(v.absolute()) if isinstance(v, Path) else v for k, v in named.items()}
    record = {KEY: source, "because": because, "without": list(without)}
    write_text(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")
