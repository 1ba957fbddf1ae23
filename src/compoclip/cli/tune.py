"""`compoclip tune DATA`: fine-tune on a user's own photos, and say whether it helped."""

from __future__ import annotations

from compoclip import console
from compoclip.cli.options import Outcome
from compoclip.files import require_writable
from compoclip.tune import TuneOptions, tune


def main(options: TuneOptions) -> Outcome:
    """Tune, print the verdict."""
    require_writable(options.out)
    verdict = tune(options)
    lines = [
        console.prose(verdict.sentences),
        f"{verdict.model}: the model to use",
        f"to repeat the training: compoclip train --config {verdict.config} --out RUN",
    ]
    return verdict.record(), "\n".join(lines)
