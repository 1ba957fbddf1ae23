"""Training state on disk: everything needed to resume bit for bit.

A state is a folder `step-NNNNNNNN` with `tensors.safetensors` (weights, optimiser moments, the
torch random states) and `progress.json`. It is written under a temporary name, flushed, and
renamed, so that a folder with that name is always complete.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from compoclip.data.fingerprint import Fingerprint, listed
from compoclip.data.sources import Source
from compoclip.errors import CompoclipError, shown
from compoclip.files import sync, sync_folder
from compoclip.methods.base import Method
from compoclip.models.checkpoint import LoadedModel
from compoclip.process import give_back
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.optim import AveragedWeights, ordered
from compoclip.training.settings import RunSettings
from compoclip.training.sharding import whole

_TENSORS = "tensors.safetensors"
_PROGRESS = "progress.json"
_SLOTS = ("exp_avg", "exp_avg_sq", "step")  # what AdamW remembers of a parameter
_RANDOM, _RANDOM_GPU = "rng", "rng-cuda"
_AVERAGE = "average/"


@dataclass(frozen=True)
class Progress:
    """Where a run stands: what `progress.json` of a state holds.

    Args:
        step: Steps that are done.
        epoch: The epoch that the next step is in.
        epoch_step: Steps of that epoch that are done.
        images: Images shown so far.
        texts: Texts shown so far.
        skipped: Images that could not be read.
        truncated: Texts that the tokenizer cut.
        seconds: Time spent in the loop.
        rewrites: What the caption plan made so far, as `PlanCounts.to_json` has it.
        losses: The state of losses that have one, by name of the term.
        skipped_steps: Steps whose loss or gradient was not finite.
        scaler: The state of the loss scale of fp16.
        measured: What was measured while training: step -> name -> value.
    """

    step: int
    epoch: int
    epoch_step: int
    images: int = 0
    texts: int = 0
    skipped: int = 0
    truncated: int = 0
    seconds: float = 0.0
    rewrites: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped_steps: int = 0
    scaler: dict[str, float] = field(default_factory=dict)
    measured: dict[str, dict[str, float]] = field(default_factory=dict)


def save_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    ranks: Ranks = SINGLE,
    averages: AveragedWeights | None = None,
) -> None:
    """Write the state of a run into `folder`/step-NNNNNNNN and drop older ones.

    All ranks must call it; rank 0 writes. What is written does not depend on their number, nor on
    whether parameters are split.

    Args:
        folder: OUT/state.
        model: The open_clip network.
        optimizer: Its AdamW.
        progress: Where the run stands.
        ranks: The processes that train together.
        averages: The averaged weights, if there are any.

    Raises:
        CompoclipError: On all ranks, when the disk is full, the folder cannot be written, or a
            weight is not finite: nothing is learnt from there on, while the older state, which
            stays, may be good.
    """
    tensors = _collected(model, optimizer, ranks, _on_cpu, averages)
    with ranks.agreed():
        if ranks.first:
            _write(folder, tensors, dict(model.named_parameters()), progress)
    give_back()


class StateWriter:
    """Saves the states of a run, on a GPU beside the training that goes on.

    Then a state is copied to pinned memory, in the order of the device's work, and a thread waits
    for it and writes it. At most one is in flight. A file that cannot be written ends the run at
    the next step, as it does when nothing is written beside it.

    Args:
        folder: OUT/state.
        ranks: The processes that train together, which call all but `check` together.
        beside: Write in a thread; takes the memory of a second copy.
    """

    def __init__(self, folder: Path, ranks: Ranks, beside: bool) -> None:
        self._folder, self._ranks = folder, ranks
        self._thread = ThreadPoolExecutor(1, "state") if beside else None
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()  # waits for what is in flight

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        averages: AveragedWeights | None = None,
    ) -> None:
        """Save a state, as `save_state` does; may return before it is written."""
        if self._thread is None:
            save_state(self._folder, model, optimizer, progress, self._ranks, averages)
            return
        self.finish()
        tensors = _collected(model, optimizer, self._ranks, _copy, averages)
        copied = None
        if any(tensor.is_cuda for tensor in model.parameters()):
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()

        def write() -> None:
            if copied is not None:
                copied.synchronize()
            _write(self._folder, tensors, names, progress)
            give_back()

        names = dict(model.named_parameters())
        if self._ranks.first:
            self._writing = self._thread.submit(write)

    def check(self) -> None:
        """Raise CompoclipError if the state in flight could not be written; waits for nothing."""
        if self._writing is not None and self._writing.done():
            self._raise()

    def finish(self) -> None:
        """Wait until what was saved is written. Raises CompoclipError if it could not be."""
        if self._thread is not None:
            with self._ranks.agreed():
                self._raise()

    def _raise(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def _collected(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    kept: Callable[[torch.Tensor], torch.Tensor],
    averages: AveragedWeights | None,
) -> dict[str, torch.Tensor]:
    """All tensors of a state, on rank 0 as `kept` keeps them: collecting a split one takes all."""
    tensors = _random_states(model)
    named = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    for name, tensor in averages.tensors.items() if averages else ():
        named[f"{_AVERAGE}{name}"] = tensor
    for index, parameter in enumerate(ordered(model.named_parameters())):
        for key, value in optimizer.state.get(parameter, {}).items():
            named[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
    for name, tensor in named.items():
        collected = whole(tensor.detach())
        if ranks.first:
            tensors[name] = kept(collected)
    return tensors


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous()


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU; of a tensor on a GPU in pinned memory, and filled in the order of its
    work."""
    if tensor.is_cuda:
        return tensor.contiguous().to("cpu", non_blocking=True)
    return tensor.clone(memory_format=torch.contiguous_format)


def _write(
    folder: Path, tensors: dict[str, torch.Tensor], learnt: Iterable[str], progress: Progress
) -> None:
    """Write a state. learnt: names of the parameters, which must be finite."""
    for name in learnt:
        if not tensors[f"model/{name}"].isfinite().all():
            kept = latest_state(folder)
            raise CompoclipError(
                f"{name} is not finite after step {progress.step}, so nothing more can be learnt; "
                "lower --lr" + (f" (the state of an earlier step is kept: {kept})" if kept else "")
            )
    target = folder / _name(progress.step)
    partial = folder / f".partial-{progress.step:08d}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_file(_unshared(tensors), partial / _TENSORS)
        (partial / _PROGRESS).write_text(json.dumps(asdict(progress)))
        for name in (_TENSORS, _PROGRESS):
            sync(partial / name)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
        sync_folder(folder)
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


def run_fingerprint(
    model: LoadedModel,
    method: Method,
    source: Source,
    data: Fingerprint,
    settings: RunSettings,
    watched: Mapping[str, Any],
) -> Fingerprint:
    """Return everything that must be the same for a resumed run to be the same run.

    source: the samples as the method reads them. data: the fingerprint of the samples as they were
    opened. watched: what else decides on the result.
    """
    record = method.record()
    values = {
        "weights": model.identity.weights,
        "activation": model.identity.activation,
        "tokenizer": model.identity.tokenizer,
        "method": method.name,
        **method.settings,
        **asdict(method.optim),
        "trains": asdict(method.trains),
        "lora": asdict(method.lora) if method.lora else None,
        **record.pop("sources", {}),
        **record,
        "data": source.describe(),
        "orientation": source.orientation,
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
    """Find the newest complete state.

    Args:
        folder: OUT/state.

    Returns:
        Its folder, or None when there is none.
    """
    return max(_states(folder), default=None)


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

    Args:
        state: Folder of a complete state.
        model: The open_clip network, whole.
        optimizer: Its AdamW.
        steps_per_epoch: Of the data, with which the step, the epoch and the step in it must agree;
            None leaves that unchecked.
        averages: The averaged weights of a run that has them.

    Returns:
        Where to go on.

    Raises:
        CompoclipError: When the state is damaged; then nothing has been restored.
    """
    # Everything is read and checked before anything is restored.
    try:
        progress = _progress(json.loads((state / _PROGRESS).read_text(encoding="utf-8")))
        tensors = load_file(state / _TENSORS)
        step, place = progress.step, (progress.epoch, progress.epoch_step)
        if state.name != _name(step):
            raise ValueError(f"step: {step}")
        if steps_per_epoch is not None and place != divmod(step, steps_per_epoch):
            raise ValueError(f"step {step} is not step {place[1]} of epoch {place[0]}")
        if progress.skipped_steps > step:
            raise ValueError(f"skipped_steps: {progress.skipped_steps}")
        _require_tensors(tensors, model, averages)
    except (OSError, ValueError, KeyError, RecursionError, SafetensorError) as error:
        raise damaged(state, error) from error
    model.load_state_dict(
        {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
    )
    if averages is not None:
        averages.restore(
            {k.removeprefix(_AVERAGE): v for k, v in tensors.items() if k.startswith(_AVERAGE)}
        )
    slots: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer/"):
            _, index, name = key.split("/", 2)
            slots.setdefault(int(index), {})[name] = value
    # States number parameters in an order of their own, whatever the groups of the optimiser.
    number = {parameter: n for n, parameter in enumerate(ordered(model.named_parameters()))}
    grouped = [number[p] for group in optimizer.param_groups for p in group["params"]]
    optimizer.load_state_dict(
        {
            "state": {at: slots[n] for at, n in enumerate(grouped) if n in slots},
            "param_groups": optimizer.state_dict()["param_groups"],
        }
    )
    torch.set_rng_state(tensors[_RANDOM])
    device = next(model.parameters()).device
    if device.type == "cuda" and _RANDOM_GPU in tensors:  # not from another kind of device
        torch.cuda.set_rng_state(tensors[_RANDOM_GPU], device)
    return progress


def damaged(state: Path, error: Exception) -> CompoclipError:
    """Make the error for a state that cannot be resumed."""
    reason = " ".join(str(error).split())
    return CompoclipError(
        f"training state {state} is damaged ({reason}); delete it and start without --resume"
    )


def _progress(record: Any) -> Progress:
    """Raises ValueError for a record that `save_state` does not write."""
    known = {each.name: each for each in fields(Progress)}
    needed = {
        name
        for name, each in known.items()
        if each.default is MISSING and each.default_factory is MISSING
    }
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    if wrong := (needed - record.keys()) | (record.keys() - known.keys()):
        raise ValueError(f"{min(wrong)}: missing or unknown")
    for name, value in record.items():
        kind = str(known[name].type)
        right = isinstance(value, dict)
        if kind in ("int", "float"):
            right = _is_count(value) if kind == "int" else _finite(value) and value >= 0
        if not right:
            raise ValueError(f"{name}: {shown(value)}")
    progress = Progress(**record)
    if progress.rewrites and not _counts_of_rewrites(progress.rewrites):
        raise ValueError("rewrites: no counts")
    numbers = {
        "scaler": progress.scaler,
        **{f"losses: {name}": each for name, each in progress.losses.items()},
        **{f"measured: {step}": each for step, each in progress.measured.items()},
    }
    for name, each in numbers.items():
        if not (isinstance(each, dict) and all(map(_finite, each.values()))):
            raise ValueError(f"{name}: no numbers")
    if wrong := {step for step in progress.measured if not step.isdecimal()}:
        raise ValueError(f"measured: {min(wrong)}")
    return progress


def _counts_of_rewrites(record: Mapping[str, Any]) -> bool:
    """Whether a record looks like one of `PlanCounts.to_json`."""
    rewrites = record.get("rewrites")
    if not (_is_count(record.get("samples")) and isinstance(rewrites, dict)):
        return False
    return all(
        isinstance(each, dict)
        and isinstance(each.get("refused"), dict)
        and all(map(_is_count, (each.get("made"), each.get("samples"), *each["refused"].values())))
        for each in rewrites.values()
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _finite(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _require_tensors(
    tensors: Mapping[str, torch.Tensor], model: nn.Module, averages: AveragedWeights | None
) -> None:
    """Raise ValueError unless these are the tensors of such a model and its optimiser."""
    learnt = dict(model.named_parameters())
    expected = {f"model/{name}": value for name, value in model.state_dict().items()}
    for name, value in averages.tensors.items() if averages else ():
        expected[f"{_AVERAGE}{name}"] = value
    for name, value in expected.items():
        found = tensors.get(name)
        if found is None or (found.shape, found.dtype) != (value.shape, value.dtype):
            raise ValueError(f"{name}: missing, or of another shape or type")
        if name.removeprefix("model/") in learnt and not found.isfinite().all():
            raise ValueError(f"{name}: not finite")
    for number, parameter in enumerate(ordered(model.named_parameters())):
        slots = {slot: f"optimizer/{number}/{slot}" for slot in _SLOTS}
        expected |= dict.fromkeys(slots.values(), parameter)
        shapes = {slot: tensors[name].shape for slot, name in slots.items() if name in tensors}
        if shapes and shapes != dict.fromkeys(_SLOTS, parameter.shape) | {"step": torch.Size()}:
            raise ValueError(f"optimizer/{number}: not the moments of such a parameter")
    unknown = tensors.keys() - expected.keys() - {_RANDOM, _RANDOM_GPU}
    if unknown:
        raise ValueError(f"{min(unknown)}: no such tensor")
    try:
        torch.Generator().set_state(tensors[_RANDOM])
    except (KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{_RANDOM}: {error}") from error


def _random_states(model: nn.Module) -> dict[str, torch.Tensor]:
    """Random states of the CPU and, for a model on a GPU, of that one, which draws its dropout."""
    states = {_RANDOM: torch.get_rng_state()}
    device = next(model.parameters()).device
    if device.type == "cuda":
        states[_RANDOM_GPU] = torch.cuda.get_rng_state(device)
    return states


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _states(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob(f"step-*/{_PROGRESS}") if path.is_file()]


def _unshared(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors refuses tensors that share storage; give every repeated one its own."""
    first = {tensor.data_ptr(): name for name, tensor in reversed(tensors.items())}
    return {
        name: tensor if first[tensor.data_ptr()] == name else tensor.clone()
        for name, tensor in tensors.items()
    }
