"""Re-ranking by tokens and patches: the score by a loop, the order, what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from compoclip.errors import UsageError
from compoclip.evaluation import Reranker
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelConfig
from models_thin import config

TEXT = "a red star left of a blue mug"


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return create_model(ModelConfig(config(text={"vocab_size": 49408})), seed=1)


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(5)]


def test_the_score_is_that_of_the_formula(model: LoadedModel, images: list[Image.Image]) -> None:
    reranker = Reranker(model, weight=0.5)
    patches = reranker.patches(images)
    assert patches.shape == (5, 16, 24)
    assert patches.dtype == np.float16
    with torch.no_grad():
        read = model.encoder.encode_texts(model.tokenizer([TEXT]), tokens=True)
    assert read.tokens is not None
    assert read.token_mask is not None
    tokens = read.tokens[0][read.token_mask[0]].numpy()
    scale = float(model.encoder.logit_scale.detach().exp())
    expected = []
    for image in patches.astype(np.float32):
        total = 0.0
        for token in tokens:
            similarity = image @ token
            weight = (similarity - similarity.min()) / (similarity.max() - similarity.min())
            seen = (weight / weight.sum()) @ image
            cosine = seen @ token / np.linalg.norm(seen) / np.linalg.norm(token)
            total += math.exp(scale * cosine)
        expected.append((math.log(total) - math.log(len(tokens))) / scale)
    local = reranker.local_scores(TEXT, patches)
    np.testing.assert_allclose(local, expected, atol=1e-5)
    cosines = np.linspace(0.1, 0.3, 5)
    found = reranker.scores(TEXT, cosines, patches)
    np.testing.assert_allclose(found, cosines + 0.5 * np.array(expected), atol=1e-5)
    assert reranker.order(TEXT, cosines, patches).tolist() == np.argsort(-found).tolist()


def test_scores_are_the_same_in_parts(
    model: LoadedModel, images: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = Reranker(model)
    patches = reranker.patches(images)
    whole = reranker.local_scores(TEXT, patches)
    monkeypatch.setattr("compoclip.evaluation.rerank._NUMBERS_AT_ONCE", 1)
    monkeypatch.setattr("compoclip.evaluation.rerank._IMAGES_AT_ONCE", 2)
    np.testing.assert_allclose(reranker.local_scores(TEXT, patches), whole, atol=1e-6)
    np.testing.assert_allclose(reranker.patches(images), patches, atol=2e-3)


def test_weight_nought_keeps_the_order(model: LoadedModel, images: list[Image.Image]) -> None:
    reranker = Reranker(model, weight=0)
    order = reranker.order(TEXT, np.array([0.3, 0.1, 0.3, 0.2, 0.4]), reranker.patches(images))
    assert order.tolist() == [4, 0, 2, 3, 1]


def test_nothing_found_is_nothing_ordered(model: LoadedModel) -> None:
    reranker = Reranker(model)
    assert len(reranker.order(TEXT, np.zeros(0), reranker.patches([]))) == 0


def test_what_does_not_fit_is_refused(model: LoadedModel, images: list[Image.Image]) -> None:
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="weight of the local score is"):
            Reranker(model, weight=weight)
    with pytest.raises(UsageError, match="2 similarities and patches of 5 images"):
        Reranker(model).order(TEXT, np.zeros(2), Reranker(model).patches(images))
