"""`compoclip serve MODEL`, `compoclip play MODEL`: a model over HTTP, for programs or people."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from compoclip import console, own
from compoclip.cli.options import OnDevice
from compoclip.config import Count, Shown, Within
from compoclip.errors import UsageError
from compoclip.run import load_models

if TYPE_CHECKING:
    from compoclip.models import LoadedModel
    from compoclip.search import PhotoIndex
    from compoclip.web.app import Website

Port = Annotated[int, Within(0, 65535)]


@dataclass(frozen=True, kw_only=True)
class _ServingOptions(OnDevice):
    """Where to serve.

    Args:
        host: Address to serve at. The default accepts this computer only; any other address accepts
            everybody who can reach it, without a password.
        names: Further host names that requests may use, such as a proxy's; other names are refused.
        port: Port to serve at; 0 takes a free one.
        index: Photos to search, made by compoclip index with the (first) model.
    """

    host: str = "127.0.0.1"
    names: Annotated[tuple[str, ...], Shown("NAME ...")] = ()
    port: Port = 8000
    index: Path | None = None


@dataclass(frozen=True)
class ServeOptions(_ServingOptions):
    """Serve a model over HTTP: embeddings in OpenAI's format, and scores of images and texts.

    POST /v1/embeddings takes texts and images (data URLs, base64), POST /v1/scores images and
    texts. With --index, POST /v1/search finds photos. GET /v1/models and /health return the model
    and the load. Waiting requests are encoded together; the results do not depend on that. Ctrl-C
    or SIGTERM ends the server after open requests are answered.

    Examples:
        compoclip serve bundled
        compoclip serve clip=runs/fsc-clip/model --port 8080 --device cuda

    Args:
        model: As for evaluate; NAME=MODEL gives its name for clients.
        max_batch: Most texts or images in one call of the model.
        max_wait: Milliseconds that a request may wait for others to share a call.
        max_items: Most texts and images in one request.
        queue: Most texts and images of all open requests; further requests get 503 and
            Retry-After.
        max_megabytes: Most megabytes of one request; all requests together may have eight times as
            many.
    """

    model: Annotated[str, Shown("MODEL", positional=True)]
    max_batch: Count = 64
    max_wait: Annotated[float, Within(0, 10_000)] = 5.0
    max_items: Count = 256
    queue: Count = 1024
    max_megabytes: Count = 32


def main(options: ServeOptions) -> int:
    """Load the model, serve until interrupted."""
    if options.max_items > options.queue:
        raise UsageError("--max-items must not be above --queue: such a request never finds room")
    from compoclip.web.batches import BatchSettings
    from compoclip.web.service import Service, model_site

    ((name, loaded),) = load_models((options.model,), options.device).items()
    settings = BatchSettings(options.max_batch, options.max_wait / 1000, options.queue)
    index = _index(options.index, loaded)
    service = Service(name, loaded, settings, options.max_items, index)
    body = options.max_megabytes * 1_000_000
    site = model_site(service, options.host, options.names, body)
    if not serve(site, options, {"model": name}, "model", "v1/embeddings"):
        return 1
    service.close()
    return 0


def _index(path: Path | None, loaded: LoadedModel) -> PhotoIndex | None:
    """Read the photos to search, once the model is known to be theirs."""
    if path is None:
        return None
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.search import read_index

    index = read_index(path)
    index.require(ModelEncoder(loaded), path)
    return index


def serve(
    site: Website,
    options: _ServingOptions,
    record: Mapping[str, Any],
    shown: str,
    page: str = "",
) -> bool:
    """Serve a website until interrupted; return whether all requests were answered.

    record: what --json prints beside the address. shown: what others can reach, for the warning.
    page: the part of the address to print.
    """
    from compoclip.web.app import Server

    server = Server(site, options.host, options.port)
    if not site.loopback:
        console.note(f"{options.host}: others can reach this {shown}; there is no password")
    console.tell(
        options.json, {"url": server.url, **record}, f"{server.url}{page}   (Ctrl-C ends it)"
    )
    sys.stdout.flush()  # who reads it by a pipe waits for the address
    with suppress(KeyboardInterrupt):
        server.run()
    console.note("ended; some requests went unanswered" if site.busy else "ended")
    return not site.busy


# --- `compoclip play MODEL [MODEL]`: the web playground. ---


@dataclass(frozen=True, kw_only=True)
class PlayOptions(_ServingOptions):
    """Open a web page: drop an image, type a caption, see which rewrites fool the model.

    The page scores all rewrites of the caption, negatives and positives, and marks the misranked
    ones. A click on a word shows the patches it aligns with. Two models are shown side by side. It
    needs no network. POST {"image": BASE64, "caption": TEXT} to /api/score or /api/maps for the
    same as JSON. Ctrl-C ends it.

    Examples:
        compoclip play bundled
        compoclip play base=bundled tuned=runs/fsc-clip/model --port 8080

    Args:
        models: One or two, as for evaluate; NAME=MODEL gives a name.
    """

    models: Annotated[tuple[str, ...], Shown("MODEL [MODEL]", positional=True, hint="(required)")]
    port: Port = 7860


def play_main(options: PlayOptions) -> int:
    """Load the models, serve until interrupted."""
    if len(options.models) > 2:
        raise UsageError("name one model, or two to see side by side; see play --help")
    from compoclip.web.playground import Playground, play_site

    loaded = load_models(options.models, options.device)
    size = max(each.preprocess.size[0] for each in loaded.values())
    found = [own.imported(each, "examples")(size) for each in own.installed("examples").values()]
    index = _index(options.index, next(iter(loaded.values())))
    playground = Playground(loaded, [each for examples in found for each in examples], index)
    site = play_site(playground, options.host, options.names)
    serve(site, options, {"models": list(loaded)}, "page", "#1" if found else "")
    return 0
