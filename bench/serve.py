"""`python -m bench serve`: requests per second of `compoclip serve`, many clients against one."""

from __future__ import annotations

import base64
import http.client
import io
import json
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from bench.captions import world_captions
from bench.data import photo_like
from bench.rows import PROGRAM, Inputs, Row, surroundings
from compoclip.cli.options import parse
from compoclip.console import emit_json, table
from compoclip.errors import CompoclipError, UsageError
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.ranks import device_named
from compoclip.web import BatchSettings, Server, Service, model_site


@dataclass(frozen=True)
class Exchange:
    """Requests of one item each, answered. calls: of the model."""

    requests: int
    calls: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Requests answered in a second."""
        return self.requests / self.seconds


@dataclass(frozen=True)
class ServeSpeed:
    """One kind of request, both ways in turn; medians. alone: a client that sends a request when
    the one before is answered, to a server that neither waits nor batches. together: many clients
    that do so at once. ratio: of requests per second, the median over repeats."""

    what: str
    clients: int
    alone: Exchange
    together: Exchange
    ratio: float


@dataclass(frozen=True)
class Options:
    """Embeddings of one text or image a request, asked for by one client, one after the other, and
    by many at once. Clients are threads of this process, so their work counts in both.

    Args:
        model: Anything `compoclip evaluate` takes.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        clients: That ask at once.
        requests: Of each kind and way.
        repeats: Of both ways in turn.
        side: Pixels of the side of images.
        json: Print JSON.
    """

    model: str = "bundled"
    device: str = "auto"
    clients: int = 32
    requests: int = 512
    repeats: int = 3
    side: int = 256
    json: bool = False


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    options = parse(Options, "serve", arguments, PROGRAM)
    if min(options.clients, options.requests, options.repeats, options.side) < 1:
        raise UsageError("numbers must be at least 1")
    loaded = load_model(options.model, device=device_named(options.device))
    speeds = measure(loaded, options)
    setting = surroundings(loaded.encoder.device)
    if options.json:
        emit_json({**setting, "speeds": [asdict(each) for each in speeds]})
        return 0
    print(f"{setting['device']}, {setting['threads']} threads; {loaded.name}\n")
    cells = [
        [
            each.what,
            f"{each.alone.per_second:.1f}",
            f"{each.together.per_second:.1f}",
            f"{each.ratio:.2f}",
            f"{each.together.requests / each.together.calls:.1f}",
        ]
        for each in speeds
    ]
    header = ["requests/s", "one by one", f"{options.clients} clients", "ratio", "requests a call"]
    print(table(cells, header))
    return 0


def rows(inputs: Inputs) -> list[Row]:
    """The bundled model, with texts and with images."""
    options = Options(requests=128, repeats=1) if inputs.quick else Options()
    loaded = load_model(options.model, device=device_named("cpu"))
    return [
        Row(
            bench="serve",
            what=f"{each.what} requests/s, {each.clients} clients",
            ours=each.together.per_second,
            baseline=each.alone.per_second,
            against="one by one",
            ratio=each.ratio,
        )
        for each in measure(loaded, options)
    ]


def measure(loaded: LoadedModel, options: Options) -> list[ServeSpeed]:
    """Texts, then images. Raises CompoclipError when a request is not answered."""
    texts = world_captions(options.requests + 3)[: options.requests]
    pictures = [_data_url(number, options.side) for number in range(16)]
    images = [pictures[n % len(pictures)] for n in range(options.requests)]
    return [_speed(loaded, "text", texts, options), _speed(loaded, "image", images, options)]


def _speed(loaded: LoadedModel, what: str, items: Sequence[str], options: Options) -> ServeSpeed:
    bodies = [json.dumps({"input": item, "encoding_format": "base64"}).encode() for item in items]
    plain, batched = BatchSettings(most=1, wait=0.0), BatchSettings()
    alone, together = [], []
    for _ in range(options.repeats):
        alone.append(_exchange(loaded, plain, bodies, 1))
        together.append(_exchange(loaded, batched, bodies, options.clients))
    ratio = statistics.median(a.seconds / b.seconds for a, b in zip(alone, together))
    return ServeSpeed(what, options.clients, _middle(alone), _middle(together), ratio)


def _middle(found: Sequence[Exchange]) -> Exchange:
    return sorted(found, key=lambda each: each.seconds)[len(found) // 2]


def _data_url(number: int, side: int) -> str:
    buffer = io.BytesIO()
    photo_like(number, side, side).save(buffer, format="JPEG", quality=90)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _exchange(
    loaded: LoadedModel, settings: BatchSettings, bodies: Sequence[bytes], clients: int
) -> Exchange:
    """Send all bodies, each by the first client that is free, after a few to warm up."""
    service = Service("bench", loaded, settings)
    server = Server(model_site(service), "127.0.0.1", 0)
    with server.in_thread(), ThreadPoolExecutor(clients) as pool:
        kept = threading.local()

        def ask(body: bytes) -> None:
            if not hasattr(kept, "connection"):
                kept.connection = http.client.HTTPConnection(*server.address)
            kind = {"Content-Type": "application/json"}
            kept.connection.request("POST", "/v1/embeddings", body, kind)
            answer = kept.connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise CompoclipError(f"the server answered {answer.status}: {text[:200]!r}")

        list(pool.map(ask, bodies[: 2 * clients]))
        before = service.batcher.counts.calls
        start = time.perf_counter()
        list(pool.map(ask, bodies))
        seconds = time.perf_counter() - start
    service.close()
    return Exchange(len(bodies), service.batcher.counts.calls - before, seconds)
