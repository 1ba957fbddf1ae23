"""A small stand-in for the Hugging Face hub: repositories in memory, over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SHA = "0123456789abcdef0123456789abcdef01234567"


def offer(folder: Path, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Have every repository of the hub hold the files of a folder, without a server."""

    def snapshot(_: str, allow_patterns: list[str]) -> str:
        for file in (path for path in folder.rglob("*") if path.is_file()):
            name = file.relative_to(folder).as_posix()
            if any(fnmatch(name, pattern) for pattern in allow_patterns):  # as the hub's own client
                (cache / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, cache / name)
        return str(cache)

    patch.setattr("huggingface_hub.snapshot_download", snapshot)


@dataclass
class Hub:
    """repositories: files by name. seen: "METHOD path" of every request. tokens: that came."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    created: list[dict[str, Any]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def environment(self, home: object) -> dict[str, str]:
        """What makes huggingface_hub talk to this hub."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_TOKEN": "hf_test",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }

    def serve_this_process(self, home: object, patch: pytest.MonkeyPatch) -> None:
        """Have huggingface_hub, imported already, talk to this hub."""
        from huggingface_hub import constants, hf_api

        environment = self.environment(home)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "ENDPOINT", self.url)
        patch.setattr(hf_api.api, "endpoint", self.url)  # whose methods libraries import
        template = f"{self.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        patch.setattr(constants, "HF_HUB_CACHE", f"{environment['HF_HOME']}/hub")


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.read()
            path = self.noted()
            if path == "/api/validate-yaml":
                return self.reply({"errors": [], "warnings": []})
            if "hf_test" not in self.headers.get("Authorization", ""):
                return self.reply({"error": "who are you?"}, 401)
            if path == "/api/repos/create":
                repository = json.loads(body)
                hub.created.append(repository)
                name = f"{repository['organization']}/{repository['name']}"
                hub.repositories.setdefault(name, {})
                return self.reply({"url": f"{hub.url}/{name}", "id": name, "name": name})
            match = re.fullmatch(r"/api/models/(.+)/(preupload|commit)/main", path)
            assert match is not None, path
            if match[2] == "preupload":
                mode = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
                files = [{"path": file["path"], **mode} for file in json.loads(body)["files"]]
                return self.reply({"files": files})
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "header":
                    hub.messages.append(value["summary"])
                else:
                    assert line["key"] == "file"
                    content = base64.b64decode(value["content"])
                    hub.repositories[match[1]][value["path"]] = content
            commit = f"{hub.url}/{match[1]}/commit/{SHA}"
            return self.reply({"commitUrl": commit, "commitOid": SHA, "success": True})

        def do_HEAD(self) -> None:
            self.file()

        def do_GET(self) -> None:
            path = self.noted()
            if re.fullmatch(r"/api/models/[^/]+/[^/]+/commits/\w+", path):
                commit = {"id": SHA, "title": "", "message": "", "authors": []}
                return self.reply([{**commit, "date": "2026-01-01T00:00:00.000Z"}])
            match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/\w+|/tree/(\w+))?", path)
            if match is None:
                return self.file()
            files = hub.repositories.get(match[1])
            if files is None:
                return self.reply({"error": "Repository not found"}, 404)
            if match[2]:
                listed = [
                    {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                    for name, data in files.items()
                ]
                return self.reply(listed)
            siblings = [{"rfilename": name} for name in files]
            about = {"id": match[1], "sha": SHA, "siblings": siblings, "private": False}
            return self.reply({**about, "modelId": match[1], "tags": [], "downloads": 0})

        def file(self) -> None:
            match = re.fullmatch(r"/(.+/.+)/resolve/\w+/(.+)", self.noted())
            data = hub.repositories.get(match[1], {}).get(match[2]) if match else None
            if data is None:
                return self.reply({"error": "Entry not found"}, 404)
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(wanted[1]) if wanted else 0
            self.send_response(206 if wanted else 200)
            self.send_header("ETag", f'"{_etag(data)}"')
            self.send_header("X-Repo-Commit", SHA)
            self.send_header("Content-Length", str(len(data) - start))
            self.send_header("Accept-Ranges", "bytes")
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data[start:])
            return None

        def noted(self) -> str:
            path = self.path.partition("?")[0]
            hub.seen.append(f"{self.command} {path}")
            hub.tokens.add(self.headers.get("Authorization", ""))
            return path

        def read(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def reply(self, data: Any, status: int = 200) -> None:
            text = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


@cache
def _etag(data: bytes) -> str:
    """Of a large file its SHA-256, as the hub's; of a small one a SHA-1."""
    if len(data) > 10_000:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
