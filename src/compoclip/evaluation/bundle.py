"""Result bundles: results with their items, the run behind them and hashes, for others to check.

    BUNDLE/bundle.json               facts that the other files state, a hash of each, one of all
    BUNDLE/page.md                   the results as tables, for people
    BUNDLE/comparison.json           the run's model compared with the others, if its base is there
    BUNDLE/results/MODEL/NAME.json   results as `evaluate` wrote them, items beside them
    BUNDLE/run/                      configuration, log, fingerprint and record of the run
    BUNDLE/plan.json                 of a bundle that `reproduce` made: its protocol

Everything that can be computed from these files is computed again by `verify_bundle`. A bundle has
no signature: that weights gave these scores is shown only by those who evaluate the weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from compoclip import own
from compoclip.benchmarks.case import Aggregate, TiePolicy
from compoclip.benchmarks.entries import official_hash
from compoclip.benchmarks.fetch import unpack
from compoclip.benchmarks.files import data_hash, file_hash
from compoclip.config import CONFIG, parsed_config
from compoclip.console import counted
from compoclip.data.fingerprint import FILE, Fingerprint
from compoclip.errors import CompoclipError, require, shown
from compoclip.evaluation.comparison import Comparison, compare_all, require_one_checkpoint
from compoclip.evaluation.forms.cases import judged
from compoclip.evaluation.items import POLICIES, Items, Outcomes
from compoclip.evaluation.published.beside import beside, entries_of
from compoclip.evaluation.published.beside import shown as table_text
from compoclip.evaluation.published.protocols import protocol, protocol_names
from compoclip.evaluation.published.read import published_table
from compoclip.evaluation.results import Results, by_model, file_stem, load_items, load_results
from compoclip.evaluation.summary import summarise
from compoclip.evaluation.tables import comparison_text, results_text
from compoclip.files import new_folder, read_json, require_new_folder, write_atomically, write_json
from compoclip.methods.registry import recipe_card
from compoclip.models.config import RECORD, read_object, read_record, sound
from compoclip.training.log import LOG, read_log
from compoclip.version import __version__

BUNDLE, COMPARISON, PAGE, PLAN = "bundle.json", "comparison.json", "page.md", "plan.json"
_SCHEMA = 1
_CLOSE = 1e-6  # of scores, intervals and p-values: another machine may round otherwise


def write_bundle(
    run: Path,
    results: Path,
    out: Path,
    against: Sequence[str] = (),
    plan: Mapping[str, Any] | None = None,
    first: str = "",
) -> Path:
    """Write a result bundle to `out`, a new folder or a file that ends in .zip; return `out`.

    run: folder of a finished run. results: what `evaluate` wrote of the run's model and of any
    others, its base above all. against: published tables that the page shows the results in. plan:
    of `reproduce`, which the run followed. first: begins the page. Raises CompoclipError when the
    run is not finished, the results are not of its model or two of them are of one model and
    benchmark, or `out` is there already.
    """
    tables = [published_table(each) for each in against]
    written = next((run / each for each in ("model", "adapter") if (run / each).is_dir()), None)
    if written is None:
        raise CompoclipError(f"{run}: holds no model; give the folder of a finished run")
    trained = read_record(written / RECORD)[0].weights
    found = load_results(results)
    problem = f"has no results of the weights {trained} in {written}; evaluate them"
    require(trained in {each.identity.get("weights") for each in found}, results, problem)
    with ExitStack() as stack:
        zipped = out.suffix == ".zip"
        if zipped:
            require_new_folder(out)
            folder = Path(stack.enter_context(TemporaryDirectory()))
        else:
            folder = stack.enter_context(new_folder(out))
        for each in found:
            load_items(each)  # which must be there, and belong to the scores
            target = folder / "results" / file_stem(each.model)
            target.mkdir(parents=True, exist_ok=True)
            items = Path(each.items)
            for file in (items.with_suffix(".json"), items):
                problem = f"two results of {each.model} on {each.benchmark}; leave one out"
                require(not (target / file.name).exists(), results, problem)
                shutil.copyfile(file, target / file.name)
        (folder / "run").mkdir()
        for file in (run / CONFIG, run / LOG, run / FILE, written / RECORD):
            if file.is_file():
                shutil.copyfile(file, folder / "run" / file.name)
        copied = load_results(folder / "results")
        compared = _compared(copied, folder)
        texts = [first.rstrip()] * bool(first)
        texts += [f"```\n{results_text(each)}\n```" for each in copied]
        texts += [comparison_text(each, "markdown", len(compared)) for each in compared]
        texts += [
            table_text(table, beside(table, entries_of(copied), allow_partial=True), "markdown")
            for table in tables
        ]
        (folder / PAGE).write_text("\n\n".join(texts) + "\n", encoding="utf-8")
        if compared:
            write_json(folder / COMPARISON, [asdict(each) for each in compared])
        if plan is not None:
            write_json(folder / PLAN, plan)
        manifest = {
            "bundle": _SCHEMA,
            "compoclip": __version__,
            "code": _code_hash(),
            "machine": _machine(),
            "facts": _facts(folder, copied),
            "files": {name: file_hash(path) for name, path in _files(folder).items()},
        }
        write_json(folder / BUNDLE, {**manifest, "digest": _digest(manifest)})
        if zipped:
            write_atomically(out, lambda target: _zip(folder, target))
    return out


def _zip(folder: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (folder / BUNDLE, *_files(folder).values()):
            archive.write(path, path.relative_to(folder))


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a bundle by name, all but `BUNDLE`; refuse links."""
    paths = sorted(folder.rglob("*"))
    for each in paths:
        require(not each.is_symlink(), each, "is a link; put the file itself into the bundle")
    named = {each.relative_to(folder).as_posix(): each for each in paths if each.is_file()}
    return {name: path for name, path in named.items() if name != BUNDLE}


def _digest(manifest: Mapping[str, Any]) -> str:
    text = json.dumps(manifest, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


@cache
def _code_hash() -> str:
    root = Path(__file__).parents[1]
    files = [path for kind in ("*.py", "*.yaml") for path in root.rglob(kind)]
    return data_hash({path.relative_to(root).as_posix(): path for path in files})


def _machine() -> dict[str, Any]:
    import torch  # verifying needs none

    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(k) for k in gpus],
    }


def _facts(folder: Path, found: Sequence[Results]) -> dict[str, Any]:
    """Return the weights, data and versions that the files of a bundle name."""
    record = read_object(folder / "run" / RECORD)
    identity, provenance = read_record(folder / "run" / RECORD)
    facts: dict[str, Any] = {
        f"results of {each.model} on {each.benchmark}": {
            "weights": each.identity.get("weights"),
            "annotations": each.data_hash,
            "images": each.images,
            "versions": each.versions,
        }
        for each in found
    }
    facts["run"] = {
        "method": provenance.get("method"),
        "weights": identity.weights,
        "base weights": identity.base,
        "versions": {"compoclip": record.get("compoclip"), "torch": provenance.get("torch")},
    }
    return facts


def _compared(found: Sequence[Results], folder: Path) -> list[Comparison]:
    """Return all models compared with the run's base; nothing where that was not measured."""
    models = by_model(found)
    for of_one in models.values():
        require_one_checkpoint(of_one)
    weights = {name: of_one[0].identity.get("weights") for name, of_one in models.items()}
    start = read_record(folder / "run" / RECORD)[0].base
    base = next((name for name, each in weights.items() if each == start), None)
    others = [of_one for name, of_one in models.items() if name != base]
    return compare_all(models[base], others) if base is not None and others else []


# --- Verifying. ---


@dataclass(frozen=True)
class Verified:
    """The findings of a check of a bundle, one line each.

    checked: what holds. unchecked: what the files cannot show, or this installation cannot. wrong:
    what does not hold; a bundle with such a line is refused.
    """

    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def verify_bundle(bundle: Path) -> Verified:
    """Compute again what a bundle (folder, .zip or .tar.gz) states, and compare hashes and facts.

    Archives are unpacked into a temporary folder by `benchmarks.fetch.unpack`, which refuses what
    leads out of it. Raises CompoclipError without a bundle, and for a `bundle.json` that is
    malformed or of another version.
    """
    with ExitStack() as stack:
        folder = bundle
        if not bundle.is_dir():
            folder = Path(stack.enter_context(TemporaryDirectory())) / "bundle"
            unpack(bundle, folder)
        manifest = read_object(folder / BUNDLE)
        kinds = {"facts": dict, "files": dict, "compoclip": str, "code": str, "digest": str}
        whole = all(isinstance(manifest.get(name), kind) for name, kind in kinds.items())
        problem = f"its {BUNDLE} is malformed, or of another version of compoclip than "
        problem += f"{__version__}; make the bundle again"
        require(whole and manifest.get("bundle") == _SCHEMA, bundle, problem)
        report = Verified()
        here = {name: file_hash(path) for name, path in _files(folder).items()}
        for name, known in {**here, **manifest["files"]}.items():
            if (is_now := here.get(name)) != manifest["files"].get(name):
                why = f"has the hash {is_now}, not {known}" if is_now else "is missing"
                what = why if name in manifest["files"] else f"is not listed in {BUNDLE}"
                report.wrong.append(f"{name}: {what}")
        if manifest.pop("digest") != _digest(manifest):
            report.wrong.append(f"{BUNDLE}: was changed: its digest is another")
        if not report.wrong:
            report.checked.append(f"hashes of {counted(len(here), 'file')}")
        try:
            with sound(folder):
                _check_content(folder, manifest, report)
        except CompoclipError as error:
            told = str(error).replace(f"{folder}/", "").removeprefix(f"{folder}: ")
            report.wrong.append(told)
        return report


def _check_content(folder: Path, manifest: Mapping[str, Any], report: Verified) -> None:

    def take(problems: Iterator[str], holds: str) -> None:
        wrong = list(problems)
        report.wrong.extend(wrong)
        report.checked.extend([] if wrong else [holds])

    found = load_results(folder / "results")
    facts = json.loads(json.dumps(_facts(folder, found)))
    named = "weights, annotations and versions that the files name"
    take(_unlike(manifest["facts"], facts, BUNDLE, "the files have"), named)
    take(_run_problems(folder, found), "weights of the run, its configuration and its log")
    for each in found:
        name = f"{each.model} on {each.benchmark}"
        take(_result_problems(each, report), f"scores and intervals of {name}")
        official = official_hash(each.reader_name, tuple(each.scores))
        if official == each.data_hash:
            report.checked.append(f"{name}: the annotations are the official ones")
        else:
            why = "are not the official ones" if official else "have no published hash known here"
            report.unchecked.append(f"{name}: the annotations {why}")
        if each.partial:
            score = each.headline_score
            report.unchecked.append(f"{name}: a part of the benchmark, {score.items(',')} items")
    compared = [json.loads(json.dumps(asdict(each))) for each in _compared(found, folder)]
    if compared:
        stated = read_json(folder / COMPARISON)
        take(_unlike(stated, compared, COMPARISON, "the items give"), "paired tests with the base")
    else:
        report.unchecked.append("paired tests: no results of the base model are in the bundle")
    same = (manifest["compoclip"], manifest["code"]) == (__version__, _code_hash())
    if not same:
        report.unchecked.append(
            f"code: made by compoclip {manifest['compoclip']}, code {manifest['code']}; here is "
            f"{__version__}, code {_code_hash()}"
        )
    report.unchecked.append(
        "that the weights give these scores, and photos and machine are those named: evaluate them"
    )


def _run_problems(folder: Path, found: Sequence[Results]) -> Iterator[str]:
    """Yield where the files of the run contradict each other or the results."""
    run = folder / "run"
    identity, provenance = read_record(run / RECORD)
    if identity.weights not in {each.identity.get("weights") for each in found}:
        yield f"run/{RECORD}: no results are of its weights {identity.weights}"
    method = str(provenance.get("method"))
    if (run / CONFIG).is_file():
        text = (run / CONFIG).read_text(encoding="utf-8")
        named = str(parsed_config(text, run / CONFIG).get("method"))
        if not own.is_file(named) and named != method.partition("+")[0]:  # "+": composed
            yield f"run/{CONFIG}: is of the method {named}, the model of {method}"
        if (folder / PLAN).is_file():
            yield from _unplanned(read_object(folder / PLAN), parsed_config(text, run / CONFIG))
    if (run / FILE).is_file():
        values = Fingerprint.load(run).values
        for key, value in (("method", method), ("weights", identity.base)):
            if values.get(key) != value:
                yield f"run/{FILE}: the {key} is {values.get(key)}, the model has {value}"
    if (run / LOG).is_file():
        last = max((each["step"] for each in read_log(run / LOG)), default=0)
        told = dict(provenance.get("run", {}))
        if last != told.get("steps") and not told.get("ended_early"):
            yield f"run/{LOG}: ends at step {last}, the run at {told.get('steps')}"


def _unplanned(plan: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a run is not the one that a protocol of the package, or the plan, prescribes."""
    name = plan.get("protocol")
    wanted = {"method": plan.get("recipe"), **plan.get("settings", {})}
    if name in protocol_names():
        known = protocol(str(name))
        wanted |= {"method": known.recipe, **recipe_card(known.recipe).defaults, **known.settings}
        wanted["model"] = known.model
    for key, value in wanted.items():
        if config.get(key) not in (None, value):
            yield f"run/{CONFIG}: {key} is {config[key]}, the protocol {name} has {value}"


def _result_problems(results: Results, report: Verified) -> Iterator[str]:
    """Yield outcomes that contradict an item's scores, and scores that contradict outcomes."""
    name = f"{results.model} on {results.benchmark}"
    ties = {part: TiePolicy(policy) for part, policy in results.tie_policy.items()}
    items = Items.from_arrow(load_items(results))
    truth = np.array(items.truth)
    by_items = judged(items.forms, items.subtasks, truth, items.scores, ties)
    outcomes: dict[str, Outcomes] = {}
    again = 0
    for metric, stored in items.outcomes.items():
        known = by_items.get(metric, Outcomes.nowhere(len(items)))
        again += int((~np.isnan(known.used)).sum())
        for policy, given, other in zip(POLICIES, stored, known):
            wrong = np.flatnonzero(~np.isnan(other) & ~np.isclose(given, other))
            for row in wrong[:1].tolist():
                yield (
                    f"{name}: item {items.ids[row]} of {items.subtasks[row]}: {policy} "
                    f"{metric} is {given[row]:g}, its scores give {other[row]:g}"
                )
        outcomes[metric] = stored._replace(chance=known.chance)
    total = sum(int((~np.isnan(each.used)).sum()) for each in outcomes.values())
    if again < total:
        left = f"{total - again:,} of {total:,} outcomes"
        report.unchecked.append(f"{name}: {left}, which hang on scores of other items")
    expected = {
        f"{part}/{metric}": each.expected
        for part, of in results.scores.items()
        for metric, each in of.items()
    }
    expected |= {part: results.main(part).expected for part in results.scores}
    scores, aggregates = summarise(
        replace(items, outcomes=outcomes),
        {rule: Aggregate.from_json(each) for rule, each in results.rules.items()},
        expected,
        results.resamples,
        results.seed,
    )
    stated_scores = {**results.scores, "": results.aggregates}
    for part, found in {**scores, "": aggregates}.items():
        for one in {**stated_scores[part], **found}:
            both = [asdict(of[one]) if one in of else {} for of in (stated_scores[part], found)]
            for each in both:
                each.pop("expected", None)
            where = f"{name}: {part} {one}".replace("  ", " ")
            yield from _unlike(both[0], both[1], where, "the items give")


def _unlike(stated: Any, found: Any, where: str, source: str) -> Iterator[str]:
    """Yield the places where a JSON value is another than `source` gives; nan fits anything."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for key in {**stated, **found}:
            yield from _unlike(stated.get(key), found.get(key), f"{where}: {key}", source)
    elif isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        for number, pair in enumerate(zip(stated, found)):
            yield from _unlike(*pair, f"{where}: {number}", source)
    elif isinstance(stated, float) and isinstance(found, float):
        if not (math.isnan(found) or math.isclose(stated, found, abs_tol=_CLOSE)):
            yield f"{where} is {stated:.6g}, {source} {found:.6g}"
    elif stated != found:
        yield f"{where} is {shown(stated)}, {source} {shown(found)}"
