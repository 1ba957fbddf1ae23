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
    one, three = weights(compo()), weights(compo(strength=3.0, local_weight=0.2))
    assert one == {"clip": 1.0, "global_hn": 1.5, "denial": 3.0, "distill": 2.56}
    assert three == pytest.approx({**one, "global_hn": 4.5, "local_hn": 0.6, "denial": 9.0})
    assert weights(compo(strength=0.0)) == {"clip": 1.0, "distill": 2.56}
    with pytest.raises(UsageError, match=r"weight -1\.5 must be 0 or more"):
        compo(strength=-1.0)


def test_parts_that_are_off_ask_for_nothing() -> None:
    plain = load_recipe("compo")()
    assert not plain.needs_local
    assert not plain.trains.image_tower
    assert plain.plan.texts == ()
    assert load_recipe("compo")(local_weight=0.2).needs_local
    assert load_recipe("compo")(image_tower=True).trains.image_tower


def test_a_relation_told_from_its_other_side_is_a_paraphrase_too() -> None:
    def paraphrases(method: Method) -> set[str]:
        return {name for name in method.plan.rewrite_names if name in ("converse", "synonym")}

    assert paraphrases(load_recipe("compo")()) == {"synonym", "converse"}
    assert paraphrases(load_recipe("compo")(converse=False)) == {"synonym"}


def test_a_denial_is_for_its_own_loss_alone() -> None:
    """The base reads it as a mention: neither a negative of the caption nor held where it is."""
    reading = {term.name: getattr(term.loss, "kinds", ()) for term in load_recipe("compo")().losses}
    assert [name for name, kinds in reading.items() if "denial" in kinds] == ["denial"]
    assert "denial" not in load_recipe("compo")(denial_weight=0.0).plan.kinds
