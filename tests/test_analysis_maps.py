"""Token-patch maps and pointing: values by hand, every kind of tower, pictures of maps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from build.photos import noise
from compoclip.analysis.maps import (
    overlay,
    patch_grid,
    patch_maps,
    seen_region,
    word_maps,
    word_positions,
)
from compoclip.cli import explain
from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.evaluation.statistics import Bootstrap
from compoclip.models.checkpoint import LoadedModel, create_model, load_model
from compoclip.models.config import ModelConfig
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.image_tower import ImageFeatures
from compoclip.models.preprocess import Preprocess
from compoclip.models.text_tower import TextFeatures
from compoclip_world.dataset import bundled_world
from compoclip_world.pointing import (
    HIT,
    MASS,
    OWN,
    Pointed,
    PointedWord,
    box_of,
    cover,
    measure_pointing,
    pointed,
    pointing_scenes,
    shares,
)
from compoclip_world.scene import Thing
from models_thin import config, timm_config

TEXT = {"vocab_size": 49408, "width": 16, "heads": 2, "layers": 1, "context_length": 8}
PHOTO = noise(0, (40, 32))


def new(cfg: dict[str, Any] | None = None) -> LoadedModel:
    return create_model(ModelConfig(cfg or config(text=TEXT)), seed=1)


class StandIn:
    """An encoder of four patches and three tokens (two words' and the end's), known by heart."""

    training = False
    device = torch.device("cpu")
    patches = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [-1.0, 0.0]]])
    tokens = torch.tensor([[[9.0, 9.0], [2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])

    def require_local(self, purpose: str) -> None:
        assert purpose == "patch maps"

    def modules(self) -> tuple[StandIn]:
        return (self,)

    def encode_images(self, pixels: Tensor, patches: bool) -> ImageFeatures:
        return ImageFeatures(torch.zeros(1, 2), self.patches)

    def encode_texts(self, ids: Tensor, tokens: bool) -> TextFeatures:
        mask = torch.tensor([[False, True, True, True]])
        return TextFeatures(torch.zeros(1, 2), self.tokens, mask)


def test_similarities_by_hand() -> None:
    model = replace(new(), encoder=cast(DualEncoder, StandIn()))
    maps = patch_maps(model, noise(0, (32, 32)), "red cat")
    assert maps.grid == (2, 2)
    assert [w.word for w in maps.words] == ["red", "cat"]
    assert word_positions(model, "red cat") == ((("red", (1,)), ("cat", (2,))), ())
    # "red" (2, 0): dot products 2, 0, 2, -2 -> 1, 1/2, 1, 0 -> divided by their sum, 5/2
    np.testing.assert_allclose(maps.words[0].attention, [[0.4, 0.2], [0.4, 0.0]], atol=1e-6)
    # what it attends to: 0.4 (1, 0) + 0.2 (0, 2) + 0.4 (1, 1) = (0.8, 0.8)
    assert maps.words[0].cosine == pytest.approx(0.5**0.5, abs=1e-6)
    # "cat" (0, 1): dot products 0, 2, 1, 0 -> 0, 1, 1/2, 0; attends to (1/3, 5/3)
    np.testing.assert_allclose(maps.words[1].attention, [[0, 2 / 3], [1 / 3, 0]], atol=1e-6)
    assert maps.words[1].cosine == pytest.approx(5 / 26**0.5, abs=1e-6)
    assert maps.region == (0, 0, 32, 32)
    assert maps.left_out == ()


def test_a_word_of_several_tokens_has_the_mean_of_their_attentions() -> None:
    patches, tokens = StandIn.patches[0], StandIn.tokens[0]
    one, other = word_maps(tokens, patches, [("red", (1,)), ("cat", (2,))], (2, 2))
    (both,) = word_maps(tokens, patches, [("redcat", (1, 2))], (2, 2))
    np.testing.assert_allclose(both.attention, (one.attention + other.attention) / 2)
    assert both.cosine == pytest.approx((one.cosine + other.cosine) / 2)
    assert both.attention.sum() == pytest.approx(1)


def test_words_are_where_the_tokenizer_puts_them() -> None:
    model = new(config(text={**TEXT, "context_length": 12}))
    simple = model.tokenizer.simple
    caption = "A  Rhinocerosly grey\nmug."
    spans, left_out = word_positions(model, caption)
    row = model.tokenizer([caption])[0].tolist()
    assert [word for word, _ in spans] == ["a", "rhinocerosly", "grey", "mug."]
    for word, positions in spans:
        assert simple.decode([row[p] for p in positions]).replace(" ", "") == word
    assert len(spans[1][1]) > 1  # a word of several tokens
    assert [p for _, positions in spans for p in positions] == list(range(1, row.index(49407)))
    assert left_out == ()


def test_words_beyond_the_context_are_named() -> None:
    model, caption = new(), "one two three four five six seven eight"
    maps = patch_maps(model, PHOTO, caption)
    assert [word.word for word in maps.words] == ["one", "two", "three", "four", "five", "six"]
    spans, _ = word_positions(model, caption)
    assert spans[-1] == ("six", (6,))  # the end token stands at 7
    assert maps.left_out == ("seven", "eight")


RESNET = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64, "patch_size": None}


@pytest.mark.parametrize(
    ("cfg", "grid"),
    [
        (config(text=TEXT), (4, 4)),
        (config(vision={"image_size": [32, 64]}, text=TEXT), (4, 8)),
        (config(vision=RESNET, text=TEXT), (2, 2)),
        ({**timm_config("mobilenetv2_050", 64), "text_cfg": TEXT}, (2, 2)),
    ],
    ids=["vit", "wide vit", "resnet", "timm"],
)
def test_every_kind_of_tower_has_maps(cfg: dict[str, Any], grid: tuple[int, int]) -> None:
    model = new(cfg)
    maps = patch_maps(model, PHOTO, "a red cat")
    assert maps.grid == grid
    for word in maps.words:
        assert word.attention.sum() == pytest.approx(1, abs=1e-5)
        assert word.attention.min() >= 0
    assert overlay(PHOTO, maps.words[0].attention, maps.region).size == (40, 32)


def test_what_cannot_be_mapped_is_one_clear_error() -> None:
    model = new()
    with pytest.raises(CompoclipError, match="at least one word"):
        patch_maps(model, PHOTO, " \n ")
    with torch.no_grad():
        model.encoder.model.visual.proj.fill_(float("nan"))  # type: ignore[union-attr,operator]
    with pytest.raises(CompoclipError, match="not finite"):
        patch_maps(model, PHOTO, "a cat")
    pooled = new(config(vision={"attentional_pool": True, "attn_pooler_heads": 4}, text=TEXT))
    with pytest.raises(CompoclipError, match=r"need patch features.*learned queries") as caught:
        patch_maps(pooled, PHOTO, "a cat")
    assert "\n" not in str(caught.value)


def test_grids() -> None:
    assert patch_grid(49, (224, 224)) == (7, 7)
    assert patch_grid(8, (32, 64)) == (2, 4)
    assert patch_grid(1, (224, 224)) == (1, 1)
    with pytest.raises(CompoclipError, match="50 patches form no grid on an input of 224 x 224"):
        patch_grid(50, (224, 224))


@pytest.mark.parametrize(
    ("preprocess", "photo", "region"),
    [
        ({}, (40, 20), (10, 0, 30, 20)),
        ({}, (20, 40), (0, 10, 20, 30)),
        ({"resize_mode": "squash"}, (40, 20), (0, 0, 40, 20)),
        ({"resize_mode": "longest"}, (40, 20), (0, -10, 40, 30)),
        ({"size": (10, 20)}, (40, 40), (0, 10, 40, 30)),
    ],
)
def test_the_region_that_the_model_sees(
    preprocess: dict[str, Any], photo: tuple[int, int], region: tuple[int, ...]
) -> None:
    assert seen_region(Preprocess(**{"size": (10, 10), **preprocess}), *photo) == region


def test_the_region_is_what_the_transform_keeps() -> None:
    model = Preprocess(size=(16, 16), mean=(0.0,) * 3, std=(1.0,) * 3)
    image = Image.new("RGB", (64, 32), "black")
    left, upper, right, lower = (round(edge) for edge in seen_region(model, 64, 32))
    image.paste((255, 255, 255), (left, upper, right, lower))
    pixels = model.evaluation(image)
    assert pixels[:, :, 2:-2].min() > 0.99
    wider = Image.new("RGB", (64, 32), "white")
    wider.paste((0, 0, 0), (left, upper, left + 4, lower))
    assert model.evaluation(wider)[:, :, 0].max() < 0.2


def test_an_overlay_is_brightest_where_the_map_is() -> None:
    grey = Image.new("RGB", (40, 20), (128, 128, 128))
    attention = np.array([[0.0, 0.7], [0.1, 0.2]])
    made = np.asarray(overlay(grey, attention, (10, 0, 30, 20), alpha=1)).astype(int)
    assert tuple(made[0, 29]) == (253, 231, 37)  # the end of viridis
    assert tuple(made[0, 10]) == (68, 1, 84)  # its beginning
    assert tuple(made[5, 5]) == tuple(made[5, 35]) == (45, 45, 45)  # not seen by the model
    none = np.asarray(overlay(grey, attention, (0, 0, 40, 20), alpha=0))
    assert (abs(none.astype(int) - 128) <= 1).all()
    flat = np.asarray(overlay(grey, np.full((2, 2), 0.25), (0, 0, 40, 20), alpha=1))
    assert (flat == (68, 1, 84)).all()


def test_an_overlay_is_bilinear_between_patches() -> None:
    from matplotlib import colormaps

    made = np.asarray(overlay(Image.new("RGB", (8, 2)), np.array([[0.0, 1.0]]), (0, 0, 8, 2), 1))
    for x in range(8):
        share = min(1, max(0, (x + 0.5) / 4 - 0.5))
        expected = np.array(colormaps["viridis"](np.float32(share))[:3]) * 255
        np.testing.assert_allclose(made[0, x], expected, atol=1)


# --- Pointing at what scenes of the world show. ---

REGION = (0.0, 0.0, 40.0, 40.0)


def test_a_patch_in_part_counts_in_part() -> None:
    assert cover((2, 2), REGION, (10, 0, 30, 30)).tolist() == [[0.5, 0.5], [0.25, 0.25]]
    assert cover((2, 2), (20, 0, 60, 40), (0, 0, 40, 40)).tolist() == [[1, 0], [1, 0]]


def test_pointing_by_hand() -> None:
    attention = np.array([[0.1, 0.2], [0.3, 0.4]])
    target = PointedWord(0, "noun", (20, 20, 40, 40), ((0, 0, 20, 20),))
    mass, hit, own = pointed(attention, REGION, target)
    assert (mass, hit, own) == (pytest.approx((0.4, 0.25)), (1.0, 0.25), (1.0, 0.5))
    away = replace(target, box=(0, 0, 20, 20), others=((20, 20, 40, 40), (0, 20, 20, 40)))
    mass, hit, own = pointed(attention, REGION, away)
    assert (mass, hit, own) == (pytest.approx((0.1, 0.25)), (0, 0.25), pytest.approx((0, 1 / 3)))


def test_an_even_map_is_at_chance() -> None:
    even = np.full((4, 4), 1 / 16)
    for box in ((3, 5, 17, 29), (0, 0, 40, 40), (12, 12, 13, 13)):
        target = PointedWord(0, "noun", box, ((20, 0, 40, 10),))
        (mass, area), (hit, share), (won, coin) = pointed(even, REGION, target)
        assert mass == pytest.approx(area)
        assert hit == pytest.approx(share)
        assert won == coin == 0.5


def test_scenes_name_what_they_show() -> None:
    scenes = pointing_scenes(bundled_world(), 20, 64, seed=1)
    again = pointing_scenes(bundled_world(), 20, 64, seed=1)
    for scene, same in zip(scenes, again, strict=True):
        assert scene.caption == same.caption
        assert scene.image.tobytes() == same.image.tobytes()
        words = scene.caption.split()
        assert [t.kind for t in scene.targets] == ["colour", "noun"] * 2
        first, second = scene.targets[1], scene.targets[3]
        assert first.others == (second.box,)
        pixels = np.asarray(scene.image).astype(int)
        for target in scene.targets[::2]:
            assert words[target.place - 1] in ("a", "an")
            left, upper, right, lower = (round(v) for v in target.box)
            inside = pixels[upper:lower, left:right].reshape(-1, 3)
            assert inside.std(axis=0).max() > 5  # something is drawn there
            assert 0 <= left < right <= 64
    thing = Thing("star", "red", "medium", "plain", 0.1, 0.5, 0.15, 0)
    assert box_of(thing, 100) == pytest.approx((0, 35, 25, 65))  # cut at the edge


class Painter(StandIn):
    """An encoder whose patches are mean colours and whose words are colours: it can but point."""

    colours = {"red": (1.0, 0.0, 0.0), "blue": (0.0, 0.0, 1.0)}  # noqa: RUF012

    def encode_images(self, pixels: Tensor, patches: bool) -> ImageFeatures:
        means = torch.nn.functional.avg_pool2d(pixels, 8)[0].flatten(1).T
        return ImageFeatures(torch.zeros(1, 3), means[None])

    def encode_texts(self, ids: Tensor, tokens: bool) -> TextFeatures:
        # <start> a red thing and a blue thing <end>
        rows = torch.zeros(1, 9, 3)
        rows[0, 2] = torch.tensor(self.colours["red"])
        rows[0, 6] = torch.tensor(self.colours["blue"])
        return TextFeatures(torch.zeros(1, 3), rows, torch.ones(1, 9, dtype=torch.bool))


def test_a_model_that_sees_colours_points_at_them() -> None:
    text = {"vocab_size": 49408, "width": 16, "heads": 2, "layers": 1, "context_length": 12}
    plain = create_model(ModelConfig(config(vision={"image_size": 32}, text=text)), seed=1)
    model = replace(plain, encoder=cast(DualEncoder, Painter()))
    image = Image.new("RGB", (32, 32), "black")
    image.paste((255, 0, 0), (0, 0, 8, 8))
    image.paste((0, 0, 255), (16, 16, 24, 32))
    red, blue = (0.0, 0.0, 8.0, 8.0), (16.0, 16.0, 24.0, 32.0)
    scene = Pointed(
        image,
        "a red thing and a blue thing",
        (PointedWord(1, "colour", red, (blue,)), PointedWord(5, "colour", blue, (red,))),
    )
    found = measure_pointing(model, [scene, scene])
    assert found.keys() == {"colour"}
    mass, hit, own = (found["colour"][m] for m in (MASS, HIT, OWN))
    assert mass[:, 0] == pytest.approx([1.0, 1.0])
    assert mass[:, 1] == pytest.approx([1.5 / 16] * 2)
    assert hit[:, 0].tolist() == own[:, 0].tolist() == [1.0, 1.0]
    assert measure_pointing(model, [replace(scene, targets=())]) == {}
    with pytest.raises(CompoclipError, match="does not keep the words"):
        measure_pointing(model, [replace(scene, caption="a &amp; thing and a blue thing")])


def test_intervals_and_paired_differences() -> None:
    values = np.random.default_rng(0).normal(0.5, 0.1, (400, 1))
    one = {"noun": {MASS: np.hstack([values, values * 0 + 0.25])}}
    other = {"noun": {MASS: np.hstack([values + 0.03, values * 0 + 0.25])}}
    share = shares(one, Bootstrap(300))["noun"][MASS]
    assert share.value == pytest.approx(values.mean())
    assert share.chance == 0.25
    assert share.high - share.low == pytest.approx(2 * 1.96 * 0.1 / 20, rel=0.2)
    gap = shares(other, Bootstrap(300), one)["noun"][MASS]
    room = 1.96**2 / (400 + 1.96**2)  # share of scenes that may differ, from -1 to 1
    bounds = (0.03, 0.03 - room * 1.03, 0.03 + room * 0.97)
    assert (gap.value, gap.low, gap.high) == pytest.approx(bounds, abs=1e-5)
    assert shares(one, Bootstrap(300)) == shares(one, Bootstrap(300))
    single = {"noun": {MASS: one["noun"][MASS][:1]}}
    for found in (shares(single, Bootstrap(300)), shares(single, Bootstrap(300), single)):
        assert (found["noun"][MASS].low, found["noun"][MASS].high) == (None, None)


def test_the_command(tmp_path, capsys) -> None:
    out = tmp_path / "maps"
    command = ["world", "pointing", "a=bundled", "b=bundled", "--scenes", "4", "--resamples", "20"]
    assert main([*command, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "minus a" in shown
    assert "+0.0 [-49.0, +49.0]" in shown  # of four scenes that agree: 1.96^2 / (4 + 1.96^2)
    records = json.loads((out / "maps.json").read_text())
    assert [each["model"] for each in records] == ["a", "b"]
    assert records[0]["shares"]["noun"][OWN]["chance"] == 0.5
    scene = pointing_scenes(bundled_world(), 1, 64)[0]
    scene.image.save(tmp_path / "x.png")
    drawn = ["maps", "bundled", "--image", str(tmp_path / "x.png"), "--caption", scene.caption]
    assert main([*drawn, "--out", str(out), "--json"]) == 0
    pictures = json.loads(capsys.readouterr().out)
    assert [each["word"] for each in pictures] == scene.caption.split()
    for each in pictures:
        with Image.open(each["picture"]) as picture:
            assert picture.size == (64, 64)
    assert main([*drawn[:-1], "red", "--out", str(out)]) == 0
    assert f"{out}: also holds bundled/01-" in capsys.readouterr().err
    for wrong, said in (
        (["world", "pointing"], "give MODEL: As for evaluate; such as compoclip world pointing"),
        (["maps", *drawn[2:], "--out", str(out)], "give MODEL: Models, written as"),
        (["world", "pointing", "bundled", "--scenes", "0"], "--scenes must be at least 1"),
    ):
        assert main(wrong) == 2
        assert said in capsys.readouterr().err


def test_pictures_of_a_model_named_as_a_path_lie_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = pointing_scenes(bundled_world(), 1, 64)[0]
    scene.image.save(tmp_path / "x.png")
    models = {"org/clip": load_model("bundled"), "hf:org": load_model("bundled")}
    monkeypatch.setattr(explain, "load_models", lambda *_: models)
    options = explain.MapsOptions(("a", "b"), tmp_path / "x.png", "red", tmp_path / "out")
    explain.maps_main(options)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"org_clip", "hf_org"}
