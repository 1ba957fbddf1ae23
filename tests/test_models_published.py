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
from compoclip.models.formats.adapters import lora_of, split
from compoclip.models.formats.weights_file import candidates, load_tuned_file
from compoclip.models.weights import kinship, read_weights
from models_thin import config, only_known

TEXT = {"vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
SMALL = config(text=TEXT)
RESNET = config(vision={"layers": [1, 1, 1, 1], "width": 8}, text=TEXT)
RESNET["vision_cfg"] = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8}
RANK = 3


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


def tuned_state(base: LoadedModel, amount: float = 0.02, seed: int = 2) -> dict[str, Tensor]:
    """Each tensor moved by `amount` of its length, in a random direction."""
    generator = torch.Generator().manual_seed(seed)
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


def gnm(state: dict[str, Tensor]) -> dict[str, Any]:
    """What GNM-CLIP's script saves from OpenAI's package: float16 layers, a loss tensor."""
    half = {k: v.half() if v.ndim >= 2 else v for k, v in state.items()}
    return {
        "epoch": 9,
        "model_state_dict": half,
        "optimizer_state_dict": {"state": {}, "param_groups": []},
        "loss": torch.tensor(0.3, requires_grad=True),
    }


def tripletclip(state: dict[str, Tensor]) -> dict[str, Any]:
    """TripletCLIP's fine-tuning script: bfloat16 possible."""
    return {
        "epoch": 4,
        "model_state_dict": {k: v.bfloat16() for k, v in state.items()},
        "optimizer_state_dict": {},
    }


LAYOUTS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain": dict,
    "negclip": lambda state: open_clip_trainer(state, "module."),
    "ce_clip": open_clip_trainer,
    "compiled": lambda state: open_clip_trainer(state, "module._orig_mod."),
    "gnm": gnm,
    "tripletclip": tripletclip,
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
        assert read_weights(tmp_path / "w.pt").prefix == "module."
    from_base = load_tuned_file(tmp_path / "w.pt", base)
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
    assert load_tuned_file(tmp_path / "clove.safetensors", base).identity.context_length == 12
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
        load_tuned_file(tmp_path / "w.pt", stranger)
    stated = load_tuned_file(tmp_path / "w.pt", stranger, activation="gelu")
    assert stated.identity.activation == "gelu"
    with pytest.raises(UsageError, match="'relu' is not one of"):
        load_tuned_file(tmp_path / "w.pt", base, activation="relu")


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


# --- LoRA inside state dicts ---------------------------------------------------------------------


def with_loralib(
    state: dict[str, Tensor], rank: int = RANK, only_attention: bool = False, resnet: bool = False
) -> dict[str, Tensor]:
    """The state dict of the layers of TSVLC's, DAC's and FSC-CLIP's code."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return 0.1 * torch.randn(*shape, generator=generator)

    out = {}
    for name, value in state.items():
        out[name] = value
        if name.endswith("in_proj_weight"):
            out[f"{name}_lora_A"] = draw(rank, value.shape[1])
            out[f"{name}_lora_B"] = draw(value.shape[0], rank)
        layers = (".out_proj.weight",) if only_attention else (".out_proj.weight", ".c_fc.weight")
        layers = layers if only_attention else (*layers, ".c_proj.weight")
        stem = name.removesuffix("weight")
        if name.endswith(layers) and value.ndim == 2:
            out[f"{stem}lora_A"] = draw(rank, value.shape[1])
            out[f"{stem}lora_B"] = draw(value.shape[0], rank)
        if value.ndim == 4 and not only_attention and (resnet or "conv1" in name):
            k = value.shape[-1]
            out[f"{stem}lora_A"] = draw(rank * k, value.shape[1] * k)
            out[f"{stem}lora_B"] = draw(value.shape[0] * k, rank * k)
    return out


def merged_by_hand(state: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
    """W + B A / r, row by row."""
    out = {}
    for name, value in state.items():
        if "lora_" in name:
            continue
        stem = name.removesuffix("weight")
        a = state.get(f"{name}_lora_A", state.get(f"{stem}lora_A"))
        b = state.get(f"{name}_lora_B", state.get(f"{stem}lora_B"))
        if a is None or b is None:
            out[name] = value
            continue
        product = torch.zeros(len(b), a.shape[1])
        for j in range(len(a)):
            for row in range(len(b)):
                product[row] += b[row, j] * a[j]
        out[name] = value + product.view(value.shape) / rank
    return out


@pytest.mark.parametrize(
    ("name", "options", "described"),
    [
        ("Tiny", {}, "lora rank 3, alpha 1, both towers, +conv, init xavier_ab"),
        ("Tiny", {"only_attention": True}, "lora rank 3, alpha 1, both towers, init xavier_ab"),
        ("Res", {"resnet": True}, "lora rank 3, alpha 1, both towers, +conv, init xavier_ab"),
    ],
)
def test_lora_weights_in_a_state_dict_are_merged(
    tmp_path: Path, name: str, options: dict[str, bool], described: str
) -> None:
    base = base_model(name)
    start = dict(base.encoder.model.state_dict())
    state = with_loralib(start, **options)
    torch.save(open_clip_trainer(state, "module."), tmp_path / "dac.pt")
    loaded = load_model(f"{name}-quickgelu@{tmp_path / 'dac.pt'}")
    found = loaded.encoder.model.state_dict()
    for key, value in merged_by_hand(state, RANK).items():
        assert torch.allclose(found[key].float(), value.float(), atol=1e-6), key
    assert loaded.identity.adapter == described
    assert loaded.identity.base == base.identity.weights
    assert loaded.provenance["lora"]["rank"] == RANK
    assert load_tuned_file(tmp_path / "dac.pt", base).identity.weights == loaded.identity.weights


def test_lora_weights_alone_need_their_base(tmp_path: Path) -> None:
    base = base_model()
    start = dict(base.encoder.model.state_dict())
    state = with_loralib(start)
    alone = {k: v for k, v in state.items() if "lora_" in k}
    torch.save({"state_dict": alone}, tmp_path / "lora.pt")
    torch.save({"state_dict": state}, tmp_path / "full.pt")
    with pytest.raises(CompoclipError, match=r"lora\.pt: holds LoRA weights alone.*--base BASE"):
        load_model(f"Tiny-quickgelu@{tmp_path / 'lora.pt'}")
    loaded = load_tuned_file(tmp_path / "lora.pt", base)
    full = load_model(f"Tiny-quickgelu@{tmp_path / 'full.pt'}")
    assert loaded.identity.weights == full.identity.weights
    assert loaded.identity.base == base.identity.weights


def test_damaged_lora_files_are_one_line(tmp_path: Path) -> None:
    start = dict(base_model().encoder.model.state_dict())
    state = with_loralib(start)
    block = "transformer.resblocks.0"
    changes: dict[str, tuple[dict[str, Tensor | None], str]] = {
        "half": ({f"{block}.mlp.c_fc.lora_B": None}, "'.*c_fc.weight' has no lora_B"),
        "ranks": (
            {
                f"{block}.mlp.c_fc.lora_A": torch.zeros(2, 16),
                f"{block}.mlp.c_fc.lora_B": torch.zeros(64, 2),
            },
            r"LoRA ranks differ \('.*c_fc.weight' has 2, '.*' has 3\)",
        ),
        "shape": (
            {f"{block}.mlp.c_fc.lora_A": torch.zeros(3, 15)},
            r"lora_A \(3, 15\) and lora_B \(64, 3\) of '.*c_fc.weight' do not fit its shape",
        ),
        "alien": (
            {
                "visual.nothing.lora_A": torch.zeros(3, 4),
                "visual.nothing.lora_B": torch.zeros(4, 3),
            },
            "adapts 'visual.nothing.weight', which the model does not have",
        ),
    }
    for name, (change, message) in changes.items():
        changed = {**state, **change}
        torch.save({k: v for k, v in changed.items() if v is not None}, tmp_path / f"{name}.pt")
        with pytest.raises(CompoclipError, match=message) as caught:
            load_model(f"Tiny-quickgelu@{tmp_path / f'{name}.pt'}")
        assert f"{name}.pt" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_lora_settings_are_read_from_shapes() -> None:
    start = dict(base_model().encoder.model.state_dict())
    plain, adapters = split(with_loralib(start, rank=2))
    text = {k: v for k, v in adapters.items() if not k.startswith("visual.")}
    image = {k: v for k, v in adapters.items() if k.startswith("visual.")}
    assert lora_of(text, start, "f").describe() == (
        "lora rank 2, alpha 1, text tower, init xavier_ab"
    )
    assert lora_of(image, start, "f").towers == "image"
    assert plain.keys() == start.keys()
    with pytest.raises(CompoclipError, match="has no LoRA weights"):
        lora_of({}, start, "f")


def test_two_models_in_one_file_are_refused(tmp_path: Path) -> None:
    state = dict(base_model().encoder.model.state_dict())
    torch.save({**state, "module.logit_scale": torch.ones(())}, tmp_path / "w.pt")
    with pytest.raises(CompoclipError, match=r"'logit_scale' with and without 'module\.'"):
        load_model(f"Tiny-quickgelu@{tmp_path / 'w.pt'}")
