"""`compoclip tune DATA`: fine-tune on a user's own photos, and say whether it helped."""

from __future__ import annotations

from collections.abc import Sequence

from compoclip import console
from compoclip.cli.options import parse
from compoclip.files import require_writable
from compoclip.tune import TuneOptions, tune


def main(argv: Sequence[str]) -> int:
    """Tune, print the verdict."""
    options = parse(TuneOptions, "tune", argv)
    require_writable(options.out)
    verdict = tune(options)
    lines = [
        console.prose(verdict.sentences),
        f"{verdict.model}: the model to use",
        f"to repeat the training: compoclip train --config {verdict.config} --out RUN",
    ]
    return console.tell(options.json, verdict.record(), "\n".join(lines))
