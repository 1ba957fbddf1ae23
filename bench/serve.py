"""`python -m bench serve`: requests per second of `compoclip serve`, many clients against one."""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Row
from bench.made import photo_like, world_captions
from compoclip.data.decode import data_uri
from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.ranks import device_named
from compoclip.web import BatchSettings, Server, Service, model_site

QUICK = ("--requests=128", "--repeats=1")


@dataclass(frozen=True)
class Options:
    """Embeddings of one text or image a request, asked for by one client, one after the other, of
    a server that neither waits nor batches, and by many at once. Clients are threads of this
    process, so their work counts in both.

    Args:
        model: Anything `compoclip evaluate` takes.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        clients: That ask at once.
        requests: Of each kind and way.
        repeats: Of both ways in turn.
        side: Pixels of the side of images.
    """

    model: str = "bundled"
    device: str = "auto"
    clients: int = 32
    requests: int = 512
    repeats: int = 3
    side: int = 256


def measure(options: Options, folder: Path) -> list[Row]:
    """Measure texts, then images. Raises CompoclipError when a request is not answered."""
    loaded = load_model(options.model, device=device_named(options.device))
    sides = options.side, options.side
    pictures = [data_uri(photo_like(number, *sides), "jpeg", quality=90) for number in range(16)]
    kinds = {
        "text": world_captions(options.requests + 3)[: options.requests],
        "image": [pictures[n % len(pictures)] for n in range(options.requests)],
    }
    rows = []
    for what, items in kinds.items():
        bodies = [json.dumps({"input": x, "encoding_format": "base64"}).encode() for x in items]
        pairs = [
            (
                _exchange(loaded, BatchSettings(size=1, wait=0.0), bodies, 1),
                _exchange(loaded, BatchSettings(), bodies, options.clients),
            )
            for _ in range(options.repeats)
        ]
        alone, together = (statistics.median(s for s, _ in way) for way in zip(*pairs))
        rows.append(
            Row(
                what=f"{what} requests/s, {options.clients} clients",
                ours=len(bodies) / together,
                baseline=len(bodies) / alone,
                against="one by one",
                times=statistics.median(a / b for (a, _), (b, _) in pairs),
            )
        )
        calls = [statistics.median(calls for _, calls in way) for way in zip(*pairs)]
        each, shared = (len(bodies) / n for n in calls)
        rows.append(Row(f"{what} requests a call of the model", shared, each, "one by one"))
    return rows


def _exchange(
    loaded: LoadedModel, settings: BatchSettings, bodies: Sequence[bytes], clients: int
) -> tuple[float, int]:
    """Send all bodies, each by the first free client, after a few to warm up.

    Return the seconds, and the calls of the model.
    """
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
    return seconds, service.batcher.counts.calls - before
