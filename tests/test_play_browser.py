"""The playground as people use it: in a browser, with two models, and many asking at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from compoclip.data.sources.open import Request
from compoclip.evaluation import ModelEncoder
from compoclip.models.checkpoint import load_model
from compoclip.search import index_photos
from compoclip.web.app import Server
from compoclip.web.playground import Playground, play_site
from compoclip_world.dataset import examples

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CAPTION = "a red star to the left of a large blue mug"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The bundled model beside one whose text tower is turned around, so that they disagree."""
    one, other = load_model("bundled"), load_model("bundled")
    other.encoder.model.text_projection.data.neg_()  # type: ignore[union-attr,operator]
    models = {"one": one, "other": replace(other, name="other")}
    playground = Playground(models, examples(64))
    with Server(play_site(playground), "127.0.0.1", 0).in_thread() as running:
        yield running


@pytest.fixture(scope="module")
def searching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The bundled model and an index of three photos with captions."""
    folder = tmp_path_factory.mktemp("photos")
    table = ["image,caption"]
    for colour in ("red", "green", "blue"):
        Image.new("RGB", (64, 48), colour).save(folder / f"{colour}.png")
        table.append(f"{colour}.png,a {colour} square")
    (folder / "photos.csv").write_text("\n".join(table))
    model = load_model("bundled")
    request = Request(str(folder / "photos.csv"), images=folder)
    index = index_photos(request, ModelEncoder(model), folder / "index", "bundled")
    playground = Playground({"bundled": model}, examples(64), index)
    with Server(play_site(playground), "127.0.0.1", 0).in_thread() as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """The page, opened; whatever it logs fails the test."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(120_000)
    logged: list[str] = []
    opened.on("console", lambda message: logged.append(message.text))
    opened.on("pageerror", lambda error: logged.append(str(error)))
    opened.goto(server.url)
    opened.locator(".model li").first.wait_for()  # it opens on a scored example
    yield opened
    assert [line for line in logged if "400" not in line] == []  # refused input is told as such
    opened.close()


def upload(page: Page, png: bytes, name: str = "scene.png") -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": png})


def ask(page: Page, caption: str) -> None:
    page.fill("#caption", caption)
    page.click("#go")


def test_upload_type_and_see_the_rewrites_in_order(page: Page, server: Server) -> None:
    upload(page, examples(64)[0][1])
    ask(page, CAPTION)
    page.locator("li.caption", has_text=CAPTION).nth(1).wait_for()
    columns = page.locator(".model").all()
    assert [column.locator("h2").inner_text() for column in columns] == ["one", "other"]
    for column in columns:
        scores = [float(each) for each in column.locator(".score").all_inner_texts()]
        assert len(scores) > 5
        assert scores == sorted(scores, reverse=True)
        assert column.locator("li.caption").count() == 1
        own = float(column.locator("li.caption .score").inner_text())
        above = [
            each
            for each in column.locator("li.negative").all()
            if float(each.locator(".score").inner_text()) >= own
        ]
        assert all("flip" in each.inner_text() for each in above)
        assert column.locator("li.negative .flip").count() == len(above)
        assert column.locator("li.negative mark, li.positive mark").count() > 0
    assert "fool" in page.locator("#between").inner_text()
    assert page.locator("#graph .object-name").all_text_contents() == ["star", "mug"]
    assert page.locator("#graph .attribute-name").all_text_contents() == ["red", "large", "blue"]
    assert page.locator("#graph .relation-name").text_content() == "to the left of"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_switch_between_the_models(page: Page) -> None:
    columns = page.locator(".model").all()
    for choice, shown in (("one", [True, False]), ("other", [False, True]), ("both", [True, True])):
        page.get_by_label(choice, exact=True).check()
        assert [column.is_visible() for column in columns] == shown
    page.evaluate("document.querySelector('#which').hidden = true")  # as for one model
    assert not page.locator("#which").is_visible()


def test_point_at_a_word_and_see_where_it_looks(page: Page) -> None:
    words = page.locator("#words button")
    words.nth(1).wait_for()
    maps = page.locator(".model .map").all()
    plain = [each.get_attribute("src") for each in maps]
    assert all(source and source.startswith("blob:") for source in plain)
    words.nth(1).hover()
    page.locator(".map[src^='data:image/png']").nth(1).wait_for()
    assert "by one" in (maps[0].get_attribute("alt") or "")
    assert "align most" in page.locator(".looks").first.inner_text()
    page.locator("h1").hover()
    page.locator(".map[src^='blob:']").nth(1).wait_for()
    words.nth(0).click()
    page.locator("h1").hover()
    page.locator(".map[src^='data:image/png']").nth(1).wait_for()  # a click keeps the map
    assert all(each.evaluate("image => image.naturalWidth > 0") for each in maps)


def test_bad_input_is_told_in_words(page: Page, server: Server) -> None:
    status = page.locator("#status")
    ask(page, " ")
    assert status.inner_text() == "Type a caption first."
    upload(page, b"this is no picture", "notes.png")
    ask(page, "a star")
    page.locator("#status.bad", has_text="not an image of a known format").wait_for()
    upload(page, b"\x89PNG" + bytes(8_100_000), "huge.png")
    page.locator("#status.bad", has_text="larger than the 8 MB allowed").wait_for()
    upload(page, examples(64)[0][1])
    page.fill("#caption", "word " * 100)
    assert len(page.input_value("#caption")) == 300  # the field takes no more
    ask(page, "a star <b>& more</b>")
    page.locator("li.caption", has_text="a star <b>& more</b>").first.wait_for()
    assert page.locator(".model li b:not(.flip)").count() == 0  # text stays text
    assert status.inner_text() == ""


def test_on_a_phone(browser: Browser, server: Server) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.set_default_timeout(120_000)
    page.goto(server.url)
    page.locator(".model li").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_search_and_score_what_was_found(browser: Browser, searching: Server, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(120_000)
    logged: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    page.goto(searching.url)
    page.click("nav >> text=Search photos")
    page.locator("#query:focus").wait_for()  # else the page asks for what the test has
    page.fill("#query", "red")
    page.press("#query", "Enter")
    pictures = page.locator(".found img")
    pictures.nth(2).wait_for()
    assert pictures.evaluate_all("all => all.every((each) => each.naturalWidth > 0)")
    assert page.locator("[aria-current]").inner_text() == "Search photos"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    first = page.locator(".found figcaption").first.inner_text()
    assert "a red square" in first
    page.locator("#query:focus").wait_for()
    page.fill("#query", "blue")  # the next query
    page.click("form button")
    page.wait_for_url("**/search?q=blue")
    link = page.locator(".found figure a").first.get_attribute("href")
    assert page.request.get(f"{searching.url}{link}").headers["content-type"] == "image/jpeg"
    page.locator("text=Score it").first.click()
    page.locator("li.caption", has_text="blue").first.wait_for()
    assert page.input_value("#caption") == "blue"
    assert logged == []
    page.close()
