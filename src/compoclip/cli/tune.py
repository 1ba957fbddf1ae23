"""`compoclip tune DATA`: fine-tune on a user's own photos, and say whether it helped."""

from __future__ import annotations

from compoclip.cli.options import Outcome
from compoclip.programs.tune import TuneOptions, tune


def tune_main(options: TuneOptions) -> Outcome:
    """Tune, print the verdict."""
    verdict = tune(options)
    return verdict.record(), repr(verdict)
