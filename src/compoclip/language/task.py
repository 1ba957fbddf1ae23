"""What a language model is asked to write: the prompts, one file a task."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Literal, TypedDict

from compoclip.errors import UsageError

_FOLDER = files("compoclip") / "language" / "prompts"
Gives = Literal["positive", "negative", "sentences"]


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True)
class Task:
    """One prompt and what is expected of its answers.

    gives: what the texts are to `train`. change: how a text may differ from its caption (see
    `judge`). most: texts taken from one answer. needs_word: captions without this word are not
    asked about. examples: (sentence, answer) pairs that the prompt shows.
    """

    name: str
    source: str
    gives: Gives
    change: Literal["swap", "replace", "verb", "spatial", "paraphrase", "any"]
    most: int
    temperature: float
    max_tokens: int
    instruction: str
    examples: tuple[tuple[str, str], ...] = ()
    needs_word: str = ""

    @property
    def hash(self) -> str:
        """Tells this prompt from any other wording of the task."""
        shown = {"instruction": self.instruction, "examples": self.examples}
        return hashlib.blake2b(json.dumps(shown).encode(), digest_size=8).hexdigest()

    def messages(self, caption: str) -> list[Message]:
        """The conversation for a caption: one user turn, which every chat template knows."""
        parts = [self.instruction.strip()]
        parts += [f"Sentence: {one}\nAnswer: {other}" for one, other in self.examples]
        parts.append(f"Sentence: {caption}\nAnswer:")
        return [{"role": "user", "content": "\n\n".join(parts)}]

    def asks(self, caption: str) -> bool:
        """Whether there is anything to ask about a caption."""
        if not caption.strip():
            return False
        return re.search(rf"\b{self.needs_word}\b", caption, re.IGNORECASE) is not None

    def record(self) -> dict[str, object]:
        """The task as data."""
        return asdict(self)


def task_names() -> tuple[str, ...]:
    """Names of all tasks, in alphabetical order."""
    return tuple(sorted(f.name.removesuffix(".toml") for f in _FOLDER.iterdir()))


@lru_cache(maxsize=32)
def load_task(name: str) -> Task:
    """The task of that name. Raises UsageError with the known names for another one."""
    if name not in task_names():
        raise UsageError(f"no task '{name}'; choose from: {', '.join(task_names())}")
    data = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    examples = tuple((one, other) for one, other in data.pop("examples"))
    return Task(name=name, examples=examples, **data)
