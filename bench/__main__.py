"""`python -m bench STAGE`: throughput of a stage, measured against a named reference."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from compoclip.cli.main import Verbs, reported

# stage -> what it measures
STAGES = {
    "captions": "rewrites/s from stored parses, against tagging every caption at every step",
    "cost": "operations of a training step of a recipe, against FSC-CLIP's",
    "data": "images/s from files to pixels, originals and packs, against PIL and torchvision",
    "evaluate": "how many images and texts an evaluation encodes, against one item at a time",
    "host": "milliseconds of the main process in a training step, part by part",
    "memory": "bytes that a training step holds, part by part",
    "parse": "captions/s of tagging and scene-graph parsing, on one core",
    "peers": "seconds and memory of the same work by compoclip and by other tools",
    "retrieval": "seconds and memory of ranks at COCO's size and of zero-shot weights",
    "scale": "seconds and memory of commands while their data grow tenfold",
    "serve": "requests/s of the model server, many clients against one after the other",
    "text": "captions/s of the text encoder, against open_clip's own encode_text",
    "train": "images/s of a training step, against the straightforward one",
}
_EVERY = {"all": "every stage, as one table with targets"}
_NOTES = ("", "--quick measures less of everything, within minutes; --json prints JSON.")


class _Stages(Verbs):
    def call(self, name: str, arguments: Sequence[str]) -> int:
        """Measure a stage; torch is imported only then."""
        from bench.harness import run

        return run(STAGES, name, arguments)


_TABLE = {name: (about, name) for name, about in (STAGES | _EVERY).items()}
_PROGRAM = _Stages("python -m bench", "STAGE", _TABLE, _NOTES)


def main(argv: Sequence[str]) -> int:
    """Run one stage; returns the exit code."""
    arguments = [word for word in argv if word != "--debug"]
    return reported("bench", lambda: _PROGRAM.main(arguments), "--debug" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
