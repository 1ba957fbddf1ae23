"""The playground: rewrites scored and ranked, its JSON API, and what it refuses."""

from __future__ import annotations

import base64
import http.client
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image

from compoclip.analysis.probe import Candidate, candidates_of, ranked, score_candidates
from compoclip.bounds import MAX_OPEN_REQUESTS, MAX_PLAY_BODY, MAX_PLAY_CHARACTERS
from compoclip.captions.parser import parse
from compoclip.cli.main import main
from compoclip.errors import UsageError
from compoclip.models.checkpoint import LoadedModel, create_model
from compoclip.models.config import ModelConfig
from compoclip.web.app import Server, is_loopback
from compoclip.web.playground import Playground, play_site
from compoclip_world.dataset import examples
from models_thin import config
from test_data_image_door import empty as huge_header
from web_client import ask, encoded, post

CAPTION = "a red star to the left of a large blue mug"


@pytest.fixture(scope="module")
def server(bundled: LoadedModel) -> Iterator[Server]:
    """A running server with the bundled model, twice, on a free port."""
    playground = Playground({"one": bundled, "two": bundled}, examples(64))
    with Server(play_site(playground), "127.0.0.1", 0).in_thread() as running:
        yield running


@pytest.fixture(scope="module")
def scene(server: Server) -> bytes:
    png: bytes = ask(server, "GET", "/examples/0.png")[2]
    return png


def test_the_score_of_every_rewrite(server: Server, scene: bytes, bundled: LoadedModel) -> None:
    status, answer = post(server, "/api/score", {"image": encoded(scene), "caption": CAPTION})
    assert status == 200
    assert answer["caption"] == CAPTION
    assert any("star" in line and "red" in line for line in answer["graph"]["lines"])
    assert [each["name"] for each in answer["models"]] == ["one", "two"]
    first, second = (each["candidates"] for each in answer["models"])
    assert first == second
    cosines = [each["cosine"] for each in first]
    assert cosines == sorted(cosines, reverse=True)
    (own,) = [each for each in first if each["kind"] == "caption"]
    assert (own["text"], own["made_by"], own["changed"]) == (CAPTION, [], [])
    negatives = [each for each in first if each["kind"] == "negative"]
    assert negatives
    assert any(each["kind"] == "positive" for each in first)
    for each in negatives:
        assert each["flip"] is (each["cosine"] >= own["cosine"])
    assert answer["models"][0]["flips"] == sum(each["flip"] for each in negatives)
    swapped = next(each for each in negatives if "negclip" in each["made_by"])
    words = {swapped["text"][a:b] for a, b in swapped["changed"]}
    assert words
    assert all(word in CAPTION for word in words)  # a swap brings nothing new
    # the same cosine as the plain model computes
    pixels = bundled.preprocess.evaluation(Image.open(io.BytesIO(scene)).convert("RGB"))[None]
    with torch.no_grad():
        features = bundled.encoder.features(pixels, bundled.tokenizer([CAPTION]))
    assert own["cosine"] == pytest.approx(float(features.image[0] @ features.text[0]), abs=1e-5)


def test_the_maps_of_every_word(server: Server, scene: bytes) -> None:
    request = {"image": encoded(scene), "caption": "a red  star"}
    status, answer = post(server, "/api/maps", request)
    assert status == 200
    for model in answer["models"]:
        assert model["grid"] == [2, 2]
        assert [each["word"] for each in model["words"]] == ["a", "red", "star"]
        assert model["left_out"] == []
        head, _, data = model["words"][0]["overlay"].partition(",")
        assert head == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            assert picture.size == (64, 64)


def test_a_model_without_patches_is_told_apart(scene: bytes, bundled: LoadedModel) -> None:
    text = {"vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    pooled = config(vision={"attentional_pool": True, "attn_pooler_heads": 4}, text=text)
    playground = Playground({"with": bundled, "without": create_model(ModelConfig(pooled))})
    request = {"image": encoded(scene), "caption": "a star"}
    first, second = playground.maps(request)["models"]
    assert len(first["words"]) == 2
    assert "patch maps need patch features" in second["error"]
    assert len(playground.score(request)["models"]) == 2  # scores need none


def test_pages_and_their_headers(server: Server, scene: bytes) -> None:
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/style.css", "text")):
        status, headers, body = ask(server, "GET", path)
        assert status == 200
        assert headers["Content-Type"].startswith(kind)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert b"http://" not in body  # needs nothing from elsewhere
        assert b"https://" not in body
    info = ask(server, "GET", "/api/info")[2]
    assert len(info["examples"]) == 6
    assert [each["name"] for each in info["models"]] == ["one", "two"]
    with Image.open(io.BytesIO(scene)) as picture:
        assert picture.format == "PNG"


def test_unknown_addresses(server: Server) -> None:
    for path in (
        *("/nothing", "/../pyproject.toml", "/examples/../../../../etc/passwd", "//etc/passwd"),
        *("/%2e%2e/%2e%2e/etc/passwd", "/examples/99.png", "/examples/-1.png", "/page.html"),
        *("/page.js/", "/%7f"),
    ):
        assert ask(server, "GET", path)[::2] == (404, {"error": "there is no such page"})


NO_IMAGE = "not an image of a known format"
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "huge header": ({"image": encoded(huge_header(60000, 60000))}, "pixels"),
    "a thread": ({"image": encoded(huge_header(20000, 1))}, "50 times the other"),
    "cut off": ({"image": encoded(huge_header(64, 64)[:60])}, "image"),
    "a script": ({"image": encoded(b"%!PS-Adobe-3.0 EPSF-3.0\n")}, NO_IMAGE),
    "a path": ({"image": "/etc/passwd"}, "not base64|no image"),
    "a number": ({"image": 3}, "'image' is missing"),
    "nothing": ({"image": ""}, NO_IMAGE),
    "long text": ({"caption": "a " * MAX_PLAY_CHARACTERS}, "600 characters; at most 300"),
    "no text": ({"caption": " \n\u200b"}, "is empty"),
    "a list": ({"caption": ["a"]}, "'caption' is missing"),
    "unknown": ({"top": 3}, "'top' is not known; the request has caption, image"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(server: Server, scene: bytes, case: str) -> None:
    change, expected = BAD[case]
    for path in ("/api/score", "/api/maps"):
        request = {"image": encoded(scene), "caption": "a star", **change}
        status, answer = post(server, path, request)
        assert status == 400
        assert re.search(expected, answer["error"])
        assert "\n" not in answer["error"]


@pytest.mark.parametrize(
    ("length", "expected"),
    [(str(MAX_PLAY_BODY + 1), 413), ("9" * 40, 400), ("-1", 400), ("²", 400)],
)
def test_lengths_that_are_turned_away(server: Server, length: str, expected: int) -> None:
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    connection.putrequest("POST", "/api/score")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", length.encode("latin-1"))
    connection.endheaders()
    assert connection.getresponse().status == expected
    connection.close()


def test_too_many_waiting_are_turned_away(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.site, "busy", MAX_OPEN_REQUESTS)
    assert post(server, "/api/score", {})[0] == 503
    monkeypatch.setattr(server.site, "busy", 0)
    monkeypatch.setattr(server.site, "buffered", 9 * MAX_PLAY_BODY)
    assert post(server, "/api/score", {})[0] == 503
    monkeypatch.setattr(server.site, "buffered", 0)
    assert post(server, "/api/score", {})[0] == 400


def test_flips_by_hand() -> None:
    kinds = {"c": "caption", "n1": "negative", "n2": "negative", "p1": "positive", "p2": "positive"}
    texts = [Candidate(text, kind) for text, kind in kinds.items()]
    scored = ranked(texts, [0.5, 0.5, 0.1, 0.6, 0.4])
    found = [(each.candidate.text, each.flip) for each in scored]
    # n1 ties with the caption: wrong, and first; p2 is below n1
    assert found == [("p1", False), ("n1", True), ("c", True), ("p2", True), ("n2", False)]
    assert [each.flip for each in ranked(texts[:1], [0.3])] == [False]


def test_equal_rewrites_are_one_candidate(bundled: LoadedModel) -> None:
    found, refused = candidates_of(parse(CAPTION))
    assert found[0] == Candidate(CAPTION, "caption")
    keys = [(each.text, each.kind) for each in found]
    assert len(keys) == len(set(keys))
    names = [name for each in found for name in each.made_by]
    assert len(names) == len(set(names))
    assert not set(names) & set(refused)
    assert candidates_of(parse(CAPTION))[0] == found
    image = Image.new("RGB", (40, 30), "red")
    assert len(score_candidates(bundled, image, found)) == len(found)


def test_wrong_usage(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["bundled"] * 3, "name one model, or two"),
        ([], "name a model, or the photos to search with --index"),
        (["bundled", "--port=70000"], "--port must lie"),
    ):
        assert main(["play", *arguments]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(UsageError, match="choose another --host or --port"):
        Server(play_site(Playground({})), *server.address)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)],
)
def test_which_addresses_are_this_computer(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
