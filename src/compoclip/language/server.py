"""Any server with OpenAI's chat interface: vLLM, llama.cpp, Ollama, OpenAI itself."""

from __future__ import annotations

import email.message
import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import IO, Any
from urllib.parse import urlsplit

from compoclip.errors import CompoclipError, UsageError
from compoclip.language.engine import Answer, AskError, Sampling
from compoclip.language.task import Message

#: Waits before a second try: BASE x 2^n seconds, at most LONGEST, less up to a half at random.
BASE, LONGEST = 0.5, 60.0
#: No server may make us wait longer than this, in seconds.
LONGEST_ASKED = 600.0
_MOST_BYTES = 1 << 22
_MOST_DIGITS = 15  # of a length in bytes
_POINTLESS = (401, 403, 404, 405)
_AGAIN = (408, 409, 425, 429)


@dataclass(frozen=True)
class Patience:
    """timeout: seconds for one answer. retries: further tries of one question."""

    timeout: float = 120.0
    retries: int = 6


class ChatServer:
    """Asks a server with `/v1/chat/completions`.

    requests, retried: HTTP requests made, and how many of them were further tries. A server that
    says "429, Retry-After" is left alone by all threads for that long.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str | None = None,
        concurrency: int = 8,
        patience: Patience = Patience(),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """url: of the server, with or without /v1 or the whole path. key_variable: the environment
        variable that holds the API key; without it none is sent.

        Raises UsageError for a malformed URL, one that holds a password, or an empty variable.
        """
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
        """What a reply with another status than 200 means."""
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
    """What the server says is wrong."""
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
