"""What search shows: pages of the photos, the tab of the playground, answers over HTTP."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from build.photos import write_noise
from build.tables import write_text
from compoclip.benchmarks.case import ImageRef, Retrieval
from compoclip.cli.main import main
from compoclip.data.sources.open import Request
from compoclip.evaluation import ModelEncoder
from compoclip.evaluation.encode import EncodeOptions
from compoclip.models import load_model
from compoclip.search import PhotoIndex, before_after, index_page, index_photos, look_up, search
from compoclip.search.page import scores_explained
from compoclip.web import Playground, Server, Service, model_site, play_site
from search_photos import indexed
from web_client import ask, encoded, post


def test_a_page_needs_no_other_file(photos: Path, encoder: ModelEncoder, tmp_path: Path) -> None:
    write_noise(photos / "<b>&.png", 9)
    index = indexed(photos, encoder, tmp_path / "index")
    (photos / "0.png").unlink()
    answers = search(index, encoder, ["<script>alert(1)</script>"])
    page = index_page(index, answers, tmp_path / "index")
    assert page.count('src="data:image/jpeg;base64,') == 5
    assert page.count("This photo cannot be read.") == 1
    assert "<script" not in page
    assert "&lt;b&gt;&amp;.png" in page
    links = re.findall(r'(?:src|href)="(?!data:)([^"]*)', page)
    assert sorted(links) == sorted((photos / name).as_uri() for name in index.names[1:])
    assert f"compoclip play --index {tmp_path / 'index'}" in page


def test_a_page_has_the_captions_of_the_data(
    photos: Path, encoder: ModelEncoder, tmp_path: Path
) -> None:
    table = write_text(tmp_path / "pairs.csv", "image,caption\n1.png,a <red> star\n")
    index = indexed(table, encoder, tmp_path / "index", images=photos)
    answers = search(index, encoder, ["a street without cars"])
    page = index_page(index, answers, tmp_path / "index")
    assert "a &lt;red&gt; star" in page
    assert "Searched for “a street” without\n“cars”." in page
    assert "1 photo from “pairs.csv”, searched with" in page
    other = [replace(answers[0], matches=False)]
    assert "Nothing matches." in index_page(index, other, tmp_path / "index")


def test_a_page_explains_its_scores(
    index: PhotoIndex, encoder: ModelEncoder, tmp_path: Path
) -> None:
    answers = search(index, encoder, ["a star"])
    page = index_page(index, answers, tmp_path / "index")
    assert f"{answers[0].hits[0].score:.3f}</span>" in page
    assert "<details class" in page  # folded
    assert "have the highest of 5 photos" in page
    assert f"multiplied by {index.about['scale']:.0f}" in page
    assert "--calibrate finds a threshold" in page
    assert "bias" not in " ".join(scores_explained(index))
    calibration = {"threshold": 0.2711, "captions": 40, "missed": 0.05, "noticed": 0.1}
    about = {**index.about, "scale": 117.3, "bias": -12.9, "calibration": calibration}
    text = " ".join(scores_explained(replace(index, about=about)))
    assert "Below 0.271 the page says" in text
    assert "5% fall below it, and 10% if" in text
    assert "a bias of -12.9, so that a cosine of 0.110" in text
    assert f"{np.exp(1.173):.1f} times as likely" in text


# --- Over HTTP. ---


def test_a_server_answers_searches(
    index: PhotoIndex, photos: Path, world: Path, encoder: ModelEncoder
) -> None:
    loaded = load_model(world / "base")
    calibration = {"threshold": 2.0, "captions": 1, "missed": 0.0, "noticed": 0.0}
    index = replace(index, about={**index.about, "calibration": calibration})
    queries = ["a star", photos / "1.png", "a star with no mug", "a mug without a ball or a star"]
    expected = search(index, encoder, queries, 3)
    service = Service("m", loaded, index=index)
    png = {"image": encoded((photos / "1.png").read_bytes())}
    asked = [png if isinstance(query, Path) else query for query in queries]
    with Server(model_site(service), "127.0.0.1", 0).in_thread() as server:
        status, answer = post(server, "/v1/search", {"input": asked, "top": 3})
        assert status == 200
        for number, (one, other) in enumerate(zip(answer["data"], expected, strict=True)):
            assert [hit["photo"] for hit in one["hits"]] == [hit.photo for hit in other.hits]
            scores = [hit.score for hit in other.hits]
            assert [hit["score"] for hit in one["hits"]] == pytest.approx(scores, abs=1e-5)
            assert one["best"] == pytest.approx(other.best, abs=1e-5)
            assert (one["matches"], one["denied"]) == (other.matches, [*other.denied])
            assert one["query"] == f"input[{number}]"
        assert [one["asked"] for one in answer["data"][2:]] == ["a star", "a mug"]
        assert [one["matches"] for one in answer["data"]] == [False, True, False, False]
        # The features of what is denied take places in the queue, too.
        settings = service.batcher.settings
        service.batcher.settings = replace(settings, items=2, queue=2)
        status, answer = post(server, "/v1/search", {"input": "a mug without a ball or a star"})
        assert (status, "deny 2 things" in answer["error"]["message"]) == (400, True)
        service.batcher.settings = settings
        for top in (0, 101, True, "3", 1.5):
            status, answer = post(server, "/v1/search", {"input": "a", "top": top})
            assert (status, "from 1 to 100" in answer["error"]["message"]) == (400, True)
        assert post(server, "/v1/search", {"input": ["a"] * 257})[0] == 400
    service.close()
    plain = Service("m", loaded)
    with Server(model_site(plain), "127.0.0.1", 0).in_thread() as server:
        assert post(server, "/v1/search", {"input": "a star"})[0] == 404
    plain.close()


def test_the_playground_shows_photos(
    index: PhotoIndex, photos: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compoclip.web.app._LINGER", 1000.0)  # no refusal waits for a body
    loaded = load_model(world / "base")
    with Server(play_site(Playground({"m": loaded}, (), index)), "127.0.0.1", 0).in_thread() as it:

        def page(address: str, **headers: str) -> tuple[int, str]:
            status, _, content = ask(it, "GET", address, None, **headers)
            return status, content.decode() if isinstance(content, bytes) else content["error"]

        status, empty = page("/search")
        assert (status, "<figure>" in empty, 'name="q"' in empty) == (200, False, True)
        status, answer = page("/search?q=a+%3Cb%3Estar")
        assert (status, answer.count('src="data:image/jpeg;base64,')) == (200, 5)
        assert 'value="a &lt;b&gt;star"' in answer
        assert "What the scores mean" in answer
        assert 'href="photos/4.jpg"' in answer
        assert 'href="./#photo=4&amp;caption=a%20%3Cb%3Estar"' in answer
        status, refused = page(f"/search?q={'a' * 301}")
        assert (status, "at most 300 are allowed" in refused) == (200, True)
        status, headers, picture = ask(it, "GET", "/photos/4.jpg")
        assert (status, headers["Content-Type"]) == (200, "image/jpeg")
        assert picture.startswith(b"\xff\xd8\xff")
        for row in ("5", "-1", "a", "..%2f0", "1.5", "%D9%A1", "9" * 5000):
            assert page(f"/photos/{row}.jpg")[0] == 404
        for row in ("a", "-1", "0", ""):  # the path alone names a photo
            assert ask(it, "GET", f"/photos/4.jpg?row={row}")[2] == picture
        for address in ("/search?q=a", "/photos/0.jpg"):
            assert page(address, Host="evil.example")[0] == 403
            assert page(address, **{"Sec-Fetch-Site": "cross-site"})[0] == 403
        (photos / "0.png").unlink()
        status, refused = page("/photos/0.jpg")
        assert (status, "0.png" in refused) == (400, True)
    with Server(play_site(Playground({"m": loaded})), "127.0.0.1", 0).in_thread() as it:
        status, _, content = ask(it, "GET", "/search?q=a")
        assert (status, b"compoclip index PHOTOS" in content) == (200, True)
        assert ask(it, "GET", "/photos/0.jpg")[0] == 404


# --- The commands. ---


def test_an_index_of_another_model_is_not_served(
    index: PhotoIndex, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**index.about["identity"], "weights": "others"}
    replace(index, about={**index.about, "identity": other}).save(tmp_path / "index")
    for verb in ("serve", "play"):
        words = [verb, str(world / "base"), "--index", str(tmp_path / "index"), "--port=0"]
        assert main(words) == 1
        assert "made with another model" in capsys.readouterr().err.splitlines()[-1]


def test_the_page_is_opened_and_may_fail(
    photos: Path,
    encoder: ModelEncoder,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    index_photos(Request(str(photos)), encoder, tmp_path / "i", str(world / "base"))
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address))
    assert main(["search", str(tmp_path / "i"), "a mug", "--json"]) == 0
    assert not (tmp_path / "i.html").exists()
    assert main(["search", str(tmp_path / "i"), "a mug", "--json", "--open"]) == 0
    assert opened == [(tmp_path / "i.html").as_uri()]
    assert "there is no browser to open it in" in capsys.readouterr().err
    (tmp_path / "i.html").unlink()
    (tmp_path / "i.html").mkdir()  # as where the folder is read only
    assert main(["search", str(tmp_path / "i"), "a mug"]) == 0
    said = capsys.readouterr()
    assert "no page of the photos: " in said.err
    assert "rank" in said.out
    assert main(["search", str(tmp_path / "i"), "a mug", "--open"]) == 1


def test_equal_scores_count_against_the_photo_of_a_caption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tuple(ImageRef(write_noise(tmp_path / f"{k}.png", k)) for k in range(4))
    photos = Retrieval(images, ("a dog", "a cat"), ((0, 0), (1, 0), (3, 1)))
    features = np.array([[0.5, 0.1], [0.2, 0.9], [0.5, 0.9], [0.7, 0.9]], dtype=np.float32)
    texts = np.eye(2, dtype=np.float32)
    monkeypatch.setattr(before_after, "encoded", lambda *_: [("base", features, texts)])
    page = tmp_path / "page.html"
    lookups = look_up({}, photos, EncodeOptions(), torch.device("cpu"), 0, page)
    ranks = {lookup.caption: dict(lookup.ranks) for lookup in lookups}
    assert ranks == {"a dog": {"base": 3}, "a cat": {"base": 3}}
    assert "“a dog” by base: its photo is number 3" in page.read_text()
