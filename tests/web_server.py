"""A small HTTP server in a thread that misbehaves on demand, for the tests of downloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """files: path -> content. break_at: path -> bytes to send before hanging up, one a request.
    no_range: paths whose ranges are ignored. status: path -> codes to answer first. raw: path ->
    whole answers to send byte by byte as they are, the last one for good. versions: path -> its
    headers ETag and Last-Modified. careless: paths whose If-Range is ignored. asked: (path, Range
    header) of every request."""

    files: dict[str, bytes] = field(default_factory=dict)
    break_at: dict[str, list[int]] = field(default_factory=dict)
    no_range: set[str] = field(default_factory=set)
    status: dict[str, list[int]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    raw: dict[str, list[bytes]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    careless: set[str] = field(default_factory=set)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@contextmanager
def served(site: Site) -> Iterator[Site]:
    """`site` on a port of this machine; `site.url` is its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            if self.path in site.raw:
                answers = site.raw[self.path]
                self.wfile.write(answers.pop(0) if len(answers) > 1 else answers[0])
                self.close_connection = True
                return
            if self.path in site.redirects:
                self.send_response(302)
                self.send_header("Location", site.redirects[self.path])
                self.end_headers()
                return
            if site.status.get(self.path):
                self.send_error(site.status[self.path].pop(0))
                return
            if self.path not in site.files:
                self.send_error(404)
                return
            data = site.files[self.path]
            start = 0
            versions = site.versions.get(self.path, {})
            same = self.headers.get("If-Range") in (None, *versions.values())
            if wanted and self.path not in site.no_range and (same or self.path in site.careless):
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(data):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(data)}")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            for name, value in versions.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            breaks = site.break_at.get(self.path)
            self.wfile.write(data[start:] if not breaks else data[start : breaks.pop(0)])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
