"""Runs over a corpus: finished shards are skipped, bad ones are named."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from compoclip.corpora.job import CorpusJob, Counts, add_counts, new_counts
from compoclip.corpora.shard import (
    MANIFESTS,
    SETTINGS,
    ShardResult,
    ShardTask,
    finished,
    make_shard,
    opened_shard,
)
from compoclip.errors import CompoclipError, UsageError, optional
from compoclip.files import only_writer, read_json_object, write_json
from compoclip.plugins import fence
from compoclip.recordfile import require_same_settings
from compoclip.workers import RETRIES, WorkersDiedError, mapper

# --- Engines: this process, several processes, or a Ray cluster. ---

T = TypeVar("T")
R = TypeVar("R")
Engine = Literal["local", "ray"]
_AHEAD = 2  # tasks handed out per slot of the cluster
_OBJECT_STORE = 80 << 20  # bytes; tasks and results are small, shards are read by the workers


def run(
    work: Callable[[T], R], tasks: Sequence[T], workers: int = 1, engine: Engine = "local"
) -> Generator[R, None, None]:
    """Yield the results of all tasks as they are finished; closing it ends running tasks.

    work: a function at the top level of a module; it is repeated if a worker dies. engine: "local"
    uses processes of this machine; "ray" uses the Ray cluster at RAY_ADDRESS, or starts one of
    `workers` processes. Raises CompoclipError when workers die repeatedly or Ray is not installed.
    """
    try:
        if engine == "ray":
            yield from _on_ray(work, tasks, workers)
            return
        with mapper(workers, in_order=False, ahead=1) as apply:
            yield from apply(work, tasks)
    except WorkersDiedError:
        raise CompoclipError(
            f"workers died {RETRIES + 1} times over the same work (out of memory?); use fewer "
            "processes or smaller shards; what is finished stays"
        ) from None


def _on_ray(work: Callable[[T], R], tasks: Sequence[T], workers: int) -> Generator[R, None, None]:
    """Run tasks on the cluster of RAY_ADDRESS, or on a small one that is started here."""
    ray: Any = optional("ray", "ray", "--engine ray")
    started = not ray.is_initialized()
    if started:
        address = os.environ.get("RAY_ADDRESS")
        small: dict[str, Any] = {"address": "local", "num_cpus": workers, "num_gpus": 0}
        small |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        if not address:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **({} if address else small))
        except Exception as error:  # Ray raises errors of every kind here, bare ones too
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            failure = f"no Ray cluster at {address}" if address else "Ray cannot be started"
            raise CompoclipError(
                f"{failure} ({reason}); check it, or take --engine local"
            ) from None

    def fenced(task: T) -> R:
        with fence():
            return work(task)

    try:
        remote = ray.remote(fenced).options(num_cpus=1, max_retries=RETRIES)
        slots = max(1, int(ray.cluster_resources().get("CPU", 1)))
        todo = iter(tasks)
        running = [remote.remote(task) for task in islice(todo, _AHEAD * slots)]
        while running:
            done, running = ray.wait(running)
            running += [remote.remote(task) for task in islice(todo, len(done))]
            yield from ray.get(done)
    except ray.exceptions.WorkerCrashedError:
        raise WorkersDiedError from None
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise CompoclipError(f"Ray failed ({reason}); see the logs of the cluster") from None
    finally:
        if started:
            ray.shutdown()


# --- A whole corpus: every shard once, finished ones skipped, bad ones named. ---

Track = Callable[[Iterable[ShardResult]], Iterable[ShardResult]]


@dataclass
class CorpusOutcome:
    """The outcome of a run over a corpus, in order of the shards' names.

    made, skipped: counts of the shards written now and before. bad: errors of the other shards.
    total: the counts of all written shards.
    """

    written: dict[str, Counts] = field(default_factory=dict)
    skipped: dict[str, Counts] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    total: Counts = field(default_factory=new_counts)


def process(
    shards: Sequence[Path],
    out: Path,
    job: CorpusJob,
    *,
    column: str | None = None,
    workers: int = 1,
    engine: Engine = "local",
    track: Track = iter,
) -> CorpusOutcome:
    """Write every shard, with the job's columns, into the folder `out`.

    The bytes of a shard depend on the shard, its name, the job and the column, not on workers or
    engine. Shards that an earlier run of the same job finished are not made again.

    Args:
        shards: The files.
        out: The folder.
        job: The job.
        column: Caption columns joined by commas, in tar shards the key in .json members; guessed
            by default.
        workers: Number of processes.
        engine: Runs the workers: processes of this machine, or Ray.
        track: Wraps the stream of results, for progress.

    Raises:
        UsageError: When `column` does not exist, or `out` was written with other settings.
        CompoclipError: When `out` cannot be written.
    """
    if any(out.absolute() == shard.absolute().parent for shard in shards):
        raise UsageError(f"{out}: holds the shards themselves; choose another -o")
    for shard in shards:  # check the column in the first readable one, before hours of work
        try:
            opened_shard(shard, column, (), new_counts())
            break
        except UsageError:
            raise
        except CompoclipError:
            continue  # reported when it is made
    with only_writer(out, folder=True):
        settings, path = {**job.settings(), "column": column}, out / MANIFESTS / SETTINGS
        if path.is_file():
            recorded = read_json_object(path, damaged="choose another -o or remove the folder")
            require_same_settings(out, recorded, settings)
        else:
            write_json(path, settings)
        outcome = CorpusOutcome()
        tasks = []
        for shard in shards:
            task = ShardTask(shard, out, job, column)
            try:
                counts = finished(task)
            except CompoclipError as error:
                outcome.bad[shard.name] = str(error)
                continue
            if counts is None:
                tasks.append(task)
            else:
                outcome.skipped[shard.name] = counts
        with closing(run(make_shard, tasks, min(workers, max(1, len(tasks))), engine)) as results:
            for result in track(results):
                if result.stop:
                    raise CompoclipError(result.error)
                if result.counts is None:
                    outcome.bad[result.name] = result.error
                else:
                    outcome.written[result.name] = result.counts
        outcome.written = dict(sorted(outcome.written.items()))
        outcome.bad = dict(sorted(outcome.bad.items()))
        for counts in (*outcome.written.values(), *outcome.skipped.values()):
            add_counts(outcome.total, counts)
        return outcome
