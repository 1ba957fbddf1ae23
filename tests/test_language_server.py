"""Language models: what of their answers is taken; servers that fail, and what never shows."""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import expect_one_line
from compoclip.captions.parser import parse
from compoclip.errors import CompoclipError, UsageError
from compoclip.language import judge as rules
from compoclip.language.engine import Answer, AskError, ChatServer, Sampling, load_task, task_names
from compoclip.language.judge import judge_answers, texts_of
from compoclip.rewrites.base import Rewritten, get_rewrite, rng_for
from compoclip.rewrites.edit import SAME_TOKENS
from compoclip.rewrites.written import (
    TOO_MANY_WORDS,
    negative_objection,
    paraphrase_objection,
    positive_objection,
)
from real_captions import negclip
from rewrite_facts import rows

# --- What is read from answers, and what of it is taken. ---


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ("a red cup", ["a red cup"]),
        ("  A red cup.\n", ["A red cup."]),
        ('"a red cup"', ["a red cup"]),
        ("“a red cup”.", ["a red cup"]),
        ("'a man's cup'", ["a man's cup"]),
        ("Answer: a red cup", ["a red cup"]),
        ("**Output:** *a red cup*", ["a red cup"]),
        ("Sure! Here is the sentence:\n\na red cup\n\n(I replaced mug by cup.)", ["a red cup"]),
        ("a red cup\nNote: cup means mug.", ["a red cup"]),
        ("1. a red cup\n2) a blue cup\n(3) a pan\n- a pot\n• a jug", ["a red cup", "a blue cup",
         "a pan", "a pot", "a jug"]),
        ('["a red cup", "a \\"blue\\" cup"]', ["a red cup", 'a "blue" cup']),
        ('{"sentence": "a red cup"}', ["a red cup"]),
        ('[{"text": "a"}, {"text": "b"}]', ["a", "b"]),
        ('Here you are:\n["a red cup", "a pot"]\nEnjoy!', ["a red cup", "a pot"]),
        ('```json\n{"sentences": ["a red cup"]}\n```', ["a red cup"]),
        ("```\na red cup\n```", ["a red cup"]),
        ("<think>Hm: [\"x\"]\nmore</think>a red cup", ["a red cup"]),
        ("<think>never ends", []),
        ('["a red cup", "a bl', ["a red cup"]),
        ('{"sentences": ["a red cup", "a pot"', ["a red cup", "a pot"]),
        ("", []),
        ("  \n ", []),
        ("[" * 5000, []),
        ("a 10:30 train", ["a 10:30 train"]),
        ("2 dogs on a mat", ["2 dogs on a mat"]),
    ],
)  # fmt: skip
def test_texts(answer: str, texts: list[str]) -> None:
    assert texts_of(answer) == texts


def test_a_fragment_at_the_token_limit_is_no_text() -> None:
    assert texts_of("a red cup\na blue cup\na gre", cut_off=True) == ["a red cup", "a blue cup"]
    assert texts_of("a red c", cut_off=True) == []
    assert texts_of('["a red cup", "a bl', cut_off=True) == ["a red cup"]


@pytest.mark.parametrize("name", task_names())
def test_every_task_reads_well(name: str) -> None:
    task = load_task(name)
    (message,) = task.messages("a red cup and a pot")
    assert message["content"].endswith("Sentence: a red cup and a pot\nAnswer:")
    assert task.source
    assert len(task.hash) == 16
    for one, other in task.examples:  # what the prompt shows passes its own rules
        assert judge_answers(task, one, [(other, False)]).accepted == (other,)


def test_tasks_differ_and_ask_where_they_apply() -> None:
    assert len(task_names()) == len({load_task(name).hash for name in task_names()}) == 8
    swap = load_task("positives-swap")
    assert len(swap.examples) == 5
    assert swap.asks("a cat and a dog")
    assert not swap.asks("a candy stand")
    assert not load_task("dense").asks("  ")
    with pytest.raises(UsageError, match="known: dense, negatives"):
        load_task("poem")


# Task | caption | answer | whether it is accepted, or why not
ANSWERS = rows("""
positives-replace | a red cup | a crimson cup | accepted
positives-replace | a red cup | | empty-caption
positives-replace | a red cup | A RED cup | same-after-tokenisation
positives-replace | a red cup | a blue cup | contradicts-the-caption
positives-replace | two dogs run | three dogs run | contradicts-the-caption
positives-replace | a red cup | a crimson mug | not-one-content-word-changed
positives-replace | a red cup | a cup that is red | too-many-words
positives-replace | a red cup | None. | answers-none
positives-replace | a red cup | I'm sorry, I cannot do that. | refusal
positives-replace | a red cup | As an AI language model, I ... | refusal
positives-replace | a cup | exactly one word of the sentence by a cup | echoes-the-prompt
positives-verb | a man wearing a hat | a man clothed in a hat | accepted
positives-verb | a man holding a cup | a man holding a mug | no-verb-changed
positives-verb | a red cup | a man clothed in a hat | echoes-the-prompt
positives-spatial | a pot under a mug | a pot beneath a mug | accepted
positives-spatial | a cup on top of a box | a cup on a box | accepted
positives-spatial | a cup on a box | a cup under a box | contradicts-the-caption
positives-spatial | a red cup on a box | a crimson cup on a box | no-preposition-changed
positives-swap | a cup and a pot | a pot and a cup | accepted
positives-swap | a cup and a pot | a mug and a pot | words-changed
positives-swap | a black cat and a white dog | a white cat and a black dog | states-other-things
negatives-swap | a cup on a pot | a pot on a cup | accepted
negatives-swap | a cup and a pot | a pot and a cup | keeps-the-meaning
negatives-swap | a cup next to a pot | a pot next to a cup | keeps-the-meaning
negatives-swap | a cup on a pot | a lamp on a cup | words-changed
negatives | a red cup | a blue cup | accepted
negatives | a cup on a box | a cup under a box | accepted
negatives | a cup on a box | a cup atop a box | keeps-the-meaning
negatives | a dog on a mat | no dog on a mat | accepted
negatives | a red cup | a crimson cup | keeps-the-meaning
negatives | a red cup here | a small cup here | keeps-the-meaning
negatives | a large red cup | a large cup | only-drops-words
negatives | a big cup | a big red cup | only-adds-words
paraphrase | a man riding a bike | a person rides a bicycle | accepted
paraphrase | a man riding a bike | a man not riding a bike | contradicts-the-caption
paraphrase | a red cup on a wall | a blue cup upon a wall | contradicts-the-caption
paraphrase | two dogs chase a ball | the sun shines brightly | loses-content
dense | a red cup | the cup stands on a wooden table | accepted
dense | a red cup | a table | too-few-words
dense | a red cup | a blue cup on a table | contradicts-the-caption
dense | a red and white cup | a white cup on a table | accepted
""")


@pytest.mark.parametrize(("task", "caption", "answer", "reason"), ANSWERS)
def test_an_answer_is_accepted_or_rejected(
    task: str, caption: str, answer: str, reason: str
) -> None:
    judged = judge_answers(load_task(task), caption, [(answer, False)])
    if reason == "accepted":
        assert judged == rules.Judged((answer,), ())
    else:
        assert judged.accepted == ()
        assert [why for _, why in judged.rejected] == [reason]


def test_several_answers_add_up_to_the_most_and_repeat_nothing() -> None:
    task = load_task("negatives")
    answers = [("a blue cup\nA blue cup\na red cup", False), ("a green cup\na pink cup", False)]
    judged = judge_answers(task, "a red cup", answers)
    assert judged.accepted == ("a blue cup", "a green cup", "a pink cup")
    assert judged.rejected == (("A blue cup", rules.REPEATED), ("a red cup", SAME_TOKENS))
    assert judge_answers(task, "a red cup", [("a blue c", True)]).rejected[0][1] == "too-long"
    dense = judge_answers(load_task("dense"), "a red cup", [("word " * 40, False)])
    assert [reason for _, reason in dense.rejected] == [TOO_MANY_WORDS]
    one = load_task("positives-replace")
    judged = judge_answers(one, "a red cup", [("a crimson cup\nThat was it", False)])
    assert judged == rules.Judged(("a crimson cup",), ())


def test_an_apology_in_the_caption_is_no_refusal() -> None:
    answers = [("I am sorry, a sign says go", False)]
    assert judge_answers(load_task("negatives"), "I am sorry, a sign says stop", answers).accepted


def test_rules_agree_with_the_rewrites_on_real_captions(shared_data: Path) -> None:
    """Texts made by rule are judged as what they are (the reverse would count as a positive)."""
    captions = [row["title"].strip() for row in negclip(shared_data)[:80]]
    taken: dict[str, list[bool]] = defaultdict(list)
    for number, caption in enumerate(map(parse, captions)):
        for name in ("replace", "negclip", "synonym", "and-swap"):
            rewrite = get_rewrite(name)
            rewritten = rewrite(caption, rng_for(0, str(number), 0, name))
            if not isinstance(rewritten, Rewritten):
                continue
            text = parse(rewritten.text)
            positive = positive_objection(caption, text) is None
            negative = negative_objection(caption, text) is None
            keeps = rewrite.keeps_meaning
            taken[name].append(positive if keeps else negative)
            taken[f"{name} reversed"].append(negative if keeps else positive)
            if keeps:
                taken["paraphrase"].append(paraphrase_objection(caption, text) is None)
    shares = {name: sum(values) / len(values) for name, values in taken.items()}
    assert min(shares[name] for name in ("replace", "negclip", "synonym")) > 0.97
    assert shares["paraphrase"] > 0.95
    assert shares["and-swap"] > 0.8
    assert max(shares[f"{name} reversed"] for name in ("replace", "negclip", "synonym")) < 0.1


# --- Servers and models that answer: what is tried again, what stops. ---


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
    ("status", "location", "message"),
    [
        (401, "", "--key-env"),
        (404, "", "has the model 'm'"),
        (307, "http://other/v1", "has moved to http://other/v1"),
        (302, "http://[::1", "has moved to "),
        (302, "ftp://x", "has moved to "),
        (302, "http://h:99999999/", "has moved to "),
        (302, "\x1b[31m", "has moved to "),
    ],
)
def test_what_stops_at_once(status: int, location: str, message: str, serve: Any) -> None:
    url, seen = serve(lambda handler, n: reply(handler, status, "", Location=location))
    with pytest.raises(CompoclipError, match=message) as raised:
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
