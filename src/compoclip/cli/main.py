"""`compoclip VERB ...`: finds the verb, imports only that verb, turns errors into one line."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, cast

from compoclip import plugins
from compoclip.config import hint_for
from compoclip.console import columns, help_width, refilled
from compoclip.errors import NEEDS_WORLD, CompoclipError, UsageError, printable
from compoclip.interrupts import ENDING, end_with_parent, signal_of
from compoclip.printed import tell
from compoclip.process import set_up
from compoclip.ranks import silent
from compoclip.version import __version__


@dataclass(frozen=True)
class Verbs:
    """The verbs of a program, or of a verb that has some of its own.

    program: e.g. "compoclip data". noun: what a verb is called in its usage, e.g. "TASK". table:
    name -> what it does and where its code is, "module" or "module:function" of `package` (or with
    all its packages, "a.b"), imported only when called; the function is VERB_main or main unless
    named. notes: lines below the table. groups: first name of a group -> its heading.
    """

    program: str
    noun: str
    table: Mapping[str, tuple[str, str]]
    notes: tuple[str, ...] = ()
    package: str = "compoclip.cli"
    groups: Mapping[str, str] = field(default_factory=dict)

    def usage(self) -> str:
        """The text of PROGRAM --help."""
        rows = []
        for name, (about, _) in self.table.items():
            if name in self.groups:
                rows.append([self.groups[name], ""])
            rows.append([f"  {name}", about])
        how = f"usage: {self.program} {self.noun} [options]"
        more = f"       {self.program} {self.noun} --help"
        width = help_width()
        notes = [refilled(line, width) for line in self.notes]
        return "\n".join([how, more, "", columns(rows, width), *notes])

    def function(self, name: str) -> Callable[[Any], Any]:
        """Import the module of one of them and return its function."""
        module, _, function = self.table[name][1].partition(":")
        code = importlib.import_module(module if "." in module else f"{self.package}.{module}")
        usual = f"{name.replace('-', '_')}_main"
        run: Callable[[Any], Any] = getattr(
            code, function or (usual if hasattr(code, usual) else "main")
        )
        return run

    def call(self, name: str, arguments: Sequence[str]) -> int:
        """Run one of them, print its outcome; return the exit code.

        A function whose parameter is a class of options of its module gets these, parsed; any other
        gets the arguments.
        """
        run = self.function(name)
        parameter = str(next(iter(getattr(run, "__annotations__", {}).values()), ""))
        kind = vars(sys.modules[run.__module__]).get(parameter)
        if not is_dataclass(kind):
            return int(run(arguments))
        from compoclip.cli.options import parse

        options: Any = parse(cast(type, kind), f"{self.program} {name}", arguments)
        outcome = run(options)
        if isinstance(outcome, int):
            return outcome
        record, text, *failed = outcome
        return tell(options.json, record, text) or sum(failed)

    def hint(self, name: str) -> str:
        """Return which verb an unknown one may mean."""
        return hint_for(name, "verbs", self.table)

    def main(self, arguments: Sequence[str]) -> int:
        """Show the usage, or run what the first argument names; returns the exit code."""
        if not arguments or arguments[0] in ("-h", "--help"):
            print(self.usage())
            return 0 if arguments else 2
        if arguments[0] not in self.table:
            hint = self.hint(arguments[0])
            raise UsageError(f"no {self.noun} '{arguments[0]}'; {hint}")
        return self.call(arguments[0], arguments[1:])


# verb -> what it does, and the function that does it
VERBS = {
    "train": ("fine-tune with a published method; --from-scratch pre-trains", "train"),
    "tune": ("fine-tune on your own photos, measure, and say whether it helped", "tune"),
    "sweep": ("train with many settings, and write a table and a report", "train"),
    "wise-ft": ("mix the weights of a fine-tuned model and its base", "explain"),
    "evaluate": ("measure models on benchmarks", "results"),
    "compare": ("compare results item by item, and test the differences", "results"),
    "report": ("write an HTML report from results", "results"),
    "reproduce": ("reproduce a paper: download, train, measure, bundle", "reproduce"),
    "bundle": ("put results, their items, the run and hashes together for others", "results"),
    "verify": ("compute the scores and tests of a bundle again; check its hashes", "results"),
    "towers": ("measure how much each tower contributes to the gains", "explain"),
    "tree-score": ("measure how tree-like text encoders compute", "explain"),
    "maps": ("draw which patches of an image the words of a caption align with", "explain"),
    "nearest": ("show the captions that models put nearest to images", "explain"),
    "rewrite": ("show or write hard negatives and hard positives of captions", "rewrite"),
    "caption": ("let a language model write positives, negatives and paraphrases", "caption"),
    "parse": ("show or write tags and scene graphs of captions", "rewrite"),
    "data": ("list, fetch, check, audit and pack data", "data"),
    "index": ("encode photos of your own once, for search", "serve"),
    "search": ("find photos of an index by texts or images", "serve"),
    "play": ("open a web playground: score an image with captions and rewrites", "serve"),
    "serve": ("serve embeddings and scores over HTTP, with dynamic batching", "serve"),
    "inspect": ("show a checkpoint's architecture, activation, sizes and origin", "inspect"),
    "convert": ("write a model as open_clip, Hugging Face, LoRA, PEFT or ONNX", "inspect"),
    "push": ("upload a model to the Hugging Face hub", "inspect"),
    "list": ("list methods, losses, rewrites or benchmarks, with their origin", "lists"),
    "new": ("write a template: method, rewrite, loss, benchmark or model", "lists"),
    "cache": ("show or clear cached parses, features and indexes", "lists"),
}
_NOTES = (
    "",
    "every verb takes --json (machine-readable output) and --debug (full traceback)",
    "exit codes: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM",
)
_GROUPS = {
    "demo": "Try",
    "train": "Train",
    "evaluate": "Measure",
    "towers": "Explain",
    "rewrite": "Data",
    "index": "Serve",
    "inspect": "Models",
    "list": "More",
}
_PROGRAM = Verbs("compoclip", "VERB", VERBS, _NOTES, groups=_GROUPS)
_OF_WORLD = ("demo", "world")

SHARED = ("train", "evaluate")  # verbs that several processes (torchrun) carry out together


def main(argv: Sequence[str]) -> int:
    """Run one verb; returns the exit code."""
    arguments = [a for a in argv if a != "--debug"]
    if arguments[:1] in (["-V"], ["--version"]):
        print(__version__)
        return 0
    verb = arguments[0] if arguments else ""
    # Of a verb that several processes share only rank 0 prints.
    aloud = verb not in SHARED or os.environ.get("RANK", "0") == "0"

    def run() -> int:
        verbs = _PROGRAM if verb in VERBS else all_verbs()
        if verb == "help" and arguments[1:]:  # help of a verb, as other programs spell it
            return main([*arguments[1:], "--help"])
        if verb in ("", "-h", "--help", "help"):
            title = "fine-tune CLIP for compositionality, and measure the effect"
            print(refilled(f"compoclip {__version__}: {title}", help_width()))
            print(f"\n{verbs.usage()}")
            return 0 if arguments else 2
        if verb not in verbs.table:
            if verb in _OF_WORLD:
                raise UsageError(f"the verb '{verb}' {NEEDS_WORLD}")
            raise UsageError(f"no verb '{verb}'; {verbs.hint(verb)}")
        with nullcontext() if aloud else silent():
            return verbs.call(verb, arguments[1:])

    return reported(f"compoclip {verb}".strip(), run, "--debug" in argv, aloud)


def all_verbs() -> Verbs:
    """Return all verbs, first what other packages add (entry points `compoclip.verbs`)."""
    added = {
        name: plugins.imported(point, "verb") for name, point in plugins.installed("verbs").items()
    }
    return replace(_PROGRAM, table={**added, **VERBS})


def reported(program: str, run: Callable[[], int], debug: bool = False, aloud: bool = True) -> int:
    """Return the exit code of `run`; an error is printed as one line that begins with `program`.

    debug: let errors through, with their traceback. aloud: whether to print the line.
    """
    message, code = "", 1
    try:
        with plugins.fence():
            return run()
    except KeyboardInterrupt as error:
        number = signal_of(error)
    except BrokenPipeError:
        raise  # the reader of the output, e.g. `head`, has seen enough; see entry
    except Exception as error:
        if debug:
            raise
        number = 0
        if isinstance(error, CompoclipError):
            message, code = str(error), error.exit_code
        elif ENDING.got:  # libraries interrupted while they load fail in ways of their own
            number = ENDING.got
        elif isinstance(error, OSError):
            problem = f"{error.filename or 'output'}: {error.strerror or error}"
            message = f"{problem}; check the path, its rights and the free space"
        else:
            problem = f"{type(error).__name__}: {error}"
            message = f"{problem}; not foreseen: --debug shows where it comes from"
    if number:
        message = "ended by SIGTERM" if number == signal.SIGTERM else "interrupted"
        code = 128 + number
    if aloud:
        print(printable(f"{program}: {message}"), file=sys.stderr)
    return code


def entry() -> None:
    """Console-script entry point."""
    # Imports make half a million objects, all of which stay: asking takes a sixth of their time.
    gc.set_threshold(50_000, 50)
    set_up()
    ENDING.install()
    end_with_parent()
    code: int | str | None
    try:
        try:
            code = main(sys.argv[1:])
        except SystemExit as end:  # how the option parser ends after --help or a wrong option
            code = end.code
        sys.stdout.flush()
    except OSError as error:
        # what is left goes nowhere, so that closing the output does not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141  # as if ended by the signal, like other programs
        if not isinstance(error, BrokenPipeError):
            code = 1
            print(f"compoclip: cannot write the output ({error.strerror})", file=sys.stderr)
    sys.exit(code)
