"""Weights files: what is no finite float is refused by the name of the tensor; what a file really
is, is said."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from build.tables import write_zip
from compoclip.errors import CompoclipError
from compoclip.models.architecture import build_model
from compoclip.models.checkpoint import LoadedModel, create_model, format_of, load_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.conversion import inspect_model, interpolate
from compoclip.models.weights import load_into, read_state_dict
from models_thin import config, timm_config

NAME = "visual.proj"
FOLDER = "open_clip_model.safetensors"
RESNET = {"layers": [1, 1, 1, 1], "width": 8, "head_width": 16}
SIGLIP = {"no_causal_mask": True, "pool_type": "last"}
TINY = config(text={"vocab_size": 49408, "width": 16, "heads": 2, "layers": 1})


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return create_model(ModelConfig(TINY))


@pytest.fixture(scope="module")
def written(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "model"
    save_model(model, folder)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "model")


class Draws(TorchDispatchMode):
    """Counts the values that are drawn at random."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if found is not None and torch.Tag.nondeterministic_seeded in function.tags:
            self.values += found.numel()
        return found


@pytest.mark.parametrize(
    "cfg",
    [
        pytest.param(config(), id="vit"),
        pytest.param(config(vision=RESNET), id="resnet"),
        pytest.param(timm_config("resnet10t", 64), id="timm resnet"),
        pytest.param(timm_config("vit_tiny_patch16_224"), id="timm vit"),
        pytest.param(timm_config("swin_mini_patch4_window4_64", 64), id="swin"),
        pytest.param(timm_config("convnext_atto", 64), id="convnext"),
        pytest.param(config(text=SIGLIP, init_logit_bias=-10.0), id="siglip"),
        pytest.param(config(custom_text=True), id="custom text"),
    ],
)
def test_what_is_loaded_is_not_drawn_before(cfg: dict[str, Any]) -> None:
    made = build_model(cfg, 3)
    before = torch.random.get_rng_state()
    with Draws() as drawn:
        empty = build_model(cfg, None)
    assert drawn.values < sum(map(torch.numel, made.parameters())) / 20  # class tokens
    empty.load_state_dict(made.state_dict())
    one, two = (dict([*each.named_parameters(), *each.named_buffers()]) for each in (made, empty))
    assert one.keys() == two.keys()
    assert all(one[name].equal(two[name]) for name in one)
    assert torch.random.get_rng_state().equal(before)


@pytest.mark.parametrize("bounds", [(-2.0, 2.0), (1.0, 2.0)])
def test_what_is_drawn_until_it_is_within_bounds_ends(
    bounds: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So transformers draws the towers of a BLIP."""

    class Bounded(torch.nn.Module):
        def __init__(self, _: object) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((4, 4), 1e9))
            torch.nn.init.trunc_normal_(self.weight, 0.0, 1.0, *bounds)

    monkeypatch.setattr("compoclip.models.architecture._network", Bounded)
    (weight,) = build_model(config(), None).parameters()
    low, high = weight.detach().aminmax()
    assert bounds[0] <= float(low) <= float(high) <= bounds[1]


def with_value(state: dict[str, Tensor], value: float) -> dict[str, Tensor]:
    changed = state[NAME].clone()
    changed[0, 0] = value
    return {**state, NAME: changed}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_every_reader(
    written: Path, folder: Path, tmp_path: Path, value: float
) -> None:
    state = with_value(load_file(folder / FOLDER), value)
    save_file(state, folder / FOLDER)
    (folder / "compoclip.json").unlink()
    torch.save(state, tmp_path / "w.pt")
    said = f"'{NAME}' holds values that are not finite"
    for source in (folder, tmp_path / "w.pt"):
        with pytest.raises(CompoclipError, match=rf"{source}.*{said}"):
            inspect_model(str(source))
    with pytest.raises(CompoclipError, match=said):
        load_model(folder)
    file = str(tmp_path / "w.pt")
    with pytest.raises(CompoclipError, match=said):
        format_of(file).load_on(file, str(written), "gelu")


def test_a_model_that_is_not_finite_is_neither_mixed_nor_saved(
    folder: Path, tmp_path: Path
) -> None:
    broken = load_model(folder)
    network = broken.encoder.model
    network.load_state_dict(with_value(network.state_dict(), float("nan")))
    actions: tuple[Callable[[], object], ...] = (
        lambda: interpolate(load_model(folder), broken, 0.5),
        lambda: save_model(broken, tmp_path / "out"),
        lambda: save_model(broken, tmp_path / "out", form="hf"),
    )
    for action in actions:
        with pytest.raises(CompoclipError, match=f"'{NAME}' holds values that are not finite"):
            action()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.complex64])
def test_weights_that_are_no_floats_are_refused(folder: Path, dtype: torch.dtype) -> None:
    kind = str(dtype).removeprefix("torch.")
    state = load_file(folder / FOLDER)
    save_file({**state, NAME: state[NAME].to(dtype)}, folder / FOLDER)
    with pytest.raises(CompoclipError, match=rf"{folder}.*'{NAME}' is {kind}.*weights are floats"):
        load_model(folder)
    name = "ln_final.weight"
    save_file({**state, name: state[name].to(dtype)}, folder / FOLDER)
    with pytest.raises(CompoclipError, match=rf"'{name}' is no plain tensor of floats \({kind}\)"):
        load_model(folder)
    with pytest.raises(CompoclipError, match=f"'{name}' is no plain tensor of floats"):
        inspect_model(str(folder / FOLDER))


def test_halves_and_what_only_counts_may_be_as_they_are(tmp_path: Path) -> None:
    resnet = {**TINY, "vision_cfg": {**RESNET, "image_size": 32, "head_width": 8}}
    folder = tmp_path / "m"
    save_model(create_model(ModelConfig(resnet)), folder)
    state = load_file(folder / FOLDER)
    assert {v.dtype for v in state.values()} == {torch.float32, torch.int64}
    halves = {k: v.bfloat16() if v.is_floating_point() else v for k, v in state.items()}
    save_file(halves, folder / FOLDER)
    (folder / "compoclip.json").unlink()
    assert load_model(folder).encoder.model.state_dict().keys() == state.keys()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "odd",
    [
        lambda x: x.to_sparse(),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: x.to("meta"),
    ],
)
def test_tensors_of_unusual_kinds_are_refused(
    model: LoadedModel, tmp_path: Path, odd: Callable[[Tensor], Tensor]
) -> None:
    state = model.encoder.model.state_dict()
    torch.save({**state, NAME: odd(state[NAME])}, tmp_path / "w.pt")
    with pytest.raises(CompoclipError, match=rf"w\.pt: '{NAME}' is no plain tensor of floats"):
        read_state_dict(tmp_path / "w.pt")


def test_a_small_file_cannot_stand_for_much(tmp_path: Path) -> None:
    torch.save({"w.weight": torch.zeros(1).expand(10**6, 10**6)}, tmp_path / "w.pt")
    with pytest.raises(CompoclipError, match="names 4,000,000,000,000 bytes of tensors and has"):
        read_state_dict(tmp_path / "w.pt")
    torch.save({"w.weight": torch.zeros(10**6)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain:
        write_zip(tmp_path / "z.pt", {name: plain.read(name) for name in plain.namelist()})
    with pytest.raises(CompoclipError, match=r"z\.pt: unpacks from .* to 4,000,"):
        read_state_dict(tmp_path / "z.pt")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors", "w.bin"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer, .*pull"),
        (b"\n<!DOCTYPE html><html>404", "a web page, not the file itself"),
        (b"hello", "damaged"),
        (b"", "damaged"),
        (b"\x80\x02}q\x00.", "holds no state dict|damaged"),
        (b"\x93NUMPY\x01\x00v\x00{'descr'", "damaged"),
        (bytes(range(256)) * 4, "damaged"),
    ],
)
def test_what_is_no_weights_file_is_said_to_be_what_it_is(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CompoclipError, match=rf"{name}: .*({said})") as caught:
        read_state_dict(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("ViT-B-16.pt", "ViT-B-16-quickgelu"),
        ("ViT-L-14-336px.pt", "ViT-L-14-336-quickgelu"),
        ("own.pt", "ViT-B-32-quickgelu"),
    ],
)
def test_openai_s_archives_are_told_by_their_name(
    tmp_path: Path, name: str, published: str
) -> None:
    layers = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU()) for _ in range(9)]
    torch.jit.script(torch.nn.Sequential(*layers)).save(str(tmp_path / name))
    said = f"{name}: not a plain PyTorch state dict but a TorchScript .* {published}:openai"
    with pytest.raises(CompoclipError, match=said):
        load_model(f"ViT-B-16-quickgelu@{tmp_path / name}")


def test_wrappers_around_wrappers_end(tmp_path: Path) -> None:
    torch.save({"module." * 9 + "x": torch.zeros(2)}, tmp_path / "w.pt")
    assert list(read_state_dict(tmp_path / "w.pt")) == ["module.x"]


def test_weights_of_a_file_become_the_parameters_without_a_copy(
    model: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []

    def read(path: Path) -> dict[str, Tensor]:
        states.append(read_state_dict(path))
        return states[-1]

    monkeypatch.setattr("compoclip.models.formats.open_clip.read_state_dict", read)
    loaded = load_model(folder).encoder.model.state_dict()
    saved = model.encoder.model.state_dict()
    assert [name for name, value in saved.items() if not value.equal(loaded[name])] == []
    assert all(value.data_ptr() == states[0][name].data_ptr() for name, value in loaded.items())


def test_tensors_that_share_memory_in_a_file_are_parameters_apart(
    model: LoadedModel, tmp_path: Path
) -> None:
    state = dict(model.encoder.model.state_dict())
    first, second = "transformer.resblocks.0.ln_1.weight", "transformer.resblocks.0.ln_2.weight"
    both = torch.ones(2, len(state[first]))
    state[first], state[second] = both[0], both[1]
    state["ln_final.weight"] = state["ln_final.bias"] = torch.zeros(len(state["ln_final.bias"]))
    network = build_model(TINY, seed=None)
    load_into(network, state, "shared.pt", "tiny", assign=True)
    with torch.no_grad():
        network.get_parameter("ln_final.weight").fill_(3)
        network.get_parameter(first).fill_(4)
    loaded = network.state_dict()
    assert loaded["ln_final.bias"].sum() == 0
    assert loaded[second].eq(1).all()
    assert both.eq(1).all()
    assert all(parameter.requires_grad for parameter in network.parameters())
