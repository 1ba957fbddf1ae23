"""Plans as data: choices, shares, curricula, bags; plans and batches of negation recipes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from build.photos import plain as plain_photo
from build.tables import read_jsonl, write_json, write_jsonl
from compoclip.captions.clip_text import token_key
from compoclip.captions.types import Caption
from compoclip.cli.main import main
from compoclip.data.batch import Batch
from compoclip.data.caption_plan import CaptionPlan, OneOf
from compoclip.data.drawing import (
    EQUALS_CAPTION,
    EQUALS_OTHER,
    NONE_APPLIES,
    NOT_CHOSEN,
    Drawn,
    PlanCounts,
)
from compoclip.data.images import SINGLE, BatchBuilder, Companions
from compoclip.data.images.groups import Groups
from compoclip.data.images.neighbours import Distractors, Neighbours
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample, Source
from compoclip.data.sources.open import open_source
from compoclip.data.text_names import GIVEN, GIVEN_POSITIVE, WRITTEN_NEGATIVE
from compoclip.data.texts import (
    BAG,
    BAG_NEGATIVE,
    GRAPH_POSITIVE,
    NO_BAG,
    OWN_CAPTIONS,
    BagPlan,
    GraphPlan,
    PhrasePlan,
    Stage,
    UnitPlan,
)
from compoclip.data.transform import ImageTransform
from compoclip.data.written import NONE_WRITTEN, read_bags
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Role
from compoclip.methods.base import Trains
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe
from compoclip.models.architecture import build_model
from compoclip.models.preprocess import Preprocess
from compoclip.rewrites.base import Refused, Rewritten
from compoclip.training.loop import freeze
from data_samples import Parses, Unparsed, few
from method_data import arguments
from models_thin import config

UNPARSED = Unparsed()


class Word:
    """Adds its name to a caption, unless the caption holds "not <name>"."""

    version = "1"

    def __init__(self, name: str) -> None:
        self.name, self.keeps_meaning = name, name.startswith("good")

    def __call__(self, caption: Caption, rng: random.Random) -> Rewritten | Refused:
        if f"not {self.name}" in caption.text:
            return Refused("no")
        return Rewritten(f"{caption.text} {self.name}", self.name, self.keeps_meaning, "word", ())


def plan(what: CaptionPlan, parsed: Parses | Unparsed = UNPARSED) -> TextPlan:
    return TextPlan(what, seed=0, parsed=parsed, resolve=Word)


def samples(count: int, text: str = "a cat on mat") -> list[Sample]:
    return [Sample(str(i), b"", (f"{text} {i}",)) for i in range(count)]


def test_one_of_several_is_uniform_among_those_that_apply() -> None:
    drawing = plan(CaptionPlan(rewrites=(OneOf("bad", ("x", "y", "z")),)))
    for text, names, least, most in (
        ("a cat on mat", "xyz", 150, 250),
        ("a mat not y", "xz", 240, 360),
    ):
        drawn = [drawing.draw(sample, 0)[0] for sample in samples(600, text)]
        assert all(len(texts) == 2 for texts in drawn)
        counts = Counter(texts[1].rewrite for texts in drawn)
        assert counts.keys() == set(names)
        assert all(least < count < most for count in counts.values())
    texts, plan_counts = drawing.draw(samples(1, "not x not y not z")[0], 0)
    assert len(texts) == 1
    assert plan_counts.refused["bad", NONE_APPLIES] == 1
    assert plan_counts.covered["bad"] == 0


def test_a_share_of_captions_has_negatives_always_the_same_ones() -> None:
    def chosen(share: float, epoch: int) -> set[str]:
        drawing = plan(CaptionPlan(rewrites=("good", "bad"), hn_fraction=share))
        ids = set()
        for sample in samples(400):
            texts, counts = drawing.draw(sample, epoch)
            roles = [text.role for text in texts]
            assert roles[:2] == [Role.CAPTION, Role.POSITIVE]
            assert counts.refused["bad", NOT_CHOSEN] == (len(roles) == 2)
            if Role.NEGATIVE in roles:
                ids.add(sample.id)
        return ids

    quarter, half = chosen(0.25, 0), chosen(0.5, 0)
    assert 70 < len(quarter) < 130
    assert 160 < len(half) < 240
    assert quarter < half
    assert chosen(0.5, 3) == half
    assert len(chosen(1.0, 0)) == 400
    assert not chosen(0.0, 0)
    with pytest.raises(UsageError, match="between 0 and 1"):
        CaptionPlan(hn_fraction=1.5)


LONG = "a small black cat sitting on a red wooden chair next to a large white dog"
SCENE = Sample("x", b"", (LONG,))


def test_a_curriculum_limits_graph_texts_by_epoch() -> None:
    graph = GraphPlan.published(0.2, second_stage=2)
    assert graph.stages == (Stage(0, 1, 1), Stage(2, 3, 6))
    assert graph.weights == pytest.approx((0.2, 0.4, 0.4))
    assert [graph.at(epoch).negatives for epoch in range(4)] == [1, 1, 6, 6]
    drawing = plan(CaptionPlan(texts=(graph,)), Parses())
    for epoch in range(5):
        texts, counts = drawing.draw(SCENE, epoch)
        roles = Counter(text.role for text in texts[1:])
        most = graph.at(epoch)
        assert 1 <= roles[Role.POSITIVE] <= most.positives
        assert 1 <= roles[Role.NEGATIVE] <= most.negatives
        assert {text.rewrite for text in texts[1:]} <= set(drawing.plan.kinds)
        assert counts.accepted[GRAPH_POSITIVE] == roles[Role.POSITIVE]
        assert counts.coverage(GRAPH_POSITIVE) == 1
        assert drawing.draw(SCENE, epoch)[0] == texts
    assert roles[Role.NEGATIVE] > 1
    without = plan(CaptionPlan(texts=(graph,), hn_fraction=0.0), Parses()).draw(SCENE, 4)[0]
    assert {text.role for text in without[1:]} == {Role.POSITIVE}


@pytest.mark.parametrize(("positives", "negatives"), [(1, 1), (2, 3), (3, 0), (0, 3)])
def test_at_most_so_many_graph_texts(positives: int, negatives: int) -> None:
    graph = GraphPlan.published(0.2, 1, positives=positives, negatives=negatives)
    first = Stage(0, min(1, positives), min(1, negatives))
    assert graph.stages == (first, Stage(1, positives, negatives))
    texts, _ = plan(CaptionPlan(texts=(graph,)), Parses()).draw(SCENE, 1)
    roles = Counter(text.role for text in texts[1:])
    both = min(positives, negatives) > 0  # every positive has a negative
    assert roles == ({Role.POSITIVE: positives, Role.NEGATIVE: negatives} if both else {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GraphPlan(weights=(0.0, 0.0, 0.0)), "graph weights"),
        (lambda: GraphPlan(stages=(Stage(1, 1, 1),)), "start at epoch 0"),
        (lambda: GraphPlan(stages=(Stage(0, -1, 1),)), "fewer than 0"),
        (lambda: GraphPlan.published(1.5, 2), "must be 0 to 1"),
        (lambda: BagPlan("x", 0), "at least 1"),
        (lambda: BagPlan("x", negatives=()), "makes its negatives"),
        (lambda: UnitPlan(slots=0), "at least 1"),
        (lambda: UnitPlan(pair_share=1.5), "between 0 and 1"),
        (lambda: PhrasePlan(-1), "texts.phrases.most must not be negative, found -1"),
        (lambda: Neighbours(4), "must be 0 to 3"),
        (lambda: Groups(0, 1), "at least 1 variation"),
    ],
)
def test_impossible_plans(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        make()


def write_bags(folder: Path, *rows: Mapping[str, object]) -> str:
    return str(write_jsonl(folder / "bags.jsonl", rows))


def of_kind(texts: Sequence[Drawn], kind: str) -> list[str]:
    return [text.text for text in texts if text.rewrite == kind]


def test_bags_with_given_and_made_negatives(tmp_path: Path) -> None:
    path = write_bags(
        tmp_path,
        {"id": "0", "sentences": ["one", "two ", " "], "negatives": ["not one", None, "blank"]},
        {"id": "1", "sentences": [f"part {i}" for i in range(9)]},
    )
    once = BagPlan(path, size=4, negatives=("bad",), draw="distinct")
    drawing = plan(CaptionPlan(texts=(once,)))
    first, second, third = samples(3)
    texts, counts = drawing.draw(first, 0)
    assert [(text.text, text.role, text.rewrite) for text in texts[1:]] == [
        ("one", Role.POSITIVE, BAG),
        ("not one", Role.NEGATIVE, BAG_NEGATIVE),
        ("two", Role.POSITIVE, BAG),
        ("two bad", Role.NEGATIVE, BAG_NEGATIVE),
    ]
    by_rule = f"{BAG_NEGATIVE} (bad)"
    assert counts.accepted == {BAG: 2, BAG_NEGATIVE: 2, by_rule: 1}
    assert counts.covered == {BAG: 1, BAG_NEGATIVE: 1, by_rule: 1}
    drawn = [of_kind(drawing.draw(second, epoch)[0], BAG) for epoch in range(9)]
    assert all(len(texts) == 4 and texts == sorted(texts) for texts in drawn)
    assert len({text for texts in drawn for text in texts}) == 9
    # A bag may go by the image when the sample is a row of a table.
    assert drawing.draw(replace(first, id="0#17"), 0)[1].accepted[BAG] == 2
    texts, counts = drawing.draw(third, 0)
    assert [text.text for text in texts] == [third.captions[0]] * 2
    assert (texts[1].role, texts[1].rewrite) == (Role.POSITIVE, BAG)
    assert counts.refused == {(BAG, NO_BAG): 1}


def test_the_other_captions_as_a_bag() -> None:
    once = BagPlan(OWN_CAPTIONS, size=2, negatives=("bad",), draw="distinct")
    drawing = plan(CaptionPlan(texts=(once,)))
    captions = ("a cat", "A  Cat", "one dog", "two dogs", "three dogs")
    sample = Sample("0", b"", captions)
    bags_seen = set()
    for epoch in range(30):
        texts, counts = drawing.draw(sample, epoch)
        bag = of_kind(texts, BAG)
        assert len(bag) == counts.accepted[BAG] == 2
        assert len({token_key(text) for text in (texts[0].text, *bag)}) == 3
        assert of_kind(texts, BAG_NEGATIVE) == [f"{text} bad" for text in bag]
        bags_seen.update(bag)
    assert {token_key(text) for text in bags_seen} == {token_key(text) for text in captions}
    texts, counts = drawing.draw(Sample("1", b"", ("a cat",)), 0)
    assert [(text.text, text.rewrite) for text in texts] == [("a cat", ""), ("a cat", BAG)]
    assert counts.refused == {(BAG, NO_BAG): 1}


def test_a_bag_drawn_with_replacement_has_the_caption_in_it(tmp_path: Path) -> None:
    row = {"id": "0", "sentences": ["one", "two"], "negatives": ["not one", None]}
    bags = BagPlan(write_bags(tmp_path, row), size=10, negatives=("bad",))
    drawing = plan(CaptionPlan(texts=(bags,)))
    sample, other = samples(2)
    totals: Counter[str] = Counter()
    for epoch in range(40):
        texts, counts = drawing.draw(sample, epoch)
        bag = of_kind(texts, BAG)
        assert len(bag) == counts.accepted[BAG] == 10
        # Each time a sentence is drawn it comes with a negative.
        negatives = [{"one": "not one"}.get(text, f"{text} bad") for text in bag]
        assert of_kind(texts, BAG_NEGATIVE) == negatives
        assert {text.role for text in texts if text.rewrite == BAG_NEGATIVE} == {Role.NEGATIVE}
        assert counts.covered[BAG] == counts.covered[BAG_NEGATIVE] == 1
        assert not counts.refused
        assert drawing.draw(sample, epoch)[0] == texts
        totals.update(bag)
    assert set(totals) == {"one", "two", sample.captions[0]}
    assert min(totals.values()) > 90  # of 400, a third each
    # An image without a bag has its caption, as often, and that is counted.
    texts, counts = drawing.draw(other, 0)
    caption = other.captions[0]
    assert [text.text for text in texts[1:]] == [caption, f"{caption} bad"] * 10
    assert counts.refused == {(BAG, NO_BAG): 1}


def test_a_sentence_of_a_bag_is_no_negative_too(tmp_path: Path) -> None:
    path = write_bags(
        tmp_path,
        {"id": "0", "sentences": ["one"], "negatives": ["a cat on mat 0"]},
        {"id": "1", "sentences": ["a cat on mat 1 bad"]},
    )
    drawing = plan(CaptionPlan(("bad",), texts=(BagPlan(path, size=10, negatives=("bad",)),)))
    first, second = samples(2)
    for epoch in range(5):
        texts, counts = drawing.draw(first, epoch)  # a negative of the file that is the caption
        negatives = [text.text for text in texts if text.role is Role.NEGATIVE]
        assert first.captions[0] not in negatives
        refused = counts.refused[BAG_NEGATIVE, EQUALS_CAPTION]
        assert refused == 10 - counts.accepted[BAG_NEGATIVE] > 0
        texts, counts = drawing.draw(second, epoch)  # a sentence that is the caption's negative
        bag = of_kind(texts, BAG)
        assert set(bag) == {second.captions[0]}
        assert counts.refused[BAG, EQUALS_OTHER] == 10 - len(bag) > 0


def test_negatives_of_bags_are_of_one_of_several_kinds(tmp_path: Path) -> None:
    sentences = [f"part {i} not y" if i % 3 else f"part {i}" for i in range(30)]
    path = write_bags(tmp_path, {"id": "0", "sentences": sentences})
    several = BagPlan(path, size=30, negatives=("x", "y"), draw="distinct")
    drawing = plan(CaptionPlan((OneOf("both", ("x", "y")),), texts=(several,)))
    sample = samples(1)[0]
    total = PlanCounts()
    for epoch in range(20):
        texts, counts = drawing.draw(sample, epoch)
        total.add(counts)
        kinds = Counter(text[-1] for text in of_kind(texts, BAG_NEGATIVE))
        assert kinds.total() == counts.accepted[BAG_NEGATIVE] == 30
        for name in "xy":
            assert kinds[name] == counts.accepted[f"{BAG_NEGATIVE} ({name})"]
    # Half of them each where both apply (a third of the sentences), else the one that applies.
    assert total.accepted[f"{BAG_NEGATIVE} (y)"] == pytest.approx(20 * 10 / 2, abs=25)
    assert total.refused[f"{BAG_NEGATIVE} (y)", "no"] == pytest.approx(20 * 20 / 2, abs=40)
    assert not total.refused[BAG_NEGATIVE, NONE_APPLIES]
    assert total.accepted["both"] == 20  # those of captions are counted by themselves


def test_negatives_of_bags_from_a_file_of_written_ones(tmp_path: Path) -> None:
    path = write_bags(tmp_path, {"id": "0", "sentences": ["one dog", "two dogs"]})
    row = {"caption": "one dog", "negative": "one cat"}
    bags = BagPlan(path, size=2, negatives=(WRITTEN_NEGATIVE,), draw="distinct")
    written = write_jsonl(tmp_path / "written.jsonl", [row])
    what = CaptionPlan(texts=(bags,), written=str(written))
    drawn, counts = plan(what).draw(samples(1)[0], 0)
    assert of_kind(drawn, BAG_NEGATIVE) == ["one cat"]
    assert counts.refused[f"{BAG_NEGATIVE} ({WRITTEN_NEGATIVE})", NONE_WRITTEN] == 1
    assert counts.refused[BAG_NEGATIVE, NONE_APPLIES] == 1
    with pytest.raises(UsageError, match="file of written texts"):
        plan(replace(what, written=""))


def test_captions_are_cleaned_all_or_those_of_variations_alone() -> None:
    five = plan(CaptionPlan(main=True, pre_caption=5))
    for caption, cleaned_text in (
        ('A "Red" dog; it runs (fast). One', "a red dog it runs"),
        ("...", "..."),
    ):
        assert five.draw(Sample("0", b"", (caption, "x")), 0)[0][0].text == cleaned_text
    with pytest.raises(UsageError, match="must be 0"):
        CaptionPlan(pre_caption=-1)
    pair = Sample("0", b"", ('A dog: "Rex"!',))
    variation = replace(pair, group="dog 1")
    for cleaned, expected in (
        ("variations", ('A dog: "Rex"!', "a dog rex")),
        ("all", ("a dog rex", "a dog rex")),
    ):
        drawing = plan(CaptionPlan(pre_caption=50, cleaned=cleaned))  # type: ignore[arg-type]
        assert tuple(drawing.draw(s, 0)[0][0].text for s in (pair, variation)) == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"sentences": ["a"]}, "needs id, sentences; it has: sentences"),
        ({"id": "1", "sentences": "a"}, "'sentences' must be a list of texts"),
        ({"id": "1", "sentences": ["a"], "negatives": [3]}, "must be a list of texts or null"),
        ({"id": "1", "sentences": ["a"], "negatives": ["b", "c"]}, "needs one per sentence"),
        ({"id": "0", "sentences": ["a"]}, "a second bag '0'"),
    ],
)
def test_malformed_bags(tmp_path: Path, row: dict[str, object], message: str) -> None:
    path = write_bags(tmp_path, {"id": "0", "sentences": ["x"]}, row)
    with pytest.raises(CompoclipError, match=f"line 2.*{message}"):
        read_bags(Path(path))


def test_a_method_that_needs_bags_says_so() -> None:
    with pytest.raises(UsageError, match=r"--bags FILE .* or --bags captions"):
        plan(CaptionPlan(texts=(BagPlan(""),)))


def test_the_layout_tells_which_texts_and_photos_are_the_same() -> None:
    batch = Batch(
        torch.zeros(3, 3, 1, 1),
        texts=("A cat.", "a dog", "a cat ."),
        owner=(0, 1, 2),
        role=(Role.CAPTION,) * 3,
        rewrite=("", "", "x"),
        photos=("p", "q", "p"),
        pair=(-1, -1, 0),
    )
    layout = batch.layout()
    assert layout.text_id.tolist() == [0, 1, 0]
    assert layout.image_id.tolist() == [0, 1, 0]
    assert (layout.side.tolist(), layout.pair.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert layout.rewrite.tolist() == [-1, -1, 0]
    assert layout.kinds == ("x",)
    assert layout.kind("x", "y").tolist() == [False, False, True]
    ids = torch.tensor([[5, 6], [5, 6], [5, 7]])  # what the model sees comes first
    by_ids = batch.layout(ids=ids).text_id
    assert by_ids.tolist() == [0, 0, 1]
    plain = replace(batch, photos=(), pair=()).layout()
    assert (plain.image_id, plain.side, plain.pair) == (None, None, None)
    with pytest.raises(ValueError, match="name every image"):
        replace(batch, photos=("p",))


# --- What is absent, several negatives, distractors. ---


def recipe_texts(**fields: object) -> TextPlan:
    return TextPlan(CaptionPlan(**fields), parsed=Parses())  # type: ignore[arg-type]


SAMPLE = Sample("1", b"", ("a cup", "one cup"), negatives=("a", "b", "c", "d", "a cup"))


def test_several_given_negatives_are_drawn_without_replacement() -> None:
    three = recipe_texts(rewrites=(GIVEN,) * 3)
    seen = set()
    for epoch in range(40):
        texts, counts = three.draw(SAMPLE, epoch)
        wrong = [text.text for text in texts if text.role is Role.NEGATIVE]
        assert len(set(wrong)) == 3
        assert counts.accepted[GIVEN] == 3
        assert counts.coverage(GIVEN) == 1
        seen.update(wrong)
    assert seen == {"a", "b", "c", "d"}
    only, _ = three.draw(replace(SAMPLE, negatives=("a",)), 0)
    assert [text.text for text in only if text.role is Role.NEGATIVE] == ["a"]
    one, _ = recipe_texts(rewrites=(GIVEN,)).draw(SAMPLE, 0)
    assert len(one) == 2


def test_captions_say_what_is_absent_and_other_texts_are_made_of_the_original() -> None:
    sample = Sample("1", b"", ("a dog on a couch", "A lamp stands beside it."))
    drawing = recipe_texts(rewrites=("crepe-negate",), absent=True)
    for epoch in range(30):
        (caption, negative), counts = drawing.draw(sample, epoch)
        assert caption.role is Role.CAPTION
        assert " no " in caption.text
        assert " no lamp" not in caption.text  # another caption names it
        assert counts.accepted["absent-object"] == 1
        assert negative.role is Role.NEGATIVE
        assert caption.text not in negative.text
    refused, counts = drawing.draw(replace(sample, captions=("dog " * 90,)), 0)
    assert refused[0].text == "dog " * 90
    assert sum(n for (name, _), n in counts.refused.items() if name == "absent-object") == 1
    assert CaptionPlan(absent=True).needs_parsing


def test_data_without_positives_is_refused_in_one_line(tmp_path: Path) -> None:
    row = {"image": "a.jpg", "caption": "a", "neg_caption": "b"}
    source = open_source(str(write_json(tmp_path / "t.jsonl", row)))
    with pytest.raises(UsageError, match=r"brings no captions in other words; .* pos_caption"):
        load_recipe("sem-clip")().plan.require(source)
    load_recipe("sem-clip")(statements="made").plan.require(source)


def test_composing_with_texts_of_the_data() -> None:
    method = compose(load_recipe("clip-ft")(), ["+given-positive"], ["+sem-clip.paraphrase"])
    assert method.kinds == (GIVEN_POSITIVE,)
    assert [term.name for term in method.losses] == ["clip", "paraphrase"]


# --- Distractors in a batch. ---


def picture(value: int) -> bytes:
    return plain_photo((value, 0, 0))


def builder(source: Source, known: np.ndarray) -> BatchBuilder:
    transform = ImageTransform(Preprocess(size=(8, 8)), None)
    texts = recipe_texts(rewrites=(GIVEN,))
    return BatchBuilder(source, texts, transform, 0, Companions(known), 0, "single")


def shown(images: Distractors, samples: Sequence[Sample], known: Mapping[int, list[int]]):  # type: ignore[no-untyped-def]
    table = np.array([known.get(i, [-1]) for i in range(len(samples))], np.int64)
    batch = builder(few(samples), table)
    for index, sample in enumerate(samples):
        images.add_to_batch(batch, index, sample)
    return batch.batch(((0.0,) * 3, (1.0,) * 3)), batch.bad


def test_distractors_of_the_data_and_mined_ones() -> None:
    samples = [
        Sample("0", picture(10), ("a",), ("no a",), negative_image=picture(90)),
        Sample("1", picture(20), ("b",), ("no b",)),
        Sample("2", picture(30), ("c",), negative_image=picture(91)),
    ]
    batch, _ = shown(Distractors(), samples, {})
    assert batch.pixels[:, 0, 0, 0].tolist() == [10, 20, 30, 90]
    assert batch.pair == (-1, -1, -1, 0)
    assert [batch.texts[i] for i, o in enumerate(batch.owner) if o == 3] == ["no a"]
    batch, _ = shown(Distractors(mined=True), samples, {0: [1], 1: [2], 2: [0]})
    assert batch.pixels[:, 0, 0, 0].tolist() == [10, 20, 30, 20, 30]
    assert batch.pair == (-1, -1, -1, 0, 1)  # the third has no negation
    assert batch.role.count(Role.CAPTION) == 5
    batch, bad = shown(Distractors(), [replace(samples[0], negative_image=b"x")], {})
    assert len(batch.pixels) == 1
    assert bad[0][0] == "0 (distractor)"


def test_a_sample_shown_twice_in_an_epoch_has_other_distractors() -> None:
    samples = [Sample(f"{k}", picture(10 * k), (f"{k}",), (f"no {k}",)) for k in range(9)]
    batch = builder(few(samples), np.array([range(1, 9)]))
    for repeat in range(8):  # as a mixture of data sets samples them
        sample = replace(samples[0], key=f"0\x1f0\x1f{repeat}")
        Distractors(mined=True).add_to_batch(batch, 0, sample)
    made = batch.batch(((0.0,) * 3, (1.0,) * 3))
    assert len(set(made.pixels[8:, 0, 0, 0].tolist())) > 1


def test_data_without_distractors_train_without() -> None:
    images, lacking = Distractors().for_data(frozenset({"negatives"}))
    assert images is SINGLE
    assert "no distractors" in lacking
    assert Distractors(mined=True).for_data(frozenset())[1] == ""
    assert Distractors().for_data(frozenset({"negative_image"})) == (Distractors(), "")


# --- What trains. ---


def trained_by(recipe: str, text_layers: int) -> set[str]:
    """Return the names of the parameters that a recipe trains."""
    text = {"layers": text_layers, "width": 16, "heads": 2, "context_length": 77, "vocab_size": 64}
    model = build_model(config({"layers": 1, "width": 16, "head_width": 8}, text))
    freeze(model, load_recipe(recipe)().trains)
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_the_last_norm_of_the_text_tower_may_stay() -> None:
    learns = trained_by("negation-clip", text_layers=1)
    assert not any(name.startswith(("visual.", "ln_final")) for name in learns)
    assert {"text_projection", "logit_scale", "token_embedding.weight"} <= learns


def test_the_first_blocks_of_the_text_tower_may_learn_alone() -> None:
    learns = trained_by("omni-negclip", text_layers=3)
    blocks = {name.split(".")[2] for name in learns if name.startswith("transformer.resblocks.")}
    assert blocks == {"0", "1"}  # half of three, rounded up, so that some always learn
    assert {"token_embedding.weight", "positional_embedding", "ln_final.weight"} <= learns
    assert {"text_projection", "logit_scale"} <= learns
    assert not any(name.startswith("visual.") for name in learns)
    for share in (0.0, 1.5, -1.0):
        with pytest.raises(UsageError, match=r"text_blocks.*must be above 0 and at most 1"):
            Trains(text_blocks=share)


def test_no_caption_of_the_image_names_the_absent_object() -> None:
    captions = ("A cat on a couch.", "A cat near a lamp.", "A cat beside a remote and a pillow.")
    texts = TextPlan(load_recipe("omni-negclip")().plan, parsed=Parses())
    kinds = set()
    for epoch in range(30):
        drawn, _ = texts.draw(Sample("1", b"", captions), epoch)
        stated = [text for text in drawn if text.role is Role.POSITIVE]
        kinds |= {text.rewrite for text in stated}
        for text in stated:
            assert not any(f"no {word}" in text.text for word in ("lamp", "remote", "pillow"))
    assert kinds == {"absent-object"}


def test_runs_without_distractors_or_counterparts_are_named_so(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ({**row, "neg_image": ""} for row in read_jsonl(world / "pairs.jsonl"))
    data = write_jsonl(tmp_path / "pairs.jsonl", rows)
    more = (f"--data={data}", f"--images={world}", "--max-steps=1")
    for name in ("con-clip", "trohn-img"):
        assert main(arguments(world, name, tmp_path / name, *more)) == 0
        assert f"without the loss on them this is {name}-text" in capsys.readouterr().err


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="--directions 0: must be at least 1"):
        load_recipe("sem-clip")(directions=0)
    assert torch.tensor([t.weight for t in load_recipe("sem-clip")().losses]).sum().item() == 1
    only = load_recipe("neg-mcq")(contrast_weight=0.0)
    assert [term.name for term in only.losses] == ["choice"]
