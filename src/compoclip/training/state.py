"""Training state on disk: everything needed to resume bit for bit.

A state is a folder `step-NNNNNNNN` with `tensors.safetensors` (weights, optimiser moments, the
torch random states) and `progress.json`. It is written under a temporary name, flushed, and
renamed, so that a folder with that name is always complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from compoclip.data.fingerprint import Fingerprint
from compoclip.data.sources import Source
from compoclip.differences import listed
from compoclip.errors import CompoclipError
from compoclip.files import content_hash, read_json, reason, sync, sync_folder, writing
from compoclip.methods.base import Method
from compoclip.models.checkpoint import LoadedModel
from compoclip.process import give_back
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.optim import AveragedWeights, ordered
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import whole
from compoclip.typed import Natural, NonNegative, build, read_fields

_TENSORS = "tensors.safetensors"
_PROGRESS = "progress.json"
_SLOTS = ("exp_avg", "exp_avg_sq", "step")  # what AdamW remembers of a parameter
_RANDOM, _RANDOM_GPU = "rng", "rng-cuda"
_AVERAGE = "average/"
_PLAN = {"samples": Natural, "rewrites": dict[str, dict[str, Any]]}  # counts of the caption plan
_MADE = {"made": Natural, "samples": Natural, "refused": dict[str, int]}


@dataclass(frozen=True)
class Progress:
    """The progress of a run, stored in `progress.json` of a state.

    Images, texts, unreadable images (`skipped`) and texts cut by the tokenizer are counted so far,
    seconds in the loop alone. epoch: of the next step; epoch_step: steps done in it. rewrites:
    counts of the caption plan. losses: the state of stateful losses, by term. skipped_steps: with a
    non-finite loss or gradient. scaler: of fp16. measured: step -> name -> value.
    """

    step: Natural
    epoch: Natural
    epoch_step: Natural
    images: Natural = 0
    texts: Natural = 0
    skipped: Natural = 0
    truncated: Natural = 0
    seconds: NonNegative = 0.0
    rewrites: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped_steps: Natural = 0
    scaler: dict[str, int | float] = field(default_factory=dict)
    measured: dict[str, dict[str, float]] = field(default_factory=dict)


def save_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    averages: AveragedWeights | None = None,
    ranks: Ranks = SINGLE,
) -> None:
    """Save a state in OUT/state, and delete older ones.

    The files do not depend on the number of ranks or on sharding. All ranks call it together; rank
    0 writes. Raise CompoclipError on all ranks when the disk is full, the folder cannot be written,
    or a weight is not finite (training is then useless, and the older state, which is kept, may be
    good).
    """
    trained = dict(model.named_parameters())
    device = next(iter(trained.values())).device
    tensors = {_RANDOM: torch.get_rng_state()}
    if device.type == "cuda":  # which draws its dropout
        tensors[_RANDOM_GPU] = torch.cuda.get_rng_state(device)
    named = _weights(model, averages)
    for index, parameter in enumerate(ordered(trained.items())):
        for key, value in optimizer.state.get(parameter, {}).items():
            named[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
    for name, tensor in named.items():
        collected = whole(tensor.detach())  # which takes all ranks
        if ranks.first:
            tensors[name] = collected.cpu().contiguous()
    with ranks.agreed():
        if ranks.first:
            _write(folder, tensors, trained, progress)
    give_back()


def _weights(model: nn.Module, averages: AveragedWeights | None) -> dict[str, torch.Tensor]:
    """The weights of a state, by their names in it."""
    averaged = averages.tensors if averages else {}
    return {
        **{f"model/{name}": tensor for name, tensor in model.state_dict().items()},
        **{f"{_AVERAGE}{name}": tensor for name, tensor in averaged.items()},
    }


def _write(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    trained: Mapping[str, nn.Parameter],
    progress: Progress,
) -> None:
    """Write a state. trained: the parameters by name, which must be finite."""
    for name in trained:
        if not tensors[f"model/{name}"].isfinite().all():
            earlier = latest_state(folder)
            raise CompoclipError(
                f"{name} is not finite after step {progress.step}, so training cannot continue; "
                "lower --lr"
                + (f" (the state of an earlier step is kept: {earlier})" if earlier else "")
            )
    # safetensors refuses tensors that share storage: every repeated one gets its own.
    first = {tensor.data_ptr(): name for name, tensor in reversed(tensors.items())}
    tensors = {k: t if first[t.data_ptr()] == k else t.clone() for k, t in tensors.items()}
    target = folder / f"step-{progress.step:08d}"
    partial = folder / f".partial-{progress.step:08d}"
    try:
        with writing(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            save_file(tensors, partial / _TENSORS)
            (partial / _PROGRESS).write_text(json.dumps(asdict(progress)))
            for name in (_TENSORS, _PROGRESS):
                sync(partial / name)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(partial, target)
            sync_folder(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for old in folder.glob("step-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def run_fingerprint(
    model: LoadedModel,
    method: Method,
    source: Source,
    data: Fingerprint,
    settings: RunSettings,
    watched: Mapping[str, Any],
) -> Fingerprint:
    """Return everything that must be the same for a resumed run to be the same run.

    source: the samples as the method reads them. data: of the samples as they were opened.
    """
    record, trains = method.record(), asdict(method.trains)
    if method.trains.text_blocks == 1:  # so that states from before it can be resumed
        del trains["text_blocks"]
    values = {
        "weights": model.identity.weights,
        "activation": model.identity.activation,
        "tokenizer": model.identity.tokenizer,
        "method": method.name,
        **method.settings,
        **asdict(method.optim),
        "trains": trains,
        "lora": asdict(method.lora) if method.lora else None,
        **record.pop("sources", {}),
        **record,
        "data": source.describe(),
        "orientation": source.orientation,
        **{f"content of {file}": content_hash(file) for file in method.plan.files},
        "samples": len(source),
        **settings.decisive(),
        **watched,
    }
    return Fingerprint({**values, **data.values}, data.rows)


def require_same_run(out: Path, now: Fingerprint) -> None:
    """Raise CompoclipError, naming what differs, unless the folder holds a run made from that."""
    differences = Fingerprint.load(out).differences(now)
    if differences:
        remedy = "use the same, or another --out"
        if differences.keys() <= {"epochs", "max_steps"}:
            remedy = (
                "the learning rate follows the number of steps, so none are added: train on from "
                f"the finished model, --model {out / 'model'} with another --out"
            )
        raise CompoclipError(f"{out}: made with other settings: {listed(differences)}; {remedy}")


def latest_state(folder: Path) -> Path | None:
    """Return the newest complete state in OUT/state."""
    return max((path.parent for path in folder.glob(f"step-*/{_PROGRESS}")), default=None)


def remove_states(folder: Path) -> None:
    """Remove all states in OUT/state, of a finished run: three times the weights, unread."""
    shutil.rmtree(folder, ignore_errors=True)


def load_state(
    state: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps_per_epoch: int | None = None,
    averages: AveragedWeights | None = None,
) -> Progress:
    """Restore weights, optimiser and random state.

    steps_per_epoch: of the data, checked against the state. Raise CompoclipError when the state is
    damaged; nothing is restored then.
    """
    # Everything is read and checked before anything is restored.
    try:
        stated = read_json(state / _PROGRESS)
        progress: Progress = build(Progress, stated, _PROGRESS, "it was written otherwise")
        if progress.rewrites:
            plan = read_fields(progress.rewrites, _PLAN, f"{_PROGRESS}: rewrites")
            for name, counts in plan["rewrites"].items():
                read_fields(counts, _MADE, f"{_PROGRESS}: rewrites.{name}")
        step, place = progress.step, (progress.epoch, progress.epoch_step)
        if (
            state.name != f"step-{step:08d}"
            or (steps_per_epoch is not None and place != divmod(step, steps_per_epoch))
            or progress.skipped_steps > step
            or not all(map(str.isdecimal, progress.measured))
        ):
            raise ValueError(f"counts of steps do not agree: {step}, {place}")
        tensors = load_file(state / _TENSORS)
        moments = _moments(tensors, model, averages)
        torch.Generator().set_state(tensors[_RANDOM])
    except (
        CompoclipError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        SafetensorError,
    ) as error:
        raise damaged(state, error) from error

    def under(prefix: str) -> dict[str, torch.Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    model.load_state_dict(under("model/"))
    if averages is not None:
        averages.restore(under(_AVERAGE))
    # States number parameters in an order of their own, whatever the groups of the optimiser.
    grouped = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.load_state_dict(
        {
            "state": {at: moments[p] for at, p in enumerate(grouped) if moments[p]},
            "param_groups": optimizer.state_dict()["param_groups"],
        }
    )
    torch.set_rng_state(tensors[_RANDOM])
    device = next(model.parameters()).device
    if device.type == "cuda" and _RANDOM_GPU in tensors:  # not from another kind of device
        torch.cuda.set_rng_state(tensors[_RANDOM_GPU], device)
    return progress


def _moments(
    tensors: Mapping[str, torch.Tensor], model: nn.Module, averages: AveragedWeights | None
) -> dict[nn.Parameter, dict[str, torch.Tensor]]:
    """Return AdamW's state by parameter. Raises ValueError for tensors that do not fit."""
    trained, expected = dict(model.named_parameters()), _weights(model, averages)
    moments = {}
    for number, parameter in enumerate(ordered(trained.items())):
        keys = {slot: f"optimizer/{number}/{slot}" for slot in _SLOTS}
        moments[parameter] = {slot: tensors[n] for slot, n in keys.items() if n in tensors}
        if moments[parameter]:
            shapes = {**dict.fromkeys(_SLOTS, parameter), "step": torch.empty(())}
            expected |= {keys[slot]: like for slot, like in shapes.items()}
    for name, value in expected.items():
        tensor = tensors.get(name)
        if tensor is None or (tensor.shape, tensor.dtype) != (value.shape, value.dtype):
            raise ValueError(f"{name}: missing, or of another shape or type")
        if name.removeprefix("model/") in trained and not tensor.isfinite().all():
            raise ValueError(f"{name}: not finite")
    for name in tensors.keys() - expected.keys() - {_RANDOM, _RANDOM_GPU}:
        raise ValueError(f"{name}: no such tensor")
    return moments


def damaged(state: Path, error: Exception) -> CompoclipError:
    """Make the error for a state that cannot be resumed."""
    return CompoclipError(
        f"training state {state} is damaged ({reason(error)}); delete it and start without --resume"
    )
