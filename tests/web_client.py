"""Requests to a `Server` of the tests."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable
from typing import Any

from compoclip.web import Server


def ask(
    server: Server, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, Any]:
    """Status, headers and content of an answer; the content of JSON as what it holds."""
    connection = http.client.HTTPConnection("127.0.0.1", server.address[1], timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        is_json = answer.headers["Content-Type"] == "application/json"
        value = json.loads(content) if is_json and content else content
        return answer.status, answer.headers, value
    finally:
        connection.close()


def post(server: Server, path: str, data: Any, **headers: str) -> tuple[int, Any]:
    """Status and content of the answer to JSON, or to bytes."""
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    status, _, answer = ask(
        server, "POST", path, body, **{"Content-Type": "application/json", **headers}
    )
    return status, answer


def until(condition: Callable[[], object]) -> None:
    """Wait for what comes about, a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
