"""`python -m bench text`: what it reads, counts and prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.__main__ import main
from bench.text import measure_text_speed, tower_operations
from compoclip.cli.caption_input import read_captions
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import ModelConfig
from models_thin import config, token_ids

CAPTIONS = [f"a {colour} {thing}" for colour in ("red", "blue") for thing in ("cat", "small dog")]


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    cfg = config(text={"vocab_size": 49408, "context_length": 16})
    save_model(create_model(ModelConfig(cfg)), tmp_path / "model")
    return tmp_path / "model"


def test_captions_are_read_from_every_form(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        json.dumps({"7": {"filename": "x", "caption": "a", "negative_caption": "b"}})
    )
    (tmp_path / "b.json").write_text('{"id": 1, "caption": "c"}\n{"id": 2, "caption2": "d"}\n')
    (tmp_path / "c.jsonl").write_text('{"captions": ["e", "f"]}\n\n"g"\n'.replace('"g"\n', ""))
    (tmp_path / "d.txt").write_text("h\n\n i \n")
    (tmp_path / "e.json").write_text('["j", {"caption": " "}]')
    (tmp_path / "README.md").write_text("not this")
    assert read_captions(tmp_path) == ["a", "b", "c", "d", "e", "f", "h", " i ", "j"]
    (tmp_path / "none.txt").write_text("\n")
    for path, message in (
        (tmp_path / "none.txt", "no captions found"),
        (tmp_path / "missing.txt", "missing.txt"),
    ):
        with pytest.raises(CompoclipError, match=message):
            read_captions(path)


def test_sugarcrepe_has_its_15022_captions(shared_data: Path) -> None:
    assert len(read_captions(shared_data / "annotations" / "sugarcrepe")) == 2 * 7511


def test_operations_are_those_of_the_matrix_products() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = create_model(ModelConfig(config(text={"vocab_size": 49408})))
    ids = token_ids([9, 9, 9], context=9)
    tower = model.encoder.model
    plain = sdpa_kernel(SDPBackend.MATH)  # older counters pass over fused attention on the CPU
    with plain, FlopCounterMode(display=False) as counter, torch.enable_grad():
        tower.encode_text(torch.nn.functional.pad(ids, (0, 11)))
    ours = tower_operations([(3, 20)], 60, width=32, layers=3, mlp_width=128, out=24)
    assert counter.get_total_flops() == ours


def test_counts_and_equality_on_a_thin_model() -> None:
    loaded = create_model(ModelConfig(config(text={"vocab_size": 49408})))
    batch = ["a cat", "a cat", "a red cat on a mat"]
    speed = measure_text_speed(loaded, [batch, ["a dog"]], repeats=2)
    assert speed.captions == 4
    assert speed.distinct == 3
    assert speed.tokens == 4 + 4 + 8 + 4
    assert speed.context_length == 20
    assert speed.open_clip.positions == 4 * 20
    assert speed.ours.positions == speed.tokens
    assert speed.ours_distinct.positions < speed.ours.positions
    assert speed.ours.operations < speed.open_clip.operations
    assert speed.max_difference < 1e-5
    assert speed.ratio > 0


def test_a_tower_that_is_not_trimmed_is_not_compared() -> None:
    cfg = config(text={"vocab_size": 49408, "no_causal_mask": True})
    with pytest.raises(CompoclipError, match="nothing to compare"):
        measure_text_speed(create_model(ModelConfig(cfg)), [["a"]], repeats=1)


def test_the_verb_prints_a_table_or_json(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.txt").write_text("\n".join(CAPTIONS))
    arguments = ["text", "--captions", str(tmp_path / "c.txt"), "--batch-size", "2"]
    arguments += ["--model", str(model_folder), "--repeats", "1", "--device", "cpu"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "headline: " in shown
    assert "open_clip encode_text" in shown
    assert main([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["result"]["captions"] == 4
    assert data["setting"]["versions"]["torch"] == torch.__version__


def test_bad_requests_exit_2(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.txt").write_text("one\n")
    asked = ["text", "--captions", str(tmp_path / "c.txt"), "--model", str(model_folder)]
    assert main(asked) == 2
    assert "1 captions, fewer than the 512 asked for" in capsys.readouterr().err
    assert main([*asked, "--batch-size", "0"]) == 2
    assert main(["nothing"]) == 2
    assert "known: captions, cost, data, evaluate" in capsys.readouterr().err
    assert main([]) == 2
    assert main(["--help"]) == 0
