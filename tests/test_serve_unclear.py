"""Requests that hold very many values, or whose client has gone."""

from __future__ import annotations

import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.web import Server, Service
from test_serve import serving, url
from web_client import post, until


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("bundled")


@pytest.fixture(scope="module")
def server(loaded: LoadedModel) -> Iterator[Server]:
    with serving(Service("bundled", loaded)) as running:
        yield running


HEAD = (
    b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


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
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service("bundled", loaded)
    decoded: list[object] = []
    gate, read = threading.Event(), service._pixels

    def waiting(item: Any, images: Any) -> np.ndarray:
        decoded.append(item)
        assert gate.wait(60)
        return read(item, images)

    monkeypatch.setattr(service, "_pixels", waiting)
    with serving(service) as server:
        body = json.dumps({"input": [url(1)] * 8}).encode()
        with socket.create_connection(server.address, timeout=60) as connection:
            connection.sendall(HEAD % len(body) + body)
            until(lambda: decoded)
        gate.set()
        until(lambda: service.batcher.counts.held == 0)
    assert len(decoded) < 8
