"""Caption plans: reproducible draws, dropped duplicates, given negatives, and honest counts."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass

import pytest

from compoclip.captions.types import Caption
from compoclip.data.caption_plan import NONE_GIVEN, TOO_LONG
from compoclip.data.drawing import EQUALS_CAPTION, EQUALS_OTHER, PlanCounts
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample
from compoclip.errors import UsageError
from compoclip.losses.contract import Role
from compoclip.rewrites.base import Refused, Rewrite, Rewritten, rng_for
from data_samples import Unparsed


@dataclass(frozen=True)
class Fake:
    """Puts a number after the caption, says what it is told to, or refuses."""

    name: str
    says: str = ""
    keeps_meaning: bool = False
    version: str = "1"

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        if self.says == "refuse":
            return Refused("no-legal-pair")
        text = self.says or f"{caption.text} {rng.randrange(10**9)}"
        return Rewritten(text, self.name, self.keeps_meaning, "fake", ())


FAKES = {
    fake.name: fake
    for fake in (
        Fake("number"),
        Fake("other-number"),
        Fake("positive", keeps_meaning=True),
        Fake("never", "refuse"),
        Fake("echo", "A Cat , sitting"),
        Fake("same", "One thing."),
        Fake("same-again", "one thing ."),
        Fake("human", "the cat sits", keeps_meaning=True),
    )
}


def resolve(name: str) -> Rewrite:
    return FAKES[name]


def plan(*names: str, seed: int = 0) -> TextPlan:
    return TextPlan(names, seed=seed, parsed=Unparsed(), resolve=resolve)


CAT = Sample("cat", b"", ("a cat, sitting",))
TWO = Sample("two", b"", ("a cat, sitting", "The cat sits"))


def test_caption_first_then_rewrites_in_order_with_their_roles() -> None:
    texts, counts = plan("positive", "number").draw(CAT, 3)
    assert [(t.role, t.rewrite) for t in texts] == [
        (Role.CAPTION, ""),
        (Role.POSITIVE, "positive"),
        (Role.NEGATIVE, "number"),
    ]
    assert texts[0].text == "a cat, sitting"
    expected = rng_for(0, "cat", 3, "number").randrange(10**9)
    assert texts[2].text == f"a cat, sitting {expected}"
    assert counts.accepted == {"positive": 1, "number": 1}
    assert not counts.refused


def test_draws_depend_on_seed_sample_and_epoch_alone() -> None:
    base = plan("number").draw(CAT, 0)[0]
    assert plan("number").draw(CAT, 0)[0] == base
    assert plan("other-number", "number").draw(CAT, 0)[0][2] == base[1]
    assert plan("number").draw(CAT, 1)[0] != base
    assert plan("number", seed=1).draw(CAT, 0)[0] != base
    again = pickle.loads(pickle.dumps(plan("number")))  # noqa: S301 our own object
    assert again.draw(CAT, 0)[0] == base


def test_every_caption_of_a_sample_gets_its_turn() -> None:
    drawn = [plan().draw(TWO, epoch)[0][0].text for epoch in range(60)]
    assert set(drawn) == set(TWO.captions)
    assert 15 < drawn.count(TWO.captions[0]) < 45


def test_texts_that_clip_cannot_tell_apart_are_dropped_and_counted() -> None:
    texts, counts = plan("echo", "same", "same-again", "never").draw(CAT, 0)
    assert [t.rewrite for t in texts] == ["", "same"]
    assert counts.refused == {
        ("echo", EQUALS_CAPTION): 1,
        ("same-again", EQUALS_OTHER): 1,
        ("never", "no-legal-pair"): 1,
    }


def test_a_negative_may_not_be_another_true_caption_but_a_positive_may() -> None:
    sample = Sample("x", b"", ("the cat sits down", "A cat, sitting."))
    epoch = next(e for e in range(20) if plan().draw(sample, e)[0][0].text == sample.captions[0])
    assert plan("echo").draw(sample, epoch)[1].refused == {}
    sample = Sample("x", b"", ("the cat sits down", "a cat, sitting"))
    assert plan("echo").draw(sample, epoch)[1].refused == {("echo", EQUALS_CAPTION): 1}
    epoch = next(e for e in range(20) if plan().draw(TWO, e)[0][0].text == TWO.captions[0])
    assert plan("human").draw(TWO, epoch)[1].accepted == {"human": 1}


def test_given_negatives() -> None:
    given = TextPlan(["given"])
    assert not given.plan.needs_parsing
    sample = Sample("x", b"", ("A dog.",), ("a dog .", "a god", "no dog"))
    texts = {given.draw(sample, epoch)[0][1].text for epoch in range(30)}
    assert texts == {"a god", "no dog"}
    assert given.draw(sample, 0)[0][1].role is Role.NEGATIVE
    for negatives, reason in (
        ((), NONE_GIVEN),
        (("a dog",), None),  # without the full stop it is another text
        (("A dog .",), EQUALS_CAPTION),
        (("dog " * 76,), TOO_LONG),
    ):
        counts = given.draw(Sample("x", b"", ("A dog.",), negatives), 0)[1]
        assert counts.refused == ({("given", reason): 1} if reason else {})


def test_counts_add_up_whatever_the_grouping() -> None:
    names = ("number", "never", "echo")
    one, parts = PlanCounts(), [PlanCounts(), PlanCounts()]
    for i in range(10):
        counts = plan(*names).draw(Sample(str(i), b"", ("a cat, sitting", "b")), 0)[1]
        one.add(counts)
        parts[i % 2].add(counts)
    both = PlanCounts()
    for part in reversed(parts):
        both.add(part)
    assert both == one
    data = one.to_json()
    assert data["samples"] == 10
    assert data["rewrites"]["number"] == {"made": 10, "samples": 10, "coverage": 1.0, "refused": {}}
    assert data["rewrites"]["never"]["refused"] == {"no-legal-pair": 10}
    assert list(data["rewrites"]) == ["echo", "never", "number"]
    assert PlanCounts().coverage("number") == 0.0


def test_an_unknown_rewrite_and_lacking_parses_are_refused_before_training() -> None:
    with pytest.raises(UsageError, match="no rewrite 'oops'"):
        TextPlan(["oops"], parsed=Unparsed())
    with pytest.raises(ValueError, match="parsed captions"):
        TextPlan(["number"], resolve=resolve)
