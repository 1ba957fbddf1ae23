"""World configurations in files: fields, defaults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import create_model
from compoclip.models.config import read_config
from compoclip_world.dataset import read_world_config
from compoclip_world.scene import WorldConfig


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_fields_in_the_file_replace_the_defaults(tmp_path: Path) -> None:
    text = '{"objects": [1, 2], "synonyms": 0, "caption_weights": [["object", 1.0]]}'
    config = read_world_config(write(tmp_path / "w.json", text))
    assert config.objects == (1, 2)
    assert config.synonyms == 0
    assert config.caption_weights == (("object", 1.0),)
    assert config.patterned == WorldConfig().patterned
    hash(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not an object"),
        ('{"colors": ["red"]}', "unknown field 'colors'"),
        ('{"patterned": "often"}', "'patterned' must be a float"),
        ('{"patterned": 1.5}', "share between 0 and 1"),
    ],
)
def test_malformed_files_are_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CompoclipError, match=message) as error:
        read_world_config(write(tmp_path / "w.json", text))
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=r"absent\.json: no such file"):
        read_world_config(tmp_path / "absent.json")


def test_the_recipes_of_the_base_model_are_readable() -> None:
    folder = Path(__file__).parents[1] / "recipes" / "base"
    models = {folder / "model.json", folder / "vit.json"}
    recipes = sorted(set(folder.glob("*.json")) - models)
    assert len(recipes) == 3
    for path in recipes:
        read_world_config(path)
    for path in models:
        create_model(read_config(path))
