"""The answers over HTTP: embeddings in OpenAI's format, scores of images and texts."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from compoclip.bounds import MAX_SERVED_CHARACTERS, MAX_SERVED_HITS
from compoclip.data.image_names import IMAGE_URI
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.files import encodable
from compoclip.models.checkpoint import LoadedModel
from compoclip.search import PhotoIndex
from compoclip.search.modes import Denial
from compoclip.search.query import found_by, parts_of
from compoclip.version import __version__
from compoclip.web.app import HttpError, Website, json_page, require_client, require_known
from compoclip.web.batches import Batcher
from compoclip.web.images import RequestImages, is_data_uri
from compoclip.web.limits import BatchSettings
from compoclip.workers import available_cores

_FORMATS = ("float", "base64")


class _Item(NamedTuple):
    """A text or an image of a request. content: the text, or the image file in base64.
    location: what errors call it."""

    is_image: bool
    content: str
    location: str


class Service:
    """Answers requests with one model in shared batches; `close` ends its thread.

    Args:
        name: Name of the model for clients.
        loaded: The model; nothing else may use it meanwhile.
        settings: How many items a call of the model, a request and the queue hold.
        index: Photos to search, encoded by the model.
    """

    def __init__(
        self,
        name: str,
        loaded: LoadedModel,
        settings: BatchSettings | None = None,
        index: PhotoIndex | None = None,
    ) -> None:
        self.name, self.index = name, index
        self.encoder = ModelEncoder(loaded)
        self.batcher = Batcher(self.encoder, settings or BatchSettings())
        self.dimensions = self.batcher.encode(["a"], []).texts.shape[1]
        self._loaded = loaded
        self._started = int(time.time())
        # Decoded images are the largest things here, and there is no gain in more than cores.
        self._decoding = threading.BoundedSemaphore(available_cores())

    def close(self) -> None:
        """Answer the waiting requests, and end."""
        self.batcher.close()

    def model(self) -> dict[str, Any]:
        """Return the model's entry in `/v1/models`."""
        return {
            "id": self.name,
            "object": "model",
            "created": self._started,
            "owned_by": "compoclip",
            "architecture": self.encoder.identity.architecture,
            "weights": self.encoder.identity.weights,
            "dimensions": self.dimensions,
            "context_length": self._loaded.tokenizer.context_length,
            "image_size": list(self._loaded.preprocess.size),
        }

    def health(self) -> dict[str, Any]:
        """Return the status, queue length and counts of requests."""
        settings = self.batcher.settings
        limits = {
            "batch": settings.size,
            "wait_ms": settings.wait * 1000,
            "queue": settings.queue,
            "items": settings.items,
        }
        counts = asdict(self.batcher.counts)
        return {"status": "ok", "version": __version__, **counts, "limits": limits}

    def embeddings(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return features of texts and images: OpenAI's list of embeddings, of unit length, in
        order.

        request: "input", a text, an image or a list of them; optionally "model", "encoding_format"
        (float or base64), "dimensions" and "user". A text is a string or {"text": ...}, an image is
        a data URL or {"image": ...}, base64 or a data URL. "truncated" in the answer is the number
        of texts cut to the model's context. Raises UsageError for a bad request, HttpError for
        another model or a full queue.
        """
        self._check(request, {"input", "model", "encoding_format", "dimensions", "user"})
        layout = request.get("encoding_format", "float")
        if layout not in _FORMATS:
            raise UsageError(f"encoding_format is one of {', '.join(_FORMATS)}")
        if request.get("dimensions", self.dimensions) != self.dimensions:
            raise UsageError(
                f"dimensions: must be {self.dimensions}, because this server does not cut features"
            )
        items = self._items(request, "input")
        rows, about = self._encoded(items)
        data = []
        for index, row in enumerate(rows):
            written: list[float] | str = row.tolist()
            if layout == "base64":  # as OpenAI's own client asks for them
                written = base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")
            data.append({"object": "embedding", "index": index, "embedding": written})
        return {"object": "list", "data": data, **about}

    def scores(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return "scores", a row per image with its cosine with each text.

        request: "images" and "texts", each one or a list, as for `embeddings`; optionally "model".
        Raises as `embeddings` does.
        """
        self._check(request, {"images", "texts", "model", "user"})
        items = [*self._items(request, "images", True), *self._items(request, "texts", False)]
        limit = self.batcher.settings.items
        if len(items) > limit:
            raise UsageError(f"images and texts are {len(items)}; at most {limit} are allowed")
        rows, about = self._encoded(items)
        images, texts = (
            np.stack([row for row, item in zip(rows, items) if item.is_image is kind])
            for kind in (True, False)
        )
        return {"object": "scores", "scores": (images @ texts.T).tolist(), **about}

    def search(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return "data", per text or image the nearest photos of the index ("hits": photo, score)
        and whether the best "matches". Denied words of a text count as in `search`.

        request: "input" and "model" as for `embeddings`; "top", 1 to 100 photos for each. Raises as
        `embeddings` does.
        """
        self._check(request, {"input", "model", "top", "user"})
        top = request.get("top", 10)
        if type(top) is not int or not 1 <= top <= MAX_SERVED_HITS:
            raise UsageError(f"top is a number of photos from 1 to {MAX_SERVED_HITS}")
        items = self._items(request, "input")
        with self._decoding:  # as many at once as there are cores: parsing takes a while
            queries = [
                Denial(item.location, item.location, is_image=True)
                if item.is_image
                else parts_of(item.content)
                for item in items
            ]
        positives = [
            item if item.is_image else item._replace(content=query.positive)
            for item, query in zip(items, queries)
        ]
        denied = dict.fromkeys(phrase for query in queries for phrase in query.denied)
        if len(items) + len(denied) > self.batcher.settings.queue:
            raise UsageError(f"the texts deny {len(denied):,} things, too many; deny less at once")
        rows, about = self._encoded([*positives, *(_Item(False, text, "") for text in denied)])
        vectors = dict(zip(denied, rows[len(items) :]))
        assert self.index is not None
        with self._decoding:  # the scores of an answer take memory
            answers = found_by(
                self.index,
                queries,
                np.stack(rows[: len(items)]),
                top,
                lambda texts: np.stack([vectors[text] for text in texts]),
                self.encoder.tokenizer,
            )
        data = [asdict(answer) | {"query": item.location} for answer, item in zip(answers, items)]
        return {"object": "list", "data": data, **about}

    def _check(self, request: Mapping[str, Any], allowed: Collection[str]) -> None:
        """Refuse another model, and what would be left unheeded."""
        require_known(request, allowed)
        name = request.get("model", self.name)
        if not isinstance(name, str):
            raise UsageError("model is the name of the model, a string")
        if name != self.name:
            raise HttpError(404, f"there is no model '{name[:200]}' here; this is '{self.name}'")

    def _items(
        self, request: Mapping[str, Any], key: str, is_image: bool | None = None
    ) -> list[_Item]:
        """The items under a key. is_image: what a string is; None: an image if it is a data URL."""
        value = request.get(key)
        if value is None:
            raise UsageError(f"'{key}' is missing: send one or a list")
        if not isinstance(value, list):
            return [_item(value, key, is_image)]
        if not value:
            raise UsageError(f"{key} is empty; send one at least")
        limit = self.batcher.settings.items
        if len(value) > limit:
            raise UsageError(f"{key} has {len(value)} items; at most {limit} are allowed")
        return [_item(entry, f"{key}[{n}]", is_image) for n, entry in enumerate(value)]

    def _encoded(self, items: Sequence[_Item]) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Return the features of items, in order, and facts on model and work for the answer."""
        with self.batcher.room(len(items)):
            images = RequestImages()
            pixels = [self._pixels(item, images) for item in items if item.is_image]
            encoding = self.batcher.encode([i.content for i in items if not i.is_image], pixels)
        usage = {"prompt_tokens": encoding.tokens, "total_tokens": encoding.tokens}
        kinds = {False: iter(encoding.texts), True: iter(encoding.images)}
        rows = [next(kinds[item.is_image]) for item in items]
        return rows, {"model": self.name, "usage": usage, "truncated": encoding.truncated}

    def _pixels(self, item: _Item, images: RequestImages) -> np.ndarray:
        """Return the pixels of an image, read as `compoclip.load` reads it."""
        with self._decoding:
            require_client()
            try:
                return self.encoder.read_image.pixels(images.read(item.content, "the image"))
            except CompoclipError as error:
                raise UsageError(f"{item.location}: {error}") from None


def _item(value: Any, location: str, is_image: bool | None) -> _Item:
    """One text or image of a request. Raises UsageError for anything else."""

    content = value
    if isinstance(value, dict):
        if len(value) != 1 or not {"text", "image"} & set(value):
            raise UsageError(
                f'{location} is an unknown object: an object is {{"text": TEXT}} or {{"image": '
                "BASE64}"
            )
        ((kind, content),) = value.items()
        if is_image is not None and is_image is not (kind == "image"):
            raise UsageError(
                f"{location} is {'a text' if is_image else 'an image'}; it belongs elsewhere"
            )
        is_image = kind == "image"
    else:
        uri = isinstance(value, str) and is_data_uri(value)
        if uri and (is_image is False or not IMAGE_URI.match(value)):
            raise UsageError(
                f"{location} is a data URI that is no image here; write an image as "
                'data:image/TYPE;base64,DATA, and a text that begins so as {"text": TEXT}'
            )
        is_image = bool(uri) if is_image is None else is_image
    if not isinstance(content, str):
        ids = not is_image and isinstance(content, int | list)
        form = "an image file in base64" if is_image else "a text"
        raise UsageError(f"{location} is not {form}{'; token ids are not taken' if ids else ''}")
    if not is_image:
        if len(content) > MAX_SERVED_CHARACTERS:
            raise UsageError(
                f"{location} has {len(content):,} characters; at most {MAX_SERVED_CHARACTERS:,} "
                "are allowed"
            )
        if not content.strip():
            raise UsageError(f"{location} is empty")
        if not encodable(content):
            raise UsageError(f"{location} has half a character (a lone surrogate)")
    return _Item(is_image, content, location)


# --- The website. ---


def model_site(
    service: Service, host: str = "127.0.0.1", names: Sequence[str] = (), body: int = 32_000_000
) -> Website:
    """Make the website of a `Service`.

    Args:
        service: The service.
        host: Address to serve at.
        names: Further names that requests may call the server by.
        body: Most bytes of one request; all requests together may hold eight times as many.
    """
    model = service.model()
    answers = {"/v1/embeddings": service.embeddings, "/v1/scores": service.scores}
    if service.index is not None:
        answers["/v1/search"] = service.search

    def problem(status: int, message: str) -> dict[str, Any]:
        """An error in OpenAI's form."""
        kind = "server_error" if status in (500, 503) else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}

    return Website(
        {
            "/v1/models": json_page({"object": "list", "data": [model]}),
            f"/v1/models/{service.name}": json_page(model),
            "/health": lambda: json_page(service.health()),
        },
        answers,
        host=host,
        names=names,
        expected="input (/v1/embeddings), or images and texts (/v1/scores)",
        body=body,
        problem=problem,
    )
