"""The scripts behind the base model: pre-training of its image tower, and what it is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import measure_base
import pretrain_image_tower
import pytest
import torch
from safetensors.torch import load_file

import compoclip
from compoclip_world.dataset import bundled_world
from compoclip_world.sampling import scene_for
from compoclip_world.scene import Scene, WorldConfig

VISION = {"image_size": 32, "patch_size": 8, "layers": 1, "width": 64, "head_width": 32}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 1, "layers": 1}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    model = {"model_cfg": {"embed_dim": 32, "vision_cfg": VISION, "text_cfg": TEXT}}
    (tmp_path / "model.json").write_text(json.dumps(model))
    (tmp_path / "world.json").write_text("{}")
    monkeypatch.setattr(pretrain_image_tower, "HELD_OUT", 50)
    files = ["--model", str(tmp_path / "model.json"), "--world", str(tmp_path / "world.json")]
    return [*files, "--steps", "4", "--batch-size", "4", "--save-every", "2", "--workers", "1"]


def test_a_tower_goes_on_where_it_stopped(command: list[str], tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert pretrain_image_tower.main([*command, "--out", str(whole)]) == 0
    assert pretrain_image_tower.main([*command, "--out", str(parts), "--stop-after", "2"]) == 0
    assert not (parts / "tower.safetensors").exists()
    assert pretrain_image_tower.main([*command, "--out", str(parts)]) == 0
    first, second = (load_file(each / "tower.safetensors") for each in (whole, parts))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines = [json.loads(line) for line in (parts / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert lines[0]["loss"] == json.loads((whole / "log.jsonl").read_text().splitlines()[0])["loss"]


def test_answers_are_those_of_the_scene() -> None:
    scene = scene_for(WorldConfig(objects=(0.0, 1.0)), 0, "val", 3)
    answers = pretrain_image_tower.answers_of(scene)
    kinds, colours = pretrain_image_tower.KIND, pretrain_image_tower.COLOUR
    assert {kinds[i] for i in answers["kind"]} == {thing.kind for thing in scene.things}
    bound = {(colours[i // len(kinds)], kinds[i % len(kinds)]) for i in answers["colour of kind"]}
    assert bound == {(thing.colour, thing.kind) for thing in scene.things}
    assert answers["count"] == [1]
    for name, right in answers.items():
        assert all(0 <= i < pretrain_image_tower.QUESTIONS[name].answers for i in right)


def test_the_bundled_model_is_asked_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_base, "_MOST", 400)
    splits = set()

    def noted(config: WorldConfig, seed: int, split: str, index: int) -> Scene:
        splits.add(split)
        return scene_for(config, seed, split, index)

    monkeypatch.setattr(measure_base, "scene_for", noted)
    config = replace(bundled_world(), size=64)
    model = compoclip.load("bundled")
    rows = [
        row
        for part in (measure_base.single_changes, measure_base.zero_shot, measure_base.probes)
        for row in part(model, config, 1, 12)
    ]
    found = {name: right / total for name, right, total in rows}
    assert splits == {"val"}  # a base is not chosen on what the demo reports
    assert found["replace-colour"] > 0.8
    assert found["zero-shot colours (of 10)"] > 0.8
    assert found["probe: place of a thing (4 corners)"] > 0.25
