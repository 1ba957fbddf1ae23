"""The configurations in examples/ build what they say."""

from __future__ import annotations

import json
import math
import re
import runpy
import sys
from itertools import permutations
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from compoclip.cli.main import main
from compoclip.evaluation.results import load_items, load_results
from compoclip.models.checkpoint import create_model, load_model
from compoclip.models.config import read_config
from compoclip.training.log import read_log
from tiny_transformers import write_clip, write_qwen

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SMALLER = (
    ("count=2048", "count=128"),
    ("items=100", "items=4"),
    ("epochs=4", "epochs=1"),
    ("resamples=500", "resamples=20"),
)


def test_the_real_photos_configuration_takes_the_image_weights(shared_data: Path) -> None:
    config = read_config(EXAMPLES / "real-photos" / "mobilenetv2-clip.json")
    weights = shared_data / "weights" / "mobilenetv2_100_imagenet.safetensors"
    model = create_model(config, image_weights=weights)
    assert model.encoder.freeze_bn
    assert model.preprocess.mean == model.preprocess.std == (0.5, 0.5, 0.5)
    model.encoder.require_local()  # fsc-clip needs features of patches


@pytest.mark.parametrize("tower", ["rn-mini", "swin-mini"])
def test_mosaic_clip_pretrains_small(tower: str, world: Path, tmp_path: Path) -> None:
    model = EXAMPLES / "mosaic-clip" / f"{tower}.json"
    options = [
        "--from-scratch",
        f"--model={model}",
        f"--out={tmp_path / 'run'}",
        "--set=log_every=1",
    ]
    steps = ["--batch-size=8", "--epochs=0.6", "--warmup=1", "--lr=1e-3", "--set=log_every=1"]
    data = f"--data={world / 'plain.jsonl'}"
    assert main(["train", "mosaic-clip-pretrain", data, *options, *steps]) == 0
    records = read_log(tmp_path / "run" / "train.jsonl")
    assert len(records) == 3
    assert all(math.isfinite(record["loss"]) for record in records)
    made = load_model(tmp_path / "run" / "model").provenance["run"]["rewrites"]
    assert made["negclip"]["made"] > 0  # the swap of the whole caption beside graph texts
    assert made["graph-positive"]["made"] > 24  # several an image, as many as there are


@pytest.mark.slow
@pytest.mark.parametrize(("tower", "million"), [("rn50", 23.5), ("swin-t", 27.5)])
def test_mosaic_clip_configurations_have_the_published_size(tower: str, million: float) -> None:
    model = create_model(read_config(EXAMPLES / "mosaic-clip" / f"{tower}.json"))
    trunk = model.encoder.model.visual.trunk
    assert round(sum(p.numel() for p in trunk.parameters()) / 1e6, 1) == million
    assert model.preprocess.size == (224, 224)


def code_cells(name: str) -> list[str]:
    """The code of a notebook, which is kept without outputs."""
    notebook = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    cells = [each for each in notebook["cells"] if each["cell_type"] == "code"]
    return ["".join(each["source"]) for each in cells]


def test_the_gpu_notebook_runs_tiny(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["notebook", "--tiny"])
    install, *cells = code_cells("free_gpu.ipynb")
    assert install.startswith("%pip install")
    (tmp_path / "cells.py").write_text("\n\n".join(cells))
    runpy.run_path(str(tmp_path / "cells.py"))
    printed = capsys.readouterr().out
    assert "compo against base (base), on the same items" in printed
    assert "compo against negclip (base), on the same items" in printed
    for recipe in ("negclip", "compo"):
        record = read_log(tmp_path / "free-gpu" / "runs" / recipe / "train.jsonl")
        assert record[-1]["step"] == 3  # 48 scenes by 16


@pytest.mark.slow
def test_the_notebook_runs_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = json.loads((EXAMPLES / "own_loss.ipynb").read_text(encoding="utf-8"))
    cells = [each for each in notebook["cells"] if each["cell_type"] == "code"]
    assert [each["execution_count"] for each in cells] == [*range(1, len(cells) + 1)]  # shipped run
    outputs = json.dumps([each["outputs"] for each in cells])
    assert "mean of headlines" in outputs
    assert "image/png" in outputs
    assert not re.search("/(tmp|home)/|error", outputs)
    sources = code_cells("own_loss.ipynb")
    (loss,) = (each for each in sources if each.startswith("def "))
    assert len(loss.splitlines()) <= 10
    seen = "print(sorted(models['mine'].loaded.provenance['sources']), len(results))"
    code = "\n\n".join([*sources, seen])
    for size, fewer in SMALLER:
        assert size in code
        code = code.replace(size, fewer)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    exec(code, {"__name__": "__main__"})  # noqa: S102
    printed = capsys.readouterr().out
    assert "mine against plain (base), on the same items" in printed
    assert printed.splitlines()[-1] == "['margin_loss (typed in)'] 9"
    assert (tmp_path / "own-loss" / "own-loss.png").stat().st_size > 1000


# --- Other trainers. ---


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with drawn shapes, and captions.csv with splits; a text for each of 24 images."""
    folder = tmp_path_factory.mktemp("shapes")
    lines = ["image,caption,split"]
    for number, (colour, other) in enumerate(permutations(("red", "blue", "green", "black"), 2)):
        for kind in ("circle", "square"):
            image = Image.new("RGB", (48, 48), "white")
            draw = ImageDraw.Draw(image)
            (draw.ellipse if kind == "circle" else draw.rectangle)((4, 4, 20, 20), fill=colour)
            draw.rectangle((26, 26, 44, 44), fill=other)
            name = f"{number}-{kind}.png"
            image.save(folder / name)
            split = "test" if number % 3 == 0 else "train"
            lines.append(f"{name},a {colour} {kind} next to a {other} square,{split}")
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("restored_environment")
@pytest.mark.parametrize("kind", ["clip", "qwen"])
def test_a_model_trained_elsewhere_is_measured_before_and_after(
    shapes: Path, tmp_path: Path, kind: str
) -> None:
    library = pytest.importorskip(
        "sentence_transformers", minversion="6", reason="needs sentence-transformers of 6 or later"
    )
    for package in ("datasets", "accelerate", "torchvision"):
        pytest.importorskip(package, reason=f"needs pip install {package}")
    texts = (shapes / "captions.csv").read_text().replace(",", " ").splitlines()
    model = tmp_path / "tiny"
    if kind == "clip":
        write_clip(model, texts)
    else:  # as the repository of Qwen3-VL-Embedding has it: the last token's state, of unit length
        write_qwen(tmp_path / "qwen", texts)
        first = library.sentence_transformer.modules.Transformer(str(tmp_path / "qwen"))
        size = first.get_embedding_dimension()
        pooling = library.sentence_transformer.modules.Pooling(size, pooling_mode="lasttoken")
        last = library.sentence_transformer.modules.Normalize()
        library.SentenceTransformer(modules=[first, pooling, last]).save_pretrained(str(model))
    script = runpy.run_path(str(EXAMPLES / "python" / "train_elsewhere.py"))
    options = ["--steps=3", "--batch-size=4", "--lr=1e-2"]
    places = [str(model), str(shapes / "captions.csv"), str(shapes), str(tmp_path / "out")]
    before, after = script["main"]([*places, *options])
    assert before.keys() == after.keys() == {"st", "hf"}
    assert all(0 <= score <= 1 for score in (*before.values(), *after.values()))
    results = {
        time: {result.model: result for result in load_results(tmp_path / "out" / time)}
        for time in ("before", "after")
    }
    for name in ("st", "hf"):
        old, new = (results[time][name] for time in ("before", "after"))
        assert old.identity["weights"] != new.identity["weights"]
        scores = [load_items(each).column("scores").to_pylist() for each in (old, new)]
        assert scores[0] != scores[1]
    if kind == "clip":  # both libraries prepare images and texts alike
        for time in ("before", "after"):
            both = [
                load_items(each).column("scores").to_pylist() for each in results[time].values()
            ]
            for one, other in zip(*both):
                assert one == pytest.approx(other, abs=1e-5)
