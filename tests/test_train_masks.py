"""A masked second pass: what is hidden and where, what the towers make of it, its losses, runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from build.models import batch_for, trainable
from build.runs import CACHED, run
from compoclip.captions.parser import parse
from compoclip.data.batch import Batch
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.masks import Mask
from compoclip.data.plan import TextPlan
from compoclip.data.prepared import Preparation
from compoclip.data.sources import Sample
from compoclip.data.transform import ImageTransform, RandomCrop
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses import Features, Layout, TowerSizes, masked_contrast, masked_match
from compoclip.methods.base import LossTerm, Method
from compoclip.methods.compose import compose
from compoclip.methods.macco.heads import PatchPrediction, TokenPrediction
from compoclip.methods.macco.hidden import Masks, MaskVectors, boxes_to_patches
from compoclip.methods.macco.masks import ConceptFile, MaskPlan, graph_words, rectangle
from compoclip.methods.registry import load_recipe
from compoclip.models.dual_encoder import PassInputs
from compoclip.models.preprocess import Preprocess
from compoclip.ranks import SINGLE
from losses_oracle import CAPTION, features_for, layout_of
from models_thin import config, timm_config
from train_helpers import OPTIM

DOUBLE = torch.float64
BOX = (0.0, 0.0, 0.5, 0.5)


# --- The losses. ---


def pairs_of(count: int = 2) -> Layout:
    return layout_of([(i, CAPTION, -1) for i in range(count)])


def by_loops(f: Features, images: int) -> tuple[Tensor, Tensor]:
    """Both losses, one scalar product at a time."""
    assert f.masked_text is not None
    u = [*f.image] + ([] if f.masked_image is None else [*f.masked_image])
    t = [*f.text[:images], *f.masked_text]

    def found(rows: Sequence[Tensor], columns: Sequence[Tensor]) -> Tensor:
        total = torch.zeros((), dtype=DOUBLE)
        for k, row in enumerate(rows):
            scores = torch.stack([f.logit_scale * (row @ column) for column in columns])
            total = total + scores.logsumexp(0) - scores[k % images]
        return total / len(rows)

    contrast = (found(u, t) + found(t, u)) / 2
    halves = [(t[images:], t[:images])]
    halves += [] if f.masked_image is None else [(u[images:], u[:images])]
    each = [(found(a, b) + found(b, a)) / 2 for a, b in halves]
    return contrast, torch.stack(each).mean()


@pytest.mark.parametrize("images_too", [True, False])
def test_losses_against_loops(images_too: bool) -> None:
    layout = pairs_of(5)
    features = features_for(layout)
    again = features_for(layout, seed=1)
    features = replace(
        features, masked_text=again.text, masked_image=again.image if images_too else None
    )
    contrast, match = by_loops(features, 5)
    torch.testing.assert_close(masked_contrast(features, layout), contrast)
    torch.testing.assert_close(masked_match(features, layout), match)


def test_of_a_bias_every_pair_counts_once() -> None:
    layout = pairs_of(3)
    again = features_for(layout, seed=1)
    features = replace(features_for(layout), masked_text=again.text, masked_image=again.image)
    bias = torch.tensor(-2.0, dtype=DOUBLE)
    found = masked_contrast(replace(features, logit_bias=bias), layout)
    total = torch.zeros((), dtype=DOUBLE)

    def numbered(plain: Tensor, hidden: Tensor) -> list[tuple[int, int, Tensor]]:
        forms = enumerate((plain, hidden))
        return [(i, form, x) for form, vectors in forms for i, x in enumerate(vectors)]

    rows = numbered(features.image, again.image)
    columns = numbered(features.text, again.text)
    for i, masked_i, x in rows:
        for j, masked_j, y in columns:
            if i == j and masked_i and masked_j:
                continue
            sign = 1 if i == j else -1
            total = total - F.logsigmoid(sign * (features.logit_scale * (x @ y) + bias))
    torch.testing.assert_close(found, total / 6)


def test_heads_say_that_they_need_a_second_pass() -> None:
    features, sizes = features_for(pairs_of()), TowerSizes(8, 8, 10, 8, 12)
    for plan in (TokenPrediction(), PatchPrediction()):
        head = plan.build(sizes, 0)
        with pytest.raises(ValueError, match=r"reads Features\.masked_\w+, which was not computed"):
            head.loss(features, pairs_of(), [])


# --- The heads. ---


def hidden_features() -> Features:
    """Three pairs of which the first and the last have words and patches hidden."""
    layout = pairs_of(3)
    plain, again = features_for(layout), features_for(layout, seed=1)
    assert plain.tokens is not None
    assert plain.patches is not None
    generator = torch.Generator().manual_seed(4)
    return replace(
        plain,
        masked_text=again.text,
        masked_image=again.image,
        masked_tokens=again.tokens,
        masked_patches=again.patches,
        hidden_tokens=torch.tensor([1, 3, 2 * 6 + 2]),
        hidden_ids=torch.tensor([7, 1, 4]),
        hidden_patches=torch.tensor([0, 2 * 5 + 1, 2 * 5 + 4]),
        hidden_pixels=torch.randn(3, 12, dtype=DOUBLE, generator=generator),
    )


def test_predictors_against_one_query_at_a_time() -> None:
    features, layout = hidden_features(), pairs_of(3)
    f: Any = features
    sizes = TowerSizes(8, 8, 10, 8, 12)
    head = TokenPrediction().build(sizes, 3).double()
    found = []
    for place, word in zip(f.hidden_tokens.tolist(), f.hidden_ids.tolist()):
        i, k = divmod(place, 6)
        x = (F.normalize(f.masked_tokens[i, k], dim=0) + f.masked_text[i])[None, None] / 2
        y = torch.stack([(F.normalize(v, dim=0) + f.image[i]) / 2 for v in f.patches[i]])[None]
        for block in head.blocks:
            x = block(x, y, None)
        found.append(-head.last(head.norm(x))[0, 0].log_softmax(0)[word])
    expected = ((found[0] + found[1]) / 2 + found[2]) / 2
    torch.testing.assert_close(head.loss(features, layout, []), expected)

    other = PatchPrediction().build(sizes, 3).double()
    found = []
    for place, pixels in zip(f.hidden_patches.tolist(), f.hidden_pixels):
        i, k = divmod(place, 5)
        x = (F.normalize(f.masked_patches[i, k], dim=0) + f.masked_image[i])[None, None] / 2
        tokens = f.tokens[i][f.token_mask[i]]
        y = torch.stack([(F.normalize(v, dim=0) + f.text[i]) / 2 for v in tokens])[None]
        for block in other.blocks:
            x = block(x, y, None)
        found.append((other.last(other.norm(x))[0, 0] - pixels).square().mean())
    expected = (found[0] + (found[1] + found[2]) / 2) / 2
    torch.testing.assert_close(other.loss(features, layout, []), expected)


def test_only_the_text_side_of_a_reconstruction_learns() -> None:
    features, layout = hidden_features(), pairs_of(3)
    sizes = TowerSizes(8, 8, 10, 8, 12)
    names = ("image", "text", "patches", "tokens")
    names += ("masked_image", "masked_text", "masked_patches", "masked_tokens")
    for plan, learning in (
        (TokenPrediction(), {"masked_text", "masked_tokens"}),
        (PatchPrediction(), {"text", "tokens"}),
    ):
        leaves = [getattr(features, name) for name in names]
        head = plan.build(sizes, 0).double()
        value = head.loss(features, layout, [])
        found = torch.autograd.grad(value, leaves, allow_unused=True)
        assert {n for n, g in zip(names, found) if g is not None and g.any()} == learning
        assert plan.record()["lr"] == 1e-3


# --- The second pass of the towers. ---


def masked(model: Any, texts: Sequence[str], words: Sequence[str], boxes: Any) -> Batch:
    """A batch of captions of which words are hidden, and boxes of the images."""
    return replace(
        batch_for(model, len(texts)),
        texts=tuple(texts),
        owner=tuple(range(len(texts))),
        role=(CAPTION,) * len(texts),
        rewrite=("",) * len(texts),
        masks=tuple(Mask(tuple(words), tuple(own)) for own in boxes),
        photos=(),
    )


TEXTS = ["a red cat on a mat", "a dog", "a very red cat", "a red cat on a mat"]


def both_passes(model: Any, batch: Batch, pixels: Tensor, limit: int) -> tuple[Any, Masks]:
    prepare = Preparation(model.tokenizer, model.encoder.text_planner(limit))
    texts, _ = prepare(batch).on(torch.device("cpu"))
    assert texts.again is not None
    masks = MaskVectors().build(model.encoder.sizes, 0)
    plan = CaptionPlan(texts=(MaskPlan(),))
    given = PassInputs(model.encoder, pixels, texts, plan, batch, True, limit)
    return masks.extend(model.encoder.work(pixels, texts, True, limit), given).all(), masks


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("limit", [0, 2])
@pytest.mark.parametrize("both_ways", [False, True])
def test_nothing_hidden_is_the_plain_pass(training: bool, limit: int, both_ways: bool) -> None:
    model = trainable(config(text={"no_causal_mask": True}) if both_ways else config())
    model.encoder.train(training)
    batch = masked(model, TEXTS, [], [()] * 4)
    f, _ = both_passes(model, batch, batch.normalised(torch.device("cpu")), limit)
    assert torch.equal(f.masked_text, f.text)
    assert torch.equal(f.masked_image, f.image)
    assert torch.equal(f.masked_tokens, f.tokens)
    assert torch.equal(f.masked_patches, f.patches)
    assert len(f.hidden_tokens) == len(f.hidden_patches) == 0


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_vector_takes_the_place_of_what_is_hidden(training: bool, limit: int) -> None:
    model = trainable()
    model.encoder.train(training)
    boxes = [[BOX], (), [(0.0, 0.0, 1.0, 1.0)], [(0.3, 0.8, 0.31, 0.81)]]
    batch = masked(model, TEXTS, ["red", "on"], boxes)
    pixels = batch.normalised(torch.device("cpu"))
    f, masks = both_passes(model, batch, pixels, limit)
    network = model.encoder.model

    # The ids of the hidden words, and where they stand.
    ids = model.tokenizer(TEXTS)
    red, on = (int(model.tokenizer([word])[0, 1]) for word in ("red", "on"))
    hidden = (ids == red) | (ids == on)
    assert hidden.sum(1).tolist() == [2, 0, 1, 2]
    length = f.masked_tokens.shape[1]
    assert f.hidden_tokens.tolist() == hidden[:, :length].flatten().nonzero()[:, 0].tolist()
    assert f.hidden_ids.tolist() == [red, on, red, red, on]

    # Through open_clip's own layers, with the embeddings exchanged.
    x = network.token_embedding(ids)
    x = torch.where(hidden[..., None], masks.token, x) + network.positional_embedding
    x = network.ln_final(network.transformer(x, attn_mask=network.attn_mask))
    ends = x[torch.arange(4), ids.argmax(1)] @ network.text_projection
    torch.testing.assert_close(f.masked_text, F.normalize(ends, dim=-1), atol=1e-5, rtol=1e-4)

    visual = network.visual
    rows, columns = visual.grid_size
    where = torch.zeros(4, rows, columns, dtype=torch.bool)
    where[0, : rows // 2, : columns // 2] = True
    where[2] = True
    where[3, int(0.8 * rows), int(0.3 * columns)] = True
    assert f.hidden_patches.tolist() == where.flatten().nonzero()[:, 0].tolist()
    embedded = visual.conv1(pixels).flatten(2).permute(0, 2, 1)
    embedded = torch.where(where.flatten(1)[..., None], masks.patch, embedded)
    start = visual.class_embedding.expand(4, 1, -1)
    x = torch.cat([start, embedded], 1) + visual.positional_embedding
    x = visual.ln_post(visual.transformer(visual.ln_pre(x))) @ visual.proj
    pooled = F.normalize(x[:, 0], dim=-1)
    torch.testing.assert_close(f.masked_image, pooled, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(f.masked_patches, x[:, 1:], atol=1e-5, rtol=1e-4)

    # The pixels that stood there.
    size = visual.patch_size[0]
    corner = pixels[0, :, :size, :size].permute(1, 2, 0).flatten()
    expected = (corner - corner.mean()) / (corner.var() + 1e-6).sqrt()
    torch.testing.assert_close(f.hidden_pixels[0], expected)
    assert len(f.hidden_pixels) == where.sum()


def test_a_box_hides_the_patches_that_it_touches() -> None:
    boxes = [[(0.25, 0.0, 0.5, 0.25)], [(-1.0, 0.9, 2.0, 1.0)], [(0.2, 0.2, 0.3, 0.3), BOX], []]
    found = boxes_to_patches(boxes, (4, 4)).view(4, 4, 4).int().tolist()
    assert found[0] == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert found[1] == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
    assert found[2] == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert not torch.tensor(found[3]).any()


def test_towers_that_nothing_can_be_hidden_from_say_so() -> None:
    timm = trainable(timm_config("test_vit")).encoder
    words, both = (CaptionPlan(texts=(MaskPlan(images=images),)) for images in (False, True))
    MaskVectors().require(words, timm)
    with pytest.raises(CompoclipError, match="hide words alone") as raised:
        MaskVectors().require(both, timm)
    assert "\n" not in str(raised.value)
    assert timm.sizes[3:] == (0, 0)
    pooled = trainable(config(text={"pool_type": "last"})).encoder
    with pytest.raises(CompoclipError, match="masked captions need"):
        MaskVectors().require(words, pooled)


# --- What is hidden. ---


def test_words_of_relations_and_attributes() -> None:
    parsed = parse("The red cat on the left of the small dog is sleeping")
    words = graph_words(parsed)
    assert {"red", "small", "on", "left", "of"} <= set(words)
    assert not {"the", "cat", "dog"} & set(words)
    mask = Mask(("red", "on"))
    text = "Red, redder and on-going: ON a red mat"
    assert [text[a:b] for a, b in mask.spans(text)] == ["Red", "on", "ON", "red"]
    assert Mask().spans(text) == []


def test_rectangles_have_about_the_area() -> None:
    rng = random.Random(0)
    for area in (0.75, 0.1, 1.0):
        for _ in range(50):
            left, upper, right, lower = rectangle(area, rng)
            assert -1e-9 <= left < right <= 1 + 1e-9
            assert -1e-9 <= upper < lower <= 1 + 1e-9
            assert abs((right - left) * (lower - upper) - area) <= 0.25 * area + 1e-9
    with pytest.raises(UsageError, match="area must lie between"):
        MaskPlan(area=0.0)
    with pytest.raises(UsageError, match="rectangles must lie between 0 and 1"):
        MaskPlan(rectangles=2.0)


def test_boxes_go_where_their_pixels_go() -> None:
    preprocess = Preprocess(size=(32, 32))
    whole = ImageTransform(preprocess, None)
    mask = Mask(boxes=((20, 0, 40, 40),), relative=False)
    (box,) = mask.as_shown((80, 40), None, whole).boxes
    assert box == pytest.approx((0.0, 0.0, 0.5, 1.0), abs=0.04)  # the middle half is shown
    cropped = ImageTransform(preprocess, RandomCrop())
    (box,) = mask.as_shown((80, 40), (30, 10, 50, 30), cropped).boxes
    assert box == pytest.approx((0.0, 0.0, 0.5, 1.0), abs=0.04)
    assert mask.as_shown((80, 40), (50, 0, 80, 40), cropped).boxes == ()
    shown = Mask(boxes=(BOX,))
    assert shown.as_shown((80, 40), None, whole) is shown


HEADER = "title\tfilepath\trelation_list\tattribute_list\trelation_attribute_phrase_bbox_list"


def concept_file(path: Path, *rows: str) -> Path:
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_words_and_boxes_of_a_file(tmp_path: Path) -> None:
    boxes = "[{'red dog': [[0, 0, 10, 20], [5, 5, 9, 9.5]], 'dog on mat': [[1, 2, 3, 4]], 'x': []}]"
    found = ConceptFile(
        concept_file(
            tmp_path / "macco.tsv",
            f"a red dog on the mat\t1.jpg\t['on', 'the']\t['red']\t{boxes}",
            "two cats\t2.jpg\t[]\t[]\t[]",
        )
    )
    assert len(found) == 2
    one = found.find("a red dog on the mat")
    assert one == (("on", "red"), (((0, 0, 10, 20), (5, 5, 9, 9.5)), ((1, 2, 3, 4),)))
    assert found.find("two cats") == found.find("elsewhere") == ((), ())
    plan = MaskPlan(file="macco.tsv", rectangles=0.0)
    drawn = {plan.mask(*one, random.Random(i)).boxes for i in range(20)}
    assert drawn == set(one[1])
    assert plan.mask((), (), random.Random(0)) == Mask((), (), relative=False)
    (only,) = replace(plan, rectangles=1.0).mask(*one, random.Random(0)).boxes
    assert only[2] <= 1 + 1e-9
    assert replace(plan, images=False).mask(*one, random.Random(0)).boxes == ()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a\tb\t3\t[]\t[]", "row 1: relation_list is not a list"),
        ("a\tb\t[]\t[]\t[[1, 2, 3, 4]]", "not a list of phrases with boxes"),
        ("a\tb\t[]\t[]\t[{'x': [[1, 2, 3]]}]", "boxes of four numbers"),
        ("a\tb\t[]\t[]\tos.system('x')", "not a list of phrases with boxes"),
    ],
)
def test_a_malformed_file_is_one_clear_line(row: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=message) as raised:
        ConceptFile(concept_file(tmp_path / "macco.tsv", row))
    assert "\n" not in str(raised.value)
    (tmp_path / "none.tsv").write_text("title\tfilepath\n")
    with pytest.raises(CompoclipError, match="lacks the column 'relation_list'"):
        ConceptFile(tmp_path / "none.tsv")


def test_masks_come_with_the_caption_and_are_counted(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "1.png")
    path = concept_file(tmp_path / "m.tsv", "a red dog\t1.png\t[]\t['red']\t[]")
    plan = TextPlan(CaptionPlan(texts=(MaskPlan(file=str(path), images=False),)))
    texts, counts = plan.draw(Sample("1", tmp_path / "1.png", ("a red dog",)), 0)
    assert texts[0].mask == Mask(("red",))
    assert counts.accepted["mask"] == 1
    texts, counts = plan.draw(Sample("1", tmp_path / "1.png", ("a cat",)), 0)
    assert texts[0].mask == Mask()
    assert counts.refused["mask", "nothing-to-hide"] == 1


# --- Steps and runs. ---

TERMS = (
    LossTerm("contrast", masked_contrast, extra=MaskVectors()),
    LossTerm("match", masked_match, 0.1, extra=MaskVectors()),
    LossTerm("words", TokenPrediction(), 20.0, needs_local=True, extra=MaskVectors()),
    LossTerm("patches", PatchPrediction(), 250.0, needs_local=True, extra=MaskVectors()),
)


def method_of(terms: Sequence[LossTerm] = TERMS, **plan: Any) -> Method:
    texts = CaptionPlan(texts=(MaskPlan(**plan),))
    return Method(name="masks", plan=texts, losses=tuple(terms), optim=OPTIM)


def test_what_does_not_go_together_is_refused(squares: Path) -> None:
    with pytest.raises(UsageError, match="no texts define it"):
        run(SINGLE, squares, "bare", replace(method_of(), plan=CaptionPlan()))
    with pytest.raises(UsageError, match="hide words alone"):
        run(SINGLE, squares, "cached", method_of(), **CACHED)
    words = method_of(TERMS[:2], images=False)
    settings = {"stop_after": 2, "features": squares / "features", **CACHED}
    assert len(run(SINGLE, squares, "words", words, **settings)["log"]) == 2


def test_terms_of_macco_go_with_another_method() -> None:
    made = compose(load_recipe("fsc-clip")(), terms=["+macco.contrast", "+degla.distill"])
    assert made.plan.texts == (MaskPlan(),)
    assert set(made.heads) == {"masks"}
    words = compose(made, settings=["texts.masks.images=false"])
    assert words.plan.texts == (MaskPlan(images=False),)
