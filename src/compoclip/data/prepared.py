"""Tokenise the texts of a batch in the workers."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from compoclip.data.batch import Batch, Numbers
from compoclip.losses.contract import IndexRequest, Ints, Role
from compoclip.models.text_plan import FurtherTexts, TextPlanner
from compoclip.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Preparation:
    """Packs the texts of batches into integers; may be sent to other processes.

    Args:
        tokenize: The model's tokenizer.
        planner: Layout of texts for its text tower.
    """

    tokenize: Tokenizer
    planner: TextPlanner

    def __call__(self, batch: Batch, requests: Collection[IndexRequest] = ()) -> Numbers:
        """Return the token ids of a batch, and the indices that losses ask for.

        A batch without texts gets an empty one, since towers cannot encode nothing.
        """
        ids, truncated = self.tokenize.encode(batch.texts or ("",))
        arrays: list[Ints] = []

        def packed(array: Any) -> Any:
            arrays.append(np.asarray(array))
            return len(arrays) - 1

        planned = self.planner.inputs(torch.from_numpy(ids).long())
        host = batch.on_host(ids[: len(batch.texts)])
        if batch.masks:
            captions, _ = host.first(Role.CAPTION)
            planned = replace(planned, again=self._masked(batch, ids, captions))
        texts = planned.mapped(packed)
        layout = host.mapped(packed)
        answers: dict[IndexRequest, tuple[int, ...]] = {}
        for request in requests:
            with suppress(ValueError):  # of a batch that the loss is not asked about
                indices = host.answer(request)  # pairs of a very large batch do not fit
                if all(array.size == 0 or int(array.max()) < 2**31 for array in indices):
                    answers[request] = tuple(map(packed, indices))
        flat = [np.empty(0, np.int32), *(array.ravel() for array in arrays)]  # all within int32
        return Numbers(
            torch.from_numpy(np.concatenate(flat, dtype=np.int32, casting="unsafe")),
            tuple((array.shape, array.dtype == bool) for array in arrays),
            texts,
            layout,
            answers,
            truncated if batch.texts else 0,
        )

    def _masked(self, batch: Batch, ids: Ints, captions: Ints) -> FurtherTexts:
        """The first caption of each image with its words hidden, `~id` standing for an id (see
        `methods/macco/hidden.py`)."""
        rows = ids[captions].astype(np.int64)
        hidden = np.zeros(rows.shape, bool)
        # A word's tokens are those between the end of what comes before it and its own.
        cuts = [
            (row, edge)
            for row, (caption, mask) in enumerate(zip(captions, batch.masks))
            for span in mask.spans(batch.texts[caption])
            for edge in (batch.texts[caption][: span[0]], batch.texts[caption][: span[1]])
        ]
        edges = self.tokenize([text for _, text in cuts] or [""])
        ends = self.planner.ends(edges).tolist()
        last = self.planner.ends(torch.from_numpy(rows)).tolist()
        for (row, _), start, stop in zip(cuts[::2], ends[::2], ends[1::2]):
            hidden[row, start : min(stop, last[row])] = True
        inputs = self.planner.inputs(torch.from_numpy(np.where(hidden, ~rows, rows)))
        image, place = np.nonzero(hidden)
        numbers = image * inputs.longest + place, rows[image, place]
        return FurtherTexts(inputs, tuple(map(torch.from_numpy, numbers)))
