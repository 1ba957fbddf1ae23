"""Where shards are worked on: in this process, in several, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from typing import Any, Literal, TypeVar

from compoclip.errors import CompoclipError

T = TypeVar("T")
R = TypeVar("R")
Engine = Literal["local", "ray"]
#: Times that a task, or the pool without a task being finished, may die before it is given up.
RETRIES = 3
_AHEAD = 2  # tasks handed out per worker
_OBJECT_STORE = 80 << 20  # bytes; tasks and results are small, shards are read by the workers


def run(
    work: Callable[[T], R], tasks: Sequence[T], workers: int = 1, engine: Engine = "local"
) -> Iterator[R]:
    """The results of all tasks, as they are finished.

    work: a function at the top level of a module, which may be called again for a task whose
    worker died. engine: "local" are processes of this machine; "ray" are tasks on the Ray cluster
    that RAY_ADDRESS names, or else on one of `workers` processes that is started for this call.
    Raises CompoclipError when workers die again and again, or Ray is not installed.
    """
    if engine == "ray":
        return _on_ray(work, tasks, workers)
    if workers <= 1:
        return map(work, tasks)
    return _in_processes(work, list(tasks), workers)


def _in_processes(work: Callable[[T], R], tasks: list[T], workers: int) -> Iterator[R]:
    # Fresh interpreters: forking a process that holds threads can hang.
    context = multiprocessing.get_context("spawn")
    todo = list(reversed(tasks))
    deaths = 0
    while todo:
        pool = ProcessPoolExecutor(
            min(workers, len(todo)), mp_context=context, initializer=_end_with_parent
        )
        running: dict[Future[R], T] = {}
        try:
            while todo or running:
                while todo and len(running) < _AHEAD * workers:
                    running[pool.submit(work, todo[-1])] = todo[-1]
                    todo.pop()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    del running[future]
                    deaths = 0
                    yield result
        except BrokenProcessPool:
            deaths += 1
            if deaths > RETRIES:
                raise _dying() from None
            todo += running.values()
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Have this worker end when the process that started it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # a worker has one

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_ray(work: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[R]:
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
