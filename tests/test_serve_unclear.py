"""Requests whose end is unclear, that hold very many values, or whose client has gone."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from compoclip.models.checkpoint import LoadedModel
from compoclip.web import Server, Service
from test_serve import serving, url
from web_client import post, until


@pytest.fixture(scope="module")
def server(bundled: LoadedModel) -> Iterator[Server]:
    with serving(Service("bundled", bundled)) as running:
        yield running


HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def statuses(server: Server, sent: bytes) -> list[int]:
    """The statuses of all answers to what is sent over one connection."""
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answers = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def with_body(method: bytes, *heads: bytes, body: bytes = b'{"input": "a"}') -> bytes:
    return b"".join(
        (method, b" HTTP/1.1\r\n", HEAD, *(head + b"\r\n" for head in heads), b"\r\n", body)
    )


POST = b"POST /v1/embeddings"
LENGTH = b"Content-Length: "
UNCLEAR: dict[str, tuple[bytes, set[tuple[int, ...]]]] = {
    "a GET with a body is one request": (
        with_body(b"GET /health", LENGTH + b"%d" % len(GET), body=GET),
        {(200,), (400,)},
    ),
    "two lengths are refused": (
        with_body(POST, LENGTH + b"14", LENGTH + b"%d" % (14 + len(GET))) + GET,
        {(400,)},
    ),
    "a blank before a colon is refused": (
        with_body(POST, LENGTH + b"14", b"Transfer-Encoding : chunked"),
        {(400,)},
    ),
    "a body that is cut off is not answered": (
        with_body(POST, LENGTH + b"20"),
        {(), (400,)},
    ),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_requests_whose_end_is_unclear(server: Server, case: str) -> None:
    sent, expected = UNCLEAR[case]
    assert tuple(statuses(server, sent)) in expected


def test_the_memory_of_a_body_of_many_items_is_bounded(server: Server) -> None:
    """Empty lists take thirty times their bytes once they are parsed: a request holds 256 items."""
    body = b'{"input": [' + b"[]," * 100_000 + b"[]]}"
    tracemalloc.start()
    try:
        status, _ = post(server, "/v1/embeddings", body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert status == 400
    assert peak < 8 * len(body)


def test_images_of_a_client_that_has_gone_are_not_decoded(
    bundled: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service("bundled", bundled)
    decoded: list[object] = []
    gate, read = threading.Event(), service._pixels

    def waiting(item: Any, images: Any) -> np.ndarray:
        decoded.append(item)
        assert gate.wait(60)
        time.sleep(0.05)  # in which the closed connection is noticed
        return read(item, images)

    monkeypatch.setattr(service, "_pixels", waiting)
    with serving(service) as server:
        body = json.dumps({"input": [url(1)] * 8}).encode()
        with socket.create_connection(server.address, timeout=60) as connection:
            connection.sendall(with_body(POST, LENGTH + b"%d" % len(body), body=body))
            until(lambda: decoded)
        gate.set()
        until(lambda: service.batcher.counts.held == 0)
    assert len(decoded) < 8
