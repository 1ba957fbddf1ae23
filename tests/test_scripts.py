"""Scripts of the project: the base model, pictures before and after, literature."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import distill_tower
import measure_base
import pretrain_image_tower
import pytest
import torch
from before_after import main
from literature import at_a_glance
from safetensors.torch import load_file

import compoclip
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.registry import load_recipe, method_names
from compoclip_world.dataset import bundled_world
from compoclip_world.sampling import scene_for
from compoclip_world.scene import Scene, WorldConfig
from lab.page import lab_table
from report_study import make_study

# --- The base model: pre-training of its image tower, and what it is asked ---


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


def test_a_tower_is_distilled_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HELD_OUT", "PART"):
        monkeypatch.setattr(distill_tower, name, 4)
    base = Path(distill_tower.__file__).parents[1] / "recipes" / "base"
    model = json.loads((base / "vit.json").read_text())
    model["model_cfg"]["vision_cfg"] |= {"width": 64, "layers": 1, "head_width": 32}
    shutil.copy(base / "bpe.txt.gz", tmp_path)
    (tmp_path / "vit.json").write_text(json.dumps(model))
    out = tmp_path / "out"
    files = ["--model", str(tmp_path / "vit.json"), "--world", str(base / "world.json")]
    sizes = ["--batch-size=2", "--scenes=8", "--save-every=1", "--workers=1", "--warmup=1"]
    for steps in (1, 2):
        shutil.rmtree(out / "model", ignore_errors=True)  # which a stopped run has not written
        assert distill_tower.main([*files, *sizes, f"--steps={steps}", f"--out={out}"]) == 0
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(-1 <= line[name] <= 1 for line in lines for name in ("embeddings", "patches"))
    distilled = compoclip.load(str(out / "model")).loaded.encoder.model.state_dict()
    bundled = compoclip.load("bundled").loaded.encoder.model.state_dict()
    texts = [name for name in bundled if not name.startswith("visual.")]
    assert texts
    assert all(torch.equal(distilled[name], bundled[name]) for name in texts)


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


# --- The picture needs no other file ---


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    return make_study(folder, photos=80, models=("base", "negclip"), resamples=20)


def test_items_before_and_after(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "items.svg"
    argv = [str(results / "base"), str(results / "negclip"), "-o", str(out)]
    assert main([*argv, "--skills", "binding", "attribute", "--count", "2"]) == 0
    text = out.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert len(re.findall("<image ", text)) == text.count('href="data:image/') == 2
    assert text.count("✗ wrong") == text.count("✓ right") == 2
    assert text.count(">base<") == text.count(">negclip<") == 2
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    rates = re.findall(r">\w+: ([\d.]+) → ([\d.]+) % of 80 items<", text)
    assert len(rates) == 2
    assert all(float(base) < float(tuned) for base, tuned in rates)
    assert main([*argv, "--skills", "binding", "--count", "1", "--narrow"]) == 0
    narrow = ElementTree.fromstring(out.read_text(encoding="utf-8"))
    assert narrow.attrib["width"] == "400"
    words = " ".join(narrow.itertext())
    assert words.count("✗ wrong") == words.count("✓ right") == 1
    with pytest.raises(CompoclipError, match="negclip is not significantly worse than base"):
        main([*argv, "--lost"])
    with pytest.raises(CompoclipError, match="--skills nothing: has "):
        main([*argv, "--skills", "nothing"])


def test_photos_that_have_moved(results: Path, tmp_path: Path) -> None:
    argv = [str(results / "base"), str(results / "negclip"), "-o", str(tmp_path / "a.svg")]
    argv += ["--skills", "binding"]
    photos, away = results.parent / "photos", tmp_path / "elsewhere" / "photos"
    away.parent.mkdir()
    photos.rename(away)
    try:
        with pytest.raises(CompoclipError, match="photos cannot be read; name their folder"):
            main(argv)
        assert main([*argv, "--images", str(away.parent)]) == 0
    finally:
        away.rename(photos)


# --- Recipes, published numbers with sources ---


ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "scripts/published.json"
LAB = ROOT / "reports/lab.tsv"


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading, its header first."""
    part = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


@pytest.fixture(scope="module")
def glance() -> str:
    return at_a_glance([load_recipe(name)() for name in method_names()])


def test_the_table_has_every_recipe(glance: str) -> None:
    recipes = rows(glance, "Recipes")
    assert recipes[0][:3] == ["recipe", "idea", "texts"]
    assert [row[0].strip("`") for row in recipes[2:]] == method_names()
    assert all(len(row) == len(recipes[0]) for row in recipes)
    found = {row[0].strip("`"): row for row in recipes[2:]}
    assert found["clic"][5] == "text"
    assert found["dac"][5] == "both (LoRA)"
    assert found["cs-clip"][2:5] == ["negclip/replace, units", "single", "negclip + 0.5 unit"]
    published = rows(glance, "Published numbers")
    assert published[2][0] == "CLIP"
    assert ["cs-clip", "86.9 C"] in [row[:2] for row in published]
    text = at_a_glance([load_recipe(name)() for name in ("fsc-clip", "clip")])
    names = [row[0] for row in rows(text, "Published numbers")]
    assert names == ["", "---", "CLIP", "fsc-clip"] * 3
    assert max(map(len, rows(text, "Published numbers"))) == 6


def test_every_published_number_has_a_source() -> None:
    data = json.loads(PUBLISHED.read_text())
    for method, numbers in data["methods"].items():
        assert set(numbers) <= set(data["columns"]), method
        for cell in numbers.values():
            letters = set(re.findall(r"[A-Z]", cell))
            assert letters, (method, cell)
            assert letters <= set(data["sources"])
            assert re.fullmatch(r"[\d., /A-Z]+", cell)


def test_the_table_of_the_lab_is_read() -> None:
    columns, found = lab_table(LAB)
    assert {"binding", "order", "i2t"} <= set(columns)
    assert {"base", "negclip"} <= set(found)


@pytest.mark.parametrize("content", [None, "", "nothing\n"])
def test_a_file_without_it_is_refused(content: str | None, tmp_path: Path) -> None:
    record = tmp_path / "lab.tsv"
    if content is not None:
        record.write_text(content)
    with pytest.raises(UsageError, match=r"lab\.tsv"):
        lab_table(record)


def test_the_page_is_what_the_script_writes(glance: str) -> None:
    written = (ROOT / "docs/literature.md").read_text(encoding="utf-8")
    assert written == f"{glance}\n", "run python scripts/literature.py"
