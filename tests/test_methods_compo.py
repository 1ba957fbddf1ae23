"""The recipe of our own: what its dial and its switches change."""

from __future__ import annotations

import pytest

from compoclip.errors import UsageError
from compoclip.methods.base import Method
from compoclip.methods.registry import load_recipe


def weights(method: Method) -> dict[str, float]:
    return {term.name: term.weight for term in method.losses}


def test_the_dial_scales_what_is_asked_and_not_what_holds() -> None:
    compo = load_recipe("compo")
    one, three = weights(compo()), weights(compo(strength=3.0))
    assert one == {"clip": 1.0, "global_hn": 1.5, "denial": 1.0, "distill": 0.85}
    assert three == pytest.approx({**one, "global_hn": 4.5, "denial": 3.0})
    assert weights(compo(strength=0.0)) == {"clip": 1.0, "distill": 0.85}
    with pytest.raises(UsageError, match=r"weight -1\.5 must be 0 or more"):
        compo(strength=-1.0)


def test_parts_that_are_off_ask_for_nothing() -> None:
    def kinds(**off: float | bool) -> set[str]:
        return set(load_recipe("compo")(**off).plan.kinds)

    every = kinds()
    assert every - kinds(positive_share=0.0) == {"synonym", "and-swap", "converse"}
    assert every - kinds(shuffle=False) == {"bigram-shuffle"}
    assert every - kinds(denial_weight=0.0) == {"denial"}


def test_a_denial_is_for_its_own_loss_alone() -> None:
    """The base reads it as a mention: neither a negative of the caption nor held where it is."""
    reading = {term.name: getattr(term.loss, "kinds", ()) for term in load_recipe("compo")().losses}
    assert [name for name, kinds in reading.items() if "denial" in kinds] == ["denial"]
    assert "denial" not in load_recipe("compo")(denial_weight=0.0).plan.kinds
