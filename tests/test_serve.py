"""`compoclip serve`: embeddings and scores over HTTP, equal to those of the model itself."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import compoclip
from build.photos import encode, noise
from compoclip.cli.main import main
from compoclip.errors import UsageError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.models.checkpoint import LoadedModel
from compoclip.web import Batcher, BatchSettings, Server, Service, model_site
from compoclip.web.app import HttpError
from test_data_image_door import empty as huge_header
from web_client import ask, encoded, post, until

TEXTS = ["a red star", "a blue mug", "a large green box to the left of a small red star", "Ünï ✓"]
JSON = {"Content-Type": "application/json"}


def picture(number: int) -> Image.Image:
    return noise(number, (70, 90))


def png(number: int) -> bytes:
    return encode(picture(number))


def url(number: int) -> str:
    return f"data:image/png;base64,{encoded(png(number))}"


@contextmanager
def serving(service: Service, **named: Any) -> Iterator[Server]:
    with Server(model_site(service, **named), "127.0.0.1", 0).in_thread() as running:
        yield running
    service.close()


@pytest.fixture(scope="module")
def direct(bundled: LoadedModel) -> compoclip.Model:
    """What the answers are compared with."""
    return compoclip.Model(bundled)


def assert_close(answers: Any, expected: Any) -> None:
    assert np.abs(np.asarray(answers) - expected).max() < 1e-6


@pytest.fixture(scope="module")
def service(bundled: LoadedModel) -> Service:
    return Service("bundled", bundled)


@pytest.fixture(scope="module")
def server(service: Service) -> Iterator[Server]:
    with serving(service) as running:
        yield running


def rows(answer: Any) -> np.ndarray:
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return np.array([each["embedding"] for each in answer["data"]], dtype=np.float32)


# --- What is answered. ---


def test_embeddings_are_those_of_the_model(server: Server, direct: compoclip.Model) -> None:
    items = [TEXTS[0], url(1), {"text": TEXTS[1]}, {"image": encoded(png(2))}, {"image": url(3)}]
    status, answer = post(server, "/v1/embeddings", {"model": "bundled", "input": items})
    assert status == 200
    texts = direct.encode_texts(TEXTS[:2])
    images = direct.encode_images([picture(number) for number in (1, 2, 3)])
    assert_close(rows(answer), [texts[0], images[0], texts[1], images[1], images[2]])
    assert (answer["object"], answer["model"], answer["truncated"]) == ("list", "bundled", 0)
    assert {each["object"] for each in answer["data"]} == {"embedding"}
    tokens = sum(key.length for key in ModelEncoder(direct.loaded).text_keys(TEXTS[:2]))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_one_text_alone_as_base64_and_cut(server: Server, direct: compoclip.Model) -> None:
    expected = direct.encode_texts(TEXTS[3:])
    assert_close(rows(post(server, "/v1/embeddings", {"input": TEXTS[3]})[1]), expected)
    request = {"input": TEXTS[3:], "encoding_format": "base64", "user": "me", "dimensions": 256}
    (only,) = post(server, "/v1/embeddings", request)[1]["data"]
    assert_close(np.frombuffer(base64.b64decode(only["embedding"]), "<f4"), expected[0])
    long = ["a star", "a red star and " * 60]
    status, answer = post(server, "/v1/embeddings", {"input": long})
    assert (status, answer["truncated"]) == (200, 1)
    assert_close(rows(answer), direct.encode_texts(long))


def test_scores_are_those_of_the_model(server: Server, direct: compoclip.Model) -> None:
    expected = direct.score([picture(number) for number in (1, 2, 3)], TEXTS)
    images = [url(1), encoded(png(2)), {"image": url(3)}]
    for request, scores in (
        ({"images": images, "texts": TEXTS}, expected),
        ({"images": url(1), "texts": TEXTS[0]}, expected[:1, :1]),
    ):
        status, answer = post(server, "/v1/scores", request)
        assert status == 200
        assert_close(answer["scores"], scores)


def test_the_model_and_its_health(server: Server, bundled: LoadedModel) -> None:
    status, headers, answer = ask(server, "GET", "/v1/models")
    (model,) = answer["data"]
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert (model["id"], model["dimensions"], model["image_size"]) == ("bundled", 256, [64, 64])
    assert model["weights"] == bundled.identity.weights
    assert ask(server, "GET", "/v1/models/bundled")[2] == model
    status, _, health = ask(server, "GET", "/health")
    assert (status, health["status"], health["held"]) == (200, "ok", 0)
    assert health["limits"] == {"batch": 64, "wait_ms": 5.0, "queue": 1024, "items": 256}
    assert ask(server, "HEAD", "/health")[::2] == (200, b"")


# --- Many requests. ---


class Counting(ModelEncoder):
    """Counts its calls and their items; a gate can hold them."""

    def __init__(self, bundled: LoadedModel) -> None:
        super().__init__(bundled)
        self.calls: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        self.gate.wait(60)
        self.calls.append(len(texts))
        if "make it fail" in texts:
            raise MemoryError("ours")
        return super().encode_texts(texts)


def counted(bundled: LoadedModel, settings: BatchSettings) -> tuple[Service, Any]:
    service = Service("bundled", bundled, settings)
    service.close()
    encoder = Counting(bundled)
    service.encoder, service.batcher = encoder, Batcher(encoder, settings)
    return service, encoder


def test_200_requests_at_once_share_few_calls(
    bundled: LoadedModel, direct: compoclip.Model
) -> None:
    """All of them are there before the model may begin, so that the number of calls is certain."""
    service, encoder = counted(bundled, BatchSettings(size=32, wait=0.0, items=64, queue=1000))
    texts = [f"a star and {number} mugs" for number in range(200)]
    images = {number: url(number) for number in range(0, 200, 50)}
    with serving(service) as server, ThreadPoolExecutor(200) as pool:
        encoder.gate.clear()
        items = [[text, images[n]] if n in images else [text] for n, text in enumerate(texts)]
        found = [pool.submit(post, server, "/v1/embeddings", {"input": each}) for each in items]
        until(lambda: service.batcher.counts.held == 204)
        encoder.gate.set()
        answers = [each.result() for each in found]
    assert {status for status, _ in answers} == {200}
    expected = direct.encode_texts(texts)
    seen = direct.encode_images([picture(number) for number in images])
    for number, (_, answer) in enumerate(answers):
        assert_close(rows(answer)[0], expected[number])
        if number in images:
            assert_close(rows(answer)[1], seen[number // 50])
    counts = service.batcher.counts
    assert (counts.requests, counts.items, counts.held, counts.peak) == (200, 204, 0, 204)
    assert counts.turned_away == 0
    assert max(encoder.calls) <= 32
    # The first call takes what came first; the 199 others are in full batches, but for images.
    assert len(encoder.calls) <= 9
    assert counts.calls <= 9 + len(images)


@pytest.mark.parametrize("size", [1, 3, 64])
def test_the_size_of_batches_changes_no_result(
    bundled: LoadedModel, direct: compoclip.Model, size: int
) -> None:
    batcher = Batcher(
        ModelEncoder(bundled), BatchSettings(size=size, wait=0.02, items=64, queue=64)
    )
    texts = [f"{number} red stars above a mug" for number in range(10)]
    pixels = [batcher._encoder.read_image.pixels(picture(number)) for number in range(10)]
    jobs = [([], pixels[:1]), (texts[:4], []), (texts[4:5], pixels[1:8]), (texts[5:], pixels[8:])]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda job: batcher.encode(*job), jobs))
    batcher.close()
    all_texts = np.concatenate([each.texts for each in found if len(each.texts)])
    all_images = np.concatenate([each.images for each in found if len(each.images)])
    assert_close(all_texts, direct.encode_texts(texts))
    assert_close(all_images, direct.encode_images(list(map(picture, range(10)))))
    assert batcher.counts.calls >= 20 / size
    with pytest.raises(HttpError, match="ending"):
        batcher.encode(texts, [])


def test_what_finds_no_room_is_turned_away_before_it_takes_memory(
    bundled: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, encoder = counted(bundled, BatchSettings(size=4, wait=0.0, items=4, queue=8))
    decoded = []
    read = service._pixels
    monkeypatch.setattr(service, "_pixels", lambda *given: decoded.append(given) or read(*given))
    with serving(service) as server, ThreadPoolExecutor(2) as pool:
        encoder.gate.clear()
        waiting = [
            pool.submit(post, server, "/v1/embeddings", {"input": ["a"] * 4}) for _ in range(2)
        ]
        until(lambda: service.batcher.counts.held == 8)
        for _ in range(20):
            body = json.dumps({"input": url(1)}).encode()
            status, headers, answer = ask(server, "POST", "/v1/embeddings", body, **JSON)
            assert (status, headers["Retry-After"]) == (503, "1")
            error = answer["error"]
            assert error["message"] == "the queue has 0 places left; try again"
            assert error["type"] == "server_error"
        assert decoded == []
        assert ask(server, "GET", "/health")[2]["turned_away"] == 20  # which never waits
        encoder.gate.set()
        assert [each.result()[0] for each in waiting] == [200, 200]
        until(lambda: service.batcher.counts.held == 0)
        assert post(server, "/v1/embeddings", {"input": url(1)})[0] == 200
    assert service.batcher.counts.peak == 8
    assert len(decoded) == 1


def test_a_failure_is_its_own_requests_alone(
    bundled: LoadedModel, capfd: pytest.CaptureFixture[str]
) -> None:
    service, encoder = counted(bundled, BatchSettings(size=16, wait=0.0, items=64, queue=64))
    with serving(service) as server, ThreadPoolExecutor(6) as pool:
        encoder.gate.clear()
        texts = ["a", "b", "make it fail", "c", "d", "e"]
        found = [pool.submit(post, server, "/v1/embeddings", {"input": text}) for text in texts]
        until(lambda: service.batcher.counts.held == 6)
        encoder.gate.set()
        answers = [each.result() for each in found]
        assert [status for status, _ in answers] == [200, 200, 500, 200, 200, 200]
        error = answers[2][1]["error"]["message"]
        assert error == "the server failed; its terminal says why"
        assert post(server, "/v1/embeddings", {"input": "a"})[0] == 200
    assert "MemoryError: ours" in capfd.readouterr().err


def test_the_end_answers_what_is_under_way(bundled: LoadedModel) -> None:
    service, encoder = counted(bundled, BatchSettings(wait=0.0, items=64))
    with serving(service) as server, ThreadPoolExecutor(1) as pool:
        encoder.gate.clear()
        busy = pool.submit(post, server, "/v1/embeddings", {"input": "a star"})
        until(lambda: service.batcher.counts.held == 1)
        server.stop()
        until(lambda: not reachable(server))
        encoder.gate.set()
        assert busy.result()[0] == 200


def reachable(server: Server) -> bool:
    try:
        socket.create_connection(server.address, timeout=1).close()
    except OSError:
        return False
    return True


# --- What is refused. ---

CUT = png(1)[:-2000]
BAD: dict[str, tuple[str, Any, str]] = {
    "no input": ("embeddings", {}, "'input' is missing"),
    "null": ("embeddings", {"input": None}, "'input' is missing"),
    "empty list": ("embeddings", {"input": []}, "input is empty"),
    "empty text": ("embeddings", {"input": ["a", " "]}, r"input\[1\] is empty"),
    "number": ("embeddings", {"input": 3}, "input is not a text; token ids"),
    "true": ("embeddings", {"input": True}, "input is not a text"),
    "token ids": ("embeddings", {"input": [1, 2]}, r"input\[0\] is not a text; token ids"),
    "lists of ids": ("embeddings", {"input": [[1, 2]]}, "token ids are not taken"),
    "other object": ("embeddings", {"input": {"url": "x"}}, "an object is"),
    "both": ("embeddings", {"input": [{"text": "a", "image": "b"}]}, "an object is"),
    "text of no text": ("embeddings", {"input": {"text": 3}}, "input is not a text"),
    "image of no text": ("embeddings", {"input": {"image": None}}, "not an image file in base64"),
    "too many": ("embeddings", {"input": ["a"] * 257}, "257 items; at most 256"),
    "too long": ("embeddings", {"input": "a" * 20_001}, "20,001 characters"),
    "surrogate": ("embeddings", b'{"input": "\\ud800"}', "lone surrogate"),
    "unknown": ("embeddings", {"input": "a", "inputs": "b"}, "'inputs' is not known"),
    "format": ("embeddings", {"input": "a", "encoding_format": "hex"}, "float, base64"),
    "format list": ("embeddings", {"input": "a", "encoding_format": []}, "float, base64"),
    "dimensions": ("embeddings", {"input": "a", "dimensions": 64}, "dimensions: must be 256"),
    "model type": ("embeddings", {"input": "a", "model": 3}, "name of the model"),
    "web address": ("embeddings", {"input": {"image": "https://a.b/c.png"}}, "not base64"),
    "path": ("embeddings", {"input": {"image": "/etc/passwd"}}, "not base64|no image"),
    "no image": ("embeddings", {"input": "data:image/png;base64,YQ=="}, "not an image of"),
    "svg": ("embeddings", {"input": "data:image/svg+xml,<svg/>"}, "no image here"),
    "other URI": ("embeddings", {"input": " data:text/html,<h1>"}, 'no image here; .*"text": TEXT'),
    "URI of a text": ("embeddings", {"input": ["a", "Data:a"]}, r"input\[1\] is a data URI"),
    "URI in texts": ("scores", {"texts": url(1), "images": url(1)}, "texts is a data URI"),
    "URI in images": ("scores", {"texts": "a", "images": "data:,a"}, "images is a data URI"),
    "cut": ("embeddings", {"input": ["a", {"image": encoded(CUT)}]}, r"input\[1\]: the image"),
    "bomb": ("embeddings", {"input": {"image": encoded(huge_header(60000, 60000))}}, "pixels"),
    "large": ("scores", {"images": encoded(huge_header(6000, 5000)), "texts": "a"}, "24,000,000"),
    "thread": ("scores", {"images": encoded(huge_header(20000, 1)), "texts": "a"}, "50 times"),
    "no texts": ("scores", {"images": encoded(png(1))}, "'texts' is missing"),
    "no images": ("scores", {"texts": "a", "images": []}, "images is empty"),
    "text as image": (
        "scores",
        {"texts": "a", "images": [{"text": "a"}]},
        r"images\[0\] is a text",
    ),
    "image as text": ("scores", {"texts": {"image": "a"}, "images": "a"}, "texts is an image"),
    "sum": ("scores", {"texts": ["a"] * 200, "images": ["a"] * 200}, "are 400; at most 256"),
    "not JSON": ("embeddings", b"{", "not valid JSON .*; send an object with input"),
    "not an object": ("scores", b"[1]", "not a JSON object; send input"),
    "binary": ("embeddings", b"\xff\xfe", "not UTF-8 text"),
    "deep": ("embeddings", b"[" * 100_000, "nested too deeply"),
    "nothing": ("embeddings", b"", "not valid JSON"),
    "doubled key": ("embeddings", b'{"input": "a", "input": "b"}', "'input' occurs twice"),
    "doubled inside": ("embeddings", b'{"input": [{"text": "a", "text": "b"}]}', "occurs twice"),
    "UTF-16": ("embeddings", '{"input": "a"}'.encode("utf-16"), "not UTF-8 text"),
    "many digits": ("embeddings", b'{"input": ' + b"9" * 5000 + b"}", "thousands of digits"),
    **{
        f"URI behind {place!a}": ("embeddings", {"input": place + url(1)}, "is a data URI")
        for place in ("\u200f", "\u00ad", "\u202a", "\u3164", "\0", "\ufe0f", '"', "\u200f" * 300)
    },
    "URI in pieces": ("embeddings", {"input": url(1).replace("ta", "t\u00ada")}, "is a data URI"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(
    server: Server, service: Service, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path, request, expected = BAD[case]
    status, answer = post(server, f"/v1/{path}", request)
    assert status == 400
    error = answer["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)
    assert re.search(expected, error["message"])
    assert "\n" not in error["message"]
    assert len(error["message"]) < 300
    assert capfd.readouterr().err == ""
    assert service.batcher.counts.held == 0


def test_data_uris_are_known_however_they_are_written(
    server: Server, direct: compoclip.Model
) -> None:
    heads = ("DATA:image/png;base64", " \ufeffdata:image/png;BASE64", "data:IMAGE/any;base64")
    written = [f"{head},{encoded(png(1))}" for head in heads]
    status, answer = post(server, "/v1/embeddings", {"input": [*written, {"text": "data: a"}]})
    assert status == 200
    expected = [*direct.encode_images([picture(1)] * 3), *direct.encode_texts(["data: a"])]
    assert_close(rows(answer), expected)


def test_requests_that_are_turned_away(server: Server) -> None:
    body = b'{"input": "a"}'
    for method, path, expected, allow in (
        ("GET", "/", 404, None),
        ("GET", "/v1/other", 404, None),
        ("POST", "/v1/other", 404, None),
        ("GET", "/v1/embeddings", 405, "POST"),
        ("GET", "/v1/embeddings?a=b", 405, "POST"),
        ("POST", "/health", 405, "GET, HEAD"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("PUT", "/v1/embeddings", 405, "POST"),
        ("DELETE", "/v1/models/bundled", 405, "GET, HEAD"),
        ("BREW", "/", 404, None),
    ):
        status, headers, answer = ask(server, method, path, body, **JSON)
        assert (status, headers["Allow"]) == (expected, allow)
        assert answer["error"]["type"] == "invalid_request_error"
    assert ask(server, "POST", "/v1/embeddings", body, **{"Content-Type": "text/plain"})[0] == 415
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        assert ask(server, "POST", "/v1/embeddings", body, **JSON, Host=host)[0] == 403
        assert ask(server, "GET", "/health", Host=host)[0] == 403
    status, answer = post(server, "/v1/embeddings", {"input": "a", "model": "gpt"})
    assert status == 404
    assert answer["error"]["message"] == "there is no model 'gpt' here; this is 'bundled'"


def test_a_body_that_is_too_large_is_told_so_while_it_is_sent(bundled: LoadedModel) -> None:
    """Without reading on, the client would see a reset connection instead of the reason."""
    with serving(Service("bundled", bundled), body=1000) as server:
        status, answer = post(server, "/v1/embeddings", {"input": "a" * 500_000})
        assert status == 413
        assert answer["error"]["message"] == "the request is larger than the 1,000 bytes allowed"
        until(lambda: server.site.buffered == 0)


POST = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n", b"400"),
        (POST + b"Content-Length: +2\r\n\r\n{}", b"400"),
    ],
)
def test_heads_that_are_no_requests(
    server: Server, sent: bytes, expected: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(server.address, timeout=60) as client:
        client.sendall(sent)
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 " + expected)
    assert b"<html" not in answer.lower()
    assert capfd.readouterr().err == ""


# --- The command. ---


def test_wrong_usage(bundled: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    for options, expected in (
        (["--max-batch=0"], "--max-batch must be at least 1"),
        (["--max-wait=-1"], "--max-wait must lie"),
        (["--queue=10"], "the queue holds 10 (--queue): the largest request would never fit"),
        (["--port=70000"], "--port must lie"),
    ):
        assert main(["serve", "bundled", *options]) == 2
        assert expected in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "bundled", "--max-wait=nan"])
    assert "argument --max-wait: 'nan' is not a number" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"256 items .* holds 4 .* would never fit"):
        BatchSettings(queue=4)
    for wrong in ({"size": 0}, {"items": 0}, {"queue": 0}, {"wait": -1.0}):
        with pytest.raises(UsageError, match=r"batches: .* must (be at least 1|not be negative)"):
            BatchSettings(**wrong)


def test_ctrl_c_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Server.run
    answered: list[int] = []

    def interrupted(server: Server) -> None:
        def interrupt() -> None:
            answered.append(post(server, "/v1/embeddings", {"input": "a", "model": "clip"})[0])
            signal.raise_signal(signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        run(server)

    monkeypatch.setattr(Server, "run", interrupted)
    assert main(["serve", "clip=bundled", "--json", "--port=0", "--device=cpu"]) == 0
    said = capsys.readouterr()
    assert (json.loads(said.out)["model"], said.err.strip()) == ("clip", "ended")
    assert answered == [200]


@pytest.mark.slow
def test_a_signal_ends_the_process() -> None:
    command = [sys.executable, "-m", "compoclip", "serve", "clip=bundled", "--json", "--port=0"]
    with subprocess.Popen(
        [*command, "--device=cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        told = ""
        while not told.endswith("}\n"):
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            told += line
        port = int(json.loads(told)["url"].rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGTERM)  # the connection stays open meanwhile
        _, err = process.communicate(timeout=60)
        connection.close()
    assert process.returncode == 0
    assert err.strip() == "ended"


def test_the_example_client(server: Server, direct: compoclip.Model) -> None:
    path = Path(__file__).resolve().parents[1] / "examples" / "python" / "ask_server.py"
    made = runpy.run_path(str(path))
    best, scores = made["main"](server.url.rstrip("/"))
    pictures = [made["picture"](colour) for colour in ("red", "blue", "green")]
    texts = ["a blue circle on a white ground", "a white circle on a blue ground"]
    expected = direct.score(pictures, texts)
    assert_close(scores, expected)
    assert best == ("red", "blue", "green")[int(expected[:, 0].argmax())]
    with pytest.raises(SystemExit, match="input is empty"):
        made["ask"](server.url.rstrip("/"), "/v1/embeddings", {"input": []})
