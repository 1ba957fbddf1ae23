"""The playground's HTTP server: a page, its JSON API, and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from compoclip.play.answers import MAX_BODY, Playground
from compoclip.serve.http import Answer, JsonServer, RequestLimits

_PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/graph.js": ("graph.js", "text/javascript; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


class PlayServer(JsonServer):
    """Serves a `Playground`; start with `serve_forever`.

    Requests are answered one after the other, since they share the models.

    Args:
        playground: Models and examples.
        host: Address to serve at.
        port: 0 takes a free one.
        names: What the server may be called in requests beside its address.

    Raises:
        UsageError: When the address cannot be used.
    """

    verb = "play"
    wanted = "image and caption"

    def __init__(
        self, playground: Playground, host: str, port: int, names: Sequence[str] = ()
    ) -> None:
        answers = {"/api/score": playground.score, "/api/maps": playground.maps}
        folder = files("compoclip.play") / "page"
        pages = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _PAGE.items()}
        info = json.dumps(playground.info(), ensure_ascii=False)
        pages["/api/info"] = (info.encode("utf-8", "backslashreplace"), "application/json")
        for number, example in enumerate(playground.examples):
            pages[f"/examples/{number}.png"] = (example.png, "image/png")
        self.computing = threading.Lock()
        limits = RequestLimits(body=MAX_BODY, held=24 * MAX_BODY)
        super().__init__(pages, answers, host, port, names, limits)

    def answered(self, answer: Answer, body: bytes) -> dict[str, Any]:
        """The answer to a request; one image at a time is decoded, too."""
        with self.computing:
            return super().answered(answer, body)
