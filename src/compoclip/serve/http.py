"""An HTTP server of pages and JSON answers that strangers and slow clients cannot wear down.

The playground and `compoclip serve` stand on it. Requests hold a bounded number of bytes, names
that are not the server's are refused, and what is wrong in a request is told in a line of JSON.
"""

from __future__ import annotations

import io
import ipaddress
import json
import math
import os
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

from compoclip.errors import CompoclipError, UsageError

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_CONNECTIONS = 512  # each is a thread; beyond them, who has asked for nothing the longest must go
_TIMEOUT = 30.0  # seconds for the head of a request, from the moment it may come; and for an answer
_GRACE, _SPEED = 10.0, 100_000.0  # seconds for its body, and bytes that each further one must bring
_PATIENCE = 120.0  # seconds a request may wait to be read
_LINGER = 2.0  # seconds to read on what a refused client still sends, so that it reads the reason
_AGAIN = "1"  # seconds after which who was turned away may come back

_JSON = "application/json"
Page = tuple[bytes, str]
"""What a GET answers: the bytes and their content type."""
Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
"""What a POST answers to the object in it. Raises CompoclipError for what is wrong there."""


class HttpError(CompoclipError):
    """An answer that is no success and that its status says more of than 400 would.

    Args:
        status: Of HTTP: 4xx, or 503 when there is no room now.
        message: One line.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class RequestLimits:
    """How much of requests is held at once.

    Args:
        body: Bytes of one request.
        held: Bytes of all requests; one that is beyond them waits unread.
        waiting: Requests; one that is beyond them is turned away.
    """

    body: int
    held: int
    waiting: int = 256


class Budget:
    """Bytes that requests may hold together; who finds too few left waits, in order."""

    def __init__(self, size: int) -> None:
        self.left = size
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    @contextmanager
    def take(self, size: int, patience: float) -> Iterator[bool]:
        """Hold `size` bytes while the block runs; yields False when they did not become free."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            had = self._changed.wait_for(
                lambda: self._queue[0] is ticket and self.left >= size, patience
            )
            self._queue.remove(ticket)
            self.left -= size if had else 0
            self._changed.notify_all()
        try:
            yield had
        finally:
            with self._changed:
                self.left += size if had else 0
                self._changed.notify_all()


def is_loopback(host: str) -> bool:
    """True if only this computer can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _RequestReader(io.RawIOBase):
    """Reads a connection, within a time that grows with what has arrived."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.allow(_TIMEOUT)

    def allow(self, grace: float, speed: float = math.inf) -> None:
        """From now on let it take `grace` seconds, and one more for every `speed` bytes."""
        self._start, self._got = time.monotonic(), 0
        self._grace, self._speed = grace, speed

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for some bytes. Raises TimeoutError."""
        left = self._start + self._grace + self._got / self._speed - time.monotonic()
        if left <= 0:
            raise TimeoutError("too slow")
        self._connection.settimeout(left)
        got = self._connection.recv_into(buffer)
        self._got += got
        return got


class JsonHandler(BaseHTTPRequestHandler):
    """Handles the requests of one connection, one after the other."""

    server: JsonServer
    server_version, sys_version = "compoclip", ""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer's body waits 40 ms for its head to be confirmed
    timeout = _TIMEOUT

    def setup(self) -> None:
        """Read with a time limit."""
        super().setup()
        self.rfile.close()
        self._reader = _RequestReader(self.connection)
        self.rfile = io.BufferedReader(self._reader)
        self._unread, self._refused = True, False

    def finish(self) -> None:
        """Read for a moment what a refused client still sends: a connection that is closed with
        bytes unread is reset, and the client might not come to see why."""
        if self._refused:
            self.server.idle(self.connection, True)
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)
                self._reader.allow(_LINGER)
                while self._reader.readinto(bytearray(1 << 16)):
                    pass
            self.server.idle(self.connection, False)
        super().finish()

    def handle_one_request(self) -> None:
        """Wait for a request and answer it."""
        self._reader.allow(_TIMEOUT)
        self._unread = True
        self.server.idle(self.connection, True)
        try:
            super().handle_one_request()
        finally:
            self.server.idle(self.connection, False)

    def parse_request(self) -> bool:
        """Read the head of a request."""
        parsed = super().parse_request()
        self.server.idle(self.connection, False)
        return parsed

    def do_GET(self) -> None:
        """Answer with a page."""
        if self._foreign():
            return
        page = self.server.page(self._address())
        if page is None:
            self.missing(self._address())
        else:
            self._send(200, *page)

    def do_HEAD(self) -> None:
        """Answer with the head of a page."""
        self.do_GET()

    def do_POST(self) -> None:
        """Answer with JSON to JSON."""
        if self._foreign():
            return
        answer = self.server.answers.get(self._address())
        if answer is None:
            self.missing(self._address())
            return
        # A page of another site cannot send this kind without asking first, which is not granted.
        if self.headers.get_content_type() != _JSON:
            self.refuse(415, "send JSON: Content-Type: application/json")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self.refuse(411, "say how long the request is: Content-Length")
            return
        most = self.server.limits.body
        if len(length) > 12 or int(length) > most:
            self.refuse(413, f"the request is larger than the {most:,} bytes allowed")
            return
        if self.server.ending:
            self.refuse(503, "the server is ending; try again")
            return
        if not self.server.waiting.acquire(blocking=False):
            self.refuse(503, "too many requests are waiting; try again")
            return
        try:
            with self.server.held.take(int(length), _PATIENCE) as free:
                if not free:
                    self.refuse(503, "too much is waiting to be read; try again")
                    return
                self._reader.allow(_GRACE, _SPEED)
                try:
                    body = self.rfile.read(int(length))
                except TimeoutError:
                    self.refuse(408, "the request came too slowly; try again")
                else:
                    self._unread = False
                    self._answer(answer, body)
        finally:
            self.server.waiting.release()

    def _answer(self, answer: Answer, body: bytes) -> None:
        try:
            made = self.server.answered(answer, body)
        except HttpError as error:
            self.refuse(error.status, str(error))
        except CompoclipError as error:
            self.refuse(400, str(error))
        except Exception:  # a fault of ours: told here in full, to the client in short
            traceback.print_exc(file=sys.stderr)
            self.refuse(500, "the server failed; its terminal says why")
        else:
            self._send(200, _json(made), _JSON)

    def _foreign(self) -> bool:
        """Refuse names that are not ours: a page of another site whose name leads here."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            self.refuse(400, "the Host header is no name and no address")
            return True
        if self.server.known_name(name):
            return False
        own = "localhost" if self.server.loopback else "its address"
        self.refuse(
            403, f"this server answers to {own}, and to what {self.server.verb} --names names"
        )
        return True

    def _address(self) -> str:
        """The path that is asked for; "" for what is none."""
        try:
            return urlsplit(self.path).path
        except ValueError:
            return ""

    def missing(self, path: str) -> None:
        """Refuse a request for what is not there.

        Args:
            path: What was asked for.
        """
        if self.command == "POST":
            known = " or ".join(self.server.answers)
            self.refuse(404, f"there is no such address; POST to {known}")
        else:
            self.refuse(404, "there is no such page")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Tell in JSON what the standard library tells as a page: a head that is no request's."""
        self.request_version = self.protocol_version  # a status line, whatever came
        self.refuse(code, message or HTTPStatus(code).phrase.lower())

    def refuse(self, status: int, message: str, **headers: str) -> None:
        """Send an error instead of an answer, and end the connection.

        Args:
            status: Of HTTP.
            message: One line.
            headers: To send with it.
        """
        self.close_connection = True  # what is left of the request is not read
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers["Retry-After"] = _AGAIN
        self._send(status, _json(self.server.problem(status, message)), _JSON, **headers)
        self._refused = self._unread

    def _send(self, status: int, body: bytes, kind: str, **headers: str) -> None:
        self.connection.settimeout(_TIMEOUT)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what people type is theirs."""


def read_object(body: bytes, wanted: str) -> dict[str, Any]:
    """The JSON object in a request.

    Args:
        body: What was sent.
        wanted: What should have been, in words.

    Returns:
        The object.

    Raises:
        UsageError: When it is none.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise UsageError(f"the request is not JSON; send an object with {wanted}") from None
    if not isinstance(data, dict):
        raise UsageError(f"the request is not a JSON object; send {wanted}")
    return data


class JsonServer(ThreadingHTTPServer):
    """Serves pages and answers at an address; start with `serve_forever`.

    Requests that wait hold a bounded number of bytes, and beyond a bounded number they are turned
    away; slow clients do not keep others waiting. Each connection is a thread.

    Args:
        pages: What GET gets, by path. Everything that it can get is in here: no path of a client
            ever reaches a file system.
        answers: What POST is answered by, by path.
        host: Address to serve at.
        port: 0 takes a free one.
        names: What the server may be called in requests beside its address; see `known_name`.
        limits: How much of requests is held at once.

    Raises:
        UsageError: When the address cannot be used.
    """

    verb: ClassVar[str] = "serve"  # whose --names messages speak of
    wanted: ClassVar[str] = "what is asked for"  # said to who sends no object
    handler: ClassVar[type[JsonHandler]] = JsonHandler
    daemon_threads = True
    request_queue_size = 256  # connections that the system holds until a thread takes them

    def __init__(
        self,
        pages: Mapping[str, Page],
        answers: Mapping[str, Answer],
        host: str,
        port: int,
        names: Sequence[str],
        limits: RequestLimits,
    ) -> None:
        self.pages, self.answers, self.limits = pages, answers, limits
        self.ending = False
        self.waiting = threading.BoundedSemaphore(limits.waiting)
        self.connections = threading.BoundedSemaphore(_CONNECTIONS)
        self._idle: dict[socket.socket, None] = {}  # connections without a request, oldest first
        self._idling = threading.Lock()
        self.held = Budget(limits.held)
        try:
            super().__init__((host, port), self.handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{host}:{port} cannot be served ({reason}); choose another --host or --port"
            ) from error
        self.loopback = is_loopback(host)
        own = () if self.loopback else (host, os.uname().nodename, f"{os.uname().nodename}.local")
        self._names = {name.lower() for name in (*own, *names)}

    def page(self, path: str) -> Page | None:
        """What GET gets at a path; None where there is nothing."""
        return self.pages.get(path)

    def answered(self, answer: Answer, body: bytes) -> dict[str, Any]:
        """The answer to the body of a request. Raises CompoclipError for what is wrong in it."""
        return answer(read_object(body, self.wanted))

    def problem(self, status: int, message: str) -> dict[str, Any]:
        """What a client is sent in place of an answer."""
        return {"error": message}

    def drain(self, patience: float) -> bool:
        """Turn new requests away and wait for those under way; False if that took too long.

        Args:
            patience: Seconds to wait.

        Returns:
            Whether all have been answered.
        """
        self.ending = True
        deadline = time.monotonic() + patience
        for taken in range(self.limits.waiting):
            if not self.waiting.acquire(timeout=max(deadline - time.monotonic(), 0)):
                if taken:
                    self.waiting.release(taken)
                return False
        return True

    def known_name(self, name: str) -> bool:
        """True if a name that a request calls this server by is one of its own.

        On a page of another site, made to lead here, the browser would send that site's name. A
        bare address cannot be made to lead elsewhere.
        """
        if is_loopback(name) or name.lower() in self._names:
            return True
        return not self.loopback and _is_address(name)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; where there are too many, one without a request goes."""
        if self.connections.acquire(blocking=False) or (
            self._drop_idle() and self.connections.acquire(timeout=1.0)
        ):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def idle(self, connection: socket.socket, idle: bool) -> None:
        """Note whether a connection has no request under way."""
        with self._idling:
            self._idle.pop(connection, None)
            if idle:
                self._idle[connection] = None

    def _drop_idle(self) -> bool:
        """End the connection that has had no request for the longest; False if all have one."""
        with self._idling:
            oldest = next(iter(self._idle), None)
            if oldest is not None:
                del self._idle[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread sees an end, and ends
        return oldest is not None

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection until it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are no error; anything else is told on the terminal."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "backslashreplace")
