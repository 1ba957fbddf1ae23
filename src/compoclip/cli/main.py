"""`compoclip VERB ...`: finds the verb, imports only that verb, turns errors into one line."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from compoclip.errors import CompoclipError
from compoclip.interrupts import ENDING, end_with_parent, signal_of
from compoclip.ranks import launched, silent
from compoclip.version import __version__

# verb -> what it does; the verb's code is compoclip.cli.<verb with _>, imported only when called.
VERBS = {
    "demo": "the main job, offline, on the bundled world; ends with a report",
    "train": "fine-tune with a published method, or pre-train with --from-scratch",
    "methods": "list the training methods: paper, texts, losses, defaults",
    "evaluate": "measure models on benchmarks",
    "compare": "paired comparison of results, with significance",
    "wise-ft": "mix the weights of a fine-tuned model with those of its base, or sweep all mixes",
    "towers": "which tower of a fine-tuned model carries what it gained",
    "tree-score": "how tree-like text encoders compute",
    "maps": "which patches of an image the words of a caption align with",
    "inspect": "what a checkpoint is: architecture, activation, adapter, sizes, origin",
    "convert": "write a model as open_clip, Hugging Face, LoRA, PEFT or ONNX",
    "push": "put a model on the Hugging Face hub",
    "rewrite": "show or mass-produce hard negatives and hard positives of captions",
    "caption": "let a language model write positives, negatives, dense captions, paraphrases",
    "parse": "tags and scene graphs of captions",
    "data": "benchmark data: list, check, fetch, audit",
    "world": "make scenes, captions, training sets and benchmarks",
    "report": "write an HTML report from results",
    "play": "web playground: an image, a caption, its rewrites, and what models make of them",
}

# Verbs whose code is in the module of a related verb: verb -> module, function.
_ELSEWHERE = {
    "towers": ("wise_ft", "towers_main"),
    "convert": ("inspect", "convert_main"),
    "push": ("inspect", "push_main"),
    "parse": ("rewrite", "parse_main"),
}

SHARED = ("train", "evaluate")  # verbs that several processes (torchrun) carry out together

_PIPE_CLOSED = 141  # as if ended by the signal, like other programs


def usage() -> str:
    """The text of `compoclip --help`."""
    lines = [
        f"compoclip {__version__}: fine-tune CLIP for compositionality, measure it honestly",
        "",
        "usage: compoclip VERB [options]    (compoclip VERB --help explains a verb)",
        "",
        *(f"  {verb:<11} {summary}" for verb, summary in VERBS.items()),
        "",
        "every verb takes --json (machine-readable output) and --debug (full traceback)",
        "exit codes: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM",
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
        close = difflib.get_close_matches(verb, VERBS)
        hint = f"did you mean {' or '.join(close)}?" if close else "see compoclip --help"
        print(f"compoclip: no verb '{verb}'; {hint}", file=sys.stderr)
        return 2

    def run() -> int:
        place, function = _ELSEWHERE.get(verb, (verb.replace("-", "_"), "main"))
        module = importlib.import_module(f"compoclip.cli.{place}")
        with nullcontext() if _speaks(verb) else silent():
            return int(getattr(module, function)(rest))

    return reported(f"compoclip {verb}", run, "--debug" in argv, _speaks(verb))


def reported(program: str, run: Callable[[], int], debug: bool = False, aloud: bool = True) -> int:
    """The exit code of `run`, an error told in one line that begins with `program`.

    debug: let errors through, with their traceback. aloud: whether to print the line.
    """

    def failed(message: str, code: int) -> int:
        if aloud:
            print(f"{program}: {message}", file=sys.stderr)
        return code

    def interrupted(number: int) -> int:
        how = "ended by SIGTERM" if number == signal.SIGTERM else "interrupted"
        return failed(how, 128 + number)

    try:
        return run()
    except KeyboardInterrupt as error:
        return interrupted(signal_of(error))
    except BrokenPipeError:
        raise  # the reader of the output, e.g. `head`, has seen enough; see entry
    except Exception as error:
        if debug:
            raise
        if isinstance(error, CompoclipError):
            return failed(str(error), error.exit_code)
        if ENDING.got:  # libraries that are interrupted while they load fail in ways of their own
            return interrupted(ENDING.got)
        if isinstance(error, OSError):
            what = f"{error.filename or 'output'}: {error.strerror or error}"
            return failed(f"{what}; check the path, its rights and the free space", 1)
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return failed(f"{what}; not foreseen: --debug shows where it comes from", 1)


def _speaks(verb: str) -> bool:
    """Whether this process is the one of its run that prints; see `compoclip.ranks`."""
    return verb not in SHARED or launched()[0] == 0


def entry() -> None:
    """Console-script entry point."""
    code: int | str | None
    ENDING.install()
    end_with_parent()
    try:
        code = main(sys.argv[1:])
    except BrokenPipeError:
        code = _PIPE_CLOSED
    except OSError as error:
        code = _unwritten(error)
    except SystemExit as end:  # how the option parser ends after --help or a wrong option
        code = end.code
    sys.exit(_flushed(code))


def _flushed(code: int | str | None) -> int | str | None:
    """Write what standard output holds back; the exit code after that.

    Done here rather than at exit, where errors cannot be caught any more.
    """
    try:
        sys.stdout.flush()
        return code
    except OSError as error:
        # what is left goes nowhere, so that closing the output does not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _PIPE_CLOSED
        return code or _unwritten(error)


def _unwritten(error: OSError) -> int:
    print(f"compoclip: cannot write the output ({error.strerror})", file=sys.stderr)
    return 1
