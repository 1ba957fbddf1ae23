"""Errors that a user can act on: one clear line, the file it concerns, what to do next."""

from __future__ import annotations

_LONGEST = 4000  # characters


class CompoclipError(Exception):
    """The run failed for a reason the user can mend. The command line prints it and exits 1.

    The message is one line: what is wrong, in which file, and the remedy. Line breaks in what it
    quotes of a file (a column's name, a key) become blanks, and the middle of a very long one goes.
    """

    exit_code = 1

    def __init__(self, message: object = "") -> None:
        line = " ".join(str(message).splitlines())
        if len(line) > _LONGEST:
            line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
        super().__init__(line)


class UsageError(CompoclipError):
    """The request itself is wrong (unknown name, bad option). The command line exits 2."""

    exit_code = 2


class RunInterruptedError(CompoclipError):
    """The run was asked to stop and can be resumed. The command line exits with 128 + signal, as
    shells do: 130 after Ctrl-C, 143 after SIGTERM."""

    def __init__(self, message: str, signal: int = 2) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


NEEDS_WORLD = "comes with compoclip-world: run pip install ./world in a checkout of the repository"
"""How the message ends for what the distribution `world/` brings and is not installed."""

_EXTRAS = {
    "hf": "transformers peft",
    "datasets": "datasets",
    "onnx": "onnx onnxscript onnxruntime",
    "track": "tensorboard wandb",
    "ray": "ray",
    "spacy": "spacy",
}


def pip_install(extra: str) -> str:
    """Spell the command that installs what an optional feature needs.

    It names the packages themselves: `pip install 'compoclip[...]'` would ask an index for a
    package of that name, whatever this one was installed from.

    Args:
        extra: Name of the extra in pyproject.toml.

    Returns:
        E.g. "pip install ray".
    """
    return f"pip install {_EXTRAS[extra]}"
