"""`compoclip bundle` and `compoclip verify`: results that others can check without a GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from compoclip import console
from compoclip.cli.options import Outcome, Printing
from compoclip.config import Shown
from compoclip.errors import printable


@dataclass(frozen=True, kw_only=True)
class BundleOptions(Printing):
    """Put a run, its results and their items into one bundle that `verify` checks.

    The run's configuration and log, the results of all models with the outcome of every item, and
    hashes of weights, data, code and files. Weights and photos stay out; paths on this machine that
    results and configuration name go in.

    Examples:
        compoclip bundle runs/fsc --results results --out fsc-bundle.zip

    Args:
        run: Folder of a finished run.
        results: Results of its model, and of its base, which it is compared with.
        out: New folder, or file that ends in .zip.
        against: Published tables whose columns the page of the bundle shows.
    """

    run: Annotated[Path, Shown("RUN", positional=True)]
    results: Path
    out: Path
    against: Annotated[tuple[str, ...], Shown("TABLE ...")] = ()


def main(options: BundleOptions) -> Outcome:
    """Write a bundle, say where it is."""
    from compoclip.evaluation.bundle import write_bundle

    out = write_bundle(options.run, options.results, options.out, options.against)
    text = f"{out}: written; compoclip verify {out} checks it"
    return {"bundle": str(out)}, text


@dataclass(frozen=True)
class VerifyOptions(Printing):
    """Compute scores, intervals and tests of bundles again from their items; check all hashes.

    Ends with 1 when anything differs. What the files cannot show is listed: above all, a bundle
    has no signature, and only evaluating the weights shows that they give these scores.

    Examples:
        compoclip verify fsc-bundle.zip

    Args:
        bundles: Folders, or .zip or .tar.gz files.
    """

    bundles: Annotated[tuple[Path, ...], Shown("BUNDLE ...", positional=True, hint="(required)")]


def verify_main(options: VerifyOptions) -> Outcome:
    """Return what was checked and what was not, with exit code 1 if anything is wrong."""
    from compoclip.evaluation.bundle import verify_bundle

    found = {str(path): verify_bundle(path) for path in options.bundles}
    texts = []
    for path, report in found.items():
        rows = [[word, line] for word, lines in asdict(report).items() for line in lines]
        texts.append(f"{path}\n\n{console.columns(rows)}")
    wrong = [f"{path}: {line}" for path, report in found.items() for line in report.wrong]
    if wrong:
        more = f"; and {len(wrong) - 1} more, listed below" if len(wrong) > 1 else ""
        console.note(f"compoclip verify: {printable(wrong[0] + more)}")
    record = {path: asdict(each) for path, each in found.items()}
    return record, "\n\n".join(texts), int(bool(wrong))
