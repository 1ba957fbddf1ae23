"""Scores of pairs by a matching head (BLIP's ITM): every pair of a case is encoded together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from compoclip.benchmarks.case import Benchmark, Case, Form, ImageRef
from compoclip.benchmarks.coverage import Content
from compoclip.console import track
from compoclip.errors import UsageError
from compoclip.evaluation.encoder import Encoder
from compoclip.evaluation.features import Features, Matches

Score = Literal["itc", "itm"]


def require_pairs(benchmarks: Sequence[Benchmark]) -> None:
    """Raise UsageError, naming the benchmark, where not every item is of few images and texts."""
    for each in benchmarks:
        cases = each.content if isinstance(each.content, tuple) else ()
        if not cases or any(case.form is Form.TEXT_ONLY for case in cases):
            raise UsageError(
                f"{each.name}: a matching head scores the pairs of items (choice, group, triple); "
                "measure retrieval, classification and texts alone with --score itc"
            )


def with_matches(
    encoder: Encoder, contents: Sequence[Content], features: Features, batch_size: int
) -> Features:
    """`features` with the scores of all pairs of the cases in `contents`, each distinct one once.

    batch_size: texts that are encoded at once with an image, whose own states are computed once.
    Pairs with a damaged image are left out, as their cases are. Raises what `encoder.match` raises.
    """
    texts: dict[int, dict[int, str]] = {}
    image_of: dict[int, ImageRef] = {}
    for case in _cases(contents):
        for ref in case.images:
            if ref in features.bad:
                continue
            row = features.image_rows[ref]
            image_of.setdefault(row, ref)
            wanted = texts.setdefault(row, {})
            for text in case.texts:
                wanted.setdefault(features.text_rows[text], text)
    count = len(features.texts)
    keys: list[int] = []
    values: list[np.ndarray] = []
    for row in track(sorted(image_of), "matching pairs", len(image_of), "images"):
        image = encoder.read_image(image_of[row])
        columns = sorted(texts[row])
        for start in range(0, len(columns), batch_size):
            part = columns[start : start + batch_size]
            values.append(encoder.match(image, [texts[row][column] for column in part]))
            keys += [row * count + column for column in part]
    found = np.concatenate(values) if values else np.zeros(0, dtype=np.float32)
    return replace(features, matches=Matches(np.array(keys, dtype=np.int64), found, count))


def _cases(contents: Sequence[Content]) -> list[Case]:
    return [case for content in contents if isinstance(content, tuple) for case in content]
