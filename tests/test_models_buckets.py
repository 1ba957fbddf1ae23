"""How texts are grouped by length: the cheapest split, and nothing lost."""

from __future__ import annotations

from itertools import combinations, pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from compoclip.models.text_plan import PackedTokens, TextPlanner, choose_buckets
from models_thin import END, START, token_ids


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 12))
def test_buckets_are_the_cheapest_split(lengths: list[int], cost: int) -> None:
    lengths = sorted(lengths)
    n = len(lengths)
    buckets = choose_buckets(lengths, cost)
    assert [b.start for b in buckets] == [0, *(b.stop for b in buckets[:-1])]
    assert buckets[-1].stop == n
    assert all(b.length == lengths[b.stop - 1] for b in buckets)

    def price(cuts: tuple[int, ...]) -> int:
        edges = (0, *cuts, n)
        return sum(lengths[stop - 1] * (stop - start) + cost for start, stop in pairwise(edges))

    best = min(price(cuts) for k in range(n) for cuts in combinations(range(1, n), k))
    assert price(tuple(b.start for b in buckets[1:])) == best


def test_plan_keeps_every_text_and_drops_only_equal_ones() -> None:
    lengths = [7, 3, 20, 12, 7, 2, 9, 3, 15]
    ids = token_ids(lengths)
    ids = torch.cat([ids, ids[[2, 0, 2]]])  # repeated texts, out of order
    last = torch.tensor([row.index(END) for row in ids.tolist()])
    for deduplicate, rows in ((True, len(lengths)), (False, len(ids))):
        inputs = TextPlanner(True, True, None, 0).inputs(ids, deduplicate)
        (packed,) = inputs.groups
        assert isinstance(packed, PackedTokens)
        laid_out = torch.zeros(rows * 20, dtype=ids.dtype).index_copy(0, packed.place, packed.ids)
        assert torch.equal(laid_out.view(rows, 20)[inputs.place], ids)
        assert torch.equal(inputs.last[inputs.place], last)
        assert inputs.last.tolist() == sorted(inputs.last.tolist())
    assert inputs.positions == sum(lengths) + 20 + 7 + 20  # bucket cost 0: no padding at all


@given(
    st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=1, max_size=12),
    st.integers(0, 4),
    st.sampled_from([0, 8]),
)
def test_beginnings_that_texts_share_are_listed_once(
    texts: list[list[int]], limit: int, cost: int
) -> None:
    ids = torch.zeros(len(texts), 8, dtype=torch.int64)
    for row, text in zip(ids, texts):
        row[: len(text) + 2] = torch.tensor([START, *text, END])
    inputs = TextPlanner(True, True, None, cost, limit, shares=True).inputs(ids)
    begin = 0
    for packed in inputs.groups:
        assert isinstance(packed, PackedTokens)
        # A row of the group -> its tokens, as the list has them.
        of_texts = torch.arange(len(packed.ids)) if packed.shared is None else packed.shared[0]
        rows = [
            of_texts[start:stop].tolist()
            for start, stop in zip(packed.starts[:-1].tolist(), packed.starts[1:].tolist())
        ]
        tokens = [tuple(packed.ids[row].tolist()) for row in rows]
        for number, row in enumerate(tokens, begin):
            text = int((inputs.place == number).nonzero()[0])
            assert list(row) == [START, *texts[text], END]
        assert packed.ends.tolist() == [row[-1] for row in rows]
        assert all(packed.position[row].tolist() == [*range(len(row))] for row in rows)
        beginnings = {row[: k + 1] for row in tokens for k in range(len(row))}
        assert {place for row in rows for place in row} == set(range(len(packed.ids)))
        if packed.shared is None:
            assert len(beginnings) > 0.9 * sum(map(len, rows))
        else:
            assert len(packed.ids) == len(beginnings)
            assert torch.equal(of_texts[packed.shared.in_texts], torch.arange(len(packed.ids)))
        begin += len(rows)
