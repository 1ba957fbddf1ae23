"""The ranks of a run under `torchrun`: the process group, its collectives, and how it fails.

Without torchrun there is one process, rank 0 of 1, and nothing here imports torch.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from compoclip.errors import CompoclipError, RunInterruptedError, UsageError

if TYPE_CHECKING:
    import torch

# A rank that ends closes its connections, which the others notice at once. A long wait means that
# rank 0 parses captions, not that a rank is lost.
TIMEOUT = timedelta(days=1)
_SECONDS_TO_REPORT = 5
# A script may train and then evaluate: each process group has keys of its own.
_GROUPS = itertools.count()


class PeerLostError(CompoclipError):
    """Another rank has ended, so that nothing can be exchanged with it."""


@dataclass(frozen=True)
class Ranks:
    """This process, rank `rank` of `world`; the default is a single process."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Return whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    def exchange(self, record: Any) -> list[Any]:
        """All-gather a record that JSON keeps as it is, in the order of the ranks.

        All ranks must call it. Raises PeerLostError when a rank is gone.
        """
        if self.world == 1:
            return [record]
        import torch.distributed as dist

        records: list[Any] = [None for _ in range(self.world)]
        with peers():
            dist.all_gather_object(records, record)
        return records

    def all_gather(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """All-gather (n, ...) rows, in the order of the ranks. counts: n of each rank.

        Rows have the same shape on all ranks and lie on the CPU or on the rank's device. No
        gradient flows. Raises PeerLostError when a rank is gone.
        """
        if self.world == 1:
            return rows
        import torch

        longest = max(counts)
        whole = self._gathered(_padded(rows, longest))
        if min(counts) == longest:
            return whole
        parts = zip(torch.split(whole, longest), counts)
        return torch.cat([whole[:0], *(part[:count] for part, count in parts)])

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """All-gather (n, ...) tensors of equal shape to (world * n, ...)."""
        import torch.distributed as dist

        out = tensor.new_empty((self.world * len(tensor), *tensor.shape[1:]))
        if out.numel():
            with peers():
                dist.all_gather_into_tensor(out, tensor.contiguous())
        return out

    def reduce_scatter(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """The sum over all ranks of what they have for this one: the reverse of `all_gather`.

        rows: (sum of counts, ...), of equal shape on all ranks. Returns (counts[rank], ...).
        """
        if self.world == 1:
            return rows
        import torch
        import torch.distributed as dist

        longest = max(counts)
        if min(counts) < longest:
            rows = torch.cat([_padded(part, longest) for part in torch.split(rows, list(counts))])
        out = rows.new_empty((longest, *rows.shape[1:]))
        if longest:
            with peers():
                dist.reduce_scatter_tensor(out, rows.contiguous())
        return out[: counts[self.rank]]

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace `tensor`, of equal shape everywhere, by its sum over all ranks."""
        if self.world > 1:
            import torch.distributed as dist

            with peers():
                dist.all_reduce(tensor)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """If the block fails on one rank it fails on all, with the error of the lowest rank.

        All ranks must enter it, and leave it together. Without it the others would wait in the
        next collective for a rank that never comes.
        """
        local_error: CompoclipError | None = None
        try:
            yield
        except PeerLostError:
            raise
        except CompoclipError as error:
            if self.world == 1:
                raise
            local_error = error
        raise_first(self.exchange(failure(local_error)), local_error)

    @contextmanager
    def rank0_first(self) -> Iterator[None]:
        """The block runs on rank 0, then on the others at once; fails like `agreed`.

        For what is made once and then found on disk, e.g. parsed captions.
        """
        for turn in (True, False):
            with self.agreed():
                if self.first is turn:
                    yield


SINGLE = Ranks()


def launched() -> tuple[int, int]:
    """(rank, world size) as `torchrun` sets them; (0, 1) without it.

    Raises UsageError when the variables are there and wrong.
    """
    try:
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    except ValueError:
        rank, world = -1, 0
    if not 0 <= rank < world:
        raise UsageError(
            f"RANK={os.environ.get('RANK')} and WORLD_SIZE={os.environ.get('WORLD_SIZE')} do "
            "not name a process of a run; start the run with torchrun, or unset both"
        )
    return rank, world


@contextmanager
def silent() -> Iterator[None]:
    """Print nothing inside the block."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        yield


@contextmanager
def process_group(device: torch.device) -> Iterator[Ranks]:
    """Join the process group of `torchrun`, and leave it after the block; `SINGLE` without one.

    Tensors on the CPU go through gloo, those on a CUDA device through nccl. An error that leaves
    the block ends the whole run: every rank learns of it, and one, rank 0 if it still can, reports
    it. Raises CompoclipError when the group does not come about.
    """
    import torch

    rank, world = launched()
    if world == 1:  # with --device cuda:1 nothing is to be made on the first GPU
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield SINGLE
        return
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"torchrun needs --device cpu or cuda, not {device.type}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        store, rank, world = next(rendezvous("env://"))
        store = PrefixStore(f"compoclip/{next(_GROUPS)}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise CompoclipError(
            f"process {rank} of {world} cannot meet the others ({_line(error)}); start the run "
            "with torchrun"
        ) from error
    # Ranks that fail leave word for each other in the store. Rank 0 says why the run ends; another
    # one where rank 0 cannot.
    try:
        yield Ranks(rank, world)
    except (PeerLostError, dist.DistError) as error:
        lost = error if isinstance(error, CompoclipError) else _lost(error)
        with suppress(RuntimeError):
            keys = (f"failed/{other}" for other in range(world) if other != rank)
            failures = [json.loads(store.get(key)) for key in keys if store.check([key])]
            lost = _error(failures[0]) if failures else lost
            if rank == 0:
                store.set("failed/0", json.dumps(failure(lost)))
        raise lost from error
    except BaseException as error:
        with suppress(RuntimeError):
            store.set(f"failed/{rank}", json.dumps(failure(error)))
        dist.destroy_process_group()  # so that the others stop waiting
        if rank:
            try:
                store.wait(["failed/0"], timedelta(seconds=_SECONDS_TO_REPORT))
            except RuntimeError:
                print(f"compoclip: process {rank}: {_line(error)}", file=sys.__stderr__, flush=True)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


# --- The device of a process, as --device names it. ---


def require_device(text: str) -> None:
    """Raise UsageError for what names no device; whether it is here needs torch."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", text):
        raise UsageError(f"--device '{text}' is not one of cpu, cuda, cuda:N, mps, auto")


def device_named(text: str) -> torch.device:
    """Find the device that --device names.

    text: cpu, cuda, cuda:N, mps, or auto (a GPU when there is one). Under torchrun cuda is a GPU
    for each rank of a machine. Raise UsageError for another name or a device that is not here.
    """
    require_device(text)
    import torch

    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = text.partition(":")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UsageError("--device mps: there is no Apple GPU here; use --device cpu")
    if kind != "cuda":
        return torch.device(text)
    if not torch.cuda.is_available():
        raise UsageError(f"--device {text}: no CUDA device is available here; use --device cpu")
    count = torch.cuda.device_count()
    if int(number or 0) >= count:
        raise UsageError(f"--device {text}: the CUDA devices here end at cuda:{count - 1}")
    rank, world = launched()
    if world == 1:
        return torch.device(text)
    if number:
        raise UsageError(
            f"--device {text}: under torchrun every process takes a GPU of its own; "
            "use --device cuda"
        )
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    if local_rank >= count:
        raise UsageError(
            f"more processes than the {count} CUDA devices here; start torchrun with "
            f"--nproc-per-node {count}"
        )
    return torch.device("cuda", local_rank)


def mark(device: torch.device) -> torch.cuda.Event | None:
    """Return an event that passes when a GPU has done what it was given so far; None for a CPU.

    `torch.cuda.Event().record()` would watch the current GPU: with --device cuda:1 another one.
    """
    if device.type != "cuda":
        return None
    import torch

    event: torch.cuda.Event = torch.cuda.current_stream(device).record_event()
    return event


# --- Errors told between ranks. ---


def failure(error: BaseException | None) -> list[Any] | None:
    """An error as a record to exchange: [message, exit code]; None for None."""
    return None if error is None else [_line(error), getattr(error, "exit_code", 1)]


def raise_first(
    failures: Sequence[list[Any] | None], local_error: CompoclipError | None = None
) -> None:
    """Raise the error of the lowest rank that has one, if any; `local_error`: this process's."""
    for rank_failure in failures:
        if rank_failure is not None:
            raise _error(rank_failure) from local_error


def _error(record: list[Any]) -> CompoclipError:
    message, code = record
    if code > 128:
        return RunInterruptedError(message, code - 128)
    return UsageError(message) if code == UsageError.exit_code else CompoclipError(message)


def _line(error: BaseException) -> str:
    if isinstance(error, CompoclipError):
        return str(error)
    first = next(iter(str(error).strip().splitlines()), "")  # torch puts a C++ trace below it
    return f"{type(error).__name__}: {first}"


def _lost(error: RuntimeError) -> CompoclipError:
    # A plain RuntimeError may also be that of a loss, in the backward pass of this process.
    unsure = ", or this one failed" if type(error) is RuntimeError else ""
    return PeerLostError(f"another process of the run has ended{unsure} ({_line(error)})")


def _padded(rows: torch.Tensor, length: int) -> torch.Tensor:
    if len(rows) == length:
        return rows
    padded = rows.new_zeros((length, *rows.shape[1:]))
    padded[: len(rows)] = rows
    return padded


@contextmanager
def peers() -> Iterator[None]:
    """Make errors of the exchange between processes PeerLostErrors, told by their types.

    Those of torch.distributed have types of their own, but gloo's closed connection is a plain
    RuntimeError; what fails on this process alone, such as memory, is a subclass of that.
    """
    import torch.distributed as dist

    try:
        yield
    except RuntimeError as error:
        if type(error) is not RuntimeError and not isinstance(error, dist.DistError):
            raise
        raise _lost(error) from error
