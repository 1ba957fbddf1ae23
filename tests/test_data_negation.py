"""Plans and batches of negation recipes: what is absent, several negatives, distractors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from compoclip.cli.main import main
from compoclip.data.caption_plan import NONE_GIVEN, TOO_LONG, CaptionPlan
from compoclip.data.images import SINGLE, BatchBuilder, Companions
from compoclip.data.images.distractors import Distractors
from compoclip.data.plan import TextPlan
from compoclip.data.sources import Sample, Source
from compoclip.data.sources.open import open_source
from compoclip.data.text_names import GIVEN, GIVEN_POSITIVE
from compoclip.data.transform import ImageTransform
from compoclip.errors import UsageError
from compoclip.losses.contract import Role
from compoclip.methods.base import Trains
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe
from compoclip.models.architecture import build_model
from compoclip.models.preprocess import Preprocess
from compoclip.training.loop import freeze
from data_samples import Parses, encode, few
from method_data import arguments, write_world
from models_thin import config
from train_helpers import FEW


def plan(**fields: object) -> TextPlan:
    return TextPlan(CaptionPlan(**fields), parsed=Parses())  # type: ignore[arg-type]


SAMPLE = Sample("1", b"", ("a cup", "one cup"), negatives=("a", "b", "c", "d", "a cup"))


def test_several_given_negatives_are_drawn_without_replacement() -> None:
    three = plan(rewrites=(GIVEN,) * 3)
    seen = set()
    for epoch in range(40):
        texts, counts = three.draw(SAMPLE, epoch)
        wrong = [text.text for text in texts if text.role is Role.NEGATIVE]
        assert len(set(wrong)) == 3
        assert counts.accepted[GIVEN] == 3
        assert counts.coverage(GIVEN) == 1
        seen.update(wrong)
    assert seen == {"a", "b", "c", "d"}
    few, _ = three.draw(replace(SAMPLE, negatives=("a",)), 0)
    assert [text.text for text in few if text.role is Role.NEGATIVE] == ["a"]
    one, _ = plan(rewrites=(GIVEN,)).draw(SAMPLE, 0)
    assert len(one) == 2


def test_given_positives() -> None:
    drawing = plan(rewrites=(GIVEN_POSITIVE,))
    sample = replace(SAMPLE, positives=("the cup", "some cup"))
    found = {drawing.draw(sample, epoch)[0][1] for epoch in range(20)}
    assert {text.text for text in found} == {"the cup", "some cup"}
    assert {(text.role, text.rewrite) for text in found} == {(Role.POSITIVE, GIVEN_POSITIVE)}
    for positives, reason in (((), NONE_GIVEN), (("x " * 100,), TOO_LONG)):
        texts, counts = drawing.draw(replace(sample, positives=positives), 0)
        assert len(texts) == 1
        assert counts.refused[GIVEN_POSITIVE, reason] == 1
    assert not CaptionPlan(rewrites=(GIVEN_POSITIVE,)).needs_parsing


def test_captions_say_what_is_absent_and_other_texts_are_made_of_the_original() -> None:
    sample = Sample("1", b"", ("a dog on a couch", "A lamp stands beside it."))
    drawing = plan(rewrites=("crepe-negate",), absent=True)
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
    (tmp_path / "t.jsonl").write_text(json.dumps(row))
    source = open_source(str(tmp_path / "t.jsonl"))
    with pytest.raises(UsageError, match=r"brings no captions in other words; .* pos_caption"):
        load_recipe("sem-clip")().plan.require(source)
    load_recipe("sem-clip")(statements="made").plan.require(source)


def test_composing_with_texts_of_the_data() -> None:
    method = compose(load_recipe("clip-ft")(), ["+given-positive"], ["+sem-clip.paraphrase"])
    assert method.kinds == (GIVEN_POSITIVE,)
    assert [term.name for term in method.losses] == ["clip", "paraphrase"]


# --- Distractors in a batch. ---


def picture(value: int) -> bytes:
    return encode(Image.new("RGB", (8, 8), (value, 0, 0)))


def builder(source: Source, known: np.ndarray) -> BatchBuilder:
    transform = ImageTransform(Preprocess(size=(8, 8)), None)
    texts = plan(rewrites=(GIVEN,))
    return BatchBuilder(source, texts, transform, 0, Companions(known), 0, "single")


def shown(images: Distractors, samples: Sequence[Sample], known: Mapping[int, list[int]]):  # type: ignore[no-untyped-def]
    table = np.array([known.get(i, [-1]) for i in range(len(samples))], np.int64)
    batch = builder(few(samples), table)
    for index, sample in enumerate(samples):
        images.add_to_batch(batch, index, sample)
    made = batch.batch(((0.0,) * 3, (1.0,) * 3))
    return made, batch.bad


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


def test_data_without_distractors_train_without() -> None:
    images, lacking = Distractors().for_data(frozenset({"negatives"}))
    assert images is SINGLE
    assert "no distractors" in lacking
    assert Distractors(mined=True).for_data(frozenset())[1] == ""
    assert Distractors().for_data(frozenset({"negative_image"})) == (Distractors(), "")


# --- What trains. ---


def test_the_last_norm_of_the_text_tower_may_stay() -> None:
    model = build_model(
        config({"layers": 1, "width": 16, "head_width": 8},
               {"layers": 1, "width": 16, "heads": 2, "context_length": 77, "vocab_size": 64})
    )  # fmt: skip
    freeze(model, load_recipe("negation-clip")().trains)
    learns = {name for name, p in model.named_parameters() if p.requires_grad}
    assert not any(name.startswith(("visual.", "ln_final")) for name in learns)
    assert {"text_projection", "logit_scale", "token_embedding.weight"} <= learns


def test_the_first_blocks_of_the_text_tower_may_learn_alone() -> None:
    """Of three blocks half are two: rounded up, so that some always learn."""
    model = build_model(
        config({"layers": 1, "width": 16, "head_width": 8},
               {"layers": 3, "width": 16, "heads": 2, "context_length": 77, "vocab_size": 64})
    )  # fmt: skip
    freeze(model, load_recipe("omni-negclip")().trains)
    learns = {name for name, p in model.named_parameters() if p.requires_grad}
    blocks = {name.split(".")[2] for name in learns if name.startswith("transformer.resblocks.")}
    assert blocks == {"0", "1"}
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = write_world(tmp_path, merges=FEW)
    rows = [json.loads(line) for line in (world / "pairs.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "neg_image": ""}) for row in rows]
    (world / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    for name in ("con-clip", "trohn-img"):
        run = tmp_path / name
        assert main(arguments(world, name, run, "--set=stop_after=1")) == 0
        assert f"without the loss on them this is {name}-text" in capsys.readouterr().err


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="--directions 0: must be at least 1"):
        load_recipe("sem-clip")(directions=0)
    assert torch.tensor([t.weight for t in load_recipe("sem-clip")().losses]).sum().item() == 1
    only = load_recipe("neg-mcq")(contrast_weight=0.0)
    assert [term.name for term in only.losses] == ["choice"]
