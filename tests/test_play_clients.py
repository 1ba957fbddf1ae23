"""The playground and clients that are slow, silent, gone, or called by another name."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from compoclip.bounds import MAX_PLAY_BODY
from compoclip.web import app
from compoclip.web.app import Server
from compoclip.web.playground import Playground, play_site
from web_client import ask, until

BODY = b'{"image": "", "caption": "a"}'


class Answering(Playground):
    """Answers at once, or when it may; counts what it answered."""

    def __init__(self) -> None:
        super().__init__({})
        object.__setattr__(self, "may", threading.Event())
        object.__setattr__(self, "asked", 0)
        self.may.set()

    def score(self, request: Mapping[str, Any]) -> dict[str, Any]:
        object.__setattr__(self, "asked", self.asked + 1)
        self.may.wait(60)
        return {"caption": request["caption"], "long": "x" * 5_000_000}


@contextmanager
def serving(host: str = "127.0.0.1", names: tuple[str, ...] = ()) -> Iterator[Server]:
    playground = Answering()
    with Server(play_site(playground, host, names), host, 0).in_thread() as running:
        running.playground = playground  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """A server for tests that leave it as it is."""
    with serving() as running:
        yield running


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.address[1]), timeout=60)


def status(server: Server, method: str = "GET", path: str = "/", **headers: str) -> int:
    body = BODY if method == "POST" else None
    return ask(server, method, path, body, **{"Content-Type": "application/json", **headers})[0]


def post_head(length: int) -> bytes:
    return (
        b"POST /api/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % length
    )


HOSTS: dict[bytes, int] = {
    **dict.fromkeys((b"[::1", b"]", b"\xff\xfe", b"evil@localhost", b"localhost/evil"), 400),
    **dict.fromkeys((b"localhost#evil", b"localhost?evil", b"localhost:evil"), 400),
    **dict.fromkeys((b"localhost, evil", b"local host", b"[::1]evil", b"[::1%25eth0]"), 400),
    b"localhost.:80": 200,
    b"[::1]:80": 200,
}
REQUESTS: dict[bytes, int] = {
    **{b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host: status for host, status in HOSTS.items()},
    b"GET / HTTP/1.1\r\n\r\n": 400,
    b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n": 404,
    b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n": 404,
    b"POST //[ HTTP/1.1\r\nHost: localhost\r\n\r\n": 404,
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_odd_names_and_addresses(
    shared: Server, request_: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with connected(shared) as client:
        client.sendall(request_)
        first_line = client.makefile("rb").readline()
    assert first_line.startswith(b"HTTP/1.1 %d" % REQUESTS[request_])
    assert capfd.readouterr().err == ""


def test_clients_that_go_away_say_nothing_on_the_terminal(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    playground = server.playground
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
    server: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        raise KeyError("ours")

    monkeypatch.setattr(app, "read_object", broken)
    assert status(server, "POST", "/api/score") == 500
    assert "KeyError: 'ours'" in capfd.readouterr().err


def test_slow_bodies_do_not_keep_others_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_BODY_SECONDS", 0.5)
    monkeypatch.setattr(app, "_LINGER", 0.1)
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(server)) for _ in range(24)]
        for client in slow:
            client.sendall(post_head(MAX_PLAY_BODY) + b"{")
        assert status(server, "POST", "/api/score") == 200
        for client in slow:
            assert client.makefile("rb").readline().startswith(b"HTTP/1.1 408")
    until(lambda: server.site.buffered == 0)


def test_half_sent_heads_do_not_keep_others_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_CONNECTIONS", 4)
    opened = server._server.server_state.connections
    with ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(connected(server)).sendall(b"GET / HTTP/1.1\r\nHost: localhost")
        assert status(server) == 200
        until(lambda: len(opened) <= 4)
        for _ in range(2):
            idle = stack.enter_context(connected(server))
            idle.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(100).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(app, "MAX_HEAD_SECONDS", 0.2)
        for begin in (b"", b"GET / HT"):
            late = stack.enter_context(connected(server))
            late.sendall(begin)
            assert late.recv(100) == b""
        assert status(server) == 200


def test_a_client_that_does_not_read_its_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_ANSWER_SECONDS", 0.2)
    with connected(server) as client:
        client.sendall(post_head(len(BODY)) + BODY)
        until(lambda: server.playground.asked == 1)
        until(lambda: not server._server.server_state.connections)
    assert status(server, "POST", "/api/score") == 200  # five megabytes, read at once


def test_work_stops_when_its_client_has_gone(server: Server) -> None:
    """The second request waits for the first one; its client leaves meanwhile."""
    playground = server.playground
    playground.may.clear()
    with connected(server) as first:
        first.sendall(post_head(len(BODY)) + BODY)
        until(lambda: playground.asked == 1)
        with connected(server) as second:
            second.sendall(post_head(len(BODY)) + BODY)
            until(lambda: server.site.busy == 2)
        time.sleep(0.2)
        playground.may.set()
        assert first.makefile("rb").readline().startswith(b"HTTP/1.1 200")
    until(lambda: server.site.busy == 0)
    assert playground.asked == 1


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


def test_what_a_foreign_name_is_told(shared: Server) -> None:
    said = ask(shared, "GET", "/", Host="evil.example")[2]["error"]
    assert said == "this server answers to localhost, and to the names in play --names"
