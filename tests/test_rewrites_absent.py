"""Objects that are absent, or affirmed: fixed sentences with every candidate, refusals."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from compoclip.captions.parser import parse
from compoclip.rewrites import absent_object
from compoclip.rewrites.absent_object import ABSENT_OBJECT, AFFIRMED_OBJECT, say_absent
from compoclip.rewrites.base import Refused, Rewrite, Rewritten
from compoclip.rewrites.exclusion import EVERYWHERE
from rewrite_facts import made


def all_texts(rewrite: Rewrite, text: str, draws: int = 300) -> set[str]:
    found = made(rewrite, text, draws)
    assert len(found) == draws
    for each in found:
        (edit,) = each.edits
        assert text[: edit.start] == each.text[: edit.new_start]
        assert (edit.end, edit.new_end) == (len(text), len(each.text))
    return {each.text for each in found}


def objects(texts: Iterable[str]) -> set[str]:
    return {text.rstrip(".").rpartition(" no ")[2] for text in texts}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scenes of few things."""
    scenes = {
        "street": ("car", "bench", "traffic light", "fire hydrant"),
        "bathroom": ("sink", "mirror", "scissors"),
    }
    monkeypatch.setattr(absent_object, "_scenes", lambda: scenes)


def test_every_text_of_an_absent_object(few: None) -> None:
    assert all_texts(ABSENT_OBJECT, "A dog beside a car.") == {
        f"A dog beside a car{form.format(thing)}"
        for thing in ("bench", "traffic light", "fire hydrant")
        for form in (", but no {}", ", but there is no {}", ". There is no {}.")
    }


def test_every_text_of_an_affirmed_object(few: None) -> None:
    assert all_texts(AFFIRMED_OBJECT, "a clean sink") == {
        "a clean sink and a mirror",
        "a clean sink and scissors",
        "a clean sink. There is a mirror.",
        "a clean sink. There are scissors.",
    }


def test_a_scene_may_be_named_itself(few: None) -> None:
    assert objects(all_texts(ABSENT_OBJECT, "people on a street")) == {
        "car", "bench", "traffic light", "fire hydrant",
    }  # fmt: skip


def test_without_a_scene_anything_may_be_missed(few: None) -> None:
    assert objects(all_texts(ABSENT_OBJECT, "a giraffe")) == {
        "car", "bench", "traffic light", "fire hydrant", "sink", "mirror", "scissors",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("caption", "never"),
    [
        ("two cars and a truck on a street", {"car"}),  # what is named
        ("a vehicle on a street", {"car"}),  # a kind of what is named
        ("a taxi on a street", {"car"}),  # may be the same thing
        ("a street with no bench", {"bench"}),  # what is denied already
        ("a street in the traffic", {"traffic light"}),  # a word of it
    ],
)
def test_what_may_be_there_is_not_said_to_be_absent(
    few: None, caption: str, never: set[str]
) -> None:
    found = objects(all_texts(ABSENT_OBJECT, caption))
    assert found
    assert not found & never


def test_no_caption_of_the_image_names_the_object(few: None) -> None:
    captions = [parse(text) for text in ("a man in a street", "A taxi passes.", "an old bench")]
    drawn = [say_absent(captions, random.Random(i)) for i in range(300)]
    texts = [each.text for each in drawn if isinstance(each, Rewritten)]
    assert len(texts) == 300
    assert all(text.startswith("a man in a street") for text in texts)
    assert objects(texts) == {"fire hydrant", "traffic light"}


def test_refusals(few: None) -> None:
    rng = random.Random(0)
    for rewrite in (ABSENT_OBJECT, AFFIRMED_OBJECT):
        assert rewrite(parse(""), rng) == Refused("empty-caption")
        everything = parse(
            "a car, a bench, a traffic light, a fire hydrant, a sink, a mirror, scissors"
        )
        assert rewrite(everything, rng) == Refused("no-candidate")
        assert rewrite(parse("a dog " * 60), rng) == Refused("too-long")


def test_the_list_names_things_that_can_be_missed() -> None:
    scenes = absent_object._scenes()
    assert len(scenes) > 20
    for name, things in scenes.items():
        assert len(things) == len(set(things)) >= 4, name
        assert not EVERYWHERE.intersection(things), name
