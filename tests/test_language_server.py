"""Servers and models that answer: what is tried again, what stops, what never shows."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import expect_one_line
from compoclip.errors import CompoclipError, UsageError
from compoclip.language.engine import Answer, AskError, ChatServer, Sampling, load_task

SAMPLING = Sampling(0.0, 20, 1)
MESSAGES = load_task("positives-replace").messages("a red cup")
WORDS = ("a", "red", "cup", "on", "the", "box")
KEY = "sk-very-secret-0123456789"
Script = Callable[[BaseHTTPRequestHandler, int], None]


def reply(handler: BaseHTTPRequestHandler, status: int, body: str, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body.encode())


def good(handler: BaseHTTPRequestHandler, content: Any = "a crimson cup", **more: Any) -> None:
    choice = {"message": {"content": content}, **more}
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    reply(handler, 200, json.dumps({"choices": [choice], "usage": usage}))


@pytest.fixture
def serve() -> Iterator[Callable[[Script], tuple[str, list[dict[str, Any]]]]]:
    """Starts a server whose n-th reply (from 0) is up to a script; gives URL and bodies seen."""
    servers: list[HTTPServer] = []

    def start(script: Script) -> tuple[str, list[dict[str, Any]]]:
        seen: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                seen.append({"path": self.path, "headers": headers, **body})
                script(self, len(seen) - 1)

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the client, which notes them instead of sleeping."""
    noted: list[float] = []
    monkeypatch.setattr("openai._base_client.time.sleep", noted.append)
    return noted


def server_at(url: str, retries: int = 3, **more: Any) -> ChatServer:
    return ChatServer(url, "m", timeout=2.0, retries=retries, **more)


def test_the_question_and_the_answer(serve: Any) -> None:
    url, seen = serve(lambda handler, n: good(handler, finish_reason="length"))
    assert server_at(url).ask(MESSAGES, SAMPLING) == Answer("a crimson cup", True, 7, 3)
    assert seen[0]["path"] == "/v1/chat/completions"
    assert {k: v for k, v in seen[0].items() if k not in ("path", "headers")} == {
        "model": "m",
        "messages": MESSAGES,
        "temperature": 0.0,
        "max_tokens": 20,
        "seed": 1,
    }


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/v1", "{}/v1/", "{}/v1/chat/completions"])
def test_urls(form: str) -> None:
    assert ChatServer(form.format("https://h:1"), "m").name == "https://h:1/v1"
    assert ChatServer("h:1/api/v3", "m").name == "http://h:1/api/v3"


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://h", "http://", "http://u:p@h/v1", "http://h/v1?key=x", "http://[::1", "h:99999"),
        *("http://h:x/v1", "http://a..b/v1", "http://h/a b", "http://h/\u00e9", "http://h/\x1b"),
    ],
)
def test_wrong_urls(url: str) -> None:
    with pytest.raises(UsageError, match="--server") as raised:
        ChatServer(url, "m")
    assert str(raised.value).isprintable()


def test_what_may_pass_is_tried_again(serve: Any) -> None:
    def script(handler: BaseHTTPRequestHandler, n: int) -> None:
        if n == 0:
            reply(handler, 500, "<html>")
        elif n == 1:
            reply(handler, 429, "{}", Retry_After="5")
        elif n == 2:
            handler.close_connection = True  # no reply at all
        elif n < 5:
            reply(handler, 200, ("this is not JSON", '{"choices": []}')[n - 3])
        else:
            good(handler, None)

    url, seen = serve(script)
    assert server_at(url).ask(MESSAGES, SAMPLING).text == ""  # a null content is an empty answer
    assert len(seen) == 6


def test_giving_up(serve: Any, waits: list[float]) -> None:
    url, seen = serve(lambda handler, n: reply(handler, 503, '{"error": {"message": "full"}}'))
    with pytest.raises(AskError, match="HTTP 503, full") as info:
        server_at(url).ask(MESSAGES, SAMPLING)
    assert not info.value.final
    assert (len(seen), len(waits)) == (4, 3)
    url, seen = serve(lambda handler, n: reply(handler, 200, "[]"))
    with pytest.raises(AskError, match=r"no reply is a chat completion \(4 tries\)"):
        server_at(url).ask(MESSAGES, SAMPLING)
    assert len(seen) == 4
    with pytest.raises(AskError, match="refused"):
        server_at("http://127.0.0.1:9", retries=0).ask(MESSAGES, SAMPLING)


def test_without_the_client_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(CompoclipError, match="--server needs openai: pip install openai") as info:
        server_at("http://h")
    expect_one_line(info.value, "")


def test_a_refused_question_is_final_once_the_server_has_answered(serve: Any) -> None:
    def script(handler: BaseHTTPRequestHandler, n: int) -> None:
        good(handler) if n == 1 else reply(handler, 400, '{"message": "too long"}')

    url, _ = serve(script)
    server = server_at(url)
    with pytest.raises(AskError, match="HTTP 400, too long") as first:
        server.ask(MESSAGES, SAMPLING)
    server.ask(MESSAGES, SAMPLING)
    with pytest.raises(AskError) as second:
        server.ask(MESSAGES, SAMPLING)
    assert (first.value.final, second.value.final) == (False, True)


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "--key-env"), (404, "has the model 'm'"), (307, "has moved to http://other/v1")],
)
def test_what_stops_at_once(status: int, message: str, serve: Any) -> None:
    url, seen = serve(lambda handler, n: reply(handler, status, "", Location="http://other/v1"))
    with pytest.raises(CompoclipError, match=message):
        server_at(url).ask(MESSAGES, SAMPLING)
    assert len(seen) == 1


@pytest.mark.parametrize("to", ["http://[::1", "ftp://x", "http://h:99999999/", "\x1b[31m"])
def test_a_server_that_has_moved_to_nowhere(to: str, serve: Any) -> None:
    url, seen = serve(lambda handler, n: reply(handler, 302, "", Location=to))
    with pytest.raises(CompoclipError, match="has moved to ") as raised:
        server_at(url).ask(MESSAGES, SAMPLING)
    assert str(raised.value).isprintable()
    assert len(seen) == 1


HEADS = (
    *(("Content-Length", value) for value in ("9" * 5000, "\u00b2", "-1", "")),
    *(("Retry-After", value) for value in ("nan", "9" * 5000, "\u00b2", "x, 1 y 1 1:1:1 z")),
    ("Retry-After", "Mon, 01 Jan 0001 00:00:00 -0000"),
    ("Retry-After", "Fri, 31 Dec 9999 23:59:59 -2359"),
)


@pytest.mark.parametrize(("name", "value"), HEADS)
@pytest.mark.parametrize("status", [200, 429])
def test_headers_that_make_no_sense(serve: Any, name: str, value: str, status: int) -> None:
    body = json.dumps({"choices": [{"message": {"content": "a cup"}}]}).encode()
    kind = "Content-Type: application/json"
    head = f"HTTP/1.0 {status} OK\r\n{kind}\r\n{name}: {value}\r\n\r\n".encode("latin-1")

    def script(handler: BaseHTTPRequestHandler, n: int) -> None:
        handler.wfile.write(head + body)

    url, _ = serve(script)
    server = server_at(url, retries=0)
    try:
        assert server.ask(MESSAGES, SAMPLING).text == "a cup"
    except AskError as error:
        expect_one_line(error, "")


@pytest.mark.parametrize(
    "body", ["[" * 100_000, '{"error": ' * 50_000, "9" * 5000, "\x1b[31m", "[]"]
)
@pytest.mark.parametrize("status", [200, 400])
def test_bodies_that_make_no_sense(serve: Any, body: str, status: int) -> None:
    url, _ = serve(lambda handler, n: reply(handler, status, body))
    with pytest.raises(AskError) as raised:
        server_at(url, retries=0).ask(MESSAGES, SAMPLING)
    assert str(raised.value).isprintable()


def test_the_key_is_sent_only_where_it_is_named_and_shows_nowhere(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    url, seen = serve(lambda handler, n: reply(handler, 401, f"unknown key {KEY}"))
    with pytest.raises(CompoclipError):
        server_at(url).ask(MESSAGES, SAMPLING)
    assert "authorization" not in seen[0]["headers"]
    assert KEY not in str(seen[0])
    server = server_at(url, key_variable="OPENAI_API_KEY")
    with pytest.raises(CompoclipError, match=r"unknown key \*\*\*") as info:
        server.ask(MESSAGES, SAMPLING)
    assert seen[1]["headers"]["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(info.value)
    assert KEY not in server.name
    with pytest.raises(UsageError, match="NO_SUCH: this environment variable is not set"):
        ChatServer(url, "m", key_variable="NO_SUCH")


def tiny_model(folder: Path, *, chat: bool) -> Path:
    """A Llama of random weights with a tokenizer of its own, saved as transformers does."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {word: number for number, word in enumerate(("<unk>", "<end>", *WORDS))}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", eos_token="<end>"
    )
    if chat:
        tokenizer.chat_template = "{% for m in messages %}red {{ m.content }} cup{% endfor %}"
    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), 16)
    heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 2)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), 1)
    config = transformers.LlamaConfig(
        len(words), num_hidden_layers=1, max_position_embeddings=300, **sizes, **heads, **ends
    )
    import torch

    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("chat", [False, True])
def test_a_model_in_this_process(chat: bool, tmp_path: Path) -> None:
    from compoclip.language.engine import InProcessModel

    model = InProcessModel(str(tiny_model(tmp_path / "tiny", chat=chat)))
    drawn = [model.ask(MESSAGES, Sampling(1.0, 12, seed)) for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert set(drawn[0].text.split()) <= {*WORDS, "<unk>"}
    assert drawn[0].tokens_out is not None
    assert 0 < drawn[0].tokens_out <= 12
    assert drawn[0].cut_off == (drawn[0].tokens_out == 12)
    greedy = [model.ask(MESSAGES, Sampling(0.0, 5, seed)) for seed in (1, 2)]
    assert greedy[0] == greedy[1]
    plain = len(MESSAGES[0]["content"].split())
    assert greedy[0].tokens_in is not None
    assert greedy[0].tokens_in >= plain
    long = load_task("positives-replace").messages("a red cup " * 200)
    assert model.ask(long, SAMPLING) == Answer("", True, model.ask(long, SAMPLING).tokens_in, 0)
    with pytest.raises(CompoclipError, match="not a causal language model"):
        InProcessModel(str(tmp_path))
