"""The result of one model on one benchmark, the only input of `compare` and `report`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compoclip.benchmarks.case import Aggregate
from compoclip.bounds import MAX_RESAMPLES
from compoclip.console import counted
from compoclip.errors import CompoclipError, UsageError, closest
from compoclip.evaluation.aggregate import RANKED
from compoclip.evaluation.forms import FORMS
from compoclip.evaluation.items import COLUMNS, MAIN, POLICIES, POSITIVE_SCORE, Items
from compoclip.evaluation.scores import COSINE
from compoclip.evaluation.statistics import Bootstrap
from compoclip.evaluation.written import REMEDY, SCHEMA, read_result, result_files
from compoclip.files import file_stamp, file_stem, only_writer, write_atomically, write_text
from compoclip.models.config import ModelIdentity
from compoclip.typed import Natural, NonNegative, Within, build

if TYPE_CHECKING:
    from compoclip.models.formats.hub import CardResult


@dataclass(frozen=True)
class Score:
    """One score with everything needed to judge it. Values lie in [0, 1].

    n: items used; expected: items of the full benchmark (n if unknown). low, high: 95 % interval;
    interval: "wilson" or "bootstrap"; "none", and both None, for a single photo. chance: expected
    score of guessing (`items.Outcomes`). photos: number of distinct photos; below
    `statistics.FEWEST` the value is not judged. ties: items whose outcome depends on equal scores;
    strict, fractional: value under those policies.
    """

    metric: str
    value: float
    n: int
    expected: int
    low: float | None
    high: float | None
    interval: str
    chance: float
    photos: int
    ties: int = 0
    strict: float | None = None
    fractional: float | None = None

    def items(self, separator: str = "") -> str:
        """Return "30", or "12 of 30" if items are missing; separator: of thousands."""
        here = f"{self.n:{separator}}"
        return here if self.n == self.expected else f"{here} of {self.expected:{separator}}"


@dataclass(frozen=True)
class Results:
    """The result file `<out>/<model>/<benchmark>.json`; outcomes per item are Parquet next to it.

    scores: sub-task -> metric -> Score, the sub-task's main metric first and "positive_score", the
    mean cosine of matching pairs, last. aggregates: rule name -> Score. rules: the rule of each
    aggregate. missing: the first 20 keys of absent or damaged images, and
    missing_count: their number. left_out: reason -> rows that became no items. partial: whether
    items of the full benchmark are missing. tie_policy: sub-task -> policy of `value`. items: name
    of the parquet file. known_as: the reader's name of the benchmark if `benchmark` is another
    (id=NAME), else "". bootstrap: of the bootstrap. score: "cosine" of features, or the name
    of a score of pairs (`evaluation.pairs`), with pairs_per_second, 0.0 if all were cached.
    images: hash of the names and stamps (`file_stamp`) of the images. assumed: what the reader
    of the benchmark took for granted.
    """

    model: str
    benchmark: str
    protocol: Natural
    identity: dict[str, Any]
    data_hash: str
    tie_policy: dict[str, str]
    scores: dict[str, dict[str, Score]]
    aggregates: dict[str, Score]
    headline: str
    skills: dict[str, str]
    items: str
    rules: dict[str, Aggregate] = field(default_factory=dict)
    left_out: dict[str, Natural] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    missing_count: Natural = 0
    partial: bool = False
    truncated_texts: Natural = 0
    versions: dict[str, str] = field(default_factory=dict)
    seconds: NonNegative = 0.0
    known_as: str = ""
    resamples: Annotated[int, Within(0, MAX_RESAMPLES)] = 0
    seed: Natural = 0
    score: str = COSINE
    pairs_per_second: NonNegative = 0.0
    images: str = ""
    assumed: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def reader_name(self) -> str:
        """Return the reader's name of the benchmark: "sugarcrepe", "sugarcrepe@world"."""
        return self.known_as or self.benchmark

    @property
    def bootstrap(self) -> Bootstrap:
        """Return the bootstrap of its intervals."""
        return Bootstrap(self.resamples, self.seed)

    @property
    def headline_score(self) -> Score:
        """Return the score to quote."""
        return self.aggregates[self.headline]

    def main(self, subtask: str) -> Score:
        """Return the sub-task's score in its main metric."""
        return next(iter(self.scores[subtask].values()))

    def stored(self, name: str, metric: str = "") -> Score | None:
        """Return a sub-task's score in a metric (`MAIN`: its main one), None if there is none.

        name: of the sub-task, or without a metric of a rule; "" is the headline.
        """
        name = name or self.headline
        if not metric:
            return self.aggregates.get(name)
        scores = self.scores.get(name, {})
        return next(iter(scores.values()), None) if metric == MAIN else scores.get(metric)


def by_model(results: Iterable[Results]) -> dict[str, list[Results]]:
    """Return the results of each model, in order of appearance."""
    by_name: dict[str, list[Results]] = {}
    for result in results:
        by_name.setdefault(result.model, []).append(result)
    return by_name


def by_benchmark(results: Iterable[Results]) -> dict[str, Results]:
    """Return one model's results by benchmark; raise CompoclipError for two of one benchmark."""
    named: dict[str, Results] = {}
    for result in results:
        if result.benchmark in named:
            raise CompoclipError(
                f"{result.model}: two results for {result.benchmark}: "
                f"{named[result.benchmark].items} and {result.items}; give the folder of one run, "
                "or evaluate under another name (NAME=MODEL)"
            )
        named[result.benchmark] = result
    return named


def score_named(results: Sequence[Results], name: str) -> Score:
    """Return the score of a name (`split_score`) in a model's results, one per benchmark."""
    named = by_benchmark(results)
    score_names = {benchmark: [*of.aggregates, *of.scores] for benchmark, of in named.items()}
    benchmark, score = split_score(score_names, name)
    return named[benchmark].stored(score) or named[benchmark].main(score)


def split_score(score_names: Mapping[str, Sequence[str]], name: str) -> tuple[str, str]:
    """Split the name of a score into benchmark and score; the score is "" for the headline.

    score_names: benchmark -> names of its means and sub-tasks. name: BENCHMARK, or BENCHMARK:NAME
    for another mean of it or for a sub-task in its main metric. Raises UsageError with the names.
    """
    if name in score_names:
        return name, ""
    for benchmark, scores in score_names.items():
        if name.startswith(f"{benchmark}:"):
            score = name.removeprefix(f"{benchmark}:")
            if score not in scores:
                hint = closest(score, scores)
                raise UsageError(f"{name}: {benchmark} has no '{score}'; {hint}")
            return benchmark, score
    hint = closest(name.partition(":")[0], score_names)
    raise UsageError(f"no score '{name}' was measured (BENCHMARK or BENCHMARK:NAME); {hint}")


# --- Results on disk: `<out>/<model>/<benchmark>.json`, with the items as parquet beside it. ---
#
# Both are checked when they are read, since people edit them and copy one without the other: what
# does not fit is one line that names the file.


def save_results(results: Results, items: pa.Table, folder: Path) -> Results:
    """Write one result and its items.

    The JSON file is written last and removed first: if it exists, both files belong together.
    Returns the results with `items` as a full path, as `load_results` gives them. Raises
    CompoclipError when a file cannot be written or replaced.
    """
    path = folder / f"{file_stem(results.benchmark)}.json"
    table = folder / results.items
    text = json.dumps(asdict(results), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    with only_writer(path, wait=True):  # another run may measure a model of the same name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CompoclipError(f"{path}: cannot be replaced ({error.strerror})") from error
        write_atomically(table, lambda place: pq.write_table(items, place, compression="zstd"))
        write_text(path, text)
    return replace(results, items=str(table))


def load_results(path: Path) -> list[Results]:
    """Read a result, or all results of a folder and the folders below it.

    Args:
        path: a JSON file, or a folder.

    Returns:
        The results sorted by path, with `items` as the full path of the parquet file.

    Raises:
        CompoclipError: there are no results, or a file is malformed.
    """
    loaded = []
    types = get_type_hints(ModelIdentity, include_extras=True)
    for file in result_files(path):
        data = read_result(file)
        data.pop("clean", None)  # of earlier versions: scores without faulty items
        if data.get("score") == "itc":  # what earlier versions call it
            data["score"] = COSINE
        try:
            results: Results = build(Results, data, str(file), REMEDY)
            for name in types.keys() & results.identity.keys():
                build(types[name], results.identity[name], str(file), REMEDY, f"identity.{name}")
            for problem in _contradictions(results):
                raise ValueError(problem)
        except (ValueError, RecursionError) as error:
            raise CompoclipError(f"{file}: malformed result file ({error}); {REMEDY}") from error
        loaded.append(replace(results, items=str(file.parent / results.items)))
    return loaded


def _contradictions(results: Results) -> Iterator[str]:
    """Yield in what results contradict themselves."""
    yield from (f"{n} is empty" for n in ("model", "benchmark", "items") if not getattr(results, n))
    if Path(results.items).name != results.items:
        yield f"its items file must lie beside it, not at {results.items}"
    if results.missing_count < len(results.missing):
        missing = counted(results.missing_count, "image")
        yield f"{missing} missing, and {counted(len(results.missing), 'name')}"
    if results.headline not in results.aggregates:
        yield f"no aggregate {results.headline!r}"
    if not all(results.scores.values()):
        yield "a sub-task without scores"
    for metrics in (*results.scores.values(), results.aggregates):
        for name, s in metrics.items():
            if not (0 <= s.ties <= s.n <= s.expected and 1 <= s.photos <= s.n):
                counts = f"{counted(s.photos, 'photo')}, {counted(s.ties, 'tie')}"
                yield f"{name}: {counted(s.n, 'item')} of {s.expected}, {counts}"
            if (s.low is None) != (s.high is None) or (s.low or 0) > (s.high or 0):
                yield f"{name}: an interval from {s.low} to {s.high}"
            values = (s.value, s.low, s.high, s.chance, s.strict, s.fractional)
            for value in values if POSITIVE_SCORE not in s.metric else ():
                if value is not None and not -1e-9 <= value <= 1 + 1e-9:
                    yield f"{name}: {value} is outside of 0 to 1"


def load_items(results: Results) -> pa.Table:
    """Read the per-item table of loaded results: `items.COLUMNS` and three columns per metric.

    Tables that were read and checked lately are cached, because comparisons and reports ask for the
    same ones many times. A table whose file has changed is read again.

    Raises CompoclipError when the parquet file is absent or damaged, or does not belong to these
    results: columns, names of items, values and their numbers must fit.
    """
    return _read_table(results).table


def stored_items(results: Results) -> Items:
    """Return the items of `load_items`, which nobody may change, as they are cached with it."""
    return _read_table(results).items


def _read_table(results: Results) -> _ReadTable:
    path = Path(results.items)
    stamp = file_stamp(path)
    cached = _read_tables.pop(path, None)
    if cached is None or (cached.stamp, cached.results) != (stamp, results):
        table = _read_items(path, results)
        cached = _ReadTable(stamp, results, table, _LISTS * table.nbytes)
    _read_tables[path] = cached
    while len(_read_tables) > 1 and sum(t.size for t in _read_tables.values()) > _KEPT_BYTES:
        del _read_tables[next(iter(_read_tables))]
    return cached


@dataclass(frozen=True)
class _ReadTable:
    """A table of items, the stamp of its file and the results it was checked with.

    size: bytes of the table and of its items, stored because Arrow adds them up anew for each call.
    """

    stamp: str
    results: Results
    table: pa.Table
    size: int

    @cached_property
    def items(self) -> Items:
        """Return the items."""
        return Items.from_arrow(self.table)


_LISTS = 8
"""Bytes of a table and of its items as Python lists, for each byte of the table."""
_KEPT_BYTES = 2**30
_read_tables: dict[Path, _ReadTable] = {}
"""By path; the table that was used least recently comes first."""


def _read_items(path: Path, results: Results) -> pa.Table:
    try:
        table = pq.read_table(path)
        table.validate(full=True)
        names = dict.fromkeys(name for metrics in results.scores.values() for name in metrics)
        metrics = [name for name in names if name != POSITIVE_SCORE]
        # One after the other: problems behind the first one may follow from it.
        for problem in chain(
            _table_problems(table, metrics), _differences(table, metrics, results)
        ):
            raise ValueError(problem)
    except (OSError, pa.ArrowException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CompoclipError(
            f"{path}: cannot be read ({reason}); evaluate {results.model} on {results.benchmark} "
            "again"
        ) from error
    return table


def _table_problems(table: pa.Table, metrics: Sequence[str]) -> Iterator[str]:
    """Yield why a table is none of items with these metrics."""
    outcomes = [f"{policy}.{metric}" for policy in POLICIES for metric in metrics]
    for name, kind in (*COLUMNS.items(), *dict.fromkeys(outcomes, pa.float64()).items()):
        if table.column_names.count(name) != 1:
            yield f"{counted(table.column_names.count(name), 'column')} '{name}', not one"
        if table.schema.field(name).type != kind:
            yield f"'{name}' holds {table.schema.field(name).type}, not {kind}"
        if table[name].null_count and name in COLUMNS and name != POSITIVE_SCORE:
            yield f"'{name}' is empty in {counted(table[name].null_count, 'row')}"
        if name in ("images", "texts", "scores") and pc.list_flatten(table[name]).null_count:
            yield f"'{name}' holds empty entries"
        if name == "scores" and pc.any(pc.is_nan(pc.list_flatten(table[name]))).as_py():
            yield "'scores' holds what is not a number"
        if name in outcomes:
            values = table[name].drop_null()
            inside = pc.and_(pc.greater_equal(values, 0), pc.less_equal(values, 1))
            if not pc.all(inside, min_count=0).as_py():  # also for what is not a number
                yield f"'{name}' holds values outside of 0 to 1"
    named = table.group_by(["subtask", "item"]).aggregate([]).num_rows
    if named != table.num_rows:
        items = counted(named, "item")
        yield f"{counted(table.num_rows, 'row')} of {items}: some are there twice"
    images, texts, scores = (
        pc.list_value_length(table[name]).to_numpy() for name in ("images", "texts", "scores")
    )
    truth = table["truth"].to_numpy()
    forms = np.asarray(table["form"].to_pylist(), dtype=object)
    fitting = np.zeros(table.num_rows, dtype=bool)
    for name, form in FORMS.items():
        fitting |= (forms == name) & form.fits(images, texts, scores, truth)
    for row in np.flatnonzero(~fitting)[:1].tolist():
        yield (
            f"item '{table['item'][row]}' has images, texts, scores or a truth that do not make a "
            f"{forms[row]} item"
        )


def _differences(table: pa.Table, metrics: Sequence[str], results: Results) -> Iterator[str]:
    """Yield scores that contradict the items: their number, photos or mean."""
    aggregations = [
        (f"used.{name}", function) for name in metrics for function in ("count", "mean")
    ]
    by_subtask = table.group_by("subtask").aggregate([("cluster", "count_distinct"), *aggregations])
    here = {row["subtask"]: row for row in by_subtask.to_pylist()}
    if here.keys() != results.scores.keys():
        yield (
            f"its sub-tasks are {', '.join(sorted(here))}, those of the scores "
            f"{', '.join(sorted(results.scores))}"
        )
    for subtask, scores in results.scores.items():
        row, largest = here[subtask], max(score.n for score in scores.values())
        for metric in metrics:
            score, n = scores.get(metric), row[f"used.{metric}_count"]
            if n != (score.n if score else 0):
                with_metric = f"{counted(n, 'item')} of '{subtask}' with the metric {metric}"
                yield f"{with_metric}, not as scored"
            if score and score.n == largest and score.photos != row["cluster_count_distinct"]:
                yield f"the photos of '{subtask}' are others than those scored"
            mean = row[f"used.{metric}_mean"]
            if score and metric not in RANKED and abs(score.value - mean) > 1e-6:
                yield f"the {metric} of '{subtask}' is another than that scored"


# --- Results as rows of a model card. ---


def card_rows(results: Sequence[Results], identity: ModelIdentity) -> tuple[CardResult, ...]:
    """Return results as rows of a model card: each benchmark's headline, marked if partial.

    Raises CompoclipError for results of other weights than the card's model.
    """
    from compoclip.models.formats.hub import CardResult  # which imports torch

    rows = []
    for result in results:
        weights = result.identity.get("weights")
        if weights != identity.weights:
            raise CompoclipError(
                f"results of {result.model} on {result.benchmark}: not of this checkpoint "
                f"(weights {weights}, not {identity.weights}): evaluate it"
            )
        s = result.headline_score
        part = f" ({s.n:,} of {s.expected:,} items)" if result.partial else ""
        name = result.benchmark + part
        rows.append(CardResult(name, result.headline, s.value, s.low, s.high, s.chance, s.n))
    return tuple(rows)
