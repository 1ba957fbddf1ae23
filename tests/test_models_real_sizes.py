"""Published architectures at random weights: pooled features equal open_clip's within 1e-5."""

from __future__ import annotations

import open_clip
import pytest
import torch
import torch.nn.functional as F

from compoclip.models import text_tower
from compoclip.models.architecture import build_model, named_config
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.text_plan import PackedTokens
from models_thin import timm_config

TEXTS = [
    "a dog",
    "a red cat sleeping on a mat next to a small brown dog",
    "two men",
    "a dog",
    "a photo of " + "very " * 40 + "long caption",
    "word " * 100,
]
SMALL_TEXT = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 4, "layers": 12}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "patches"),
    [
        ("ViT-B-32", 49),
        ("ViT-B-16-quickgelu", 196),
        ("RN50", 49),
        ("swin_tiny_patch4_window7_224", 49),
        ("mobilenetv2_100", 49),
    ],
)
def test_published_architectures_equal_open_clip(
    name: str, patches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Six texts are not worth splitting; without this they would all run at full length.
    monkeypatch.setitem(text_tower._BUCKET_COST, "cpu", 0)
    model_cfg = named_config(name) if name in open_clip.list_models() else timm_config(name)
    if name != "ViT-B-32":  # one text tower of that size is enough
        model_cfg |= {"text_cfg": SMALL_TEXT}
    model = build_model(model_cfg)
    encoder = DualEncoder(model)
    ids = open_clip.tokenize(TEXTS)
    (packed,) = encoder.text_planner().inputs(ids).groups
    assert isinstance(packed, PackedTokens)
    assert [segment.length for segment in packed.segments] == [4, 15, 47, 77]
    pixels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected_text, expected_image = model.encode_text(ids), model.encode_image(pixels)
        text = encoder.encode_texts(ids, tokens=True)
        image = encoder.encode_images(pixels, patches=True)
        plain = encoder.encode_texts(ids).pooled
    for what, got, expected in (
        ("text", plain, expected_text),
        ("text with tokens", text.pooled, expected_text),
        ("image with patches", image.pooled, expected_image),
    ):
        raw = (got - expected).abs().max().item()
        unit = F.normalize(got, dim=-1) - F.normalize(expected, dim=-1)
        normal = unit.abs().max().item()
        print(f"{name}, {what}: raw {raw:.1e} of {expected.abs().max():.1f}, unit {normal:.1e}")
        assert raw <= 1e-5
        assert normal <= 1e-5
    assert image.patches is not None
    assert image.patches.shape == (2, patches, expected_image.shape[1])
    assert text.tokens is not None
    assert text.tokens.shape[:2] == (6, 77)
