"""The table of model formats: found by looking, asked in one order, few files on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import compoclip
from compoclip.errors import CompoclipError, UsageError
from compoclip.models import load_model, save_model
from compoclip.models.checkpoint import Format, create_model, format_of, formats, known_forms
from compoclip.models.config import ModelConfig
from compoclip.models.formats.hub import model_files
from compoclip.models.tokenizer import _of_merges
from compoclip_world.dataset import BASE
from models_thin import config

PACKAGE = Path(compoclip.__file__).parent


def test_every_file_of_the_folder_holds_a_format_or_what_formats_share() -> None:
    held = {Path(sys.modules[type(each).__module__].__file__ or "").name for each in formats()}
    there = {path.name for path in (PACKAGE / "models" / "formats").glob("*.py")}
    assert there - held == {"__init__.py", "closed_list.py", "hf_files.py", "hub.py"}
    assert [each.order for each in formats()] == sorted({each.order for each in formats()})
    assert all(each.kind and each.known_by for each in formats())


NO_WHOLE_MODELS = ("lora", "peft", "merged", "hf-vision", "hf-text", "onnx")
"""Forms of adapters and of towers, and those that are only written."""


@pytest.mark.parametrize("form", sorted({*known_forms()} - {*NO_WHOLE_MODELS}))
def test_what_a_form_writes_is_of_the_format_that_wrote_it(form: str, tmp_path: Path) -> None:
    text = {"vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    model = create_model(ModelConfig(config(text=text), freeze_batch_norm=form != "hf"))
    save_model(model, tmp_path / "written", form=form)
    back = load_model(tmp_path / "written")
    assert back.identity == model.identity
    assert back.preprocess == model.preprocess
    assert back.config.freeze_batch_norm == model.config.freeze_batch_norm
    for name, value in model.encoder.model.state_dict().items():
        assert torch.equal(back.encoder.model.state_dict()[name], value)
    found = format_of(str(tmp_path / "written"))
    assert form in found.forms
    mine = [each for each in formats() if each.sniff(str(tmp_path / "written"))]
    assert mine == [found]
    described = found.describe(str(tmp_path / "written"), None, None)
    assert described["identity"] == model.identity.to_json()
    needed, _ = found.hub_files(tmp_path / "written")
    assert set(needed) < set(model_files(tmp_path / "written"))


def test_what_a_format_cannot_do_is_one_line(tmp_path: Path) -> None:
    model = load_model("bundled")
    with pytest.raises(UsageError, match="is not an adapter, and only adapters have the form peft"):
        save_model(model, tmp_path / "out", form="peft")
    with pytest.raises(UsageError, match=f"no form 'gguf'; known: {', '.join(known_forms())}"):
        save_model(model, tmp_path / "out", form="gguf")
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "image.onnx").write_bytes(b"")
    with pytest.raises(CompoclipError, match="an ONNX export, which is only written"):
        load_model(tmp_path / "onnx")
    with pytest.raises(CompoclipError, match="is not a model folder"):
        load_model(tmp_path)


def test_a_format_needs_no_more_than_a_way_to_load(tmp_path: Path) -> None:
    class Minimal(Format):
        kind, known_by, order = "a file of one number", "nothing", 99
        markers = ("number.txt",)

        def load(self, source: str, activation: Any) -> Any:
            return load_model(f"random:ViT-B-32:{(Path(source) / 'number.txt').read_text()}")

    found = Minimal()
    assert not found.sniff(str(tmp_path))
    (tmp_path / "number.txt").write_text("3")
    assert found.sniff(str(tmp_path))
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: found.load_on("x", "bundled", None), "needs no base; leave --base out"),
        (lambda: found.adapted("x", None, None), "has no adapters"),
    ]
    for ask, message in refused:
        with pytest.raises(CompoclipError, match=message):
            ask()
    assert (found.adapters_only, found.snippet(tmp_path)) == (False, ("", ""))


def test_a_checkpoint_passes_through_fifteen_files_to_its_encoder() -> None:
    formats()  # found once a program
    _of_merges.cache_clear()  # of what other tests have loaded
    entered: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            entered[frame.f_code.co_filename] = None

    sys.setprofile(note)
    try:
        load_model(BASE)
    finally:
        sys.setprofile(None)
    package = f"{PACKAGE}/"
    files = [name.removeprefix(package) for name in entered if name.startswith(package)]
    assert files == [
        "models/checkpoint.py",
        "models/names.py",
        "models/formats/open_clip.py",
        "models/config.py",
        "files.py",
        "models/formats/closed_list.py",
        "typed.py",
        "errors.py",
        "models/weights.py",
        "patterns.py",
        "models/architecture.py",
        "models/tokenizer.py",
        "captions/clip_text.py",
        "models/preprocess.py",
        "models/dual_encoder.py",
    ]
