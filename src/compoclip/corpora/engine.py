"""Where shards are worked on: in this process, in several, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeVar

from compoclip.errors import CompoclipError
from compoclip.workers import RETRIES, Workers, WorkersDiedError

T = TypeVar("T")
R = TypeVar("R")
Engine = Literal["local", "ray"]
_AHEAD = 2  # tasks handed out per slot of the cluster
_OBJECT_STORE = 80 << 20  # bytes; tasks and results are small, shards are read by the workers


def run(
    work: Callable[[T], R], tasks: Sequence[T], workers: int = 1, engine: Engine = "local"
) -> Generator[R, None, None]:
    """The results of all tasks, as they are finished; closing it ends what is under way.

    work: a function at the top level of a module, which may be called again for a task whose
    worker died. engine: "local" are processes of this machine; "ray" are tasks on the Ray cluster
    that RAY_ADDRESS names, or else on one of `workers` processes that is started for this call.
    Raises CompoclipError when workers die again and again, or Ray is not installed.
    """
    if engine == "ray":
        yield from _on_ray(work, tasks, workers)
    elif workers <= 1:
        yield from map(work, tasks)
    else:
        yield from _in_processes(work, tasks, workers)


def _in_processes(
    work: Callable[[T], R], tasks: Sequence[T], workers: int
) -> Generator[R, None, None]:
    try:
        with Workers(workers, ahead=1, retries=RETRIES) as pool:
            yield from pool.as_done(work, tasks)
    except WorkersDiedError:
        raise _dying() from None


def _on_ray(work: Callable[[T], R], tasks: Sequence[T], workers: int) -> Generator[R, None, None]:
    ray = _ray()
    own = not ray.is_initialized()
    if own:
        _start(ray, workers)
    try:
        remote: Any = ray.remote(work).options(num_cpus=1, max_retries=RETRIES)
        slots = max(1, int(ray.cluster_resources().get("CPU", 1)))
        todo = iter(tasks)
        running: list[Any] = []
        while True:
            for task in todo:
                running.append(remote.remote(task))
                if len(running) >= _AHEAD * slots:
                    break
            if not running:
                return
            done, running = ray.wait(running)
            yield from ray.get(done)
    except ray.exceptions.WorkerCrashedError:
        raise _dying() from None
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise CompoclipError(f"Ray failed ({reason}); see the logs of the cluster") from None
    finally:
        if own:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise CompoclipError(
            "--engine ray needs Ray, which is not installed; pip install 'compoclip[ray]'"
        ) from None
    return ray


def _start(ray: Any, workers: int) -> None:
    """Join the cluster of RAY_ADDRESS, or start a small one here."""
    small: dict[str, Any] = {
        "address": "local",
        "num_cpus": workers,
        "num_gpus": 0,
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE,
    }
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **({} if address else small))
    except Exception as error:  # Ray raises errors of every kind here, bare ones too
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = f"no Ray cluster at {address}" if address else "Ray cannot be started"
        raise CompoclipError(f"{where} ({reason}); check it, or take --engine local") from None


def _dying() -> CompoclipError:
    return CompoclipError(
        f"workers died {RETRIES + 1} times over the same shards (out of memory?); use fewer "
        "--workers or smaller shards; finished shards stay"
    )
