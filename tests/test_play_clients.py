"""The playground and clients that are slow, silent, gone, or called by another name."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from compoclip.play.answers import MAX_BODY, Playground
from compoclip.play.server import PlayServer
from compoclip.serve import http as module
from compoclip.serve.http import Budget

BODY = b'{"image": "", "caption": "a"}'


class Answering(Playground):
    """Answers at once, or when it may; counts what it answered."""

    def __init__(self) -> None:
        super().__init__({})
        object.__setattr__(self, "may", threading.Event())
        self.may.set()

    def score(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.may.wait(60)
        return {"caption": request["caption"], "long": "x" * 5_000_000}


@contextmanager
def serving(host: str = "127.0.0.1", names: tuple[str, ...] = ()) -> Iterator[PlayServer]:
    with PlayServer(Answering(), host, 0, names) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def server() -> Iterator[PlayServer]:
    with serving() as running:
        yield running


def connected(server: PlayServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60)


def status(server: PlayServer, method: str = "GET", path: str = "/", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    try:
        body = BODY if method == "POST" else None
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def raw(server: PlayServer, request: bytes) -> bytes:
    """The first line that comes back."""
    with connected(server) as client:
        client.sendall(request)
        return client.makefile("rb").readline()


def post_head(length: int) -> bytes:
    return (
        b"POST /api/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % length
    )


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET / HTTP/1.1\r\nHost: ]\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n", b"HTTP/1.1 403"),
        (b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 404"),
        (b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 404"),
        (b"POST //[ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 404"),
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 403"),
        (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", b"HTTP/1.1 200"),
    ],
)
def test_odd_names_and_addresses(
    server: PlayServer, request_: bytes, expected: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert raw(server, request_).startswith(expected)
    assert capfd.readouterr().err == ""


def test_clients_that_go_away_say_nothing_on_the_terminal(
    server: PlayServer, capfd: pytest.CaptureFixture[str]
) -> None:
    playground = server.answers["/api/score"].__self__
    for step in ("head", "body", "waiting"):
        playground.may.clear()
        client = connected(server)
        client.sendall(post_head(len(BODY))[: 20 if step == "head" else None])
        if step != "head":
            client.sendall(BODY if step == "waiting" else BODY[:5])
            time.sleep(0.1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # with a reset, as a browser does that is closed
        playground.may.set()
        assert status(server, "POST", "/api/score") == 200
    assert capfd.readouterr().err == ""


def test_a_fault_of_ours_is_still_told(
    server: PlayServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> bool:
        raise KeyError("ours")

    monkeypatch.setattr(module.JsonHandler, "_foreign", broken)
    assert raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
    until(lambda: "KeyError: 'ours'" in capfd.readouterr().err)


def test_slow_bodies_do_not_keep_others_waiting(
    server: PlayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Announced is as much as may be held at once; others are answered all the same."""
    monkeypatch.setattr(module, "_GRACE", 0.5)
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(server)) for _ in range(24)]
        for client in slow:
            client.sendall(post_head(MAX_BODY) + b"{")
        until(lambda: server.held.left == 0)
        assert status(server, "POST", "/api/score") == 200
        for client in slow:
            assert client.makefile("rb").readline().startswith(b"HTTP/1.1 408")
    until(lambda: server.held.left == 24 * MAX_BODY)


def test_a_body_may_take_as_long_as_it_keeps_coming(
    server: PlayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE", 0.5)
    monkeypatch.setattr(module, "_SPEED", 10.0)
    body = BODY + b" " * 20
    with connected(server) as client:
        client.sendall(post_head(len(body)))
        for at in range(0, len(body), 7):
            client.sendall(body[at : at + 7])
            time.sleep(0.15)
        assert client.makefile("rb").readline().startswith(b"HTTP/1.1 200")


def test_a_head_that_dribbles_in_is_ended(
    server: PlayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0.5)

    def dribble(client: socket.socket) -> None:
        for _ in range(1000):
            client.sendall(b"G")
            time.sleep(0.05)

    with connected(server) as client, pytest.raises(ConnectionError):  # long before all is sent
        dribble(client)


def test_idle_connections_shut_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_CONNECTIONS", 4)
    with serving() as server, ExitStack() as stack:
        idle = [stack.enter_context(connected(server)) for _ in range(9)]
        assert status(server) == 200
        assert status(server, "POST", "/api/score") == 200
        assert idle[0].recv(1) == b""  # the oldest had to go
        idle[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle[-1].makefile("rb").readline().startswith(b"HTTP/1.1 200")


def test_connections_with_a_request_are_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONNECTIONS", 2)
    with serving() as server, ExitStack() as stack:
        playground = server.answers["/api/score"].__self__
        playground.may.clear()
        busy = [stack.enter_context(connected(server)) for _ in range(2)]
        for client in busy:
            client.sendall(post_head(len(BODY)) + BODY)
        until(lambda: server.held.left == 24 * MAX_BODY - 2 * len(BODY))
        with connected(server) as third:
            assert third.recv(1) == b""
        playground.may.set()
        for client in busy:
            assert client.makefile("rb").readline().startswith(b"HTTP/1.1 200")


def test_budgets_are_taken_in_order() -> None:
    budget, order = Budget(10), list[str]()
    threads: list[threading.Thread] = []

    def take(name: str, size: int) -> None:
        with budget.take(size, 60) as had:
            assert had
            order.append(name)

    with budget.take(8, 1):
        for name, size in (("large", 9), ("small", 1)):  # the small one would fit
            threads.append(threading.Thread(target=take, args=(name, size)))
            threads[-1].start()
            until(lambda: len(budget._queue) == len(threads))
        with budget.take(1, 0.05) as had:
            assert not had
        assert order == []
    for thread in threads:
        thread.join()
    assert order == ["large", "small"]
    assert budget.left == 10


def test_names_of_a_server_that_others_can_reach() -> None:
    with serving("0.0.0.0", ("Demo.example.org",)) as server:
        own = os.uname().nodename
        for name in ("127.0.0.1", "192.168.1.7:80", "[fe80::1]", "localhost", own, own.upper()):
            assert status(server, Host=name) == 200
        assert status(server, Host="demo.example.org:7860") == 200
        for name in ("evil.example", "127.0.0.1.evil.example", ""):
            assert status(server, Host=name) == 403
    with serving(names=("demo.example.org",)) as server:
        assert status(server, Host="demo.example.org") == 200
        assert status(server, Host="192.168.1.7") == 403


def test_what_a_foreign_name_is_told(server: PlayServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("GET", "/", headers={"Host": "evil.example"})
    said = json.loads(connection.getresponse().read())["error"]
    connection.close()
    assert said == "this server answers to localhost, and to what play --names names"
