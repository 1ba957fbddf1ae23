"""Checking of result bundles: every field is computed again, compared, or named as unchecked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from compoclip import plugins
from compoclip.benchmarks.case import TiePolicy
from compoclip.benchmarks.entries import official_hash
from compoclip.benchmarks.fetch import unpack
from compoclip.config import CONFIG, package_yaml, parsed_config
from compoclip.console import counted
from compoclip.data.fingerprint import FILE, Fingerprint
from compoclip.errors import CompoclipError, require, typed_repr
from compoclip.evaluation.bundle import (
    COMPARISON,
    PAGE,
    PLAN,
    SCHEMA,
    code_hash,
    compare_with_base,
    digest_of,
    facts_of,
    files_of,
    page_of,
)
from compoclip.evaluation.comparison import Comparison
from compoclip.evaluation.forms.cases import judged
from compoclip.evaluation.items import POLICIES, Items, Outcomes
from compoclip.evaluation.published.protocols import protocol, protocol_names
from compoclip.evaluation.published.read import published_tables
from compoclip.evaluation.results import Results, load_items, load_results
from compoclip.evaluation.summary import summarise
from compoclip.evaluation.written import BUNDLE, require_bundle
from compoclip.files import file_hash, file_stem, read_json, read_text
from compoclip.methods.registry import recipe_card
from compoclip.models.config import RECORD, read_object, read_record, sound
from compoclip.training.log import LOG, read_log
from compoclip.version import __version__

_CLOSE = 1e-6  # of scores, intervals and p-values: another machine may round otherwise
_KINDS = {
    "bundle": int,
    "compoclip": str,
    "code": str,
    "machine": dict,
    "facts": dict,
    "files": dict,
}
UNCHECKED: Mapping[str, Mapping[str, Sequence[str]]] = package_yaml(
    Path(__file__).with_name("unchecked.yaml")
)
"""File of a bundle (a pattern) -> why -> its fields that are not computed again."""


@dataclass(frozen=True)
class Verified:
    """The findings of a check of a bundle, one line each.

    checked: what holds. unchecked: what the files cannot show, or this installation cannot. wrong:
    what does not hold; a bundle with such a line is refused.
    """

    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def take(self, problems: Iterator[str], holds: str) -> None:
        """Add problems to what is wrong; without any, add what holds to what was checked."""
        listed = list(problems)
        self.wrong.extend(listed)
        if not listed:
            self.checked.append(holds)


def verify_bundle(bundle: Path) -> Verified:
    """Compute again what a bundle (folder, .zip or .tar.gz) states, and compare hashes and facts.

    Archives are unpacked into a temporary folder by `benchmarks.fetch.unpack`, which refuses what
    leads out of it. Raises CompoclipError without a bundle, and for a `bundle.json` that is
    malformed or of another version.
    """
    require_bundle(bundle)
    with ExitStack() as stack:
        folder = bundle
        if not bundle.is_dir():
            folder = Path(stack.enter_context(TemporaryDirectory())) / "bundle"
            unpack(bundle, folder)
        manifest = read_object(folder / BUNDLE)
        require(
            manifest.get("bundle") == SCHEMA
            and isinstance(manifest.get("digest"), str)
            and all(isinstance(manifest.get(name), kind) for name, kind in _KINDS.items()),
            bundle,
            f"its {BUNDLE} is malformed, or of another version of compoclip than {__version__}; "
            "make the bundle again",
        )
        report = Verified()
        digest = manifest.pop("digest")
        hashes = {name: file_hash(path) for name, path in files_of(folder).items()}
        problems = [*_list_problems(manifest, hashes)]
        if digest != digest_of(manifest):
            problems.append(f"{BUNDLE}: was changed: its digest is another")
        report.take(iter(problems), f"hashes of {counted(len(hashes), 'file')}")
        try:
            with sound(folder):
                _check_content(folder, manifest, report)
        except CompoclipError as error:
            line = str(error).replace(f"{folder}/", "").removeprefix(f"{folder}: ")
            report.wrong.append(line)
        return report


def _list_problems(manifest: Mapping[str, Any], hashes: Mapping[str, str]) -> Iterator[str]:
    """Yield where the list of files is not that of the files that are there."""
    for key in manifest.keys() - _KINDS.keys():
        yield f"{BUNDLE}: '{key:.80}' is no entry of a bundle"
    for name, stated in {**hashes, **manifest["files"]}.items():
        if name not in manifest["files"]:
            yield f"{name}: is not listed in {BUNDLE}"
        elif name not in hashes:
            yield f"{name}: is missing"
        elif hashes[name] != stated:
            yield f"{name}: has the hash {hashes[name]}, not {typed_repr(stated)}"
        if not any(fnmatch(name, pattern) for pattern in (PAGE, COMPARISON, *UNCHECKED)):
            yield f"{name}: is no file of a bundle"


def _check_content(folder: Path, manifest: Mapping[str, Any], report: Verified) -> None:
    results = load_results(folder / "results")
    facts = json.loads(json.dumps(facts_of(folder, results)))
    named = "weights, annotations and versions that the files name"
    report.take(_unlike(manifest["facts"], facts, BUNDLE, "the files have"), named)
    report.take(_run_problems(folder, results), "weights of the run, its configuration and its log")
    for result in results:
        name = f"{result.model} on {result.benchmark}"
        report.take(_result_problems(result, report), f"scores and intervals of {name}")
        official = official_hash(result.reader_name, tuple(result.scores))
        if official == result.data_hash:
            report.checked.append(f"{name}: the annotations are the official ones")
        else:
            reason = (
                "are not the official ones" if official else "have no published hash known here"
            )
            report.unchecked.append(f"{name}: the annotations {reason}")
        if result.partial:
            score = result.headline_score
            report.unchecked.append(f"{name}: a part of the benchmark, {score.items(',')} items")
    comparisons = compare_with_base(results, folder)
    computed = [json.loads(json.dumps(asdict(comparison))) for comparison in comparisons]
    if computed or (folder / COMPARISON).is_file():
        stated = read_json(folder / COMPARISON)
        differences = _unlike(stated, computed, COMPARISON, "the items give")
        report.take(differences, "paired tests with the base")
    else:
        report.unchecked.append("paired tests: no results of the base model are in the bundle")
    same = (manifest["compoclip"], manifest["code"]) == (__version__, code_hash())
    if not same:
        report.unchecked.append(
            f"{BUNDLE}: compoclip, code: made by compoclip {manifest['compoclip']:.80}, code "
            f"{manifest['code']:.80}; here is {__version__}, code {code_hash()}"
        )
    _check_page(folder, results, comparisons, report, same)
    for file, reasons in UNCHECKED.items():
        for reason, fields in reasons.items():
            if any(fnmatch(name, file) for name in (BUNDLE, *manifest["files"])):
                which = ", ".join("all other fields" if name == "*" else name for name in fields)
                report.unchecked.append(f"{file}: {which}: {reason}")


def _check_page(
    folder: Path,
    results: Sequence[Results],
    comparisons: Sequence[Comparison],
    report: Verified,
    same: bool,
) -> None:
    """Write the page again from the other files, and compare it line by line.

    same: whether this code made the bundle. Other code may choose other words; then the numbers of
    each line are compared, and the words are named as unchecked.
    """
    page = read_text(folder / PAGE)
    # Which tables the page shows is its own choice: the page says it by their titles.
    chosen = [table for table in published_tables().values() if table.title in page]
    chosen.sort(key=lambda table: page.index(table.title))
    expected = page_of(folder, results, comparisons, chosen)

    def compared(line: str) -> object:
        return line if same else re.findall(r"\d+(?:[.,]\d+)*", line)

    lines = ([line for line in text.splitlines() if compared(line)] for text in (page, expected))
    pairs = zip_longest(*lines, fillvalue="")
    different = next((pair for pair in pairs if compared(pair[0]) != compared(pair[1])), None)
    if different is not None:
        words = zip_longest(*(line.split() for line in different), fillvalue="nothing")
        stated, computed = next((pair for pair in words if pair[0] != pair[1]), ("", ""))
        report.wrong.append(
            f"{PAGE}: the line '{different[0].strip():.80}' has {stated:.80}, the other files give "
            f"{computed:.80}"
        )
    elif same:
        report.checked.append(f"{PAGE}, written again from the other files")
    else:
        report.checked.append(f"{PAGE}: its numbers, written again from the other files")
        report.unchecked.append(f"{PAGE}: words: other code wrote them")


def _run_problems(folder: Path, results: Sequence[Results]) -> Iterator[str]:
    """Yield where the files of the run contradict each other or the results."""
    run = folder / "run"
    identity, provenance = read_record(run / RECORD)
    measured = [result for result in results if result.identity.get("weights") == identity.weights]
    if not measured:
        yield f"run/{RECORD}: no results are of its weights {identity.weights}"
    stated = json.loads(json.dumps(identity.to_json()))
    for result in measured:
        identities = {name: result.identity.get(name) for name in stated}
        location = f"run/{RECORD}: identity"
        yield from _unlike(stated, identities, location, f"the results on {result.benchmark} have")
    method = str(provenance.get("method"))
    config: dict[str, Any] = {}
    if (run / CONFIG).is_file():
        config = parsed_config(read_text(run / CONFIG), run / CONFIG)
        named = str(config.get("method"))
        if not plugins.is_file(named) and named != method.partition("+")[0]:  # "+": composed
            yield f"run/{CONFIG}: is of the method {named}, the model of {method}"
        if (folder / PLAN).is_file():
            yield from _unplanned(read_object(folder / PLAN), config)
    if (run / FILE).is_file():
        values = Fingerprint.load(run).values
        for key, value in (("method", method), ("weights", identity.base)):
            if values.get(key) != value:
                yield f"run/{FILE}: the {key} is {values.get(key)}, the model has {value}"
        optim = provenance.get("optim")
        nested = optim if isinstance(optim, dict) else {}
        for name, record in ((CONFIG, config), (RECORD, provenance), (RECORD, nested)):
            for key, value in record.items():
                numbers = all(isinstance(v, int | float) for v in (value, values.get(key)))
                if numbers and value != values[key]:
                    yield f"run/{FILE}: {key} is {values[key]}, {name} has {value}"
    if (run / LOG).is_file():
        records = read_log(run / LOG)
        last = max(records, key=lambda record: record["step"], default={"step": 0})
        totals = dict(provenance.get("run", {}))
        if last["step"] != totals.get("steps") and not totals.get("ended_early"):
            yield f"run/{LOG}: ends at step {last['step']}, the run at {totals.get('steps')}"
        for key in ("images", "texts", "skipped", "skipped_steps", "truncated"):
            if last["step"] == totals.get("steps") and last.get(key) != totals.get(key):
                yield f"run/{LOG}: ends with {key} {last.get(key)}, the run with {totals.get(key)}"


def _unplanned(plan: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a run is not the one that a protocol of the package, or the plan, prescribes."""
    name = plan.get("protocol")
    prescribed = {"method": plan.get("recipe"), **plan.get("settings", {})}
    if name in protocol_names():
        published = protocol(str(name))
        prescribed |= {
            "method": published.recipe,
            **recipe_card(published.recipe).defaults,
            **published.settings,
        }
        prescribed["model"] = published.model
    for key, value in prescribed.items():
        if config.get(key) not in (None, value):
            yield f"run/{CONFIG}: {key} is {config[key]}, the protocol {name} has {value}"


def _result_problems(results: Results, report: Verified) -> Iterator[str]:
    """Yield outcomes that contradict an item's scores, and scores that contradict outcomes."""
    name = f"{results.model} on {results.benchmark}"
    place = Path(results.items)
    if (place.parent.name, place.stem) != tuple(map(file_stem, (results.model, results.benchmark))):
        yield f"results/{place.parent.name}/{place.stem}.json: holds results of {name}"
    ties = {part: TiePolicy(policy) for part, policy in results.tie_policy.items()}
    table = load_items(results)
    items = Items.from_arrow(table)
    truth = np.array(items.truth)
    by_items = judged(items.forms, items.subtasks, truth, items.scores, ties)
    outcomes: dict[str, Outcomes] = {}
    again = 0
    for metric, stored in items.outcomes.items():
        by_scores = by_items.get(metric, Outcomes.nowhere(len(items)))
        again += int((~np.isnan(by_scores.used)).sum())
        for policy, stated, other in zip(POLICIES, stored, by_scores):
            differing = np.flatnonzero(~np.isnan(other) & ~np.isclose(stated, other))
            for row in differing[:1].tolist():
                yield (
                    f"{name}: item {items.ids[row]} of {items.subtasks[row]}: {policy} "
                    f"{metric} is {stated[row]:g}, its scores give {other[row]:g}"
                )
        outcomes[metric] = stored._replace(chance=by_scores.chance)
    tied = np.any([outcome.tied for outcome in outcomes.values()], axis=0)
    for row in np.flatnonzero(table["tie"].to_numpy() != tied)[:1].tolist():
        yield f"{name}: item {items.ids[row]}: tie is {not tied[row]}, its outcomes say {tied[row]}"
    total = sum(int((~np.isnan(outcome.used)).sum()) for outcome in outcomes.values())
    if again < total:
        left = f"{total - again:,} of {total:,} outcomes and their chance"
        report.unchecked.append(f"{name}: {left}, which hang on scores of other items")
    expected = {
        f"{part}/{metric}": score.expected
        for part, of in results.scores.items()
        for metric, score in of.items()
    }
    expected |= {part: results.main(part).expected for part in results.scores}
    scores, aggregates = summarise(
        replace(items, outcomes=outcomes),
        results.rules,
        expected,
        results.bootstrap,
    )
    stated_scores = {**results.scores, "": results.aggregates}
    for part, computed in {**scores, "": aggregates}.items():
        for one in {**stated_scores[part], **computed}:
            both = [asdict(of[one]) if one in of else {} for of in (stated_scores[part], computed)]
            unknown = {"expected"}  # as is the chance of outcomes that hang on other items
            if math.isnan(both[1].get("chance", 0.0)):
                unknown.add("chance")
            both = [{k: v for k, v in of.items() if k not in unknown} for of in both]
            location = f"{name}: {part} {one}".replace("  ", " ")
            yield from _unlike(both[0], both[1], location, "the items give")


def _unlike(stated: Any, computed: Any, location: str, source: str) -> Iterator[str]:
    """Yield the places where a JSON value is another than `source` gives."""
    if isinstance(stated, dict) and isinstance(computed, dict):
        for key in {**stated, **computed}:
            yield from _unlike(stated.get(key), computed.get(key), f"{location}: {key}", source)
    elif isinstance(stated, list) and isinstance(computed, list) and len(stated) == len(computed):
        for number, pair in enumerate(zip(stated, computed)):
            yield from _unlike(*pair, f"{location}: {number}", source)
    elif isinstance(stated, float) and isinstance(computed, float):
        both_undefined = math.isnan(stated) and math.isnan(computed)
        if not both_undefined and not math.isclose(stated, computed, abs_tol=_CLOSE):
            yield f"{location} is {stated:.6g}, {source} {computed:.6g}"
    elif stated != computed:
        yield f"{location} is {typed_repr(stated)}, {source} {typed_repr(computed)}"
