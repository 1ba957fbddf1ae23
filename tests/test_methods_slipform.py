"""Slipform: the margin against plain loops, which words are replaced, files of ratings."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from compoclip.captions.parser import parse
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses import negclip_loss
from compoclip.losses.concrete import cement_loss
from compoclip.losses.contract import Features, Layout, Role
from compoclip.methods.registry import load_recipe
from compoclip.rewrites.concrete import KINDS, concreteness, read_ratings
from compoclip.rewrites.reading import read
from compoclip.rewrites.replace import elements
from data_samples import Parses
from losses_loops import ZERO, texts_of
from losses_oracle import (
    CAPTION,
    CASES,
    NEGATIVE,
    assert_equal,
    caption_of,
    cross_entropy,
    features_for,
    layout_of,
)

CAPTION_TEXT = "A black cat sits on a wooden table near a window."
NAMES = (*KINDS[:3], "d", "e", "f")  # the negatives of the cases have the first three kinds


def cement(f: Features, layout: Layout, margin: float) -> Tensor:
    images = range(layout.images)
    columns = [caption_of(layout, i) for i in images]
    negatives = [t for i in images for t in texts_of(layout, i, NEGATIVE)]
    total = ZERO
    for i in images:
        row = [f.logit_scale * (f.image[i] @ f.text[t]) for t in columns]
        for t in negatives:
            cosine = f.image[i] @ f.text[t]
            if int(layout.owner[t]) == i:
                cosine = cosine + margin * (int(layout.rewrite[t]) + 1) / 4
            row.append(f.logit_scale * cosine)
        back = [f.logit_scale * (f.text[columns[i]] @ f.image[j]) for j in images]
        total = total + (cross_entropy(row, i) + cross_entropy(back, i)) / 2
    return total / layout.images


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("case", CASES)
def test_the_loss_equals_a_loop(case: str, margin: float) -> None:
    layout = layout_of(CASES[case], NAMES)
    assert_equal(
        partial(cement_loss, margin=margin, kinds=KINDS), partial(cement, margin=margin), layout, 3
    )


def test_a_margin_pushes_concrete_negatives_harder() -> None:
    texts = [(0, CAPTION, -1), (0, NEGATIVE, 0), (0, NEGATIVE, 3)]
    layout = layout_of(texts, KINDS)
    f = features_for(layout, seed=1)
    f.text.data[2] = f.text.data[1]
    (slope,) = torch.autograd.grad(cement_loss(f, layout, 0.1, KINDS), f.text)
    weak, strong = slope[1].norm().item(), slope[2].norm().item()
    assert strong > 1.5 * weak > 0
    assert cement_loss(f, layout, 0.0, KINDS) == negclip_loss(f, layout)


def ratings(path: Path, *rows: str, head: str = "Word,Bigram,Conc.M") -> Path:
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


def test_words_are_replaced_in_proportion_to_their_ratings(tmp_path: Path) -> None:
    file = ratings(tmp_path / "r.csv", "cat,0,5", "table,0,3", "black,0,1.0", "Window,0,2")
    known = read_ratings(file)
    assert known == {"cat": 1.0, "table": 0.5, "black": 0.0, "window": 0.25}
    s = read(parse(CAPTION_TEXT))
    words = [s.lemmas[e.stop - 1] for e in elements(s)]
    assert dict(zip(words, concreteness(s, known))).items() >= {
        *{("cat", 1.0), ("table", 0.5), ("window", 0.25)}
    }
    guessed = dict(zip(words, concreteness(s, None)))
    assert (guessed["cat"], guessed["black"]) == (1.0, 0.75)
    texts = TextPlan(load_recipe("slipform")(ratings=str(file)).plan, parsed=Parses())
    counts: Counter[str] = Counter()
    for epoch in range(200):
        (_, *negatives), _ = texts.draw(Sample("1", b"", (CAPTION_TEXT,)), epoch)
        for negative in negatives:
            assert negative.role is Role.NEGATIVE
            replaced = [w for w in ("cat", "table", "window") if w not in negative.text]
            assert len(replaced) == 1
            kind = {"cat": "concrete-4", "table": "concrete-3", "window": "concrete-2"}
            assert negative.rewrite == kind[replaced[0]]
            counts[replaced[0]] += 1
    assert counts["cat"] > counts["table"] > counts["window"] >= 0
    assert sum(counts.values()) > 150


MALFORMED = [
    (("cat,0,5",), "word,Bigram,Conc.M", "has no column Word; Brysbaert et al. .2014. rate 40,000"),
    (("cat,0,9",), "Word,Bigram,Conc.M", "Conc.M '9' must be a rating from 1 to 5"),
    (("cat,0,high",), "Word,Bigram,Conc.M", "Conc.M 'high' must be a rating from 1 to 5"),
    (("cat,0,nan",), "Word,Bigram,Conc.M", "Conc.M 'nan' must be a rating from 1 to 5"),
    ((), "Word,Bigram,Conc.M", "holds no rating; Brysbaert"),
    (("cat,0",), "Word,Bigram,Conc.M", "line 2 has 2 cells, the header has 3"),
]


@pytest.mark.parametrize(("rows", "head", "message"), MALFORMED)
def test_a_malformed_file_of_ratings_is_refused(
    tmp_path: Path, rows: tuple[str, ...], head: str, message: str
) -> None:
    file = ratings(tmp_path / "r.csv", *rows, head=head)
    with pytest.raises(CompoclipError, match=message) as raised:
        read_ratings(file)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_absent_file_and_an_impossible_margin_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=r"nowhere\.csv"):
        read_ratings(tmp_path / "nowhere.csv")
    for margin in (-0.1, 3.0, float("nan")):
        with pytest.raises(UsageError, match=r"--margin .*: must lie between 0 and 2"):
            load_recipe("slipform")(margin=margin)
