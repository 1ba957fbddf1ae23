"""Pointing accuracy: hand-made maps and boxes, scenes of the world, a model that must point."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from compoclip.cli.main import main
from compoclip.errors import CompoclipError
from compoclip.evaluation.statistics import Bootstrap
from compoclip.models.checkpoint import create_model
from compoclip.models.config import ModelConfig
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.image_tower import ImageFeatures
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
from models_thin import config
from test_analysis_patch_maps import StandIn

REGION = (0.0, 0.0, 40.0, 40.0)


def test_a_patch_in_part_counts_in_part() -> None:
    found = cover((2, 2), REGION, (10, 0, 30, 30))
    assert found.tolist() == [[0.5, 0.5], [0.25, 0.25]]
    assert cover((2, 2), (20, 0, 60, 40), (0, 0, 40, 40)).tolist() == [[1, 0], [1, 0]]


def test_measures_by_hand() -> None:
    attention = np.array([[0.1, 0.2], [0.3, 0.4]])
    target = PointedWord(0, "noun", (20, 20, 40, 40), ((0, 0, 20, 20),))
    assert pointed(attention, REGION, target) == (
        pytest.approx((0.4, 0.25)),
        (1.0, 0.25),
        (1.0, 0.5),
    )
    away = replace(target, box=(0, 0, 20, 20), others=((20, 20, 40, 40), (0, 20, 20, 40)))
    assert pointed(attention, REGION, away) == (
        pytest.approx((0.1, 0.25)),
        (0.0, 0.25),
        (0.0, pytest.approx(1 / 3)),
    )


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
    assert (gap.value, gap.low, gap.high) == pytest.approx((0.03,) * 3)
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
    assert "+0.0 [+0.0, +0.0]" in shown
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
    for wrong, said in (
        (["world", "pointing"], "give MODEL: As for evaluate; such as compoclip world pointing"),
        (["maps", *drawn[2:], "--out", str(out)], "give MODEL: Models, written as"),
        (["world", "pointing", "bundled", "--scenes", "0"], "--scenes must be at least 1"),
    ):
        assert main(wrong) == 2
        assert said in capsys.readouterr().err
