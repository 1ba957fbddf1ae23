"""Runs jobs in several processes of one thread each, within a budget of time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from compoclip.console import counted, duration, note
from compoclip.errors import CompoclipError, RunInterruptedError
from compoclip.interrupts import signal_of
from compoclip.workers import Workers, WorkersDiedError, threads_each
from lab.job import Job, Outcome

_LAST = 16  # jobs that say how long the others take: with a seed that is trained they get longer


def run_all(
    jobs: Sequence[Job],
    run: Callable[[Job], Outcome],
    workers: int,
    budget: float,
) -> list[Job]:
    """Run the jobs in order, `workers` at a time; returns those left because of the budget.

    budget: seconds; a job is not started when, at the mean time of the last ones, it would end
    later. `run` must be importable by name. Raises what the first job that fails raises, after
    those under way have ended, CompoclipError when a process dies, and RunInterruptedError after
    Ctrl-C.
    """
    if not jobs:
        return []
    waiting, failed = list(jobs), list[Exception]()
    start, seconds = time.monotonic(), deque[float](maxlen=_LAST)

    def mean() -> float:
        return fmean(seconds) if seconds else 0.0

    def todo() -> Iterator[tuple[Callable[[Job], Outcome], Job]]:
        while waiting and not failed and time.monotonic() - start + mean() <= budget:
            yield run, waiting.pop(0)

    def say(made: Outcome, left: int) -> None:
        if made.speed:  # the base takes no time worth counting
            seconds.append(made.seconds)
        speed = f", {made.speed:.0f} images/s" if made.speed else ""
        to_go = f"to do, about {duration(mean() * left / workers)} left" if seconds else "left"
        note(
            f"[{len(jobs) - left} of {len(jobs)}] {made.name}: {made.seconds:.0f} s"
            f"{speed}; {counted(left, 'job')} {to_go}"
        )

    done = 0
    try:
        with (
            threads_each(1),
            Workers(workers, prepare=_one_thread, ahead=1, retries=0) as pool,
        ):
            for made in pool.as_done(_outcome, todo()):
                done += 1
                if isinstance(made, Outcome):
                    say(made, len(jobs) - done)
                else:
                    failed.append(made)
    except KeyboardInterrupt as error:
        raise RunInterruptedError(
            "interrupted; the same command goes on with what is left", signal_of(error)
        ) from None
    except WorkersDiedError:
        raise CompoclipError(
            "a process was ended from outside (out of memory?); the same command goes on"
        ) from None
    if failed:
        raise failed[0]
    return waiting


def _outcome(what: tuple[Callable[[Job], Outcome], Job]) -> Outcome | Exception:
    """The outcome of a job, or its error, which does not end the others."""
    run, job = what
    try:
        return run(job)
    except Exception as error:
        return error


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
