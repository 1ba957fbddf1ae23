"""A chat server with OpenAI's interface that misbehaves on purpose; run as a process of its own.

    python chat_server.py good|bad [SECONDS_PER_ANSWER]

It prints its port. `good` answers as it should, in many formats. `bad` does wrong, once or twice,
on a fixed share of the captions (by hash), then answers. GET /stats gives the requests by caption.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

REFUSAL = "I'm sorry, but I can't help with that."
ALWAYS_REFUSED, ALWAYS_400, ALWAYS_500 = "xrefuse", "xbad", "xdown"
#: What is done wrong, in how many of 40 captions and how often to each.
FAULTS = ["slow", "429", "429-date", "500", "500", "no-json", "no-chat", "refusal", "cut", "empty"]
TWICE = (3, 4)  # the faults that happen two times
FORMATS = 5


def slot(caption: str) -> int:
    return hashlib.blake2b(caption.encode(), digest_size=4).digest()[0] % 40


@lru_cache(maxsize=1000)
def texts(prompt: str, caption: str) -> list[str]:
    """What a good model would say."""
    from compoclip.captions.parser import parse
    from compoclip.rewrites.base import Rewritten, get_rewrite, rng_for

    if "ten short sentences" in prompt:
        return ["there is a wall behind it", "the light comes from the left", "it looks new"]
    if "in other words" in prompt:
        return [f"there is {caption}", f"{caption} as seen here"]
    name = "replace" if "clearly different" in prompt else "synonym"
    made = [
        get_rewrite(name)(parse(caption), rng_for(0, caption, epoch, name)) for epoch in range(3)
    ]
    return [each.text for each in made if isinstance(each, Rewritten)] or ["None"]


def wrapped(found: list[str], number: int) -> str:
    """The texts as chat models wrap them."""
    match number % FORMATS:
        case 0:
            return json.dumps(found)
        case 1:
            lines = (f"{i}. {text}" for i, text in enumerate(found, 1))
            return "Sure! Here they are:\n\n" + "\n".join(lines)
        case 2:
            return "\n".join(f'"{text}"' for text in found)
        case 3:
            return "```json\n" + json.dumps({"sentences": found}) + "\n```"
    return "<think>Let me see.</think>\n" + "\n".join(f"- {text}" for text in found)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bad = False
    delay = 0.0
    asked: ClassVar[Counter[str]] = Counter()
    keys: ClassVar[set[str]] = set()
    under_way = most_at_once = 0
    lock = threading.Lock()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        stats = {
            "asked": self.asked,
            "keys": sorted(self.keys),
            "most_at_once": Handler.most_at_once,
        }
        self.reply(200, json.dumps(stats))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][-1]["content"]
        caption = prompt.rpartition("Sentence: ")[2].removesuffix("\nAnswer:")
        with self.lock:
            self.asked[caption] += 1
            time_before = self.asked[caption] - 1
            self.keys.add(self.headers.get("Authorization", ""))
            Handler.under_way += 1
            Handler.most_at_once = max(Handler.most_at_once, Handler.under_way)
        try:
            time.sleep(self.delay)
            if (fault := self.fault(caption, time_before)) == "slow":
                self.leave()  # its client gives up
                time.sleep(30)
                return
            content = wrapped(texts(prompt, caption), slot(caption))
            self.leave()
            self.answer(body["model"], caption, content, fault)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def leave(self) -> None:
        """Count the request as done, before its client can know and ask the next."""
        with self.lock:
            Handler.under_way -= 1

    def fault(self, caption: str, before: int) -> str:
        """What to do wrong this time; "" is nothing."""
        number = slot(caption)
        if ALWAYS_REFUSED in caption:
            return "refusal"
        if ALWAYS_500 in caption:
            return "500"
        if not self.bad or number >= len(FAULTS) or before > (number in TWICE):
            return ""
        return FAULTS[number]

    def answer(self, model: str, caption: str, content: str, fault: str) -> None:
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if model == "locked":
            return self.reply(401, json.dumps({"error": {"message": f"no such key: {key}"}}))
        if model == "moved":
            return self.reply(307, "", {"Location": "http://elsewhere.invalid/v1"})
        if model != "tiny":
            return self.reply(404, json.dumps({"error": {"message": f"no model {model}"}}))
        if ALWAYS_400 in caption:
            return self.reply(400, json.dumps({"error": {"message": "too long for the model"}}))
        match fault:
            case "429":
                return self.reply(429, "{}", {"Retry-After": "0.2"})
            case "429-date":
                return self.reply(429, "", {"Retry-After": self.date_time_string()})
            case "500":
                return self.reply(500, "<html>oops</html>")
            case "no-json":
                return self.reply(200, "this is not JSON")
            case "no-chat":
                return self.reply(200, '{"choices": [{"message": null}]}')
            case "refusal":
                return self.chat(REFUSAL)
            case "empty":
                return self.chat("")
        return self.chat(content, cut=fault == "cut")

    def chat(self, content: str, cut: bool = False) -> None:
        message = {"role": "assistant", "content": content}
        data = {
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }
        text = json.dumps(data)
        if not cut:
            self.reply(200, text)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text[: len(text) // 2].encode())
        self.wfile.flush()
        self.close_connection = True

    def reply(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def running(kind: str = "good", delay: float = 0.0) -> Iterator[str]:
    """The URL of such a server in a process of its own."""
    command = [sys.executable, str(Path(__file__)), kind, str(delay)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def stats(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/stats", timeout=10) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        pass  # clients that give up are part of the play


def main() -> None:
    Handler.bad, Handler.delay = sys.argv[1] == "bad", float(sys.argv[2])
    server = Server(("127.0.0.1", 0), Handler)
    for caption in ("a red cup on a table", "two men riding large horses past an old house"):
        texts("clearly different", caption)  # loads what it needs
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
