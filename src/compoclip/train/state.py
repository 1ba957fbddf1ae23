"""Training state on disk: everything needed to go on as if nothing had happened.

A state is a folder `step-NNNNNNNN` with `tensors.safetensors` (weights, optimiser moments, the
torch random states) and `progress.json`. It is written under a temporary name, flushed, and
renamed, so that a folder with that name is always complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from compoclip.errors import CompoclipError
from compoclip.ranks import ALONE, Ranks
from compoclip.train.optim import ordered
from compoclip.train.sharding import whole

_TENSORS = "tensors.safetensors"
_PROGRESS = "progress.json"
_RANDOM, _RANDOM_GPU = "rng", "rng-cuda"


@dataclass(frozen=True)
class Progress:
    """Where a run stands: `step` steps are done, the next is `epoch_step` of `epoch`.

    signature: hash-like description of what must not change across a resume (method, settings,
    data, seed, batch size). images, texts, skipped images, truncated texts: totals so far.
    rewrites: what the caption plan made so far, as `PlanCounts.to_json` has it. losses: what losses
    that remember have to remember, by name of the term.
    """

    step: int
    epoch: int
    epoch_step: int
    signature: str
    images: int = 0
    texts: int = 0
    skipped: int = 0
    truncated: int = 0
    seconds: float = 0.0
    rewrites: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, dict[str, float]] = field(default_factory=dict)


def save_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    ranks: Ranks = ALONE,
) -> None:
    """Write the state of a run into `folder`/step-NNNNNNNN and drop older ones.

    Of several processes all must call it and the first one writes; what is written does not depend
    on their number, nor on whether parameters are split. Raises CompoclipError, in all, when the
    disk is full or the folder cannot be written.
    """
    tensors = _random_states(model)
    for name, tensor in _all_tensors(model, optimizer):
        collected = whole(tensor.detach())
        if ranks.first:
            tensors[name] = collected.cpu().contiguous()
    with ranks.agreed():
        if ranks.first:
            _write(folder, tensors, progress)


def _all_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights and moments by the name they are saved under."""
    for name, tensor in model.state_dict().items():
        yield f"model/{name}", tensor
    for index, parameter in enumerate(ordered(model.named_parameters())):
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"optimizer/{index}/{key}", torch.as_tensor(value)


def _write(folder: Path, tensors: dict[str, torch.Tensor], progress: Progress) -> None:
    target = folder / f"step-{progress.step:08d}"
    partial = folder / f".partial-{progress.step:08d}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_file(_unshared(tensors), partial / _TENSORS)
        (partial / _PROGRESS).write_text(json.dumps(asdict(progress)))
        for name in (_TENSORS, _PROGRESS):
            with open(partial / name, "rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
    except (OSError, SafetensorError) as error:
        raise CompoclipError(
            f"cannot write the training state to {target}: {error}; free space or choose another "
            "--out, then --resume"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for old in _states(folder):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def latest_state(folder: Path) -> Path | None:
    """The newest complete state below `folder`, or None."""
    states = _states(folder)
    return states[-1] if states else None


def load_state(
    state: Path, model: nn.Module, optimizer: torch.optim.Optimizer, signature: str
) -> Progress:
    """Restore weights, optimiser and random state; returns where to go on.

    Raises CompoclipError when the state is damaged or belongs to a run with other settings.
    """
    try:
        progress = Progress(**json.loads((state / _PROGRESS).read_text()))
        tensors = load_file(state / _TENSORS)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise CompoclipError(
            f"training state {state} is damaged ({error}); delete it and start without --resume"
        ) from error
    if progress.signature != signature:
        raise CompoclipError(
            f"{state} was written by a run with other settings ({progress.signature}) than this "
            f"one ({signature}); use the same options, or another --out"
        )
    model.load_state_dict(
        {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
    )
    slots: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer/"):
            _, index, name = key.split("/", 2)
            slots.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(
        {"state": slots, "param_groups": optimizer.state_dict()["param_groups"]}
    )
    _set_random_states(model, tensors)
    return progress


def _random_states(model: nn.Module) -> dict[str, torch.Tensor]:
    """Of the CPU and, for a model on a GPU, of that one, which draws its dropout."""
    states = {_RANDOM: torch.get_rng_state()}
    device = next(model.parameters()).device
    if device.type == "cuda":
        states[_RANDOM_GPU] = torch.cuda.get_rng_state(device)
    return states


def _set_random_states(model: nn.Module, states: Mapping[str, torch.Tensor]) -> None:
    """What `_random_states` found; a state written on another kind of device says nothing here."""
    torch.set_rng_state(states[_RANDOM])
    device = next(model.parameters()).device
    if device.type == "cuda" and _RANDOM_GPU in states:
        torch.cuda.set_rng_state(states[_RANDOM_GPU], device)


def _states(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path
        for path in folder.iterdir()
        if path.name.startswith("step-") and (path / _PROGRESS).is_file()
    )


def _unshared(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors refuses tensors that share storage; give every repeated one its own."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        out[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return out
