"""The playground's HTTP server: a page, its JSON API, and nothing else."""

from __future__ import annotations

import ipaddress
import json
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from compoclip.errors import CompoclipError, UsageError
from compoclip.play.answers import Playground
from compoclip.play.inputs import MAX_BODY, read_request

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
_HELD = 4 * MAX_BODY  # bytes of requests in memory at once; a request beyond them waits unread
_CONNECTIONS = 512  # each is a thread; more are closed at once
_TIMEOUT = 30.0  # seconds a client may be silent
_PATIENCE = 120.0  # seconds a request may wait to be read

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


class PlayServer(ThreadingHTTPServer):
    """Serves a `Playground` at (host, port); port 0 takes a free one. Start with `serve_forever`.

    Requests are answered one after the other, since they share the models. Those that wait hold a
    bounded number of bytes, and beyond a bounded number they are turned away. Raises UsageError
    when the address cannot be used.
    """

    daemon_threads = True
    request_queue_size = 256  # connections that the system holds until a thread takes them

    def __init__(self, playground: Playground, host: str, port: int) -> None:
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
        self.held = Budget(_HELD)
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{host}:{port} cannot be served ({reason}); choose another --host or --port"
            ) from error
        self.loopback = is_loopback(host)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it when there are too many."""
        if self.connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection until it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()


class Budget:
    """Bytes that requests may hold together; who finds too few left waits."""

    def __init__(self, size: int) -> None:
        self.left = size
        self._changed = threading.Condition()

    @contextmanager
    def take(self, size: int, patience: float) -> Iterator[bool]:
        """Hold `size` bytes while the block runs; yields False when they did not become free."""
        with self._changed:
            had = self._changed.wait_for(lambda: self.left >= size, patience)
            self.left -= size if had else 0
        try:
            yield had
        finally:
            with self._changed:
                self.left += size if had else 0
                self._changed.notify_all()


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Handler(BaseHTTPRequestHandler):
    server: PlayServer
    server_version, sys_version = "compoclip", ""
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT

    def do_GET(self) -> None:
        if self._foreign():
            return
        page = self.server.pages.get(urlsplit(self.path).path)
        if page is None:
            self._fail(404, "there is no such page")
        else:
            self._send(200, *page)

    def do_POST(self) -> None:
        if self._foreign():
            return
        answer = self.server.answers.get(urlsplit(self.path).path)
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
                if free:
                    self._answer(answer, self.rfile.read(int(length)))
                else:
                    self._fail(503, "too much is waiting to be read; try again")
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
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        if not self.server.loopback or is_loopback(name):
            return False
        self._fail(403, "this server answers to localhost only")
        return True

    def _fail(self, status: int, message: str) -> None:
        self.close_connection = True  # what is left of the request is not read
        self._send(status, _json({"error": message}), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
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
