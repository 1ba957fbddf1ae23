"""`compoclip serve MODEL`: embeddings and scores over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from compoclip import console
from compoclip.cli.options import parse
from compoclip.config import Shown
from compoclip.errors import UsageError
from compoclip.run import load_models, require_least


@dataclass(frozen=True)
class ServeOptions:
    """A model over HTTP: embeddings as OpenAI's API has them, and scores of images and texts.

    POST /v1/embeddings takes texts and images (data URLs, base64), POST /v1/scores images and
    texts; GET /v1/models and /health tell what is there and how busy it is. Requests that wait are
    encoded together, and get what each would get alone. Ctrl-C or SIGTERM ends it, once those
    under way are answered.

    Examples:
        compoclip serve bundled
        compoclip serve clip=runs/fsc-clip/model --port 8080 --device cuda

    Args:
        model: As for evaluate; NAME=MODEL gives the name that clients call it by.
        host: Address to serve at. The default lets nobody else in; any other one lets everybody in
            who can reach it: there is no password.
        names: Names beside its address and that of this computer by which clients may ask, e.g.
            that of a proxy before it; other names are refused.
        port: 0 takes a free one.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        max_batch: Texts or images in one call of the model.
        max_wait: Milliseconds that a request may wait for others to share a call with.
        max_items: Texts and images in one request.
        queue: Texts and images that all requests may hold at once; what finds no room gets 503 and
            Retry-After.
        max_megabytes: Size of one request; all together hold eight times as much.
        json: Print the address as JSON.
    """

    model: Annotated[str, Shown("MODEL", positional=True)]
    host: str = "127.0.0.1"
    names: Annotated[tuple[str, ...], Shown("NAME ...")] = ()
    port: int = 8000
    device: str = "auto"
    max_batch: int = 64
    max_wait: float = 5.0
    max_items: int = 256
    queue: int = 1024
    max_megabytes: int = 32
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Load the model, serve until interrupted."""
    options = parse(ServeOptions, "serve", argv)
    require_least(1, options, "max_batch", "max_items", "queue", "max_megabytes")
    if not 0 <= options.max_wait <= 10_000:
        raise UsageError("--max-wait must lie between 0 and 10000 milliseconds")
    if options.max_items > options.queue:
        raise UsageError("--max-items must not be above --queue: such a request never finds room")
    if not 0 <= options.port <= 65535:
        raise UsageError("--port must lie between 0 and 65535")
    from compoclip.web.app import Server
    from compoclip.web.batches import BatchSettings
    from compoclip.web.service import Service, model_site

    ((name, loaded),) = load_models((options.model,), options.device).items()
    settings = BatchSettings(options.max_batch, options.max_wait / 1000, options.queue)
    service = Service(name, loaded, settings, options.max_items)
    body = options.max_megabytes * 1_000_000
    server = Server(
        model_site(service, options.host, options.names, body), options.host, options.port
    )
    if not server.site.loopback:
        console.note(f"{options.host}: others can reach this model; there is no password")
    if options.json:
        console.emit_json({"url": server.url, "model": name})
    else:
        print(f"{server.url}v1/embeddings   (Ctrl-C ends it)")
    sys.stdout.flush()  # who reads it by a pipe waits for the address
    with suppress(KeyboardInterrupt):
        server.run()
    if server.site.busy:
        console.note("ended; some requests went unanswered")
        return 1
    service.close()
    console.note("ended")
    return 0
