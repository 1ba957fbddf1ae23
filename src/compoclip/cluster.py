"""Where tasks are carried out: in this process, in several of this machine, or on a Ray cluster."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Generator, Iterable
from itertools import chain, islice
from typing import Any, NamedTuple, Self, TypeVar

from compoclip.config import Engine
from compoclip.console import counted, note
from compoclip.errors import CompoclipError, optional
from compoclip.plugins import fence
from compoclip.workers import RETRIES, Workers, WorkersDiedError

T = TypeVar("T")
R = TypeVar("R")
_AHEAD = 2  # tasks handed out per slot of the cluster
_OBJECT_STORE = 80 << 20  # bytes; tasks and results are small, data is read by the workers


class Needs(NamedTuple):
    """Cores and GPUs that Ray reserves for each task."""

    cores: int = 1
    gpus: int = 0


_ONE_CORE = Needs()


def require_engine(engine: Engine) -> None:
    """Raise CompoclipError for "ray" where Ray is not installed, before work begins."""
    if engine == "ray":
        optional("ray", "ray", "--engine ray")


def run(
    work: Callable[[T], R],
    tasks: Iterable[T],
    workers: int = 1,
    engine: Engine = "local",
    *,
    in_order: bool = False,
    needs: Needs = _ONE_CORE,
) -> Generator[R, None, None]:
    """Yield the results of all tasks as they are finished; closing it ends running tasks.

    Args:
        work: A function at the top level of a module. It is repeated if a worker dies.
        tasks: Its arguments.
        workers: Number of processes.
        engine: "local" uses processes of this machine. "ray" uses the Ray cluster at RAY_ADDRESS,
            or starts one of `workers` processes.
        in_order: Yield the results in the order of the tasks.
        needs: What Ray reserves for each task.

    Raises:
        CompoclipError: When workers die repeatedly, Ray is not installed, or the work raises it.
    """
    if engine == "local" and workers < 2:
        yield from map(work, tasks)
        return
    stream = iter(tasks)
    first = list(islice(stream, 1))
    if not first:  # no cluster is started for nothing
        return
    pool = RayWorkers(workers, needs) if engine == "ray" else Workers(workers, ahead=1)
    try:
        with pool:
            yield from (pool.map if in_order else pool.as_done)(work, chain(first, stream))
    except WorkersDiedError:
        raise CompoclipError(
            f"workers died {RETRIES + 1} times over the same work (out of memory?); use fewer "
            "processes or smaller shards; what is finished stays"
        ) from None


class RayWorkers(Workers):
    """Workers of the Ray cluster at RAY_ADDRESS, or of a small one that is started here.

    Ray itself repeats the work of a worker that dies. A cluster that the program has joined before
    stays joined.
    """

    def __init__(self, count: int, needs: Needs) -> None:
        """count: Workers of the small cluster. needs: what is reserved for each task."""
        super().__init__(count, ahead=_AHEAD)
        self._needs = needs
        self._ray = optional("ray", "ray", "--engine ray")
        self._started = False

    def __enter__(self) -> Self:
        ray = self._ray
        if not ray.is_initialized():
            self._start()
        self._count = self._slots()
        cores, gpus = self._needs
        reserved = {"num_cpus": cores, "num_gpus": gpus, "max_retries": RETRIES}
        self._remote = ray.remote(_carry_out).options(**reserved)
        return self

    def __exit__(self, *error: object) -> None:
        if self._started:
            self._ray.shutdown()

    def _start(self) -> None:
        """Join the cluster of RAY_ADDRESS, or start one here."""
        address = os.environ.get("RAY_ADDRESS")
        small: dict[str, Any] = {"address": "local", "num_cpus": self._count * self._needs.cores}
        small |= {"num_gpus": self._count * self._needs.gpus}
        small |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        if not address:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray.init(log_to_driver=False, logging_level="ERROR", **({} if address else small))
        except Exception as error:  # Ray raises errors of every kind here, bare ones too
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            failure = f"no Ray cluster at {address}" if address else "Ray cannot be started"
            raise CompoclipError(
                f"{failure} ({reason}); check it, or take --engine local"
            ) from None
        self._started = True

    def _slots(self) -> int:
        """Return how many tasks the machines of the cluster can carry out at once, at least one."""
        cores, gpus = self._needs
        needed_of = {"CPU": cores, "GPU": gpus}
        slots = 0
        for machine in self._ray.nodes():
            there = machine["Resources"] if machine["Alive"] else {}
            fitting = [there.get(name, 0) // need for name, need in needed_of.items() if need]
            slots += int(min(fitting))
        if not slots:
            needed = counted(cores, "core") + (f" and {counted(gpus, 'GPU')}" if gpus else "")
            note(f"waiting for a machine of the Ray cluster with {needed}; none has as many now")
        return max(1, slots)

    def _submit(self, work: Callable[..., R], arguments: tuple[Any, ...]) -> Any:
        return self._remote.remote(os.getcwd(), work, *arguments).future()

    def _results(
        self, work: Callable[..., R], tasks: Iterable[tuple[Any, ...]], in_order: bool
    ) -> Generator[R, None, None]:
        errors = self._ray.exceptions
        try:
            yield from super()._results(work, tasks, in_order)
        except errors.WorkerCrashedError:
            raise WorkersDiedError from None
        except errors.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, CompoclipError):
                raise cause from None
            reason = str(error).strip().splitlines()[-1]
            raise CompoclipError(f"Ray failed ({reason}); see the logs of the cluster") from None


def _carry_out(folder: str, work: Callable[..., R], *arguments: Any) -> R:
    """Do a task in a worker of Ray, in the folder of the command: its paths may be relative."""
    with fence():
        try:
            os.chdir(folder)
        except OSError as error:
            raise CompoclipError(
                f"{folder}: no such folder on {platform.node()}; every machine of the cluster "
                "needs the same paths"
            ) from error
        return work(*arguments)
