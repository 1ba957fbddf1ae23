"""Pages and JSON answers over HTTP: routes, limits and errors. Starlette and uvicorn do the rest.

`compoclip serve` and `compoclip play` are websites of this kind. A request must name the server's
host, hold JSON and have a bounded size. The response is JSON, for an error one line.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
import resource
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from compoclip.bounds import (
    MAX_ANSWER_SECONDS,
    MAX_BODY_SECONDS,
    MAX_CONNECTIONS,
    MAX_HEAD_SECONDS,
    MAX_OPEN_REQUESTS,
    MAX_REQUEST_VALUES,
)
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import decoded, parse_json

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_LINGER = 2.0  # seconds to read what a refused client still sends, so that it reads the reason
_END_SECONDS = 60  # for the requests under way when the server ends
_JSON = "application/json"
# A host as in RFC 9110: a name or an address, without the user that a URL may hold.
_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]*))(:\d{0,5})?", re.ASCII)

T = TypeVar("T")
Page = tuple[bytes, str]
"""Response to a GET: the bytes and their content type."""
Computed = Callable[[Mapping[str, str]], Page]
"""Handler of a GET: the parts of its address and its query -> page. Raises as an `Answer`."""
Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Handler of a POST: request object -> response object. Raises CompoclipError for bad input."""


class HttpError(CompoclipError):
    """An error with its HTTP status: any 4xx, or 503 when the queue is full."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


_GONE: ContextVar[threading.Event | None] = ContextVar("gone", default=None)


def require_client() -> None:
    """Raise HttpError when the client of the request being answered has closed the connection."""
    gone = _GONE.get()
    if gone is not None and gone.is_set():
        raise HttpError(499, "the client has gone")


def is_loopback(host: str) -> bool:
    """Return whether only this computer can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_object(body: bytes | bytearray, expected: str) -> dict[str, Any]:
    """Return the JSON object in a request; `expected`: the expected contents, for messages.

    Raises UsageError when it is no object, or one of more than 100,000 values.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_REQUEST_VALUES:
        raise UsageError(
            f"the request has more than {MAX_REQUEST_VALUES:,} commas and brackets; send less at "
            "once"
        )
    text = decoded(body, "the request", f"send an object with {expected}")
    try:
        data: dict[str, Any] = parse_json(text, halves=True)
    except ValueError as error:
        raise UsageError(
            f"the request is not valid JSON ({error}); send an object with {expected}"
        ) from None
    if not isinstance(data, dict):
        raise UsageError(f"the request is not a JSON object; send {expected}")
    return data


def require_known(request: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raise UsageError for a key of a request that nobody would read."""
    for key in request:
        if key not in allowed:
            listed = ", ".join(sorted(allowed))
            raise UsageError(f"'{key[:50]}' is not known; the request has {listed}")


def json_page(data: Mapping[str, Any]) -> Page:
    """Return an object as a page of JSON; half characters are escaped."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "backslashreplace"), _JSON


class Website:
    """An ASGI application of pages (GET) and answers (POST).

    Args:
        pages: Path -> page, or a function that returns it. No client's path reaches a file system.
        answers: Path -> function; each call runs in a thread.
        computed: Path, as Starlette writes routes -> function; each call runs in a thread.
        host: Address of the server.
        names: Further names that requests may call the server by.
        verb: The command whose --names messages mention.
        expected: Description of a valid request, for messages.
        body: Most bytes of one request; all requests together may hold eight times as many.
        threads: Most requests computed at once; the others wait.
        problem: Returns the JSON of an error for its status and message.

    Attributes:
        busy: Number of open requests.
        buffered: Bytes of their bodies.
    """

    def __init__(
        self,
        pages: Mapping[str, Page | Callable[[], Page]],
        answers: Mapping[str, Answer],
        *,
        computed: Mapping[str, Computed] | None = None,
        host: str = "127.0.0.1",
        names: Sequence[str] = (),
        verb: str = "serve",
        expected: str,
        body: int,
        threads: int = MAX_OPEN_REQUESTS,
        problem: Callable[[int, str], Mapping[str, Any]] = lambda status, message: {
            "error": message
        },
    ) -> None:
        self.answers, self.body = answers, body
        self.busy = self.buffered = 0
        self._threads = threads
        self.loopback = is_loopback(host)
        machine = os.uname().nodename
        hosts = () if self.loopback else (host, machine, f"{machine}.local")
        self._names = {name.lower() for name in (*hosts, *names)}
        self._verb, self._expected, self._problem = verb, expected, problem
        self._limiter: anyio.CapacityLimiter | None = None
        posts = {path: partial(self._answer, function) for path, function in answers.items()}
        errors = (HTTPException, CompoclipError, ClientDisconnect, TimeoutError, Exception)
        self._app = Starlette(
            routes=[
                *(Route(path, partial(self._page, page)) for path, page in pages.items()),
                *(
                    Route(path, partial(self._computed_page, function))
                    for path, function in (computed or {}).items()
                ),
                *(Route(path, answer, methods=["POST"]) for path, answer in posts.items()),
            ],
            exception_handlers=dict.fromkeys(errors, self._failed),
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (the ASGI interface)."""
        request = Request(scope, receive)
        try:
            self._require_known(request.headers.get("host", ""))
        except HttpError as error:
            await (await self._failed(request, error))(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _require_known(self, host: str) -> None:
        """Refuse names that are not the server's: a page of another site may lead here.

        A bare address cannot be made to lead elsewhere.
        """
        match = _HOST.fullmatch(host)
        if match is None:
            raise HttpError(400, "the Host header is neither a name nor an address")
        name = (match["address"] or match["name"]).lower().removesuffix(".")
        if is_loopback(name) or name in self._names:
            return
        try:
            ipaddress.ip_address("" if self.loopback else name)
        except ValueError:
            address = "localhost" if self.loopback else "its address"
            raise HttpError(
                403, f"this server answers to {address}, and to the names in {self._verb} --names"
            ) from None

    async def _page(self, page: Page | Callable[[], Page], request: Request) -> Response:
        content, kind = page() if callable(page) else page
        return Response(content, headers={**_HEADERS, "Content-Type": kind})

    async def _computed_page(self, function: Computed, request: Request) -> Response:
        """Compute a page in a thread, unless a page of another site asks for it."""
        if request.headers.get("sec-fetch-site", "") in ("cross-site", "same-site"):
            raise HttpError(403, "other sites cannot use this page; type its address")
        self.busy += 1
        try:
            self._require_room()
            async with asyncio.timeout(MAX_BODY_SECONDS):
                async for _ in request.stream():  # a refusal would wait for the rest of it
                    pass
            values = {**request.query_params, **request.path_params}
            page = await self._in_thread(lambda: function(values), request)
        finally:
            self.busy -= 1
        return await self._page(page, request)

    def _require_room(self) -> None:
        if self.busy > MAX_OPEN_REQUESTS:
            raise HttpError(503, "too many requests are waiting; try again")

    async def _answer(self, function: Answer, request: Request) -> Response:
        """Read the body within bounds of size and time, then compute in a thread."""
        size, body = 0, bytearray()
        self.busy += 1
        try:
            # A page of another site cannot send JSON without asking first, which is not granted.
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
                raise HttpError(415, "send JSON: Content-Type: application/json")
            self._require_size(int(request.headers.get("content-length") or 0))
            self._require_room()
            async with asyncio.timeout(MAX_BODY_SECONDS):
                async for block in request.stream():
                    size += len(block)
                    self.buffered += len(block)
                    self._require_size(size)
                    body += block
            answer = await self._in_thread(
                lambda: function(read_object(body, self._expected)), request
            )
            return _json_response(200, answer)
        finally:
            self.busy -= 1
            self.buffered -= size

    def _require_size(self, size: int) -> None:
        if size > self.body:
            raise HttpError(413, f"the request is larger than the {self.body:,} bytes allowed")
        if self.buffered > 8 * self.body:
            raise HttpError(503, "too much is waiting to be read; try again")

    async def _in_thread(self, work: Callable[[], T], request: Request) -> T:
        """Work in a thread; `require_client` there knows whether the client has gone."""
        gone = threading.Event()

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            gone.set()

        def compute() -> T:
            require_client()
            return work()

        if self._limiter is None:  # which needs a running loop
            self._limiter = anyio.CapacityLimiter(self._threads)
        _GONE.set(gone)
        watcher = asyncio.create_task(watch())
        try:
            return await anyio.to_thread.run_sync(compute, limiter=self._limiter)
        finally:
            watcher.cancel()

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Answer an error with a line of JSON; the connection ends with it."""
        status, message, headers = 400, str(error), {"Connection": "close"}
        if isinstance(error, HTTPException):  # of the routes
            status, message = error.status_code, "there is no such page"
            if status == 405:
                allowed = sorted((error.headers or {}).get("Allow", "").split(", "))
                headers["Allow"] = ", ".join(allowed)
                message = f"this address takes {headers['Allow']}"
            elif request.method == "POST":
                message = f"there is no such address; POST to {' or '.join(self.answers)}"
        elif isinstance(error, HttpError):
            status = error.status
        elif isinstance(error, TimeoutError):
            status, message = 408, "the request came too slowly; try again"
        elif not isinstance(error, CompoclipError | ClientDisconnect):
            # A fault of the server: in full on its terminal, to the client in short.
            traceback.print_exception(error, file=sys.stderr)
            status, message = 500, "the server failed; its terminal says why"
        if status == 503:
            headers["Retry-After"] = "1"
        with suppress(TimeoutError, ClientDisconnect, RuntimeError):
            async with asyncio.timeout(_LINGER):
                async for _ in request.stream():
                    pass
        return _json_response(status, self._problem(status, message), headers)


def _json_response(
    status: int, data: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    content, kind = json_page(data)
    return Response(content, status, {**_HEADERS, **(headers or {})}, media_type=kind)


# --- Connections. uvicorn bounds the size of a request head and the idle time after an answer; it
# waits without end for the rest of a head, and for a client that does not read its answer. ---


def most_connections() -> int:
    """Return how many connections may be open: at most half of the files of this process."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2)


class BoundedConnection(H11Protocol):
    """A connection that ends when the head of a request, or the client's reading, takes too long.

    When too many are open, the one that has waited longest for a request is closed for a new one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, in place of another one where too many are open."""
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._waiting_since = self.loop.time()
        self._time_head()
        bounded = [one for one in self.connections if isinstance(one, BoundedConnection)]
        still_open = [one for one in bounded if not one.transport.is_closing()]
        if len(still_open) > most_connections():
            waiting = [one for one in still_open if one.awaits_request]
            min(waiting, key=lambda one: one._waiting_since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        super().connection_lost(exc)
        for timer in (self._head_timer, self._answer_timer):
            if timer is not None:
                timer.cancel()

    @property
    def awaits_request(self) -> bool:
        """Return whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; its head must be complete in time."""
        super().data_received(data)
        self._time_head()

    def _time_head(self) -> None:
        """Start the timer of a head that is not complete; stop it when the head is."""
        if self.awaits_request and self._head_timer is None:
            self._head_timer = self.loop.call_later(MAX_HEAD_SECONDS, self.transport.abort)
        elif not self.awaits_request and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_response_complete(self) -> None:
        """Wait for the next request, for as long as uvicorn lets a connection be idle."""
        self._waiting_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait until the client has read, within bounds: the rest of the answer takes memory."""
        super().pause_writing()
        self._answer_timer = self.loop.call_later(MAX_ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on after the client has read."""
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()


class Server:
    """Serves a website; binds the address at once. Raises UsageError when it cannot be used.

    Args:
        site: The website.
        host: Address to serve at.
        port: 0 takes a free one.

    Attributes:
        url: Its address.
    """

    def __init__(self, site: Website, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=256)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{host}:{port} cannot be served ({reason}); choose another --host or --port"
            ) from error
        self.site = site
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self.url = "http://{}:{}/".format(
            f"[{host}]" if ":" in host else self.address[0], self.address[1]
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                site, http=BoundedConnection, ws="none", loop="asyncio", lifespan="off",
                server_header=False, log_config=None, log_level="critical", access_log=False,
                timeout_keep_alive=30, timeout_graceful_shutdown=_END_SECONDS,
            )
        )  # fmt: skip

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM, or `stop`; then answer open requests.

        The signal is raised again at the end.
        """
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Let `run` end."""
        self._server.should_exit = True

    @contextmanager
    def in_thread(self) -> Iterator[Server]:
        """Serve in a thread while the block runs."""
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join()
