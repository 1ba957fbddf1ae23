"""Files in the layouts that others published load, and say what is known of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from compoclip.errors import CompoclipError, UsageError
from compoclip.models.checkpoint import LoadedModel, create_model, load_model
from compoclip.models.config import ModelConfig
from compoclip.models.conversion import inspect_model
from compoclip.models.formats.weights_file import candidates, load_tuned
from compoclip.models.weights import kinship, read_weights
from models_thin import config, only_known

TEXT = {"vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
SMALL = config(text=TEXT)
RESNET = {**SMALL, "vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8}}


@pytest.fixture(autouse=True)
def architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Tiny` and `Res` exist with both activations."""
    known = {"Tiny": SMALL, "Res": RESNET}
    known |= {f"{name}-quickgelu": {**cfg, "quick_gelu": True} for name, cfg in known.items()}
    only_known(monkeypatch, known)


def base_model(name: str = "Tiny", seed: int = 1) -> LoadedModel:
    """What stands for OpenAI's weights: QuickGELU."""
    cfg = {"Tiny": SMALL, "Res": RESNET}[name]
    return create_model(ModelConfig({**cfg, "quick_gelu": True}), seed=seed)


def tuned_state(base: LoadedModel, amount: float = 0.02) -> dict[str, Tensor]:
    """Each tensor moved by `amount` of its length, in a random direction."""
    generator = torch.Generator().manual_seed(2)
    state = {}
    for name, value in base.encoder.model.state_dict().items():
        state[name] = value.clone()
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            state[name] += amount * noise * value.norm() / math.sqrt(max(value.numel(), 1))
    return state


def open_clip_trainer(state: dict[str, Tensor], prefix: str = "") -> dict[str, Any]:
    """What open_clip's trainer and its forks save: NegCLIP, CE-CLIP, FSC-CLIP, TSVLC, DAC."""
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    return {
        "epoch": 5,
        "name": "2023_01_01-model_ViT-B-32-lr_1e-06",
        "state_dict": {prefix + name: value for name, value in state.items()},
        "optimizer": optimizer.state_dict(),
        "scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 3},
    }


LAYOUTS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain": dict,
    "negclip": lambda state: open_clip_trainer(state, "module."),
    "ce_clip": open_clip_trainer,
    "compiled": lambda state: open_clip_trainer(state, "module._orig_mod."),
    # GNM-CLIP's script saves OpenAI's package: float16 layers, a loss tensor.
    "gnm": lambda state: {
        "epoch": 9,
        "model_state_dict": {k: v.half() if v.ndim >= 2 else v for k, v in state.items()},
        "optimizer_state_dict": {"state": {}, "param_groups": []},
        "loss": torch.tensor(0.3, requires_grad=True),
    },
    # TripletCLIP's fine-tuning script: bfloat16 possible.
    "tripletclip": lambda state: {
        "epoch": 4,
        "model_state_dict": {k: v.bfloat16() for k, v in state.items()},
        "optimizer_state_dict": {},
    },
    "openai": lambda state: {
        **state,
        "input_resolution": torch.tensor(32),
        "context_length": torch.tensor(20),
        "vocab_size": torch.tensor(49408),
    },
}


@pytest.mark.parametrize(
    ("layout", "name"), [*((layout, "Tiny") for layout in LAYOUTS), ("negclip", "Res")]
)
def test_published_layouts_load(tmp_path: Path, layout: str, name: str) -> None:
    base = base_model(name)
    state = tuned_state(base)
    torch.save(LAYOUTS[layout](state), tmp_path / "w.pt")
    loaded = load_model(f"{name}-quickgelu@{tmp_path / 'w.pt'}")
    assert loaded.identity.activation == "quick_gelu"
    assert loaded.provenance["activation"] == "quick_gelu, stated by the user"
    exact = layout not in ("gnm", "tripletclip")
    for key, value in loaded.encoder.model.state_dict().items():
        assert torch.allclose(value, state[key], atol=0 if exact else 1e-2, rtol=1e-2), key
    if layout == "negclip":
        assert loaded.provenance["file"]["epoch"] == 5
    prefixes = {"negclip": "module.", "compiled": "module._orig_mod."}
    assert read_weights(tmp_path / "w.pt").prefix == prefixes.get(layout, "")
    from_base = load_tuned(str(tmp_path / "w.pt"), base)
    assert from_base.identity.weights == loaded.identity.weights
    assert from_base.identity.base == base.identity.weights
    assert from_base.identity.activation == "quick_gelu"
    assert "image tower 0.0" in from_base.provenance["activation"]
    assert candidates(read_weights(tmp_path / "w.pt").state) == [name, f"{name}-quickgelu"]


def test_a_shorter_context_is_followed(tmp_path: Path) -> None:
    """CLoVe's positional table has 64 rows instead of 77."""
    base = base_model()
    state = tuned_state(base)
    state["positional_embedding"] = state["positional_embedding"][:12].clone()
    save_file(state, tmp_path / "clove.safetensors")
    loaded = load_model(f"Tiny-quickgelu@{tmp_path / 'clove.safetensors'}")
    assert loaded.identity.context_length == loaded.tokenizer.context_length == 12
    ids = loaded.tokenizer(["a red cat on a mat"])
    assert ids.shape == (1, 12)
    with torch.no_grad():
        ours = loaded.encoder.encode_texts(ids).pooled
        assert torch.allclose(ours, loaded.encoder.model.encode_text(ids), atol=1e-5)
    assert load_tuned(str(tmp_path / "clove.safetensors"), base).identity.context_length == 12
    state["positional_embedding"] = torch.zeros(40, 16)
    save_file(state, tmp_path / "long.safetensors")
    with pytest.raises(CompoclipError, match=r"'positional_embedding' is \(40, 16\) in the file"):
        load_model(f"Tiny-quickgelu@{tmp_path / 'long.safetensors'}")


# --- activation by distance ----------------------------------------------------------------------


def test_an_activation_is_taken_from_a_near_base_only(tmp_path: Path) -> None:
    base, stranger = base_model(), base_model(seed=9)
    torch.save(open_clip_trainer(tuned_state(base)), tmp_path / "w.pt")
    with pytest.raises(CompoclipError, match=r"does not record its activation.*--base BASE"):
        load_model(f"Tiny@{tmp_path / 'w.pt'}")
    with pytest.raises(CompoclipError, match=r"not a fine-tune of new model \(seed 9\).*1\.4"):
        load_tuned(str(tmp_path / "w.pt"), stranger)
    stated = load_tuned(str(tmp_path / "w.pt"), stranger, activation="gelu")
    assert stated.identity.activation == "gelu"
    with pytest.raises(UsageError, match="'relu' is not one of"):
        load_tuned(str(tmp_path / "w.pt"), base, activation="relu")


@pytest.mark.parametrize(
    ("amount", "verdict"), [(0.0, "same"), (0.03, "derived"), (0.7, "unclear"), (3.0, "unrelated")]
)
def test_distance_to_a_base_has_four_verdicts(amount: float, verdict: str) -> None:
    base = base_model()
    own = base.encoder.model.state_dict()
    kin = kinship(tuned_state(base, amount), own, "file")
    assert kin["verdict"] == verdict
    # each matrix was moved by `amount` times its length
    assert kin["image"] == pytest.approx(amount, rel=0.1)
    assert kin["text"] == pytest.approx(amount, rel=0.1)


def test_one_strange_tower_is_unclear() -> None:
    base, stranger = base_model(), base_model(seed=9)
    own, other = base.encoder.model.state_dict(), stranger.encoder.model.state_dict()
    mixed = {k: v if k.startswith("visual.") else other[k] for k, v in own.items()}
    assert kinship(mixed, own, "file")["verdict"] == "unclear"
    assert kinship(other, own, "file")["verdict"] == "unrelated"
    with pytest.raises(CompoclipError, match=r"'visual\.proj' is lacking"):
        kinship({k: v for k, v in own.items() if k != "visual.proj"}, own, "file")
    with pytest.raises(CompoclipError, match=r"'visual\.proj' is \(3, 2\)"):
        kinship({**own, "visual.proj": torch.zeros(3, 2)}, own, "file")


@pytest.mark.parametrize("key", ["attn.in_proj_weight_lora_A", "mlp.c_fc.lora_B"])
def test_lora_weights_beside_plain_ones_are_refused(tmp_path: Path, key: str) -> None:
    """Files of TSVLC and DAC: read without them they would be the untuned model."""
    base = base_model()
    state = {**base.encoder.model.state_dict(), f"transformer.resblocks.0.{key}": torch.ones(3, 16)}
    torch.save(open_clip_trainer(state, "module."), tmp_path / "dac.pt")
    for load in (
        lambda: load_model(f"Tiny-quickgelu@{tmp_path / 'dac.pt'}"),
        lambda: load_tuned(str(tmp_path / "dac.pt"), base),
        lambda: inspect_model(str(tmp_path / "dac.pt")),
    ):
        with pytest.raises(CompoclipError, match=r"dac\.pt: holds LoRA weights beside plain ones"):
            load()


def test_two_models_in_one_file_are_refused(tmp_path: Path) -> None:
    state = dict(base_model().encoder.model.state_dict())
    torch.save({**state, "module.logit_scale": torch.ones(())}, tmp_path / "w.pt")
    with pytest.raises(CompoclipError, match=r"'logit_scale' with and without 'module\.'"):
        load_model(f"Tiny-quickgelu@{tmp_path / 'w.pt'}")
