"""What answers a prompt: a server, or a model in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from compoclip.language.task import Message


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn. temperature 0 takes the likeliest words; seed fixes the others."""

    temperature: float
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Answer:
    """What came back. cut_off: it ended at the token limit.

    tokens_in, tokens_out: as counted by the engine; None when it does not say.
    """

    text: str
    cut_off: bool = False
    tokens_in: int | None = None
    tokens_out: int | None = None


class AskError(Exception):
    """One question got no answer. The message says why and holds no secret.

    final: the engine will not answer this question however often it is asked.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class Engine(Protocol):
    """Answers prompts, from several threads at once if `concurrency` is above 1.

    name: what kind of engine and where, for provenance. model: which model. `ask` raises AskError
    when a question stays without an answer, CompoclipError when asking on is pointless (no such
    model, wrong key).
    """

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def concurrency(self) -> int: ...

    def ask(self, messages: Sequence[Message], sampling: Sampling) -> Answer: ...
