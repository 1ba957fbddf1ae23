"""From a model configuration to a randomly initialised network, and its name."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from copy import deepcopy
from functools import lru_cache
from typing import Any

import open_clip
import timm
import torch
import torch.nn.functional as F
from open_clip.coca_model import CoCa
from open_clip.model import (
    CLIP,
    CLIPTextCfg,
    CLIPVisionCfg,
    CustomTextCLIP,
    set_model_preprocess_cfg,
)
from timm.models import is_model, list_models, register_model
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from compoclip.bounds import MAX_LAYERS, MAX_POSITIONS
from compoclip.errors import CompoclipError, UsageError, optional, quoted
from compoclip.files import reason
from compoclip.models.config import require_hub_name, section
from compoclip.models.names import require_architecture
from compoclip.models.preprocess import Preprocess

# open_clip passes no options on to timm, so that variants of timm's image trunks get names of their
# own in its registry when this module is imported: weights converted from TensorFlow need "SAME"
# padding, SigLIP was trained with the approximate GELU and timm's towers have the exact one, and no
# Swin of timm is small enough to try a recipe out on a laptop. Plain open_clip refuses the names
# ("Unknown model") unless this module was imported before.


TANH = "_tanh"
"""Ending of the names of SigLIP's image towers with the activation that they were trained with."""


def register(name: str, base: str, **settings: Any) -> None:
    """Register a variant of timm's model `base`, for which no weights are published."""

    def build(pretrained: bool = False, **options: Any) -> nn.Module:
        if pretrained:
            raise CompoclipError(f"{name} has no published weights; give a weights file")
        model: nn.Module = timm.create_model(base, **{**settings, **options})
        return model

    build.__name__ = build.__qualname__ = name
    if not is_model(name):
        register_model(build)


register("mobilenetv2_100_same", "mobilenetv2_100", pad_type="same")
register(  # two stages, 0.5 M parameters
    "swin_mini_patch4_window4_64",
    "swin_tiny_patch4_window7_224",
    img_size=64,
    window_size=4,
    embed_dim=64,
    depths=(2, 2),
    num_heads=(2, 4),
)
for _name in list_models("vit_*_siglip_[0-9]*"):
    register(_name + TANH, _name, act_layer="gelu_tanh")


_WHAT = "model configuration"

ACTIVATIONS = ("quick_gelu", "gelu")


def named_config(name: str) -> dict[str, Any]:
    """open_clip's built-in configuration. Raises UsageError when there is none of that name."""
    require_architecture(name)
    return dict(open_clip.get_model_config(name))


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
    """Return the built-in name with this configuration, else "config-" and a hash of it."""
    essence = _essence(config)
    name = _built_in(tuple(open_clip.list_models())).get(essence)
    return name or f"config-{hashlib.blake2b(essence.encode(), digest_size=6).hexdigest()}"


def described(config: Mapping[str, Any]) -> str:
    """Return the name, and without a built-in one the sizes that decide the shapes of weights."""
    name = architecture_name(config)
    if not name.startswith("config-") or BLIP in config:
        return name
    parts = [f"embed_dim {quoted(config.get('embed_dim'))}"]
    for key, defaults in (("vision_cfg", CLIPVisionCfg()), ("text_cfg", CLIPTextCfg())):
        sizes = {size: getattr(defaults, size) for size in _SIZES if hasattr(defaults, size)}
        stated = {**sizes, **section(config, key, _WHAT)}
        parts.append(f"{key}: {', '.join(f'{size} {quoted(stated[size])}' for size in stated)}")
    return f"{name} ({'; '.join(parts)})"


_SIZES = (
    *("image_size", "patch_size", "context_length", "vocab_size"),
    *("layers", "width", "heads", "head_width"),
)


@lru_cache(maxsize=1)
def _built_in(names: tuple[str, ...]) -> dict[str, str]:
    """Return the first name of each built-in configuration, by its essence."""
    return {_essence(open_clip.get_model_config(name)): name for name in reversed(names)}


def _essence(config: Mapping[str, Any]) -> str:
    """The part of a configuration that shapes the network, without how to start its towers."""
    copy = deepcopy(dict(config))
    copy.setdefault("quick_gelu", False)
    for part in ("vision_cfg", "text_cfg"):
        for key in ("timm_model_pretrained", "hf_model_pretrained", "tokenizer_kwargs"):
            copy.get(part, {}).pop(key, None)
    return json.dumps(copy, sort_keys=True)


class _WithoutInit(TorchFunctionMode):
    """Skip random initialisation, as weights are loaded afterwards, and keep values finite."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if function in _INITIALISERS:
            return args[0] if args else options["tensor"]
        if function in _DRAWS:
            tensor, *rest = args
            return tensor.fill_(rest[0] if rest else options.get(_DRAWS[function], 0.0))
        return function(*args, **options)


_INITIALISERS = frozenset({nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_})
_DRAWS = {Tensor.normal_: "mean", Tensor.uniform_: "from"}


def build_model(
    config: Mapping[str, Any],
    seed: int | None = 0,
    fits: Callable[[nn.Module], object] | None = None,
) -> nn.Module:
    """Return the network of a configuration, open_clip's or a BLIP, float32, on the CPU, in eval
    mode.

    Parameters are from `seed`; None leaves them as the memory was, for whoever loads all of them.
    The global random state is left alone, nothing is downloaded. fits: called with the network
    without values (on the device "meta"), to refuse weights of other shapes before memory is taken
    for them. Raises CompoclipError when it cannot be built, or needs more than the memory of this
    machine.
    """
    _require_possible(config)
    outline = None
    try:
        try:
            outline = outlined(config)
        except (CompoclipError, OSError, ImportError):  # files or packages that are not here
            raise
        except Exception:  # wrong sizes, and what has to have values: making it tells
            pass
        if outline is not None:
            if fits:
                fits(outline)
            numbers = sum(map(torch.numel, (*outline.parameters(), *outline.buffers())))
            memory = installed()
            if memory is not None and 4 * numbers > memory:
                raise CompoclipError(
                    f"{_WHAT}: describes {numbers:,} numbers, {4 * numbers / 1e9:,.0f} GB, and "
                    f"this machine has {memory / 1e9:,.0f} GB of memory: choose smaller sizes"
                )
        with torch.random.fork_rng(devices=[]), _WithoutInit() if seed is None else nullcontext():
            torch.manual_seed(seed or 0)
            return _network(config).eval()
    except CompoclipError:
        raise
    except Exception as error:  # libraries take a configuration's values for granted
        raise CompoclipError(
            f"{_WHAT} {described(config)} cannot be built: {type(error).__name__}: {reason(error)}"
        ) from error


def outlined(config: Mapping[str, Any]) -> nn.Module:
    """Return the network of a configuration without values, on the device "meta", for reading."""
    return _outlined(json.dumps(config))


@lru_cache(maxsize=8)
def _outlined(config: str) -> nn.Module:
    """The outline of a configuration as JSON; models of one architecture share it."""
    with torch.device("meta"), _WithoutInit():
        return _network(json.loads(config))


def _network(config: Mapping[str, Any]) -> nn.Module:
    options = deepcopy(dict(config))
    if BLIP in options:
        return Blip(options[BLIP])
    if options["vision_cfg"].get("timm_model_name"):
        options["vision_cfg"]["timm_model_pretrained"] = False
    hugging_face = bool(options["text_cfg"].get("hf_model_name"))
    if hugging_face:
        options["text_cfg"]["hf_model_pretrained"] = False
    custom = options.pop("custom_text", False) or hugging_face
    kind = CoCa if "multimodal_cfg" in options else CustomTextCLIP if custom else CLIP
    model: nn.Module = kind(**options)
    return model


def installed() -> int | None:
    """Bytes of memory of this machine; None where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        return None


def _require_possible(config: Mapping[str, Any]) -> None:
    """Raise CompoclipError for sizes that take long or much memory even to outline."""
    theirs = section(config, BLIP, _WHAT)
    parts = [section(config, key, _WHAT) for key in ("vision_cfg", "text_cfg", "multimodal_cfg")]
    parts += [section(theirs, key, _WHAT) for key in ("vision_config", "text_config")]
    for part in parts:
        for key in ("layers", "num_hidden_layers"):
            listed = part.get(key, 0)
            for layers in listed if isinstance(listed, list | tuple) else [listed]:
                if not (isinstance(layers, int) and layers <= MAX_LAYERS):
                    raise CompoclipError(
                        f"{_WHAT}: {key} {str(layers)[:80]} is not a number up to {MAX_LAYERS}"
                    )
    vision, text = parts[:2]
    positions = 0  # numbers in the table of positions of an open_clip ViT
    with suppress(KeyError, TypeError, ValueError, ArithmeticError):
        size, patch = (
            max(x) if isinstance(x, list | tuple) else x
            for x in (vision["image_size"], vision["patch_size"])
        )
        positions = int((size // patch) ** 2 * vision.get("width", 768))
    if positions > MAX_POSITIONS:
        raise CompoclipError(
            f"{_WHAT}: image_size, patch_size and width make more positions than any image tower "
            "has"
        )
    if str(vision.get("timm_model_name")).startswith("local-dir:"):
        raise CompoclipError(f"{_WHAT}: timm_model_name leads to a folder; name a model of timm")
    if text.get("hf_model_name"):
        require_hub_name(text["hf_model_name"], "hf_model_name")


def attach_preprocess(model: nn.Module, config: Mapping[str, Any]) -> Preprocess:
    """Return the model's preprocessing, also set on the network as open_clip does; the size is the
    image tower's, whatever the configuration says."""
    size = getattr(model.visual, "image_size", None)
    merged = dict(config) if size is None else {**config, "size": size}
    preprocess = Preprocess.from_config(merged)
    set_model_preprocess_cfg(model, preprocess.to_config())
    return preprocess


def published_stats(name: str) -> dict[str, Any]:
    """Return the preprocessing that all published weights of an architecture share, which a raw
    file does not record; {} for open_clip's default."""
    keys = ("mean", "std", "interpolation", "resize_mode")
    published = [
        {key: open_clip.get_pretrained_cfg(name, tag).get(key) for key in keys}
        for tag in open_clip.list_pretrained_tags_by_model(name)
    ]
    if not published or any(other != published[0] for other in published):
        return {}
    return {key: value for key, value in published[0].items() if value is not None}


BLIP = "blip_cfg"
"""Entry of a model configuration that makes it a BLIP: the content of transformers' config.json."""
BLIP_VOCABULARY = 30524
"""Tokens of BERT with "[DEC]" and "[ENC]"."""
_BLIP_ENC = 30523
BLIP_TEMPERATURE = 0.07  # of ITC training; transformers' checkpoints leave it out


class BlipImage(nn.Module):
    """The image tower: pooled (B, D) features, not normalised."""

    def __init__(self, vision_model: nn.Module, vision_proj: nn.Module, image_size: int) -> None:
        super().__init__()
        self.vision_model = vision_model
        self.vision_proj = vision_proj
        self.image_size = (image_size, image_size)

    def states(self, pixels: Tensor) -> Tensor:
        """(B, 1 + patches, W) states, what the matching head looks at."""
        out: Tensor = self.vision_model(pixel_values=pixels).last_hidden_state
        return out

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, D)."""
        pooled: Tensor = self.vision_proj(self.states(pixels)[:, 0])
        return pooled


class Blip(nn.Module):
    """A BLIP as an open_clip model, as far as `DualEncoder` needs it, and its matching head."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Make a network with random weights. config: transformers' `config.json`."""
        super().__init__()
        transformers = optional("transformers", "hf", "BLIP")
        theirs = transformers.BlipForImageTextRetrieval(transformers.BlipConfig(**config))
        whole: Any = theirs.config
        text, vision = whole.text_config, whole.vision_config
        self.visual = BlipImage(theirs.vision_model, theirs.vision_proj, int(vision.image_size))
        self.text_encoder = theirs.text_encoder
        self.text_proj = theirs.text_proj
        self.itm_head = theirs.itm_head
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(BLIP_TEMPERATURE)))
        self.vocab_size = int(text.vocab_size)
        self.pad_id = int(text.pad_token_id)

    def encode_text(self, ids: Tensor, normalize: bool = False) -> Tensor:
        """(T, context) ids -> (T, D), without the image."""
        ids = self._cut(ids)
        states = self.text_encoder(input_ids=ids, attention_mask=ids != self.pad_id)
        pooled: Tensor = self.text_proj(states.last_hidden_state[:, 0])
        return F.normalize(pooled, dim=-1) if normalize else pooled

    def match(self, states: Tensor, ids: Tensor) -> Tensor:
        """Return (T,) log-odds that each text matches its image, by the matching head.

        states: (T, 1 + patches, W) of `BlipImage.states`. With BLIP's vocabulary the first token is
        "[ENC]", as the head was trained (transformers leaves "[CLS]" there).
        """
        ids = self._cut(ids).clone()
        if self.vocab_size == BLIP_VOCABULARY:
            ids[:, 0] = _BLIP_ENC
        mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        read = self.text_encoder(
            input_ids=ids,
            attention_mask=ids != self.pad_id,
            encoder_hidden_states=states,
            encoder_attention_mask=mask,
        )
        logits: Tensor = self.itm_head(read.last_hidden_state[:, 0])
        return logits[:, 1] - logits[:, 0]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute activations in backward, in both towers."""
        for part in (self.visual.vision_model, self.text_encoder):
            switch = "enable" if enable else "disable"
            getattr(part, f"gradient_checkpointing_{switch}")()

    def _cut(self, ids: Tensor) -> Tensor:
        """Without the columns that are padding in every row; what is left does not see them."""
        longest = int((ids != self.pad_id).sum(dim=1).max())
        return ids[:, :longest]


def require_compiler(device: torch.device) -> None:
    """Compile and run a trifle. Raises CompoclipError when that fails."""

    try:
        torch.compile(lambda x: x.exp() + 1)(torch.zeros(8, device=device))
    except Exception as error:  # whatever the back end raises
        raise CompoclipError(
            f"--compile: torch.compile does not work on {device} here ({reason(error)}); install a "
            "C++ compiler (g++) for a CPU or Triton for a GPU, or leave --compile out"
        ) from error
