"""The playground's HTTP server: a page, its JSON API, and nothing else."""

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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from compoclip.errors import CompoclipError, UsageError
from compoclip.play.answers import MAX_BODY, Playground, read_request

_PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/graph.js": ("graph.js", "text/javascript; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_WAITING = 256  # requests that may wait for the models at once
_HELD = 24 * MAX_BODY  # bytes of requests in memory at once; a request beyond them waits unread
_CONNECTIONS = 512  # each is a thread; beyond them, who has asked for nothing the longest must go
_TIMEOUT = 30.0  # seconds for the head of a request, from the moment it may come; and for an answer
_GRACE, _SPEED = 10.0, 100_000.0  # seconds for its body, and bytes that each further one must bring
_PATIENCE = 120.0  # seconds a request may wait to be read

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


class PlayServer(ThreadingHTTPServer):
    """Serves a `Playground` at (host, port); port 0 takes a free one. Start with `serve_forever`.

    Requests are answered one after the other, since they share the models. Those that wait hold a
    bounded number of bytes, and beyond a bounded number they are turned away; slow clients do not
    keep others waiting. names: what the server may be called in requests beside its address; see
    `known_name`. Raises UsageError when the address cannot be used.
    """

    daemon_threads = True
    request_queue_size = 256  # connections that the system holds until a thread takes them

    def __init__(
        self, playground: Playground, host: str, port: int, names: Sequence[str] = ()
    ) -> None:
        self.answers: Mapping[str, Answer] = {
            "/api/score": playground.score,
            "/api/maps": playground.maps,
        }
        folder = files("compoclip.play") / "page"
        # Everything that GET can get is in here: no path of a client ever reaches a file system.
        self.pages = {
            path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _PAGE.items()
        }
        self.pages["/api/info"] = (_json(playground.info()), "application/json")
        for number, example in enumerate(playground.examples):
            self.pages[f"/examples/{number}.png"] = (example.png, "image/png")
        self.computing = threading.Lock()
        self.waiting = threading.BoundedSemaphore(_WAITING)
        self.connections = threading.BoundedSemaphore(_CONNECTIONS)
        self._idle: dict[socket.socket, None] = {}  # connections without a request, oldest first
        self._idling = threading.Lock()
        self.held = Budget(_HELD)
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{host}:{port} cannot be served ({reason}); choose another --host or --port"
            ) from error
        self.loopback = is_loopback(host)
        own = () if self.loopback else (host, os.uname().nodename, f"{os.uname().nodename}.local")
        self._names = {name.lower() for name in (*own, *names)}

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
        """Where the page is."""
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


class _Handler(BaseHTTPRequestHandler):
    server: PlayServer
    server_version, sys_version = "compoclip", ""
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._reader = _RequestReader(self.connection)
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        self._reader.allow(_TIMEOUT)
        self.server.idle(self.connection, True)
        try:
            super().handle_one_request()
        finally:
            self.server.idle(self.connection, False)

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.server.idle(self.connection, False)
        return parsed

    def do_GET(self) -> None:
        if self._foreign():
            return
        page = self.server.pages.get(self._address())
        if page is None:
            self._fail(404, "there is no such page")
        else:
            self._send(200, *page)

    def do_POST(self) -> None:
        if self._foreign():
            return
        answer = self.server.answers.get(self._address())
        if answer is None:
            self._fail(404, "there is no such address; POST to /api/score or /api/maps")
            return
        # A page of another site cannot send this kind without asking first, which is not granted.
        if self.headers.get_content_type() != "application/json":
            self._fail(415, "send JSON: Content-Type: application/json")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self._fail(411, "say how long the request is: Content-Length")
            return
        if len(length) > 12 or int(length) > MAX_BODY:
            self._fail(413, f"the request is larger than the {MAX_BODY:,} bytes allowed")
            return
        if not self.server.waiting.acquire(blocking=False):
            self._fail(503, "too many requests are waiting; try again")
            return
        try:
            with self.server.held.take(int(length), _PATIENCE) as free:
                if not free:
                    self._fail(503, "too much is waiting to be read; try again")
                    return
                self._reader.allow(_GRACE, _SPEED)
                try:
                    body = self.rfile.read(int(length))
                except TimeoutError:
                    self._fail(408, "the request came too slowly; try again")
                else:
                    self._answer(answer, body)
        finally:
            self.server.waiting.release()

    def _answer(self, answer: Answer, body: bytes) -> None:
        try:
            with self.server.computing:  # one image at a time is decoded, too
                made = answer(read_request(body))
        except CompoclipError as error:
            self._fail(400, str(error))
        except Exception:  # a fault of ours: told here in full, to the client in short
            traceback.print_exc(file=sys.stderr)
            self._fail(500, "the server failed; its terminal says why")
        else:
            self._send(200, _json(made), "application/json")

    def _foreign(self) -> bool:
        """Refuse names that are not ours: a page of another site whose name leads here."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            self._fail(400, "the Host header is no name and no address")
            return True
        if self.server.known_name(name):
            return False
        own = "localhost" if self.server.loopback else "its address"
        self._fail(403, f"this server answers to {own}, and to what play --names names")
        return True

    def _address(self) -> str:
        """The path that is asked for; "" for what is none."""
        try:
            return urlsplit(self.path).path
        except ValueError:
            return ""

    def _fail(self, status: int, message: str) -> None:
        self.close_connection = True  # what is left of the request is not read
        self._send(status, _json({"error": message}), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.connection.settimeout(_TIMEOUT)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what people type is theirs."""


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "backslashreplace")
