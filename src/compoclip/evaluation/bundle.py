"""Result bundles: results with their items, the run behind them and hashes, for others to check.

    BUNDLE/bundle.json               facts that the other files state, a hash of each, one of all
    BUNDLE/page.md                   the results as tables, for people
    BUNDLE/comparison.json           the run's model compared with the others, if its base is there
    BUNDLE/results/MODEL/NAME.json   results as `evaluate` wrote them, items beside them
    BUNDLE/run/                      configuration, log, fingerprint and record of the run
    BUNDLE/plan.json                 of a bundle that `reproduce` made: its protocol

`verify.verify_bundle` computes again what can be computed from these files. A bundle has
no signature: that weights gave these scores is shown only by those who evaluate the weights.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compoclip.benchmarks.files import data_hash
from compoclip.config import CONFIG
from compoclip.data.fingerprint import FILE
from compoclip.errors import CompoclipError, require
from compoclip.evaluation.comparison import Comparison, compare_all, require_one_checkpoint
from compoclip.evaluation.plan_page import plan_page
from compoclip.evaluation.published.measured import entries_of, fill_table, table_text
from compoclip.evaluation.published.read import PublishedTable, published_table
from compoclip.evaluation.results import Results, by_model, load_items, load_results
from compoclip.evaluation.tables import comparison_table, results_table
from compoclip.evaluation.written import BUNDLE, model_of
from compoclip.files import (
    bytes_hash,
    file_hash,
    file_stems,
    new_folder,
    require_new_folder,
    write_atomically,
    write_json,
)
from compoclip.models.config import RECORD, read_object, read_record, section
from compoclip.patterns import has_ending
from compoclip.training.log import LOG
from compoclip.typed import NonNegative, read_fields
from compoclip.version import __version__

COMPARISON, PAGE, PLAN = "comparison.json", "page.md", "plan.json"
SCHEMA = 1


def write_bundle(
    run: Path,
    results: Path,
    out: Path,
    against: Sequence[str] = (),
    plan: Mapping[str, Any] | None = None,
) -> Path:
    """Write a result bundle to `out`, a new folder or a file that ends in .zip; return `out`.

    run: folder of a finished run. results: what `evaluate` wrote of the run's model and of any
    others, its base above all. against: published tables that the page shows the results in. plan:
    of `reproduce`, which the run followed; its page begins that of the bundle. Raises
    CompoclipError when the run is not finished, the results are not of its model or two of them are
    of one model and benchmark, or `out` is there already.
    """
    tables = [published_table(name) for name in against]
    written = model_of(run)
    trained = read_record(written / RECORD)[0].weights
    loaded = load_results(results)
    if trained not in {result.identity.get("weights") for result in loaded}:
        raise CompoclipError(
            f"{results}: has no results of the weights {trained} in {written}; evaluate them"
        )
    stems = file_stems(result.model for result in loaded)
    with ExitStack() as stack:
        zipped = has_ending(out, ".zip")
        if zipped:
            require_new_folder(out)
            folder = Path(stack.enter_context(TemporaryDirectory()))
        else:
            folder = stack.enter_context(new_folder(out))
        for result in loaded:
            load_items(result)  # which must be there, and belong to the scores
            target = folder / "results" / stems[result.model]
            target.mkdir(parents=True, exist_ok=True)
            items = Path(result.items)
            for file in (items.with_suffix(".json"), items):
                if (target / file.name).exists():
                    raise CompoclipError(
                        f"{results}: two results of {result.model} on {result.benchmark}; leave "
                        "one out"
                    )
                shutil.copyfile(file, target / file.name)
        (folder / "run").mkdir()
        for file in (run / CONFIG, run / LOG, run / FILE, written / RECORD):
            if file.is_file():
                shutil.copyfile(file, folder / "run" / file.name)
        copied = load_results(folder / "results")
        compared = compare_with_base(copied, folder)
        if plan is not None:
            write_json(folder / PLAN, plan)
        page = page_of(folder, copied, compared, tables)
        (folder / PAGE).write_text(page, encoding="utf-8")
        if compared:
            write_json(folder / COMPARISON, [asdict(comparison) for comparison in compared])
        manifest = {
            "bundle": SCHEMA,
            "compoclip": __version__,
            "code": code_hash(),
            "machine": _machine(),
            "facts": facts_of(folder, copied),
            "files": {name: file_hash(path) for name, path in files_of(folder).items()},
        }
        write_json(folder / BUNDLE, {**manifest, "digest": digest_of(manifest)})
        if zipped:
            write_atomically(out, lambda target: _zip(folder, target))
    return out


def _zip(folder: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (folder / BUNDLE, *files_of(folder).values()):
            archive.write(path, path.relative_to(folder))


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files of a bundle by name, all but `BUNDLE`; refuse links."""
    paths = sorted(folder.rglob("*"))
    for path in paths:
        require(not path.is_symlink(), path, "is a link; put the file itself into the bundle")
    named = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    return {name: path for name, path in named.items() if name != BUNDLE}


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Return the hash of what `BUNDLE` states, all but the hash itself."""
    return bytes_hash(json.dumps(manifest, sort_keys=True).encode())


@cache
def code_hash() -> str:
    """Return the hash of this package's code and tables."""
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


def facts_of(folder: Path, results: Sequence[Results]) -> dict[str, Any]:
    """Return the weights, data and versions that the files of a bundle name."""
    record = read_object(folder / "run" / RECORD)
    identity, provenance = read_record(folder / "run" / RECORD)
    facts: dict[str, Any] = {
        f"results of {result.model} on {result.benchmark}": {
            "weights": result.identity.get("weights"),
            "annotations": result.data_hash,
            "images": result.images,
            "versions": result.versions,
        }
        for result in results
    }
    facts["run"] = {
        "method": provenance.get("method"),
        "weights": identity.weights,
        "base weights": identity.base,
        "versions": {"compoclip": record.get("compoclip"), "torch": provenance.get("torch")},
    }
    return facts


def page_of(
    folder: Path,
    results: Sequence[Results],
    compared: Sequence[Comparison],
    tables: Sequence[PublishedTable],
) -> str:
    """Return the page of a bundle: its plan if it has one, results, tests and published tables."""
    texts = []
    if (folder / PLAN).is_file():
        record = folder / "run" / RECORD
        run = section(read_record(record)[1], "run", record)
        seconds = read_fields(run, {"seconds": NonNegative | None}, f"{record}: run")["seconds"]
        texts.append(plan_page(read_object(folder / PLAN), results, seconds or 0.0).rstrip())
    texts += [f"```\n{results_table(result)}\n```" for result in results]
    texts += [comparison_table(c, len(compared), brief=False).markdown() for c in compared]
    for table in tables:
        filled = fill_table(table, entries_of(results), allow_partial=True)
        texts.append(table_text(table, filled, "markdown"))
    return "\n\n".join(texts) + "\n"


def compare_with_base(results: Sequence[Results], folder: Path) -> list[Comparison]:
    """Return all models compared with the run's base; nothing where that was not measured."""
    models = by_model(results)
    for of_one in models.values():
        require_one_checkpoint(of_one)
    weights = {name: of_one[0].identity.get("weights") for name, of_one in models.items()}
    start = read_record(folder / "run" / RECORD)[0].base
    base = next((name for name, digest in weights.items() if digest == start), None)
    others = [of_one for name, of_one in models.items() if name != base]
    return compare_all(models[base], others) if base is not None and others else []
