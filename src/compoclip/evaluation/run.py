"""Evaluate one model on some benchmarks: encode once, score, summarise, write, resume."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from compoclip.benchmarks.audit import Audit, Faulty
from compoclip.benchmarks.case import (
    Aggregate,
    Benchmark,
    Content,
    Form,
    Probe,
    image_key,
)
from compoclip.benchmarks.files import images_hash
from compoclip.benchmarks.registry import require_present
from compoclip.config import require_distinct
from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.evaluation.encode import EncodeOptions, encode_contents
from compoclip.evaluation.encoder import Encoder, ModelEncoder, described, encoder_of_probes
from compoclip.evaluation.forms import form_of, score
from compoclip.evaluation.forms.cases import groups_by_part, with_joint
from compoclip.evaluation.items import POSITIVE_SCORE, EncodedFeatures, Items
from compoclip.evaluation.pairs import PairScore, require_pairs, score_contents, score_of
from compoclip.evaluation.results import (
    Results,
    load_items,
    load_results,
    save_results,
    score_named,
    split_score,
)
from compoclip.evaluation.scores import COSINE
from compoclip.evaluation.statistics import BOOTSTRAP, Bootstrap
from compoclip.evaluation.summary import summarise
from compoclip.files import file_stem, file_stems, sweep_abandoned
from compoclip.models.checkpoint import LoadedModel
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.settings import WatchSettings
from compoclip.training.watch import Watch, WatchedScore

_LISTED_MISSING = 20
_version = cache(version)


@dataclass(frozen=True)
class Options(EncodeOptions):
    """Settings of encoding and measuring; of several ranks, rank 0 scores and writes.

    allow_partial: score the available items and mark results. bootstrap: of the bootstrap.
    fresh: ignore existing results. audits: benchmark -> its audit, whose faulty items are left out.
    score: a name of `pairs.score_of`; "" is the default, cosines of features if the model has them.
    dimensions: of the features, the first so many are used; 0 is all. judge: the model that is
    asked about what another one finds (`Form.JUDGED`).
    """

    allow_partial: bool = False
    resamples: int = BOOTSTRAP.resamples
    seed: int = BOOTSTRAP.seed
    fresh: bool = False
    audits: Mapping[str, Audit] = field(default_factory=dict)
    score: str = ""
    dimensions: int = 0
    judge: Encoder | None = None

    @property
    def bootstrap(self) -> Bootstrap:
        """Return the bootstrap of the intervals."""
        return Bootstrap(self.resamples, self.seed)


def _rules_of(benchmark: Benchmark, content: Content) -> tuple[dict[str, Aggregate], str]:
    """Return a benchmark's aggregates and plain ones where it has none, and the one to quote.

    content: what can be scored of the benchmark.
    """
    default, headline = form_of(content).rules(content, benchmark.scored)
    rules = {**default, **benchmark.aggregates}
    return rules, benchmark.headline if benchmark.headline in rules else headline


def _stamp(
    benchmark: Benchmark,
    content: Content,
    encoder: Encoder,
    options: Options,
    score: PairScore | None,
) -> dict[str, Any]:
    """Return the fields of results that tell whether a new run would only repeat them."""
    audit = options.audits.get(benchmark.name)
    faults = audit.faults if audit is not None else {}
    facts = described(encoder) | ({"score": dict(score.about)} if score and score.about else {})
    facts |= {"dimensions": options.dimensions} if options.dimensions else {}
    if options.judge is not None and Form.JUDGED in content.forms:
        facts |= {"judge": described(options.judge)}
    return {
        "benchmark": benchmark.name,
        "identity": json.loads(json.dumps(facts)),  # as JSON gives it back
        "data_hash": benchmark.data_hash,
        "images": images_hash(content.images),
        "protocol": benchmark.protocol,
        "rules": _rules_of(benchmark, content)[0],
        "known_as": benchmark.known_as,
        "assumed": benchmark.assumed,
        "resamples": options.resamples,
        "seed": options.seed,
        "score": score.name if score else COSINE,
        "left_out": {
            **benchmark.left_out,
            **{f"faulty item ({kind})": n for kind, n in faults.items()},
        },
    }


def evaluate(
    name: str,
    encoder: Encoder,
    benchmarks: Sequence[Benchmark],
    out: Path,
    options: Options | None = None,
) -> list[Results]:
    """Measure a model on all benchmarks; results are written below `<out>/<name>/`.

    All distinct images and texts of all benchmarks are encoded once, before any scoring. Existing
    results for the same model, data and protocol are reused.

    Args:
        name: of the model, in results.
        encoder: the model.
        benchmarks: the benchmarks, each once.
        out: folder of the results of all models.
        options: settings, by default the command line's.

    Returns:
        One result per benchmark, in order; [] on all ranks but rank 0.

    Raises:
        UsageError: two benchmarks share a name, or a model or benchmark has no such score.
        CompoclipError: images are missing without `allow_partial`, more than `max_bad` are damaged,
            or something cannot be read or written.
    """
    options = options or Options()
    names = [benchmark.name for benchmark in benchmarks]
    require_distinct("on", names)
    available = [(b, *require_present(b, options.allow_partial)) for b in benchmarks]
    stems, folder = file_stems(names), out / file_stem(name)
    ranks = options.ranks
    pair_score = score_of(options.score, encoder)
    if pair_score is not None and options.dimensions:
        raise UsageError(
            f"--dimensions cuts features, and --score {pair_score.name} has no features"
        )
    judge = options.judge
    judge_score = score_of("", judge) if judge is not None else None
    for benchmark, content, _ in available:
        if isinstance(content, Probe) and options.dimensions:
            raise UsageError(
                f"{benchmark.name}: --dimensions cuts features of images and texts, and probes "
                "have their own; leave it out"
            )
        if Form.JUDGED in content.forms and judge_score is None:
            raise UsageError(
                f"{benchmark.name}: a judge answers questions about what is found: --judge hf:ID"
            )
    done = {}
    for benchmark, content, missing in available if ranks.first and not options.fresh else ():
        path = folder / f"{stems[benchmark.name]}.json"
        sweep_abandoned(folder.absolute())
        if not path.is_file():
            continue
        try:
            (stored,) = load_results(path)
            load_items(stored)  # which checks that they belong to the results
        except CompoclipError as error:
            note(f"measuring again: {error}")
            continue
        stamp = _stamp(benchmark, content, encoder, options, pair_score)
        if all(
            getattr(stored, name) == value for name, value in stamp.items()
        ) and stored.missing_count == len(missing):
            note(f"{benchmark.name}: already measured, {path}")
            done[benchmark.name] = stored
        else:
            note(
                f"{benchmark.name}: {path} was made with other weights, data or draws, and is "
                "replaced"
            )
    reused = ranks.exchange(list(done))[0]
    todo = [entry for entry in available if entry[0].name not in reused]
    if todo:
        start = time.monotonic()
        contents, rate = [content for _, content, _ in todo], 0.0
        if pair_score is None:
            probes = [content for content in contents if isinstance(content, Probe)]
            others = [content for content in contents if not isinstance(content, Probe)]
            features = encode_contents(encoder, others, options)
            if judge is not None and judge_score is not None:
                alone = replace(options, ranks=SINGLE)  # rank 0, which has the features, asks
                ask = partial(score_contents, judge, judge_score, options=alone)
                features = replace(features, judge=lambda cases: ask([cases])[0])
            of_probes = features
            if probes:
                of_probes = encode_contents(encoder_of_probes(encoder), probes, options)
            if options.dimensions and ranks.first:
                features = features.leading(options.dimensions, name)
        else:
            require_pairs([benchmark for benchmark, _, _ in todo], pair_score.name)
            features, rate = score_contents(encoder, pair_score, contents, options)
            of_probes = features
        encoding = (time.monotonic() - start) / len(todo)
        with ranks.agreed():
            for benchmark, content, missing in todo if ranks.first else ():
                about = _stamp(benchmark, content, encoder, options, pair_score)
                about |= {"pairs_per_second": float(f"{rate:.3g}")}
                encoded = of_probes if isinstance(content, Probe) else features
                results, items = _measure(
                    name, benchmark, content, missing, encoded, options, encoding, about
                )
                done[benchmark.name] = save_results(results, items.to_arrow(), folder)
    return [done[key] for key in names] if ranks.first else []


def watch_model(
    model: LoadedModel,
    benchmarks: Sequence[Benchmark],
    settings: WatchSettings,
    out: Path,
    ranks: Ranks = SINGLE,
) -> Watch:
    """Return a `Watch` that measures a model in training, with its adapters and in full float32, as
    `evaluate` measures its checkpoint.

    Results go to OUT/eval/step-N; the ranks that train together share the encoding. Images are
    encoded once if the image tower is frozen. Raises UsageError when `keep_best` names a score that
    no benchmark has.
    """
    features = out / "eval" / ".features"
    if settings.keep_best:
        score_names = {}
        for benchmark in benchmarks:
            content, _ = require_present(benchmark, settings.allow_partial)
            rules, _ = _rules_of(benchmark, content)
            score_names[benchmark.name] = [*rules, POSITIVE_SCORE, *benchmark.scored]
        split_score(score_names, settings.keep_best)

    def measure(step: int) -> dict[str, WatchedScore]:
        cache = None if model.encoder.learns("image") else features
        options = Options(allow_partial=settings.allow_partial, ranks=ranks, cache=cache)
        name = f"step-{step:08d}"
        results = evaluate(name, ModelEncoder(model), benchmarks, out / "eval", options)
        with ranks.agreed():
            for texts in features.glob("*/texts") if ranks.first else ():
                shutil.rmtree(texts)
            scores = {result.benchmark: result.headline_score for result in results}
            if ranks.first and settings.keep_best:
                scores[settings.keep_best] = score_named(results, settings.keep_best)
        return {
            name: WatchedScore(score.value, score.low, score.high, score.chance)
            for name, score in scores.items()
        }

    about = {"on": {benchmark.name: benchmark.data_hash for benchmark in benchmarks}}
    images = {"images": {b.name: images_hash(b.content.images) for b in benchmarks}}
    return Watch(settings, measure, out, about, ranks, images)


def _measure(
    name: str,
    benchmark: Benchmark,
    content: Content,
    absent: Sequence[str],
    features: EncodedFeatures,
    options: Options,
    encoding: float,
    about: Mapping[str, Any],
) -> tuple[Results, Items]:
    """Score what can be scored of a benchmark, whose images `absent` are missing.

    encoding: the seconds that it took. about: what `_stamp` and the encoding say of the results.
    """
    start = time.monotonic()
    rules, headline = _rules_of(benchmark, content)
    bad = set(content.images) & features.bad.keys()
    content = content.without(bad.__contains__) if bad else content
    here = sum(content.counts().values())
    require(here, benchmark.name, "no items left, all images are damaged; replace them")
    items = score(benchmark, features, content)
    for (part, item), count in Counter(zip(items.subtasks, items.ids)).items():
        if count != 1:
            raise CompoclipError(
                f"{benchmark.name}: two items of sub-task '{part}' are called '{item}'; correct "
                "the annotation file"
            )
    scored = len(items)
    if (audit := options.audits.get(benchmark.name)) is not None:
        items = _without(items, audit.faulty, benchmark)
    totals = benchmark.totals
    scores, aggregates = summarise(
        items,
        rules,
        {part: totals[part] for part in benchmark.scored} | groups_by_part(benchmark),
        options.bootstrap,
        whole=benchmark.content,
    )
    ties = {"": form_of(benchmark.content).ties, **benchmark.ties}
    missing = (*absent, *sorted(image_key(ref) for ref in bad))
    packages = ("compoclip", "torch", "open_clip_torch", "numpy", "pillow")
    results = Results(
        model=name,
        tie_policy={part: str(policy) for part, policy in ties.items()},
        scores=scores,
        aggregates=aggregates,
        headline=next(rule for rule in (headline, *aggregates) if rule in aggregates),
        skills=dict(benchmark.skills),
        items=f"{file_stem(benchmark.name)}.parquet",
        missing=missing[:_LISTED_MISSING],
        missing_count=len(missing),
        partial=here < sum(totals.values()) or len(items) < scored,
        truncated_texts=len(features.truncated.intersection(content.texts)),
        versions={"python": platform.python_version(), **{p: _version(p) for p in packages}},
        seconds=round(encoding + time.monotonic() - start, 3),
        **about,
    )
    return results, items


def _without(items: Items, faulty: Faulty, benchmark: Benchmark) -> Items:
    """Return the items without the faulty ones, and without joint outcomes of broken groups."""
    named = zip(items.subtasks, items.ids)
    rows = [row for row, name in enumerate(named) if name not in faulty]
    if not rows:
        raise CompoclipError(
            f"{benchmark.name}: every item is faulty; leave --exclude-faulty out or fix the data"
        )
    return with_joint(items.take(np.array(rows)), benchmark)
