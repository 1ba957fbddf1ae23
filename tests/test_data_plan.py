"""Caption plans: reproducible draws, dropped duplicates, other captions, and honest counts."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compoclip.captions.parser import parse
from compoclip.captions.store import ParseStore
from compoclip.captions.types import Caption
from compoclip.data.batch import Batch
from compoclip.data.caption_plan import NONE_GIVEN, TOO_LONG, CaptionPlan
from compoclip.data.drawing import EQUALS_CAPTION, EQUALS_OTHER, Drawn, PlanCounts
from compoclip.data.plan import TextPlan, prepare_captions
from compoclip.data.sources import Sample
from compoclip.data.text_names import GIVEN, GIVEN_POSITIVE
from compoclip.data.texts import TargetPlan
from compoclip.errors import UsageError
from compoclip.losses.contract import Role
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe
from compoclip.rewrites.base import Refused, Rewritten, rng_for
from data_samples import Parses, Unparsed, few


@dataclass(frozen=True)
class Fake:
    """Puts a number after the caption, gives a fixed text, or refuses."""

    name: str
    text: str = ""
    keeps_meaning: bool = False
    version: str = "1"

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        if self.text == "refuse":
            return Refused("no-legal-pair")
        text = self.text or f"{caption.text} {rng.randrange(10**9)}"
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


def plan(*names: str, seed: int = 0) -> TextPlan:
    return TextPlan(names, seed=seed, parsed=Unparsed(), resolve=FAKES.__getitem__)


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


@pytest.mark.parametrize(
    ("name", "field", "texts", "role"),
    [
        (GIVEN, "negatives", ("a dog .", "a god", "no dog"), Role.NEGATIVE),
        (GIVEN_POSITIVE, "positives", ("a god", "no dog"), Role.POSITIVE),
    ],
)
def test_given_texts_are_drawn_or_their_lack_is_counted(
    name: str, field: str, texts: tuple[str, ...], role: Role
) -> None:
    given = TextPlan([name])
    assert not given.plan.needs_parsing
    sample = replace(Sample("x", b"", ("A dog.",)), **{field: texts})
    drawn = {given.draw(sample, epoch)[0][1] for epoch in range(30)}
    assert {text.text for text in drawn} == {"a god", "no dog"}
    assert {(text.role, text.rewrite) for text in drawn} == {(role, name)}
    for unfit, reason in (
        ((), NONE_GIVEN),
        (("a dog",), None),  # without the full stop it is another text
        (("A dog .",), EQUALS_CAPTION if role is Role.NEGATIVE else EQUALS_OTHER),
        (("dog " * 76,), TOO_LONG),
    ):
        result, counts = given.draw(replace(sample, **{field: unfit}), 0)
        assert len(result) == (1 if reason else 2)
        assert counts.refused == ({(name, reason): 1} if reason else {})


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
        TextPlan(["number"], resolve=FAKES.__getitem__)


THREE = ("a red cat on a blue mat", "a cat lies on a mat", "the mat has a cat on it")


def drawn(
    plan: CaptionPlan, captions: Sequence[str] = THREE, epoch: int = 0, **more: Any
) -> tuple[list[Drawn], PlanCounts]:
    sample = Sample(id="0", image=b"", captions=tuple(captions), **more)
    return TextPlan(plan, parsed=Parses()).draw(sample, epoch)


def test_another_caption_is_a_positive() -> None:
    plan = CaptionPlan(rewrites=("other-caption",))
    assert not plan.needs_parsing
    seen = set()
    for epoch in range(20):
        (caption, other), counts = drawn(plan, epoch=epoch)
        assert (other.role, other.rewrite) == (Role.POSITIVE, "other-caption")
        assert {caption.text, other.text} < set(THREE)
        assert counts.accepted == {"other-caption": 1}
        seen.add((caption.text, other.text))
    assert len(seen) == 6
    alone, counts = drawn(plan, ["a cat", "A cat"])
    assert len(alone) == 1
    assert counts.refused == {("other-caption", "no-other-caption"): 1}


def test_a_rewrite_is_drawn_as_often_as_it_stands() -> None:
    once, _ = drawn(CaptionPlan(rewrites=("negclip",)))
    thrice, counts = drawn(CaptionPlan(rewrites=("negclip",) * 3))
    assert thrice[: len(once)] == once
    assert len({text.text for text in thrice}) == len(thrice)
    assert counts.accepted["negclip"] + sum(counts.refused.values()) == 3
    assert CaptionPlan(rewrites=("negclip",) * 3).kinds == ("negclip",)


def test_a_target_is_drawn_and_not_encoded() -> None:
    for target in ("other", "any"):
        plan = CaptionPlan(texts=(TargetPlan(target),))  # type: ignore[arg-type]
        assert plan.kinds == ()
        pairs = set()
        for epoch in range(40):
            (caption, wanted), _ = drawn(plan, epoch=epoch)
            assert wanted.rewrite == "target"
            pairs.add((caption.text, wanted.text))
        assert len(pairs) == (6 if target == "other" else 9)
    (caption, wanted), _ = drawn(CaptionPlan(texts=(TargetPlan("other"),)), ["a cat"])
    assert wanted.text == caption.text == "a cat"
    with pytest.raises(UsageError, match=r"texts.target.of must be one of nothing, other, any, "):
        TargetPlan("both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="targets and masks must name every image"):
        Batch(torch.zeros(1, 3, 1, 1), ("a",), (0,), (Role.CAPTION,), ("",), targets=("a", "b"))


def test_composed_texts_keep_how_often_they_stand() -> None:
    both = compose(load_recipe("read-clip-align")(), ["+other-caption", "+degla"])
    assert both.plan.rewrites[:4] == ("negclip", "negclip", "negclip", "other-caption")
    assert both.plan.rewrites[4:] == load_recipe("degla")().plan.rewrites
    plain = compose(load_recipe("fsc-clip")(), ["+other-caption"])
    assert plain.plan.rewrites[-1] == "other-caption"


# --- Captions are parsed once before training; workers look the parses up. ---


TEXTS = ["A red cat sits.", "Two dogs run.", "A red cat sits."]


def test_every_distinct_caption_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "compoclip" / "parses.sqlite"  # by default
    source = few([Sample(str(i), b"", (text,)) for i, text in enumerate(TEXTS)])
    captions = prepare_captions(source, workers=1)
    store = ParseStore(path)
    assert len(store) == 2
    assert captions[TEXTS[0]] == parse(TEXTS[0])
    more = few([Sample(str(i), b"", (text,)) for i, text in enumerate((*TEXTS, "Four cups."))])
    prepare_captions(more, store, workers=1)
    assert len(store) == 3
    assert captions["An owl."] == parse("An owl.")  # is parsed when it is asked for

    def parse_again(*_: object) -> list[str]:
        raise AssertionError("parsed again")

    monkeypatch.setattr("compoclip.captions.store._encoded", parse_again)
    again = prepare_captions(source, ParseStore(path), workers=1)
    for handle in (again, pickle.loads(pickle.dumps(again))):  # noqa: S301 our own object
        assert handle[TEXTS[1]] == parse(TEXTS[1])
