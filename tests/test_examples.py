"""The configurations in examples/ build what they say."""

from __future__ import annotations

from pathlib import Path

from compoclip.models.checkpoint import create_model, read_config

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_the_real_photos_configuration_takes_the_image_weights(shared_data: Path) -> None:
    config = read_config(EXAMPLES / "real-photos" / "mobilenetv2-clip.json")
    weights = shared_data / "weights" / "mobilenetv2_100_imagenet.safetensors"
    model = create_model(config, image_weights=weights)
    assert model.encoder.freeze_bn
    assert model.preprocess.mean == model.preprocess.std == (0.5, 0.5, 0.5)
    model.encoder.require_local()  # fsc-clip needs features of patches
