"""`python -m bench STAGE`: throughput of a stage, measured against a named reference.

The code of a stage is the module `bench.<stage>`, imported only when called, with
`main(arguments)` for the stage alone and `rows(inputs)` for its part of the table of `bench all`
(see `bench_rows`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from compoclip.cli.main import reported
from compoclip.errors import UsageError

# stage -> what it measures
STAGES = {
    "captions": "rewrites/s from stored parses, against tagging every caption at every step",
    "data": "images/s from files to pixels, originals and packs, against PIL and torchvision",
    "evaluate": "how many images and texts an evaluation encodes, against one item at a time",
    "memory": "bytes that a training step holds, part by part",
    "parse": "captions/s of tagging and scene-graph parsing, on one core",
    "retrieval": "seconds and memory of ranks at COCO's size and of zero-shot weights",
    "text": "captions/s of the text encoder, against open_clip's own encode_text",
    "train": "images/s of a training step, against the straightforward one",
}
ALL = "all"


def usage() -> str:
    """The text of `python -m bench --help`."""
    known = {**STAGES, ALL: "every stage, as one table with targets (--quick: within minutes)"}
    width = max(map(len, known))
    lines = ["usage: python -m bench STAGE [options]    (python -m bench STAGE --help)", ""]
    return "\n".join([*lines, *(f"  {stage:<{width}} {what}" for stage, what in known.items())])


def main(argv: Sequence[str]) -> int:
    """Run one stage; returns the exit code."""
    arguments = [word for word in argv if word != "--debug"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2

    def run() -> int:
        stage, rest = arguments[0], arguments[1:]
        if stage not in (*STAGES, ALL):
            raise UsageError(f"no stage '{stage}' to measure; one of {', '.join(STAGES)}, {ALL}")
        return int(import_module(f"bench.{stage}").main(rest))

    return reported("bench", run, "--debug" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
