"""Model cards: written beside every checkpoint, true, runnable, and without traces of a machine."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from build_bpe import count_words, train_bpe, write_merges

from compoclip.errors import CompoclipError
from compoclip.evaluation.results import Results, Score, card_rows
from compoclip.models.checkpoint import LoadedModel, create_model, load_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.formats.hub import CardResult, card_text, write_card
from models_thin import config

CAPTIONS = ["a red cat on a mat", "two dogs"]
PROVENANCE: dict[str, Any] = {
    "method": "fsc-clip",
    "settings": {"gamma": 2.0},
    "terms": [
        {"name": "clip", "weight": 1.0, "on": ""},
        {"name": "local_hn", "weight": 0.2, "on": "single"},
    ],
    "optim": {"lr": 1e-5, "batch_size": 256},
    "data": "coco captions in /data/coco, 3 | shards",
    "seed": 3,
    "precision": "bf16",
    "base_file": "/home/somebody/weights/base.pt",
    "spec": "ViT-B-32@/home/somebody/else.pt",
    "run": {
        "model": None,
        "steps": 1200,
        "images": 307200,
        "texts": 614400,
        "skipped": 2,
        "truncated": 0,
        "left_out": {"no caption": 7},
    },
}


def new(folder: Path, merges: bool = False) -> LoadedModel:
    text: dict[str, Any] = {"vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    if merges:
        write_merges(train_bpe(count_words(CAPTIONS), 20), folder / "merges.gz")
        text = {"vocab_size": 544, "tokenizer_kwargs": {"bpe_path": "merges.gz"}}
    cfg = config(text=text, quick_gelu=True)
    return create_model(ModelConfig(cfg, {"mean": [0.5, 0.4, 0.3]}, folder=folder), seed=2)


def card(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with provenance; tests leave its card as it was."""
    folder = tmp_path_factory.mktemp("card")
    save_model(new(folder), folder / "model", provenance=PROVENANCE)
    return folder / "model"


def test_every_checkpoint_has_a_card(saved: Path) -> None:
    text, identity = card(saved), load_model(saved).identity
    assert text.startswith("---\nlibrary_name: open_clip\n")
    for row in (
        "| recipe | fsc-clip |",
        "| data | coco captions in /data/coco, 3 \\| shards |",
        "| losses | 1 x clip + 0.2 x local_hn (on single) |",
        "| steps | 1,200 |",
        "| unreadable images skipped | 2 |",
        "| left out: no caption | 7 |",
        "| activation | `quick_gelu` |",
        f"| tokenizer | `{identity.tokenizer}` |",
        "| image mean | `0.5, 0.4, 0.3` |",
        f"| weights (hash) | `{identity.weights}` |",
        "# CLIP, fsc-clip",  # an architecture without a name has a hash
    ):
        assert row in text.splitlines()
    assert '"batch_size": 256' in text.partition("<summary>Full training record</summary>")[2]
    assert text.count("```json") == text.count("\n# ") == 1
    assert "None recorded. Measure with" in text
    assert "truncated" not in text  # nothing was cut


def test_a_card_tells_nothing_of_the_machine(saved: Path) -> None:
    text = card(saved)
    assert str(saved.parent) not in text
    assert "somebody" not in text
    assert '"base.pt"' in text
    assert '"ViT-B-32@else.pt"' in text


@pytest.mark.parametrize("merges", [False, True])
def test_the_code_of_a_card_runs(tmp_path: Path, merges: bool) -> None:
    """Both ways to load give the features of the model that was saved."""
    model = new(tmp_path, merges)
    save_model(model, tmp_path / "model", provenance=PROVENANCE)
    blocks = re.findall(r"```python\n(.*?)```", card(tmp_path / "model"), re.DOTALL)
    found: list[dict[str, Any]] = [{}, {}]
    for names, block in zip(found, blocks, strict=True):
        code = compile(block.replace("FOLDER", str(tmp_path / "model")), "card", "exec")
        exec(code, names)  # noqa: S102 - the very text that users are told to run
    plain, own = found
    expected = model.encoder.encode_texts(model.tokenizer(CAPTIONS)).pooled
    with torch.no_grad():
        ids = plain["tokenizer"](CAPTIONS)
        torch.testing.assert_close(plain["model"].encode_text(ids), expected)
    assert own["model"].identity.weights == model.identity.weights
    assert ("bpe_path" in blocks[0]) is merges


def test_results_are_listed_when_they_exist(saved: Path) -> None:
    before = card(saved)
    rows = [CardResult("sugarcrepe", "mean of 7", 0.8123, 0.8, 0.825, 0.5, 7511)]
    assert write_card(saved, rows) == saved / "README.md"
    assert "| sugarcrepe | mean of 7 | 81.2 | 80.0 to 82.5 | 50.0 | 7,511 |" in card(saved)
    assert "None recorded" not in card(saved)
    write_card(saved)
    assert card(saved) == before


def result(weights: str, **changes: Any) -> Results:
    score = Score("accuracy", 0.75, 3, 4, 0.5, 0.9, "wilson", 0.5, 3)
    return Results(
        model="tuned",
        benchmark="winoground",
        protocol=1,
        identity={"weights": weights},
        data_hash="",
        tie_policy={},
        scores={},
        aggregates={"text": score, "group": replace(score, value=0.25)},
        headline="group",
        skills={},
        items="",
        **changes,
    )


def test_rows_are_the_headlines_of_this_very_model(tmp_path: Path) -> None:
    identity = new(tmp_path).identity
    whole, part = result(identity.weights), result(identity.weights, partial=True)
    rows = card_rows([whole, part], identity)
    assert rows[0] == CardResult("winoground", "group", 0.25, 0.5, 0.9, 0.5, 3)
    assert rows[1].benchmark == "winoground (3 of 4 items)"
    with pytest.raises(CompoclipError, match="not of this checkpoint"):
        card_rows([result("other")], identity)


def test_odd_and_missing_provenance_does_not_break_the_card(tmp_path: Path) -> None:
    identity = new(tmp_path).identity
    text = card_text(identity, {})
    assert "## How it was made\n\nNot recorded.\n" in text
    assert "| adapter | `none` |" in text
    odd = {"method": "a|b\n# c", "terms": "?", "note": "```\n<script>"}
    text = card_text(identity, odd)
    assert "| recipe | a\\|b # c |" in text
    assert "# c" not in text.splitlines()
    assert "````" in text or "\\n" in text  # the fence is longer than any in the text
    assert [line for line in text.splitlines() if line.startswith("| losses")] == [
        '| losses | "?" |'
    ]


def test_a_folder_without_record_has_no_card(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=r"compoclip\.json"):
        write_card(tmp_path)
    (tmp_path / "compoclip.json").write_text(json.dumps({"identity": 3}))
    with pytest.raises(CompoclipError, match="has no identity"):
        write_card(tmp_path)
    assert not (tmp_path / "README.md").exists()
