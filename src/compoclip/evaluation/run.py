"""Evaluate one model on some benchmarks: encode once, score, summarise, write, resume."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

from compoclip.benchmarks.audit import Audit, Faulty
from compoclip.benchmarks.case import Aggregate, Benchmark, Content, image_key, present
from compoclip.benchmarks.registry import benchmark_names, how_to_get
from compoclip.console import counted, note
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encode import (
    EncodeOptions,
    distinct_images,
    distinct_texts,
    encode_contents,
)
from compoclip.evaluation.encoder import (
    Encoder,
    ModelEncoder,
    Score,
    described,
    require_pairs,
    with_matches,
)
from compoclip.evaluation.forms import form_of, score
from compoclip.evaluation.forms.cases import (
    Sizes,
    group_sizes,
    groups_by_part,
    with_joint,
)
from compoclip.evaluation.items import POSITIVE_SCORE, EncodedFeatures, Items
from compoclip.evaluation.results import (
    Results,
    file_stem,
    load_results,
    save_results,
    score_named,
    split_score,
)
from compoclip.evaluation.statistics import RESAMPLES
from compoclip.evaluation.summary import summarise
from compoclip.files import fingerprint, sweep_abandoned
from compoclip.models.checkpoint import LoadedModel
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.settings import WatchSettings
from compoclip.training.watch import Watch, WatchedScore

_LISTED_MISSING = 20


@dataclass(frozen=True)
class Options(EncodeOptions):
    """How to encode and measure; of several ranks, rank 0 scores and writes.

    allow_partial: score what is there and mark it. resamples, seed: of the bootstrap. fresh: ignore
    results already there. audits: benchmark -> its audit, whose faulty items are left out. score:
    cosines of features ("itc"), or scores of pairs by a matching head ("itm").
    """

    allow_partial: bool = False
    resamples: int = RESAMPLES
    seed: int = 0
    fresh: bool = False
    audits: Mapping[str, Audit] = field(default_factory=dict)
    score: Score = "itc"


@dataclass(frozen=True)
class _Job:
    benchmark: Benchmark
    content: Content
    expected: Mapping[str, int]
    missing: tuple[str, ...]


def evaluate(
    name: str,
    encoder: Encoder,
    benchmarks: Sequence[Benchmark],
    out: Path,
    options: Options | None = None,
) -> list[Results]:
    """Measure a model on all benchmarks; results are written below `<out>/<name>/`.

    All distinct images and texts of all benchmarks are encoded once, before any scoring. Results
    that are already there for the same model, data and protocol are not computed again.

    Args:
        name: of the model, in results.
        encoder: the model.
        benchmarks: what to measure, each once.
        out: folder of the results of all models.
        options: how; by default as the command line does.

    Returns:
        One result a benchmark, in their order. Of several ranks all but rank 0 return nothing.

    Raises:
        UsageError: two benchmarks have one name, or a matching head is asked for what it cannot
            score.
        CompoclipError: images are missing without `allow_partial`, more than `max_bad` are damaged,
            or something cannot be read or written.
    """
    options = options or Options()
    names = [each.name for each in benchmarks]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is asked for twice; name each benchmark once")
    jobs = [_job(each, options.allow_partial) for each in benchmarks]
    folder = out / file_stem(name)
    ranks = options.ranks
    done = (
        {}
        if options.fresh or not ranks.first
        else {
            job.benchmark.name: found
            for job in jobs
            if (found := _already(job, encoder, folder, options)) is not None
        }
    )
    known = ranks.exchange(list(done))[0]
    todo = [job for job in jobs if job.benchmark.name not in known]
    if todo:
        start = time.monotonic()
        if options.score == "itm":
            require_pairs([job.benchmark for job in todo])
        contents = [job.content for job in todo]
        features = encode_contents(encoder, contents, options)
        encoding = (time.monotonic() - start) / len(todo)
        with ranks.agreed():
            if options.score == "itm" and ranks.first:
                size = options.amounts(encoder.device).texts
                features = with_matches(encoder, contents, features, size)
            for job in todo if ranks.first else ():
                result = _measure(name, encoder, job, features, folder, options, encoding)
                done[job.benchmark.name] = result
    return [done[each] for each in names] if ranks.first else []


def require_data(benchmarks: Sequence[Benchmark], allow_partial: bool) -> None:
    """Refuse what `evaluate` would refuse for lack of data; needs no model.

    Args:
        benchmarks: what is to be measured.
        allow_partial: whether a part of a benchmark will do.

    Raises:
        CompoclipError: images or annotations are missing, or nothing is left to score.
    """
    for benchmark in benchmarks:
        _job(benchmark, allow_partial)


def watch_model(
    model: LoadedModel,
    benchmarks: Sequence[Benchmark],
    settings: WatchSettings,
    out: Path,
    ranks: Ranks = SINGLE,
) -> Watch:
    """Make what measures a model while it trains, as `evaluate` would measure its checkpoint.

    Args:
        model: what trains; measured in full float32, adapters as they are.
        benchmarks: what to measure on.
        settings: when to measure and what follows from it.
        out: the run folder; results go to OUT/eval/step-N.
        ranks: the processes that train together; they share the encoding.

    Returns:
        It, for `training.run.run_training`.

    Raises:
        UsageError: When `keep_best` names a score that no benchmark has.
    """
    options = Options(allow_partial=settings.allow_partial, ranks=ranks)
    if settings.keep_best:
        jobs = [_job(each, settings.allow_partial) for each in benchmarks]
        known = {
            job.benchmark.name: [*_rules(job)[0], POSITIVE_SCORE, *_own_parts(job)] for job in jobs
        }
        split_score(known, settings.keep_best)

    def measure(step: int) -> dict[str, WatchedScore]:
        encoder = ModelEncoder(model)
        results = evaluate(f"step-{step:08d}", encoder, benchmarks, out / "eval", options)
        with ranks.agreed():
            scores = {each.benchmark: each.headline_score for each in results}
            if ranks.first and (name := settings.keep_best):
                scores[name] = score_named(results, name)
        return {
            name: WatchedScore(score.value, score.low, score.high, score.chance)
            for name, score in scores.items()
        }

    about = {"on": {each.name: each.data_hash for each in benchmarks}}
    return Watch(settings, measure, out, about, ranks)


def _job(benchmark: Benchmark, allow_partial: bool) -> _Job:
    """The part of a benchmark that can be scored; incomplete data is refused."""
    content, missing = present(benchmark)
    here = content.counts()
    known = benchmark.content.counts()
    expected = {
        part: max(known.get(part, 0), benchmark.expected.get(part, 0))
        for part in {**known, **benchmark.expected}
    }
    total, used = sum(expected.values()), sum(here.values())
    if used < total and not allow_partial:
        reason = (
            f"{counted(len(missing), 'image')} missing, the first is {missing[0]}"
            if missing
            else "the annotation files are not complete"
        )
        raise CompoclipError(
            f"{benchmark.name}: only {used} of {total} items can be scored ({reason}); get the "
            f"rest, or score the part with --allow-partial{_source(benchmark)}"
        )
    if not used:
        where = f"; none of its images exists, e.g. {missing[0]}" if missing else ""
        raise CompoclipError(f"{benchmark.name}: no items to score{where}{_source(benchmark)}")
    return _Job(benchmark, content, expected, missing)


def _source(benchmark: Benchmark) -> str:
    """Where the official files come from; "" for other items."""
    name = benchmark.known_as or benchmark.name
    if name.partition(":")[0] not in benchmark_names():  # an edition's, a user's
        return ""
    return f". {how_to_get(name, Path('ROOT'))}"


def _already(job: _Job, encoder: Encoder, folder: Path, options: Options) -> Results | None:
    """A result on disk that a new run would only repeat."""
    path = folder / f"{file_stem(job.benchmark.name)}.json"
    sweep_abandoned(folder.absolute())
    if not path.is_file():
        return None
    try:
        (found,) = load_results(path)
    except CompoclipError as error:
        note(f"measuring again: {error}")
        return None
    same = (
        found.benchmark == job.benchmark.name
        and found.identity == _plain(encoder)
        and found.data_hash == job.benchmark.data_hash
        and found.images == _images_state(job.content)
        and found.protocol == job.benchmark.protocol
        and found.missing_count == len(job.missing)
        and found.rules == _rules_json(job)
        and found.known_as == job.benchmark.known_as
        and (found.resamples, found.seed) == (options.resamples, options.seed)
        and found.score == options.score
        and found.left_out == _left_out(job, options)
        and Path(found.items).is_file()
    )
    if same:
        note(f"{job.benchmark.name}: already measured, {path}")
        return found
    note(f"{job.benchmark.name}: {path} is of other weights, data or draws and is replaced")
    return None


def _images_state(content: Content) -> str:
    """A hash of the name, size and modification time of the files that images lie in."""
    files = dict.fromkeys(ref.path for ref in content.images)
    stamps = "\n".join(f"{file.name} {fingerprint(file)}" for file in files)
    return hashlib.blake2b(stamps.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _rules_json(job: _Job) -> dict[str, object]:
    return {name: rule.to_json() for name, rule in _rules(job)[0].items()}


def _plain(encoder: Encoder) -> dict[str, object]:
    """The identity as it looks after a trip through JSON."""
    plain: dict[str, object] = json.loads(json.dumps(described(encoder)))
    return plain


def _measure(
    name: str,
    encoder: Encoder,
    job: _Job,
    features: EncodedFeatures,
    folder: Path,
    options: Options,
    encoding: float,
) -> Results:
    start = time.monotonic()
    benchmark = job.benchmark
    bad = {ref for ref in distinct_images([job.content]) if ref in features.bad}
    content = job.content.without(bad.__contains__) if bad else job.content
    here = content.counts()
    if not sum(here.values()):
        raise CompoclipError(
            f"{benchmark.name}: no items left, all images are damaged; replace them"
        )
    items = score(benchmark, features, content)
    _unique(benchmark, items)
    scored = len(items)
    if (audit := options.audits.get(benchmark.name)) is not None:
        items = _without(items, audit.faulty, benchmark)
    rules, headline = _rules(job)
    summary = summarise(
        items, rules, _scored(job), options.resamples, options.seed, listed=benchmark.content.listed
    )
    if headline not in summary.aggregates:
        headline = next(iter(summary.aggregates))
    ties = {"": form_of(benchmark.content).ties, **benchmark.ties}
    missing = (*job.missing, *sorted(image_key(ref) for ref in bad))
    results = Results(
        model=name,
        benchmark=benchmark.name,
        protocol=benchmark.protocol,
        identity=dict(_plain(encoder)),
        data_hash=benchmark.data_hash,
        tie_policy={part: str(policy) for part, policy in ties.items()},
        scores=summary.scores,
        aggregates=summary.aggregates,
        headline=headline,
        skills=dict(benchmark.skills),
        items=f"{file_stem(benchmark.name)}.parquet",
        rules=_rules_json(job),
        left_out=_left_out(job, options),
        missing=missing[:_LISTED_MISSING],
        missing_count=len(missing),
        partial=sum(here.values()) < sum(job.expected.values()) or len(items) < scored,
        truncated_texts=sum(t in features.truncated for t in distinct_texts([content])),
        versions=_versions(),
        seconds=round(encoding + time.monotonic() - start, 3),
        known_as=benchmark.known_as,
        resamples=options.resamples,
        seed=options.seed,
        score=options.score,
        images=_images_state(job.content),
    )
    return save_results(results, items.to_arrow(), folder)


def _without(items: Items, faulty: Faulty, benchmark: Benchmark) -> Items:
    """Return the items without the faulty ones, and without joint outcomes of broken groups."""
    named = zip(items.subtasks, items.ids)
    kept = [row for row, name in enumerate(named) if name not in faulty]
    if not kept:
        raise CompoclipError(
            f"{benchmark.name}: every item is faulty; leave --exclude-faulty out or mend the data"
        )
    return with_joint(items.take(np.array(kept)), benchmark.joint, _sizes(benchmark))


def _left_out(job: _Job, options: Options) -> dict[str, int]:
    """Return reason -> items left out, by the reader or as faulty."""
    audit = options.audits.get(job.benchmark.name)
    faults = audit.faults if audit is not None else {}
    return {**job.benchmark.left_out, **{f"faulty item ({kind})": n for kind, n in faults.items()}}


def _sizes(benchmark: Benchmark) -> Sizes:
    """Sizes of the groups of the joint metrics, images there or not."""
    return group_sizes(benchmark.content.cases, benchmark.joint)


def _scored(job: _Job) -> dict[str, int]:
    """Items of the full benchmark by sub-task with a score, and groups by "sub-task/metric"."""
    own = {part: job.expected[part] for part in _own_parts(job)}
    return {**own, **groups_by_part(_sizes(job.benchmark))}


def _own_parts(job: _Job) -> list[str]:
    """The sub-tasks with a score."""
    tuning = set(job.benchmark.tuned_on.values())
    return [part for part in job.expected if part not in tuning]


def _unique(benchmark: Benchmark, items: Items) -> None:
    """Item names are what comparisons join on."""
    seen: set[tuple[str, str]] = set()
    for key in zip(items.subtasks, items.ids):
        if key in seen:
            raise CompoclipError(
                f"{benchmark.name}: two items of sub-task '{key[0]}' are called '{key[1]}'; "
                "correct the annotation file"
            )
        seen.add(key)


def _rules(job: _Job) -> tuple[dict[str, Aggregate], str]:
    """The benchmark's aggregates and plain ones where it has none, with the headline."""
    benchmark = job.benchmark
    default, headline = form_of(job.content).rules(job.content, _own_parts(job))
    rules = {**default, **benchmark.aggregates}
    return rules, benchmark.headline if benchmark.headline in rules else headline


def _versions() -> dict[str, str]:
    packages = ("compoclip", "torch", "open_clip_torch", "numpy", "pillow")
    return {"python": platform.python_version(), **{p: version(p) for p in packages}}
