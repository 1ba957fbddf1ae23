"""What is read from the answers of language models, and what of it is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from compoclip.captions.parser import parse
from compoclip.errors import UsageError
from compoclip.language import judge as rules
from compoclip.language.engine import load_task, task_names
from compoclip.language.judge import judge_answers, texts_of
from compoclip.rewrites.base import Rewritten, get_rewrite, rng_for
from compoclip.rewrites.edit import EMPTY, SAME_TOKENS
from compoclip.rewrites.written import (
    CONTRADICTS,
    KEEPS_MEANING,
    LOSES_CONTENT,
    ONLY_ADDS,
    ONLY_DROPS,
    OTHER_STATEMENT,
    OTHER_WORDS,
    TOO_MANY_WORDS,
    negative_objection,
    paraphrase_objection,
    positive_objection,
)
from real_captions import negclip


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ("a red cup", ["a red cup"]),
        ("  A red cup.\n", ["A red cup."]),
        ('"a red cup"', ["a red cup"]),
        ("“a red cup”.", ["a red cup"]),
        ("'a man's cup'", ["a man's cup"]),
        ("Answer: a red cup", ["a red cup"]),
        ("**Output:** *a red cup*", ["a red cup"]),
        ("Sure! Here is the sentence:\n\na red cup\n\n(I replaced mug by cup.)", ["a red cup"]),
        ("a red cup\nNote: cup means mug.", ["a red cup"]),
        ("1. a red cup\n2) a blue cup\n(3) a pan\n- a pot\n• a jug", ["a red cup", "a blue cup",
         "a pan", "a pot", "a jug"]),
        ('["a red cup", "a \\"blue\\" cup"]', ["a red cup", 'a "blue" cup']),
        ('{"sentence": "a red cup"}', ["a red cup"]),
        ('[{"text": "a"}, {"text": "b"}]', ["a", "b"]),
        ('Here you are:\n["a red cup", "a pot"]\nEnjoy!', ["a red cup", "a pot"]),
        ('```json\n{"sentences": ["a red cup"]}\n```', ["a red cup"]),
        ("```\na red cup\n```", ["a red cup"]),
        ("<think>Hm: [\"x\"]\nmore</think>a red cup", ["a red cup"]),
        ("<think>never ends", []),
        ('["a red cup", "a bl', ["a red cup"]),
        ('{"sentences": ["a red cup", "a pot"', ["a red cup", "a pot"]),
        ("", []),
        ("  \n ", []),
        ("[" * 5000, []),
        ("a 10:30 train", ["a 10:30 train"]),
        ("2 dogs on a mat", ["2 dogs on a mat"]),
    ],
)  # fmt: skip
def test_texts(answer: str, texts: list[str]) -> None:
    assert texts_of(answer) == texts


def test_a_fragment_at_the_token_limit_is_no_text() -> None:
    assert texts_of("a red cup\na blue cup\na gre", cut_off=True) == ["a red cup", "a blue cup"]
    assert texts_of("a red c", cut_off=True) == []
    assert texts_of('["a red cup", "a bl', cut_off=True) == ["a red cup"]


def test_every_task_reads_well() -> None:
    assert len(task_names()) == len({load_task(name).hash for name in task_names()}) == 8
    for name in task_names():
        task = load_task(name)
        (message,) = task.messages("a red cup and a pot")
        assert message["content"].endswith("Sentence: a red cup and a pot\nAnswer:")
        assert task.source
        assert len(task.hash) == 16
        for one, other in task.examples:  # what the prompt shows passes its own rules
            assert judge_answers(task, one, [(other, False)]).accepted == (other,)
    swap = load_task("positives-swap")
    assert len(swap.examples) == 5
    assert swap.asks("a cat and a dog")
    assert not swap.asks("a candy stand")
    assert not load_task("dense").asks("  ")
    with pytest.raises(UsageError, match="known: dense, negatives"):
        load_task("poem")


@pytest.mark.parametrize(
    ("task", "caption", "answer", "reason"),
    [
        ("positives-replace", "a red cup", "a crimson cup", None),
        ("positives-replace", "a red cup", "", EMPTY),
        ("positives-replace", "a red cup", "A RED cup", SAME_TOKENS),
        ("positives-replace", "a red cup", "a blue cup", CONTRADICTS),
        ("positives-replace", "two dogs run", "three dogs run", CONTRADICTS),
        ("positives-replace", "a red cup", "a crimson mug", OTHER_WORDS),
        ("positives-replace", "a red cup", "a cup that is red", TOO_MANY_WORDS),
        ("positives-replace", "a red cup", "None.", rules.NONE),
        ("positives-replace", "a red cup", "I'm sorry, I cannot do that.", rules.REFUSAL),
        ("positives-replace", "a red cup", "As an AI language model, I ...", rules.REFUSAL),
        ("positives-replace", "a cup", "exactly one word of the sentence by a cup", rules.ECHO),
        ("positives-verb", "a man wearing a hat", "a man clothed in a hat", None),
        ("positives-verb", "a man holding a cup", "a man holding a mug", rules.NO_VERB),
        ("positives-verb", "a red cup", "a man clothed in a hat", rules.ECHO),
        ("positives-spatial", "a pot under a mug", "a pot beneath a mug", None),
        ("positives-spatial", "a cup on top of a box", "a cup on a box", None),
        ("positives-spatial", "a cup on a box", "a cup under a box", CONTRADICTS),
        ("positives-spatial", "a red cup on a box", "a crimson cup on a box",
         rules.NO_PREPOSITION),
        ("positives-swap", "a cup and a pot", "a pot and a cup", None),
        ("positives-swap", "a cup and a pot", "a mug and a pot", rules.WORDS_CHANGED),
        ("positives-swap", "a black cat and a white dog", "a white cat and a black dog",
         OTHER_STATEMENT),
        ("negatives-swap", "a cup on a pot", "a pot on a cup", None),
        ("negatives-swap", "a cup and a pot", "a pot and a cup", KEEPS_MEANING),
        ("negatives-swap", "a cup next to a pot", "a pot next to a cup", KEEPS_MEANING),
        ("negatives-swap", "a cup on a pot", "a lamp on a cup", rules.WORDS_CHANGED),
        ("negatives", "a red cup", "a blue cup", None),
        ("negatives", "a cup on a box", "a cup under a box", None),
        ("negatives", "a cup on a box", "a cup atop a box", KEEPS_MEANING),
        ("negatives", "a dog on a mat", "no dog on a mat", None),
        ("negatives", "a red cup", "a crimson cup", KEEPS_MEANING),
        ("negatives", "a red cup here", "a small cup here", KEEPS_MEANING),
        ("negatives", "a large red cup", "a large cup", ONLY_DROPS),
        ("negatives", "a big cup", "a big red cup", ONLY_ADDS),
        ("paraphrase", "a man riding a bike", "a person rides a bicycle", None),
        ("paraphrase", "a man riding a bike", "a man not riding a bike", CONTRADICTS),
        ("paraphrase", "a red cup on a wall", "a blue cup upon a wall", CONTRADICTS),
        ("paraphrase", "two dogs chase a ball", "the sun shines brightly", LOSES_CONTENT),
        ("dense", "a red cup", "the cup stands on a wooden table", None),
        ("dense", "a red cup", "a table", rules.TOO_FEW_WORDS),
        ("dense", "a red cup", "a blue cup on a table", CONTRADICTS),
        ("dense", "a red and white cup", "a white cup on a table", None),
        ("dense", "a red cup", "word " * 40, TOO_MANY_WORDS),
    ],
)  # fmt: skip
def test_judgement(task: str, caption: str, answer: str, reason: str | None) -> None:
    found = judge_answers(load_task(task), caption, [(answer, False)])
    if reason is None:
        assert found.accepted == (answer,)
        assert found.rejected == ()
    else:
        assert found.accepted == ()
        assert [why for _, why in found.rejected] == [reason]


def test_several_answers_add_up_to_the_most_and_repeat_nothing() -> None:
    task = load_task("negatives")
    answers = [("a blue cup\nA blue cup\na red cup", False), ("a green cup\na pink cup", False)]
    found = judge_answers(task, "a red cup", answers)
    assert found.accepted == ("a blue cup", "a green cup", "a pink cup")
    assert found.rejected == (("A blue cup", rules.REPEATED), ("a red cup", SAME_TOKENS))
    assert judge_answers(task, "a red cup", [("a blue c", True)]).rejected[0][1] == "too-long"
    one = judge_answers(
        load_task("positives-replace"), "a red cup", [("a crimson cup\nThat was it", False)]
    )
    assert one == rules.Judged(("a crimson cup",), ())
    sorry = "I am sorry, a sign says"
    assert judge_answers(
        task, f"{sorry} stop", [(f"{sorry} go", False)]
    ).accepted  # so does the caption


def test_rules_agree_with_the_rewrites_on_real_captions(shared_data: Path) -> None:
    """Texts made by rule are judged as what they are (the reverse would count as a positive)."""
    captions = [row["title"].strip() for row in negclip(shared_data)[:80]]
    taken: dict[str, list[bool]] = {}
    for number, caption in enumerate(map(parse, captions)):
        for name in ("replace", "negclip", "synonym", "and-swap"):
            rewrite = get_rewrite(name)
            made = rewrite(caption, rng_for(0, str(number), 0, name))
            if not isinstance(made, Rewritten):
                continue
            text = parse(made.text)
            own, other = positive_objection, negative_objection
            if not rewrite.keeps_meaning:
                own, other = other, own
            taken.setdefault(name, []).append(own(caption, text) is None)
            taken.setdefault(f"{name} reversed", []).append(other(caption, text) is None)
            if rewrite.keeps_meaning:
                taken.setdefault("paraphrase", []).append(
                    paraphrase_objection(caption, text) is None
                )
    shares = {name: sum(values) / len(values) for name, values in taken.items()}
    assert min(shares[name] for name in ("replace", "negclip", "synonym")) > 0.97
    assert shares["paraphrase"] > 0.95
    assert shares["and-swap"] > 0.8
    for name in ("replace", "negclip", "synonym"):
        assert shares[f"{name} reversed"] < 0.1
