"""Prompts and the engines that answer them: a chat server, or a model in this process."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from compoclip.console import counted
from compoclip.errors import CompoclipError, UsageError, closest, optional, printable, require
from compoclip.files import reason

# --- What a language model is asked to write: the prompts, one file a task. ---

_FOLDER = files("compoclip") / "language" / "prompts"
Gives = Literal["positive", "negative", "sentences"]
#: One turn of a conversation: "role" and "content".
Message = dict[str, str]


@dataclass(frozen=True)
class PromptTask:
    """One prompt and the rules for its answers.

    Attributes:
        gives: Kind of text for `train`.
        change: How a text may differ from its caption (see `judge`).
        max_texts: Most texts taken from one answer.
        temperature, max_tokens: Defaults of the sampling.
        examples: (sentence, answer) pairs that the prompt shows.
        needs_word: Captions without this word are not asked about.
    """

    name: str
    source: str
    gives: Gives
    change: Literal["swap", "replace", "verb", "spatial", "paraphrase", "any"]
    max_texts: int
    temperature: float
    max_tokens: int
    instruction: str
    examples: tuple[tuple[str, str], ...] = ()
    needs_word: str = ""

    @property
    def hash(self) -> str:
        """Return a hash of the prompt, which changes with its wording."""
        wording = {"instruction": self.instruction, "examples": self.examples}
        return hashlib.blake2b(json.dumps(wording).encode(), digest_size=8).hexdigest()

    def messages(self, caption: str) -> list[Message]:
        """Return the conversation for a caption: one user turn, which every chat template takes."""
        parts = [self.instruction.strip()]
        parts += [f"Sentence: {one}\nAnswer: {other}" for one, other in self.examples]
        parts.append(f"Sentence: {caption}\nAnswer:")
        return [{"role": "user", "content": "\n\n".join(parts)}]

    def asks(self, caption: str) -> bool:
        """Return whether the prompt applies to a caption."""
        if not caption.strip():
            return False
        return re.search(rf"\b{self.needs_word}\b", caption, re.IGNORECASE) is not None


PHOTOS = "photos"
"""The task that no prompt describes: captions of photos (see `data.captioner`)."""


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, in alphabetical order."""
    return tuple(sorted(f.name.removesuffix(".toml") for f in _FOLDER.iterdir()))


@lru_cache(maxsize=32)
def load_task(name: str) -> PromptTask:
    """Return the task of a name; raise UsageError for an unknown one.

    Args:
        name: One of `task_names()`.
    """
    names = task_names()
    if name not in names:
        raise UsageError(f"no task '{name}'; {closest(name, (*names, PHOTOS))}")
    data = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    examples = tuple((one, other) for one, other in data.pop("examples"))
    return PromptTask(name=name, examples=examples, **data)


# --- What answers a prompt: a server, or a model in this process. ---


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; temperature 0 takes the likeliest tokens."""

    temperature: float
    max_tokens: int
    seed: int


def answer_seed(*key: object) -> int:
    """Return the seed of an answer by the seed of the run and what is asked, in any order."""
    text = "\x1f".join(map(str, key)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1


@dataclass(frozen=True)
class Answer:
    """The answer of an engine.

    cut_off: whether it ended at the token limit. tokens_in, tokens_out: of prompt and answer, None
    if the engine does not count them.
    """

    text: str
    cut_off: bool = False
    tokens_in: int | None = None
    tokens_out: int | None = None


class AskError(Exception):
    """A prompt got no answer. The message says why and holds no secret.

    final: whether a retry is pointless.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class Engine(Protocol):
    """Answers prompts, from several threads at once if `concurrency` is above 1.

    name: kind and address of the engine, for provenance.
    """

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def concurrency(self) -> int: ...

    def ask(self, messages: Sequence[Message], sampling: Sampling) -> Answer:
        """Raise AskError when a prompt gets no answer, CompoclipError when no prompt can succeed
        (no such model, wrong key)."""
        ...


# --- Any server with OpenAI's chat interface: vLLM, llama.cpp, Ollama, OpenAI itself. ---


class ChatServer:
    """Engine for servers with OpenAI's `/v1/chat/completions`, through the `openai` client.

    The client does retries, waits, Retry-After and timeouts. The key is sent to the named server
    only, since redirections are refused, and appears in no message.

    Args:
        url: Address of the server, with or without /v1 or the whole path.
        model: Name of the model on the server.
        key_variable: Environment variable with the API key; None sends no key.
        concurrency: Prompts in flight.
        timeout: Seconds without a response before a request is given up.
        retries: Retries after transient errors.

    Raises:
        UsageError: For a malformed URL, one that holds a password, or an empty variable.
        CompoclipError: When openai is not installed.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str | None = None,
        concurrency: int = 8,
        timeout: float = 120.0,
        retries: int = 6,
    ) -> None:
        self.name, self.model, self.concurrency = _base(url), model, concurrency
        self._key, self._retries = _key(key_variable), retries
        self._openai = optional("openai", "language", "--server")
        self._answered = False
        client = self._openai.OpenAI(
            base_url=self.name,
            api_key=self._key or "none",
            timeout=timeout,
            max_retries=retries,
            http_client=self._openai.DefaultHttpxClient(follow_redirects=False),
        )
        headers = {} if self._key else {"Authorization": self._openai.Omit()}
        self._create: Any = partial(client.chat.completions.create, extra_headers=headers)

    def ask(self, messages: Sequence[Message], sampling: Sampling) -> Answer:
        """Return the answer of the server, with retries after transient errors."""
        for _ in range(self._retries + 1):
            try:
                reply = self._create(
                    model=self.model,
                    messages=list(messages),
                    temperature=sampling.temperature,
                    max_tokens=sampling.max_tokens,
                    seed=sampling.seed,
                )
                choice, text = reply.choices[0], reply.choices[0].message.content
                if not isinstance(text, str | None):
                    raise TypeError(text)
                names = "prompt_tokens", "completion_tokens"
                counts = [getattr(reply.usage, name, None) for name in names]
                tokens = [count if type(count) is int and count >= 0 else None for count in counts]
                answer = Answer(text or "", choice.finish_reason == "length", *tokens)
            except self._openai.APIStatusError as error:
                raise self._objection(error) from None
            except self._openai.OpenAIError as error:
                cause = self._safe(str(error.__cause__ or ""))
                raise AskError(f"{self._safe(str(error))} {cause}".strip()) from None
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                continue  # a reply that is no chat completion
            self._answered = True
            return answer
        raise AskError(f"no reply is a chat completion ({counted(self._retries + 1, 'try')})")

    def _objection(self, error: Any) -> Exception:
        """The exception for a reply whose status is not 200."""
        code, said = error.status_code, error.body
        if isinstance(said, dict):
            said = said.get("message", said)
        status = self._safe(f"HTTP {code}{f', {said}' if said else ''}")
        if code in (301, 302, 303, 307, 308):
            location = self._safe(str(error.response.headers.get("Location")))
            return CompoclipError(f"{self.name}: has moved to {location}; give that with --server")
        if code in (401, 403, 404, 405):
            remedy = f"check the URL, and that the server has the model '{self.model}'"
            if code in (401, 403):
                remedy = "name the variable that holds the right key with --key-env"
            return CompoclipError(f"{self.name}: {status}; {remedy}")
        # Before it has answered anything, the server may not take such requests at all.
        passing = code in (408, 409, 425, 429) or code >= 500
        return AskError(status, final=self._answered and not passing)

    def _safe(self, text: str) -> str:
        """One short printable line without the key."""
        if self._key:
            text = text.replace(self._key, "***")
        return printable(" ".join(text.split()), 200)


def _base(url: str) -> str:
    """The base address of a server for the client."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        _ = parts.port, (parts.hostname or "").encode("idna")  # refuses what is no port or host
        usable = parts.scheme in ("http", "https") and parts.hostname and not parts.query
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url or not parts.path.isascii():
        raise UsageError(f"--server {url!r:.200}: write it as http://HOST:PORT/v1")
    if parts.username or parts.password:
        raise UsageError("--server: leave user and password out; keys go with --key-env VARIABLE")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    key, option = os.environ.get(variable, "").strip(), f"--key-env {variable}"
    require(key, option, "this environment variable is not set", UsageError)
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"{option}: holds characters that no key has")
    return key


# --- A small model in this process, through transformers. ---


class InProcessModel:
    """A causal language model of transformers, one prompt at a time.

    Answers depend on prompt, sampling and device only: prompts are not batched, and each sets the
    seed. Models with a chat template get the conversation in it, others the plain text. Remote
    code of a model is never run.

    Args:
        model: Folder or repository of the Hugging Face hub.
        device: For torch.

    Raises:
        CompoclipError: When transformers is not installed, or the model cannot be loaded.
    """

    concurrency = 1

    def __init__(self, model: str, device: str = "cpu") -> None:
        transformers = optional("transformers", "hf", "a model without --server")
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            network = transformers.AutoModelForCausalLM.from_pretrained(model, use_safetensors=True)
        except Exception as error:  # many kinds: no such folder, no network, other architecture
            raise CompoclipError(
                f"{model}: not a causal language model that transformers can load "
                f"({reason(error)}); give a folder or hub id, or a server with --server URL"
            ) from error
        self._model = network.to(device).eval()
        self._device = device
        self.name = f"transformers {transformers.__version__}"
        self.model = model

    def ask(self, messages: Sequence[Message], sampling: Sampling) -> Answer:
        """Return the continuation of the prompt."""
        import torch

        if getattr(self._tokenizer, "chat_template", None):
            encoded = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        else:
            text = "\n\n".join(message["content"] for message in messages)
            encoded = self._tokenizer(text, return_tensors="pt")
        inputs = encoded["input_ids"].to(self._device)
        size = inputs.shape[1]
        room = int(getattr(self._model.config, "max_position_embeddings", None) or 1 << 20) - size
        if room < 1:
            return Answer("", cut_off=True, tokens_in=size, tokens_out=0)
        warm = {"temperature": sampling.temperature} if sampling.temperature > 0 else {}
        last, padding = self._tokenizer.eos_token_id, self._tokenizer.pad_token_id
        devices = [torch.device(self._device)] if self._device.startswith("cuda") else []
        with torch.random.fork_rng(devices), torch.inference_mode():
            torch.manual_seed(sampling.seed)
            answer = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=min(sampling.max_tokens, room),
                pad_token_id=last if padding is None else padding,
                do_sample=bool(warm),
                **warm,
            )[0, size:]
        ends = self._model.generation_config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [ends, last]) - {None}
        text = self._tokenizer.decode(answer, skip_special_tokens=True)
        return Answer(text, ends.isdisjoint(answer.tolist()), size, len(answer))
