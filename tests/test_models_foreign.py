"""Folders of other libraries: every entry is followed, harmless, or refused by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import load_model, save_model
from foreign_folders import KINDS, outcomes
from test_models_hf import model

Edit = Callable[[dict[str, Any]], object]
IMAGES = {"image_processor_type": "CLIPImageProcessor", "size": 32, "crop_size": 32}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIPModel folder, without our record."""
    folder = tmp_path_factory.mktemp("foreign") / "clip"
    save_model(model("gelu"), folder, form="hf")
    (folder / "compoclip.json").unlink()
    return folder


def copied(clip: Path, folder: Path, **files: Any) -> Path:
    folder.mkdir()
    for path in clip.iterdir():
        (folder / path.name).symlink_to(path)
    for name, data in files.items():
        (folder / f"{name}.json").unlink(missing_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def edited(clip: Path, folder: Path, file: str, edit: Edit) -> Path:
    data = json.loads((clip / f"{file}.json").read_text())
    edit(data)
    return copied(clip, folder, **{file: data})


def put(section: str, **values: Any) -> Edit:
    return lambda data: (data[section] if section else data).update(values)


REFUSED: list[tuple[str, Edit, str]] = [
    ("config", put("", quantization_config={"bits": 4}), "'quantization_config'"),
    ("config", put("vision_config", num_channels=1), "vision_config.num_channels is 1"),
    ("config", put("text_config", position_embedding_type="rope"), "position_embedding_type'"),
    ("config", put("text_config", eos_token_id=5), "eos_token_id is 5 .*texts end in 49407"),
    ("config", put("text_config", layer_norm_eps=None), "text_config.layer_norm_eps is null"),
    ("config", put("vision_config", intermediate_size=99), "vision_config.intermediate_size is 99"),
    ("config", put("vision_config", pruned_heads={"0": [1]}), "vision_config.pruned_heads"),
    ("preprocessor_config", put("", do_rescale=False), "do_rescale is False"),
    ("preprocessor_config", put("", rescale_factor=1.0), "rescale_factor is 1.0"),
    ("preprocessor_config", put("", size={"shortest_edge": 40}), "size .*shortest_edge.*40"),
    ("preprocessor_config", put("", do_center_crop=False), "do_center_crop False"),
    ("preprocessor_config", put("", resample=1), "resample 1 is neither"),
    ("preprocessor_config", put("", image_processor_type="DonutImageProcessor"), "Donut"),
    ("preprocessor_config", put("", do_pad=True), "do_pad is True"),
    ("tokenizer_config", put("", do_lower_case=False), "do_lower_case is False"),
    ("tokenizer_config", put("", eos_token="</s>"), "eos_token is '</s>'"),
    ("tokenizer_config", put("", pad_token="!"), "pad_token is '!'"),
    ("tokenizer_config", put("", added_tokens_decoder={"7": {"content": "x"}}), "decoder.7"),
    ("special_tokens_map", put("", bos_token={"content": "<s>"}), "bos_token is '<s>'"),
    ("vocab", put("", **{"cat</w>": 3}), "vocab.json: its tokenizer is not"),
]


@pytest.mark.parametrize(("file", "edit", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_an_entry_that_is_not_followed_is_refused_by_its_name(
    clip: Path, tmp_path: Path, file: str, edit: Edit, message: str
) -> None:
    folder = edited(clip, tmp_path / "clip", file, edit)
    with pytest.raises(CompoclipError, match=message) as caught:
        load_model(folder)
    assert str(folder / f"{file}.json") in str(caught.value)


def test_image_settings_come_from_the_processor_file_of_newer_releases(
    clip: Path, tmp_path: Path
) -> None:
    settings = {**IMAGES, "image_mean": [0.5] * 3, "resample": 2}
    nested = {"image_processor": settings, "processor_class": "CLIPProcessor"}
    both = load_model(copied(clip, tmp_path / "both", processor_config=nested))
    assert both.preprocess.mean == (0.5,) * 3  # it overrules preprocessor_config.json
    assert both.preprocess.interpolation == "bilinear"
    folder = copied(clip, tmp_path / "alone", processor_config=nested)
    (folder / "preprocessor_config.json").unlink()
    alone = load_model(folder)
    assert alone.preprocess == both.preprocess
    assert alone.identity.assumed == ()
    square = {**settings, "size": {"height": 32, "width": 32}, "do_normalize": False}
    folder = copied(clip, tmp_path / "squashed", processor_config={"image_processor": square})
    squashed = load_model(folder).preprocess
    assert (squashed.resize_mode, squashed.mean, squashed.std) == ("squash", (0,) * 3, (1,) * 3)


def test_texts_are_cut_where_the_tokenizer_cuts_them(clip: Path, tmp_path: Path) -> None:
    folder = edited(clip, tmp_path / "clip", "tokenizer_config", put("", model_max_length=9))
    assert load_model(folder).identity.context_length == 9


def test_files_that_nobody_reads_are_named(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(clip, tmp_path / "clip", generation_config={}, extra_head={})
    (folder / "README.md").write_text("")
    loaded = load_model(folder)
    assert len(loaded.identity.assumed) == 1
    assert "files: extra_head.json not read" in loaded.identity.assumed[0]
    assert "extra_head.json" in capsys.readouterr().err


PIPELINES: list[tuple[dict[str, Any], str]] = [
    ({"modules": [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]}, "Dense"),
    (
        {
            "config_sentence_transformers": {
                "default_prompt_name": "query",
                "prompts": {"query": "a photo of "},
            }
        },
        "default_prompt_name: texts begin with 'a photo of ",
    ),
]


@pytest.mark.parametrize(("files", "message"), PIPELINES)
def test_more_than_the_model_of_sentence_transformers_is_refused(
    clip: Path, tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    with pytest.raises(CompoclipError, match=rf"{message}.*st:FOLDER"):
        load_model(copied(clip, tmp_path / "clip", **files))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_change_gives_the_features_of_the_library_or_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("transformers", "sentence_transformers", "peft"):
        pytest.importorskip(library, reason="needs the extras hf and st")
    from compoclip.models.formats import hugging_face

    monkeypatch.setitem(hugging_face.SIZES, "thin", [32, 2, 4, 128])
    rows = list(outcomes(KINDS[kind], tmp_path / "folder", every=7))
    assert len(rows) > 5
    assert [row for row in rows if row.kind == "wrong"] == []
