"""`compoclip VERB ...`: finds the verb, imports only that verb, turns errors into one line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

from compoclip import __version__
from compoclip.errors import CompoclipError

# verb -> what it does; the verb's code is compoclip.cli.<verb with _>, imported only when called.
VERBS = {
    "demo": "the main job, offline, on the bundled world; ends with a report",
    "train": "fine-tune with a published method, or pre-train with --from-scratch",
    "evaluate": "measure models on benchmarks",
    "compare": "paired comparison of results, with significance",
    "rewrite": "show or mass-produce hard negatives and hard positives of captions",
    "world": "make scenes, captions, training sets and benchmarks",
    "report": "write an HTML report from results",
    "bench": "measure throughput",
}


def usage() -> str:
    """The text of `compoclip --help`."""
    lines = [
        f"compoclip {__version__}: fine-tune CLIP for compositionality, measure it honestly",
        "",
        "usage: compoclip VERB [options]    (compoclip VERB --help explains a verb)",
        "",
        *(f"  {verb:<10} {summary}" for verb, summary in VERBS.items()),
        "",
        "every verb takes --json (machine-readable output) and --debug (full traceback)",
        "exit codes: 0 done, 1 failed, 2 wrong usage",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run one verb; returns the exit code."""
    arguments = [a for a in argv if a != "--debug"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(__version__)
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        print(f"compoclip: no verb '{verb}'; see compoclip --help", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(f"compoclip.cli.{verb.replace('-', '_')}")
        run: Callable[[Sequence[str]], int] = module.main
        return run(rest)
    except CompoclipError as error:
        if "--debug" in argv:
            raise
        print(f"compoclip {verb}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"compoclip {verb}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1


def entry() -> None:
    """Console-script entry point."""
    sys.exit(main(sys.argv[1:]))
