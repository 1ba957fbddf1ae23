"""The programs of docs/guide/use-elsewhere.md and serve.md, where their libraries are installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compoclip
from compoclip.models.checkpoint import create_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.conversion import convert
from compoclip.web import Service
from models_thin import config
from test_serve import picture, serving

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guide"
TEXTS = ["a red star", "a blue star"]


def programs(page: str) -> dict[str, str]:
    """The Python blocks of a page by the heading that they stand below."""
    text = (GUIDE / page).read_text(encoding="utf-8")
    blocks = {}
    for part in re.split(r"^## ", text, flags=re.M):
        for block in re.findall(r"^```python\n(.*?)^```", part, flags=re.S | re.M):
            blocks[part.splitlines()[0].rpartition(": ")[2]] = block
    return blocks


PROGRAMS = programs("use-elsewhere.md")
LIBRARY = {
    "sentence-transformers": "sentence_transformers",
    "Qdrant": "qdrant_client",
}
SCORED = ["open_clip", "transformers", "sentence-transformers"]
SEARCHED = ["FAISS", "Qdrant"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with the bundled vocabulary and untrained weights, and photos."""
    place = tmp_path_factory.mktemp("recipes")
    bundled = compoclip.load("bundled").loaded.config
    kwargs = bundled.model_cfg["text_cfg"]["tokenizer_kwargs"]
    text = {"vocab_size": 1056, "context_length": 77, "tokenizer_kwargs": kwargs}
    (place / "runs" / "fsc").mkdir(parents=True)
    (place / "photos").mkdir()
    checkpoint = ModelConfig(config(text=text), folder=bundled.folder)
    save_model(create_model(checkpoint, seed=1), place / "runs/fsc/model")
    for number in range(6):
        picture(number).save(place / "photos" / f"{number}.png")
    return place


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    library = LIBRARY.get(name, name.lower())
    pytest.importorskip(library, reason=f"needs {library}")
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(PROGRAMS[name], name, "exec"), names)  # noqa: S102
    return names


def test_every_program_is_run_here() -> None:
    assert sorted(PROGRAMS) == sorted([*SCORED, *SEARCHED])
    assert len(programs("serve.md")) == 1


@pytest.mark.parametrize("name", SCORED)
def test_the_same_scores(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != "open_clip" and not (folder / "fsc-hf").exists():
        pytest.importorskip("transformers", reason="needs transformers")
        convert(str(folder / "runs/fsc/model"), folder / "fsc-hf", "hf")
    names = run(name, folder, monkeypatch)
    expected = compoclip.load("runs/fsc/model").score(["photos/0.png"], TEXTS)
    assert np.abs(np.asarray(names["scores"]) - expected).max() < 1e-4


@pytest.mark.parametrize("name", SEARCHED)
def test_the_same_images_found(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(name, folder, monkeypatch)
    files = [Path("photos") / f"{number}.png" for number in range(6)]
    scores = compoclip.load("runs/fsc/model").score(files, TEXTS[:1])[:, 0]
    order = np.argsort(-scores)[:3]
    assert names["best"] == [files[row] for row in order]
    assert np.abs(np.asarray(names["similarity"])[0] - scores[order]).max() < 1e-5


def test_the_client_of_openai() -> None:
    pytest.importorskip("openai", reason="needs openai")
    (block,) = programs("serve.md").values()
    names: dict[str, Any] = {}
    model = compoclip.load("bundled")
    with serving(Service("bundled", model.loaded)) as server:
        exec(block.replace("http://127.0.0.1:8000/", server.url), names)  # noqa: S102
    assert np.abs(np.array(names["texts"]) - model.encode_texts(TEXTS)).max() < 1e-6
