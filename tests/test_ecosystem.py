"""Other libraries use what is written here, as docs/guide/use-elsewhere.md says."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr

import hub_server
from compoclip.losses import negclip_loss
from compoclip.losses.contract import Role
from compoclip.models.checkpoint import LoadedModel, create_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.formats.hf_files import MODALITIES
from compoclip.models.formats.hub import publish
from losses_oracle import features_for, layout_of
from models_thin import config

pytestmark = pytest.mark.usefixtures("restored_environment")

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guide" / "other-trainers.md"
TEXTS = ["a red square left of a blue circle", "two dogs"]
IMAGE = Image.linear_gradient("L").resize((64, 64)).convert("RGB")


def exported(folder: Path) -> LoadedModel:
    """Write a small CLIP with random weights in transformers' form; return it."""
    loaded = create_model(ModelConfig(config(text={"vocab_size": 49408})), seed=1)
    save_model(loaded, folder, form="hf")
    return loaded


@pytest.mark.slow
def test_sentence_transformers_encodes_texts_and_images(tmp_path: Path) -> None:
    library = pytest.importorskip(
        "sentence_transformers", reason="needs pip install sentence-transformers"
    )
    loaded = exported(tmp_path / "hf")
    theirs = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    with torch.no_grad():
        text = loaded.encoder.encode_texts(loaded.tokenizer(TEXTS)).pooled
        pixels = loaded.preprocess.evaluation(IMAGE)[None]
        image = loaded.encoder.encode_images(pixels).pooled
    assert torch.allclose(torch.from_numpy(theirs.encode(TEXTS)), text, atol=1e-5)
    assert torch.allclose(torch.from_numpy(theirs.encode([IMAGE])), image, atol=1e-4)


def test_both_directions_of_sentence_transformers_are_the_loss_of_negclip() -> None:
    pytest.importorskip(
        "sentence_transformers", minversion="6", reason="needs sentence-transformers of 6 or later"
    )
    roles = [(owner, role, -1) for role in (Role.CAPTION, Role.NEGATIVE) for owner in range(4)]
    layout = layout_of(roles)
    features = features_for(layout)
    losses = import_module("sentence_transformers.sentence_transformer.losses")
    theirs = losses.MultipleNegativesRankingLoss(
        torch.nn.Identity(),
        scale=features.logit_scale.item(),
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )
    columns = [features.image, features.text[:4], features.text[4:]]
    value = theirs.compute_loss_from_embeddings(columns, torch.zeros(4))
    torch.testing.assert_close(value, negclip_loss(features, layout))


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
def test_llava_takes_a_tuned_image_tower(tmp_path: Path) -> None:
    library = pytest.importorskip("transformers", reason="needs pip install -e '.[hf]'")
    torch.manual_seed(0)
    base = create_model(ModelConfig(config(text={"vocab_size": 49408}, quick_gelu=True)), seed=1)
    tuned = create_model(ModelConfig(config(text={"vocab_size": 49408}, quick_gelu=True)), seed=2)
    for name, each in (("base", base), ("tuned", tuned)):
        save_model(each, tmp_path / f"{name}-vision", form="hf-vision")

    vision = library.CLIPVisionConfig.from_pretrained(tmp_path / "base-vision")
    language = library.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    llava = library.LlavaForConditionalGeneration(
        library.LlavaConfig(
            vision_config=vision,
            text_config=language,
            image_token_index=63,
            image_seq_length=16,
            vision_feature_layer=-2,
            vision_feature_select_strategy="default",
        )
    ).eval()

    def take(name: str) -> None:
        tower, info = library.CLIPVisionModel.from_pretrained(
            tmp_path / name, output_loading_info=True
        )
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        llava.model.vision_tower = tower.eval()

    processor = library.CLIPImageProcessor.from_pretrained(tmp_path / "tuned-vision")
    pixels = processor(IMAGE, return_tensors="pt")["pixel_values"]
    prompt = torch.tensor([[1, *[63] * 16, 5, 6, 7]])  # 4 x 4 patches, the class token left out
    inputs = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}

    def answers() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            logits = llava(**inputs, pixel_values=pixels).logits
            words = llava.generate(
                **inputs, pixel_values=pixels, max_new_tokens=4, min_new_tokens=4, do_sample=False
            )
        return logits, words

    def features_of(loaded: LoadedModel) -> torch.Tensor:
        """What LLaVA's language model is shown: the layer before the last, of patches alone."""
        kept: list[torch.Tensor] = []
        visual = loaded.encoder.model.visual
        last = visual.transformer.resblocks[-2]
        handle = last.register_forward_hook(lambda module, given, out: kept.append(out))
        with torch.no_grad():
            visual(pixels)
            handle.remove()
            return llava.model.multi_modal_projector(kept[0][:, 1:])

    def seen() -> torch.Tensor:
        asked: list[torch.Tensor] = []
        projector = llava.model.multi_modal_projector
        handle = projector.register_forward_hook(lambda module, given, out: asked.append(out))
        with torch.no_grad():
            llava(**inputs, pixel_values=pixels)
        handle.remove()
        return asked[0]

    take("base-vision")
    first, _ = answers()
    torch.testing.assert_close(seen(), features_of(base), atol=1e-5, rtol=1e-4)
    take("tuned-vision")
    torch.testing.assert_close(seen(), features_of(tuned), atol=1e-5, rtol=1e-4)
    swapped, words = answers()
    assert words.shape == (1, prompt.shape[1] + 4)
    assert not torch.allclose(first, swapped, atol=1e-4)

    llava.save_pretrained(tmp_path / "llava")
    llava = library.LlavaForConditionalGeneration.from_pretrained(tmp_path / "llava").eval()
    again, same = answers()
    assert torch.equal(again, swapped)
    assert torch.equal(same, words)
    take("base-vision")
    assert torch.equal(answers()[0], first)


@pytest.mark.slow
def test_mteb_measures_an_exported_model(tmp_path: Path) -> None:
    mteb = pytest.importorskip("mteb", reason="needs pip install mteb")
    library = pytest.importorskip("sentence_transformers")
    datasets = pytest.importorskip("datasets")
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

    loaded = exported(tmp_path / "hf")
    model = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    (result,) = mteb.evaluate(model, [Pairs()], cache=None).task_results
    sides = [
        loaded.encoder.encode_texts(loaded.tokenizer(pairs[side])).pooled
        for side in ("sentence1", "sentence2")
    ]
    cosines = torch.cosine_similarity(*sides).detach().numpy()
    assert result.get_score() == pytest.approx(spearmanr(cosines, pairs["score"]).statistic)


@pytest.mark.slow
def test_mteb_takes_a_pushed_folder_for_an_image_text_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mteb = pytest.importorskip("mteb", reason="needs pip install mteb")
    datasets = pytest.importorskip("datasets")
    from mteb.abstasks.image.image_text_pair_classification import (  # type: ignore[import-not-found]
        AbsTaskImageTextPairClassification,
    )
    from mteb.abstasks.task_metadata import TaskMetadata

    images = [IMAGE.rotate(90 * turn) for turn in range(4)]
    texts = [(f"a {word} square", f"a square {word}") for word in ("red", "blue", "big", "dark")]

    class Pairs(AbsTaskImageTextPairClassification):  # type: ignore[misc]
        """Four images with two captions, as a task that downloads nothing."""

        images_column_names = ("image",)
        texts_column_names = ("caption", "negative_caption")
        metadata = TaskMetadata(
            name="Pairs",
            dataset={"path": "none", "revision": "1"},
            description="four pairs",
            reference=None,
            type="Compositionality",
            category="i2t",
            modalities=["text", "image"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="text_acc",
        )

        def load_data(self, **_: object) -> None:
            captions, negatives = zip(*texts)
            rows = {"image": images, "caption": captions, "negative_caption": negatives}
            self.dataset = datasets.DatasetDict(test=datasets.Dataset.from_dict(rows))
            self.data_loaded = True

    loaded = exported(tmp_path / "hf")
    with hub_server.running() as hub:
        hub.serve_this_process(tmp_path / "cache", monkeypatch)
        publish(tmp_path / "hf", "me/tiny")
        hub.repositories["me/text"] = {
            name: data for name, data in hub.repositories["me/tiny"].items() if name != MODALITIES
        }
        texts_alone = mteb.get_model("me/text", device="cpu")
        with pytest.raises(ValueError, match=r"supports \['text'\]"):
            mteb.evaluate(texts_alone, [Pairs()], cache=None)
        model = mteb.get_model("me/tiny", device="cpu")
        assert set(model.mteb_model_meta.modalities) == {"image", "text"}
        (result,) = mteb.evaluate(model, [Pairs()], cache=None).task_results
    (scores,) = result.scores["test"]
    (program,) = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.S | re.M)
    local: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mteb, "get_task", lambda name: Pairs())
    exec(program.replace("fsc-hf", "hf"), local)  # noqa: S102
    assert local["result"].scores["test"] == [scores]
    with torch.no_grad():
        pixels = torch.stack([loaded.preprocess.evaluation(image) for image in images])
        flat = loaded.tokenizer([text for pair in texts for text in pair])
        image = loaded.encoder.encode_images(pixels).pooled
        text = loaded.encoder.encode_texts(flat).pooled.reshape(4, 2, -1)
    first, second = torch.cosine_similarity(image[:, None], text, dim=-1).T
    assert scores["text_acc"] == pytest.approx((first > second).float().mean().item())
    assert scores["image_acc"] == scores["accuracy"] == 0  # as docs/why-numbers-differ.md says
