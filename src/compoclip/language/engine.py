"""Prompts and the engines that answer them: a chat server, or a model in this process."""

from __future__ import annotations

import email.message
import hashlib
import http.client
import importlib
import importlib.util
import json
import os
import random
import re
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from importlib.resources import files
from typing import IO, Any, Literal, Protocol, TypedDict
from urllib.parse import urlsplit

from compoclip.errors import CompoclipError, UsageError, pip_install

# --- What a language model is asked to write: the prompts, one file a task. ---

_FOLDER = files("compoclip") / "language" / "prompts"
Gives = Literal["positive", "negative", "sentences"]


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True)
class PromptTask:
    """One prompt and what is expected of its answers.

    Attributes:
        name: Of the task.
        source: Where the prompt comes from.
        gives: What the texts are to `train`.
        change: How a text may differ from its caption (see `judge`).
        most: Texts taken from one answer.
        temperature: Unless another is asked for.
        max_tokens: Unless others are asked for.
        instruction: The prompt.
        examples: (sentence, answer) pairs that the prompt shows.
        needs_word: Captions without this word are not asked about.
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
def load_task(name: str) -> PromptTask:
    """The task of a name.

    Args:
        name: One of `task_names()`.

    Returns:
        The task.

    Raises:
        UsageError: For another name; the message lists the known ones.
    """
    if name not in task_names():
        raise UsageError(f"no task '{name}'; choose from: {', '.join(task_names())}")
    data = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    examples = tuple((one, other) for one, other in data.pop("examples"))
    return PromptTask(name=name, examples=examples, **data)


# --- What answers a prompt: a server, or a model in this process. ---


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn.

    Attributes:
        temperature: 0 takes the likeliest words.
        max_tokens: Longest answer.
        seed: Fixes the draw.
    """

    temperature: float
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Answer:
    """The answer of an engine.

    Attributes:
        text: The answer.
        cut_off: Whether it ended at the token limit.
        tokens_in: Tokens of the prompt as the engine counts them; None when it does not say.
        tokens_out: Tokens of the answer, likewise.
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

    `ask` raises AskError when a question stays without an answer, CompoclipError when asking on is
    pointless (no such model, wrong key).

    Attributes:
        name: Kind of engine and where, for provenance.
        model: Which model.
        concurrency: Questions at once.
        requests: Requests made over a network so far; None for an engine in this process.
        retried: How many of them were further tries.
    """

    @property
    def requests(self) -> int | None: ...

    @property
    def retried(self) -> int | None: ...

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def concurrency(self) -> int: ...

    def ask(self, messages: Sequence[Message], sampling: Sampling) -> Answer: ...


# --- Any server with OpenAI's chat interface: vLLM, llama.cpp, Ollama, OpenAI itself. ---

#: Waits before a second try: BASE x 2^n seconds, at most LONGEST, less up to a half at random.
BASE, LONGEST = 0.5, 60.0
#: No server may make us wait longer than this, in seconds.
LONGEST_ASKED = 600.0
_MOST_BYTES = 1 << 22
_MOST_DIGITS = 15  # of a length in bytes
_POINTLESS = (401, 403, 404, 405)
_AGAIN = (408, 409, 425, 429)


@dataclass(frozen=True)
class ServerPatience:
    """How long to wait for a server.

    Attributes:
        timeout: Seconds for one answer.
        retries: Further tries of one question.
    """

    timeout: float = 120.0
    retries: int = 6


class ChatServer:
    """Asks any server with OpenAI's `/v1/chat/completions`: vLLM, llama.cpp, Ollama, OpenAI.

    A server that says "429, Retry-After" is left alone by all threads for that long. `requests` and
    `retried` count HTTP requests, and how many of them were further tries.

    Args:
        url: Of the server, with or without /v1 or the whole path.
        model: As the server calls it.
        key_variable: Environment variable that holds the API key; without it none is sent.
        concurrency: Questions at once.
        patience: Timeout and retries.
        sleep: For tests.

    Raises:
        UsageError: For a malformed URL, one that holds a password, or an empty variable.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str | None = None,
        concurrency: int = 8,
        patience: ServerPatience = ServerPatience(),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = _endpoint(url)
        self.model = model
        self.name = self._url.removesuffix("/chat/completions")
        self.concurrency = concurrency
        self.requests = self.retried = 0
        self._key = _key(key_variable)
        self._patience = patience
        self._sleep = sleep
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._answered = False
        self._opener = urllib.request.build_opener(_NoRedirects)

    def ask(self, messages: Sequence[Message], sampling: Sampling) -> Answer:
        """The answer of the server, asked again after what may pass.

        Raises AskError when all tries failed or the server refuses this question, CompoclipError
        when it would refuse any.
        """
        body = {
            "model": self.model,
            "messages": list(messages),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed,
        }
        for attempt in range(self._patience.retries + 1):
            self._wait_my_turn()
            with self._lock:
                self.requests += 1
                self.retried += attempt > 0
            try:
                answer = _read_answer(self._post(json.dumps(body).encode()))
                self._answered = True
                return answer
            except _AgainError as trouble:
                if attempt == self._patience.retries:
                    tries = f"{attempt + 1} {'try' if attempt == 0 else 'tries'}"
                    raise AskError(f"{trouble} ({tries})") from None
                self._back_off(attempt, trouble.after)
        raise AssertionError("unreachable: the last try returns or raises")

    def _post(self, body: bytes) -> bytes:
        """The body of a reply with status 200. Raises _AgainError, AskError or CompoclipError."""
        headers = {"Content-Type": "application/json", "User-Agent": "compoclip"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self._url, body, headers, method="POST")
        deadline = time.monotonic() + self._patience.timeout
        try:
            with self._opener.open(request, timeout=self._patience.timeout) as reply:
                return _read(reply, deadline)
        except urllib.error.HTTPError as error:
            raise self._objection(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise _AgainError(self._safe(f"{type(error).__name__}: {reason}")) from None

    def _objection(self, error: urllib.error.HTTPError) -> Exception:
        """The exception for a reply whose status is not 200."""
        with error:
            said = self._safe(_message(error))
        status = f"HTTP {error.code}{f', {said}' if said else ''}"
        if error.code in _AGAIN or error.code >= 500:
            after = _retry_after(error.headers.get("Retry-After"))
            return _AgainError(status, after)
        if error.code in (301, 302, 303, 307, 308):
            where = self._safe(str(error.headers.get("Location")))
            return CompoclipError(f"{self.name}: has moved to {where}; give that with --server")
        if error.code in _POINTLESS:
            return CompoclipError(f"{self.name}: {status}; {self._remedy(error.code)}")
        # Before it has answered anything, the server may not take such requests at all.
        return AskError(status, final=self._answered)

    def _remedy(self, code: int) -> str:
        if code in (401, 403):
            return "name the variable that holds the right key with --key-env"
        return f"check the URL, and that the server has the model '{self.model}'"

    def _wait_my_turn(self) -> None:
        while (left := self._not_before - time.monotonic()) > 0:
            self._sleep(left)

    def _back_off(self, attempt: int, asked: float | None) -> None:
        if asked is not None:
            with self._lock:
                self._not_before = max(self._not_before, time.monotonic() + asked)
            return
        self._sleep(min(LONGEST, BASE * 2**attempt) * random.uniform(0.5, 1.0))

    def _safe(self, text: str) -> str:
        """One short printable line without the key."""
        if self._key:
            text = text.replace(self._key, "***")
        line = " ".join(text.split())[:200]
        return "".join(c if c.isprintable() else "?" for c in line)


class _AgainError(Exception):
    """Something that may pass. after: seconds the server asks to wait."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected request would carry the key to another host; so it is an error, unread."""

    def http_error_302(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: email.message.Message,
    ) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _endpoint(url: str) -> str:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        _ = parts.port, (parts.hostname or "").encode("idna")  # refuses what is no port or host
        usable = parts.scheme in ("http", "https") and parts.hostname and not parts.query
    except ValueError:
        usable = False
    plain = url.isprintable() and " " not in url
    if not (usable and plain and parts.path.isascii()):
        raise UsageError(f"--server {url!r:.200}: write it as http://HOST:PORT/v1")
    if parts.username or parts.password:
        raise UsageError("--server: leave user and password out; keys go with --key-env VARIABLE")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}/chat/completions"


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"--key-env {variable}: this environment variable is not set")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"--key-env {variable}: holds characters that no key has")
    return key


def _read(reply: Any, deadline: float) -> bytes:
    """The body, which has to be there before the deadline however slowly it drips."""
    parts, size = [], 0
    while part := reply.read1(1 << 16):
        size += len(part)
        parts.append(part)
        if size > _MOST_BYTES:
            raise _AgainError(f"a reply of more than {_MOST_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise _AgainError("timed out")
    announced = reply.headers.get("Content-Length", "")
    if not (announced.isascii() and announced.isdigit()):
        announced = "0"  # none, or one that says nothing
    if len(announced) > _MOST_DIGITS or size < int(announced):
        raise _AgainError("the connection broke within the reply")
    return b"".join(parts)


def _read_answer(body: bytes) -> Answer:
    try:
        data = json.loads(body)
        choice = data["choices"][0]
        text = choice["message"]["content"]
        if not isinstance(text, str | None):
            raise TypeError
    except (ValueError, LookupError, TypeError, RecursionError):
        raise _AgainError("a reply that is no chat completion") from None
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Answer(
        text or "",
        choice.get("finish_reason") == "length",
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _message(error: urllib.error.HTTPError) -> str:
    """The error message in a reply."""
    try:
        raw = error.read(1 << 14)
    except (OSError, http.client.HTTPException):
        return ""
    try:
        said = json.loads(raw)
        said = said.get("error", said.get("message", said))
        if isinstance(said, dict):
            said = said.get("message", said)
    except (ValueError, AttributeError, RecursionError):
        said = raw.decode("utf-8", "replace")
    return str(said)


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
            seconds = (when.astimezone(UTC) - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):  # no date, or one that no calendar has
            return None
    return min(max(seconds, 0.0), LONGEST_ASKED) if seconds == seconds else None


# --- A small model in this process, through transformers. ---


class InProcessModel:
    """A causal language model of transformers, one prompt after the other.

    Answers depend on prompt, sampling and device only: no batches, the seed set for each. Models
    with a chat template get the conversation in it, others the plain text. Code in a model is not
    run.

    Args:
        model: Folder or repository of the Hugging Face hub.
        device: For torch.

    Raises:
        CompoclipError: When transformers is not installed, or the model cannot be loaded.
    """

    concurrency = 1
    requests: int | None = None
    retried: int | None = None

    def __init__(self, model: str, device: str = "cpu") -> None:
        if importlib.util.find_spec("transformers") is None:
            raise CompoclipError(
                f"models in this process need transformers: {pip_install('hf')}, or name a "
                "server with --server URL"
            )
        transformers: Any = importlib.import_module("transformers")
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            network = transformers.AutoModelForCausalLM.from_pretrained(model, use_safetensors=True)
        except Exception as error:  # many kinds: no such folder, no network, other architecture
            first = " ".join(str(error).split())[:200] or type(error).__name__
            raise CompoclipError(
                f"{model}: not a causal language model that transformers can load ({first}); give "
                "a folder or hub id, or a server with --server URL"
            ) from error
        self._model = network.to(device).eval()
        self._device = device
        self.name = f"transformers {transformers.__version__}"
        self.model = model

    def ask(self, messages: Sequence[Message], sampling: Sampling) -> Answer:
        """The continuation of the prompt."""
        import torch

        inputs = self._inputs(messages).to(self._device)
        room = self._room() - inputs.shape[1]
        draw = sampling.temperature > 0
        options: dict[str, Any] = {"do_sample": draw}
        if draw:
            options["temperature"] = sampling.temperature
        padding = self._tokenizer.pad_token_id
        if padding is None:
            padding = self._tokenizer.eos_token_id
        if room < 1:
            return Answer("", cut_off=True, tokens_in=inputs.shape[1], tokens_out=0)
        devices = [torch.device(self._device)] if self._device.startswith("cuda") else []
        with torch.random.fork_rng(devices), torch.inference_mode():
            torch.manual_seed(sampling.seed)
            made = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=min(sampling.max_tokens, room),
                pad_token_id=padding,
                **options,
            )[0, inputs.shape[1] :]
        ends = self._ends()
        return Answer(
            self._tokenizer.decode(made, skip_special_tokens=True),
            cut_off=not ends.intersection(made.tolist()),
            tokens_in=inputs.shape[1],
            tokens_out=len(made),
        )

    def _inputs(self, messages: Sequence[Message]) -> Any:
        if getattr(self._tokenizer, "chat_template", None):
            made = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        else:
            text = "\n\n".join(message["content"] for message in messages)
            made = self._tokenizer(text, return_tensors="pt")
        return made["input_ids"]

    def _room(self) -> int:
        config = self._model.config
        return int(getattr(config, "max_position_embeddings", None) or 1 << 20)

    def _ends(self) -> set[int]:
        ends = self._model.generation_config.eos_token_id
        listed = ends if isinstance(ends, list) else [ends, self._tokenizer.eos_token_id]
        return {end for end in listed if end is not None}
