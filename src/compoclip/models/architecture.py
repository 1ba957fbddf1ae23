"""From an open_clip model configuration to a randomly initialised network, and its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import open_clip
import timm
import torch
from open_clip.coca_model import CoCa
from open_clip.model import CLIP, CustomTextCLIP, set_model_preprocess_cfg
from timm.models import is_model, list_models, register_model
from torch import nn

from compoclip.errors import CompoclipError, UsageError
from compoclip.memory import installed
from compoclip.models import blip
from compoclip.models.config import require_hub_name, section
from compoclip.models.preprocess import Preprocess

# --- Image trunks that timm has but cannot be named in an open_clip configuration. ---
#
# open_clip passes no options on to timm, so that variants get names of their own in timm's registry
# when this module is imported: weights converted from TensorFlow need "SAME" padding, SigLIP was
# trained with the approximate GELU and timm's towers have the exact one, and no Swin of timm is
# small enough to try a recipe out on a laptop. Plain open_clip refuses the names ("Unknown model")
# unless this module was imported before.


def mobilenetv2_100_same(pretrained: bool = False, **options: Any) -> nn.Module:
    """MobileNetV2 1.0 with TensorFlow's "SAME" padding; otherwise timm's `mobilenetv2_100`.

    Raises CompoclipError for `pretrained`: there are no published weights under this name.
    """
    if pretrained:
        raise CompoclipError("mobilenetv2_100_same has no published weights; give a weights file")
    model: nn.Module = timm.create_model("mobilenetv2_100", pad_type="same", **options)
    return model


def swin_mini_patch4_window4_64(pretrained: bool = False, **options: Any) -> nn.Module:
    """A Swin transformer of 0.5 M parameters for 64 x 64 pixels: two stages, windows of 4 x 4.

    Raises CompoclipError for `pretrained`: there are no published weights under this name.
    """
    if pretrained:
        raise CompoclipError("swin_mini_patch4_window4_64 has no weights; start from scratch")
    shape = {"img_size": 64, "window_size": 4, "embed_dim": 64, "depths": (2, 2)}
    model: nn.Module = timm.create_model(
        "swin_tiny_patch4_window7_224", **{**shape, "num_heads": (2, 4), **options}
    )
    return model


TANH = "_tanh"
"""Ending of the names of SigLIP's image towers with the activation that they were trained with."""


def register_tanh(name: str) -> None:
    """Register timm's model `name` with the approximate GELU, under the name that ends in TANH."""

    def build(pretrained: bool = False, **options: Any) -> nn.Module:
        model: nn.Module = timm.create_model(
            name, pretrained=pretrained, act_layer="gelu_tanh", **options
        )
        return model

    build.__name__ = build.__qualname__ = name + TANH
    _register(build)


def _register(build: Callable[..., nn.Module]) -> None:
    if not is_model(build.__name__):
        register_model(build)


for _build in (mobilenetv2_100_same, swin_mini_patch4_window4_64):
    _register(_build)
for _name in list_models("vit_*_siglip_[0-9]*"):
    register_tanh(_name)


# --- From an open_clip model configuration to a randomly initialised network, and its name. ---

MOST_LAYERS = 1000
"""Of a tower: what any published one stays far below."""
_MOST_POSITIONS = 2**26  # some are computed in double precision before the table is filled
_WHAT = "model configuration"

ACTIVATIONS = ("quick_gelu", "gelu")


def named_config(name: str) -> dict[str, Any]:
    """open_clip's built-in configuration. Raises UsageError when there is none of that name."""
    config = open_clip.get_model_config(name) if name in open_clip.list_models() else None
    if config is None:
        raise UsageError(f"open_clip has no architecture '{name}' (see open_clip.list_models())")
    return dict(config)


def has_quickgelu_twin(name: str) -> bool:
    """Whether open_clip has the architecture with GELU (this name) and with QuickGELU."""
    return f"{name}-quickgelu" in open_clip.list_models()


def activation_of(config: Mapping[str, Any]) -> str:
    """ "quick_gelu" or "gelu". timm trunks keep their own activation either way."""
    return "quick_gelu" if config.get("quick_gelu") else "gelu"


def with_activation(config: Mapping[str, Any], activation: str | None) -> dict[str, Any]:
    """A copy with that activation; unchanged for None. Raises UsageError for an unknown one."""
    copy = deepcopy(dict(config))
    if activation is not None:
        if activation not in ACTIVATIONS:
            raise UsageError(f"activation '{activation}' is not one of {', '.join(ACTIVATIONS)}")
        copy["quick_gelu"] = activation == "quick_gelu"
    return copy


def architecture_name(config: Mapping[str, Any]) -> str:
    """The built-in name with this configuration, else "config-" and a hash of it."""
    wanted = _essence(config)
    for name in open_clip.list_models():
        if _essence(open_clip.get_model_config(name)) == wanted:
            return str(name)
    return f"config-{hashlib.blake2b(wanted.encode(), digest_size=6).hexdigest()}"


def _essence(config: Mapping[str, Any]) -> str:
    """What of a configuration shapes the network; how to start its towers does not."""
    copy = deepcopy(dict(config))
    copy.setdefault("quick_gelu", False)
    for part in ("vision_cfg", "text_cfg"):
        for key in ("timm_model_pretrained", "hf_model_pretrained", "tokenizer_kwargs"):
            copy.get(part, {}).pop(key, None)
    return json.dumps(copy, sort_keys=True)


def build_model(
    config: Mapping[str, Any], seed: int = 0, fits: Callable[[nn.Module], object] | None = None
) -> nn.Module:
    """The network of a configuration, open_clip's or a BLIP, float32, on the CPU, in eval mode.

    Parameters are drawn from `seed`; the global random state is left alone. Nothing is downloaded.
    fits: called with the network as it will be, without values (on the device "meta"), so that it
    can refuse weights of other shapes before memory is taken for them. Raises CompoclipError when
    the configuration cannot be built, or describes more than the memory of this machine.
    """
    _require_possible(config)
    try:
        outline = _outline(config)
        if outline is not None:
            if fits:
                fits(outline)
            _require_room(sum(map(torch.numel, (*outline.parameters(), *outline.buffers()))))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _network(config).eval()
    except CompoclipError:
        raise
    except Exception as error:  # libraries take a configuration's values for granted
        first = (str(error).splitlines() or [""])[0]
        raise CompoclipError(f"{_WHAT} cannot be built: {type(error).__name__}: {first}") from error


def _network(config: Mapping[str, Any]) -> nn.Module:
    options = deepcopy(dict(config))
    if blip.KEY in options:
        return blip.Blip(options[blip.KEY])
    if options["vision_cfg"].get("timm_model_name"):
        options["vision_cfg"]["timm_model_pretrained"] = False
    hugging_face = bool(options["text_cfg"].get("hf_model_name"))
    if hugging_face:
        options["text_cfg"]["hf_model_pretrained"] = False
    custom = options.pop("custom_text", False) or hugging_face
    kind = CoCa if "multimodal_cfg" in options else CustomTextCLIP if custom else CLIP
    model: nn.Module = kind(**options)
    return model


def _outline(config: Mapping[str, Any]) -> nn.Module | None:
    """The shapes of a network; None if they are not known without making it.

    Raises OSError or ImportError for what takes files or packages that are not here.
    """
    try:
        with torch.device("meta"):
            return _network(config)
    except (CompoclipError, OSError, ImportError):
        raise
    except Exception:  # wrong sizes, and what has to have values: making it tells
        return None


def _require_room(numbers: int) -> None:
    memory = installed()
    if memory is not None and 4 * numbers > memory:
        raise CompoclipError(
            f"{_WHAT} describes {numbers:,} numbers, {4 * numbers / 1e9:,.0f} GB, and "
            f"this machine has {memory / 1e9:,.0f} GB of memory: choose smaller sizes"
        )


def _require_possible(config: Mapping[str, Any]) -> None:
    """Raise CompoclipError for sizes that take long or much memory even to outline."""
    theirs = section(config, blip.KEY, _WHAT)
    parts = [section(config, key, _WHAT) for key in ("vision_cfg", "text_cfg", "multimodal_cfg")]
    parts += [section(theirs, key, _WHAT) for key in ("vision_config", "text_config")]
    for part in parts:
        for key in ("layers", "num_hidden_layers"):
            listed = part.get(key, 0)
            for layers in listed if isinstance(listed, list | tuple) else [listed]:
                if not isinstance(layers, int) or layers > MOST_LAYERS:
                    raise CompoclipError(
                        f"{_WHAT}: {key} {str(layers)[:80]} is not a number up to {MOST_LAYERS}"
                    )
    vision, text = parts[:2]
    if _positions(vision) > _MOST_POSITIONS:
        raise CompoclipError(
            f"{_WHAT}: image_size and patch_size make more positions than any image tower has"
        )
    if str(vision.get("timm_model_name")).startswith("local-dir:"):
        raise CompoclipError(f"{_WHAT}: timm_model_name leads to a folder; name a model of timm")
    if text.get("hf_model_name"):
        require_hub_name(text["hf_model_name"], "hf_model_name")


def _positions(vision: Mapping[str, Any]) -> int:
    """Numbers in the table of positions of an open_clip ViT; 0 when it has none."""
    try:
        size, patch = vision["image_size"], vision["patch_size"]
        size, patch = (max(x) if isinstance(x, list | tuple) else x for x in (size, patch))
        return int((size // patch) ** 2 * vision.get("width", 768))
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return 0


def attach_preprocess(model: nn.Module, config: Mapping[str, Any]) -> Preprocess:
    """The model's preprocessing, also set on the network as open_clip does.

    As in open_clip the size is the image tower's, whatever the configuration says.
    """
    size = getattr(model.visual, "image_size", None)
    merged = dict(config) if size is None else {**config, "size": size}
    preprocess = Preprocess.from_config(merged)
    set_model_preprocess_cfg(model, preprocess.to_config())
    return preprocess


def published_stats(name: str) -> dict[str, Any]:
    """Preprocessing that all published weights of an architecture share; else open_clip's default.

    A raw file does not record it, and e.g. SigLIP architectures differ from the default."""
    keys = ("mean", "std", "interpolation", "resize_mode")
    published = [
        {key: open_clip.get_pretrained_cfg(name, tag).get(key) for key in keys}
        for tag in open_clip.list_pretrained_tags_by_model(name)
    ]
    if not published or any(other != published[0] for other in published):
        return {}
    return {key: value for key, value in published[0].items() if value is not None}


# --- Whether `torch.compile` works here. ---


def require_compiler(device: torch.device) -> None:
    """Compile and run a trifle. Raises CompoclipError when that fails: no C++ compiler for a CPU,
    no Triton for a GPU, no room for the compiler's cache."""

    def trifle(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    try:
        torch.compile(trifle)(torch.zeros(8, device=device))
    except Exception as error:  # whatever the back end raises
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CompoclipError(
            f"--compile: torch.compile does not work on {device} here ({first}); install a C++ "
            "compiler (g++) for a CPU or Triton for a GPU, or leave --compile out"
        ) from error
