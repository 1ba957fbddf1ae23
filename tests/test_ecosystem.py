"""Other libraries use what is written here, as docs/ecosystem.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from compoclip.models.checkpoint import create_model, load_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.conversion import convert
from models_thin import config

TEXTS = ["a red square left of a blue circle", "two dogs"]
IMAGE = Image.linear_gradient("L").resize((64, 64)).convert("RGB")


@pytest.mark.slow
def test_sentence_transformers_encodes_texts_and_images(tmp_path: Path) -> None:
    library = pytest.importorskip(
        "sentence_transformers", reason="needs pip install sentence-transformers"
    )
    convert("bundled", tmp_path / "hf", "hf")
    loaded = load_model("bundled")
    theirs = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    with torch.no_grad():
        text = loaded.encoder.encode_texts(loaded.tokenizer(TEXTS)).pooled
        pixels = loaded.preprocess.evaluation(IMAGE)[None]
        image = loaded.encoder.encode_images(pixels).pooled
    assert torch.allclose(torch.from_numpy(theirs.encode(TEXTS)), text, atol=1e-5)
    assert torch.allclose(torch.from_numpy(theirs.encode([IMAGE])), image, atol=1e-4)


def test_clip_benchmark_loads_a_checkpoint_folder(tmp_path: Path) -> None:
    loader = pytest.importorskip(
        "clip_benchmark.models.open_clip", reason="needs pip install clip_benchmark"
    )
    metrics = pytest.importorskip("clip_benchmark.metrics.zeroshot_classification")
    loaded = create_model(ModelConfig(config(text={"vocab_size": 49408})), seed=1)
    save_model(loaded, tmp_path / "model")
    model, transform, tokenizer = loader.load_open_clip(
        f"local-dir:{tmp_path / 'model'}", pretrained="none", device="cpu"
    )
    weights = metrics.zero_shot_classifier(
        model.eval(), tokenizer, TEXTS, ["a photo of {c}."], "cpu", amp=False
    )
    batch = [(transform(IMAGE)[None], torch.zeros(1, dtype=torch.int64))]
    logits, _ = metrics.run_classification(model, weights, batch, "cpu", amp=False)
    with torch.no_grad():
        pixels = loaded.preprocess.evaluation(IMAGE)[None]
        ours = loaded.encoder.features(
            pixels, loaded.tokenizer([f"a photo of {text}." for text in TEXTS])
        )
    assert torch.allclose(logits, 100 * ours.image @ ours.text.T, atol=1e-3)


@pytest.mark.slow
def test_mteb_measures_an_exported_model(tmp_path: Path) -> None:
    mteb = pytest.importorskip("mteb", reason="needs pip install mteb")
    datasets = pytest.importorskip("datasets")
    library = pytest.importorskip("sentence_transformers")
    from mteb.abstasks.sts import AbsTaskSTS  # type: ignore[import-not-found]
    from mteb.abstasks.task_metadata import TaskMetadata  # type: ignore[import-not-found]

    pairs = {
        "sentence1": ["a red star", "a blue mug", "a red star"],
        "sentence2": ["a red star", "a red star", "a star"],
        "score": [1.0, 0.0, 0.5],
    }

    class Pairs(AbsTaskSTS):  # type: ignore[misc]
        """Three pairs, as a task that downloads nothing."""

        metadata = TaskMetadata(
            name="Pairs",
            dataset={"path": "none", "revision": "1"},
            description="three pairs",
            reference=None,
            type="STS",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
        )
        min_score, max_score = 0, 1

        def load_data(self, **_: object) -> None:
            self.dataset = datasets.DatasetDict(test=datasets.Dataset.from_dict(pairs))
            self.data_loaded = True

    convert("bundled", tmp_path / "hf", "hf")
    model = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    (result,) = mteb.evaluate(model, [Pairs()], cache=None).task_results
    assert result.get_score() == pytest.approx(1.0)  # same, alike, other: in this order
