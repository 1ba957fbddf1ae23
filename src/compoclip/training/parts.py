"""The parts of a network that options name: towers, their blocks, their last projections.

`--freeze`, `--lr-image`, `--layer-decay` and `--cache-frozen` look up parameters here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torch import nn

from compoclip.console import counted, note
from compoclip.errors import CompoclipError, UsageError
from compoclip.methods.base import Method
from compoclip.models.checkpoint import LoadedModel, current_identity
from compoclip.models.config import Part, part_of
from compoclip.models.image_tower import projection_of
from compoclip.models.lora import Lora, Towers, attach_lora, towers_of
from compoclip.training.settings import RunSettings, require_frozen_parts
from compoclip.training.sharding import repeated_units


@dataclass(frozen=True)
class LayerPlace:
    """Where a parameter or buffer stands in a network.

    block: 0 before the first block of the tower, n in the n-th of `blocks`, blocks + 1 after the
    last. projection: whether it belongs to the tower's last projection.
    """

    part: Part
    block: int
    blocks: int
    projection: bool = False


def places(network: nn.Module) -> dict[str, LayerPlace]:
    """Where every parameter and buffer of an open_clip network stands, by name in the state dict.

    The blocks of a tower are the members of its lists of equal modules: transformer blocks, or the
    stages of a convolutional tower.
    """
    names = {module: name for name, module in network.named_modules()}
    units = [names[unit] for unit in repeated_units(network)]
    blocks = {p: [u for u in units if part_of(f"{u}.") == p] for p in ("image", "text")}
    projected = {part: projection_of(network, part) for part in ("image", "text")}
    place_by_name: dict[str, LayerPlace] = {}
    passed: Counter[str] = Counter()  # the last block that has been met in each tower
    for name in network.state_dict():
        part = part_of(name)
        if part == "temperature":
            place_by_name[name] = LayerPlace(part, 0, 0)
            continue
        tower_blocks = blocks[part]
        within = next(
            (n for n, unit in enumerate(tower_blocks, 1) if name.startswith(f"{unit}.")), None
        )
        projection = any(name == p or name.startswith(f"{p}.") for p in projected[part])
        # Positions, class tokens and token embeddings come first, wherever they are registered.
        local = re.sub(r"^(visual\.(trunk\.)?|text\.)", "", name)
        if projection:
            block = len(tower_blocks) + 1
        elif within is not None:
            block = passed[part] = within
        elif "." not in local or local.startswith("token_embedding."):
            block = 0
        else:
            block = len(tower_blocks) + 1 if passed[part] == len(tower_blocks) else passed[part]
        place_by_name[name] = LayerPlace(part, block, len(tower_blocks), projection)
    return place_by_name


# --- Learning rates. ---


def rate_factors(network: nn.Module, lr: float, settings: RunSettings) -> dict[str, float]:
    """Return the factor of the learning rate, whose peak is `lr`, for each parameter, by its name;
    empty where all have the same.

    With a layer decay d, block n of N has d^(N + 1 - n): what comes before the first block d^(N +
    1), what comes after the last 1.
    """
    part_rates = {"image": settings.lr_image, "text": settings.lr_text}
    decay = settings.layer_decay
    rates = {part: rate for part, rate in part_rates.items() if rate is not None}
    if not rates and decay == 1:
        return {}
    factors = {}
    for name, place in places(network).items():
        after = 0 if place.part == "temperature" else place.blocks + 1 - place.block
        factors[name] = (rates[place.part] / lr if place.part in rates else 1.0) * decay**after
    return factors


# --- Freezing. ---


def frozen_by(network: nn.Module, freeze: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The names in the state dict of what each word of --freeze holds still.

    Raises UsageError for an unknown word, a tower without a projection of its own, and more blocks
    than there are.
    """
    require_frozen_parts(freeze)
    all_places = places(network) if freeze else {}
    frozen = {}
    for word in dict.fromkeys(freeze):
        part, colon, count = word.removesuffix("-trunk").partition(":")
        tower = {name: place for name, place in all_places.items() if place.part == part}
        trunk, blocks = word.endswith("-trunk"), max((p.blocks for p in tower.values()), default=0)
        number = int(count.rstrip("-") or 0)
        if number > blocks:
            raise UsageError(f"--freeze {word}: the {part} tower has {counted(blocks, 'block')}")
        if trunk and not any(place.projection for place in tower.values()):
            raise UsageError(
                f"--freeze {word}: the {part} tower has no projection apart from its trunk: freeze "
                f"all of it (--freeze {part}), or its first blocks (--freeze {part}:N)"
            )
        if not colon:
            still = [name for name in tower if not (trunk and tower[name].projection)]
        elif count.endswith("-"):
            still = [name for name, place in tower.items() if place.block >= number]
        else:
            still = [name for name, place in tower.items() if place.block <= number]
        frozen[word] = tuple(still)
    return frozen


def later_blocks(network: nn.Module, share: float) -> set[str]:
    """Return the names in the state dict of the text tower's blocks after the first `share` of
    them, which is rounded up to whole blocks."""
    if share == 1:
        return set()
    text = {name: place for name, place in places(network).items() if place.part == "text"}
    return {
        name
        for name, place in text.items()
        if math.ceil(share * place.blocks) < place.block <= place.blocks
    }


def with_frozen(method: Method, freeze: Sequence[str]) -> Method:
    """The method for what is left to train: towers that are frozen whole do not train.

    Adapters leave the rest of a tower frozen, so one whose trunk is frozen is frozen whole. Raises
    UsageError when no tower is left, and for some blocks of a tower that gets adapters.
    """
    gone = {word.removesuffix("-trunk") if method.lora else word for word in freeze}
    trains = replace(
        method.trains,
        image_tower=method.trains.image_tower and "image" not in gone,
        text_tower=method.trains.text_tower and "text" not in gone,
        logit_scale=method.trains.logit_scale and "temperature" not in gone,
    )
    some = next((word for word in freeze if ":" in word), "")
    if method.lora and some:
        raise UsageError(
            f"--freeze {some} cannot be combined with adapters, which freeze all other weights: "
            "freeze a whole tower, or choose --lora-towers"
        )
    if freeze and not (trains.image_tower or trains.text_tower or trains.matrix):
        raise UsageError(
            f"--freeze {' '.join(freeze)}: leaves {method.name} no tower to train; freeze less"
        )
    return replace(method, trains=trains)


# --- Adapters. ---


def attach_adapters(model: LoadedModel, method: Method, seed: int) -> Lora | None:
    """Attach the method's adapters to the network, and log the number of parameters.

    Return the settings with the adapted towers: trained by the method, named by `lora`, with layers
    to adapt; None without adapters. Raise UsageError when no tower can be adapted, CompoclipError
    when the weights do not match the model's identity.
    """
    if method.lora is None:
        return None
    trained: dict[Towers, bool] = {
        "image": method.trains.image_tower,
        "text": method.trains.text_tower,
    }
    chosen = [t for t, on in trained.items() if on and method.lora.towers in ("both", t)]
    if not chosen:
        raise UsageError(
            f"{method.name} trains nothing in the tower of its adapters ({method.lora.towers}): "
            "choose another with --lora-towers"
        )
    if current_identity(model) != model.identity:
        raise CompoclipError(
            f"{model.name}: its weights have changed since it was loaded, and adapters need a base "
            "that can be loaded again: save the model and train on the checkpoint"
        )
    network = model.encoder.model
    total = sum(parameter.numel() for parameter in network.parameters())
    lora = replace(method.lora, towers="both" if len(chosen) == 2 else chosen[0])
    targets = attach_lora(network, lora, seed)
    lora = replace(lora, towers=towers_of(target.name for target in targets))
    learns = sum(target.size for target in targets)
    note(
        f"{lora.describe()}: {learns:,} trained and {total:,} frozen parameters "
        f"({learns / total:.2%})"
    )
    if lora.towers != "both" and len(chosen) == 2:
        (left,) = {*chosen} - {lora.towers}
        note(f"  the {left} tower has no attention or MLP layers to adapt and is frozen")
    return lora
